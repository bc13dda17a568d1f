"""exp, exp2, expm1 and the logistic function.

exp(x) = 2^n exp(r) with n the integer nearest to x / ln 2 and |r| <= ln 2 / 2.
"""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import (
    LN2,
    LN2_HI,
    LN2_LO,
    LOG2E,
    MAGIC32,
    MAGIC64,
    Builder,
    Value,
    horner,
    magic_integer,
    narrow,
    power_of_two,
    quick_two_sum,
    scale,
    widen,
)

# exp(r) on [-ln 2 / 2, ln 2 / 2] in float32, tuned so that all inputs of exp stay within 0.87 ULP.
_EXP32 = (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0)
# All but the last two of these for h = r / 2, and doubled: exp(2h) = 1 + 2 (h + h^2 p(h)).
_EXP32_OF_HALF = tuple(c * 2.0**k for k, c in zip((5, 4, 3, 2, 1), _EXP32, strict=False))
_LN2_HI32, _LN2_LO32 = 0.693145751953125, 1.428606765330187e-06


def exp(b: Builder, x: Value) -> Value:
    """e ** x. float32: 0.87 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        x = b.between(x, -104.5, 89.0)
        # 2^n as two powers, whose exponents are the halves of n + 2 * 127.
        t = b.fma(x, LOG2E, MAGIC32 + 254)
        n = t - (MAGIC32 + 254)
        r = b.fma(n, -_LN2_LO32, b.fma(n, -_LN2_HI32, x))
        twice = b.bitcast(t, "int32")
        half = twice >> 1
        low, high = (b.bitcast(e << 23, "float32") for e in (half, twice - half))
        return horner(b, r, _EXP32) * low * high
    fraction, exponent = exp_parts(b, x)
    return scale(b, fraction, exponent)


def exp_moderate(b: Builder, x: Value) -> Value:
    """float32: `exp` where |x| < 80, bit for bit: one scaling is enough."""
    t = b.fma(x, LOG2E, MAGIC32)
    n = t - MAGIC32
    r = b.fma(n, -_LN2_LO32, b.fma(n, -_LN2_HI32, x))
    return b.bitcast(b.bitcast(horner(b, r, _EXP32), "int32") + (b.bitcast(t, "int32") << 23), "float32")


def exp_of_negative(b: Builder, x: Value) -> Value:
    """float32: `exp` where x <= 0 or x is NaN, bit for bit: the first scaling, upwards, is exact for all of these."""
    up = 65
    x = b.between(x, -104.5, None)
    t = b.fma(x, LOG2E, MAGIC32 + 127 + up)
    n = t - (MAGIC32 + 127 + up)
    r = b.fma(n, -_LN2_LO32, b.fma(n, -_LN2_HI32, x))
    power = b.bitcast(b.bitcast(t, "int32") << 23, "float32")  # 2 ** (n + up), the rest of t is shifted out
    return horner(b, r, _EXP32) * power * 2.0**-up


def exp_of_double(b: Builder, x: Value) -> Value:
    """float32: e ** 2x for 0 <= x < 40, where one scaling is enough.

    With r = 2h the polynomials are in h: powers of two among the coefficients change no rounding.
    """
    t = b.fma(x, 2.0 * LOG2E, MAGIC32)
    n = t - MAGIC32
    h = b.fma(n, -0.5 * _LN2_LO32, b.fma(n, -0.5 * _LN2_HI32, x))
    fraction = b.fma(b.fma(horner(b, h, _EXP32_OF_HALF), h * h, h), 2.0, 1.0)  # a little nearer than one chain
    return b.bitcast(b.bitcast(fraction, "int32") + (b.bitcast(t, "int32") << 23), "float32")


def exp_parts(b: Builder, x: Value, low: Value | None = None) -> tuple[Value, Value]:
    """float64: exp(x + low) as a number in [0.7, 1.42] and the int64 power of two to scale it by."""
    x = b.select(x > 1000.0, 1000.0, x)
    x = b.select(x < -1000.0, -1000.0, x)
    t = b.fma(x, LOG2E, MAGIC64)
    n = t - MAGIC64
    near = b.fma(n, -LN2_HI, x)  # exact
    shift = n * -LN2_LO if low is None else b.fma(n, -LN2_LO, low)
    r, rest = quick_two_sum(b, near, shift)
    fraction = 1.0 + (r + b.fma(r * r, horner(b, r, table.EXP), rest))
    return fraction, magic_integer(b, t)


def exp_short(b: Builder, x: Value) -> Value:
    """float64: exp(x) with a relative error below 2^-32, for |x| < 700."""
    fraction, power = exp_short_parts(b, x)
    return b.times_power(fraction, power)


def exp_short_parts(b: Builder, x: Value, one: float = 1.0) -> tuple[Value, Value]:
    """`exp_short` as a number in [0.7, 1.42] and the int64 whose lowest bits are the power of two to scale it by.

    ``one`` is the constant term, in which a caller may make up for small errors of its own.
    """
    t = b.fma(x, LOG2E, MAGIC64)
    r = b.fma(t - MAGIC64, -LN2, x)
    return b.fma(b.fma(horner(b, r, table.EXP_SHORT), r, 1.0), r, one), b.bitcast(t, "int64")


def exp2(b: Builder, x: Value) -> Value:
    """2 ** x, exact for integers. float32: 0.51 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        return narrow(b, exp2_short(b, widen(b, b.between(x, -151.0, 129.0))))
    x = b.select(x > 1100.0, 1100.0, x)
    x = b.select(x < -1100.0, -1100.0, x)
    return exp2_wide(b, x, None)


def exp2_short(b: Builder, x: Value) -> Value:
    """float64: 2 ** x with a relative error below 2^-32, for |x| < 1000."""
    t = x + MAGIC64
    r = (x - (t - MAGIC64)) * LN2
    fraction = b.fma(r * r, horner(b, r, table.EXP_SHORT), 1.0 + r)
    return b.times_power(fraction, b.bitcast(t, "int64"))


def exp2_wide(b: Builder, x: Value, low: Value | None) -> Value:
    """float64: 2 ** (x + low) for |x| <= 1100 and a small low."""
    t = x + MAGIC64
    f = x - (t - MAGIC64)
    r = f * LN2
    rest = b.fma(f, LN2, -r) + f * 2.3190468138462996e-17  # ln 2 - LN2
    if low is not None:
        r, rest = quick_two_sum(b, r, b.fma(low, LN2, rest))
    fraction = 1.0 + (r + b.fma(r * r, horner(b, r, table.EXP), rest))
    return scale(b, fraction, magic_integer(b, t))


def expm1(b: Builder, x: Value) -> Value:
    """e ** x - 1, accurate near 0. float32: 0.51 ULP; float64: 2 ULP."""
    if x.dtype == "float32":
        wide = widen(b, b.between(x, -30.0, 89.0))
        return b.select(x == 0.0, x, narrow(b, expm1_short(b, wide)))
    high = b.select(x > 710.0, 710.0, x)
    high = b.select(high < -60.0, -60.0, high)
    total, low = expm1_wide(b, high)
    return b.select(x == 0.0, x, b.select(x > 709.9, float("inf"), total + low))


def expm1_short(b: Builder, x: Value) -> Value:
    """float64: e ** x - 1 with a relative error below 2^-30, for |x| < 700."""
    t = b.fma(x, LOG2E, MAGIC64)
    n = t - MAGIC64
    r = b.fma(n, -LN2_LO, b.fma(n, -LN2_HI, x))
    power = power_of_two(b, magic_integer(b, t), "float64")
    return b.fma(power, b.fma(r * r, horner(b, r, table.EXP_SHORT), r), power - 1.0)


def expm1_wide(b: Builder, x: Value) -> tuple[Value, Value]:
    """float64: e ** x - 1 as a sum of two, for -700 < x < 710."""
    t = b.fma(x, LOG2E, MAGIC64)
    n = t - MAGIC64
    near = b.fma(n, -LN2_HI, x)
    r, rest = quick_two_sum(b, near, n * -LN2_LO)
    tail = b.fma(r * r, horner(b, r, table.EXP), rest)
    # 2^n (1 + r + tail) - 1 with 2^n halved, because 2^1024 is not a float.
    half = power_of_two(b, magic_integer(b, t) - 1, "float64")
    one = half - 0.5
    big, small = half * r, one
    swap = abs(big) < abs(small)
    total, low = quick_two_sum(b, b.select(swap, small, big), b.select(swap, big, small))
    low = b.fma(half, tail, low)
    # half - 0.5 is rounded where 2^n is beyond 2^53 or below 2^-53; there the error does not matter.
    return total * 2.0, low * 2.0


def logistic(b: Builder, x: Value) -> Value:
    """1 / (1 + e ** -x). float32: 0.51 ULP; float64: 3 ULP."""
    if x.dtype == "float32":
        limited = b.between(x, -104.5, 104.5)
        total = 1.0 + exp_short(b, -widen(b, limited))
        return narrow(b, b.short_quotient(b.const("float64", 1.0), total, far=True))
    # e / (1 + e) where x < 0, so that the exponential never overflows.
    e = exp(b, -abs(x))
    return b.select(x < 0.0, e, 1.0) / (1.0 + e)
