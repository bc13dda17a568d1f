"""Boxes at positions known only at run time: dynamic_slice and dynamic_update_slice."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import Shape, ShapedArray
from volta.core.interp import bind, get_aval
from volta.ops import base
from volta.ops.arithmetic import add, clamp, lt
from volta.ops.assembly import broadcasted_iota
from volta.ops.base import canonical_axis, canonical_ints, dtype_error, shape_error, shape_of
from volta.ops.indexing import gather, scatter
from volta.ops.primitive import Family, Linear, Primitive, Zero, register
from volta.ops.selection import select
from volta.ops.shaping import squeeze

__all__ = [
    "dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_update_index_in_dim",
    "dynamic_update_slice", "dynamic_update_slice_in_dim",
]  # fmt: skip


def _check_starts(name: str, avals: Sequence[ShapedArray], ndim: int, starts: Sequence[ShapedArray]) -> None:
    if len(starts) != ndim:
        raise shape_error(name, avals, f"needs one start index an axis ({ndim}), got {len(starts)}")
    if any(s.shape != () for s in starts):
        raise shape_error(name, avals, "start indices must be rank 0")
    if not all(dtypes.is_integer(s.dtype) for s in starts):
        raise dtype_error(name, avals, "start indices must be integers")


def _starts(starts: Any, shape: Shape) -> list[Any]:
    """Start indices ready to bind: rank-0 integers, counted from the front of ``shape``'s axes."""
    if found := getattr(starts, "shape", None):  # one array of all the starts
        starts = [squeeze(_element(starts, i), (0,)) for i in range(found[0])]
    return [_from_front(s, n) for s, n in zip_longest(starts, shape[: len(starts)], fillvalue=0)]


def _from_front(start: Any, size: int) -> Any:
    """A start below 0 counts from the end; one that stays below 0 is moved inside later, as any other."""
    narrow = dtypes.int32 if size <= dtypes.iinfo(dtypes.int32).max else dtypes.int64
    if isinstance(start, (int, np.integer)) and not isinstance(start, bool):
        position = int(start) + (size if start < 0 else 0)
        return narrow.type(builtins.max(-1, builtins.min(position, size)))
    dtype = get_aval(start).dtype
    if not dtypes.is_signed(dtype):
        return start  # an unsigned one, or what `bind` refuses
    if size > dtypes.iinfo(dtype).max:
        start, dtype = base.bind_named("convert_element_type", start, new_dtype=narrow, weak_type=False), narrow
    return select(lt(start, dtype.type(0)), add(start, dtype.type(size)), start)


def _element(x: Any, i: int) -> Any:
    return base.bind_named("slice", x, start_indices=(i,), limit_indices=(i + 1,), strides=None)


def _box_indices(starts: Sequence[Any], dims: Sequence[int | None], size: int, shape: Shape, box: Shape) -> Any:
    """For starts of which some are mapped: the axes where the box is smaller than the array, and their index arrays.

    The index arrays have shape (size, *the box's sizes along those axes).
    """
    axes = tuple(a for a in range(len(shape)) if box[a] != shape[a])
    sizes = (size, *(box[a] for a in axes))
    indices = []
    for place, a in enumerate(axes):
        start = starts[a]
        dtype = base.dtype_of(start)
        if not shape[a] - box[a] <= dtypes.iinfo(dtype).max:
            start = base.bind_named("convert_element_type", start, new_dtype=dtypes.int64, weak_type=False)
            dtype = dtypes.int64
        start = clamp(dtype.type(0), start, dtype.type(shape[a] - box[a]))
        spread = base.broadcast_to(start, sizes, () if dims[a] is None else (0,))
        indices.append(add(spread, broadcasted_iota(dtype, sizes, place + 1)))
    return axes, indices


def _restored(ndim: int, axes: Sequence[int]) -> list[int]:
    """Where the box's axes are in (batch, indexed axes, remaining axes), in their own order after the batch axis."""
    rest = [d for d in range(ndim) if d not in axes]
    places = [*axes, *rest]
    return [0, *(places.index(d) + 1 for d in range(ndim))]


# -- dynamic_slice -----------------------------------------------------------------------------------------------------


def _slice_abstract(x: ShapedArray, *starts: ShapedArray, slice_sizes: Shape) -> ShapedArray:
    avals = (x, *starts)
    _check_starts("dynamic_slice", avals, x.ndim, starts)
    if len(slice_sizes) != x.ndim or not all(0 <= s <= n for s, n in zip(slice_sizes, x.shape, strict=False)):
        raise shape_error("dynamic_slice", avals, f"slice_sizes {slice_sizes} do not fit into the shape {x.shape}")
    return x.update(shape=slice_sizes)


def _slice_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = bind(dynamic_slice_p, *primals, **params)
    if isinstance(tangents[0], Zero):
        return out, base.zero_like(out)
    return out, bind(dynamic_slice_p, tangents[0], *primals[1:], **params)


def _slice_transpose(ct: Any, x: Any, *starts: Any, slice_sizes: Shape) -> list[Any]:
    none = [None] * len(starts)
    if isinstance(ct, Zero):
        return [None, *none]
    return [bind(dynamic_update_slice_p, base.zeros_of(x.aval), ct, *starts), *none]


def _slice_batch(args: Any, dims: Any, size: int, *, slice_sizes: Shape) -> tuple[Any, int]:
    x, *starts = args
    dim, *start_dims = dims
    if all(d is None for d in start_dims):
        starts = [*starts[:dim], np.int32(0), *starts[dim:]]
        sizes = (*slice_sizes[:dim], size, *slice_sizes[dim:])
        return bind(dynamic_slice_p, x, *starts, slice_sizes=sizes), dim
    shape = shape_of(x) if dim is None else shape_of(x)[:dim] + shape_of(x)[dim + 1 :]
    axes, indices = _box_indices(starts, start_dims, size, shape, slice_sizes)
    if not axes:
        return base.to_front(x, dim, size), 0
    if dim is None:
        out = gather(x, indices, axes, 0, "clip")
    else:
        out = gather(base.move_axis(x, dim, 0), indices, tuple(a + 1 for a in axes), 1, "clip")
    return base.permute(out, _restored(len(shape), axes)), 0


dynamic_slice_p = register(
    Primitive(
        "dynamic_slice",
        Family.MOVEMENT,
        _slice_abstract,
        _slice_jvp,
        _slice_batch,
        _slice_transpose,
        doc="A box of static sizes at a position known at run time, moved inside where it would leave the array.",
    )
)


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Any) -> Array:
    """The box of ``operand`` of sizes ``slice_sizes`` that begins at ``start_indices``.

    Args:
        operand: any array.
        start_indices: one rank-0 integer an axis; below 0 it counts from the end. Moved inside where the box would
            leave the array.
        slice_sizes: static sizes.

    >>> lax.dynamic_slice(np.arange(5), (np.int32(3),), (3,))
    Array([2, 3, 4], dtype=int64)
    >>> lax.dynamic_slice(np.arange(5), (-4,), (2,))
    Array([1, 2], dtype=int64)
    """
    sizes = canonical_ints("dynamic_slice", "slice_sizes", slice_sizes)
    return bind(dynamic_slice_p, operand, *_starts(start_indices, shape_of(operand)), slice_sizes=sizes)


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Array:
    """:func:`dynamic_slice` along one axis, whole in the others.

    >>> lax.dynamic_slice_in_dim(np.arange(5), np.int32(1), 2)
    Array([1, 2], dtype=int64)
    """
    shape = shape_of(operand)
    axis = canonical_axis("dynamic_slice_in_dim", axis, len(shape))
    starts = [start_index if d == axis else 0 for d in range(len(shape))]
    return dynamic_slice(operand, starts, [slice_size if d == axis else n for d, n in enumerate(shape)])


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Array:
    """``operand`` at one position of an axis, known at run time; the axis stays with size 1 where ``keepdims``.

    >>> lax.dynamic_index_in_dim(np.arange(5), np.int32(1), keepdims=False)
    Array(1, dtype=int64)
    """
    out = dynamic_slice_in_dim(operand, index, 1, axis)
    return out if keepdims else squeeze(out, (axis,))


# -- dynamic_update_slice ----------------------------------------------------------------------------------------------


def _update_abstract(x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> ShapedArray:
    avals = (x, update, *starts)
    _check_starts("dynamic_update_slice", avals, x.ndim, starts)
    if update.dtype != x.dtype:
        raise dtype_error("dynamic_update_slice", avals, "the update must have the operand's dtype.")
    if update.ndim != x.ndim or any(u > n for u, n in zip(update.shape, x.shape, strict=True)):
        raise shape_error("dynamic_update_slice", avals, "the update does not fit into the operand")
    return ShapedArray(x.shape, x.dtype, x.weak_type and update.weak_type)


def _update_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = bind(dynamic_update_slice_p, *primals)
    if base.all_zero(tangents[:2]):
        return out, base.zero_like(out)
    return out, bind(dynamic_update_slice_p, *map(base.instantiate, tangents[:2]), *primals[2:])


def _update_transpose(ct: Any, x: Any, update: Any, *starts: Any) -> list[Any]:
    none = [None] * len(starts)
    if isinstance(ct, Zero):
        return [None, None, *none]
    sizes = update.aval.shape if isinstance(update, Linear) else shape_of(update)
    x_ct = update_ct = None
    if isinstance(x, Linear):
        x_ct = bind(dynamic_update_slice_p, ct, base.fill(sizes, 0, base.dtype_of(ct)), *starts)
    if isinstance(update, Linear):
        update_ct = bind(dynamic_slice_p, ct, *starts, slice_sizes=sizes)
    return [x_ct, update_ct, *none]


def _update_batch(args: Any, dims: Any, size: int) -> tuple[Any, int]:
    x, update, *starts = args
    start_dims = dims[2:]
    x, update = base.to_front(x, dims[0], size), base.to_front(update, dims[1], size)
    if all(d is None for d in start_dims):
        return bind(dynamic_update_slice_p, x, update, np.int32(0), *starts), 0
    shape, box = shape_of(x)[1:], shape_of(update)[1:]
    axes, indices = _box_indices(starts, start_dims, size, shape, box)
    if not axes:
        return update, 0
    order = _restored(len(shape), axes)
    update = base.permute(update, [order.index(d) for d in range(len(order))])
    return scatter(x, update, indices, tuple(a + 1 for a in axes), 1, "clip", "set"), 0


dynamic_update_slice_p = register(
    Primitive(
        "dynamic_update_slice",
        Family.MOVEMENT,
        _update_abstract,
        _update_jvp,
        _update_batch,
        _update_transpose,
        doc="The operand with a box of it replaced, at a position known at run time (moved inside where needed).",
    )
)


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Array:
    """``operand`` with the box that begins at ``start_indices`` replaced by ``update`` (of its rank and dtype).

    Starts are counted and moved inside as :func:`dynamic_slice` does.

    >>> lax.dynamic_update_slice(np.zeros(4), np.ones(2), (np.int32(1),))
    Array([0., 1., 1., 0.], dtype=float64)
    """
    starts = _starts(start_indices, shape_of(operand))
    return bind(dynamic_update_slice_p, *base.operands("dynamic_update_slice", operand, update), *starts)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Array:
    """:func:`dynamic_update_slice` along one axis, from 0 in the others.

    >>> lax.dynamic_update_slice_in_dim(np.zeros(4), np.ones(2), 2, 0)
    Array([0., 0., 1., 1.], dtype=float64)
    """
    ndim = get_aval(operand).ndim
    axis = canonical_axis("dynamic_update_slice_in_dim", axis, ndim)
    return dynamic_update_slice(operand, update, [start_index if d == axis else 0 for d in range(ndim)])


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Array:
    """``operand`` with one position of an axis replaced; ``update`` may lack that axis.

    >>> lax.dynamic_update_index_in_dim(np.zeros(3), np.float64(1), 2, 0)
    Array([0., 0., 1.], dtype=float64)
    """
    operand, update = base.operands("dynamic_update_index_in_dim", operand, update)
    axis = canonical_axis("dynamic_update_index_in_dim", axis, get_aval(operand).ndim)
    if len(shape_of(update)) < len(shape_of(operand)):
        shape = shape_of(update)
        update = base.reshape_to(update, (*shape[:axis], 1, *shape[axis:]))
    return dynamic_update_slice_in_dim(operand, update, index, axis)
