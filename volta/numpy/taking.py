"""Choosing elements by position or by condition: take, where, nonzero, repeat."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.indexing import as_positions, constant_positions, wrapped_positions
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast_array,
    canonical_axis,
    convert,
)
from volta.numpy.reductions import sum as _sum
from volta.numpy.scans import cumsum
from volta.numpy.ufuncs import to_bool
from volta.ops import lax
from volta.trace.tracer import setting_of

_MODES = {None: "fill", "fill": "fill", "clip": "clip", "wrap": "clip", "promise_in_bounds": "clip"}


def take_mode(name: str, mode: str | None) -> str:
    if mode not in _MODES:
        raise ValueError(at_user_line(f"{name}: mode must be 'fill' (the default), 'clip' or 'wrap', not {mode!r}"))
    return _MODES[mode]


def normal_indices(name: str, indices: Any, size: int, mode: str | None) -> Any:
    """Integer positions counted from the front; 'wrap' goes around, 'clip' takes negative ones as 0."""
    dtype = aval_of(name, indices).dtype
    if not dtypes.is_integer(dtype):
        raise DTypeError(at_user_line(f"{name}: indices must be integers, not {dtype}"))
    if not isinstance(indices, Array):
        known = np.asarray(indices)
        if mode == "wrap":
            known = np.mod(known if known.dtype == np.uint64 else known.astype(np.int64), size)
        elif mode == "clip":
            known = np.maximum(known, 0)
        return constant_positions(known, size)
    if mode == "wrap":
        return wrapped_positions(indices, size)
    index = as_positions(indices, size)
    if mode == "clip" or dtypes.is_unsigned(dtype):
        return index
    return lax.select_n(lax.lt(index, index.dtype.type(0)), index, lax.add(index, index.dtype.type(size)))


def filled(name: str, taken: Array, inside: Any, fill_value: Any) -> Array:
    if fill_value is None:
        return taken
    shape = aval_of(name, taken).shape
    return lax.select_n(broadcast_array(inside, shape), convert(fill_value, aval_of(name, taken).dtype), taken)


def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """The elements at ``indices`` along ``axis`` (None: of the flat array); negative indices count from the end.

    Indices out of bounds give NaN (integers: the smallest value) or ``fill_value``; with mode 'clip' the nearest
    element, with mode 'wrap' they go around.

    >>> volta.numpy.take(volta.numpy.array([10, 20, 30]), volta.numpy.array([2, 0]))
    Array([30, 10], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError(at_user_line("take: arrays are immutable, so there is no `out`"))
    a = as_value(a)
    if axis is None:
        a, axis = shaping.ravel(a), 0
    axis = canonical_axis("take", axis, a.ndim)
    n = a.shape[axis]
    index = normal_indices("take", indices, n, mode)
    if n == 0 and np.prod(aval_of("take", index).shape):
        raise ShapeError(at_user_line(f"take: axis {axis} of shape {a.shape} is empty"))
    taken = lax.gather(a, [index], axes=(axis,), mode=take_mode("take", mode))
    k = aval_of("take", index).ndim
    order = tuple(range(k, k + axis)) + tuple(range(k)) + tuple(range(k + axis, taken.ndim))
    taken = shaping.transpose(taken, order)
    if fill_value is None or mode in ("clip", "wrap"):
        return taken
    inside = binary.logical_and(binary.greater_equal(index, 0), binary.less(index, n))
    inside = lax.broadcast_in_dim(inside, taken.shape, tuple(range(axis, axis + k)))
    return filled("take", taken, inside, fill_value)


# -- by condition ------------------------------------------------------------------------------------------------------


@overload
def where(
    condition: ArrayLike, x: None = None, y: None = None, *, size: int | None = None, fill_value: Any = None
) -> tuple[Array, ...]: ...
@overload
def where(
    condition: ArrayLike, x: ArrayLike, y: ArrayLike, *, size: int | None = None, fill_value: Any = None
) -> Array: ...
def where(
    condition: ArrayLike, x: Any = None, y: Any = None, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """``x`` where ``condition``, else ``y``; broadcast. With ``condition`` alone: :func:`nonzero`.

    >>> volta.numpy.where(volta.numpy.array([True, False]), 1.0, 0.0)
    Array([1., 0.], dtype=float32, weak_type=True)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ValueError(at_user_line("where: give both x and y, or neither"))
    return as_value(binary.where_three(condition, x, y))


def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """The positions of the nonzero elements, one int32 array an axis, in row-major order.

    Under a transform the count is unknown, so ``size`` must be given: fewer are filled up with ``fill_value`` (0), and
    more are cut off.
    """
    aval = aval_of("nonzero", a)
    if size is None:
        if isinstance(a, Tracer):
            raise ConcretizationTypeError(
                at_user_line(
                    "nonzero: how many elements are nonzero is not known while tracing, so the result has no shape "
                    f"({aval.short()}). Give a bound: size=n, or keep the shape with where(condition, x, y)."
                )
            )
        return tuple(as_value(v.astype(np.int32)) for v in np.nonzero(np.asarray(a)))
    if aval.ndim == 0:
        raise ShapeError(at_user_line("nonzero: a scalar has no axes; use atleast_1d"))
    mask = shaping.ravel(to_bool("nonzero", a))
    found = cumsum(lax.convert_element_type(mask, dtypes.int32), 0)
    total = _sum(lax.convert_element_type(mask, dtypes.int32))
    # element i of the result is the number of places at which fewer than i + 1 elements have been found
    flat = searchsorted_positions(found, size)
    missing = lax.ge(lax.iota(dtypes.int32, size), total)
    out, fills = [], fill_value if isinstance(fill_value, tuple) else (fill_value,) * aval.ndim
    for axis in range(aval.ndim):
        stride = int(np.prod(aval.shape[axis + 1 :]))
        position = lax.div(flat, np.int32(builtins.max(stride, 1)))
        if axis:
            position = lax.rem(position, np.int32(builtins.max(aval.shape[axis], 1)))
        out.append(lax.select_n(missing, position, convert(0 if fills[axis] is None else fills[axis], dtypes.int32)))
    return tuple(out)


def searchsorted_positions(found: ArrayLike, size: int) -> Array:
    """Where the running count ``found`` first reaches 1, 2, …, ``size``."""
    slot = lax.sub(found, np.int32(1))
    n = found.shape[0]
    # each nonzero element writes its position to its slot; the first writer of a slot is the minimum
    start = lax.full((size,), n, dtypes.int32)
    index = lax.select_n(lax.lt(slot, np.int32(0)), slot, np.int32(size))
    return lax.scatter(start, lax.iota(dtypes.int32, n), [index], axes=(0,), mode="drop", op="min")


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The positions of the nonzero elements of the flat array."""
    return nonzero(shaping.ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The positions of the nonzero elements, one row each."""
    if not aval_of("argwhere", a).ndim:  # as in NumPy: the one position of a scalar has no coordinates
        return lax.full((nonzero(shaping.ravel(a), size=size)[0].shape[0], 0), 0, dtypes.int32)
    return shaping.stack(nonzero(a, size=size, fill_value=fill_value), axis=1)


def compress(
    condition: ArrayLike, a: ArrayLike, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Array:
    """The slices of ``a`` along ``axis`` (None: the elements of the flat array) where the vector ``condition`` is true.

    While ``condition`` is traced ``size`` must be given: what is missing is ``fill_value``.

    >>> compress(np.array([True, False, True]), np.int32([7, 8, 9]))
    Array([7, 9], dtype=int32)
    """
    a = shaping.ravel(a) if axis is None else as_value(a)
    axis = 0 if axis is None else canonical_axis("compress", axis, a.ndim)
    mask = as_value(np.asarray(condition)) if isinstance(condition, (list, tuple)) else condition
    shape = aval_of("compress", mask).shape
    if len(shape) != 1 or shape[0] > a.shape[axis] and np.asarray(mask)[a.shape[axis] :].any():
        raise ShapeError(at_user_line(f"compress: a condition of shape {shape} for axis {axis} of shape {a.shape}"))
    places = nonzero(mask, size=size, fill_value=a.shape[axis])[0]
    if size is None:
        return take(a, np.asarray(places), axis)
    return take(a, places, axis, fill_value=fill_value)


def extract(condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: Any = 0) -> Array:
    """The elements of ``arr`` where ``condition`` is true. While it is traced ``size`` must be given.

    >>> extract(np.array([True, False, True]), np.int32([7, 8, 9]))
    Array([7, 9], dtype=int32)
    """
    return compress(shaping.ravel(condition), arr, size=size, fill_value=fill_value)


# -- repeating and leaving out ----------------------------------------------------------------------------------------


def repeat(a: ArrayLike, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Array:
    """Each element ``repeats`` times along ``axis`` (None: of the flat array); ``repeats`` may be one number each."""
    if axis is None:
        a, axis = shaping.ravel(a), 0
    old = aval_of("repeat", a).shape
    axis = canonical_axis("repeat", axis, len(old))
    if total_repeat_length is not None and (isinstance(repeats, Tracer) or np.size(repeats) != 1):
        return _repeat_to(a, as_value(repeats), axis, total_repeat_length)
    if isinstance(repeats, Tracer):
        raise ConcretizationTypeError(
            at_user_line(
                "repeat: the repeats decide the shape, so they must be known while tracing; give total_repeat_length"
            )
        )
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "biu" or (counts < 0).any():
        raise ShapeError(at_user_line(f"repeat: repeats are integers of at least 0, not {repeats!r:.80}"))
    if counts.size == 1 and total_repeat_length is None:
        count = int(counts.reshape(()))
        wide = old[: axis + 1] + (count,) + old[axis + 1 :]
        places = tuple(i for i in range(len(wide)) if i != axis + 1)
        return shaping.reshape(
            lax.broadcast_in_dim(a, wide, places), old[:axis] + (old[axis] * count,) + old[axis + 1 :]
        )
    index = np.repeat(np.arange(old[axis], dtype=np.int32), counts)
    if total_repeat_length is not None:
        index = np.pad(index, (0, builtins.max(0, total_repeat_length - index.size)), mode="edge")[:total_repeat_length]
    return take(a, index, axis, mode="clip")


def _repeat_to(a: Array, repeats: Array, axis: int, length: int) -> Array:
    """:func:`repeat` to a fixed length: what is too much is cut off, and the last element fills up."""
    n = shaping.shape(a)[axis]
    counts = shaping.broadcast_to(convert(repeats, dtypes.int32), (n,))
    ends = cumsum(counts, 0)
    # place p shows the element after as many as end at or before p
    marks = lax.scatter(
        lax.full((length,), 0, dtypes.int32), lax.full((n,), 1, dtypes.int32), [ends], axes=(0,), mode="drop", op="add"
    )
    return take(a, cumsum(marks, 0), axis, mode="clip")


def roll(a: ArrayLike, shift: Any, axis: int | Sequence[int] | None = None) -> Array:
    """The elements moved ``shift`` places along ``axis`` (None: of the flat array), around the end.

    A shift may be a traced number; ``shift`` and ``axis`` may be sequences of one length.

    >>> roll(np.int32([1, 2, 3]), 1)
    Array([3, 1, 2], dtype=int32)
    """
    if axis is None:
        return shaping.reshape(roll(shaping.ravel(a), shift, 0), shaping.shape(a))
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    shifts = _shifts(shift, len(axes))
    out = as_value(a)
    for by, place in zip(shifts, axes, strict=True):
        place = canonical_axis("roll", place, out.ndim)
        n = out.shape[place]
        if not n:
            continue
        if isinstance(by, Tracer):
            moved = wrapped_positions(by, n)
            index = wrapped_positions(lax.sub(lax.iota(moved.dtype, n), moved), n)
            out = take(out, index, place, mode="clip")
        elif cut := -int(by) % n:
            out = shaping.concatenate(shaping.array_split(out, [cut], place)[::-1], place)
    return out


def _shifts(shift: Any, count: int) -> list[Any]:
    """One shift an axis, each a number or a traced scalar."""
    if isinstance(shift, Tracer):
        aval = shift.aval
        if not dtypes.is_integer(aval.dtype) or aval.ndim > 1 or aval.shape not in ((), (1,), (count,)):
            raise ShapeError(at_user_line(f"roll: the shift must be an integer, or one an axis, got {aval.short()}"))
        one = aval.size == 1
        flat = shaping.ravel(shift)
        return [lax.index_in_dim(flat, 0 if one else i, keepdims=False) for i in range(count)]
    shifts = list(shift) if isinstance(shift, (tuple, list)) else np.asarray(shift).reshape(-1).tolist()
    if len(shifts) not in (1, count):
        raise ShapeError(at_user_line(f"roll: {len(shifts)} shifts for {count} axes"))
    return shifts * count if len(shifts) == 1 else shifts


def delete(arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """A copy without the elements at the static positions ``obj`` along ``axis``.

    With ``assume_unique_indices`` positions may be traced: none comes twice, so that their number says how many go.

    >>> volta.jit(lambda i: delete(np.int32([4, 5, 6]), i, assume_unique_indices=True))(np.int32([-1]))
    Array([4, 5], dtype=int32)
    """
    if axis is None:
        arr, axis = shaping.ravel(arr), 0
    axis = canonical_axis("delete", axis, aval_of("delete", arr).ndim)
    if isinstance(obj, Tracer) and assume_unique_indices:
        n, gone = shaping.shape(arr)[axis], shaping.ravel(obj)
        gone = lax.sort(binary.where_three(binary.less(gone, 0), binary.add(gone, n), gone), 0)
        # the k-th that goes stands before what is left of the k-th place on
        places = lax.iota(gone.dtype, n - gone.shape[0])
        earlier = binary.less_equal(lax.sub(gone, lax.iota(gone.dtype, gone.shape[0])), shaping.expand_dims(places, 1))
        return take(arr, lax.add(places, _sum(earlier, 1, dtype=gone.dtype)), axis, mode="clip")
    if isinstance(obj, Tracer):
        raise ConcretizationTypeError(
            at_user_line("delete: the positions decide the shape, so they must be known while tracing")
            + setting_of(obj)
        )
    kept = np.delete(np.arange(shaping.shape(arr)[axis], dtype=np.int32), obj)
    return take(arr, kept, axis, mode="clip")
