"""Composites of movement under their usual names: they add no primitive."""

from __future__ import annotations

import builtins
from typing import Any

from volta.core.array import Array
from volta.core.interp import get_aval
from volta.ops import base
from volta.ops.base import canonical_axes, canonical_axis, canonical_ints, shape_error, shape_of
from volta.ops.movement import slice

__all__ = ["broadcast", "collapse", "expand_dims", "index_in_dim", "slice_in_dim", "squeeze"]

_slice = builtins.slice


def expand_dims(array: Any, dimensions: Any) -> Array:
    """``array`` with new axes of size 1, at the places ``dimensions`` of the result.

    >>> lax.expand_dims(np.arange(3), 0).shape
    (1, 3)
    """
    shape = shape_of(array)
    places = dimensions if isinstance(dimensions, (tuple, list)) else (dimensions,)
    axes = canonical_axes("expand_dims", tuple(places), len(shape) + len(places))
    sizes = list(shape)
    for axis in axes:
        sizes.insert(axis, 1)
    return base.reshape_to(array, tuple(sizes))


def squeeze(array: Any, dimensions: Any) -> Array:
    """``array`` without the axes ``dimensions``, which must have size 1.

    >>> lax.squeeze(np.ones((1, 3)), (0,)).shape
    (3,)
    """
    shape = shape_of(array)
    axes = canonical_axes("squeeze", dimensions, len(shape))
    if any(shape[a] != 1 for a in axes):
        raise shape_error("squeeze", (get_aval(array),), f"axes {axes} do not all have size 1")
    return base.reshape_to(array, tuple(d for i, d in enumerate(shape) if i not in axes))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """``operand`` with the axes from ``start_dimension`` up to ``stop_dimension`` (not included) made one.

    >>> lax.collapse(np.ones((2, 3, 4)), 1).shape
    (2, 12)
    """
    shape = shape_of(operand)
    start, stop, _ = _slice(start_dimension, stop_dimension).indices(len(shape))
    size = 1
    for d in shape[start:stop]:
        size *= d
    return base.reshape_to(operand, (*shape[:start], size, *shape[stop:]))


def broadcast(operand: Any, sizes: Any) -> Array:
    """``operand`` repeated along new leading axes of the given sizes.

    >>> lax.broadcast(np.ones(3), (2,)).shape
    (2, 3)
    """
    new, shape = canonical_ints("broadcast", "sizes", sizes), shape_of(operand)
    return base.broadcast_to(operand, new + shape, tuple(range(len(new), len(new) + len(shape))))


def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Array:
    """``operand`` from ``start_index`` to ``limit_index`` along one axis; None and negative positions as in Python.

    >>> lax.slice_in_dim(np.arange(5), -2, None)
    Array([3, 4], dtype=int64)
    """
    shape = shape_of(operand)
    axis = canonical_axis("slice_in_dim", axis, len(shape))
    first, last, _ = _slice(start_index, limit_index).indices(shape[axis])
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], limits[axis], strides[axis] = first, builtins.max(first, last), stride
    return slice(operand, starts, limits, strides)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """``operand`` at one static position of an axis, which stays with size 1 where ``keepdims``.

    >>> lax.index_in_dim(np.arange(5), 3, keepdims=False)
    Array(3, dtype=int64)
    """
    axis = canonical_axis("index_in_dim", axis, len(shape_of(operand)))
    index = canonical_axis("index_in_dim", index, shape_of(operand)[axis])
    result = slice_in_dim(operand, index, index + 1, 1, axis)
    return result if keepdims else squeeze(result, (axis,))
