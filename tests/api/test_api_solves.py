"""Roots, solutions of linear equations and batch rules of one's own, beside JAX."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors, lax
from volta.testing import assert_bits_equal

F = np.float32
A, B, R = F([[4, 1], [1, 3]]), F([[4, 1], [2, 3]]), F([1, 2])


def newton(t, n):
    def solve(f, x):
        def step(c):
            return c[0] - f(c[0]) / t.jvp(f, (c[0],), (n.ones_like(c[0]),))[1], c[1] + 1

        return t.lax.while_loop(lambda c: c[1] < 20, step, (x, np.int32(0)))[0]

    return solve


def cube_root(t, n):
    slope = lambda g, y: y / g(n.ones_like(y))  # noqa: E731
    return lambda a: t.lax.custom_root(lambda x: x**3 - a, F(1), newton(t, n), slope)


def by_cramer(t, n):
    def solve(matvec, b):
        m = t.jacfwd(matvec)(n.zeros_like(b))
        d = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
        return n.stack([(m[1, 1] * b[0] - m[0, 1] * b[1]) / d, (m[0, 0] * b[1] - m[1, 0] * b[0]) / d])

    return solve


def solution(t, n, **settings):
    if settings.pop("transpose", False):
        settings["transpose_solve"] = by_cramer(t, n)
    return lambda m, b: t.lax.custom_linear_solve(lambda x: m @ x, b, by_cramer(t, n), **settings)


def _roots(t, n):
    root, xs = cube_root(t, n), F([8, 27])
    return (
        root(F(8)), t.grad(root)(F(8)), t.grad(t.grad(root))(F(8)), t.jit(t.grad(root))(F(8)),
        t.jvp(root, (F(8),), (F(1),)), t.vmap(root)(xs), t.jit(t.vmap(t.grad(root)))(xs),
    )  # fmt: skip


def _solutions(**settings):
    def run(t, n):
        matrix = A if "symmetric" in settings else B
        solve = solution(t, n, **settings)
        loss = lambda m, b: n.sum(solve(m, b) ** 2)  # noqa: E731
        many = np.stack([matrix, 2 * matrix])
        return (
            solve(matrix, R), t.jvp(solve, (matrix, R), (matrix, R)), t.jit(solve)(matrix, R),
            t.vmap(solve, (None, 0))(matrix, np.stack([R, 2 * R])), t.vmap(solve, (0, None))(many, R),
            t.grad(loss, (0, 1))(matrix, R), t.jit(t.grad(loss, (0, 1)))(matrix, R),
            t.vmap(t.grad(loss, (0, 1)), (None, 0))(matrix, np.stack([R, 2 * R])),
            t.grad(lambda m, b: n.sum(t.vmap(loss, (0, None))(m, b)), (0, 1))(many, R), t.hessian(loss)(matrix, R),
        )  # fmt: skip

    return run


def _others(t, n):
    root = lambda a: t.lax.custom_root(  # noqa: E731
        lambda x: {"r": x["r"] ** 3 - a}, {"r": F(1)},
        lambda f, x: ({"r": newton(t, n)(lambda v: f({"r": v})["r"], x["r"])}, F(3)),
        lambda g, y: {"r": y["r"] / g({"r": n.ones_like(y["r"])})["r"]}, has_aux=True,
    )  # fmt: skip
    both = lambda m, y: (by_cramer(t, n)(m, y), F(7))  # noqa: E731
    solve = lambda b: t.lax.custom_linear_solve(lambda x: B @ x, b, both, both, has_aux=True)  # noqa: E731
    return root(F(8)), t.grad(lambda a: root(a)[0]["r"])(F(8)), t.grad(lambda b: n.sum(solve(b)[0]) * solve(b)[1])(R)


def _own_batches(t, n):
    f = t.custom_batching.custom_vmap(lambda x, y: n.sin(x) * y["a"])
    seen = []

    @f.def_vmap
    def rule(size, batched, x, y):
        seen.append((size, batched[0], batched[1]["a"]))
        return n.cos(x) * y["a"], True  # another function, to be seen

    xs, ys = F([1, 2, 3]), F([4, 5, 6])
    return (
        f(F(1), {"a": F(2)}), t.vmap(f, (0, None))(xs, {"a": F(2)}), t.vmap(f)(xs, {"a": ys}),
        t.jit(t.vmap(f))(xs, {"a": ys}),
        t.jvp(f, (F(1), {"a": F(2)}), (F(1), {"a": F(1)})), t.vmap(t.jit(f))(xs, {"a": ys}),
        t.vmap(lambda x, d: t.jvp(f, (x, {"a": F(2)}), (d, {"a": F(0)})))(xs, ys),
        np.array(seen),
    )  # fmt: skip


def _sequential(t, n):
    f = t.custom_batching.sequential_vmap(lambda x, y: {"s": n.sin(x) * y})
    return t.vmap(f, (0, None))(F([1, 2]), F(3)), t.vmap(f)(F([1, 2]), F([3, 4]))


PROGRAMS = {
    "roots": _roots,
    "symmetric": _solutions(symmetric=True),
    "with a transpose": _solutions(transpose=True),
    "others beside": _others,
    "batch rules": _own_batches,
    "one after the other": _sequential,
}


@sampled("name", PROGRAMS, ["roots", "others beside", "batch rules"])
@pytest.mark.few(2)
@pytest.mark.turns(2)
def test_programs_agree_with_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    found, expected = PROGRAMS[name](volta, vnp), PROGRAMS[name](jax, jax.numpy)
    leaves, others = jax.tree_util.tree_leaves(volta.tree.map(np.asarray, found)), jax.tree_util.tree_leaves(expected)
    for x, y in zip(leaves, others, strict=True):
        assert x.shape == np.shape(y)
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_however_they_are_called_the_bits_are_the_same() -> None:
    root, xs = cube_root(volta, vnp), F([8, 27, 5])
    for f in (root, volta.grad(root)):
        eager = np.stack([f(x) for x in xs])
        assert_bits_equal(np.stack([volta.jit(f)(x) for x in xs]), eager)
        assert_bits_equal(volta.vmap(f)(xs), eager)
    gradient = volta.grad(lambda m, b: vnp.sum(solution(volta, vnp, transpose=True)(m, b) ** 2), (0, 1))
    for x, y in zip(volta.jit(gradient)(B, R), gradient(B, R), strict=True):
        assert_bits_equal(x, y)


@pytest.mark.parametrize(
    ("f", "error", "said"),
    [
        (lambda s: lax.custom_linear_solve(lambda x: x[:1], R, s), errors.ShapeError, "must return f32[2], like b"),
        (lambda s: lax.custom_linear_solve(lambda x: (x,), R, s), errors.TreeError, "matvec `<lambda>` must return"),
        (lambda s: lax.custom_linear_solve(lambda x: x, R, lambda m, y: y[:1]), errors.ShapeError, "solve `<lambda>`"),
        (lambda s: lax.custom_linear_solve(lambda x: x, R, s, has_aux=True), errors.TreeError, "others"),
        (lambda s: lax.custom_root(lambda x: (x,), R, lambda f, x: x, s), errors.TreeError, "f `<lambda>` must return"),
        (lambda s: lax.custom_root(lambda x: x > 0, R, lambda f, x: x, s), errors.DTypeError, "returned bool[2]"),
        (lambda s: lax.custom_root(lambda x: x, R, lambda f, x: x, lambda g, y: y[0]), errors.ShapeError, "but it"),
        (lambda s: lax.custom_root(3, R, s, s), TypeError, "custom_root takes a function"),
    ],
)  # fmt: skip
def test_what_is_refused(f, error, said) -> None:
    with pytest.raises(error) as caught:
        f(by_cramer(volta, vnp))
    assert said in str(caught.value) and "test_api_solves.py" in str(caught.value)


def test_a_reverse_derivative_needs_the_transpose() -> None:
    solve = solution(volta, vnp)
    assert_bits_equal(solve(B, R), by_cramer(volta, vnp)(lambda x: B @ x, R))
    with pytest.raises(errors.NotDifferentiableError, match="pass transpose_solve"):
        volta.grad(lambda b: vnp.sum(solve(B, b)))(R)


def test_batch_rules_that_return_something_else() -> None:
    def made(rule):
        f = volta.custom_batching.custom_vmap(lambda x: x * 2)
        f.def_vmap(rule)
        return f

    with pytest.raises(AttributeError, match="has no rule yet"):
        volta.custom_batching.custom_vmap(lambda x: x)(1.0)
    for rule, error, said in (
        (lambda n, b, x: x, errors.TreeError, "must return a pair"),
        (lambda n, b, x: ((x,), (True,)), errors.TreeError, "its output has the structure"),
        (lambda n, b, x: (x, [True]), errors.TreeError, "what it says is mapped has the structure"),
        (lambda n, b, x: (x, False), errors.ShapeError, "must return f32[], but it returned f32[3]"),
        (lambda n, b, x: (x[:2], True), errors.ShapeError, "must return f32[3], but it returned f32[2]"),
    ):
        with pytest.raises(error, match="`<lambda>`") as caught:
            volta.vmap(made(rule))(vnp.ones(3))
        assert said in str(caught.value)
    with pytest.raises(errors.ShapeError, match="reads a mapped value from around it"):

        def closing(x):
            f = volta.custom_batching.custom_vmap(lambda y: x * y)
            f.def_vmap(lambda n, b, y: (y, False))
            return f(1.0)

        volta.vmap(closing)(vnp.ones(3))


def test_gradients_of_functions_with_batch_rules_are_the_functions() -> None:
    f = volta.custom_batching.custom_vmap(vnp.sin)
    f.def_vmap(lambda n, b, x: (vnp.sin(x), True))
    assert_bits_equal(volta.grad(f)(F(0.5)), volta.grad(vnp.sin)(F(0.5)))
    assert_bits_equal(volta.vmap(volta.grad(f))(R), volta.vmap(volta.grad(vnp.sin))(R))


def test_rules_of_wrapped_functions() -> None:
    f = volta.custom_vjp(volta.custom_batching.custom_vmap(lambda x, y: vnp.sin(x) * y))
    f.def_vmap(lambda n, b, x, y: (vnp.cos(x) * y, True))  # another function, to be seen
    f.defvjp(lambda x, y: (f(x, y), y), lambda y, ct: (5 * ct * y, None))
    assert_bits_equal(volta.vmap(f)(R, R), vnp.cos(R) * R)
    assert float(volta.grad(f)(F(1), F(2))) == 10.0
    g = volta.custom_batching.custom_vmap(volta.custom_jvp(vnp.sin))
    g.defjvp(lambda p, d: (vnp.sin(*p), 7 * d[0]))
    g.def_vmap(lambda n, b, x: (vnp.sin(x), True))
    assert float(volta.grad(g)(F(1))) == 7.0
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        g.nonsense  # noqa: B018


@pytest.mark.parametrize("unroll", [0, True, False, 10])
def test_scans_unroll_as_jax_says(unroll) -> None:
    step = lambda c, x: (c + x, c)  # noqa: E731
    for n in (0, 3):
        xs = np.arange(n, dtype=F)
        assert_bits_equal(lax.scan(step, F(0), xs, unroll=unroll)[0], lax.scan(step, F(0), xs)[0])
    assert float(lax.fori_loop(0, 3, lambda i, x: x + i, F(0), unroll=unroll)) == 3.0


def test_arguments_of_scans() -> None:
    with pytest.raises(errors.ShapeError, match="unroll must not be negative, got -1"):
        lax.scan(lambda c, x: (c, x), F(0), R, unroll=-1)
    with pytest.raises(TypeError, match="associative_scan takes a function, got int"):
        lax.associative_scan(3, R)
    with pytest.raises(errors.ShapeError, match="associative_scan: axis 1 is out of range"):
        lax.associative_scan(lax.add, R, axis=1)
