"""``add.reduce``, ``multiply.accumulate``, ``subtract.outer``, ``add.at``: methods of NumPy's functions of two arrays.

The functions stay plain functions; these are attributes of theirs. ``reduce`` and ``accumulate`` are those reductions
and scans that Volta has, and for other functions go from the first element to the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from volta.core import dtypes
from volta.core.array import Array
from volta.numpy import binary, division, elementwise, powers, reductions, scans, smooth, ufuncs
from volta.numpy.creation import asarray
from volta.numpy.promotion import canonical_axis
from volta.ops import lax


def _reduce(function: Callable[[Any, Any], Any], reduction: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(a: Array, axis: Any = 0, dtype: Any = None, *, keepdims: bool = False, **masks: Any) -> Array:
        a = asarray(a, dtype)
        initial = masks.pop("initial", None) if function in _OF_TRUTH else None
        out = reduction(a, axis, keepdims=keepdims, **masks)
        return out if initial is None else function(out, initial)

    reduce.__doc__ = f"``{function.__name__}`` of all elements along ``axis`` (0)."
    return reduce


def _accumulate(own: elementwise.ufunc, function: Any, scan: Callable[..., Any]) -> Callable[..., Any]:
    def accumulate(a: Array, axis: int = 0, dtype: Any = None) -> Array:
        a = asarray(a, dtype)
        if dtypes.is_complex(a.dtype):
            return own.accumulate(a, axis)
        return scan(a, canonical_axis(f"{function.__name__}.accumulate", axis, a.ndim))

    accumulate.__doc__ = f"The running ``{function.__name__}`` along ``axis`` (0)."
    return accumulate


def _at(own: elementwise.ufunc, function: Any, update: str) -> Callable[..., Any]:
    def at(a: Array, indices: Any, b: Array, *, inplace: bool = True) -> Array:
        a = asarray(a)
        if inplace or (dtypes.is_complex(a.dtype) and update not in ("add", "subtract")):
            return own.at(a, indices, b, inplace=inplace)
        return getattr(a.at[indices], update)(b)

    at.__doc__ = f"A copy of ``a`` with ``{function.__name__}(a[i], b)`` at ``indices``, repeated ones included."
    return at


_OUTER = "add subtract multiply divide floor_divide power maximum minimum arctan2 hypot equal not_equal less greater"
_OUTER += " less_equal greater_equal logical_and logical_or bitwise_and bitwise_or bitwise_xor fmax fmin remainder"
_OUTER += " logical_xor logaddexp logaddexp2"
_OF_TRUTH = (binary.logical_and, binary.logical_or)
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

_IDENTITY: dict[str, Any] = {"add": 0, "multiply": 1, "bitwise_and": -1, "bitwise_or": 0, "bitwise_xor": 0}
_IDENTITY |= {"logical_and": True, "logical_or": False, "logical_xor": False, "hypot": 0}
_IDENTITY |= dict.fromkeys(("logaddexp", "logaddexp2"), -math.inf)


def _attach(function: Any, nin: int, identity: Any = None) -> None:
    """Give a function the attributes of a ufunc."""
    own = elementwise.ufunc.of_arrays(function, nin, identity)
    found = {name: getattr(own, name) for name in ("nin", "nout", "nargs", "identity", "reduce", "accumulate", "at")}
    found["reduceat"] = elementwise.reduceat(function)
    found["outer"] = elementwise.outer(function)
    if function in _REDUCE:
        found["reduce"] = _reduce(function, _REDUCE[function])
    if function in _ACCUMULATE:
        found["accumulate"] = _accumulate(own, function, _ACCUMULATE[function])
    if function in _AT:
        found["at"] = _at(own, function, _AT[function])
    for name, value in found.items():
        setattr(function, name, value)


for _name in _OUTER.split():
    _module = next(m for m in (binary, division, powers, smooth) if hasattr(m, _name))
    _attach(getattr(_module, _name), 2, _IDENTITY.get(_name))
_attach(ufuncs.negative, 1)
