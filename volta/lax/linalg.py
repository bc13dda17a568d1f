"""Decompositions of matrices under the names of ``jax.lax.linalg``: float32 and float64, nothing promoted.

Matrices are the last two axes; the axes in front are a batch, which changes no bit. ``volta.numpy.linalg`` promotes.

>>> from volta.lax import linalg
>>> linalg.cholesky(np.float32([[4, 2], [2, 5]])).tolist()
[[2.0, 0.0], [1.0, 2.0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.banded import tridiagonal_solve
from volta.lax.reflectors import householder_product, ormqr, symmetric_product
from volta.lax.solves import custom_linear_solve
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace import eigen, factors, orthogonal, spectra
from volta.trace import schur as forms
from volta.trace.decomposition import (
    adjoint,
    check_floats,
    check_square,
    conjugated,
    fori,
    iota,
    matmul,
    real_part,
    symmetrized,
    tril,
    triu,
)
from volta.trace.triangular import Triangular

__all__ = [
    "cholesky", "cholesky_update", "eig", "eigh", "householder_product", "lu", "lu_pivots_to_permutation", "ormqr",
    "qr", "schur", "svd", "symmetric_product", "triangular_solve", "tridiagonal_solve",
]  # fmt: skip


def cholesky(x: ArrayLike, /, *, symmetrize_input: bool = True) -> Array:
    """The lower triangular L of symmetric (Hermitian) positive definite matrices, ``x = L Lᴴ``.

    Args:
        x: (…, n, n), float32, float64 or complex numbers of these.
        symmetrize_input: take (x + xᴴ) / 2; otherwise the lower triangle alone is read.

    Returns:
        (…, n, n), with zeros above the diagonal; NaN on and below it for a matrix that is not positive definite.

    Raises:
        ShapeError: for matrices that are not square. DTypeError: for other dtypes.

    >>> lax.linalg.cholesky(np.float64([[9.0]])).tolist()
    [[3.0]]
    """
    check_floats("cholesky", (get_aval(x),), or_complex=True)
    check_square("cholesky", get_aval(x))
    return (factors.cholesky_of_mean if symmetrize_input else factors.cholesky)(x)[0]


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Array:
    """The upper triangular factor of ``RᵀR + w wᵀ``, from the factor R (n, n) and w (n,): a rotation for each row.

    Raises:
        ShapeError: where w has not as many elements as R rows. DTypeError: for dtypes other than one of floats.

    >>> lax.linalg.cholesky_update(np.float32([[3, 0], [0, 1]]), np.float32([4, 0])).tolist()
    [[5.0, 0.0], [0.0, 1.0]]
    """
    r, w = get_aval(r_matrix), get_aval(w_vector)
    check_floats("cholesky_update", (r, w.update(shape=(1, *w.shape))))
    if r.ndim != 2 or w.ndim != 1 or r.shape != (w.shape[0],) * 2:
        raise ShapeError(at_user_line(f"cholesky_update: takes (n, n) and (n,), got shapes {r.shape} and {w.shape}"))

    def step(i: Any, factor: Any, w: Any) -> list[Any]:
        line = lax.dynamic_index_in_dim(factor, i, 0, False)
        x, y = (lax.dynamic_index_in_dim(v, i, 0, False) for v in (line, w))
        size = lax.max(lax.abs(x), lax.abs(y))
        size = lax.select(lax.eq(size, 0.0), 1.0, size)
        x, y = lax.div(x, size), lax.div(y, size)
        length = lax.sqrt(lax.fma(x, x, lax.mul(y, y)))
        none = lax.eq(length, 0.0)
        c, s = (lax.select(none, 1.0, lax.div(x, length)), lax.select(none, 0.0, lax.div(y, length)))
        c, s = (base.spread(v, shape_of(w)) for v in (c, s))
        new = lax.fma(c, line, lax.mul(s, w))
        return [lax.dynamic_update_index_in_dim(factor, new, i, 0), lax.fma(c, w, lax.neg(lax.mul(s, line)))]

    return triu(fori(r.shape[0], step, triu(r_matrix), w_vector)[0])


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """The x of ``op(a) x = b``, or of ``x op(a) = b`` unless ``left_side``, with triangular ``a``.

    Args:
        a: (…, n, n); the triangle that ``lower`` names is read, without its diagonal if that is a ``unit_diagonal``.
        b: (…, n, m), or (…, m, n) unless ``left_side``; or of one axis less, as a column (a row).
        transpose_a: op(a) is aᵀ. ``conjugate_a``: of the conjugates.

    Returns:
        An array of ``b``'s shape. A zero on the diagonal divides: infinities and NaN.

    Raises:
        ShapeError: where the shapes do not fit. DTypeError: for dtypes other than one of float32 and float64.

    >>> a = np.float32([[2, 0], [1, 4]])
    >>> lax.linalg.triangular_solve(a, np.float32([[2], [9]]), left_side=True, lower=True).tolist()
    [[1.0], [2.0]]
    """
    check_square("triangular_solve", get_aval(a))
    a = conjugated(a) if conjugate_a else a
    vector = len(shape_of(b)) == len(shape_of(a)) - 1
    if vector:
        b = lax.expand_dims(b, (-1 if left_side else -2,))
    out = Triangular(bool(left_side), bool(lower), bool(transpose_a), bool(unit_diagonal))(a, b)
    return lax.squeeze(out, (len(shape_of(out)) - (1 if left_side else 2),)) if vector else out


def lu(x: ArrayLike) -> tuple[Array, Array, Array]:
    """Gaussian elimination with partial pivoting: ``P x = L U``, of the first largest element of each column.

    Args:
        x: (…, m, n), float32, float64 or complex numbers of these.

    Returns:
        L below the diagonal and U on it and above (…, m, n); int32 (…, min(m, n)): the row that changed places with
        row i in step i; int32 (…, m): the rows of ``x`` in the order of P x.

    Raises:
        ShapeError, DTypeError: for what is no matrix of float32 or float64.

    >>> packed, pivots, permutation = lax.linalg.lu(np.float32([[1, 2], [4, 4]]))
    >>> packed.tolist(), pivots.tolist(), permutation.tolist()
    ([[4.0, 4.0], [0.25, 1.0]], [1, 1], [1, 0])
    """
    packed, pivots, order = factors.lu(x)
    return packed, pivots, order


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """The order of ``permutation_size`` rows after row i has changed places with row ``pivots[i]``, for ascending i.

    >>> lax.linalg.lu_pivots_to_permutation(np.int32([2, 1]), 3).tolist()
    [2, 1, 0]
    """
    shape = shape_of(pivots)
    if not shape or shape[-1] > permutation_size:
        raise ShapeError(
            at_user_line(f"lu_pivots_to_permutation: {permutation_size} rows cannot take pivots of shape {shape}")
        )
    *front, count = shape
    order = base.broadcast_to(
        lax.broadcasted_iota(np.int32, (permutation_size,), 0), (*front, permutation_size), (len(front),)
    )
    at = lax.broadcasted_iota(np.int32, (*front, permutation_size), len(front))

    def step(i: Any, order: Any) -> list[Any]:
        other = lax.dynamic_slice_in_dim(pivots, i, 1, len(front))
        mine = lax.dynamic_slice_in_dim(order, i, 1, len(front))
        its = lax.gather(order, [other], (len(front),), len(front), "clip")
        wide = [
            base.broadcast_to(lax.squeeze(v, (len(front),)), shape_of(at), range(len(front)))
            for v in (other, mine, its)
        ]
        here = base.spread(i, shape_of(at))
        return [lax.select(lax.eq(at, here), wide[2], lax.select(lax.eq(at, wide[0]), wide[1], order))]

    return fori(count, step, order)[0]


def qr(x: ArrayLike, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> Any:
    """Q and R with ``x = Q R``, by Householder reflections; ``volta.numpy.linalg.qr`` says more.

    Args:
        x: (…, m, n), float32, float64 or complex numbers of these.
        full_matrices: Q (…, m, m) and R (…, m, n), otherwise those of min(m, n).
        use_magma: means nothing. ``pivoting`` is refused by ValueError: it is planned.

    >>> q, r = lax.linalg.qr(np.float32([[3], [4]]))
    >>> q.shape, r.round(5).tolist()
    ((2, 2), [[-5.0], [0.0]])
    """
    if pivoting:
        raise ValueError(at_user_line("qr: pivoting is planned; volta.lax.linalg.svd shows the rank of a matrix"))
    q, r = orthogonal.qr[bool(full_matrices)](x)
    return q, r


def _subset(name: str, subset: tuple[int, int] | None, count: int) -> tuple[int, int]:
    first, end = (0, count) if subset is None else subset
    if not 0 <= first <= end <= count:
        raise ShapeError(at_user_line(f"{name}: subset_by_index is (first, end) within (0, {count}), not {subset}"))
    return first, end


def eigh(
    x: ArrayLike,
    /,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: Any = None,
) -> tuple[Array, Array]:
    """Eigenvectors, as columns, and eigenvalues, ascending, of symmetric (Hermitian) matrices; in this order, as in
    JAX.

    Args:
        x: (…, n, n), float32, float64 or complex numbers of these.
        lower: the triangle that is read where the input is not symmetrized.
        sort_eigenvalues: means nothing: they are sorted. ``implementation`` neither: there is one.
        subset_by_index: ``(first, end)`` of the eigenvalues that are wanted.

    >>> v, w = lax.linalg.eigh(np.float32([[3, 0], [0, 2]]))
    >>> w.tolist()
    [2.0, 3.0]
    """
    check_floats("eigh", (get_aval(x),), or_complex=True)
    check_square("eigh", get_aval(x))
    if symmetrize_input:
        x = symmetrized(x)
    else:
        half, diagonal = tril(x if lower else adjoint(x)), lax.eq(iota(x, -2), iota(x, -1))
        own = lax.convert_element_type(real_part(x), base.dtype_of(x))
        x = lax.select(diagonal, own, lax.add(half, adjoint(tril(half, -1))))
    w, v = spectra.eigh(x)
    if subset_by_index is not None:
        (first, end), last = _subset("eigh", subset_by_index, shape_of(w)[-1]), len(shape_of(v)) - 1
        w, v = (lax.slice_in_dim(y, first, end, axis=axis) for y, axis in ((w, last - 1), (v, last)))
    return v, w


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = True,
    implementation: Any = None,
    use_magma: bool | None = None,
) -> list[Array]:
    """Eigenvalues of general matrices, then left and right eigenvectors, where wanted: ``x v = v w``, ``vᴴ x = w vᴴ``.

    ``volta.numpy.linalg.eig`` says more.

    Args:
        x: (…, n, n), float32, float64 or complex numbers of these.
        enable_eigvec_derivs: means nothing, nor do ``implementation`` and ``use_magma``: derivatives are there.

    Returns:
        A list of complex arrays: (…, n), and (…, n, n) with eigenvectors as columns.

    >>> lax.linalg.eig(np.float32([[0, -4], [1, 0]]), compute_left_eigenvectors=False)[0].tolist()
    [2j, -2j]
    """
    check_square("eig", get_aval(x))
    return eigen.eig[bool(compute_left_eigenvectors), bool(compute_right_eigenvectors)](x)


def schur(
    x: ArrayLike, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False, select_callable: Any = None
) -> Any:
    """T, upper triangular, and unitary Z with ``x = Z T Zᴴ``, by QR iterations; complex numbers, of real matrices too.

    Args:
        x: (…, n, n), float32, float64 or complex numbers of these. Where it is not finite, the results are NaN.
        compute_schur_vectors: False: T alone.
        sort_eig_vals: is refused by ValueError, as ``select_callable`` is: eigenvalues come in the order of iterations.

    Raises:
        NotDifferentiableError: for derivatives, which the forms have none of.

    >>> lax.linalg.schur(np.complex64([[2, 1], [0, 3]]))[0].tolist()
    [[(2+0j), (1+0j)], [0j, (3+0j)]]
    """
    if sort_eig_vals or select_callable is not None:
        raise ValueError(at_user_line("schur: eigenvalues are not sorted; take their order from T's diagonal"))
    check_square("schur", get_aval(x))
    t, z = forms.schur(x)
    return (t, z) if compute_schur_vectors else t


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: Any = None,
) -> Any:
    """U, the singular values, descending, and Vᴴ; ``volta.numpy.linalg.svd`` says more.

    Args:
        x: (…, m, n), float32, float64 or complex numbers of these.
        compute_uv: False: the singular values alone.
        subset_by_index: ``(first, end)`` of those that are wanted, without ``full_matrices``.
        algorithm: means nothing: there is one.

    >>> lax.linalg.svd(np.float32([[3], [4]]), compute_uv=False).tolist()
    [5.0]
    """
    u, s, vt = spectra.svd[bool(full_matrices and compute_uv)](x)
    if subset_by_index is not None:
        if full_matrices and compute_uv and subset_by_index != (0, shape_of(s)[-1]):
            raise ValueError(at_user_line("svd: subset_by_index is for full_matrices=False"))
        (first, end), last = _subset("svd", subset_by_index, shape_of(s)[-1]), len(shape_of(u)) - 1
        if compute_uv and not full_matrices:
            u, vt = (lax.slice_in_dim(y, first, end, axis=axis) for y, axis in ((u, last), (vt, last - 1)))
        s = lax.slice_in_dim(s, first, end, axis=last - 1)
    return (u, s, vt) if compute_uv else s


# -- equations, for the namespaces above -------------------------------------------------------------------------------


def solved(a: Any, b: Any) -> Any:
    """The x of ``a x = b`` for matrices whose axes in front are equal, differentiated as a solution."""
    packed, _, order = factors.lu(lax.stop_gradient(a))
    return custom_linear_solve(
        lambda x: matmul(a, x),
        b,
        lambda _, b: factors.lu_substitute(packed, order, b),
        lambda _, b: factors.lu_substitute(packed, order, b, transposed=True),
    )


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
