"""Steps that several functions share: polynomials, powers of two, taking floats apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

# The builder and its values (volta.emit.builder) belong to a higher layer; here only their vocabulary is used.
Builder: TypeAlias = Any
Value: TypeAlias = Any

NAN = float("nan")
INF = float("inf")
# Adding these rounds a smaller float to an integer and leaves that integer in the low bits.
MAGIC32 = 1.5 * 2.0**23
MAGIC64 = 1.5 * 2.0**52

LN2 = 0.6931471805599453
# ln 2 = LN2_HI + LN2_LO; LN2_HI has 32 bits, so that its products with exponents are exact.
LN2_HI = 0.6931471803691238
LN2_LO = 1.9082149292705877e-10
LOG2E = 1.4426950408889634
EXPONENT = 2.0**-20  # what an exponent is counted in that stands where float64 has it in its high half


def horner(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with the given coefficients, highest power first, by one chain of fmas."""
    total = b.const(x.dtype, coefficients[0])
    for coefficient in coefficients[1:]:
        total = b.fma(total, x, coefficient)
    return total


def widen(b: Builder, x: Value) -> Value:
    return b.cast(x, "float64")


def narrow(b: Builder, x: Value) -> Value:
    return b.cast(x, "float32")


def power_of_two(b: Builder, exponent: Value, dtype: str) -> Value:
    """2 ** exponent for an integer exponent (int32 for float32, int64 for float64) in the normal range."""
    bias, mantissa = (127, 23) if dtype == "float32" else (1023, 52)
    return b.bitcast((exponent + bias) << mantissa, dtype)


def scale(b: Builder, x: Value, exponent: Value) -> Value:
    """x * 2 ** exponent with one rounding, for exponents up to twice the normal range."""
    half = exponent >> 1
    return x * power_of_two(b, half, x.dtype) * power_of_two(b, exponent - half, x.dtype)


def magic_integer(b: Builder, t: Value) -> Value:
    """The integer in the low bits of `t`, a sum with MAGIC32 or MAGIC64."""
    if t.dtype == "float32":
        return b.bitcast(t, "int32") - b.bitcast(b.const("float32", MAGIC32), "int32")
    return b.bitcast(t, "int64") - b.bitcast(b.const("float64", MAGIC64), "int64")


def small_integer_to_float64(b: Builder, x: Value) -> Value:
    """An int64 below 2^51 in magnitude as float64, without a conversion instruction (AVX2 has none)."""
    return b.bitcast(x + b.bitcast(b.const("float64", MAGIC64), "int64"), "float64") - MAGIC64


def two_sum(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """x + y exactly, as the rounded sum and its error."""
    total = x + y
    from_y = total - x
    return total, (x - (total - from_y)) + (y - from_y)


def quick_two_sum(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """As `two_sum` where |x| >= |y|."""
    total = x + y
    return total, y - (total - x)


def two_product(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """x * y exactly, as the rounded product and its error."""
    product = x * y
    return product, b.fma(x, y, -product)
