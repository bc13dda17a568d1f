"""log, log2, log10 and log1p.

x = 2^e m with m around 1; log(m) = 2 atanh(s) with s = (m - 1) / (m + 1), an odd function of s.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import (
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


def split64(b: Builder, x: Value, lowest: int = _SQRT_HALF_BITS) -> tuple[Value, Value]:
    """float64, normal: m in [sqrt(1/2), sqrt(2)) and the integer e, both float64, with x = 2^e m for x > 0.

    m begins at sqrt(1/2), or at the number whose bits are `lowest`.
    """
    bits = b.bitcast(x, "int64")
    e = (bits - lowest) >> 52
    return b.bitcast(bits - (e << 52), "float64"), small_integer_to_float64(b, e)


def split64_any(b: Builder, x: Value) -> tuple[Value, Value]:
    """As `split64`, subnormal numbers included."""
    subnormal = x < 2.2250738585072014e-308
    m, e = split64(b, b.select(subnormal, x * 2.0**54, x))
    return m, b.select(subnormal, e - 54.0, e)


def _log1p_short(b: Builder, f: Value, coefficients: Sequence[float] = table.LOG_SHORT) -> Value:
    """float64: log(1 + f) for 1 + f in [0.66, 1.42], with a relative error below 2^-34 (by `table.LOG` 2^-50)."""
    s = b.quotient(f, f + 2.0)
    z = s * s
    return b.fma(s * z, horner(b, z, coefficients), s + s)


def log_short(b: Builder, x: Value) -> Value:
    """float64: log of a positive normal number with a relative error below 2^-32, not near 1 beyond 2^-50."""
    m, e = split64(b, x)
    return b.fma(e, LN2, _log1p_short(b, m - 1.0))


def log2_short(b: Builder, x: Value, coefficients: Sequence[float] = table.LOG_SHORT) -> Value:
    """float64: log2 of a positive float32, with a relative error below 2^-32 (by `table.LOG` 2^-50)."""
    m, e = split64(b, widen(b, x), _TWO_THIRDS_BITS)
    return b.fma(_log1p_short(b, m - 1.0, coefficients), LOG2E, e)


def _log_parts(b: Builder, f: Value) -> tuple[Value, Value]:
    """float64: log(1 + f) for 1 + f in [0.7, 1.42] as a sum of two, the first f - f^2 / 2 rounded."""
    s = f / (f + 2.0)
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
    high, low = _log_parts(b, m - 1.0)
    total, rest = two_sum(b, e * LN2_HI, high)
    return _special(b, x, total + (rest + b.fma(e, LN2_LO, low)))


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
        return _special(b, x, narrow(b, log2_short(b, x)))
    return _log_in_base(b, x, LOG2E, LOG2E_LOW, 1.0, 0.0)


def log10(b: Builder, x: Value) -> Value:
    """Logarithm in base 10. float32: 0.53 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        m, e = split64(b, widen(b, x), _TWO_THIRDS_BITS)
        tail = _log1p_short(b, m - 1.0) * _LOG10E
        return _special(b, x, narrow(b, b.fma(e, _LOG10_2_HI + _LOG10_2_LO, tail)))
    return _log_in_base(b, x, _LOG10E, _LOG10E_LOW, _LOG10_2_HI, _LOG10_2_LO)


def log1p_short(b: Builder, x: Value) -> Value:
    """float64: log(1 + x) for x > -1 with a relative error below 2^-32, that of 1 + x included."""
    m, e = split64(b, 1.0 + x)
    f = b.select(e == 0.0, x, m - 1.0)
    return b.fma(e, LN2, _log1p_short(b, f))


def log1p_or_log_of_double(b: Builder, x: Value, huge: Value, a: Value) -> Value:
    """float64: `log1p_short` of x, or where `huge` log(2 a) of a positive normal number a."""
    m, e = split64(b, b.select(huge, a, 1.0 + x))
    f = b.select(e == 0.0, x, m - 1.0)
    return b.fma(e, LN2, _log1p_short(b, f)) + b.select(huge, b.const("float64", LN2), 0.0)


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
