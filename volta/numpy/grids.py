"""Positions: grids of coordinates, diagonals and triangles, flat positions, and NumPy's index objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import as_shape
from volta.core.errors import DTypeError, ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, division, shaping
from volta.numpy.creation import arange, array, asarray, linspace, ones
from volta.numpy.indexing import as_positions, wrapped_positions
from volta.numpy.promotion import as_value, aval_of, common_dtype, convert
from volta.numpy.taking import nonzero
from volta.ops import lax


def meshgrid(*xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinate matrices from coordinate vectors; ``indexing`` is 'xy' (columns first) or 'ij'."""
    if indexing not in ("xy", "ij"):
        raise ValueError(at_user_line(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}"))
    flat = [shaping.ravel(x) for x in xi]
    places = list(range(len(flat)))
    if indexing == "xy" and len(flat) > 1:
        places[:2] = [1, 0]
    sizes = [0] * len(flat)
    for x, place in zip(flat, places, strict=True):
        sizes[place] = x.size
    out = []
    for x, place in zip(flat, places, strict=True):
        shape = tuple(x.size if sparse and i == place else 1 if sparse else n for i, n in enumerate(sizes))
        out.append(lax.broadcast_in_dim(x, shape, (place,)))
    return tuple(out)


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """The index of every element of a grid, one axis of the grid after the other."""
    shape = as_shape("indices", dimensions)
    dtype = dtypes.DEFAULT_INT if dtype is None else dtypes.canonicalize(dtype)
    if sparse:
        return tuple(
            lax.reshape(lax.iota(dtype, n), tuple(n if i == j else 1 for j in range(len(shape))))
            for i, n in enumerate(shape)
        )
    return shaping.stack([lax.broadcasted_iota(dtype, shape, i) for i in range(len(shape))])


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The row and column indices of the lower triangle."""
    rows, columns = np.tril_indices(n, k, m)
    return as_value(rows.astype(np.int32)), as_value(columns.astype(np.int32))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The row and column indices of the upper triangle."""
    rows, columns = np.triu_indices(n, k, m)
    return as_value(rows.astype(np.int32)), as_value(columns.astype(np.int32))


def _matrix_shape(name: str, arr: Array) -> tuple[int, int]:
    shape = aval_of(name, arr).shape
    if len(shape) != 2:
        raise ShapeError(at_user_line(f"{name}: needs a matrix, got shape {shape}"))
    return shape


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """:func:`tril_indices` for the shape of a matrix."""
    n, m = _matrix_shape("tril_indices_from", arr)
    return tril_indices(n, k, m)


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """:func:`triu_indices` for the shape of a matrix."""
    n, m = _matrix_shape("triu_indices_from", arr)
    return triu_indices(n, k, m)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """The indices of the main diagonal of an array of ``ndim`` axes of size ``n``.

    >>> diag_indices(2)
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    if n < 0 or ndim < 0:
        raise ValueError(at_user_line(f"diag_indices: n and ndim must not be negative, got {n} and {ndim}"))
    return (lax.iota(dtypes.int32, n),) * ndim


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """:func:`diag_indices` for an array whose axes have one size."""
    shape = aval_of("diag_indices_from", arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(at_user_line(f"diag_indices_from: needs two axes or more, all of one size, got {shape}"))
    return diag_indices(shape[0], len(shape))


def mask_indices(n: int, mask_func: Callable[..., ArrayLike], k: int = 0, *, size: int | None = None) -> Any:
    """The row and column indices that ``mask_func(ones((n, n)), k)`` keeps, such as those of ``triu``."""
    return nonzero(mask_func(ones((n, n)), k), size=size)


def ix_(*args: ArrayLike) -> tuple[Array, ...]:
    """Vectors of indices (or masks) as an open mesh: ``x[ix_(rows, columns)]`` is the block of rows and columns.

    >>> [i.shape for i in ix_(np.int32([0, 2]), np.int32([1]))]
    [(2, 1), (1, 1)]
    """
    out = []
    for i, x in enumerate(args):
        x = asarray(x)
        if x.ndim != 1:
            raise ShapeError(at_user_line(f"ix_: argument {i} must be a vector, got shape {x.shape}"))
        if x.dtype == dtypes.bool_:
            (x,) = nonzero(x)
        out.append(shaping.reshape(x, tuple(-1 if j == i else 1 for j in range(len(args)))))
    return tuple(out)


def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Array, ...]:
    """The coordinates, one array an axis, of positions in the flat array of ``shape``, in the dtype of ``indices``.

    Negative positions count from the end; those out of bounds are clipped.

    >>> unravel_index(np.int8([5, -1]), (2, 3))
    (Array([1, 1], dtype=int8), Array([2, 2], dtype=int8))

    Raises:
        DTypeError: the indices are no integers.
    """
    sizes = as_shape("unravel_index", shape)
    indices, size = as_value(indices), math.prod(sizes)
    own = indices.dtype
    if not dtypes.is_integer(own):
        raise DTypeError(at_user_line(f"unravel_index: indices must be integers, not {own}"))
    flat = binary.clip(as_positions(indices, size), -size, size - 1)
    out = []
    for n in reversed(sizes):
        out.append(convert(division.remainder(flat, n), own))
        flat = division.floor_divide(flat, n)
    return tuple(reversed(out))


def ravel_multi_index(
    multi_index: Sequence[ArrayLike], dims: Any, mode: str = "clip", order: str = "C", *, dtype: Any = None
) -> Array:
    """The positions in the flat array of shape ``dims`` of elements given by their coordinates; ``dtype``: theirs.

    Coordinates out of bounds are clipped, or go around with mode 'wrap'. With 'raise' they are an error, which is not
    possible while tracing.

    >>> ravel_multi_index((np.int32([1, 0]), np.int32([2, 1])), (2, 3))
    Array([5, 1], dtype=int32)
    """
    sizes = as_shape("ravel_multi_index", dims)
    if len(multi_index) != len(sizes):
        raise ShapeError(at_user_line(f"ravel_multi_index: {len(multi_index)} coordinates for {len(sizes)} axes"))
    if mode not in ("clip", "wrap", "raise"):
        raise ValueError(at_user_line(f"ravel_multi_index: mode must be 'clip', 'wrap' or 'raise', not {mode!r}"))
    parts = [asarray(index) for index in multi_index]
    if mode == "raise" and any(
        np.any((np.asarray(p) < 0) | (np.asarray(p) >= n)) for p, n in zip(parts, sizes, strict=True)
    ):
        raise ValueError(at_user_line(f"ravel_multi_index: a coordinate is out of the bounds {sizes}"))
    pairs = list(zip(parts, sizes, strict=True))
    out: Any = np.int32(0)
    for index, n in pairs if order == "C" else reversed(pairs):
        index = wrapped_positions(index, n) if mode == "wrap" else binary.clip(as_positions(index, n), 0, n - 1)
        out = binary.add(binary.multiply(out, n), index)
    return as_value(out) if dtype is None else convert(out, dtypes.canonicalize(dtype))


# -- NumPy's index objects ---------------------------------------------------------------------------------------------


def _axis_of(name: str, cut: slice) -> Array:
    """A slice as values: ``start:stop:step``, or ``start:stop:5j`` for 5 values with both ends."""
    start = 0 if cut.start is None else cut.start
    if isinstance(cut.step, complex):
        return linspace(start, cut.stop, int(abs(cut.step)))
    if cut.stop is None:
        raise ValueError(at_user_line(f"{name}: a slice needs an end"))
    return arange(start, cut.stop, 1 if cut.step is None else cut.step)


class _Grid:
    """``mgrid`` and ``ogrid``: slices as coordinate arrays."""

    def __init__(self, name: str, sparse: bool):
        self._name, self._sparse = name, sparse

    def __repr__(self) -> str:
        return f"volta.numpy.{self._name}"

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _axis_of(self._name, key)
        axes = [_axis_of(self._name, k) for k in key]
        dtype, _ = common_dtype(self._name, *axes)
        mesh = meshgrid(*(convert(a, dtype) for a in axes), sparse=self._sparse, indexing="ij")
        return list(mesh) if self._sparse else shaping.stack(mesh)


class _Concatenator:
    """``r_`` and ``c_``: slices, numbers and arrays in a row."""

    def __init__(self, name: str, axis: int, ndmin: int, trans1d: int):
        self._name, self._directive = name, (axis, ndmin, trans1d)

    def __repr__(self) -> str:
        return f"volta.numpy.{self._name}"

    def __getitem__(self, key: Any) -> Array:
        axis, ndmin, trans1d = self._directive
        items = list(key) if isinstance(key, tuple) else [key]
        matrix = items.pop(0) if items and isinstance(items[0], str) and items[0] in ("r", "c") else None
        if items and isinstance(items[0], str):
            try:
                given = [int(v) for v in items.pop(0).split(",")]
            except ValueError:
                raise ValueError(at_user_line(f"{self._name}: the directive must be up to three ints")) from None
            axis, ndmin, trans1d = (*given, *(axis, ndmin, trans1d)[len(given) :])
        parts = []
        for item in items:
            x = _axis_of(self._name, item) if isinstance(item, slice) else array(item)
            low = x.ndim
            if isinstance(item, slice) or low < ndmin:
                x = shaping.atleast_1d(x)
                low = x.ndim
                x = shaping.reshape(x, (1,) * (ndmin - low) + x.shape) if low < ndmin else x
                if trans1d != -1 and low < ndmin:  # the axes of the item go where the directive says
                    own = list(range(ndmin - low, ndmin))
                    new = list(range(ndmin - low))
                    at = trans1d if trans1d >= 0 else trans1d + ndmin - low + 1
                    x = shaping.transpose(x, new[:at] + own + new[at:])
            parts.append(shaping.atleast_1d(x))
        out = shaping.concatenate(parts, axis)
        # a vector comes out as a matrix of one row or column
        return out if not matrix or out.ndim > 1 else shaping.reshape(out, (1, -1) if matrix == "r" else (-1, 1))


class _Index:
    """``s_`` and ``index_exp``: what stands in the brackets, as a value."""

    def __init__(self, as_tuple: bool):
        self._as_tuple = as_tuple

    def __getitem__(self, key: Any) -> Any:
        return (key,) if self._as_tuple and not isinstance(key, tuple) else key


mgrid = _Grid("mgrid", False)
ogrid = _Grid("ogrid", True)
r_ = _Concatenator("r_", 0, 1, -1)
c_ = _Concatenator("c_", -1, 2, 0)
s_ = _Index(False)
index_exp = _Index(True)
