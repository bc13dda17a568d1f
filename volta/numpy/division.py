"""Division with a remainder: of floats as the Python array API's special cases say, of integers defined for 0 too.

The quotient is rounded down and the remainder has the divisor's sign, also where either is a zero. By zero the quotient
of floats is that of true division, while integers give 0, quotient and remainder, as in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.numpy.promotion import aval_of, common_dtype, convert, number_operands, scalar_like, zero_like
from volta.ops import lax


def _is_float(x: Any, y: Any) -> bool:
    return dtypes.is_float(common_dtype("divmod", x, y)[0])


def fmod(x: ArrayLike, y: ArrayLike) -> Array:
    """The remainder of the division truncated towards 0: it has the sign of ``x``. Of integers by 0 it is 0.

    >>> fmod(np.float32([-7, 7]), np.float32(3))
    Array([-1.,  1.], dtype=float32)
    """
    x, y = number_operands("fmod", x, y)
    rem = lax.rem(x, y)
    return rem if _is_float(x, y) else _zero_where_none(rem, y)


def remainder(x: ArrayLike, y: ArrayLike) -> Array:
    """The remainder of the floor division: it has the sign of ``y``, as Python's ``%``. Of integers by 0 it is 0.

    >>> remainder(np.int32([-7, 7, 7]), np.int32([3, -3, 0]))
    Array([ 2, -2,  0], dtype=int32)
    """
    x, y = number_operands("remainder", x, y)
    rem = lax.rem(x, y)
    if _is_float(x, y):
        return _signed(_floored(rem, y), y)
    return _zero_where_none(rem if _is_unsigned(rem) else _floored(rem, y), y)


mod = remainder


def floor_divide(x: ArrayLike, y: ArrayLike) -> Array:
    """``x // y``: the quotient rounded down. Of floats by 0 it is ``x / y``, of integers 0.

    >>> floor_divide(np.int32([-7, 7, 7]), np.int32([3, -3, 0]))
    Array([-3, -3,  0], dtype=int32)
    """
    x, y = number_operands("floor_divide", x, y)
    return _float_quotient(x, y) if _is_float(x, y) else _integer_quotient(x, y)


def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """``(x // y, x % y)``.

    >>> divmod(np.float32(-7), np.float32(2))
    (Array(-4., dtype=float32), Array(1., dtype=float32))
    """
    return floor_divide(x, y), remainder(x, y)


# -- how a truncated division becomes a floored one --------------------------------------------------------------------


def _is_unsigned(x: Any) -> bool:
    return dtypes.is_unsigned(aval_of("", x).dtype)


def _differ(rem: Any, y: Any) -> Any:
    """Where the remainder of the truncated division has the wrong sign."""
    zero = zero_like(rem)
    return lax.bitwise_and(lax.ne(lax.lt(rem, zero), lax.lt(y, zero)), lax.ne(rem, zero))


def _floored(rem: Any, y: Any) -> Any:
    return lax.select_n(_differ(rem, y), rem, lax.add(rem, y))


def _signed(rem: Any, y: Any) -> Any:
    """A zero with the sign of ``y``; other remainders have it already. +0 is added, which has a derivative."""
    below = lax.lt(y, zero_like(rem))
    positive = lax.add(lax.select_n(below, rem, lax.neg(rem)), scalar_like(rem, 0.0))
    return lax.select_n(below, positive, lax.neg(positive))


def _float_quotient(x: Any, y: Any) -> Any:
    own, weak = common_dtype("floor_divide", x, y)
    wide = dtypes.compute_dtype(own)  # so that a half float's quotient is rounded once
    x, y = convert(x, wide, weak), convert(y, wide, weak)
    rem = lax.rem(x, y)
    quotient = lax.div(lax.sub(x, rem), y)
    quotient = lax.select_n(_differ(rem, y), quotient, lax.sub(quotient, scalar_like(quotient, 1.0)))
    quotient = lax.add(lax.round(quotient), scalar_like(quotient, 0.0))
    exact = lax.bitwise_or(lax.eq(x, zero_like(rem)), lax.eq(y, zero_like(rem)))  # a zero, an infinity or NaN
    return convert(lax.select_n(exact, quotient, lax.floor(lax.div(x, y))), own, weak)


def _integer_quotient(x: Any, y: Any) -> Any:
    quotient = lax.div(x, y)
    if not _is_unsigned(quotient):
        down = _differ(lax.rem(x, y), y)
        quotient = lax.select_n(down, quotient, lax.sub(quotient, scalar_like(quotient, 1)))
    return _zero_where_none(quotient, y)


def _zero_where_none(result: Any, y: Any) -> Any:
    """``result``, and 0 where the divisor is 0; what is known to be none is not asked."""
    if not isinstance(y, Array) and np.all(np.asarray(y) != 0):
        return result
    return lax.select_n(lax.eq(y, zero_like(result)), result, scalar_like(result, 0))
