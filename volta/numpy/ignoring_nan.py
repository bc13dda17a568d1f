"""Reductions and scans that leave NaN out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.interp import get_aval
from volta.numpy import binary
from volta.numpy.promotion import as_value, aval_of, convert, is_number, scalar_like
from volta.numpy.reductions import (
    Axis,
    all,
    argmax,
    argmin,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from volta.numpy.scans import cumprod, cumsum
from volta.numpy.ufuncs import isnan
from volta.ops import lax


def _without_nan(x: Array, neutral: Any, wanted: Any = None) -> Array:
    if wanted is not None and is_number(x) and dtypes.is_inexact(dtypes.canonicalize(wanted)):
        x = as_value(convert(x, dtypes.canonicalize(wanted)))  # a number is rounded once
    dtype, x = aval_of("", x).dtype, as_value(x)
    return lax.select_n(isnan(x), x, convert(neutral, dtype)) if dtypes.is_inexact(dtype) else x


def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """:func:`sum` with NaN counted as 0."""
    return sum(_without_nan(a, 0, dtype), axis, dtype, keepdims=keepdims, initial=initial, where=where)


def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Array:
    """:func:`prod` with NaN counted as 1."""
    return prod(_without_nan(a, 1, dtype), axis, dtype, keepdims=keepdims, initial=initial, where=where)


def _nan_extreme(x: Array, axis: Axis, keepdims: bool, initial: Any, where: Any, reduce: Any, worst: Any) -> Array:
    filled = _without_nan(x, worst(aval_of("", x).dtype))
    out = reduce(filled, axis, keepdims=keepdims, initial=initial, where=where)
    if not dtypes.is_inexact(get_aval(x).dtype) or initial is not None:
        return out
    empty = all(isnan(x), axis, keepdims=keepdims, where=where)
    return lax.select_n(empty, out, scalar_like(out, math.nan))


def nanmax(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """:func:`max` of the elements that are not NaN; NaN where there are none."""
    return _nan_extreme(a, axis, keepdims, initial, where, max, dtypes.lowest)


def nanmin(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """:func:`min` of the elements that are not NaN; NaN where there are none."""
    return _nan_extreme(a, axis, keepdims, initial, where, min, dtypes.highest)


def _not_nan(x: Array, where: Any) -> Array:
    mask = lax.bitwise_not(isnan(x))
    return mask if where is None else binary.logical_and(mask, where)


def nanmean(a: ArrayLike, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """:func:`mean` of the elements that are not NaN."""
    return mean(a, axis, dtype, keepdims=keepdims, where=_not_nan(a, where))


def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: int = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
) -> Array:
    """:func:`var` of the elements that are not NaN."""
    return var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=_not_nan(a, where), mean=mean)


def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: int = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
) -> Array:
    """:func:`std` of the elements that are not NaN."""
    return std(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=_not_nan(a, where), mean=mean)


def nanargmax(a: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """:func:`argmax` of the elements that are not NaN; -1 where there are none."""
    return _nan_position(a, axis, keepdims, argmax, dtypes.lowest)


def nanargmin(a: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """:func:`argmin` of the elements that are not NaN; -1 where there are none."""
    return _nan_position(a, axis, keepdims, argmin, dtypes.highest)


def _nan_position(x: Array, axis: int | None, keepdims: bool, position: Any, worst: Any) -> Array:
    out = position(_without_nan(x, worst(aval_of("", x).dtype)), axis, keepdims=keepdims)
    if not dtypes.is_inexact(get_aval(x).dtype):
        return out
    return lax.select_n(all(isnan(x), axis, keepdims=keepdims), out, np.int32(-1))


def nancumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """:func:`cumsum` with NaN counted as 0."""
    return cumsum(_without_nan(a, 0, dtype), axis, dtype)


def nancumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """:func:`cumprod` with NaN counted as 1."""
    return cumprod(_without_nan(a, 1, dtype), axis, dtype)
