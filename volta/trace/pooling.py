"""Windows that slide over an array, each reduced to one value.

A pooling is one equation that means slices combined, so it runs in one loop with what is around it. It is closed under
derivatives: what a window's sum gives back to an element is a sum over the windows that the element is in, and where a
window has picked one element, that one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.contract import DEFINITIONS
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.ops.primitive import Linear, Zero
from volta.ops.windows import Axes, Axis, Shape, by_element, counts, index, padded, reversed_axes, sizes
from volta.trace.meaning import CACHED, meaning, means_its_program

LANES = DEFINITIONS.sum_lanes
"""Windows of up to so many elements are written as slices, which one loop reads; others are gathered."""


@attrs.frozen
class Pooling:
    """``sum``, ``max`` and ``min`` of each window; ``pick``, what lies at one place of each window, given by the second
    operand; ``spread``, the sum of the windows' values at an element that they picked."""

    kind: str
    axes: Axes
    """One for each axis of the operand that it slides over, the last ones."""

    def __call__(self, x: Any, *places: Any) -> Any:
        avals = tuple(get_aval(v).strip_weak() for v in (x, *places))
        program = _program(self, avals)
        return pooling_p.bind(x, *places, jaxpr=program, name=f"reduce_window_{self.kind}", pooling=self)[0]

    @property
    def is_linear(self) -> bool:
        return self.kind not in ("max", "min")


@lru_cache(maxsize=CACHED)
def _program(pooling: Pooling, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    return meaning(lambda *xs: _reduced(pooling, *xs), avals, f"reduce_window_{pooling.kind}")


# -- its meaning -------------------------------------------------------------------------------------------------------


def _reduced(pooling: Pooling, x: Any, places: Any = None) -> Any:
    axes, dtype = pooling.axes, base.dtype_of(x)
    first = len(shape_of(x)) - len(axes)
    windows = counts(axes, shape_of(x)[first:])
    shape = (*shape_of(x)[:first], *windows)
    if not prod(shape):
        return base.fill(shape, 0, dtype)
    work = dtypes.compute_dtype(dtype)
    given = lax.convert_element_type(x, work)
    extreme = {"max": dtypes.lowest, "min": dtypes.highest}.get(pooling.kind, lambda dtype: 0)(work)
    terms = _terms(padded(given, axes, base.fill((), extreme, work), first), axes, windows)
    if pooling.kind == "pick":
        terms = terms.where(places, 0)
    elif pooling.kind == "spread":  # an element is in windows at places that count from their end
        chosen = padded(places, axes, base.fill((), -1, base.dtype_of(places)), first)
        terms = terms.where(_terms(chosen, axes, windows), prod(sizes(axes)) - 1)
    out = terms.reduced(pooling.kind if pooling.kind in ("max", "min") else "sum")
    return lax.convert_element_type(out, dtype)


class Few:
    """What windows have at each of their few places, as slices."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def reduced(self, kind: str) -> Any:
        """Over the places; a sum is SUM of the bit contract, whose lanes have one term each and combine by halves."""
        combine = {"sum": lax.add, "max": lax.max, "min": lax.min}[kind]
        values, half = self.values, LANES // 2
        while half:
            pairs = zip(values, values[half : 2 * half], strict=False)
            values = [combine(x, y) for x, y in pairs] + values[max(len(values) - half, 0) : half]
            half //= 2
        return values[0]

    def where(self, places: Any, last: int) -> Few:
        """The terms at their window's chosen place, 0 elsewhere; with ``last``, places count from the window's end."""
        own = places.values if isinstance(places, Few) else [places] * len(self.values)
        zero = base.fill((), 0, base.dtype_of(self.values[0]))
        numbers = [abs(last - w) for w in range(len(self.values))]
        chosen = [lax.eq(p, base.fill((), n, base.dtype_of(p))) for p, n in zip(own, numbers, strict=True)]
        return Few([lax.select(c, x, base.spread(zero, shape_of(x))) for c, x in zip(chosen, self.values, strict=True)])

    def best(self, larger: bool) -> Any:
        """The first place of the largest (smallest) value; a NaN is better than any number."""
        best, place = self.values[0], base.fill(shape_of(self.values[0]), 0, dtypes.int32)
        for w, x in enumerate(self.values[1:], 1):
            better = (lax.gt if larger else lax.lt)(x, best)
            if dtypes.is_float(base.dtype_of(x)):
                better = lax.bitwise_or(better, lax.bitwise_and(lax.ne(x, x), lax.eq(best, best)))
            best = lax.select(better, x, best)
            place = lax.select(better, base.fill(shape_of(x), w, dtypes.int32), place)
        return place


class Many:
    """What windows have at each of their many places, along a first axis."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def reduced(self, kind: str) -> Any:
        return getattr(lax, f"reduce_{kind}")(self.values, (0,))

    def where(self, places: Any, last: int) -> Many:
        shape = shape_of(self.values)
        own = places.values if isinstance(places, Many) else base.broadcast_to(places, shape, range(1, len(shape)))
        numbers = lax.broadcasted_iota(base.dtype_of(own), shape, 0)
        numbers = lax.sub(base.fill((), last, base.dtype_of(own)), numbers) if last else numbers
        zero = base.fill(shape, 0, base.dtype_of(self.values))
        return Many(lax.select(lax.eq(own, numbers), self.values, zero))

    def best(self, larger: bool) -> Any:
        return (lax.argmax if larger else lax.argmin)(self.values, 0, dtypes.int32)


def _terms(x: Any, axes: Axes, windows: Shape) -> Few | Many:
    """What the windows of an array that is padded have at each place."""
    before = len(shape_of(x)) - len(axes)
    if prod(sizes(axes)) <= LANES:
        return Few(list(by_element(x, axes, windows, before)))
    count = prod(sizes(axes))
    moved = [i for i, a in enumerate(axes) if a != Axis(1)]
    shape = (count, *(windows[i] for i in moved))
    number, indices = lax.broadcasted_iota(np.int64, shape, 0), []
    for k, i in enumerate(moved):
        inner = prod(a.size for a in axes[i + 1 :])
        place = lax.rem(lax.div(number, inner), axes[i].size)
        indices.append(index(axes[i], lax.broadcasted_iota(np.int64, shape, k + 1), place))
    found = lax.gather(x, indices, [before + i for i in moved], mode="clip")  # none is out of range
    rest = [d for d in range(len(shape_of(x))) if d - before not in moved]
    order = [
        0,
        *(len(shape) + rest.index(d) if d in rest else 1 + moved.index(d - before) for d in range(before + len(axes))),
    ]
    return Many(base.permute(found, order))


def best_place(x: Any, axes: Axes, larger: bool) -> Any:
    """Where in each window its first largest (smallest) element is, counted row by row."""
    value = (dtypes.lowest if larger else dtypes.highest)(base.dtype_of(x))
    first = len(shape_of(x)) - len(axes)
    windows = counts(axes, shape_of(x)[first:])
    return _terms(padded(x, axes, base.fill((), value, base.dtype_of(x)), first), axes, windows).best(larger)


# -- its derivatives ---------------------------------------------------------------------------------------------------


def _along(pooling: Pooling, x: Any) -> tuple[Pooling, tuple[Any, ...]]:
    """The linear pooling that takes ``x``'s tangent to the result's, and the places that it takes besides."""
    place = best_place(x, pooling.axes, pooling.kind == "max")
    return Pooling("pick", pooling.axes), (place,)


def _linearize(nonzero: Sequence[bool], x: Any, *places: Any, pooling: Pooling, **params: Any) -> Any:
    out = pooling(x, *places)
    if not dtypes.is_inexact(base.dtype_of(out)):
        return [out], (False,), lambda *live: []
    along, held = (pooling, places) if pooling.is_linear else _along(pooling, x)
    return [out], (True,), lambda dx: [along(dx, *held)]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, pooling: Pooling, **params: Any) -> Any:
    (out,), (live,), linear = _linearize((True,), *primals, pooling=pooling)
    if not live or isinstance(tangents[0], Zero):
        return [out], [base.zero_like(out)]
    return [out], linear(tangents[0])


def _transpose(cts: Sequence[Any], x: Linear, *places: Any, pooling: Pooling, **params: Any) -> list[Any]:
    (ct,) = cts
    none = [None] * len(places)
    if isinstance(ct, Zero):
        return [None, *none]
    axes = reversed_axes(pooling.axes, x.aval.shape[x.aval.ndim - len(pooling.axes) :])
    kind = {"sum": "sum", "pick": "spread", "spread": "pick"}[pooling.kind]
    return [Pooling(kind, axes)(ct, *places), *none]


def _batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, pooling: Pooling, **params: Any) -> Any:
    return [pooling(*(base.to_front(x, d, trace.axis.size) for x, d in zip(args, dims, strict=True)))], [0]


pooling_p = means_its_program(
    "reduce_window",
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="Windows that slide over an array, each reduced to one value: means exactly its program.",
)
