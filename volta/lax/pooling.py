"""Reductions of windows with jax.lax's arguments."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import ShapedArray
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.convolution import integers, pairs
from volta.ops import base, lax
from volta.ops.windows import Axis, by_element, counts, dilated, padded
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.pooling import Pooling
from volta.trace.tracer import concrete_of

__all__ = ["reduce_window"]


_KINDS = {"add": "sum", "max": "max", "min": "min"}


def _kind(computation: Callable[..., Any], aval: ShapedArray) -> str | None:
    """The pooling that a function of two values makes; None for one that is not known."""
    program, _ = trace_to_jaxpr(lambda x, y: ([computation(x, y)], None), (aval, aval), "reduce_window")
    eqns = program.jaxpr.eqns
    kind = _KINDS.get(eqns[0].primitive.name) if len(eqns) == 1 else None
    if kind is None or list(eqns[0].outputs) != list(program.jaxpr.outvars):
        return None
    if sorted(map(id, eqns[0].inputs)) != sorted(map(id, program.jaxpr.invars)):
        return None
    return kind


def _is_neutral(kind: str, start: Any) -> bool:
    value, neutral = concrete_of(start), {"sum": lambda dtype: 0, "max": dtypes.lowest, "min": dtypes.highest}[kind]
    return value is not None and bool(np.asarray(value) == neutral(base.dtype_of(start)))


def reduce_window(
    operand: ArrayLike,
    init_value: ArrayLike,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """Each window's elements, combined by ``computation`` with ``init_value``.

    ``lax.add`` gives SUM of the bit contract over a window's elements row by row, ``lax.max`` and ``lax.min`` the
    extremes; all three have derivatives (of extremes: the first such element's). Any other function has to act element
    by element; it is applied place by place, from ``init_value`` on, and differentiated as what it is made of.

    Args:
        operand: any array.
        init_value: rank 0, of its dtype. Padding takes no part.
        computation: a function of two values.
        window_dimensions: the window's size, an axis of ``operand`` each.
        window_strides, base_dilation, window_dilation: an axis each; None is 1.
        padding: ``(low, high)`` an axis, or 'SAME', 'SAME_LOWER', 'VALID'.

    Raises:
        ShapeError: for sizes, strides or padding that do not fit.

    >>> lax.reduce_window(np.float32([1, 5, 2, 4]), -np.inf, lax.max, (2,), (2,), "VALID")
    Array([5., 4.], dtype=float32)
    """
    name = "reduce_window"
    aval = get_aval(operand)
    size = integers(name, "window_dimensions", window_dimensions, aval.ndim)
    strides = integers(name, "window_strides", window_strides, aval.ndim)
    apart = integers(name, "base_dilation", base_dilation, aval.ndim)
    reach = integers(name, "window_dilation", window_dilation, aval.ndim)
    pads = pairs(
        name,
        padding,
        [dilated(n, d) for n, d in zip(aval.shape, apart, strict=True)],
        [dilated(k, d) for k, d in zip(size, reach, strict=True)],
        strides,
    )
    axes = tuple(Axis(k, s, *p, b, r) for k, s, p, b, r in zip(size, strides, pads, apart, reach, strict=True))
    if builtins.any(a.length(n) < 0 for a, n in zip(axes, aval.shape, strict=True)):
        raise ShapeError(at_user_line(f"{name}: padding {list(pads)} takes away more than there is of {aval.shape}"))
    operand, start = base.operands(name, operand, init_value)
    windows = counts(axes, aval.shape)
    kind = _kind(computation, ShapedArray((), aval.dtype))
    if kind is not None:
        out = Pooling(kind, axes)(operand)
        return out if _is_neutral(kind, start) else computation(base.spread(start, windows), out)
    total = base.spread(start, windows)
    inside = padded(base.fill(aval.shape, True, dtypes.bool_), axes, base.fill((), False, dtypes.bool_))
    terms = by_element(padded(operand, axes, start), axes, windows)
    for term, there in zip(terms, by_element(inside, axes, windows), strict=True):
        total = lax.select(there, computation(total, term), total)
    return total
