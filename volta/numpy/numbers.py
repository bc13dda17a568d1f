"""Integers' divisors, the parts of a float, and window functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError
from volta.core.floats import standard
from volta.core.source import at_user_line
from volta.numpy import binary, ufuncs
from volta.numpy.creation import arange
from volta.numpy.promotion import aval_of, convert, operands, promote_floats, scalar_like, zero_like
from volta.numpy.smooth import i0
from volta.ops import lax

# The longest runs of Euclid's algorithm, those of neighbouring Fibonacci numbers, for integers of 8 to 64 bits.
_ROUNDS = {1: 13, 2: 24, 4: 47, 8: 93}


def _sizes(name: str, *xs: Array) -> tuple[list[Any], ShapedArray]:
    """The sizes of integers, unsigned, as the least integer's size is no integer of its own dtype; and their type."""
    out = operands(name, *xs)
    aval = aval_of(name, out[0])
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(at_user_line(f"{name}: needs integers, not {aval.dtype}"))
    unsigned = dtypes.UNSIGNED[(1, 2, 4, 8).index(aval.dtype.itemsize)]
    return [lax.convert_element_type(ufuncs.absolute(x), unsigned) for x in out], aval


def _common_divisor(a: Any, b: Any) -> Any:
    zero, one = scalar_like(a, 0), scalar_like(a, 1)
    for _ in range(_ROUNDS[aval_of("gcd", a).dtype.itemsize]):
        done = lax.eq(b, zero)
        rest = lax.rem(a, lax.select_n(done, b, one))
        a, b = lax.select_n(done, b, a), lax.select_n(done, rest, zero)
    return a


def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The greatest common divisor, never negative, by Euclid's algorithm with as many rounds as the dtype may need.

    That of the least integer and itself or 0 has no place in a signed dtype: it is the least integer, as in NumPy.

    >>> gcd(np.int32([12, 7]), 18)
    Array([6, 1], dtype=int32)
    """
    (a, b), aval = _sizes("gcd", x1, x2)
    return lax.convert_element_type(_common_divisor(a, b), aval.dtype, weak_type=aval.weak_type)


def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The least common multiple, 0 where an operand is 0.

    >>> lcm(np.int32([4, 0]), 6)
    Array([12,  0], dtype=int32)
    """
    (a, b), aval = _sizes("lcm", x1, x2)
    d = _common_divisor(a, b)
    multiple = lax.mul(a, lax.div(b, lax.max(d, scalar_like(d, 1))))
    return lax.convert_element_type(multiple, aval.dtype, weak_type=aval.weak_type)


# -- the parts of a float ----------------------------------------------------------------------------------------------

_BITS = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


def frexp(x: ArrayLike) -> tuple[Array, Array]:
    """The mantissa, within [0.5, 1), and the exponent (int32) of ``x == mantissa * 2**exponent``.

    The mantissa's derivative is that of ``x * 2**-exponent``; the exponent, an integer, has none.

    >>> frexp(np.float32([6]))
    (Array([0.75], dtype=float32), Array([3], dtype=int32))
    """
    x = promote_floats("frexp", x)[0]
    own = aval_of("frexp", x).dtype
    wide = convert(x, dtypes.compute_dtype(own))  # the halves' numbers are all normal in float32
    dtype = aval_of("frexp", wide).dtype
    mantissa_bits, integer = dtypes.finfo(dtype).nmant, _BITS[dtype.itemsize]
    bias = (1 << (8 * dtype.itemsize - mantissa_bits - 2)) - 1
    limits = dtypes.finfo(dtype)
    small = lax.lt(lax.abs(wide), dtype.type(limits.tiny))
    scaled = lax.select_n(small, wide, lax.mul(wide, dtype.type(2.0**mantissa_bits * 2)))
    bits = lax.bitcast_convert_type(scaled, integer)
    field = lax.bitwise_and(lax.shift_right_logical(bits, integer.type(mantissa_bits)), integer.type(2 * bias + 1))
    exponent = convert(lax.sub(field, integer.type(bias - 1)), dtypes.int32)
    exponent = lax.select_n(small, exponent, lax.sub(exponent, np.int32(mantissa_bits + 1)))
    odd = lax.bitwise_or(lax.bitwise_not(lax.is_finite(wide)), lax.eq(wide, zero_like(wide)))
    exponent = lax.select_n(odd, exponent, np.int32(0))
    # exact: powers of 2, and the mantissa has the bits of x
    return convert(binary.ldexp(wide, lax.neg(exponent)), own), exponent


def spacing(x: ArrayLike) -> Array:
    """The distance from ``x`` to the next float away from 0, with the sign of ``x``.

    >>> spacing(np.float32(1)) == np.finfo(np.float32).eps
    Array(True, dtype=bool)
    """
    x = promote_floats("spacing", x)[0]
    further = lax.nextafter(x, binary.copysign(scalar_like(x, math.inf), x))
    return lax.sub(further, x)


# -- windows -----------------------------------------------------------------------------------------------------------


@standard
def _window(M: int, f: Any) -> Array:
    """``f`` of the phases 2 pi n / (M - 1)."""
    if M <= 1:
        return lax.full((max(M, 0),), 1, dtypes.float32)
    n = arange(M, dtype=dtypes.float32)
    return f(lax.mul(n, np.float32(2 * math.pi / (M - 1))))


def hanning(M: int) -> Array:
    """The Hann window of ``M`` points."""
    return _window(M, lambda t: 0.5 - 0.5 * lax.cos(t))


def hamming(M: int) -> Array:
    """The Hamming window of ``M`` points."""
    return _window(M, lambda t: 0.54 - 0.46 * lax.cos(t))


def blackman(M: int) -> Array:
    """The Blackman window of ``M`` points."""
    return _window(M, lambda t: 0.42 - 0.5 * lax.cos(t) + 0.08 * lax.cos(2 * t))


def bartlett(M: int) -> Array:
    """The triangular window of ``M`` points, 0 at both ends."""
    if M <= 1:
        return lax.full((max(M, 0),), 1, dtypes.float32)
    n = arange(M, dtype=dtypes.float32)
    return 1 - lax.abs(2 * n / (M - 1) - 1)


@standard
def kaiser(M: int, beta: float) -> Array:
    """The Kaiser window of ``M`` points with the shape ``beta``."""
    if M <= 1:
        return lax.full((max(M, 0),), 1, dtypes.float32)
    half = np.float32(0.5 * (M - 1))
    n = (arange(M, dtype=dtypes.float32) - half) / half
    return i0(beta * lax.sqrt(lax.max(1 - n * n, np.float32(0)))) / i0(np.float32(beta))
