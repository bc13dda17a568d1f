"""Longer arrays: :func:`pad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import reductions, shaping, ufuncs
from volta.numpy.creation import linspace
from volta.numpy.promotion import as_value, convert
from volta.numpy.statistics import median
from volta.numpy.taking import take
from volta.numpy.vectorizing import apply_along_axis
from volta.ops import lax

_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": reductions.max,
    "minimum": reductions.min,
    "mean": reductions.mean,
    "median": median,
}


def pad(
    array: ArrayLike,
    pad_width: Any,
    mode: str | Callable[..., Any] = "constant",
    *,
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
    **kwargs: Any,
) -> Array:
    """``array`` made longer at the ends of its axes, as ``pad_width`` says: one number, a pair, or a pair an axis.

    ``mode``: 'constant' (with ``constant_values``), 'edge', 'reflect', 'symmetric', 'wrap', 'empty' (zeros),
    'linear_ramp' (to ``end_values``), or 'maximum', 'minimum', 'mean', 'median' (of the ``stat_length`` nearest).
    With ``reflect_type='odd'`` what 'reflect' and 'symmetric' put there is twice the end less what is reflected.

    >>> pad(np.int32([1, 2]), (1, 2), mode="edge")
    Array([1, 1, 2, 2, 2], dtype=int32)
    """
    if callable(mode):
        return _by_function(as_value(array), pad_width, mode, kwargs)
    if kwargs:
        raise ValueError(at_user_line(f"pad: unknown settings {list(kwargs)}"))
    if reflect_type not in ("even", "odd"):
        raise ValueError(at_user_line(f"pad: reflect_type must be 'even' or 'odd', not {reflect_type!r}"))
    x = as_value(array)
    widths = _pairs("pad_width", pad_width, x.ndim)
    if any(v < 0 for pair in widths for v in pair):
        raise ShapeError(at_user_line(f"pad: widths must not be negative, got {pad_width}"))
    if mode in ("constant", "empty"):
        values = 0 if mode == "empty" else constant_values
        if np.ndim(values) == 0 and not isinstance(values, (list, tuple)):
            config = tuple((low, high, 0) for low, high in widths)
            return lax.pad(x, convert(values, x.dtype), config) if any(a or b for a, b in widths) else x
        ends = [[convert(v, x.dtype) for v in pair] for pair in np.broadcast_to(np.asarray(values), (x.ndim, 2))]
        for axis, ((low, high), (first, last)) in enumerate(zip(widths, ends, strict=True)):
            for value, pair in ((first, (low, 0, 0)), (last, (0, high, 0))):
                if any(pair):
                    x = lax.pad(x, value, tuple(pair if i == axis else (0, 0, 0) for i in range(x.ndim)))
        return x
    if mode == "linear_ramp":
        return _ramp(x, widths, _pairs("end_values", end_values, x.ndim))
    if mode in _STATISTICS:
        return _statistic(x, widths, mode, stat_length)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(
            at_user_line(
                f"pad: unknown mode {mode!r}; known are constant, edge, reflect, symmetric, wrap, empty, "
                f"linear_ramp, {', '.join(_STATISTICS)}"
            )
        )
    for axis, (low, high) in enumerate(widths):
        if low or high:
            if x.shape[axis] == 0:
                raise ShapeError(at_user_line(f"pad: mode {mode!r} cannot lengthen the empty axis {axis} of {x.shape}"))
            if reflect_type == "odd" and mode in ("reflect", "symmetric") and x.shape[axis] > (mode == "reflect"):
                x = _turned(x, axis, low, high, int(mode == "reflect"))
                continue
            # NumPy pads the positions; one gather then reads them
            places = np.pad(np.arange(x.shape[axis], dtype=np.int32), (low, high), mode=mode)  # type: ignore[call-overload]
            x = take(x, places, axis, mode="clip")
    return x


def _turned(x: Array, axis: int, low: int, high: int, skipped: int) -> Array:
    """``x`` turned about its ends: twice the end less what lies as far inside, piece by piece."""
    period = x.shape[axis] - skipped

    def around(edge: Array, inside: Array) -> Array:
        edge = shaping.broadcast_to(edge, inside.shape)
        return lax.sub(lax.mul(edge, edge.dtype.type(2)), lax.rev(inside, (axis,)))

    while low or high:
        front, back = min(low, period), min(high, period)
        parts, n = [x], x.shape[axis]
        if front:
            parts.insert(0, around(_cut(x, axis, 0, 1), _cut(x, axis, skipped, skipped + front)))
        if back:
            parts.append(around(_cut(x, axis, n - 1, n), _cut(x, axis, n - skipped - back, n - skipped)))
        x, low, high = lax.concatenate(parts, axis), low - front, high - back
    return x


def _by_function(x: Array, pad_width: Any, mode: Callable[..., Any], settings: dict[str, Any]) -> Array:
    """Of each axis in turn, each vector of the array with zeros around it becomes what the function makes of it."""
    widths = _pairs("pad_width", pad_width, x.ndim)
    x = pad(x, widths)
    for axis, pair in enumerate(widths):
        shape, out = x.shape, apply_along_axis(mode, axis, x, pair, axis, settings)
        if out is None or shaping.shape(out) != shape:
            raise ShapeError(
                at_user_line(
                    "pad: the function must return its vector, changed by .at[...].set(...), of the same length"
                )
            )
        x = out
    return x


def _pairs(what: str, given: Any, ndim: int) -> list[tuple[int, int]]:
    if isinstance(given, dict):
        given = [given.get(i, given.get(i - ndim, 0)) for i in range(ndim)]
        given = [(v, v) if np.ndim(v) == 0 else v for v in given]
    rows = np.asarray(given)
    try:
        pairs = np.broadcast_to(rows[:, None] if rows.ndim == 2 and rows.shape[1] == 1 else rows, (ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(at_user_line(f"pad: {what} {given} does not fit an array of {ndim} dimensions")) from None
    return [(int(low), int(high)) for low, high in pairs]


def _cut(x: Array, axis: int, start: int | None, stop: int | None) -> Array:
    return lax.slice_in_dim(x, start, stop, axis=axis)


def _ramp(x: Array, widths: list[tuple[int, int]], ends: list[tuple[int, int]]) -> Array:
    for axis, ((low, high), (first, last)) in enumerate(zip(widths, ends, strict=True)):
        parts = [x]
        if low:
            edge = lax.index_in_dim(x, 0, axis, False)
            parts.insert(0, linspace(convert(first, x.dtype), edge, low, False, dtype=x.dtype, axis=axis))
        if high:
            edge = lax.index_in_dim(x, x.shape[axis] - 1, axis, False)
            ramp = linspace(convert(last, x.dtype), edge, high, False, dtype=x.dtype, axis=axis)
            parts.append(lax.rev(ramp, (axis,)))
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
    return x


def _statistic(x: Array, widths: list[tuple[int, int]], mode: str, stat_length: Any) -> Array:
    lengths = None if stat_length is None else _pairs("stat_length", stat_length, x.ndim)
    for axis, (low, high) in enumerate(widths):
        n, parts = x.shape[axis], [x]
        for width, front in ((low, True), (high, False)):
            if not width:
                continue
            near = n if lengths is None else min(lengths[axis][0 if front else 1], n)
            if near < 1:
                raise ShapeError(at_user_line(f"pad: mode {mode!r} needs a stat_length of 1 or more"))
            part = _cut(x, axis, 0, near) if front else _cut(x, axis, n - near, n)
            value = _STATISTICS[mode](part, axis=axis, keepdims=True)
            if dtypes.is_integer(x.dtype) and dtypes.is_float(value.dtype):
                value = ufuncs.round(value)
            value = ufuncs.astype(value, x.dtype)
            filled = shaping.broadcast_to(value, tuple(width if i == axis else m for i, m in enumerate(x.shape)))
            parts.insert(0 if front else len(parts), filled)
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
    return x
