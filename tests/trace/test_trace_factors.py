"""Cholesky, LU and triangular equations: JAX's answers and derivatives, one order, small residuals on hard matrices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.optional import Optional
from tests.sampling import sampled
from volta import lax
from volta.core.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal

jax = Optional("jax")

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)


def general(n: int, m: int | None = None, dtype: str = "f8", batch: int = 2) -> Any:
    return RNG.standard_normal((batch, n, n if m is None else m)).astype(dtype)


def definite(n: int, dtype: str = "f8") -> Any:
    a = RNG.standard_normal((2, n, n))
    return (a @ a.transpose(0, 2, 1) + np.eye(n)).astype(dtype)


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "cholesky": (
        lambda a: vnp.linalg.cholesky(a), lambda a: jax.numpy.linalg.cholesky(a), definite,
    ),
    "inv": (lambda a: vnp.linalg.inv(a), lambda a: jax.numpy.linalg.inv(a), definite),
    "solve": (
        lambda a: vnp.linalg.solve(a, vnp.sin(a[..., :2])),
        lambda a: jax.numpy.linalg.solve(a, jax.numpy.sin(a[..., :2])), definite,
    ),
    "det": (lambda a: vnp.linalg.det(a), lambda a: jax.numpy.linalg.det(a), general),
    "slogdet": (lambda a: vnp.linalg.slogdet(a)[1], lambda a: jax.numpy.linalg.slogdet(a)[1], general),
    "lu": (lambda a: lax.linalg.lu(a)[0], lambda a: jax.lax.linalg.lu(a)[0], general),
    "lu of wide ones": (
        lambda a: lax.linalg.lu(a[..., :2, :])[0], lambda a: jax.lax.linalg.lu(a[..., :2, :])[0], general,
    ),
    "lu of tall ones": (
        lambda a: lax.linalg.lu(a[..., :2])[0], lambda a: jax.lax.linalg.lu(a[..., :2])[0], general,
    ),
    "triangular_solve": (
        lambda a: lax.linalg.triangular_solve(a, a, lower=True, transpose_a=True),
        lambda a: jax.lax.linalg.triangular_solve(a, a, lower=True, transpose_a=True), definite,
    ),
}  # fmt: skip


@sampled("name,n", [(name, n) for name in FUNCTIONS for n in (4, 37)], [("cholesky", 4)])
def test_values_and_derivatives_to_second_order_are_those_of_jax(name: str, n: int) -> None:
    f, g, made = FUNCTIONS[name]
    a = made(n)
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(g)(a))
        ct = RNG.standard_normal(want.shape)
        once = jax.jit(jax.grad(lambda a: (g(a) * ct).sum()))
        twice = np.asarray(jax.jit(jax.grad(lambda a: (once(a) ** 2).sum()))(a))
        once = np.asarray(once(a))
    compiled = volta.jit(f)
    np.testing.assert_allclose(compiled(a), want, rtol=1e-8, atol=1e-9 * np.abs(want).max())
    slope = volta.jit(volta.grad(lambda a: (f(a) * ct).sum()))
    np.testing.assert_allclose(slope(a), once, rtol=1e-7, atol=1e-8 * np.abs(once).max())
    found = volta.jit(volta.grad(lambda a: (slope(a) ** 2).sum()))(a)
    np.testing.assert_allclose(found, twice, rtol=1e-6, atol=1e-7 * np.abs(twice).max())
    _, tangent = volta.jit(lambda a: volta.jvp(f, (a,), (a,)))(a)
    with jax.enable_x64(True):
        theirs = jax.jit(lambda a: jax.jvp(g, (a,), (a,))[1])(a)
        np.testing.assert_allclose(tangent, theirs, rtol=1e-7, atol=1e-8 * np.abs(want).max())


@sampled("name,n", [(name, n) for name in FUNCTIONS for n in (3, 40)], [("lu", 3), ("solve", 3)])
def test_eager_jitted_and_batched_ones_have_the_same_bits(name: str, n: int) -> None:
    f, _, made = FUNCTIONS[name]
    a = made(n, dtype="f4")
    whole = f(a)
    assert_bits_equal(volta.jit(f)(a), whole)
    assert_bits_equal(volta.vmap(f)(a), whole)
    assert_bits_equal(f(a[1]), whole[1])


@sampled(
    "left,lower,transposed,unit",
    list(itertools.product((False, True), repeat=4)),
    [(True, True, False, True), (True, False, False, True)],
)
def test_what_triangular_equations_do_not_read_has_no_derivative(
    left: bool, lower: bool, transposed: bool, unit: bool
) -> None:
    """As JAX's derivatives say: of the other triangle, and of the diagonal where it counts as ones."""
    words = {"left_side": left, "lower": lower, "transpose_a": transposed, "unit_diagonal": unit}
    a, b = general(4) / 4 + 2 * np.eye(4), general(4)
    found = volta.jit(volta.grad(lambda a: (lax.linalg.triangular_solve(a, b, **words) ** 2).sum()))(a)
    with jax.enable_x64(True):
        want = jax.grad(lambda a: (jax.lax.linalg.triangular_solve(a, b, **words) ** 2).sum())(a)
    np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)


def residual(product: Any, a: Any) -> float:
    """In units of the last place of the matrix's norm."""
    eps = np.finfo(a.dtype).eps
    return float(np.abs(product.astype("f8") - a.astype("f8")).max() / (eps * np.abs(a).max().astype("f8")))


def hard(n: int, dtype: str) -> list[Any]:
    """Graded, of clustered eigenvalues, and all but singular: symmetric and positive definite."""
    q, _ = np.linalg.qr(RNG.standard_normal((n, n)))
    scale = 10.0 ** -np.linspace(0, 5, n)
    clustered = np.where(np.arange(n) < n // 2, 1.0, 1.0 + 1e-6)
    almost = np.where(np.arange(n) < n - 2, 1.0, 2e-6)
    return [
        ((q * w) @ q.T).astype(dtype) for w in (scale, clustered, almost)
    ] + [(scale[:, None] * (np.eye(n) + 0.1) * scale).astype(dtype)]  # fmt: skip


@sampled("n,dtype", [(n, t) for n in (1, 2, 3, 33, 300) for t in ("f4", "f8")], [(33, "f4")])
def test_residuals_on_hard_matrices_are_small_multiples_of_lapacks(n: int, dtype: str) -> None:
    factor = volta.jit(lambda a: (lax.linalg.cholesky(a), lax.linalg.lu(a)))
    for a in hard(n, dtype):
        lower, (packed, _, order) = [volta.tree.map(np.asarray, x) for x in factor(a)]
        lapack = residual(np.linalg.cholesky(a) @ np.linalg.cholesky(a).T, a)
        assert residual(lower @ lower.T, a) <= 4 * lapack + 4
        left, right = np.tril(packed, -1) + np.eye(n, dtype=dtype), np.triu(packed)
        assert np.abs(left).max() <= 1
        assert residual(left @ right, a[order]) <= 4 + n / 8
        x = np.asarray(vnp.linalg.solve(a, a[:, :1]))
        size = np.abs(a).max() * np.abs(x).max()
        assert np.abs(a @ x - a[:, :1]).max() <= (8 + n / 4) * np.finfo(dtype).eps * size


def test_matrices_that_have_no_factor_give_nan_as_in_jax() -> None:
    for a in ([[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[np.nan, 0.0], [0.0, 1.0]]):
        good = np.float32([[4, 2], [2, 5]])
        found = np.asarray(vnp.linalg.cholesky(np.stack([np.float32(a), good])))
        assert_bits_equal(found[0], np.float32([[np.nan, 0], [np.nan, np.nan]]))
        assert_bits_equal(found[1], np.float32([[2, 0], [1, 2]]))
    none = np.zeros((2, 2), "f4")
    assert_bits_equal(vnp.linalg.det(none), np.float32(0))
    assert [float(x) for x in vnp.linalg.slogdet(none)] == [0.0, -np.inf]
    assert not np.isfinite(vnp.linalg.solve(none, np.ones(2, "f4"))).any()
    packed, pivots, order = lax.linalg.lu(np.float32([[0, 1], [0, 2]]))
    assert np.isfinite(packed).all() and pivots.tolist() == [0, 1] and order.tolist() == [0, 1]


def test_the_gradient_of_a_determinant_is_there_where_it_is_zero() -> None:
    a = np.diag([1.0, 2.0, 3.0, 0.0])
    np.testing.assert_allclose(volta.jit(volta.grad(vnp.linalg.det))(a), np.diag([0.0, 0.0, 0.0, 6.0]))
    none = np.diag([1.0, 2.0, 0.0, 0.0])
    np.testing.assert_allclose(volta.jit(volta.grad(vnp.linalg.det))(none), np.zeros((4, 4)))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 2, 2)])
def test_matrices_without_elements(shape: tuple[int, ...]) -> None:
    a = np.zeros(shape, "f4")
    assert vnp.linalg.cholesky(a).shape == vnp.linalg.inv(a).shape == shape
    assert vnp.linalg.det(a).tolist() == np.linalg.det(a).tolist()
    assert lax.linalg.lu(a)[2].shape == shape[:-1]


def test_a_cholesky_factor_is_made_of_fused_multiply_adds_in_ascending_order() -> None:
    """The definition, once more: within a block column by column, from the first."""
    a = definite(5, "f4")[0]
    rows = a.astype("f4").copy()
    for j in range(5):
        root = np.sqrt(rows[j, j])
        rows[j + 1 :, j] /= root
        rows[j, j] = root
        for k in range(j + 1, 5):
            for i in range(k, 5):  # exact in float64 but for the last rounding
                rows[i, k] = np.float32(np.float64(rows[i, k]) - np.float64(rows[i, j]) * np.float64(rows[k, j]))
    assert_bits_equal(lax.linalg.cholesky(a, symmetrize_input=False), np.tril(rows))


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"cholesky\(f32\[2,3\]\): takes square matrices"):
        lax.linalg.cholesky(np.zeros((2, 3), "f4"))
    with pytest.raises(ShapeError, match=r"det: needs square matrices .*got shape \(3,\)"):
        vnp.linalg.det(np.zeros(3, "f4"))
    with pytest.raises(DTypeError, match=r"inv\(f16\[2,2\]\): takes float32 or float64"):
        vnp.linalg.inv(np.zeros((2, 2), "f2"))
    with pytest.raises(ShapeError, match="solve: a of shape .* does not fit b"):
        vnp.linalg.solve(np.zeros((2, 2), "f4"), np.zeros(3, "f4"))
    with pytest.raises(ShapeError, match="triangular_solve.*the rows of the right side"):
        lax.linalg.triangular_solve(np.zeros((2, 2), "f4"), np.zeros((3, 2), "f4"), left_side=True)
    with pytest.raises(ShapeError, match="tensorsolve"):
        vnp.linalg.tensorsolve(np.zeros((2, 3), "f4"), np.zeros(2, "f4"))
    with pytest.raises(ShapeError, match="tensorinv"):
        vnp.linalg.tensorinv(np.zeros((2, 3), "f4"), 1)
    with pytest.raises(ValueError, match="ind must be at least 1"):
        vnp.linalg.tensorinv(np.zeros((2, 2), "f4"), 0)
    with pytest.raises(ValueError, match="method is None or 'lu'"):
        vnp.linalg.slogdet(np.zeros((2, 2), "f4"), method="qr")
    with pytest.raises(ShapeError, match="lu_pivots_to_permutation"):
        lax.linalg.lu_pivots_to_permutation(np.int32([0, 1]), 1)


def test_tensors_and_powers() -> None:
    a = general(6, batch=1)[0].reshape(2, 3, 6)
    np.testing.assert_allclose(
        vnp.linalg.tensorsolve(a, np.ones((2, 3))), np.linalg.tensorsolve(a, np.ones((2, 3))), rtol=1e-10
    )
    np.testing.assert_allclose(vnp.linalg.tensorinv(a, 2), np.linalg.tensorinv(a, 2), rtol=1e-9, atol=1e-12)
    square = definite(3)[0]
    np.testing.assert_allclose(vnp.linalg.matrix_power(square, -2), np.linalg.matrix_power(square, -2), rtol=1e-9)
    pivots = np.int32([[2, 1], [1, 2]])
    assert np.asarray(lax.linalg.lu_pivots_to_permutation(pivots, 3)).tolist() == [[2, 1, 0], [1, 2, 0]]


def test_a_cholesky_factor_is_updated_by_rotations() -> None:
    r, w = np.linalg.cholesky(definite(5)[0]).T, RNG.standard_normal(5)
    found = np.asarray(lax.linalg.cholesky_update(r, w))
    np.testing.assert_allclose(found.T @ found, r.T @ r + np.outer(w, w), rtol=1e-12, atol=1e-13)
    with jax.enable_x64(True):
        np.testing.assert_allclose(np.abs(found), np.abs(jax.lax.linalg.cholesky_update(r, w)), rtol=1e-10, atol=1e-13)
    assert_bits_equal(volta.jit(lax.linalg.cholesky_update)(r, w), found)
    assert_bits_equal(volta.vmap(lax.linalg.cholesky_update)(np.stack([r, 2 * r]), np.stack([w, w]))[0], found)
    with pytest.raises(ShapeError, match=r"cholesky_update: takes \(n, n\) and \(n,\)"):
        lax.linalg.cholesky_update(r, w[:3])
