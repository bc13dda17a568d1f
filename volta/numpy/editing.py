"""Copies of arrays with elements put in, taken out, chosen or rearranged, and arrays of bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import as_shape
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, division, shaping
from volta.numpy.creation import asarray
from volta.numpy.promotion import as_value, aval_of, canonical_axis, convert, promote_dtypes
from volta.numpy.reductions import sum as _sum
from volta.numpy.scans import cumsum
from volta.numpy.taking import normal_indices, take
from volta.numpy.ufuncs import to_bool
from volta.ops import lax
from volta.trace.tracer import setting_of


def _not_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(at_user_line(f"{name}: arrays are immutable; pass inplace=False and use the returned array"))


def _as_many(values: Array, count: int) -> Array:
    """The flat values, repeated or cut to ``count``."""
    flat = shaping.ravel(values)
    if not flat.shape[0]:
        raise ShapeError(at_user_line("there are no values to put"))
    times = -(-count // flat.shape[0])
    return lax.slice(shaping.tile(flat, times) if times > 1 else flat, (0,), (count,))


def put(a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = True) -> Array:
    """A copy of ``a`` with ``v`` (repeated as needed) at the positions ``ind`` of the flat array.

    Positions out of bounds are clipped, or go around with mode 'wrap'. Arrays are immutable: pass ``inplace=False``.

    >>> put(np.int32([0, 0, 0]), np.int32([0, 2]), 7, inplace=False)
    Array([7, 0, 7], dtype=int32)
    """
    _not_in_place("put", inplace)
    if mode not in (None, "clip", "wrap"):
        raise ValueError(at_user_line(f"put: mode must be 'clip' or 'wrap', not {mode!r}"))
    flat, index = shaping.ravel(a), shaping.ravel(asarray(ind))
    index = normal_indices("put", index, flat.shape[0], "wrap" if mode == "wrap" else None)
    count = aval_of("put", index).shape[0]
    if not count:
        return as_value(a)
    values = _as_many(asarray(v, flat.dtype), count)
    out = lax.scatter(flat, values, [index], axes=(0,), mode="clip", op="set")
    return shaping.reshape(out, aval_of("put", a).shape)


def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """A copy of ``arr`` with ``vals``, in order and over again, where ``mask`` is true. Pass ``inplace=False``.

    >>> place(np.int32([1, 2, 3]), np.array([True, False, True]), np.int32([8, 9]), inplace=False)
    Array([8, 2, 9], dtype=int32)
    """
    _not_in_place("place", inplace)
    arr, mask = as_value(arr), to_bool("place", asarray(mask))
    if aval_of("place", mask).size != arr.size:
        raise ShapeError(at_user_line(f"place: mask of shape {mask.shape} for an array of shape {arr.shape}"))
    mask, vals = shaping.ravel(mask), shaping.ravel(asarray(vals, arr.dtype))
    if not vals.shape[0]:
        raise ShapeError(at_user_line("place: there are no values to put"))
    rank = lax.sub(cumsum(convert(mask, dtypes.int32), 0), np.int32(1))
    values = take(vals, division.remainder(rank, vals.shape[0]), mode="clip")
    return shaping.reshape(lax.select_n(mask, shaping.ravel(arr), values), arr.shape)


def fill_diagonal(a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True) -> Array:
    """A copy of ``a`` with ``val`` (repeated as needed) on its main diagonal. Pass ``inplace=False``.

    >>> fill_diagonal(np.zeros((2, 2), np.int32), 5, inplace=False)
    Array([[5, 0],
           [0, 5]], dtype=int32)
    """
    _not_in_place("fill_diagonal", inplace)
    a = as_value(a)
    if wrap:
        raise NotImplementedError(at_user_line("fill_diagonal: wrap=True is not supported"))
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) != 1):
        raise ShapeError(at_user_line(f"fill_diagonal: needs a matrix, or axes of one size, got shape {a.shape}"))
    n = min(a.shape)
    if not n:
        return a
    places = np.arange(n, dtype=np.int32)
    values = _as_many(asarray(val, a.dtype), n)
    return lax.scatter(a, values, [places] * a.ndim, axes=tuple(range(a.ndim)), op="set")


def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """A copy with ``values`` put in before the static positions ``obj`` along ``axis`` (None: of the flat array).

    >>> insert(np.int32([1, 2, 3]), 1, 9)
    Array([1, 9, 2, 3], dtype=int32)
    """
    if axis is None:
        arr, axis = shaping.ravel(arr), 0
    arr = as_value(arr)
    axis = canonical_axis("insert", axis, arr.ndim)
    if isinstance(obj, Tracer):
        raise ConcretizationTypeError(
            at_user_line("insert: the positions decide the order, so they must be known while tracing")
            + setting_of(obj)
        )
    n = arr.shape[axis]
    where = np.arange(n)[obj] if isinstance(obj, slice) else np.asarray(obj)
    single = where.ndim == 0
    where = where.reshape(-1)
    if where.size and (where.min() < -n or where.max() > n):
        raise ValueError(at_user_line(f"insert: position {where} is out of bounds for axis {axis} of size {n}"))
    values = asarray(values, arr.dtype)
    if single:  # one position takes all values along the axis
        values = shaping.reshape(values, (1,) * (arr.ndim - values.ndim) + values.shape)
        values = shaping.moveaxis(values, 0, axis)
        where = np.repeat(where, values.shape[axis])
    shape = tuple(where.size if i == axis else m for i, m in enumerate(arr.shape))
    values = shaping.broadcast_to(values, shape)
    where = np.where(where < 0, where + n, where)
    order = np.argsort(where, kind="stable")
    new = np.empty(where.size, np.int64)
    new[order] = where[order] + np.arange(where.size)
    source = np.empty(n + where.size, np.int32)
    mask = np.ones(source.size, bool)
    mask[new] = False
    source[mask], source[new] = np.arange(n), n + np.arange(where.size)
    return take(shaping.concatenate([arr, values], axis), source, axis, mode="clip")


def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """For each element of ``a`` the element of ``choices[a]`` at its place; everything broadcasts.

    ``mode`` for an ``a`` out of bounds: 'raise' (not possible while tracing), 'clip' or 'wrap'.

    >>> choose(np.int32([1, 0]), [np.int32([1, 2]), np.int32([3, 4])])
    Array([3, 2], dtype=int32)
    """
    index = asarray(a)
    if not dtypes.is_integer(index.dtype):
        raise DTypeError(at_user_line(f"choose: the choice must be integers, not {index.dtype}"))
    items = list(choices)
    if mode == "raise":
        if isinstance(index, Tracer):
            raise ConcretizationTypeError(
                at_user_line("choose: mode='raise' cannot look at traced values; use 'clip' or 'wrap'")
            )
        seen = np.asarray(index)
        if seen.size and (seen.min() < 0 or seen.max() >= len(items)):
            raise ValueError(at_user_line(f"choose: an index is out of the bounds of {len(items)} choices"))
    elif mode not in ("clip", "wrap"):
        raise ValueError(at_user_line(f"choose: mode must be 'raise', 'clip' or 'wrap', not {mode!r}"))
    index = division.remainder(index, len(items)) if mode == "wrap" else binary.clip(index, 0, len(items) - 1)
    index, *items = shaping.broadcast_arrays(index, *promote_dtypes("choose", *items))
    result = items[0]
    for k, item in enumerate(items[1:], 1):
        result = lax.select_n(lax.eq(index, index.dtype.type(k)), result, item)
    return result


def block(arrays: Any) -> Array:
    """Nested lists of blocks put together: the innermost along the last axis, the next along the one before it.

    >>> block([[np.int32([1]), np.int32([2])], [np.int32([3]), np.int32([4])]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """

    def depth(x: Any) -> int:
        if not isinstance(x, list):
            return 0
        if not x:
            raise ValueError(at_user_line("block: a list is empty"))
        depths = {depth(item) for item in x}
        if len(depths) > 1:
            raise ValueError(at_user_line("block: the lists are not nested equally deep"))
        return 1 + depths.pop()

    def leaves(x: Any) -> list[Any]:
        return [leaf for item in x for leaf in leaves(item)] if isinstance(x, list) else [x]

    levels, promoted = depth(arrays), promote_dtypes("block", *leaves(arrays))
    ndim, blocks = max(levels, *map(shaping.ndim, promoted), 0), iter(promoted)

    def join(x: Any, level: int) -> Array:
        if not isinstance(x, list):
            x = next(blocks)
            return shaping.reshape(x, (1,) * (ndim - shaping.ndim(x)) + shaping.shape(x))
        return shaping.concatenate([join(item, level + 1) for item in x], axis=level - levels)

    return join(arrays, 0)


def resize(a: ArrayLike, new_shape: Any) -> Array:
    """The elements in row-major order, over again as needed, in a new shape.

    >>> resize(np.int32([1, 2, 3]), (2, 2))
    Array([[1, 2],
           [3, 1]], dtype=int32)
    """
    shape, flat = as_shape("resize", new_shape), shaping.ravel(a)
    count = int(np.prod(shape, dtype=np.int64))
    if not count or not flat.shape[0]:
        return lax.full(shape, 0, flat.dtype)
    return shaping.reshape(_as_many(flat, count), shape)


# -- bits --------------------------------------------------------------------------------------------------------------


def _weights(name: str, bitorder: str) -> np.ndarray:
    if bitorder not in ("big", "little"):
        raise ValueError(at_user_line(f"{name}: bitorder must be 'big' or 'little', not {bitorder!r}"))
    places = np.arange(8, dtype=np.uint8)
    return places[::-1].copy() if bitorder == "big" else places


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Eight elements each (nonzero is 1) along ``axis`` as the bits of a uint8; zeros fill up the last one.

    >>> packbits(np.int32([1, 0, 1]))
    Array([160], dtype=uint8)
    """
    x = asarray(a)
    if not (dtypes.is_integer(x.dtype) or x.dtype == dtypes.bool_):
        raise DTypeError(at_user_line(f"packbits: needs integers or booleans, not {x.dtype}"))
    if axis is None:
        x, axis = shaping.ravel(x), 0
    shifts = _weights("packbits", bitorder)
    axis = canonical_axis("packbits", axis, x.ndim)
    bits = shaping.moveaxis(convert(to_bool("packbits", x), dtypes.uint8), axis, -1)
    short = -bits.shape[-1] % 8
    if short:
        bits = lax.pad(bits, np.uint8(0), ((0, 0, 0),) * (bits.ndim - 1) + ((0, short, 0),))
    octets = shaping.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return shaping.moveaxis(_sum(binary.left_shift(octets, shifts), -1, dtype=dtypes.uint8), -1, axis)


def unpackbits(a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """The bits of uint8 elements along ``axis``, one a uint8; ``count`` of them, or so many less if it is negative.

    >>> unpackbits(np.uint8([160]), count=3)
    Array([1, 0, 1], dtype=uint8)
    """
    x = asarray(a)
    if x.dtype != dtypes.uint8:
        raise DTypeError(at_user_line(f"unpackbits: needs uint8, not {x.dtype}"))
    if axis is None:
        x, axis = shaping.ravel(x), 0
    shifts = _weights("unpackbits", bitorder)
    axis = canonical_axis("unpackbits", axis, x.ndim)
    octets = shaping.expand_dims(shaping.moveaxis(x, axis, -1), -1)
    bits = binary.bitwise_and(binary.right_shift(octets, shifts), np.uint8(1))
    size = bits.shape[-2] * 8
    bits = shaping.reshape(bits, (*bits.shape[:-2], size))
    if count is not None:
        kept = size + count if count < 0 else count
        if kept > size:
            bits = lax.pad(bits, np.uint8(0), ((0, 0, 0),) * (bits.ndim - 1) + ((0, kept - size, 0),))
        bits = lax.slice_in_dim(bits, 0, max(kept, 0), axis=bits.ndim - 1)
    return shaping.moveaxis(bits, -1, axis)
