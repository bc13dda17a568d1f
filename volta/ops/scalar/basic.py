"""Elementwise operations that the builder has as they are, and those that are a few instructions."""

from __future__ import annotations

import numpy as np

from volta.core import dtypes
from volta.ops.scalar.parts import NAN, Builder, Value


def add(b: Builder, x: Value, y: Value) -> Value:
    return b.add(x, y)


def sub(b: Builder, x: Value, y: Value) -> Value:
    return b.sub(x, y)


def mul(b: Builder, x: Value, y: Value) -> Value:
    return b.mul(x, y)


def div(b: Builder, x: Value, y: Value) -> Value:
    """Quotient; of integers truncated, with x / 0 = -1 and minimum / -1 = minimum."""
    return b.div(x, y)


def rem(b: Builder, x: Value, y: Value) -> Value:
    """Remainder of the truncated quotient, with the sign of x (C's fmod); of integers x rem 0 = x."""
    return b.rem(x, y)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z with one rounding."""
    return b.fma(x, y, z)


def neg(b: Builder, x: Value) -> Value:
    return b.neg(x)


def abs(b: Builder, x: Value) -> Value:
    return b.abs(x)


def sign(b: Builder, x: Value) -> Value:
    """-1, 0 or 1; a zero keeps its sign and a NaN stays NaN."""
    if x.dtype in ("float32", "float64"):
        return b.select(b.isnan(x), NAN, b.select(x == 0.0, x, b.copysign(b.const(x.dtype, 1.0), x)))
    positive = b.select(x > 0, b.const(x.dtype, 1), 0)
    return positive if x.dtype.startswith("uint") else b.select(x < 0, -1, positive)


def max(b: Builder, x: Value, y: Value) -> Value:
    """The larger; a NaN wins, +0 > -0."""
    return b.max(x, y)


def min(b: Builder, x: Value, y: Value) -> Value:
    """The smaller; a NaN wins, -0 < +0."""
    return b.min(x, y)


def clamp(b: Builder, low: Value, x: Value, high: Value) -> Value:
    """min(max(x, low), high)."""
    return b.min(b.max(x, low), high)


def eq(b: Builder, x: Value, y: Value) -> Value:
    return b.eq(x, y)


def ne(b: Builder, x: Value, y: Value) -> Value:
    return b.ne(x, y)


def lt(b: Builder, x: Value, y: Value) -> Value:
    return b.lt(x, y)


def le(b: Builder, x: Value, y: Value) -> Value:
    return b.le(x, y)


def gt(b: Builder, x: Value, y: Value) -> Value:
    return b.gt(x, y)


def ge(b: Builder, x: Value, y: Value) -> Value:
    return b.ge(x, y)


def select(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    """x where the condition holds, else y."""
    return b.select(condition, x, y)


def logical_and(b: Builder, x: Value, y: Value) -> Value:
    """Bitwise and; of bools the logical one."""
    return b.and_(x, y)


def logical_or(b: Builder, x: Value, y: Value) -> Value:
    """Bitwise or; of bools the logical one."""
    return b.or_(x, y)


def logical_xor(b: Builder, x: Value, y: Value) -> Value:
    """Bitwise exclusive or; of bools the logical one."""
    return b.xor(x, y)


def logical_not(b: Builder, x: Value) -> Value:
    """Bitwise complement; of bools the logical one."""
    return b.not_(x)


bitwise_and, bitwise_or, bitwise_xor, bitwise_not = logical_and, logical_or, logical_xor, logical_not


def shift_left(b: Builder, x: Value, y: Value) -> Value:
    """x * 2^y modulo the width; 0 where y is not in [0, width)."""
    return b.shl(x, y)


def shift_right_arithmetic(b: Builder, x: Value, y: Value) -> Value:
    """Right shift that fills with the sign; all sign where y is not in [0, width)."""
    return b.shr_arithmetic(x, y)


def shift_right_logical(b: Builder, x: Value, y: Value) -> Value:
    """Right shift that fills with zeros; 0 where y is not in [0, width)."""
    return b.shr_logical(x, y)


def population_count(b: Builder, x: Value) -> Value:
    return b.popcount(x)


def clz(b: Builder, x: Value) -> Value:
    """Count of leading zero bits; the width for 0."""
    return b.clz(x)


def floor(b: Builder, x: Value) -> Value:
    return b.floor(x)


def ceil(b: Builder, x: Value) -> Value:
    return b.ceil(x)


def trunc(b: Builder, x: Value) -> Value:
    return b.trunc(x)


def round(b: Builder, x: Value) -> Value:
    """The nearest integer, ties to even."""
    return b.round_even(x)


def is_finite(b: Builder, x: Value) -> Value:
    return b.is_finite(x)


def is_nan(b: Builder, x: Value) -> Value:
    return b.isnan(x)


def copysign(b: Builder, x: Value, y: Value) -> Value:
    """The magnitude of x with the sign of y."""
    return b.copysign(x, y)


def to_bits(b: Builder, x: Value, dtype: np.dtype) -> Value:
    """The bits of a number of `dtype`, unsigned. A register holds a half float as float32, so the dtype is told."""
    unsigned = f"uint{8 * dtype.itemsize}"
    if dtypes.compute_dtype(dtype) != dtype:
        return b.from_memory(b.to_memory(x, dtype.name), unsigned)
    return b.bitcast(x, unsigned)


def from_bits(b: Builder, bits: Value, dtype: np.dtype) -> Value:
    """The number of `dtype` with these bits."""
    if dtypes.compute_dtype(dtype) != dtype:
        return b.from_memory(b.to_memory(bits, bits.dtype), dtype.name)
    return b.bitcast(bits, dtype.name)


def nextafter(b: Builder, x: Value, y: Value, dtype: np.dtype | None = None) -> Value:
    """The next float of `dtype` (None: of the kind of x) after x towards y; y itself if they are equal."""
    dtype = np.dtype(x.dtype) if dtype is None else dtype
    bits = to_bits(b, x, dtype)
    away = b.lt(x, y) == b.gt(x, 0.0)  # the magnitude grows
    moved = from_bits(b, b.select(away, bits + 1, bits - 1), dtype)
    smallest = b.copysign(from_bits(b, b.const(bits.dtype, 1), dtype), y)
    moved = b.select(x == 0.0, smallest, moved)
    return b.select(b.isnan(x) | b.isnan(y), NAN, b.select(x == y, y, moved))


def convert(b: Builder, x: Value, dtype: str) -> Value:
    """Conversion of kind: float to int saturates (NaN gives 0), to a float it rounds to nearest even."""
    y = b.cast(x, dtype)
    return b.fence(y) if {x.dtype, y.dtype} == {"float32", "float64"} else y


def bitcast(b: Builder, x: Value, dtype: str) -> Value:
    """The same bits as another kind of the same width."""
    return b.bitcast(x, dtype)


def sqrt(b: Builder, x: Value) -> Value:
    """Square root, correctly rounded."""
    return b.sqrt(x)


def square(b: Builder, x: Value) -> Value:
    return x * x


def rsqrt(b: Builder, x: Value) -> Value:
    """1 / sqrt(x). float32 and float64: 0.51 ULP."""
    low, up, back = (2.0**-100, 2.0**64, 2.0**32) if x.dtype == "float32" else (2.0**-900, 2.0**256, 2.0**128)
    tiny = x < low
    return b.inverse_root(x * b.select(tiny, b.const(x.dtype, up), 1.0)) * b.select(tiny, b.const(x.dtype, back), 1.0)


def integer_pow(b: Builder, x: Value, exponent: int) -> Value:
    """x ** exponent for a fixed integer exponent, by squaring from the lowest bit up.

    The order of the products is part of the definition. A negative exponent of a float is 1 / (x ** -exponent).
    """
    if exponent < 0:
        if x.dtype not in ("float32", "float64"):
            raise TypeError(f"integer_pow of {x.dtype} by the negative exponent {exponent}")
        return 1.0 / integer_pow(b, x, -exponent)
    if exponent == 0:
        return b.const(x.dtype, 1)
    result = None
    power = x
    while exponent:
        if exponent & 1:
            result = power if result is None else result * power
        exponent >>= 1
        if exponent:
            power = power * power
    return result


def pow_int(b: Builder, x: Value, n: Value) -> Value:
    """x ** n for an int64 n, by the products of :func:`integer_pow` in their order.

    An integer to a negative power is 0, but 1 and -1, whose powers are their own inverses.
    """
    negative = n < 0
    left = b.cast(b.select(negative, -n, n), "uint64")
    result, power = b.const(x.dtype, 1), x
    for bit in range(64):
        result = b.select((left & 1) != 0, result * power, result)
        left = left >> 1
        if bit < 63:
            power = power * power
    if x.dtype in ("float32", "float64"):
        return b.select(negative, 1.0 / result, result)
    unit = (x == 1) if x.dtype.startswith("u") else (x == 1) | (x == -1)
    return b.select(negative & ~unit, 0, result)
