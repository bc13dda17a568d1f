"""Products of elementary reflectors, as factors of QR are kept below a diagonal, and of matrices with themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import lax
from volta.ops.base import shape_of
from volta.trace.decomposition import adjoint, check_floats, conjugated, eye, fori, matmul, transposed, tril

__all__ = ["householder_product", "ormqr", "symmetric_product"]


def ormqr(a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False) -> Array:
    """``Q c``, or with ``left=False`` ``c Q``, where Q is the product of the reflectors ``1 - tau v vᴴ``, in order.

    A column of v is that of ``a`` below the diagonal, with 1 on it, as LAPACK's ``geqrf`` leaves it. ``transpose``
    takes Qᴴ.

    Args:
        a: (…, m, n), float32, float64 or complex numbers of these.
        taus: (…, k), k at most n and m.
        c: (…, m, p), or (…, p, m) on the left of Q.

    Returns:
        As ``c``.

    Raises:
        ShapeError: where these shapes do not go together. DTypeError: for dtypes other than one of these.

    >>> lax.linalg.ormqr(np.float32([[0], [1]]), np.float32([1]), np.float32([[1], [2]])).tolist()
    [[-2.0], [-1.0]]
    """
    return _reflected("ormqr", a, taus, c, left, transpose)


def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """The first n columns of the product of reflectors that ``a`` (…, m, n) and ``taus`` (…, k) hold; see
    :func:`ormqr`.

    >>> lax.linalg.householder_product(np.float32([[0], [1]]), np.float32([1])).tolist()
    [[0.0], [-1.0]]
    """
    aval = get_aval(a)
    check_floats("householder_product", (aval,), or_complex=True)
    return _reflected("householder_product", a, taus, eye(aval.shape, aval.dtype), True, False)


def symmetric_product(
    a_matrix: ArrayLike, c_matrix: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Array:
    """``alpha a aᵀ + beta c``, of ``a`` (…, m, n) and symmetric ``c`` (…, m, m).

    ``symmetrize_output`` puts the lower triangle above the diagonal too, where ``c`` is not quite symmetric.

    Raises:
        ShapeError: where ``c`` is not as large as ``a aᵀ``. DTypeError: for dtypes other than one of floats.

    >>> lax.linalg.symmetric_product(np.float32([[1], [2]]), np.float32([[1, 0], [0, 1]]), beta=3.0).tolist()
    [[4.0, 2.0], [2.0, 7.0]]
    """
    a, c = get_aval(a_matrix), get_aval(c_matrix)
    check_floats("symmetric_product", (a, c), or_complex=True)
    if c.shape != (*a.shape[:-1], a.shape[-2]):
        text = f"symmetric_product: c must have shape {(*a.shape[:-1], a.shape[-2])} for a {a.short()}, got {c.short()}"
        raise ShapeError(at_user_line(text))
    scaled = lax.mul(matmul(a_matrix, a_matrix, transpose_b=True), np.asarray(alpha, a.dtype))
    found = lax.add(scaled, lax.mul(c_matrix, np.asarray(beta, c.dtype)))
    return lax.add(tril(found), transposed(tril(found, -1))) if symmetrize_output else found


def _reflected(name: str, a: Any, taus: Any, c: Any, left: bool, transpose: bool) -> Array:
    matrix, factors, other = (get_aval(x) for x in (a, taus, c))
    vectors = factors.update(shape=(1, *factors.shape)) if factors.ndim < 2 else factors
    check_floats(name, (matrix, vectors, other), or_complex=True)
    shapes = f"got {matrix.short()}, {factors.short()} and {other.short()}"
    if not factors.shape or len({matrix.shape[:-2], factors.shape[:-1], other.shape[:-2]}) > 1:
        raise ShapeError(at_user_line(f"{name}: takes (…, m, n), (…, k) and (…, m, p), batched alike; {shapes}"))
    (m, n), k = matrix.shape[-2:], factors.shape[-1]
    if k > min(m, n) or other.shape[-2 if left else -1] != m:
        text = f"{name}: there are at most as many factors as rows and columns, and c has the rows of Q; {shapes}"
        raise ShapeError(at_user_line(text))
    rank, inverse = matrix.ndim, transpose == left
    below = lax.slice_in_dim(tril(a, -1), 0, k, axis=rank - 1)
    v = lax.add(below, eye(shape_of(below), matrix.dtype))
    tau = conjugated(taus) if inverse else taus

    def reflected(i: Any, x: Any) -> list[Any]:
        j = i if inverse else lax.sub(k - 1, i)
        column = lax.dynamic_index_in_dim(v, j, rank - 1, True)
        factor = lax.expand_dims(lax.dynamic_index_in_dim(tau, j, rank - 2, True), (rank - 1,))
        along = matmul(adjoint(column), x)
        along = lax.mul(lax.broadcast_in_dim(factor, shape_of(along), tuple(range(rank))), along)
        return [lax.sub(x, matmul(column, along))]

    (found,) = fori(k, reflected, c if left else adjoint(c))
    return found if left else adjoint(found)
