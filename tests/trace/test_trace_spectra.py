"""QR, eigenvalues and singular values: residuals on hard matrices, JAX's derivatives, the same bits in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.core.errors import DTypeError, NotDifferentiableError, ShapeError
from volta.testing import assert_bits_equal

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(0)
QR = volta.jit(vnp.linalg.qr, static_argnums=1)
SVD = volta.jit(vnp.linalg.svd, static_argnums=1)
EIGH = volta.jit(vnp.linalg.eigh)


def hard(m: int, n: int, dtype: str) -> dict[str, Any]:
    k = min(m, n)
    u, v = (np.linalg.qr(RNG.standard_normal((x, x)))[0][:, :k] for x in (m, n))
    spectra = {
        "plain": np.linspace(1, 2, k),
        "graded": 10.0 ** -np.linspace(0, 12, k),
        "clustered": np.where(np.arange(k) < k // 2, 1.0, 1.0 + 1e-7),
        "of rank one": (np.arange(k) == 0) * 3.0,
        "large": np.linspace(1, 2, k) * 1e30,
        "small": np.linspace(1, 2, k) * 1e-30,
    }
    found = {name: ((u * s) @ v.T).astype(dtype) for name, s in spectra.items()}
    return found | {"zero": np.zeros((m, n), dtype), "equal columns": np.ones((m, n), dtype)}


def ulps(x: Any, size: float, dtype: str) -> float:
    return float(np.abs(x).max(initial=0) / (np.finfo(dtype).eps * (size or 1)))


def is_orthogonal(q: Any, dtype: str, bound: float) -> bool:
    return ulps(q.T.astype("f8") @ q - np.eye(q.shape[1]), 1, dtype) <= bound


@sampled(
    "m,n,dtype",
    [(m, n, t) for m, n in ((1, 1), (2, 2), (3, 2), (9, 9), (5, 12), (12, 5), (70, 41)) for t in ("f4", "f8")],
    [(12, 5, "f4"), (9, 9, "f4")],
)
def test_residuals_on_hard_matrices_are_small(m: int, n: int, dtype: str) -> None:
    bound = 12 + 3 * max(m, n) ** 0.5  # LAPACK's own are up to 15
    for a in hard(m, n, dtype).values():
        exact, size = a.astype("f8"), float(np.linalg.norm(a.astype("f8"), 2))
        for full in (False, True):
            q, r = map(np.asarray, QR(a, "complete" if full else "reduced"))
            wanted = np.linalg.qr(a, "complete" if full else "reduced")
            assert (q.shape, r.shape) == tuple(x.shape for x in wanted)
            assert is_orthogonal(q, dtype, bound) and not np.tril(r, -1).any()
            assert ulps(q.astype("f8") @ r - exact, size, dtype) <= bound
            u, s, vt = map(np.asarray, SVD(a, full))
            assert (u.shape, vt.shape) == (np.linalg.svd(a, full)[0].shape, np.linalg.svd(a, full)[2].shape)
            assert is_orthogonal(u, dtype, bound) and is_orthogonal(vt.T, dtype, bound)
            k = min(m, n)
            assert ulps((u[:, :k].astype("f8") * s) @ vt[:k] - exact, size, dtype) <= bound
            assert ulps(s - np.linalg.svd(exact, compute_uv=False), size, dtype) <= bound
            assert (np.diff(s) <= 0).all()
        square = (exact @ exact.T / (size or 1)).astype(dtype)
        square = (square + square.T) / 2 - np.diag(np.full(m, size / 3, dtype))
        w, v = map(np.asarray, EIGH(square))
        assert is_orthogonal(v, dtype, bound) and (np.diff(w) >= 0).all()
        assert ulps(square.astype("f8") @ v - v.astype("f8") * w, size, dtype) <= bound


FUNCTIONS: dict[str, tuple[Any, Any, tuple[int, int]]] = {
    "qr": (lambda a: vnp.linalg.qr(a)[0], lambda a: jax.numpy.linalg.qr(a)[0], (6, 4)),
    "r": (lambda a: vnp.linalg.qr(a, "r"), lambda a: jax.numpy.linalg.qr(a)[1], (6, 4)),
    "eigvalsh": (lambda a: vnp.linalg.eigvalsh(a), lambda a: jax.numpy.linalg.eigvalsh(a), (5, 5)),
    "eigh": (lambda a: vnp.linalg.eigh(a)[1] ** 2, lambda a: jax.numpy.linalg.eigh(a)[1] ** 2, (5, 5)),
    "svdvals": (lambda a: vnp.linalg.svdvals(a), lambda a: jax.numpy.linalg.svdvals(a), (4, 6)),
    "svd": (
        lambda a: vnp.linalg.svd(a, False)[0] ** 2, lambda a: jax.numpy.linalg.svd(a, False)[0] ** 2, (6, 4),
    ),
    "pinv": (lambda a: vnp.linalg.pinv(a), lambda a: jax.numpy.linalg.pinv(a), (6, 4)),
    "pinv of wide ones": (lambda a: vnp.linalg.pinv(a), lambda a: jax.numpy.linalg.pinv(a), (3, 5)),
    "nuclear norms": (
        lambda a: vnp.linalg.norm(a, "nuc", (1, 2)), lambda a: jax.numpy.linalg.norm(a, "nuc", (1, 2)), (4, 4),
    ),
}  # fmt: skip


@sampled("name", FUNCTIONS, ["eigvalsh"])
def test_derivatives_to_second_order_are_those_of_jax(name: str) -> None:
    f, g, shape = FUNCTIONS[name]
    a = RNG.standard_normal((2, *shape))
    with jax.enable_x64(True):
        want = np.asarray(g(a))
        ct = RNG.standard_normal(want.shape)
        once = np.asarray(jax.grad(lambda a: (g(a) * ct).sum())(a))
        twice = np.asarray(jax.grad(lambda a: (jax.grad(lambda a: (g(a) * ct).sum())(a) ** 3).sum())(a))
    np.testing.assert_allclose(volta.jit(f)(a), want, rtol=1e-9, atol=1e-10)
    slope = volta.jit(volta.grad(lambda a: (f(a) * ct).sum()))
    np.testing.assert_allclose(slope(a), once, rtol=1e-6, atol=1e-8 * np.abs(once).max())
    found = volta.jit(volta.grad(lambda a: (slope(a) ** 3).sum()))(a)
    np.testing.assert_allclose(found, twice, rtol=1e-5, atol=1e-7 * np.abs(twice).max())


@sampled("name", ["qr", "eigh", "svd", "pinv"], ["eigh"])
def test_a_batch_has_the_bits_of_single_matrices(name: str) -> None:
    """Some of the batch converge at once and are not touched while others go on."""
    f, _, shape = FUNCTIONS[name]
    a = RNG.standard_normal((4, *shape)).astype("f4")
    a[1] = np.eye(*shape)
    a[2] *= 1e-3 ** np.arange(shape[1])
    whole = f(a)
    assert_bits_equal(volta.jit(f)(a), whole)
    assert_bits_equal(volta.vmap(f)(a), whole)
    for i in range(4):
        assert_bits_equal(f(a[i]), whole[i])


def test_infinities_and_nan_give_nan() -> None:
    for bad in (np.nan, np.inf):
        a = np.float32([[bad, 0], [0, 1]])
        assert np.isnan(np.asarray(vnp.linalg.eigvalsh(a))).all()
        assert all(np.isnan(np.asarray(x)).all() for x in SVD(a, True))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0), (0, 3), (2, 0, 3)])
def test_matrices_without_elements(shape: tuple[int, ...]) -> None:
    a = np.zeros(shape, "f4")
    for full in (False, True):
        assert [x.shape for x in vnp.linalg.svd(a, full)] == [x.shape for x in np.linalg.svd(a, full)]
        mode = "complete" if full else "reduced"
        assert [x.shape for x in vnp.linalg.qr(a, mode)] == [x.shape for x in np.linalg.qr(a, mode)]
    assert vnp.linalg.pinv(a).shape == np.linalg.pinv(a).shape
    assert vnp.linalg.eigvalsh(np.zeros((3, 0, 0), "f4")).shape == (3, 0)


def test_least_squares_ranks_and_conditions_beside_numpy() -> None:
    ours, theirs = vnp.linalg, np.linalg
    a, b = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 2))
    a[:, 3] = a[:, 0] + a[:, 1]

    def close(x: Any, y: Any) -> None:
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-11)

    for right in (b, b[:, 0]):
        x, residuals, rank, s = ours.lstsq(a, right, numpy_resid=True)
        want = theirs.lstsq(a, right)
        close(x, want[0])
        close(residuals, want[1])
        assert int(rank) == want[2] == 3 == int(ours.matrix_rank(a))
        close(s, want[3])
    close(ours.pinv(a), theirs.pinv(a, rtol=1e-12))
    assert int(ours.matrix_rank(a, tol=1e9)) == 0 and int(ours.matrix_rank(np.float32([0, 1]))) == 1
    square = a[:4]
    for ord_ in (2, -2, "nuc"):
        close(ours.norm(a, ord_, keepdims=True), theirs.norm(a, ord_, keepdims=True))
    for p in (None, -2):
        close(ours.cond(b, p), theirs.cond(b, p))
    close(ours.cond(b[:2], 1), theirs.cond(b[:2], 1))
    assert float(ours.cond(np.zeros((2, 2), "f4"))) == np.inf
    half = square + square.T
    close(ours.eigvalsh(np.triu(half), "U", symmetrize_input=False), theirs.eigvalsh(half))
    close(ours.eigvalsh(np.tril(half), symmetrize_input=False), theirs.eigvalsh(half))
    values = lax.linalg.eigh(half, subset_by_index=(1, 3))[1]
    close(values, theirs.eigvalsh(half)[1:3])
    close(lax.linalg.svd(b, full_matrices=False, subset_by_index=(0, 1))[1], theirs.svd(b)[1][:1])


def test_what_is_not_there_is_refused() -> None:
    a = np.ones((2, 3), "f4")
    with pytest.raises(ValueError, match="qr: mode is 'reduced'"):
        vnp.linalg.qr(a, "raw")
    with pytest.raises(ValueError, match="qr: pivoting is planned"):
        lax.linalg.qr(a, pivoting=True)
    with pytest.raises(ValueError, match="eigh: UPLO is"):
        vnp.linalg.eigh(a[:, :2], "X")
    with pytest.raises(ShapeError, match=r"eigh: needs square matrices"):
        vnp.linalg.eigh(a)
    with pytest.raises(DTypeError, match=r"svd\(f16\[2,3\]\)"):
        vnp.linalg.svd(a.astype("f2"))
    with pytest.raises(ShapeError, match="subset_by_index is"):
        lax.linalg.eigh(a[:, :2], subset_by_index=(1, 5))
    with pytest.raises(ValueError, match="subset_by_index is for full_matrices=False"):
        lax.linalg.svd(a, subset_by_index=(0, 1))
    with pytest.raises(NotDifferentiableError, match="qr of matrices 2 x 3 has no derivative"):
        volta.grad(lambda a: vnp.linalg.qr(a).R.sum())(a)
    with pytest.raises(NotDifferentiableError, match="svd of matrices 2 x 3 with all columns"):
        volta.grad(lambda a: vnp.linalg.svd(a).S.sum())(a)
    with pytest.raises(ValueError, match="pinv: only one of rtol and rcond"):
        vnp.linalg.pinv(a, 0.1, rcond=0.1)
    with pytest.raises(ShapeError, match="lstsq: takes a"):
        vnp.linalg.lstsq(a, np.ones(3, "f4"))
    with pytest.raises(ShapeError, match="cond: needs matrices"):
        vnp.linalg.cond(np.ones(3, "f4"))
    with pytest.raises(ValueError, match="it is 'fro', 'nuc'"):
        vnp.linalg.norm(a, 3, (0, 1))
