"""Reductions over segments: rows that carry the same number are reduced to one. The names of ``jax.ops``.

Graphs as lists of edges, ragged batches and clusters are reduced so. The order is that of the contract's scatter: the
rows of a segment in ascending order, summed as SUM.
"""

from __future__ import annotations

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy.indexing import as_positions
from volta.numpy.promotion import as_value, aval_of
from volta.ops import lax


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """The sum of each segment's rows.

    Args:
        data: an array whose first axis is cut into segments.
        segment_ids: the segment of each row, integers of shape (data.shape[0],), in any order. Rows with a number
            outside of 0 to num_segments - 1 are left out.
        num_segments: how many there are; without it the largest number and one, which must be known while tracing.

    Returns:
        An array of shape (num_segments, *data.shape[1:]) and of ``data``'s dtype; an empty segment gives 0.

    Raises:
        ShapeError: where the numbers are not one for each row.
        DTypeError: where they are no integers.
        ConcretizationTypeError: without ``num_segments`` under a transform.

    >>> import volta.numpy as vnp
    >>> segment_sum(vnp.array([1.0, 2.0, 4.0]), vnp.array([0, 2, 0]), 3)
    Array([5., 0., 2.], dtype=float32)
    """
    return _reduce("segment_sum", data, segment_ids, num_segments, "add")


def segment_prod(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """The product of each segment's rows, as :func:`segment_sum`; an empty segment gives 1.

    >>> segment_prod(vnp.array([3, 2, 4]), vnp.array([0, 2, 0]), 3)
    Array([12,  1,  2], dtype=int32)
    """
    return _reduce("segment_prod", data, segment_ids, num_segments, "mul")


def segment_max(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """The largest of each segment's rows, as :func:`segment_sum`; an empty segment gives -inf, or the least integer.

    >>> segment_max(vnp.array([1.0, 2.0, 4.0]), vnp.array([0, 2, 0]), 3)
    Array([  4., -inf,   2.], dtype=float32)
    """
    return _reduce("segment_max", data, segment_ids, num_segments, "max")


def segment_min(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """The smallest of each segment's rows, as :func:`segment_sum`; an empty segment gives inf, or the greatest integer.

    >>> segment_min(vnp.array([1.0, 2.0, 4.0]), vnp.array([0, 2, 0]), 3)
    Array([ 1., inf,  2.], dtype=float32)
    """
    return _reduce("segment_min", data, segment_ids, num_segments, "min")


def _reduce(name: str, data: Array, segment_ids: Array, num_segments: int | None, op: str) -> Array:
    rows, ids = aval_of(name, data), aval_of(name, segment_ids)
    if not dtypes.is_integer(ids.dtype):
        raise DTypeError(at_user_line(f"{name}: the numbers of segments must be integers, not {ids.short()}"))
    if ids.ndim != 1 or rows.shape[:1] != ids.shape:
        raise ShapeError(
            at_user_line(f"{name}: data {rows.short()} needs segment_ids of shape {rows.shape[:1]}, not {ids.shape}")
        )
    if num_segments is None:
        if isinstance(segment_ids, Tracer):
            raise ConcretizationTypeError(
                at_user_line(f"{name}: how many segments there are is not known while tracing; give num_segments")
            )
        num_segments = int(vnp.max(segment_ids, initial=-1)) + 1
    start = {"add": 0, "mul": 1, "max": dtypes.lowest(rows.dtype), "min": dtypes.highest(rows.dtype)}[op]
    empty = vnp.full((num_segments, *rows.shape[1:]), start, rows.dtype)
    index = as_positions(as_value(segment_ids), num_segments)
    return lax.scatter(empty, as_value(data), [index], axes=(0,), mode="drop", op=op)
