"""Eigenvalues of general matrices: residuals on hard matrices, JAX's derivatives, the same bits in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.optional import Optional
from tests.sampling import sampled
from volta import lax
from volta.core.errors import DTypeError, NotDifferentiableError, ShapeError
from volta.testing import assert_bits_equal

jax = Optional("jax")
scipy_linalg = Optional("scipy.linalg")

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
DTYPES = ("f4", "f8", "c8", "c16")
EIG = volta.jit(vnp.linalg.eig)
SCHUR = volta.jit(lax.linalg.schur)
REAL_SCHUR = volta.jit(lambda a: volta.scipy.linalg.schur(a, "real"))


def normal(shape: tuple[int, ...], dtype: str) -> Any:
    x = RNG.standard_normal(shape)
    return (x + 1j * RNG.standard_normal(shape) if dtype.startswith("c") else x).astype(dtype)


def wide(x: Any) -> Any:
    return np.asarray(x).astype("c16")


def with_values(values: Any, dtype: str) -> Any:
    """A matrix with these eigenvalues, and eigenvectors that are not orthogonal."""
    v = np.eye(len(values)) + 0.3 * normal((len(values),) * 2, dtype).astype(np.result_type(dtype, "f8"))
    return (v * values) @ np.linalg.inv(v)


def hard(n: int, dtype: str) -> dict[str, Any]:
    """Graded, clustered, rank-deficient, defective and others on which QR iterations stand still or lose themselves."""
    scale = 10.0 ** -np.linspace(0, 8, n)
    found = {
        "plain": normal((n, n), dtype),
        "graded": scale[:, None] * normal((n, n), dtype) * scale,
        "graded the other way": np.flip(scale[:, None] * normal((n, n), dtype) * scale),
        "clustered": with_values(np.where(np.arange(n) < n // 2, 1.0, 1.0 + 1e-7), dtype),
        "of rank one": np.outer(normal((n,), dtype), normal((n,), dtype)),
        "a Jordan block": np.eye(n) * 2 + np.eye(n, k=1),
        "a Jordan block, turned": np.eye(n) * 2 + np.eye(n, k=-1),
        "nilpotent": np.triu(normal((n, n), dtype), 1),
        "zero": np.zeros((n, n)),
        "one": np.eye(n),
        "a cycle": np.roll(np.eye(n), 1, 0),
        "equal elements": np.ones((n, n)),
        "large": normal((n, n), dtype) * 1e30,
        "small": normal((n, n), dtype) * 1e-30,
        "triangular": np.triu(normal((n, n), dtype)),
        "antisymmetric": normal((n, n), dtype) - 0,
    }
    found["antisymmetric"] = found["antisymmetric"] - found["antisymmetric"].conj().T
    return {name: a.astype(dtype) for name, a in found.items()}


def ulps(x: Any, a: Any) -> float:
    return float(np.abs(x).max(initial=0) / np.finfo(a.dtype).eps / (np.linalg.norm(wide(a), 2) or 1))


def are_equal_sets(x: Any, y: Any, within: float) -> bool:
    distances = np.abs(x[:, None] - y)
    return all(bool((distances.min(axis, initial=np.inf) <= within).all()) for axis in (0, 1) if distances.size)


@sampled("n,dtype", [(n, t) for n in (1, 2, 3, 8, 40) for t in DTYPES], [(3, "f4"), (8, "c8")])
def test_residuals_on_hard_matrices_are_small_multiples_of_lapacks(n: int, dtype: str) -> None:
    bound = 10 + 5 * n**0.5  # Z is a product of some n n rotations
    for name, a in hard(n, dtype).items():
        t, z = SCHUR(a)
        assert not np.tril(t, -1).any(), name
        assert ulps(wide(z) @ wide(t) @ wide(z).conj().T - a, a) <= bound, name
        assert np.abs(wide(z).conj().T @ wide(z) - np.eye(n)).max() <= bound * np.finfo(dtype).eps, name
        w, v = EIG(a)
        assert w.dtype == v.dtype == np.result_type(dtype, "c8")
        np.testing.assert_allclose(np.linalg.norm(wide(v), axis=0), 1, rtol=100 * np.finfo(dtype).eps)
        largest = np.abs(v) >= np.abs(v).max(0) * (1 - 100 * np.finfo(dtype).eps)  # several, up to rounding
        assert (largest & (np.real(v) > 0) & (np.imag(v) == 0)).any(0).all(), name
        values, vectors = np.linalg.eig(a)
        theirs = ulps(wide(a) @ vectors - wide(vectors) * values, a)
        assert ulps(wide(a) @ wide(v) - wide(v) * np.asarray(w), a) <= 3 * theirs + bound, name


@sampled("dtype", DTYPES, ["f8"])
def test_eigenvalues_are_lapacks(dtype: str) -> None:
    for a in (normal((9, 9), dtype), with_values(np.linspace(1, 2, 9), dtype).astype(dtype)):
        within = 400 * np.finfo(dtype).eps * np.linalg.norm(a, 2)
        assert are_equal_sets(np.asarray(vnp.linalg.eigvals(a)), np.linalg.eigvals(a), within)


def test_left_eigenvectors_are_those_of_the_adjoint() -> None:
    a = normal((6, 6), "c16")
    w, left, right = map(np.asarray, lax.linalg.eig(a))
    np.testing.assert_allclose(left.conj().T @ a, w[:, None] * left.conj().T, atol=1e-13)
    np.testing.assert_allclose(a @ right, right * w, atol=1e-13)
    both = left.conj().T @ right
    np.testing.assert_allclose(both - np.diag(np.diag(both)), 0, atol=1e-12)


FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "eigenvalues": (
        lambda a: vnp.sum(vnp.linalg.eigvals(a) ** 3),  # JAX's own eigvals has no second derivative
        lambda a: jax.numpy.sum(
            jax.lax.linalg.eig(a, compute_left_eigenvectors=False, enable_eigvec_derivs=True)[0] ** 3),
    ),
    "right eigenvectors": (
        lambda a: vnp.sum(abs(vnp.linalg.eig(a)[1]) ** 4),
        lambda a: jax.numpy.sum(abs(jax.lax.linalg.eig(
            a, compute_left_eigenvectors=False, enable_eigvec_derivs=True)[1]) ** 4),
    ),
    "all of them": (
        lambda a: sum(vnp.sum(vnp.real(x) ** 4) for x in lax.linalg.eig(a)),
        lambda a: sum(jax.numpy.sum(x.real ** 4) for x in jax.lax.linalg.eig(a, enable_eigvec_derivs=True)),
    ),
}  # fmt: skip


@sampled("name,dtype", [(name, t) for name in FUNCTIONS for t in ("f8", "c16")], [("right eigenvectors", "f8")])
def test_derivatives_to_second_order_are_those_of_jax(name: str, dtype: str) -> None:
    """Of matrices with real eigenvalues LAPACK's vectors of real ones may have the other sign: even functions."""
    f, g = FUNCTIONS[name]
    a = normal((2, 5, 5), dtype)
    with jax.enable_x64(True):
        once = jax.jit(jax.grad(lambda a: g(a).real))
        twice = np.asarray(jax.jit(jax.grad(lambda a: (once(a) ** 2).sum().real))(a))
        once = np.asarray(once(a))
    slope = volta.grad(lambda a: vnp.real(f(a)))
    np.testing.assert_allclose(volta.jit(slope)(a), once, rtol=1e-8, atol=1e-9 * np.abs(once).max())
    found = volta.jit(volta.grad(lambda a: vnp.real((slope(a) ** 2).sum())))(a)
    np.testing.assert_allclose(found, twice, rtol=1e-6, atol=1e-7 * np.abs(twice).max())


@sampled("dtype", DTYPES, ["f4"])
def test_a_batch_has_the_bits_of_single_matrices(dtype: str) -> None:
    """Some of the batch are done at once and are not touched while others go on."""
    a = normal((4, 7, 7), dtype)
    a[1], a[2] = np.eye(7), np.nan
    for f in (vnp.linalg.eig, lax.linalg.schur, volta.scipy.linalg.sqrtm):
        whole = f(a)
        assert_bits_equal(volta.jit(f)(a), whole)
        assert_bits_equal(volta.vmap(f)(a), whole)
        for i in range(4):
            single = f(a[i])
            volta.tree.map(lambda x, y, i=i: assert_bits_equal(x, y[i]), single, whole)


def test_infinities_and_nan_give_nan_and_others_of_the_batch_are_as_they_were() -> None:
    a = np.stack([np.float32([[np.nan, 0], [0, 1]]), np.float32([[1, np.inf], [0, 1]]), np.eye(2, dtype="f4")])
    w, v = vnp.linalg.eig(a)
    assert np.isnan(w)[:2].all() and np.isnan(v)[:2].all()
    assert np.asarray(w)[2].tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 2, 2)])
def test_matrices_without_elements(shape: tuple[int, ...]) -> None:
    a = np.zeros(shape, "f4")
    assert [x.shape for x in vnp.linalg.eig(a)] == [x.shape for x in np.linalg.eig(a)]
    assert vnp.linalg.eigvals(a).dtype == np.complex64
    assert lax.linalg.schur(a)[0].shape == volta.scipy.linalg.sqrtm(a).shape == shape


def test_roots_and_characteristic_polynomials() -> None:
    for p in ([1.0, -6.0, 11.0, -6.0], [0, 0, 2, 0, 8, 0, 0], [1, 0, 0, 0, -1], [3.0], [0.0, 0.0], [5, 0, 0]):
        found, want = np.asarray(vnp.roots(np.float64(p))), np.roots(p)
        assert found.shape == want.shape and are_equal_sets(found, want, 1e-12)
    traced = volta.jit(lambda p: vnp.roots(p, strip_zeros=False))
    found = np.asarray(traced(np.float64([0, 1, -3, 2, 0])))
    assert are_equal_sets(found[:3], np.arange(3), 1e-14)
    assert np.isnan(found[3:]).all() and np.isnan(traced(np.zeros(3))).all()
    a = normal((5, 5), "f8")
    np.testing.assert_allclose(vnp.poly(a), np.poly(a), rtol=1e-10)
    with pytest.raises(ShapeError, match="eigvals: needs square matrices"):
        vnp.poly(a[:3])


def test_forms_and_roots_of_matrices_beside_scipy() -> None:
    ours = volta.scipy.linalg
    for dtype in ("f8", "c16"):
        a = normal((6, 6), dtype) + 4 * np.eye(6)  # without eigenvalues where the root's branches meet
        h, q = map(np.asarray, ours.hessenberg(a, calc_q=True))
        assert not np.tril(h, -2).any()
        np.testing.assert_allclose(q @ h @ q.conj().T, a, atol=1e-13)
        np.testing.assert_allclose(h, scipy_linalg.hessenberg(a), atol=1e-13)
        np.testing.assert_allclose(ours.sqrtm(a), scipy_linalg.sqrtm(a), atol=1e-12)
        half = np.asarray(ours.sqrtm(a @ a.conj().T))
        np.testing.assert_allclose(half @ half, a @ a.conj().T, atol=1e-12)
    assert not np.asarray(ours.sqrtm(np.zeros((3, 3)))).any()
    t, z = map(np.asarray, ours.schur(normal((4, 4), "c16")))
    assert not np.tril(t, -1).any()


def test_what_is_not_there_is_refused() -> None:
    a = np.ones((2, 2), "f4")
    with pytest.raises(ShapeError, match="eig: needs square matrices"):
        vnp.linalg.eig(a[:1])
    with pytest.raises(ShapeError, match=r"schur\(f32\[1,2\]\): takes square matrices"):
        lax.linalg.schur(a[:1])
    with pytest.raises(DTypeError, match=r"eigvals\(f16\[2,2\]\)"):
        vnp.linalg.eigvals(a.astype("f2"))
    with pytest.raises(NotDifferentiableError, match="schur has no derivative"):
        volta.grad(lambda a: vnp.real(lax.linalg.schur(a)[0]).sum())(a)
    with pytest.raises(NotDifferentiableError, match="hessenberg has no derivative"):
        volta.grad(lambda a: volta.scipy.linalg.hessenberg(a).sum())(a)
    with pytest.raises(ValueError, match="schur: eigenvalues are not sorted"):
        lax.linalg.schur(a, sort_eig_vals=True)
    with pytest.raises(ValueError, match="output is 'real' or 'complex'"):
        volta.scipy.linalg.schur(a, "diagonal")


@sampled("n,dtype", [(n, t) for n in (1, 2, 3, 8, 40) for t in ("f4", "f8")], [(2, "f4"), (8, "f8")])
def test_of_real_matrices_everything_comes_in_conjugate_pairs_to_the_bit(n: int, dtype: str) -> None:
    bound = 10 + 5 * n**0.5
    for name, a in hard(n, dtype).items():
        t, z = map(np.asarray, REAL_SCHUR(a))
        assert t.dtype == z.dtype == dtype
        assert ulps(wide(z) @ wide(t) @ wide(z).T - a, a) <= bound, name
        turned = np.abs(wide(z).T @ wide(z) - np.eye(n)).max()  # by thousands of reflections: 46 eps were seen of 40
        assert turned <= 2 * bound * np.finfo(dtype).eps, name
        below, above = np.diag(t, -1), np.diag(t, 1)
        (blocks,) = np.nonzero(below)
        assert not np.tril(t, -2).any() and not (below[1:] * below[:-1]).any(), name
        assert (np.diag(t)[blocks] == np.diag(t)[blocks + 1]).all(), name
        assert (np.sign(above[blocks]) == -np.sign(below[blocks])).all(), name
        w, v = map(np.asarray, EIG(a))
        (first,) = np.nonzero(w.imag > 0)
        assert (w.imag != 0).sum() == 2 * len(first), name
        assert_bits_equal(w[first + 1], w[first].conj())
        assert_bits_equal(v[:, first + 1], v[:, first].conj())
        assert not v[:, w.imag == 0].imag.any(), name


def test_pairs_that_are_nearly_one_number_are_pairs_still() -> None:
    """Blocks whose element above the diagonal is rounded to 0 on the way: seen of clustered eigenvalues."""
    rng = np.random.default_rng(5)
    c, half = rng.standard_normal(1000) * 10.0 ** rng.integers(-7, 1, 1000), rng.standard_normal(1000) * 1e-4
    above = -(half**2) / c * (1 + rng.standard_normal(1000) * 1e-7)
    a = np.stack([1 + half, above, c, 1 - half], -1).reshape(-1, 2, 2).astype("f4")
    t, z = map(np.asarray, REAL_SCHUR(a))
    pairs = t[:, 1, 0] != 0
    assert pairs.sum() > 100 and (np.sign(t[pairs, 0, 1]) == -np.sign(t[pairs, 1, 0])).all()
    assert (t[pairs, 0, 0] == t[pairs, 1, 1]).all()
    error = np.abs(wide(z) @ wide(t) @ np.swapaxes(wide(z), 1, 2) - a).max((1, 2))
    assert (error <= 10 * np.finfo("f4").eps * np.abs(a).max((1, 2))).all()


def test_a_batch_has_the_real_forms_of_its_matrices() -> None:
    a = np.stack([*hard(5, "f8").values()])
    for together, each in zip(REAL_SCHUR(a), zip(*map(REAL_SCHUR, a), strict=True), strict=True):
        assert_bits_equal(together, np.stack([np.asarray(x) for x in each]))
    odd = a.copy()
    odd[3, 1, 1] = np.inf
    assert np.isnan(REAL_SCHUR(odd)[0][3]).all() and np.isnan(EIG(odd)[1][3]).all()
    assert_bits_equal(REAL_SCHUR(odd)[0][4:], REAL_SCHUR(a)[0][4:])
    assert volta.scipy.linalg.schur(np.zeros((2, 0, 0)))[0].shape == (2, 0, 0)
    with pytest.raises(NotDifferentiableError, match="schur has no derivative"):
        volta.grad(lambda a: vnp.sum(volta.scipy.linalg.schur(a)[0]))(a[0])
