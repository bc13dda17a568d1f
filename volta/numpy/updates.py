"""Updated copies: ``x.at[index].set(v)``, ``add``, ``multiply``, ``min``, ``max``, … and ``get``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.boundary import boundary
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, powers, stretches
from volta.numpy.applying import applied
from volta.numpy.indexing import (
    Cut,
    Plan,
    check_sizes,
    gather_order,
    getitem,
    is_truth,
    parse,
    reshaped,
    shifted_axes,
    take_static,
    without_dropped,
)
from volta.numpy.promotion import as_value, aval_of, broadcast_array, convert
from volta.ops import lax

# What each update does to an old value and the operand. `set` takes the operand; the rest combine the two.
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": binary.add,
    "mul": binary.multiply,
    "min": binary.minimum,
    "max": binary.maximum,
}


class IndexUpdateHelper:
    """``x.at``: index it, then say what to do there. Every method returns a new array.

    >>> volta.numpy.zeros(3).at[1].set(5)
    Array([0., 5., 0.], dtype=float32)
    """

    __slots__ = ("array",)

    def __init__(self, array: Array):
        self.array = array

    def __getitem__(self, index: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.array, index)

    def __repr__(self) -> str:
        return f"IndexUpdateHelper({self.array!r})"


class IndexUpdateRef:
    """``x.at[index]``.

    ``mode``: positions out of bounds are left out ('drop', the default) or clamped ('clip'); a Python int out of bounds
    is an error unless a mode is given. ``indices_are_sorted`` and ``unique_indices`` are JAX's hints; they are accepted
    and change nothing, least of all bits.
    """

    __slots__ = ("array", "index")

    def __init__(self, array: Array, index: Any):
        self.array = array
        self.index = index

    def __repr__(self) -> str:
        return f"IndexUpdateRef({self.array!r}, {self.index!r})"

    @boundary
    def get(
        self,
        *,
        mode: str | None = None,
        fill_value: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Array:
        """The elements, as ``x[index]``; mode 'fill' gives ``fill_value`` (NaN) for positions out of bounds."""
        mode = _mode("get", mode, {"clip": "clip", "fill": "fill", "drop": "fill", "promise_in_bounds": "clip"})
        if fill_value is None or mode != "fill":
            return getitem(self.array, self.index, mode)
        inside = getitem(lax.full(self.array.shape, True, dtypes.bool_), self.index, "zero")
        clamped = getitem(self.array, self.index, "clip")
        return binary.where_three(inside, clamped, convert(fill_value, self.array.dtype))

    @boundary
    def set(
        self, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Array:
        """A copy with ``values`` there; of several values for one place the last one in row-major order stays."""
        return _update(self.array, self.index, values, "set", mode)

    @boundary
    def add(
        self, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Array:
        """A copy with ``values`` added there; values for one place are summed in row-major order first."""
        return _update(self.array, self.index, values, "add", mode)

    @boundary
    def subtract(self, values: Any, *, mode: str | None = None, **hints: Any) -> Array:
        """A copy with ``values`` subtracted there."""
        return _update(self.array, self.index, lax.neg(as_value(values)), "add", mode)

    @boundary
    def multiply(
        self, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Array:
        """A copy multiplied by ``values`` there."""
        return _update(self.array, self.index, values, "mul", mode)

    mul = multiply

    @boundary
    def divide(self, values: Any, *, mode: str | None = None, **hints: Any) -> Array:
        """A copy divided by ``values`` there."""
        scale = _update(lax.full(self.array.shape, 1, self.array.dtype), self.index, values, "mul", mode)
        return lax.div(self.array, scale)

    @boundary
    def power(self, values: Any, *, mode: str | None = None, **hints: Any) -> Array:
        """A copy raised to the power ``values`` there."""
        if dtypes.is_complex(self.array.dtype):  # e^(1 log z) is not quite z
            return self.set(powers.power(self.get(mode=mode), values), mode=mode)
        exponent = _update(lax.full(self.array.shape, 1, self.array.dtype), self.index, values, "set", mode)
        return powers.power(self.array, exponent)

    @boundary
    def min(
        self, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Array:
        """A copy with the smaller of the element and ``values`` there."""
        return _update(self.array, self.index, values, "min", mode)

    @boundary
    def max(
        self, values: Any, *, mode: str | None = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> Array:
        """A copy with the larger of the element and ``values`` there."""
        return _update(self.array, self.index, values, "max", mode)

    @boundary
    def apply(self, func: Callable[[Any], Any], *, mode: str | None = None, **hints: Any) -> Array:
        """A copy with ``func`` applied there: as often as an index occurs, to what it gave before.

        Under ``jit`` with indices that are not known it has a loop of unknown length, and no reverse derivative.
        """
        return applied(self.array, self.index, func, mode)


def _mode(name: str, mode: str | None, known: dict[str, str]) -> str | None:
    if mode is None:
        return None
    if mode not in known:
        raise ValueError(at_user_line(f".at[...].{name}: mode must be one of {sorted(known)}, not {mode!r}"))
    return known[mode]


def _kind(dtype: np.dtype) -> int:
    if dtypes.is_complex(dtype):
        return 3
    return 2 if dtypes.is_float(dtype) else int(dtypes.is_integer(dtype))


def _as_update(x: Array, values: Any, op: str) -> Any:
    """``values`` in ``x``'s dtype; refuses what would lose more than precision."""
    given, own = aval_of(f".at[...].{op}", values), aval_of("at", x).dtype
    if _kind(given.dtype) > _kind(own):
        raise DTypeError(
            at_user_line(
                f".at[...].{op}: {given.short()} values do not fit an array of dtype {own}; use values.astype('{own}')"
            )
        )
    return convert(values, own)


def _update(x: Array, index: Any, values: Any, op: str, mode: str | None) -> Array:
    mode = _mode(op, mode, {"drop": "drop", "fill": "drop", "clip": "clip", "promise_in_bounds": "clip"})
    x = as_value(x)
    boxed = stretches.box(x, index)
    if boxed is not None:
        return boxed.replaced(_update(boxed.part, boxed.rest, values, op, mode), mode)
    values = _as_update(x, values, op)
    masked = _mask_update(x, index, values, op)
    if masked is not None:
        return masked
    plan = parse(x.shape, index, mode is not None)
    check_sizes(plan)
    own = _strip(_shape(values), len(plan.result))
    _check_fits(x, own, plan.result, _shape(values), op)
    values = reshaped(values, own)
    part = take_static(x, plan)
    if plan.is_static:
        if 0 in plan.result:
            return x
        new = _COMBINE[op](reshaped(part, plan.result), values)
        return as_value(_put_static(x, plan, reshaped(broadcast_array(new, plan.result), plan.kept)))
    if 0 in plan.result:
        return x
    inner = reshaped(part, without_dropped(plan))
    new = _scatter(inner, plan, broadcast_array(values, plan.result), op, mode or "drop")
    return new if plan.whole and not plan.dropped else _put_static(x, plan, reshaped(new, plan.kept))


def _check_fits(x: Array, own: tuple[int, ...], part: tuple[int, ...], given: tuple[int, ...], op: str) -> None:
    if len(own) > len(part) or any(d not in (1, n) for d, n in zip(own[::-1], part[::-1], strict=False)):
        raise ShapeError(
            at_user_line(
                f".at[...].{op}: values of shape {given} do not broadcast to the indexed part, {part} "
                f"(array of shape {x.shape})"
            )
        )


def _shape(x: Any) -> tuple[int, ...]:
    return aval_of("at", x).shape


def _strip(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """``shape`` without the leading ones that exceed ``ndim`` dimensions."""
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return shape


def _mask_update(x: Array, index: Any, values: Any, op: str) -> Array | None:
    """An update of one value through one boolean mask keeps its shape, so it is a select; also for traced masks."""
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if is_truth(mask):  # all of the array or nothing
        if _shape(values)[:1] == (0,) and not isinstance(mask, Tracer) and not bool(mask):
            return x  # no values for no elements
        whole, own = (1, *x.shape), _strip(_shape(values), x.ndim)
        _check_fits(x, own, whole, _shape(values), op)
        new = broadcast_array(_COMBINE[op](x, reshaped(values, own)), x.shape)
        return lax.select_n(mask if isinstance(mask, Array) else np.bool_(mask), x, new)
    if not isinstance(mask, (Array, np.ndarray)) or mask.dtype != dtypes.bool_ or _shape(values) != ():
        return None
    if mask.shape != x.shape[: mask.ndim]:
        return None
    if mask.ndim < x.ndim:
        mask = lax.broadcast_in_dim(mask, x.shape, tuple(range(mask.ndim)))
    return lax.select_n(mask, x, _COMBINE[op](x, values))


def _scatter(inner: Array, plan: Plan, values: Any, op: str, mode: str) -> Array:
    """``values``, shaped as the index's result, into ``inner``."""
    without_new = plan.window[: plan.place] + plan.index_shape + plan.window[plan.place :]
    values = reshaped(values, without_new)
    order = gather_order(plan)
    inverse = tuple(order.index(i) for i in range(len(order)))
    if inverse != tuple(range(len(order))):
        values = lax.transpose(values, inverse)
    return lax.scatter(inner, values, plan.indices, axes=shifted_axes(plan), batch_dims=0, mode=mode, op=op)


def _put_static(x: Array, plan: Plan, part: Array) -> Array:
    """``x`` with the statically selected part replaced by ``part`` (of shape ``plan.kept``)."""
    if plan.whole:
        return reshaped(part, plan.shape)
    backwards = tuple(i for i, c in enumerate(plan.cuts) if c.reverse)
    part = lax.rev(part, backwards) if backwards else part
    strided = [i for i, c in enumerate(plan.cuts) if c.step > 1 and c.size > 1]
    if strided:
        # The axes with a stride as positions: widen each to its own span, so that the rest is one dense update.
        spans = tuple(slice(c.start, c.stop) for c in plan.cuts)
        dense_plan = parse(plan.shape, spans)
        dense = take_static(x, dense_plan)
        for axis in strided:
            part = _interleave(dense, part, axis, plan.cuts, strided)
        return _put_static(x, dense_plan, part)
    if part.shape == plan.shape:
        return part
    kind = np.int64 if max(x.shape) > np.iinfo(np.int32).max else np.int32
    starts = tuple(kind(c.start) for c in plan.cuts)
    return lax.dynamic_update_slice(x, part, starts)


def _interleave(dense: Array, part: Array, axis: int, cuts: tuple[Cut, ...], strided: list[int]) -> Array:
    """Spread ``part`` along ``axis`` to the span of its stride, taking what lies between from ``dense``."""
    later = strided[strided.index(axis) + 1 :]
    between = (
        lax.slice(
            dense,
            (0,) * dense.ndim,
            dense.shape,
            tuple(cuts[i].step if i in later else 1 for i in range(dense.ndim)),
        )
        if later
        else dense
    )
    step, span = cuts[axis].step, dense.shape[axis]
    config = tuple((0, 0, step - 1 if i == axis else 0) for i in range(dense.ndim))
    spread = lax.pad(part, part.dtype.type(0), config)
    chosen = np.arange(span) % step == 0
    mask = lax.broadcast_in_dim(as_value(chosen), spread.shape, (axis,))
    return lax.select_n(mask, between, spread)
