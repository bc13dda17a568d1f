"""Derivative rules of one's own: JAX's answers, and the same bits however a function is called."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.api.custom_programs import PROGRAMS, X, doubled_sine, product
from tests.sampling import sampled
from volta.testing import assert_bits_equal

F = np.float32
QUICK = (
    "orders (jvp)", "mapped (vjp)", "arrays", "rules that apply the function to tangents",
    "scanned (vjp)", "trees", "integers", "symbolic zeros", "rules look at values",
    "closures over traced values", "a rule that differentiates a loop", "arguments that are no data",
)  # fmt: skip


@sampled("name", PROGRAMS, QUICK)
@pytest.mark.few(4)
@pytest.mark.turns(6)
def test_programs_agree_with_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    found, expected = PROGRAMS[name](volta, vnp), PROGRAMS[name](_WithConversion(jax), jax.numpy)
    leaves, tree = jax.tree_util.tree_flatten(volta.tree.map(np.asarray, found))
    others, other_tree = jax.tree_util.tree_flatten(expected)
    assert str(tree) == str(other_tree)
    for x, y in zip(leaves, others, strict=True):
        assert (x.shape, x.dtype) == (np.shape(y), np.asarray(y).dtype)
        if x.dtype != volta.float0:
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


class _WithConversion:
    """JAX, with the one function that it keeps elsewhere."""

    def __init__(self, jax):
        self._jax, self.closure_convert = jax, jax.custom_derivatives.closure_convert

    def __getattr__(self, name):
        return getattr(self._jax, name)


@sampled("kind,order", [(k, o) for k in ("jvp", "vjp") for o in (1, 2, 3)], [("jvp", 2), ("vjp", 1)])
def test_however_it_is_called_the_bits_are_the_same(kind: str, order: int) -> None:
    f = product(volta, vnp, kind)
    g = f
    for _ in range(order):
        g = volta.grad(g)
    y = F(1.7)
    eager = [g(x, y) for x in X]
    assert_bits_equal([volta.jit(g)(x, y) for x in X], eager)
    assert_bits_equal(volta.vmap(g, (0, None))(X, y), np.stack(eager))
    assert_bits_equal(volta.jit(volta.vmap(g, (0, None)))(X, y), np.stack(eager))
    inner = volta.jit(f)
    for _ in range(order):
        inner = volta.grad(volta.jit(inner))
    assert_bits_equal([inner(x, y) for x in X], eager)
    summed = functools.reduce(lambda h, _: volta.grad(h), range(order - 1), f)
    outside = volta.grad(lambda x: vnp.sum(volta.vmap(summed, (0, None))(x, y)))
    assert_bits_equal(outside(X), np.stack(eager))
    assert_bits_equal(volta.jit(outside)(X), np.stack(eager))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_loops_have_the_bits_of_the_same_written_out(kind: str) -> None:
    f = doubled_sine(volta, vnp, kind)
    scanned = lambda x: volta.lax.scan(lambda c, _: (f(c), None), x, None, 4)[0]  # noqa: E731
    written = lambda x: f(f(f(f(x))))  # noqa: E731
    for derivative in (lambda h: h, volta.grad, lambda h: volta.grad(volta.grad(h))):
        expected = derivative(written)(F(0.5))
        for wrap in (lambda h: h, volta.jit, volta.checkpoint):
            assert_bits_equal(derivative(wrap(scanned))(F(0.5)), expected)
            assert_bits_equal(wrap(derivative(written))(F(0.5)), expected)


def test_a_sum_over_examples_has_the_bits_of_sum() -> None:
    xs = np.random.default_rng(0).standard_normal(5000).astype(F)
    f = product(volta, vnp, "vjp")
    gradient = volta.grad(lambda y: vnp.sum(volta.vmap(f, (0, None))(xs, y)))(F(2))
    assert_bits_equal(gradient, vnp.sum(vnp.sin(xs)))


def test_a_python_number_keeps_its_64_bits() -> None:
    f = volta.custom_jvp(lambda x: x * x)
    f.defjvp(lambda p, d: (f(*p), 2 * p[0] * d[0]))
    assert f(0.1) == 0.1 * 0.1 and volta.jit(f)(0.1) == 0.1 * 0.1
    for g in (volta.grad(f), volta.jit(volta.grad(f)), volta.grad(volta.jit(f))):
        assert g(0.1).dtype == np.float64 and float(g(0.1)) == 0.2
    scaled = volta.custom_vjp(lambda x, a: x * a)
    scaled.defvjp(lambda x, a: (scaled(x, a), (x, a)), lambda r, ct: (vnp.sum(ct * r[1]), ct * r[0]))
    gradient = volta.grad(lambda x: vnp.sum(scaled(x, X)))
    assert gradient(0.1).dtype == np.float64  # as the number, though its rule computes float32
    assert_bits_equal(volta.jit(gradient)(0.1), gradient(0.1))
    added = volta.custom_jvp(lambda i, a: a + i)
    added.defjvp(lambda p, d: (added(*p), d[1]))
    for f in (added, volta.jit(added)):
        with pytest.raises(OverflowError):
            f(300, np.uint8([1]))


def test_a_recorded_call_means_its_program() -> None:
    f = product(volta, vnp, "jvp")
    program = volta.make_jaxpr(lambda x: f(x, F(2)))(X)
    assert "custom_derivative" in str(program) and "sin" in str(program)
    assert_bits_equal(volta.jit(lambda x: f(x, F(2)))(X), f(X, F(2)))


def test_what_a_rule_does_not_use_is_not_asked_for() -> None:
    calls = []
    f = volta.custom_vjp(lambda x, y: x)
    f.defvjp(lambda x, y: (x, None), lambda r, ct: calls.append(1) or (ct, None))
    assert float(volta.grad(lambda x: 3.0 * x + 0 * volta.lax.stop_gradient(f(x, 1.0)))(2.0)) == 3.0
    assert not calls
