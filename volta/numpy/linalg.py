"""``volta.numpy.linalg``: decompositions, equations, norms, products and powers of matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import matrices, powers, reductions, ufuncs
from volta.numpy.contractions import cross, matmul, multi_dot, outer, tensordot, vecdot
from volta.numpy.decompositions import eig, eigh, eigvals, eigvalsh, lstsq, matrix_rank, pinv, qr, svd, svdvals
from volta.numpy.linear_systems import cholesky, det, inv, slogdet, solve, tensorinv, tensorsolve
from volta.numpy.matrices import eye
from volta.numpy.promotion import aval_of, canonical_axes, convert, promote_floats, scalar_like
from volta.numpy.shaping import matrix_transpose
from volta.numpy.smooth import root_of_squares, square_of_size
from volta.ops import lax

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_rank", "pinv", "qr", "svd", "svdvals", "matrix_power", "matrix_transpose",
    "multi_dot", "norm", "outer", "slogdet", "solve", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """The diagonals of the matrices in the last two axes."""
    return matrices.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sums of the diagonals of the matrices in the last two axes."""
    return matrices.trace(x, offset, -2, -1, dtype)


def norm(x: ArrayLike, ord: Any = None, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """The length of vectors (one axis, or all of them when ``ord`` is None) or the norm of matrices (two axes).

    ``ord`` for vectors: None or 2, 1, 0, inf, -inf, or any number; for matrices: None or 'fro', 'nuc', 1, -1, 2, -2,
    inf, -inf.
    """
    x = promote_floats("norm", x)[0]
    nd = aval_of("norm", x).ndim
    axes = canonical_axes("norm", axis, nd)
    if ord is None:
        return vector_norm(x, axis=axes, keepdims=keepdims)
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)
    if len(axes) == 2:
        pair = tuple(axis) if isinstance(axis, (tuple, list)) else axes
        return _matrix_norm(x, ord, (pair[0] % nd, pair[1] % nd), keepdims)
    raise ShapeError(at_user_line(f"norm: ord={ord!r} needs one axis or two, got {len(axes)}"))


def vector_norm(x: ArrayLike, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """The ``ord``-norm of the elements along ``axis`` (None: all). The gradient of the length of zeros is 0."""
    x = promote_floats("vector_norm", x)[0]
    if ord == 2:
        return root_of_squares(reductions.sum(square_of_size(x), axis, keepdims=keepdims))
    size = lax.abs(x)
    if ord == math.inf:
        return reductions.max(size, axis, keepdims=keepdims)
    if ord == -math.inf:
        return reductions.min(size, axis, keepdims=keepdims)
    if ord == 0:
        return convert(reductions.count_nonzero(x, axis, keepdims=keepdims), aval_of("", size).dtype)
    if ord == 1:
        return reductions.sum(size, axis, keepdims=keepdims)
    total = reductions.sum(powers.power(size, ord), axis, keepdims=keepdims)
    none = lax.eq(total, scalar_like(total, 0.0 if ord > 0 else math.inf))  # of length 0, a kink
    return lax.select(none, 0.0, lax.pow(lax.select(none, 1.0, total), scalar_like(total, 1.0 / ord)))


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The ``ord``-norm of the last two axes."""
    x = promote_floats("matrix_norm", x)[0]
    nd = aval_of("", x).ndim
    if nd < 2:
        raise ShapeError(at_user_line(f"matrix_norm: needs a matrix, got shape {aval_of('', x).shape}"))
    return _matrix_norm(x, ord, (nd - 2, nd - 1), keepdims)


def _matrix_norm(x: Array, ord: Any, axes: tuple[int, int], keepdims: bool) -> Array:
    if ord in (None, "fro"):
        return vector_norm(x, axis=axes, keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        return _norm_of_singular_values(x, ord, axes, keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(at_user_line(f"norm: ord={ord!r} of a matrix; it is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"))
    row, column = axes
    first, second = (row, column) if abs(ord) == 1 else (column, row)
    sums = reductions.sum(ufuncs.absolute(x), first, keepdims=True)
    extreme = reductions.max if ord > 0 else reductions.min
    out = extreme(sums, second, keepdims=True)
    if keepdims:
        return out
    return lax.reshape(out, tuple(n for i, n in enumerate(aval_of("", out).shape) if i not in axes))


def _norm_of_singular_values(x: Array, ord: Any, axes: tuple[int, int], keepdims: bool) -> Array:
    rest = [d for d in range(x.ndim) if d not in axes]
    s = svdvals(lax.transpose(x, (*rest, *axes)))
    reduced = {2: reductions.max, -2: reductions.min, "nuc": reductions.sum}[ord](s, -1)
    return lax.expand_dims(reduced, tuple(sorted(axes))) if keepdims else reduced


def cond(x: ArrayLike, p: Any = None) -> Array:
    """The condition numbers of matrices: the ratio of the outer singular values, or ``norm(x, p) norm(inv(x), p)``.

    ``p`` is None or 2, -2, or an ``ord`` of :func:`norm`, for square matrices. A singular matrix has condition inf.

    >>> float(vnp.linalg.cond(np.float32([[4, 0], [0, 2]])))
    2.0
    """
    x = promote_floats("cond", x)[0]
    aval = aval_of("cond", x)
    if aval.ndim < 2 or 0 in aval.shape[-2:]:
        raise ShapeError(at_user_line(f"cond: needs matrices with elements, got shape {aval.shape}"))
    if p in (None, 2, -2):
        s = svdvals(x)
        ends = [lax.index_in_dim(s, i, s.ndim - 1, False) for i in (0, s.shape[-1] - 1)]
        out = lax.div(*(reversed(ends) if p == -2 else ends))
    else:
        out = lax.mul(norm(x, p, (-2, -1)), norm(inv(x), p, (-2, -1)))
    unknown = lax.bitwise_and(lax.ne(out, out), lax.bitwise_not(reductions.any(lax.ne(x, x), (-2, -1))))
    return lax.select(unknown, math.inf, out)


def matrix_power(a: ArrayLike, n: int) -> Array:
    """``a @ a @ … @ a`` with ``n`` factors, by squaring; negative powers are those of the inverse."""
    aval = aval_of("matrix_power", a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(at_user_line(f"matrix_power: needs square matrices, got shape {aval.shape}"))
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return lax.broadcast_in_dim(eye(aval.shape[-1], dtype=aval.dtype), aval.shape, (aval.ndim - 2, aval.ndim - 1))
    result: Any = None
    for bit in np.binary_repr(n)[::-1]:
        if bit == "1":
            result = a if result is None else matmul(result, a)
        n >>= 1
        a = matmul(a, a) if n else a
    return result


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
