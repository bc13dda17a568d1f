"""Windows that slide over axes: how many there are, and their elements as views.

Along one axis of n elements, ``low`` and ``high`` elements of padding around them and ``base`` - 1 between each two, a
window of ``size`` elements that are ``dilation`` apart moves by ``stride``: window z has the elements
z * stride + w * dilation, w from 0 to ``size`` - 1.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from volta.ops import base
from volta.ops.arithmetic import add, mul
from volta.ops.movement import pad, slice

Shape = tuple[int, ...]


def dilated(n: int, by: int) -> int:
    """The length of n elements with ``by`` - 1 between each two."""
    return (n - 1) * by + 1 if n else 0


@attrs.frozen
class Axis:
    """How a window slides along one axis."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    dilation: int = 1

    def length(self, n: int) -> int:
        """Of n elements, with the padding around and between them."""
        return self.low + dilated(n, self.base) + self.high

    def count(self, n: int) -> int:
        """How many windows there are over n elements."""
        room = self.length(n) - dilated(self.size, self.dilation)
        return room // self.stride + 1 if room >= 0 else 0


Axes = tuple[Axis, ...]


def counts(axes: Axes, shape: Sequence[int]) -> Shape:
    """How many windows there are along each axis."""
    return tuple(a.count(n) for a, n in zip(axes, shape, strict=True))


def sizes(axes: Axes) -> Shape:
    """The elements of a window along each axis."""
    return tuple(a.size for a in axes)


def padded(x: Any, axes: Axes, value: Any, first: int = 0) -> Any:
    """``x`` with the padding of ``axes``, which are its axes from ``first`` on."""
    config = [(0, 0, 0)] * len(base.shape_of(x))
    config[first : first + len(axes)] = [(a.low, a.high, a.base - 1) for a in axes]
    return pad(x, value, config)


def by_element(x: Any, axes: Axes, windows: Shape, first: int = 0) -> Iterator[Any]:
    """For each place in a window, row by row: what all windows of `padded` have there."""
    for place in itertools.product(*map(range, sizes(axes))):
        starts = [w * a.dilation for w, a in zip(place, axes, strict=True)]
        yield _box(x, starts, windows, [a.stride for a in axes], first)


def by_window(x: Any, axes: Axes, windows: Shape, first: int = 0) -> Iterator[Any]:
    """For each window of `padded`, row by row: its elements."""
    for place in itertools.product(*map(range, windows)):
        starts = [z * a.stride for z, a in zip(place, axes, strict=True)]
        yield _box(x, starts, sizes(axes), [a.dilation for a in axes], first)


def _box(x: Any, starts: Sequence[int], count: Sequence[int], steps: Sequence[int], first: int) -> Any:
    """``count`` elements of the axes from ``first`` on, ``steps`` apart."""
    shape = base.shape_of(x)
    low, high, by = [0] * len(shape), [*shape], [1] * len(shape)
    inside = builtins.slice(first, first + len(starts))
    low[inside], by[inside] = starts, steps
    high[inside] = [start + dilated(n, step) for start, n, step in zip(starts, count, steps, strict=True)]
    return slice(x, low, high, by)


def index(axis: Axis, window: Any, place: Any) -> Any:
    """Where in what `padded` gives a place of a window is, along one axis (integer arrays)."""
    return add(mul(window, axis.stride), mul(place, axis.dilation))


def reversed_axes(axes: Axes, shape: Sequence[int]) -> Axes:
    """The windows of windows: how an element of ``shape`` is found in those that it is part of, the last place first.

    Over as many elements as there are windows, these axes give as many windows as there were elements.
    """
    found = []
    for a, n in zip(axes, shape, strict=True):
        reach = dilated(a.size, a.dilation)
        low = reach - 1 - a.low
        high = dilated(n, a.base) + reach - 1 - dilated(a.count(n), a.stride) - low
        found.append(Axis(a.size, a.base, low, high, a.stride, a.dilation))
    return tuple(found)
