"""Numbers on the host in another dtype, converted as kernels convert: a constant has the bits of a computed value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError
from volta.core.extended import is_key, refusal
from volta.core.floats import standard
from volta.core.interp import Tracer
from volta.core.source import at_user_line


@standard
def cast(x: Any, dtype: np.dtype) -> np.ndarray:
    """A NumPy value or a Python number in ``dtype``, rounded once to nearest even; a float becomes an integer by
    truncation and saturation, NaN 0; of a complex number the real part is left.

    >>> cast(3e9, dtypes.int32)[()]
    np.int32(2147483647)
    """
    if is_key(dtype):
        raise DTypeError(at_user_line(f"{x!r:.60} is no {dtype}: {refusal(dtype)}"))
    own = dtypes.of_python_scalar(x)
    x = np.asarray(x, own)
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and not (dtypes.is_complex(dtype) or dtype == dtypes.bool_):
        x = x.real
    if dtypes.is_integer(dtype) and x.dtype.kind in "fV":
        return _saturated(x, dtype)
    with np.errstate(over="ignore"):
        if dtype in (dtypes.float16, dtypes.bfloat16):
            x = _odd_float32(x) if x.dtype == dtypes.float64 else x.astype(dtypes.float32)
        return x.astype(dtype)


def limit_of_conversion(aval: ShapedArray, new: np.dtype) -> tuple[np.dtype, ...]:
    """What a value of this type must fit where it is converted: a Python integer the integer dtype."""
    is_number = dtypes.is_number(aval.dtype, aval.weak_type) and dtypes.is_integer(aval.dtype)
    return (new,) if is_number and dtypes.is_integer(new) else ()


def known_integer(x: Any) -> int | None:
    """The Python integer that ``x`` is, or holds: a jitted function gives numbers back in 64 bits. Else None."""
    if type(x) is int:
        return x
    held = isinstance(x, Array) and not isinstance(x, Tracer) and limit_of_conversion(x.aval, dtypes.DEFAULT_INT)
    return int(x) if held else None


def check_held(x: Any, dtype: np.dtype) -> None:
    """Refuse a Python integer, known by itself or in an array, that an integer dtype cannot hold.

    >>> check_held(300, dtypes.int8)
    Traceback (most recent call last):
    ...
    OverflowError: 300 does not fit int8, which holds -128 to 127; use a wider dtype: x.astype('int64'), or \
numpy.int64 for a number by itself
    """
    if dtypes.is_integer(dtype) and (number := known_integer(x)) is not None:
        limits = dtypes.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise OverflowError(
                at_user_line(
                    f"{number} does not fit {dtype}, which holds {limits.min} to {limits.max}; "
                    "use a wider dtype: x.astype('int64'), or numpy.int64 for a number by itself"
                )
            )


def constant(x: Any, dtype: np.dtype) -> Any:
    """A number as a NumPy scalar of ``dtype``: see :func:`cast`."""
    return cast(x, dtype)[()]


def _odd_float32(x: np.ndarray) -> np.ndarray:
    """float64 in float32, an inexact result made odd, so that a second rounding to fewer bits is as one."""
    near = x.astype(np.float32)
    bits = near.view(np.uint32)
    back = near.astype(np.float64)
    down = np.where(np.abs(back) > np.abs(x), bits - np.uint32(1), bits)
    inexact = (back != x) & ~np.isnan(x)
    return np.where(inexact, down | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def _saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=math.inf, neginf=-math.inf)
    limits = np.iinfo(dtype)
    inside = (wide >= float(limits.min)) & (wide < float(limits.max) + 1)
    low_or_high = np.where(wide < 0, limits.min, limits.max).astype(dtype)
    return np.where(inside, np.where(inside, wide, 0).astype(dtype), low_or_high).astype(dtype)
