"""log, log2, log10 and log1p.

x = 2^e m with m around 1; log(m) = 2 atanh(s) with s = (m - 1) / (m + 1), an odd function of s.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import (
    EXPONENT,
    INF,
    LN2,
    LN2_HI,
    LN2_LO,
    LOG2E,
    NAN,
    Builder,
    Value,
    horner,
    narrow,
    small_integer_to_float64,
    two_sum,
    widen,
)

# (log(1 + f) - f + f^2 / 2) / f^3 on [-1/3, 1/3] in float32 (mpmath chebyfit).
_LOG32 = (
    0.11330617, -0.124222, 0.10915655, -0.122887217, 0.142918676, -0.16673316, 0.199999481, -0.249999449, 0.333333343,
)  # fmt: skip
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_TWO_THIRDS_BITS = 0x3FE5555560000000  # of 2/3 in float32
_ROOT_LESS_ONE = 0.4142131805419922  # in float32: 1 more has the bits of _SQRT_HALF_SHORT, and another exponent
_SQRT_HALF_SHORT, _TWO_THIRDS_SHORT = 0x3FE6A09E << 32, 0x3FE55555 << 32  # a little less
LOG2E_LOW = 2.0355273740931033e-17
_LOG10E, _LOG10E_LOW = 0.4342944819032518, 1.098319650216765e-17
# log10(2) as a number of 31 bits, whose products with exponents are exact, and the rest.
_LOG10_2_HI, _LOG10_2_LO = 0.30102999566361177, 3.694239077158931e-13


def _special(b: Builder, x: Value, y: Value) -> Value:
    """The logarithm y of x with the cases that the formula does not give."""
    y = b.select(x == INF, INF, y)
    return b.select(x > 0.0, y, b.select(x == 0.0, b.const(x.dtype, -INF), NAN))


def _split32(b: Builder, x: Value) -> tuple[Value, Value]:
    """float32: m in [2/3, 4/3) and the integer e, both float32, with x = 2^e m for x > 0."""
    subnormal = x < 1.1754943508222875e-38
    bits = b.bitcast(b.select(subnormal, x * 8388608.0, x), "int32")
    above = (bits - 0x3F2AAAAB) & -8388608
    e = b.fma(b.cast(above, "float32"), 2.0**-23, b.select(subnormal, b.const("float32", -23.0), 0.0))
    return b.bitcast(bits - above, "float32"), e


def split64(b: Builder, x: Value) -> tuple[Value, Value]:
    """float64, normal: m in [sqrt(1/2), sqrt(2)) and the integer e, both float64, with x = 2^e m for x > 0."""
    bits = b.bitcast(x, "int64")
    e = (bits - _SQRT_HALF_BITS) >> 52
    return b.bitcast(bits - (e << 52), "float64"), small_integer_to_float64(b, e)


def split64_any(b: Builder, x: Value) -> tuple[Value, Value]:
    """As `split64`, subnormal numbers included."""
    subnormal = x < 2.2250738585072014e-308
    m, e = split64(b, b.select(subnormal, x * 2.0**54, x))
    return m, b.select(subnormal, e - 54.0, e)


def split_short(b: Builder, x: Value) -> tuple[Value, Value]:
    """As `split64_any`, of a normal number and for functions of float32, but the integer is 2^20 times e."""
    m, power = b.split(x, _SQRT_HALF_SHORT)
    return m, b.cast(power, "float64")


def log_of_ratio(b: Builder, s: Value, coefficients: Sequence[float] = table.LOG_SHORT) -> Value:
    """float64: log((1 + s) / (1 - s)) for |s| < 0.172 with a relative error below 2^-34 (by `table.LOG` 2^-50)."""
    z = s * s
    return b.fma(s * z, horner(b, z, coefficients), s + s)


def log_of_ratio_short(b: Builder, s: Value, two: float = 2.0) -> Value:
    """As `log_of_ratio` in one operation less, for functions of one float32; a `two` next to 2 gives bits on record."""
    z = s * s
    return s * b.fma(z, horner(b, z, table.LOG_SHORT), two)


def log_short(b: Builder, x: Value) -> Value:
    """float64: log of a positive normal number with a relative error below 2^-32, not near 1 beyond 2^-50."""
    m, e = split_short(b, x)
    return b.fma(e, LN2 * EXPONENT, log_of_ratio_short(b, b.quotient(m - 1.0, m + 1.0)))


def log2_short(b: Builder, x: Value) -> Value:
    """float64: log2 of a positive float32 with a relative error below 2^-50, for functions of two float32."""
    m, power = b.split(widen(b, x), _TWO_THIRDS_BITS)
    tail = log_of_ratio(b, b.short_quotient(m - 1.0, m + 1.0), table.LOG)
    return b.fma(tail, LOG2E, b.cast(power >> 20, "float64"))


def _log_float32(b: Builder, x: Value) -> tuple[Value, Value]:
    """The logarithm of m (float64) and the integer 2^20 e (int32), with x = 2^e m, of a float32 above 0."""
    m, power = b.split(widen(b, x), _TWO_THIRDS_SHORT)
    return log_of_ratio_short(b, b.quotient(m - 1.0, m + 1.0)), power


def _log_parts(b: Builder, f: Value, s: Value | None = None) -> tuple[Value, Value]:
    """float64: log(1 + f) for 1 + f in [0.7, 1.42] as a sum of two, the first f - f^2 / 2 rounded; s = f / (f + 2)."""
    s = f / (f + 2.0) if s is None else s
    z = s * s
    half_square = f * f * 0.5
    rest = z * horner(b, z, table.LOG)
    high = f - half_square
    return high, ((f - high) - half_square) + s * (half_square + rest)


def log(b: Builder, x: Value) -> Value:
    """Natural logarithm. float32: 0.91 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        m, e = _split32(b, x)
        f = m - 1.0
        p = horner(b, f, (*_LOG32, -0.5))
        return _special(b, x, b.fma(e, LN2, b.fma(p, f * f, f)))
    m, e = split64_any(b, x)
    return _special(b, x, _log_sum(b, e, *_log_parts(b, m - 1.0)))


def _log_sum(b: Builder, e: Value, high: Value, low: Value) -> Value:
    total, rest = two_sum(b, e * LN2_HI, high)
    return total + (rest + b.fma(e, LN2_LO, low))


def log_of_normal(b: Builder, x: Value) -> Value:
    """float64: `log`, with its bits, of a normal number above 0 (of others anything), for functions of float32."""
    m, power = b.split(x, _SQRT_HALF_BITS)
    f = m - 1.0
    return _log_sum(b, b.cast(power >> 20, "float64"), *_log_parts(b, f, b.short_quotient(f, m + 1.0)))


def _log_in_base(b: Builder, x: Value, factor: float, factor_low: float, step: float, step_low: float) -> Value:
    """float64: the logarithm times `factor`, that of a power of two being `step` times the exponent."""
    m, e = split64_any(b, x)
    high, low = _log_parts(b, m - 1.0)
    product = high * factor
    product_low = b.fma(high, factor, -product) + b.fma(low, factor, high * factor_low)
    total, rest = two_sum(b, e * step, product)
    return _special(b, x, total + (rest + b.fma(e, step_low, product_low)))


def log2(b: Builder, x: Value) -> Value:
    """Logarithm in base 2, exact for powers of two. float32: 0.53 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        tail, power = _log_float32(b, x)
        return _special(b, x, narrow(b, b.fma(tail, LOG2E, b.cast(power >> 20, "float64"))))
    return _log_in_base(b, x, LOG2E, LOG2E_LOW, 1.0, 0.0)


def log10(b: Builder, x: Value) -> Value:
    """Logarithm in base 10. float32: 0.53 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        tail, power = _log_float32(b, x)
        step = (_LOG10_2_HI + _LOG10_2_LO) * EXPONENT
        return _special(b, x, narrow(b, b.fma(b.cast(power, "float64"), step, tail * _LOG10E)))
    return _log_in_base(b, x, _LOG10E, _LOG10E_LOW, _LOG10_2_HI, _LOG10_2_LO)


def log1p_short(b: Builder, x: Value) -> Value:
    """float64: log(1 + x) for x > -1 with a relative error below 2^-32, that of 1 + x included."""
    m, power = b.split(1.0 + x, _SQRT_HALF_SHORT)
    f = b.select(power == 0, x, m - 1.0)
    return b.fma(b.cast(power, "float64"), LN2 * EXPONENT, log_of_ratio(b, b.quotient(f, f + 2.0)))


def log1p_of_part(b: Builder, x: Value) -> Value:
    """float32: `log1p` where 0 <= x <= 1 or x is NaN, bit for bit."""
    wide, one, three = widen(b, x), b.const("float64", 1.0), b.const("float64", 3.0)
    near = x < _ROOT_LESS_ONE
    # 1 + x is 2^e m with e of 0 or 1, and m - 1 over m + 1 the quotient of twice both where e is 1.
    e = b.select(near, 0.0, one)
    tail = log_of_ratio(b, b.quotient(wide - e, wide + b.select(near, 2.0, three)))
    return narrow(b, b.fma(e, LN2, tail))


def log_near_one(b: Builder, x: Value, top: Value, bottom: Value, shift: Value) -> Value:
    """float64: log of x 2^shift (int32); where x is near 1, (x - 1) / (x + 1) is given as a quotient."""
    m, power = b.split(x, _SQRT_HALF_SHORT)
    near = power == 0
    s = b.quotient(b.select(near, top, m - 1.0), b.select(near, bottom, m + 1.0))
    return b.fma(b.cast(power + (shift << 20), "float64"), LN2 * EXPONENT, log_of_ratio_short(b, s))


def log1p_wide(b: Builder, x: Value) -> Value:
    """float64: log(1 + x) for finite x > -1."""
    total = 1.0 + x
    m, e = split64(b, total)
    near = e == 0.0
    error = b.select(x >= 1.0, 1.0 - (total - x), x - (total - 1.0))
    high, low = _log_parts(b, b.select(near, x, m - 1.0))
    low = low + b.select(near, 0.0, error / total)
    sum_, rest = two_sum(b, e * LN2_HI, high)
    return sum_ + (rest + b.fma(e, LN2_LO, low))


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x), accurate near 0. float32: 0.51 ULP; float64: 1 ULP."""
    y = narrow(b, log1p_short(b, widen(b, x))) if x.dtype == "float32" else log1p_wide(b, x)
    y = b.copysign(b.select((x == INF) | (x == -1.0), INF, y), x)  # of -0 the formula is +0
    return b.select(x >= -1.0, y, NAN)
