"""Matrices with a name, and diagonals."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import shaping
from volta.numpy.placing import lying
from volta.numpy.promotion import aval_of, broadcast_array, canonical_axis, convert, zero_like
from volta.numpy.reductions import sum as _sum
from volta.ops import lax


def _band(rows: int, columns: int, k: int, compare: Any) -> Array:
    """The mask ``compare(i + k, j)`` over a matrix."""
    shape, k = (rows, columns), builtins.max(-rows, builtins.min(k, columns))  # diagonals further out are as empty
    i = lax.broadcasted_iota(dtypes.int32, shape, 0)
    j = lax.broadcasted_iota(dtypes.int32, shape, 1)
    return compare(lax.add(i, np.int32(k)) if k else i, j)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Ones on the ``k``-th diagonal of an N by M matrix."""
    dtype = dtypes.DEFAULT_FLOAT if dtype is None else dtypes.canonicalize(dtype)
    return lying(convert(_band(N, N if M is None else M, k, lax.eq), dtype), device)


def identity(n: int, dtype: Any = None) -> Array:
    """The n by n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """Ones at and below the ``k``-th diagonal of an N by M matrix."""
    dtype = dtypes.DEFAULT_FLOAT if dtype is None else dtypes.canonicalize(dtype)
    return convert(_band(N, N if M is None else M, k, lax.ge), dtype)


def _triangle(name: str, m: Array, k: int, lower: bool) -> Array:
    aval = aval_of(name, m)
    if aval.ndim < 2:
        raise ShapeError(at_user_line(f"{name}: needs a matrix, got shape {aval.shape}"))
    mask = broadcast_array(_band(aval.shape[-2], aval.shape[-1], k if lower else k - 1, lax.ge), aval.shape)
    zero = zero_like(m)
    return lax.select_n(mask, zero, m) if lower else lax.select_n(mask, m, zero)


def tril(m: ArrayLike, k: int = 0) -> Array:
    """``m`` with zeros above the ``k``-th diagonal of its last two axes."""
    return _triangle("tril", m, k, True)


def triu(m: ArrayLike, k: int = 0) -> Array:
    """``m`` with zeros below the ``k``-th diagonal of its last two axes."""
    return _triangle("triu", m, k, False)


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal ``a[i, i + offset]`` of two axes, as the last axis."""
    aval = aval_of("diagonal", a)
    axis1, axis2 = (canonical_axis("diagonal", v, aval.ndim) for v in (axis1, axis2))
    if axis1 == axis2:
        raise ShapeError(at_user_line("diagonal: axis1 and axis2 must differ"))
    rows = np.arange(
        builtins.max(0, -offset), builtins.min(aval.shape[axis1], aval.shape[axis2] - offset), dtype=np.int32
    )
    index = {axis1: rows, axis2: rows + np.int32(offset)}
    axes = tuple(sorted(index))
    out = lax.gather(a, [index[v] for v in axes], axes=axes, batch_dims=0, mode="clip")
    return shaping.moveaxis(out, 0, -1)


def diag(v: ArrayLike, k: int = 0) -> Array:
    """A matrix with ``v`` on its ``k``-th diagonal, or that diagonal of the matrix ``v``."""
    aval = aval_of("diag", v)
    if aval.ndim == 2:
        return diagonal(v, k)
    if aval.ndim != 1:
        raise ShapeError(at_user_line(f"diag: needs 1 or 2 dimensions, got shape {aval.shape}"))
    n = aval.shape[0] + builtins.abs(k)
    rows = lax.pad(v, zero_like(v), ((builtins.max(0, -k), builtins.max(0, k), 0),)) if k else v
    return lax.select_n(_band(n, n, k, lax.eq), zero_like(v), lax.broadcast_in_dim(rows, (n, n), (0,)))


def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """:func:`diag` of the flat array."""
    return diag(shaping.ravel(v), k)


def trace(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """The sum of a diagonal."""
    return _sum(diagonal(a, offset, axis1, axis2), -1, dtype)


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """The Vandermonde matrix: columns are powers of ``x``."""
    aval = aval_of("vander", x)
    columns = aval.shape[0] if N is None else N
    powers = [lax.integer_pow(x, p) for p in range(columns)]
    return shaping.stack(powers if increasing else powers[::-1], axis=1)
