"""Powers: to integers by multiplication, to floats by ``pow``; what is known of an exponent never changes a bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.branches import switch
from volta.numpy.promotion import as_value, aval_of, convert, float_operands, is_number, operands
from volta.ops import lax


def power(x: ArrayLike, y: ArrayLike) -> Array:
    """``x ** y``. A Python integer exponent is exact repeated multiplication; 0.5 is the square root, as in NumPy.

    An integer to a negative power that is only known when the program runs is rounded towards zero: 1 and -1 to
    themselves or their square, all else to 0.

    Raises:
        DTypeError: for an integer to a negative Python integer.
    """
    dtype = aval_of("power", x).dtype
    if type(y) is int and y < 0 and not dtypes.is_inexact(dtype):
        raise DTypeError(
            at_user_line(
                f"power: {dtype} ** {y}: integers have no negative integer powers; make one a float: x ** {y}.0"
            )
        )
    if type(y) is int and dtype != dtypes.bool_:
        return lax.integer_pow(as_value(x), y)
    if type(y) is float and dtypes.is_inexact(dtype) and y in _SPECIAL:
        return _SPECIAL[y](as_value(x))
    if is_number(y) and isinstance(y, Array):
        if dtypes.is_integer(get_aval(y).dtype):
            return _to_an_integer(as_value(x), y)
        if dtypes.is_inexact(dtype) and not dtypes.is_complex(get_aval(y).dtype):
            return _to_a_number(as_value(x), y)
    x, y = operands("power", x, y)
    is_bool = aval_of("power", x).dtype == dtypes.bool_
    return lax.pow(*((convert(v, dtypes.DEFAULT_INT) for v in (x, y)) if is_bool else (x, y)))


pow = power

_SPECIAL: dict[float, Callable[[Any], Any]] = {
    -1.0: lambda x: lax.integer_pow(x, -1),
    0.5: lax.sqrt,
    2.0: lambda x: lax.integer_pow(x, 2),
}


def _to_an_integer(x: Any, n: Any) -> Array:
    """``x`` to a Python integer that is traced, with the bits of one that is known."""
    is_bool = get_aval(x).dtype == dtypes.bool_
    return lax.pow_int(convert(x, dtypes.DEFAULT_INT) if is_bool else x, convert(n, dtypes.int64, weak=True))


def _to_a_number(x: Any, y: Any) -> Array:
    """``x`` to a Python float that is traced: where it has a value that ``power`` knows, that value's rule runs."""
    index: Any = np.int32(0)
    for i, special in enumerate(_SPECIAL):
        index = lax.select_n(lax.eq(y, special), index, np.int32(i + 1))
    rules = [lambda x, y: lax.pow(x, y), *(lambda x, y, f=f: f(x) for f in _SPECIAL.values())]
    return switch(index, rules, x, convert(y, get_aval(x).dtype, get_aval(x).weak_type))


def float_power(x: ArrayLike, y: ArrayLike) -> Array:
    """``x ** y`` in floats."""
    return lax.pow(*float_operands("float_power", x, y))
