"""Python functions inside of programs: called in order, as often as JAX calls them, and bits stay as they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors, lax
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

F = np.float32
X = F([0.5, 1.5])
LIKE = volta.ShapeDtypeStruct((), "float32")


def watched(t, n, x):
    t.debug.print("x={x} {y:.3f}", x=x, y=x * 2)
    return n.sin(x)


def looped(t, n, x):
    def body(c, i):
        t.lax.cond(i % 2 == 0, lambda: t.debug.print("even {i} {c}", i=i, c=c), lambda: None)
        return c * F(1.5), c

    return t.lax.scan(body, x, np.arange(4, dtype=np.int32), reverse=True)


def waiting(t, n, x, end=3, by=1):
    def body(c):
        t.debug.print("at {}", c)
        return c + by

    return t.lax.while_loop(lambda c: c < end, body, x)


def ordered(t, n, x):
    t.debug.print("a {}", x, ordered=True)
    t.debug.print("b", ordered=True)
    return x


def ordered_record(x):
    return volta.experimental.io_callback(lambda x: None, None, x, ordered=True)


PROGRAMS = {
    "ordered in a batch": lambda t, n: t.jit(t.vmap(lambda x: ordered(t, n, x)))(X),
    "plain": lambda t, n: watched(t, n, F(1)),
    "jit": lambda t, n: t.jit(lambda x: watched(t, n, x))(F(1)),
    "grad": lambda t, n: t.grad(lambda x: watched(t, n, x))(F(1)),
    "jit of grad": lambda t, n: t.jit(t.grad(lambda x: watched(t, n, x)))(F(1)),
    "grad of jit": lambda t, n: t.grad(t.jit(lambda x: watched(t, n, x)))(F(1)),
    "jvp": lambda t, n: t.jvp(lambda x: watched(t, n, x), (F(1),), (F(1),)),
    "vmap": lambda t, n: t.vmap(lambda x: watched(t, n, x))(X),
    "jit of vmap": lambda t, n: t.jit(t.vmap(lambda x: watched(t, n, x)))(X),
    "vmap of grad": lambda t, n: t.vmap(t.grad(lambda x: watched(t, n, x)))(X),
    "checkpoint": lambda t, n: t.grad(t.checkpoint(lambda x: watched(t, n, x)))(F(1)),
    "scan": lambda t, n: t.jit(lambda x: looped(t, n, x))(F(1)),
    "grad of scan": lambda t, n: t.grad(lambda x: n.sum(looped(t, n, x)[1]))(F(1)),
    "while": lambda t, n: t.jit(lambda x: waiting(t, n, x))(F(0)),
    "while of values outside": lambda t, n: t.jit(lambda *xs: waiting(t, n, *xs))(F(0), F(5), F(2)),
    "ordered": lambda t, n: t.jit(lambda x: ordered(t, n, x))(F(0)),
    "dead": lambda t, n: t.jit(lambda x: (watched(t, n, x), 0)[1])(F(1)),
    "no arguments": lambda t, n: t.jit(lambda: t.debug.print("here"))(),
}


@sampled("name", PROGRAMS, ["jit of grad", "jit of vmap", "scan", "grad of scan", "dead", "while of values outside"])
def test_what_is_printed_and_computed_is_jax(name: str, capsys) -> None:
    jax = pytest.importorskip("jax")
    found = PROGRAMS[name](volta, vnp)
    own = capsys.readouterr().out
    expected = PROGRAMS[name](jax, jax.numpy)
    jax.effects_barrier()
    assert own == capsys.readouterr().out and own
    leaves, others = jax.tree_util.tree_leaves(volta.tree.map(np.asarray, found)), jax.tree_util.tree_leaves(expected)
    for x, y in zip(leaves, others, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6)


def test_programs_in_parts_have_the_bits_of_the_whole() -> None:
    def f(call, x):
        def body(c, row):
            c = vnp.tanh(c @ row + 0.1)
            c = lax.cond(vnp.sum(c) > 0, lambda v: v * 1.5, lambda v: call(v) - 0.3, c)
            return call(c), vnp.sum(c * c)

        c, ys = lax.scan(body, x[0], x.reshape(2, 3, 3))
        return vnp.sum(c) / vnp.sum(vnp.exp(ys))

    def through(v):
        volta.debug.callback(lambda v: None, v)
        return v

    x = np.random.default_rng(0).standard_normal((6, 3)).astype(F)
    for derivative in (lambda g: g, volta.grad, lambda g: volta.vmap(volta.grad(g))):
        given = np.stack([x, 2 * x]) if derivative(abs) is not abs and derivative is not volta.grad else x
        expected = volta.jit(derivative(lambda x: f(lambda v: v, x)))(given)
        assert_bits_equal(volta.jit(derivative(lambda x: f(through, x)))(given), expected)
        assert_bits_equal(derivative(lambda x: f(through, x))(given), expected)


@pytest.mark.parametrize("wrap", [lambda f: f, volta.jit])
def test_pure_callbacks(wrap) -> None:
    def sine(x, scale=1.0, method="sequential"):
        like = {"s": volta.ShapeDtypeStruct(x.shape, "float32")}
        found = volta.pure_callback(
            lambda x, *, scale: {"s": np.sin(np.asarray(x)) * float(scale)}, like, x, scale=scale, vmap_method=method
        )
        return found["s"] * 2

    assert_bits_equal(wrap(sine)(X), np.sin(X) * 2)
    assert_bits_equal(wrap(volta.vmap(sine))(X), np.sin(X) * 2)
    rule = volta.custom_jvp(lambda x: sine(x))
    rule.defjvp(lambda p, d: (rule(*p), vnp.cos(p[0]) * d[0] * 2))
    assert_bits_equal(wrap(volta.grad(lambda x: rule(x)))(X[0]), volta.grad(lambda x: vnp.sin(x) * 2)(X[0]))


def test_one_call_for_a_batch() -> None:
    shapes = []

    def add(x, y):
        shapes.append((x.shape, y.shape))
        return np.asarray(x) + np.asarray(y)

    for method in ("expand_dims", "broadcast_all"):
        f = lambda x, y, method=method: volta.pure_callback(add, LIKE, x, y, vmap_method=method)  # noqa: E731
        assert volta.vmap(f, (0, None))(X, F(3)).tolist() == [3.5, 4.5]
        assert volta.vmap(volta.vmap(f, (0, None)), (None, 0))(X, F([3, 4, 5]))[2].tolist() == [5.5, 6.5]
    assert shapes == [((2,), (1,)), ((1, 2), (3, 1)), ((2,), (2,)), ((3, 2), (3, 2))]


def test_calls_that_count_are_made_though_nobody_reads_them() -> None:
    calls = []

    def f(x):
        volta.pure_callback(lambda x: calls.append("pure") or x, LIKE, x)  # nobody reads it
        volta.experimental.io_callback(lambda: calls.append("first") or F(1), LIKE)
        volta.experimental.io_callback(lambda x: calls.append(float(x)), None, x, ordered=True)
        return x

    for _ in range(2):
        volta.jit(f)(F(3))
        assert calls == ["first", 3.0]
        calls.clear()
    volta.vmap(lambda x: volta.experimental.io_callback(lambda x: calls.append(float(x)), None, x))(X)
    assert calls == [0.5, 1.5]


def test_numbers_and_settings_are_handed_on() -> None:
    seen = []

    def f(x, n):
        volta.debug.callback(lambda *a, **k: seen.append((a, k)), x, "text", [n], key=len)
        return x

    assert float(volta.jit(f, static_argnums=1)(0.1, 3)) == 0.1
    ((x, text, (n,)), rest) = seen[0]
    assert (float(x), text, int(n), rest) == (0.1, "text", 3, {"key": len})


@pytest.mark.parametrize(
    ("f", "error", "said"),
    [
        (
            lambda x: volta.pure_callback(lambda x: (x, x), LIKE, x),
            errors.TreeError,
            "result_shape_dtypes says, but",
        ),
        (lambda x: volta.pure_callback(lambda x: np.ones(3), LIKE, x), errors.ShapeError, "its shape is (3,)"),
        (lambda x: volta.pure_callback(lambda x: 1 > 0, LIKE, x), errors.DTypeError, "its dtype is bool"),
        (lambda x: volta.pure_callback(lambda x: 1 / 0, LIKE, x), ZeroDivisionError, "division by zero"),
        (
            lambda x: volta.grad(lambda x: volta.pure_callback(np.sin, LIKE, x))(x),
            errors.NotDifferentiableError,
            "`sin`",
        ),
        (
            lambda x: volta.vmap(lambda x: volta.pure_callback(np.sin, LIKE, x))(X),
            NotImplementedError,
            "say by vmap_method how it takes a batch",
        ),
        (lambda x: volta.pure_callback(np.sin, LIKE, x, vmap_method="no"), ValueError, "vmap_method is one of"),
        (lambda x: volta.vmap(ordered_record)(X), ValueError, "is ordered, and the examples of vmap"),
        (lambda x: volta.debug.print("{y}", x=x), errors.ArgumentError, "shows 'y', which is no argument"),
        (lambda x: volta.debug.print("text", x), errors.ArgumentError, "does not show the arguments 0"),
        (lambda x: volta.debug.callback(3), TypeError, "debug.callback takes a function"),
    ],
)
def test_what_is_refused(f, error, said) -> None:
    for wrapped in (f, volta.jit(f)):
        with pytest.raises(error) as caught:
            wrapped(F(1))
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda record: volta.vmap(lambda x: lax.cond(x > 1, lambda v: record(v), lambda v: v, x))(X),
        lambda record: volta.vmap(lambda x: lax.while_loop(lambda c: c < 1, lambda c: record(c) + 1, x))(X),
        lambda record: volta.grad(volta.checkpoint(lambda x: record(lax.stop_gradient(x)) * x))(F(1)),
    ],
)
def test_effects_that_would_be_there_too_often(f) -> None:
    seen = []
    record = lambda x: volta.experimental.io_callback(lambda v: seen.append(v) or v, LIKE, x)  # noqa: E731
    with pytest.raises(errors.UnsupportedOperationError, match="io_callback of `<lambda>`: .*would call it"):
        f(record)
    assert not seen


def test_calls_in_a_loop_of_examples_are_as_many_as_those_of_jax() -> None:
    """The condition is asked twice in an iteration: whether any example goes on, and which do."""
    jax = pytest.importorskip("jax")

    def seen_by(t):
        seen = []

        def told(name, x):
            t.debug.callback(lambda v: seen.append((name, int(v))), x)
            return x

        def until(n):
            return t.lax.while_loop(lambda c: told("condition", c) < n, lambda c: told("body", c) + 1, 0)

        t.vmap(until)(np.array([1, 3]))
        t.effects_barrier()
        return sorted(seen)

    assert seen_by(volta) == seen_by(jax) and len(seen_by(volta)) == 2 * (2 + 3 * (2 + 1) - 1)


def test_a_program_in_parts_has_no_one_plan() -> None:
    compiled = volta.jit(lambda x: watched(volta, vnp, x)).lower(F(1)).compile()
    assert_bits_equal(compiled(F(1)), vnp.sin(F(1)))
    with pytest.raises(errors.UnsupportedOperationError, match="calls Python functions, so it is run in parts"):
        compiled.plan  # noqa: B018


def test_breakpoints_see_the_variables(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *a, **k: seen.append(sys._getframe(1).f_globals))

    @volta.jit
    def f(x):
        twice, name = {"a": x * 2}, "here"
        volta.debug.breakpoint()
        return twice["a"] + len(name)

    assert float(f(F(3))) == 10.0
    assert float(seen[0]["x"]) == 3.0 and float(seen[0]["twice"]["a"]) == 6.0 and seen[0]["name"] == "here"
    assert seen[0]["F"] is F
