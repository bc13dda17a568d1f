"""Indexing: what ``x[index]`` means, in two steps.

1. :func:`parse` reads an index into a :class:`Plan`: for every axis of the operand either a static slice or an array of
   positions, and where the result's axes go.
2. A static part becomes slice and reverse; the arrays become one gather. Both steps serve updates too (``updates.py``).

Indices may be ints, slices, None, Ellipsis, integer arrays (traced or not), boolean masks (not traced), and tuples of
them, with NumPy's meaning. A traced or array index out of bounds is clamped; a Python int out of bounds is an error.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError, DTypeError, NonConcreteBooleanIndexError, ShapeError
from volta.core.interp import Tracer
from volta.core.recent import Recent
from volta.core.source import at_user_line
from volta.numpy import division, stretches
from volta.numpy.promotion import as_value, broadcast_array, broadcast_shapes_of, convert
from volta.ops import lax


@attrs.frozen
class Cut:
    """A static slice of one axis, normalised: ``step`` is positive, ``reverse`` says that the result runs backwards."""

    start: int
    stop: int
    step: int
    reverse: bool

    @property
    def size(self) -> int:
        return max(0, -(-(self.stop - self.start) // self.step))


@attrs.frozen(eq=False)
class Plan:
    """A parsed index of an operand of shape ``shape``."""

    shape: tuple[int, ...]
    cuts: tuple[Cut, ...]  # one an axis; axes with an index array are not cut
    dropped: tuple[int, ...]  # axes that a static int selected from: cut to size 1, absent from the result
    axes: tuple[int, ...]  # axes with an index array, ascending
    indices: tuple[Any, ...]  # their arrays, of one shape and dtype, not negative
    index_shape: tuple[int, ...]
    result: tuple[int, ...]  # the result's shape
    place: int  # where the index arrays' axes stand among the axes before None is put in
    whole: bool  # whether the static part selects everything in order

    @property
    def is_static(self) -> bool:
        return not self.axes

    @property
    def kept(self) -> tuple[int, ...]:
        """The sizes after the static part, with dropped axes still there as 1."""
        return tuple(c.size for c in self.cuts)

    @property
    def window(self) -> tuple[int, ...]:
        """The sizes of the axes that pass through the gather."""
        return tuple(c.size for i, c in enumerate(self.cuts) if i not in self.axes and i not in self.dropped)


@attrs.frozen(eq=False)
class MaskPart:
    """The positions that a mask selects along one of the axes it covers, and that axis's length."""

    positions: np.ndarray
    length: int


def _is_bool(item: Any) -> bool:
    return isinstance(item, (bool, np.bool_)) or (isinstance(item, (Array, np.ndarray)) and item.dtype == dtypes.bool_)


def _as_array(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        if any(isinstance(v, Array) for v in item):
            raise DTypeError(at_user_line("a list with arrays in it is no index; stack them first: volta.numpy.stack"))
        item = np.asarray(item)
        return item.astype(np.int32) if item.size == 0 else item
    return item


def _expand_mask(mask: Any) -> list[MaskPart]:
    """A boolean mask as arrays of positions, one for each axis that it covers."""
    if isinstance(mask, Tracer):
        raise NonConcreteBooleanIndexError(
            at_user_line(
                "a traced boolean mask cannot index an array: how many elements it selects, and so the result's shape, "
                f"is not known while tracing ({mask.aval.short()}). Keep the shape and select: "
                "volta.numpy.where(mask, x, 0) and reductions with where=mask; or bound the count: "
                "volta.numpy.nonzero(mask, size=n); to update, x.at[mask].set(scalar) works."
            )
        )
    mask = np.asarray(mask)
    if mask.ndim == 0:
        raise DTypeError(at_user_line("True and False are indices of updates by themselves only: volta.numpy.where"))
    return [MaskPart(v, n) for v, n in zip(np.nonzero(mask), mask.shape, strict=True)]


def _cut(item: slice, size: int) -> Cut:
    if any(isinstance(v, Tracer) for v in (item.start, item.stop, item.step)):
        raise ConcretizationTypeError(
            at_user_line(
                "a slice bound is a traced value, so the result's shape is not known while tracing. Use "
                "volta.lax.dynamic_slice(x, starts, sizes) with static sizes, or mask with volta.numpy.where."
            )
        )
    start, stop, step = item.indices(size)
    count = len(range(start, stop, step))
    if step > 0:
        return Cut(start, start + (count - 1) * step + 1 if count else start, step, False)
    last = start + (count - 1) * step
    return Cut(last, start + 1, -step, count > 1) if count else Cut(0, 0, 1, False)


def _flatten(index: Any, ndim: int) -> list[Any]:
    """The index as a list with masks expanded and the Ellipsis replaced by full slices."""
    items: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        item = _as_array(item)
        if _is_bool(item):
            items.extend(_expand_mask(item))
        else:
            items.append(item)
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError(at_user_line("an index can have one Ellipsis ('...') only"))
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > ndim:
        raise IndexError(at_user_line(f"too many indices: the array has {ndim} dimensions, the index names {used}"))
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    return items[:at] + [slice(None)] * (ndim - used) + items[at + 1 :]


def _normalised(item: Any, size: int) -> Any:
    """An index array of int32 (int64 where it is wide) with negative positions counted from the end."""
    if not isinstance(item, Array):
        item = np.asarray(item)
        if not np.issubdtype(item.dtype, np.integer):
            raise DTypeError(at_user_line(f"index arrays must be integers or booleans, not {item.dtype}"))
        return constant_positions(item, size)
    if not dtypes.is_integer(item.dtype):
        raise DTypeError(
            at_user_line(f"index arrays must be integers or booleans, not {item.aval.short()}; use x.astype('int32')")
        )
    signed = dtypes.is_signed(item.dtype)
    item = as_positions(item, size)
    if signed:
        item = lax.select_n(lax.lt(item, item.dtype.type(0)), item, lax.add(item, item.dtype.type(size)))
    return item


def position_dtype(dtype: np.dtype, size: int) -> np.dtype:
    """The dtype in which positions of ``dtype`` along an axis of ``size`` never wrap around."""
    return dtypes.int64 if size > 2**31 - 1 or dtype in (dtypes.int64, dtypes.uint64, dtypes.uint32) else dtypes.int32


def as_positions(item: Array, size: int) -> Array:
    """Integers in :func:`position_dtype`; one beyond int64 becomes its greatest, which is as far out of bounds."""
    if item.dtype == dtypes.uint64:
        item = lax.min(item, np.uint64(2**63 - 1))
    return convert(item, position_dtype(item.dtype, size))


def wrapped_positions(item: Array, size: int) -> Array:
    """Integers modulo ``size``, in :func:`position_dtype`."""
    if item.dtype == dtypes.uint64:
        return convert(division.remainder(item, size), position_dtype(item.dtype, size))
    return division.remainder(as_positions(item, size), size)


def constant_positions(item: np.ndarray, size: int) -> np.ndarray:
    """Known positions, normalised now; those out of bounds become -1 or ``size``, so that a small dtype holds them."""
    wide = item.astype(np.int64) if item.dtype != np.uint64 else np.minimum(item, np.uint64(size)).astype(np.int64)
    return np.clip(np.where(wide < 0, wide + size, wide), -1, size).astype(position_dtype(dtypes.int32, size))


def _static_key(index: Any) -> Any:
    """``index`` as a hashable key when it is made of ints, slices of ints, None and Ellipsis alone; else None."""
    key: list[Any] = []
    for item in index if type(index) is tuple else (index,):
        if type(item) is slice:
            bounds = (item.start, item.stop, item.step)
            if any(b is not None and type(b) is not int for b in bounds):
                return None
            key.append(bounds)
        elif type(item) is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


_plans: Recent[Any, Plan] = Recent(2048)


def parse(shape: tuple[int, ...], index: Any, open_bounds: bool = False) -> Plan:
    """Read ``index`` for an operand of shape ``shape``; see the module's docstring. Static ones are remembered.

    With ``open_bounds`` a Python int out of bounds is no error but an index array, for the caller's mode to judge.
    """
    key = _static_key(index)
    if key is None:
        return _parse(shape, index, open_bounds)
    plan = _plans.get((shape, key, open_bounds))
    if plan is None:
        plan = _plans.find((shape, key, open_bounds))
    if plan is None:
        plan = _plans.keep((shape, key, open_bounds), _parse(shape, index, open_bounds))
    return plan


def _parse(shape: tuple[int, ...], index: Any, open_bounds: bool) -> Plan:
    items = _flatten(index, len(shape))
    cuts: list[Cut] = []
    dropped: list[int] = []
    arrays: dict[int, Any] = {}
    advanced: list[int] = []  # places in `items` that count as advanced when there is an array
    layout: list[str] = []  # per item: 'new', 'slice', 'int', 'array'
    for place, item in enumerate(items):
        axis = len(cuts)
        if item is None:
            layout.append("new")
            continue
        size = shape[axis]
        number = isinstance(item, (int, np.integer)) or (isinstance(item, np.ndarray) and item.ndim == 0)
        if isinstance(item, slice):
            cuts.append(_cut(item, size))
            layout.append("slice")
        elif number and not (open_bounds and not -size <= item < size):
            position = _static_position(item, axis, shape)
            cuts.append(Cut(position, position + 1, 1, False))
            dropped.append(axis)
            advanced.append(place)
            layout.append("int")
        elif number or isinstance(item, (Array, np.ndarray, MaskPart)):
            if isinstance(item, MaskPart) and item.length not in (size, 0):  # an empty mask selects nothing
                raise IndexError(at_user_line(f"a mask of length {item.length} meets axis {axis} of size {size}"))
            cuts.append(Cut(0, size, 1, False))
            arrays[axis] = item.positions if isinstance(item, MaskPart) else item
            advanced.append(place)
            layout.append("array")
        else:
            raise DTypeError(
                at_user_line(
                    f"cannot index with {type(item).__name__} {item!r:.60}: use ints, slices, None, ..., arrays"
                )
            )
    return _finish(shape, cuts, dropped, arrays, advanced, layout)


def _static_position(item: Any, axis: int, shape: tuple[int, ...]) -> int:
    if not isinstance(item, int) and not np.issubdtype(np.asarray(item).dtype, np.integer):
        raise DTypeError(at_user_line(f"an index must be an integer, not {np.asarray(item).dtype}"))
    position, size = int(item), shape[axis]
    if not -size <= position < size:
        raise IndexError(
            at_user_line(f"index {position} is out of bounds for axis {axis} of size {size} (array of shape {shape})")
        )
    return position + size if position < 0 else position


def _finish(shape: Any, cuts: Any, dropped: Any, arrays: dict[int, Any], advanced: Any, layout: Any) -> Plan:
    indices = [_normalised(arrays[a], shape[a]) for a in arrays]
    index_shape = broadcast_shapes_of(
        "index arrays", [np.shape(v) if not isinstance(v, Array) else v.shape for v in indices]
    )
    if len({np.dtype(v.dtype) for v in indices}) > 1:
        indices = [convert(v, dtypes.int64) for v in indices]
    indices = [_spread(v, index_shape) for v in indices]
    # NumPy: the arrays' axes stand where the arrays stood, or in front when a slice or None parts them
    together = bool(advanced) and advanced[-1] - advanced[0] + 1 == len(advanced)
    first = advanced[0] if arrays and together else 0
    result: list[int] = []
    sizes = iter([c.size for c in cuts])
    for k, kind in enumerate(layout):
        if arrays and k == first:
            result.extend(index_shape)
        if kind == "new":
            result.append(1)
            continue
        n = next(sizes)
        if kind == "slice":
            result.append(n)
    return Plan(
        shape,
        tuple(cuts),
        tuple(dropped),
        tuple(arrays),
        tuple(indices),
        index_shape,
        tuple(result),
        layout[:first].count("slice"),
        all(c == Cut(0, n, 1, False) for c, n in zip(cuts, shape, strict=True)),
    )


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    if not isinstance(x, Array):
        return np.broadcast_to(x, shape)
    return broadcast_array(x, shape)


# -- reading -----------------------------------------------------------------------------------------------------------


def take_static(x: ArrayLike, plan: Plan) -> Array:
    """The static part of an index: slices, then reversals. Dropped axes stay as size 1."""
    if not plan.whole:
        starts = tuple(c.start for c in plan.cuts)
        stops = tuple(c.stop for c in plan.cuts)
        steps = tuple(c.step for c in plan.cuts)
        if starts != (0,) * len(starts) or stops != plan.shape or any(s != 1 for s in steps):
            x = lax.slice(x, starts, stops, None if all(s == 1 for s in steps) else steps)
        backwards = tuple(i for i, c in enumerate(plan.cuts) if c.reverse)
        x = lax.rev(x, backwards) if backwards else x
    return x


def reshaped(x: ArrayLike, shape: tuple[int, ...]) -> Array:
    return x if tuple(np.shape(x) if not isinstance(x, Array) else x.shape) == shape else lax.reshape(x, shape)


def shifted_axes(plan: Plan) -> tuple[int, ...]:
    """The indexed axes, counted after the dropped axes are gone."""
    return tuple(a - sum(d < a for d in plan.dropped) for a in plan.axes)


def without_dropped(plan: Plan) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(plan.kept) if i not in plan.dropped)


def gather_order(plan: Plan) -> tuple[int, ...]:
    """The permutation from the gather's axes (index axes in front) to the result's."""
    n, w = len(plan.index_shape), len(plan.window)
    return tuple(range(n, n + plan.place)) + tuple(range(n)) + tuple(range(n + plan.place, n + w))


def is_truth(item: Any) -> bool:
    return isinstance(item, bool) or (_is_bool(item) and not item.ndim)


def _truths_as_axes(x: Array, index: Any) -> tuple[Array, Any]:
    """True and False as indices: a new axis each, of which all is taken or nothing."""
    items = list(index) if isinstance(index, tuple) else [index]
    places = [i for i, item in enumerate(items) if is_truth(item)]
    if not places:
        return x, index
    items = [_as_array(item) for item in items]
    axes = [
        0 if item is None else np.ndim(item) if _is_bool(item) and i not in places else 1
        for i, item in enumerate(items)
    ]
    end = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    for i in reversed(places):
        if isinstance(items[i], Tracer):
            _expand_mask(items[i])  # which says that it cannot be
        axis = sum(axes[j] for j in range(i) if j not in places) if i < end else x.ndim - sum(axes[i + 1 :])
        x = reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:]))
        items[i] = np.zeros(1 if items[i] else 0, np.int32)
    return x, tuple(items)


def getitem(x: ArrayLike, index: Any, mode: str | None = None) -> Array:
    """``x[index]``. Positions out of bounds: ``mode`` 'clip' clamps them, 'fill' gives NaN, 'zero' 0.

    Without a mode they are clamped, but a Python int out of bounds is an error.
    """
    boxed = stretches.box(x := as_value(x), index)
    x, index = _truths_as_axes(x, index) if boxed is None else (boxed.part, boxed.rest)
    plan = parse(x.shape, index, mode is not None)
    x = take_static(x, plan)
    if plan.is_static:
        return reshaped(x, plan.result)
    check_sizes(plan)
    x = reshaped(x, without_dropped(plan))
    out = lax.gather(x, plan.indices, axes=shifted_axes(plan), batch_dims=0, mode=mode or "clip")
    order = gather_order(plan)
    if order != tuple(range(len(order))):
        out = lax.transpose(out, order)
    return reshaped(out, plan.result)


def check_sizes(plan: Plan) -> None:
    """An array index into an empty axis selects nothing that exists."""
    if math.prod(plan.index_shape) and any(plan.shape[a] == 0 for a in plan.axes):
        raise ShapeError(at_user_line(f"cannot take elements from an empty axis (shape {plan.shape})"))
