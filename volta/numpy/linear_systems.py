"""Cholesky factors, equations, inverses and determinants, under NumPy's names."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from volta.api.custom_derivatives import custom_jvp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax import linalg as decompositions
from volta.numpy.matrices import diagonal
from volta.numpy.promotion import aval_of, broadcast_array, broadcast_shapes_of, promote_floats
from volta.numpy.shaping import matrix_transpose, moveaxis, ravel
from volta.ops import base, lax
from volta.trace.decomposition import check_floats, conjugated, eye
from volta.trace.factors import rows_in_order
from volta.trace.triangular import Triangular

__all__ = ["SlogdetResult", "cholesky", "det", "inv", "slogdet", "solve", "tensorinv", "tensorsolve"]


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its size."""

    sign: Array
    logabsdet: Array


def square(name: str, x: Any) -> Any:
    """Square matrices as floats, in a dtype that has decompositions."""
    x = promote_floats(name, x)[0]
    aval = aval_of(name, x)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(at_user_line(f"{name}: needs square matrices (…, n, n), got shape {aval.shape}"))
    check_floats(name, (aval,), or_complex=True)
    return x


def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """The triangular factor of symmetric (Hermitian) positive definite matrices: L with ``a = L Lᴴ``, or Lᴴ where
    ``upper``.

    Args:
        a: (…, n, n).
        symmetrize_input: take (a + aᴴ) / 2; otherwise the lower triangle alone is read (the upper one if ``upper``).

    Returns:
        (…, n, n). A matrix that is not positive definite gives NaN in its triangle.

    Raises:
        ShapeError: for matrices that are not square. DTypeError: for dtypes below float32.

    >>> vnp.linalg.cholesky(np.float32([[4, 2], [2, 5]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    a = square("cholesky", a)
    if upper and not symmetrize_input:
        a = conjugated(matrix_transpose(a))
    factor = decompositions.cholesky(a, symmetrize_input=symmetrize_input)
    return conjugated(matrix_transpose(factor)) if upper else factor


@jit
def _solve(a: Any, b: Any) -> Any:
    front = broadcast_shapes_of("solve", [aval_of("", x).shape[:-2] for x in (a, b)])
    a, b = (broadcast_array(x, (*front, *aval_of("", x).shape[-2:])) for x in (a, b))
    return decompositions.solved(a, b)


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """The x of ``a x = b``, by Gaussian elimination with partial pivoting.

    Args:
        a: (…, n, n).
        b: (n,), or (…, n, m): a right side a column.

    Returns:
        (…, n) or (…, n, m). A singular matrix gives infinities or NaN.

    Raises:
        ShapeError: where shapes do not fit. DTypeError: for dtypes below float32.

    >>> vnp.linalg.solve(np.float32([[2, 0], [1, 4]]), np.float32([2, 9])).tolist()
    [1.0, 2.0]
    """
    a, b = promote_floats("solve", a, b)
    a, (n, *more) = square("solve", a), aval_of("solve", b).shape[-2:] or (-1,)
    if n != aval_of("", a).shape[-1]:
        raise ShapeError(
            at_user_line(f"solve: a of shape {aval_of('', a).shape} does not fit b of shape {aval_of('', b).shape}")
        )
    return _solve(a, b) if more else lax.squeeze(_solve(a, lax.expand_dims(b, (-1,))), (aval_of("", a).ndim - 1,))


def inv(a: ArrayLike) -> Array:
    """The inverses of matrices (…, n, n): the solutions of ``a x = 1``. A singular matrix gives infinities or NaN.

    >>> vnp.linalg.inv(np.float32([[2, 0], [0, 4]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    a = square("inv", a)
    aval = aval_of("inv", a)
    return _solve(a, eye(aval.shape, aval.dtype))


@custom_jvp
def _det(a: Any) -> Any:
    packed, pivots, _ = decompositions.lu(a)
    size = lax.reduce_prod(diagonal(packed, 0, -2, -1), (packed.ndim - 2,))
    return lax.select(_odd(pivots), lax.neg(size), size)


def _odd(pivots: Any) -> Any:
    """Whether the exchanges of rows change the sign."""
    moved = lax.ne(pivots, lax.broadcasted_iota(np.int32, pivots.shape, pivots.ndim - 1))
    count = lax.reduce_sum(lax.convert_element_type(moved, np.int32), (pivots.ndim - 1,))
    return lax.eq(lax.bitwise_and(count, np.int32(1)), np.int32(1))


@_det.defjvp
def _det_rule(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    return _det(a), lax.reduce_sum(diagonal(_cofactors_times(a, da), 0, -2, -1), (a.ndim - 2,))


def _cofactors_times(a: Any, b: Any) -> Any:
    """det(a) a⁻¹ b, which is there also where the last pivot is 0. With rank below n − 1 it is 0."""
    packed, pivots, order = decompositions.lu(a)
    n, last = a.shape[-1], a.ndim - 1
    pivot = diagonal(packed, 0, -2, -1)
    partial = lax.reduce_prod(lax.slice_in_dim(pivot, 0, n - 1, axis=last - 1), (last - 1,))
    partial = lax.select(_odd(pivots), lax.neg(partial), partial)
    whole = lax.mul(partial, lax.squeeze(lax.slice_in_dim(pivot, n - 1, n, axis=last - 1), (last - 1,)))
    row, column = (lax.broadcasted_iota(np.int32, a.shape, d) for d in (last - 1, last))
    least = lax.bitwise_and(lax.eq(row, np.int32(n - 1)), lax.eq(column, np.int32(n - 1)))
    upper = lax.select(least, 1.0, packed)
    y = Triangular(unit_diagonal=True)(packed, rows_in_order(b, order))
    factor = lax.select(
        lax.eq(row, np.int32(n - 1)), *(base.broadcast_to(x, a.shape, range(last - 1)) for x in (partial, whole))
    )
    none = base.broadcast_to(lax.eq(partial, 0.0), a.shape, range(last - 1))
    x = Triangular(lower=False)(lax.select(none, eye(a.shape, a.dtype), upper), lax.mul(y, factor))
    return lax.select(none, 0.0, x)


@jit
def _det_of_few(a: Any) -> Any:
    """By the definition, for up to 3 rows."""
    n = a.shape[-1]
    x = [
        [lax.index_in_dim(lax.index_in_dim(a, i, a.ndim - 2, False), j, a.ndim - 2, False) for j in range(n)]
        for i in range(n)
    ]
    if n == 1:
        return x[0][0]

    def two(i: int, j: int, k: int, m: int) -> Any:
        return lax.sub(lax.mul(x[i][k], x[j][m]), lax.mul(x[i][m], x[j][k]))

    if n == 2:
        return two(0, 1, 0, 1)
    first, second, third = (lax.mul(x[0][j], two(1, 2, *(k for k in range(3) if k != j))) for j in range(3))
    return lax.add(lax.sub(first, second), third)


def det(a: ArrayLike) -> Array:
    """The determinants of matrices (…, n, n): (…,). By the definition up to n = 3, else the product of LU's pivots.

    >>> vnp.linalg.det(np.float32([[2, 1], [1, 4]])).tolist()
    7.0
    """
    a = square("det", a)
    shape, dtype = aval_of("det", a).shape, aval_of("det", a).dtype
    if not shape[-1]:
        return base.fill(shape[:-2], 1, dtype)
    return _det_of_few(a) if shape[-1] <= 3 else jit(_det)(a)


@custom_jvp
def _slogdet(a: Any) -> Any:
    packed, pivots, _ = decompositions.lu(a)
    pivot, axes = diagonal(packed, 0, -2, -1), (a.ndim - 2,)
    one = lax.reduce_prod(lax.sign(pivot), axes)
    return lax.select(_odd(pivots), lax.neg(one), one), lax.reduce_sum(lax.log(lax.abs(pivot)), axes)


@_slogdet.defjvp
def _slogdet_rule(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    sign, size = _slogdet(a)
    share = lax.reduce_sum(diagonal(decompositions.solved(a, da), 0, -2, -1), (a.ndim - 2,))
    if not dtypes.is_complex(a.dtype):
        return (sign, size), (lax.mul(sign, 0.0), share)
    turn = lax.complex(lax.mul(lax.imag(share), 0.0), lax.imag(share))
    return (sign, size), (lax.mul(sign, turn), lax.real(share))


_slogdet_at_once = jit(_slogdet)


def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """The sign of the determinants of matrices (…, n, n) and the logarithm of their size, which may be out of range.

    A singular matrix has sign 0 and logarithm −inf. ``method`` None or ``'lu'``: by Gaussian elimination.

    >>> [x.tolist() for x in vnp.linalg.slogdet(np.float32([[-1, 0], [0, 1]]))]
    [-1.0, 0.0]
    """
    if method not in (None, "lu"):
        raise ValueError(at_user_line(f"slogdet: method is None or 'lu', not {method!r}"))
    return SlogdetResult(*_slogdet_at_once(square("slogdet", a)))


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """The x with ``tensordot(a, x, x.ndim) = b``; ``axes`` of ``a`` are moved to the end before.

    Raises ShapeError where ``a``'s first axes are not ``b``'s, or the others have another number of elements.

    >>> vnp.linalg.tensorsolve(np.eye(4, dtype='f4').reshape(2, 2, 4), np.ones((2, 2), 'f4')).shape
    (4,)
    """
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(-len(axes), 0)))
    left, right = aval_of("tensorsolve", a).shape, aval_of("tensorsolve", b).shape
    shape = left[len(right) :]
    if left[: len(right)] != right or prod(shape) != prod(right):
        raise ShapeError(at_user_line(f"tensorsolve: a of shape {left} does not fit b of shape {right}"))
    return lax.reshape(solve(lax.reshape(a, (prod(right), prod(shape))), ravel(b)), shape)


def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """The inverse of ``a`` as a map from its axes behind the first ``ind`` to these: ``tensordot(out, b, ind)`` solves.

    Raises ShapeError where both groups of axes have not the same number of elements, ValueError for ``ind`` below 1.

    >>> vnp.linalg.tensorinv(np.eye(4, dtype='f4').reshape(4, 2, 2), 1).shape
    (2, 2, 4)
    """
    ind = operator.index(ind)
    if ind < 1:
        raise ValueError(at_user_line(f"tensorinv: ind must be at least 1, got {ind}"))
    shape = aval_of("tensorinv", a).shape
    first, rest = shape[:ind], shape[ind:]
    if prod(first) != prod(rest):
        raise ShapeError(at_user_line(f"tensorinv: the axes {first} and {rest} of a have not equally many elements"))
    return lax.reshape(inv(lax.reshape(a, (prod(first), prod(rest)))), (*rest, *first))
