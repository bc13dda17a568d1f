"""Stretches as indices: ``x[ds(i, n)]`` is n elements from i on, where i may be traced.

A stretch is a box of the array, so an index with stretches means that with ``::stride`` in their places, of the box.
"""

from __future__ import annotations

import operator
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes, pytrees
from volta.core.array import Array
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer, get_aval
from volta.core.source import at_user_line
from volta.ops import lax


@attrs.frozen(eq=False)
class Slice:
    """``size`` elements from ``start`` on, every ``stride``-th, as an index; what :func:`ds` makes."""

    start: Any
    size: int
    stride: int = 1


pytrees.register_node(Slice, lambda s: ((s.start,), (s.size, s.stride)), lambda aux, children: Slice(children[0], *aux))


def ds(start: Any, size: Any = None, stride: int | None = None) -> slice | Slice:
    """An index that means ``size`` elements from ``start`` on, which may be traced; JAX's ``jax.ds``.

    As in :func:`volta.lax.dynamic_slice` a start below 0 counts from the end, and a stretch that would leave the array
    is moved inside; an update of one is left out, but for ``mode="clip"``. ``ds(n)`` is ``:n``, ``ds(None)`` is ``:``.

    Raises:
        ConcretizationTypeError: the size is traced.
        DTypeError: the start is no integer.
        ShapeError: the start is no scalar, the size is negative, or the stride is below 1.

    >>> x = volta.numpy.arange(10)
    >>> volta.jit(lambda x, i: x[volta.ds(i, 2)])(x, 4)
    Array([4, 5], dtype=int32)
    """
    if start is None:
        return slice(None)
    if size is None:
        start, size = 0, start
    for what, value in (("size", size), ("stride", stride)):
        if isinstance(value, Tracer):
            raise ConcretizationTypeError(
                at_user_line(f"ds: the {what} is traced, so the result's shape is not known; mark it static")
            )
    size, stride = operator.index(size), 1 if stride is None else operator.index(stride)
    aval = get_aval(start)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(at_user_line(f"ds: the start must be an integer, got {aval.short()}"))
    if aval.shape or size < 0 or stride < 1:
        text = f"got a start of shape {aval.shape}, size {size} and stride {stride}"
        raise ShapeError(
            at_user_line(f"ds: the start is a scalar, the size at least 0 and the stride at least 1; {text}")
        )
    return Slice(start, size, stride)


@attrs.frozen(eq=False)
class Boxed:
    """The box of ``whole`` that an index's stretches mean, and the rest of the index."""

    whole: Array
    starts: tuple[Any, ...]
    part: Array
    rest: tuple[Any, ...]

    def replaced(self, new: Array, mode: str | None) -> Array:
        """The whole with another box. One that would leave the array is left out, unless it is to be moved inside."""
        moved = lax.dynamic_update_slice(self.whole, new, self.starts)
        if mode == "clip":
            return moved
        inside: Any = True
        for start, n, size in zip(self.starts, self.whole.shape, new.shape, strict=True):
            first = lax.select_n(lax.lt(start, np.int64(0)), start, lax.add(start, np.int64(n)))
            fits = lax.bitwise_and(lax.ge(first, np.int64(0)), lax.le(first, np.int64(n - size)))
            inside = fits if inside is True else lax.bitwise_and(inside, fits)
        return lax.select_n(inside, self.whole, moved)


def box(x: Any, index: Any) -> Boxed | None:
    """What an index with stretches means; None where there are none.

    Raises:
        ShapeError: a stretch is longer than its axis.
    """
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, Slice) for item in items):
        return None
    used = [0 if item is None or item is Ellipsis else _axes(item) for item in items]
    starts: list[Any] = [0] * x.ndim
    sizes = list(x.shape)
    rest = list(items)
    behind = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    for i, item in enumerate(items):
        if not isinstance(item, Slice):
            continue
        axis = sum(used[:i]) if i < behind else x.ndim - sum(used[i:])
        if not 0 <= axis < x.ndim:
            raise IndexError(at_user_line(f"too many indices: the array has {x.ndim} dimensions"))
        reach = (item.size - 1) * item.stride + 1 if item.size else 0
        if reach > x.shape[axis]:
            raise ShapeError(at_user_line(f"ds: {reach} elements from axis {axis}, which has {x.shape[axis]}"))
        starts[axis], sizes[axis] = item.start, reach
        rest[i] = slice(None, None, item.stride)
    fixed = tuple(lax.convert_element_type(s, np.int64) for s in starts)
    return Boxed(x, fixed, lax.dynamic_slice(x, fixed, sizes), tuple(rest))


def _axes(item: Any) -> int:
    """How many axes an entry of an index takes: a mask as many as it has."""
    masks = isinstance(item, (Array, np.ndarray)) and item.dtype == dtypes.bool_
    return item.ndim if masks else 1
