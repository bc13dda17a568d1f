"""QR, eigenvalues and singular values: residuals on hard matrices, JAX's derivatives, the same bits in batches."""

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
from volta.trace import spectra

jax = Optional("jax")

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
COMPLEX = ("c8", "c16")
QR = volta.jit(vnp.linalg.qr, static_argnums=1)
SVD = volta.jit(vnp.linalg.svd, static_argnums=1)
EIGH = volta.jit(vnp.linalg.eigh)


def normal(shape: tuple[int, ...], dtype: str = "f8") -> Any:
    """In double precision; complex numbers where the dtype is of these."""
    x = RNG.standard_normal(shape)
    return x + 1j * RNG.standard_normal(shape) if dtype in COMPLEX else x


def wide(x: Any) -> Any:
    return x.astype(np.result_type(x.dtype, "f8"))


def hard(m: int, n: int, dtype: str) -> dict[str, Any]:
    k = min(m, n)
    u, v = (np.linalg.qr(normal((x, x), dtype))[0][:, :k] for x in (m, n))
    spectra = {
        "plain": np.linspace(1, 2, k),
        "graded": 10.0 ** -np.linspace(0, 12, k),
        "clustered": np.where(np.arange(k) < k // 2, 1.0, 1.0 + 1e-7),
        "of rank one": (np.arange(k) == 0) * 3.0,
        "large": np.linspace(1, 2, k) * 1e30,
        "small": np.linspace(1, 2, k) * 1e-30,
    }
    found = {name: ((u * s) @ v.conj().T).astype(dtype) for name, s in spectra.items()}
    return found | {"zero": np.zeros((m, n), dtype), "equal columns": np.ones((m, n), dtype)}


def ulps(x: Any, size: float, dtype: str) -> float:
    return float(np.abs(x).max(initial=0) / (np.finfo(dtype).eps * (size or 1)))


def is_orthogonal(q: Any, dtype: str, bound: float) -> bool:
    return ulps(wide(q.conj().T) @ q - np.eye(q.shape[1]), 1, dtype) <= bound


@sampled(
    "m,n,dtype",
    [
        (m, n, t)
        for m, n in ((1, 1), (2, 2), (3, 2), (9, 9), (5, 12), (12, 5), (70, 41))
        for t in ("f4", "f8", *COMPLEX)
    ],
    [(12, 5, "f4"), (9, 9, "f4"), (5, 4, "c8")],
)
def test_residuals_on_hard_matrices_are_small(m: int, n: int, dtype: str) -> None:
    bound = 12 + 3 * max(m, n) ** 0.5  # LAPACK's own are up to 15
    for a in hard(m, n, dtype).values():
        exact, size = wide(a), float(np.linalg.norm(wide(a), 2))
        for full in (False, True):
            q, r = map(np.asarray, QR(a, "complete" if full else "reduced"))
            wanted = np.linalg.qr(a, "complete" if full else "reduced")
            assert (q.shape, r.shape) == tuple(x.shape for x in wanted)
            assert is_orthogonal(q, dtype, bound) and not np.tril(r, -1).any()
            assert ulps(wide(q) @ r - exact, size, dtype) <= bound
            u, s, vt = map(np.asarray, SVD(a, full))
            assert (u.shape, vt.shape) == (np.linalg.svd(a, full)[0].shape, np.linalg.svd(a, full)[2].shape)
            assert is_orthogonal(u, dtype, bound) and is_orthogonal(vt.conj().T, dtype, bound)
            k = min(m, n)
            assert ulps((wide(u[:, :k]) * s) @ vt[:k] - exact, size, dtype) <= bound
            assert ulps(s - np.linalg.svd(exact, compute_uv=False), size, dtype) <= bound
            assert (np.diff(s) <= 0).all()
        square = (exact @ exact.conj().T / (size or 1)).astype(dtype)
        square = (square + square.conj().T) / 2 - np.diag(np.full(m, size / 3, dtype))
        w, v = map(np.asarray, EIGH(square))
        assert is_orthogonal(v, dtype, bound) and (np.diff(w) >= 0).all()
        assert ulps(wide(square) @ v - wide(v) * w, size, dtype) <= bound


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_many_columns_in_double_precision_are_turned_before_they_are_rotated(dtype: str) -> None:
    """Some matrices of the batch are done before others: each has the bits that it has alone."""
    n = 50
    matrices = [*hard(n, n, dtype).values(), np.eye(n, dtype=dtype), np.diag(10.0 ** -np.arange(n)).astype(dtype)]
    u, s, vt = map(np.asarray, SVD(np.stack(matrices), False))
    for i, a in enumerate(matrices):
        size, bound = float(np.linalg.norm(a, 2)), 12 + 3 * n**0.5
        assert is_orthogonal(u[i], dtype, bound) and is_orthogonal(vt[i].conj().T, dtype, bound)
        assert ulps((u[i] * s[i]) @ vt[i] - a, size, dtype) <= bound
        assert ulps(s[i] - np.linalg.svd(a, compute_uv=False), size, dtype) <= bound
        for got, alone in zip((u, s, vt), SVD(a[None], False), strict=True):
            assert_bits_equal(got[i], np.asarray(alone)[0])


def test_a_matrix_that_is_done_is_left_as_it_is_while_others_are_rotated() -> None:
    n = 6
    least = 4 * float(np.finfo("f8").eps) * n**0.5
    done = np.eye(n)
    done[0, n // 2] = 1.5 * least  # more than a pair may have, less than a matrix
    sweeps = volta.jit(lambda x: spectra._few_sweeps(x, vnp.full(x.shape[0], least, "float64")))
    rows, turned = map(np.asarray, sweeps(np.stack([done, normal((n, n)), done * 3])))
    assert_bits_equal(rows[::2], np.stack([done, done * 3]))
    assert_bits_equal(turned[::2], np.stack([np.eye(n)] * 2))
    lengths = np.linalg.norm(rows[1], axis=1)
    assert np.abs(rows[1] @ rows[1].T / np.outer(lengths, lengths) - np.eye(n)).max() < 1e-14


def polar(xnp: Any, a: Any) -> Any:
    """The unitary factor, which knows nothing of the phases of singular vectors."""
    u, _, vh = xnp.linalg.svd(a, False)
    return u @ vh


FUNCTIONS: dict[str, tuple[Any, Any, tuple[int, int]]] = {
    "qr": (lambda a: vnp.linalg.qr(a)[0], lambda a: jax.numpy.linalg.qr(a)[0], (6, 4)),
    "r": (lambda a: vnp.linalg.qr(a, "r"), lambda a: jax.numpy.linalg.qr(a)[1], (6, 4)),
    "qr of wide ones": (lambda a: vnp.linalg.qr(a)[0], lambda a: jax.numpy.linalg.qr(a)[0], (3, 5)),
    "r of wide ones": (lambda a: vnp.linalg.qr(a, "r"), lambda a: jax.numpy.linalg.qr(a)[1], (3, 5)),
    "eigvalsh": (lambda a: vnp.linalg.eigvalsh(a), lambda a: jax.numpy.linalg.eigvalsh(a), (5, 5)),
    "eigh": (lambda a: abs(vnp.linalg.eigh(a)[1]) ** 2, lambda a: abs(jax.numpy.linalg.eigh(a)[1]) ** 2, (5, 5)),
    "svdvals": (lambda a: vnp.linalg.svdvals(a), lambda a: jax.numpy.linalg.svdvals(a), (4, 6)),
    "svd": (
        lambda a: abs(vnp.linalg.svd(a, False)[0]) ** 2, lambda a: abs(jax.numpy.linalg.svd(a, False)[0]) ** 2, (6, 4),
    ),
    "polar": (lambda a: polar(vnp, a), lambda a: polar(jax.numpy, a), (4, 6)),
    "pinv": (lambda a: vnp.linalg.pinv(a), lambda a: jax.numpy.linalg.pinv(a), (6, 4)),
    "pinv of wide ones": (lambda a: vnp.linalg.pinv(a), lambda a: jax.numpy.linalg.pinv(a), (3, 5)),
    "nuclear norms": (
        lambda a: vnp.linalg.norm(a, "nuc", (1, 2)), lambda a: jax.numpy.linalg.norm(a, "nuc", (1, 2)), (4, 4),
    ),
}  # fmt: skip


@sampled("name,dtype", [(name, t) for name in FUNCTIONS for t in ("f8", "c16")], [("eigvalsh", "f8"), ("qr", "c16")])
def test_derivatives_to_second_order_are_those_of_jax(name: str, dtype: str) -> None:
    f, g, shape = FUNCTIONS[name]
    a = normal((2, *shape), dtype)
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(g)(a))
        ct = normal(want.shape, want.dtype.str[1:])
        once = jax.jit(jax.grad(lambda a: (g(a) * ct).sum().real))
        twice = np.asarray(jax.jit(jax.grad(lambda a: (once(a) ** 3).sum().real))(a))
        once = np.asarray(once(a))
    np.testing.assert_allclose(volta.jit(f)(a), want, rtol=1e-9, atol=1e-10)
    slope = volta.jit(volta.grad(lambda a: (f(a) * ct).sum().real))
    np.testing.assert_allclose(slope(a), once, rtol=1e-6, atol=1e-8 * np.abs(once).max())
    found = volta.jit(volta.grad(lambda a: (slope(a) ** 3).sum().real))(a)
    np.testing.assert_allclose(found, twice, rtol=1e-5, atol=1e-7 * np.abs(twice).max())


@sampled("name,dtype", [(name, t) for name in ("qr", "eigh", "svd", "pinv") for t in ("f4", "c8")], [("eigh", "f4")])
def test_a_batch_has_the_bits_of_single_matrices(name: str, dtype: str) -> None:
    """Some of the batch converge at once and are not touched while others go on."""
    f, _, shape = FUNCTIONS[name]
    a = normal((4, *shape), dtype).astype(dtype)
    a[1] = np.eye(*shape)
    a[2] *= 1e-3 ** np.arange(shape[1])
    whole = f(a)
    assert_bits_equal(volta.jit(f)(a), whole)
    assert_bits_equal(volta.vmap(f)(a), whole)
    for i in range(4):
        assert_bits_equal(f(a[i]), whole[i])


def test_infinities_and_nan_give_nan() -> None:
    for bad in (np.nan, np.inf, complex(0, np.inf)):
        a = np.array([[bad, 0], [0, 1]], "c8" if isinstance(bad, complex) else "f4")
        assert np.isnan(np.asarray(vnp.linalg.eigvalsh(a))).all()
        assert all(np.isnan(np.asarray(x)).all() for x in SVD(a, True))


@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize("shape", [(0, 0), (2, 0), (0, 3), (2, 0, 3)])
def test_matrices_without_elements(shape: tuple[int, ...], dtype: str) -> None:
    a = np.zeros(shape, dtype)
    for full in (False, True):
        assert [x.dtype for x in vnp.linalg.svd(a, full)] == [x.dtype for x in np.linalg.svd(a, full)]
        assert [x.shape for x in vnp.linalg.svd(a, full)] == [x.shape for x in np.linalg.svd(a, full)]
        mode = "complete" if full else "reduced"
        assert [x.shape for x in vnp.linalg.qr(a, mode)] == [x.shape for x in np.linalg.qr(a, mode)]
    assert vnp.linalg.pinv(a).shape == np.linalg.pinv(a).shape
    assert vnp.linalg.eigvalsh(np.zeros((3, 0, 0), dtype)).shape == (3, 0)
    assert vnp.linalg.eigvalsh(np.zeros((3, 0, 0), dtype)).dtype == np.float32


@sampled("dtype", ["f8", "c16"], ["f8"])
def test_least_squares_ranks_and_conditions_beside_numpy(dtype: str) -> None:
    ours, theirs = vnp.linalg, np.linalg
    a, b = normal((6, 4), dtype), normal((6, 2), dtype)
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
    half = square + square.conj().T
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
    with pytest.raises(NotDifferentiableError, match="qr of matrices 3 x 2 with all columns of Q has no derivative"):
        volta.grad(lambda a: vnp.linalg.qr(a, "complete").R.sum())(a.T)
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
