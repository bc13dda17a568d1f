"""Operators between Python numbers of which one is traced: Python's own arithmetic, in 64 bits.

``lambda x, s: x * (s + 1)`` computes ``s + 1`` in Python's integers or floats when it runs by itself. Traced, the
number keeps its 64 bits through operators with other numbers, until it meets an array. So both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta.core import dtypes
from volta.core.interp import get_aval
from volta.numpy import binary, complexes, powers, ufuncs
from volta.numpy.promotion import convert, is_number
from volta.ops import lax

Function = Callable[..., Any]


def _is_complex(x: Any) -> bool:
    return dtypes.is_complex(get_aval(x).dtype)


# The functions that are one operation, whatever the dtype.
_PLAIN: dict[Function, Function] = {
    binary.add: lax.add,
    binary.subtract: lax.sub,
    binary.multiply: lax.mul,
    binary.true_divide: lax.div,
    binary.equal: lax.eq,
    binary.not_equal: lax.ne,
    binary.less: lax.lt,
    binary.less_equal: lax.le,
    binary.greater: lax.gt,
    binary.greater_equal: lax.ge,
    ufuncs.negative: lax.neg,
    ufuncs.absolute: lax.abs,
    ufuncs.positive: lambda x: x,
    complexes.real: lambda x: lax.real(x) if _is_complex(x) else x,
    complexes.imag: lambda x: lax.imag(x) if _is_complex(x) else lax.mul(x, 0),
    complexes.conjugate: lambda x: lax.conj(x) if _is_complex(x) else x,
}


def operate(function: Function, *xs: Any) -> Any:
    """``function(*xs)``, in 64 bits where all operands are Python numbers."""
    if not all(map(is_number, xs)):
        return function(*xs)
    dtype, _ = dtypes.promote(*((a.dtype, a.weak_type) for a in map(get_aval, xs)))
    if function is powers.power:
        return _power(xs[0], xs[1], dtype)
    if function is binary.true_divide:
        dtype = dtypes.complex128 if dtypes.is_complex(dtype) else dtypes.float64
    if function in _PLAIN:
        return _PLAIN[function](*(convert(x, dtype, weak=True) for x in xs))
    return _weak(function(*(convert(x, dtype) for x in xs)))


def to_integer(x: Any) -> Any:
    """The Python integer that a number is; arrays stay."""
    return convert(x, dtypes.int64, weak=True) if is_number(x) else x


def _power(x: Any, y: Any, dtype: Any) -> Any:
    """The exponent stays a number: what ``power`` does depends on its value."""
    is_inverse = type(y) is int and y < 0
    real = not dtypes.is_complex(dtype)
    return _weak(powers.power(convert(x, dtypes.float64 if is_inverse and real else dtype), y))


def _weak(out: Any) -> Any:
    if isinstance(out, tuple):
        return tuple(map(_weak, out))
    return lax.convert_element_type(out, get_aval(out).dtype, weak_type=True)
