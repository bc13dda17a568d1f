"""QR, eigenvalues, singular values and what follows from them, under NumPy's names."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import numpy as np

from volta.api.custom_derivatives import custom_jvp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax import linalg as lax_linalg
from volta.numpy.linear_systems import square
from volta.numpy.promotion import aval_of, convert, promote_floats
from volta.ops import base, lax
from volta.trace.decomposition import adjoint, check_floats, conjugated, matmul, square_of_size, times

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "eig", "eigh", "eigvals", "eigvalsh", "lstsq", "matrix_rank",
    "pinv", "qr", "svd", "svdvals",
]  # fmt: skip


class QRResult(NamedTuple):
    """Orthonormal columns, and the upper triangle."""

    Q: Array
    R: Array


class EigResult(NamedTuple):
    """Eigenvalues, and the eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """Eigenvalues, ascending, and the eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class SVDResult(NamedTuple):
    """Left vectors as columns, singular values, descending, and right vectors as rows."""

    U: Array
    S: Array
    Vh: Array


def _matrices(name: str, x: Any) -> Any:
    x = promote_floats(name, x)[0]
    check_floats(name, (aval_of(name, x),), or_complex=True)
    return x


@overload
def qr(a: ArrayLike, mode: Literal["reduced", "complete"] = "reduced") -> QRResult: ...
@overload
def qr(a: ArrayLike, mode: Literal["r"]) -> Array: ...
@overload
def qr(a: ArrayLike, mode: str) -> Any: ...
def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Orthogonal Q and upper triangular R with ``a = Q R``, by Householder reflections.

    Args:
        a: (…, m, n).
        mode: 'reduced': Q (…, m, k) and R (…, k, n) with k = min(m, n); 'complete': Q (…, m, m), R (…, m, n);
            'r': R of the reduced one alone.

    Returns:
        ``QRResult(Q, R)``, or R. Signs are LAPACK's: an element of R's diagonal is real, and has the other sign than
        the real part of what it is from.

    Raises:
        ValueError: for other modes ('raw' too: its packed reflections are not public).
        NotDifferentiableError: for derivatives of complete ones where m > n.

    >>> vnp.linalg.qr(np.float32([[3, 0], [4, 5]])).R.tolist()
    [[-5.0, -4.0], [0.0, 3.0]]
    """
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(at_user_line(f"qr: mode is 'reduced', 'complete' or 'r', not {mode!r}"))
    q, r = lax_linalg.qr(_matrices("qr", a), full_matrices=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


def eig(a: ArrayLike) -> EigResult:
    """Eigenvalues and eigenvectors of general matrices (…, n, n), by QR iterations.

    Returns:
        ``EigResult``: (…, n), in the order in which the iterations leave them, and (…, n, n): columns of length 1 whose
        largest element is positive. Both are complex, of real matrices too, whose eigenvalues are real, or conjugates
        of each other, up to rounding. NaN for matrices with infinities or NaN.

    Raises:
        ShapeError, DTypeError: for what are no square matrices of floats or complex numbers.

    Derivatives, of eigenvectors too, are those for eigenvalues that differ. A matrix that cannot be made diagonal has
    eigenvectors that are all but equal.

    >>> vnp.linalg.eig(np.float32([[2, 1], [0, 3]])).eigenvalues.tolist()
    [(2+0j), (3+0j)]
    """
    w, v = lax_linalg.eig(square("eig", a), compute_left_eigenvectors=False)
    return EigResult(w, v)


def eigvals(a: ArrayLike) -> Array:
    """The eigenvalues of :func:`eig`.

    >>> vnp.linalg.eigvals(np.float32([[0, -4], [1, 0]])).tolist()
    [2j, -2j]
    """
    a = square("eigvals", a)
    return lax_linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric (Hermitian) matrices (…, n, n), by Jacobi's rotations.

    Args:
        UPLO: the triangle that is read: 'L' (or None) or 'U'.
        symmetrize_input: take (a + aᴴ) / 2, which reads both.

    Returns:
        ``EighResult``: (…, n), ascending, and (…, n, n). NaN for matrices with infinities or NaN.

    Raises:
        ValueError: for another UPLO. ShapeError, DTypeError: for what are no square matrices of floats.

    >>> vnp.linalg.eigh(np.float32([[2, 1], [1, 2]])).eigenvalues.round(5).tolist()
    [1.0, 3.0]
    """
    if UPLO not in (None, "L", "U"):
        raise ValueError(at_user_line(f"eigh: UPLO is 'L', 'U' or None, not {UPLO!r}"))
    v, w = lax_linalg.eigh(square("eigh", a), lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(w, v)


def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """The eigenvalues of :func:`eigh`.

    >>> vnp.linalg.eigvalsh(np.float32([[3, 0], [0, 2]])).tolist()
    [2.0, 3.0]
    """
    return eigh(a, UPLO, symmetrize_input).eigenvalues


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Array: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any: ...
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Singular values and vectors of (…, m, n): ``a = U diag(S) Vh``, by Jacobi's rotations of columns or,
    of more than 48, by the eigenvectors of their products, with rotations behind them in double precision.

    Args:
        full_matrices: U (…, m, m) and Vh (…, n, n); otherwise (…, m, k) and (…, k, n) with k = min(m, n).
        compute_uv: False: the singular values alone.
        hermitian: ``a`` is symmetric (Hermitian); it changes nothing here but that it must be square.
        subset_by_index: ``(first, end)`` of the singular values that are wanted.

    Returns:
        ``SVDResult(U, S, Vh)`` or S (…, k), descending. NaN for matrices with infinities or NaN.

    Raises:
        NotDifferentiableError: for derivatives of full matrices where m != n.

    >>> vnp.linalg.svd(np.float32([[0, 2], [1, 0]]), compute_uv=False).tolist()
    [2.0, 1.0]
    """
    a = square("svd", a) if hermitian else _matrices("svd", a)
    found = lax_linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index)
    return SVDResult(*found) if compute_uv else found


def svdvals(x: ArrayLike, /) -> Array:
    """The singular values of matrices (…, m, n), descending.

    >>> vnp.linalg.svdvals(np.float32([[0, 2], [1, 0]])).tolist()
    [2.0, 1.0]
    """
    return svd(x, compute_uv=False)


def _eps(x: Any) -> float:
    return float(np.finfo(aval_of("", x).dtype).eps)


def _one_of(name: str, **given: Any) -> Any:
    """The one of two names of a tolerance that is given."""
    values = [v for v in given.values() if v is not None]
    if len(values) > 1:
        raise ValueError(at_user_line(f"{name}: only one of {' and '.join(given)} may be given"))
    return values[0] if values else None


def _cut(s: Any, rtol: Any, size: int) -> Any:
    """Which singular values count: those above ``rtol`` times the largest."""
    relative = 10.0 * size * _eps(s) if rtol is None else rtol
    limit = lax.mul(lax.reduce_max(s, (s.ndim - 1,)), convert(relative, s.dtype))
    return lax.gt(s, base.broadcast_to(limit, s.shape, range(s.ndim - 1)))


def pinv(
    a: ArrayLike, rtol: ArrayLike | None = None, hermitian: bool = False, *, rcond: ArrayLike | None = None
) -> Array:
    """The pseudo-inverses (…, n, m) of matrices (…, m, n): small singular values count as 0.

    Small are those up to ``rtol`` times the largest, by default 10 · max(m, n) · eps; ``rcond`` is another name of it.
    The derivative is that of constant rank.

    >>> vnp.linalg.pinv(np.float32([[2, 0], [0, 0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    a, rtol = _matrices("pinv", a), _one_of("pinv", rtol=rtol, rcond=rcond)
    a = square("pinv", a) if hermitian else a
    if 0 in a.shape:
        return base.fill((*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)

    @custom_jvp
    def inverse(a: Any) -> Any:
        u, s, vh = lax_linalg.svd(a, full_matrices=False)
        there = _cut(s, rtol, max(a.shape[-2:]))
        factor = lax.select(there, lax.div(1.0, lax.select(there, s, 1.0)), 0.0)
        right = adjoint(vh)
        right = times(right, base.broadcast_to(factor, right.shape, (*range(s.ndim - 1), s.ndim)))
        return matmul(right, conjugated(u), transpose_b=True)

    @inverse.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        """Golub and Pereyra's."""
        (a,), (da,) = primals, tangents
        p, dh = inverse(a), adjoint(da)
        own, back = matmul(matmul(p, da), p), conjugated(p)
        s = matmul(matmul(p, back, transpose_b=True), dh)
        t = matmul(dh, matmul(back, p, transpose_a=True))
        share = lax.sub(s, matmul(matmul(s, a), p))
        other = lax.sub(t, matmul(p, matmul(a, t)))
        return p, lax.add(lax.sub(share, own), other)

    return jit(inverse)(a)


def matrix_rank(
    M: ArrayLike, rtol: ArrayLike | None = None, *, hermitian: bool = False, tol: ArrayLike | None = None
) -> Array:
    """How many singular values are above a bound: ``rtol`` (or ``tol``), by default S.max() · max(m, n) · eps.

    >>> int(vnp.linalg.matrix_rank(np.float32([[1, 1], [1, 1]])))
    1
    """
    bound = _one_of("matrix_rank", rtol=rtol, tol=tol)
    if aval_of("matrix_rank", M).ndim < 2:
        x = promote_floats("matrix_rank", M)[0]
        found = lax.ne(x, convert(0, aval_of("", x).dtype))
        return lax.convert_element_type(lax.reduce_or(found, tuple(range(aval_of("", x).ndim))), dtypes.int32)
    x = _matrices("matrix_rank", M)
    s = svd(x, False, False, hermitian)
    if not s.shape[-1]:
        return base.fill(s.shape[:-1], 0, np.dtype(np.int32))
    if bound is None:
        there = _cut(s, max(aval_of("", x).shape[-2:]) * _eps(s), 0)
    else:
        bound = convert(bound, s.dtype)
        there = lax.gt(s, base.broadcast_to(bound, s.shape, range(aval_of("", bound).ndim)))
    return lax.reduce_sum(lax.convert_element_type(there, dtypes.int32), (s.ndim - 1,))


def lstsq(
    a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = False
) -> tuple[Array, Array, Array, Array]:
    """The shortest x of those that make ``a x − b`` shortest, by the singular values of ``a``.

    Args:
        a: (m, n). b: (m,) or (m, k).
        rcond: singular values below ``rcond`` times the largest count as 0; by default max(m, n) · eps.
        numpy_resid: the residuals are empty where NumPy's are, which cannot be traced.

    Returns:
        x (n,) or (n, k); the sums of squares of what is left, (k,) or (1,); the rank of ``a``; its singular values.

    >>> vnp.linalg.lstsq(np.float32([[1, 0], [0, 1], [0, 0]]), np.float32([1, 2, 3]))[0].round(5).tolist()
    [1.0, 2.0]
    """
    a, b = promote_floats("lstsq", a, b)
    a, vector = _matrices("lstsq", a), aval_of("lstsq", b).ndim == 1
    b = lax.expand_dims(b, (1,)) if vector else b
    left, right = aval_of("lstsq", a).shape, aval_of("lstsq", b).shape
    if len(left) != 2 or len(right) != 2 or left[0] != right[0]:
        raise ShapeError(at_user_line(f"lstsq: takes a (m, n) and b (m,) or (m, k), got shapes {left} and {right}"))
    (m, n), dtype = left, aval_of("", a).dtype
    if not m * n:
        x, s = base.fill((n, right[1]), 0, dtype), base.fill((0,), 0, dtypes.part_dtype(dtype))
        rank: Any = base.fill((), 0, np.dtype(np.int32))
    else:
        u, s, vh = lax_linalg.svd(a, full_matrices=False)
        if rcond is not None and rcond < 0:
            rcond = _eps(a)
        limit = lax.mul(lax.index_in_dim(s, 0, 0, False), max(m, n) * _eps(a) if rcond is None else rcond)
        there = lax.bitwise_and(lax.gt(s, 0.0), lax.ge(s, base.broadcast_to(limit, s.shape)))
        rank = lax.reduce_sum(lax.convert_element_type(there, dtypes.int32), (0,))
        factor = lax.select(there, lax.div(1.0, lax.select(there, s, 1.0)), 0.0)
        along = matmul(conjugated(u), b, transpose_a=True)
        x = matmul(conjugated(vh), times(along, base.broadcast_to(factor, along.shape, (0,))), transpose_a=True)
    rest = lax.sub(b, matmul(a, x))
    residuals = lax.reduce_sum(square_of_size(rest), (0,))
    if numpy_resid and (m <= n or int(rank) < n):
        residuals = base.fill((0,), 0, s.dtype)
    return lax.squeeze(x, (1,)) if vector else x, residuals, rank, s
