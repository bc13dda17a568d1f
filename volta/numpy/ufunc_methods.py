"""``add.reduce``, ``multiply.accumulate``, ``subtract.outer``, ``add.at``: methods of NumPy's functions of two arrays.

The functions stay plain functions; these are attributes of theirs. ``reduce`` and ``accumulate`` are those reductions
and scans that Volta has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta.core.array import Array
from volta.core.source import at_user_line
from volta.numpy import binary, division, elementwise, powers, reductions, scans, smooth
from volta.numpy.creation import asarray
from volta.numpy.promotion import canonical_axis
from volta.ops import lax


def _reduce(function: Callable[[Any, Any], Any], reduction: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(a: Array, axis: Any = 0, dtype: Any = None, *, keepdims: bool = False, **masks: Any) -> Array:
        a = asarray(a, dtype)
        return reduction(a, axis, keepdims=keepdims, **masks)

    reduce.__doc__ = f"``{function.__name__}`` of all elements along ``axis`` (0)."
    return reduce


def _accumulate(function: Callable[[Any, Any], Any], scan: Callable[..., Any]) -> Callable[..., Any]:
    def accumulate(a: Array, axis: int = 0, dtype: Any = None) -> Array:
        a = asarray(a, dtype)
        return scan(a, canonical_axis(f"{function.__name__}.accumulate", axis, a.ndim))

    accumulate.__doc__ = f"The running ``{function.__name__}`` along ``axis`` (0)."
    return accumulate


def _at(function: Callable[[Any, Any], Any], update: str) -> Callable[..., Any]:
    def at(a: Array, indices: Any, b: Array, *, inplace: bool = True) -> Array:
        if inplace:
            raise ValueError(
                at_user_line(f"{function.__name__}.at: arrays are immutable; pass inplace=False and use the result")
            )
        return getattr(asarray(a).at[indices], update)(b)

    at.__doc__ = f"A copy of ``a`` with ``{function.__name__}(a[i], b)`` at ``indices``, repeated ones included."
    return at


_OUTER = "add subtract multiply divide floor_divide power maximum minimum arctan2 hypot equal not_equal less greater"
_OUTER += " less_equal greater_equal logical_and logical_or bitwise_and bitwise_or bitwise_xor fmax fmin remainder"
_REDUCE: dict[Callable[..., Any], Callable[..., Any]] = {
    binary.add: reductions.sum,
    binary.multiply: reductions.prod,
    binary.maximum: reductions.max,
    binary.minimum: reductions.min,
    binary.logical_and: reductions.all,
    binary.logical_or: reductions.any,
}
_ACCUMULATE: dict[Callable[..., Any], Callable[..., Any]] = {
    binary.add: scans.cumsum,
    binary.multiply: scans.cumprod,
    binary.maximum: lax.cummax,
    binary.minimum: lax.cummin,
}
_AT: dict[Callable[..., Any], str] = {
    binary.add: "add",
    binary.subtract: "subtract",
    binary.multiply: "multiply",
    binary.maximum: "max",
    binary.minimum: "min",
}

_IDENTITY = {"add": 0, "multiply": 1, "logical_and": True, "logical_or": False, "bitwise_or": 0, "bitwise_xor": 0}

for _name in _OUTER.split():
    _module = next(m for m in (binary, division, powers, smooth) if hasattr(m, _name))
    _function = getattr(_module, _name)
    for _key, _value in (("nin", 2), ("nout", 1), ("nargs", 3), ("identity", _IDENTITY.get(_name))):
        setattr(_function, _key, _value)
    setattr(_function, "outer", elementwise.outer(_function))  # noqa: B010
for _function, _what in _REDUCE.items():
    setattr(_function, "reduce", _reduce(_function, _what))  # noqa: B010
    setattr(_function, "reduceat", elementwise.reduceat(_function))  # noqa: B010
for _function, _what in _ACCUMULATE.items():
    setattr(_function, "accumulate", _accumulate(_function, _what))  # noqa: B010
for _function, _how in _AT.items():
    setattr(_function, "at", _at(_function, _how))  # noqa: B010
