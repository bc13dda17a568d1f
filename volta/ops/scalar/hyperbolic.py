"""sinh, cosh, tanh and their inverses."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.exponential import exp_of_double, exp_parts, exp_short, expm1_wide
from volta.ops.scalar.logarithm import log, log1p_short, log1p_wide, log_short
from volta.ops.scalar.parts import INF, LN2, NAN, Builder, Value, horner, narrow, scale, widen


def sinh(b: Builder, x: Value) -> Value:
    """Hyperbolic sine. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, b.select(abs(x) > 100.0, b.copysign(b.const("float32", 100.0), x), x)) if short else x
    a = abs(wide)
    s = a * a
    small = b.fma(a * s, horner(b, s, table.SINH_SHORT if short else table.SINH), a)
    if short:
        e = exp_short(b, a)
        large = 0.5 * e - 0.5 / e
    else:
        fraction, exponent = exp_parts(b, a)
        # e^a / 2 as one rounding of the scaling, which does not overflow where sinh does not.
        half = scale(b, fraction, exponent - 1)
        large = half - 0.25 / half
    y = b.copysign(b.select(a < 1.0, small, large), wide)
    return b.select(x == 0.0, x, narrow(b, y) if short else y)


def cosh(b: Builder, x: Value) -> Value:
    """Hyperbolic cosine. float32: 0.51 ULP; float64: 2 ULP."""
    if x.dtype == "float32":
        a = abs(x)
        e = exp_short(b, widen(b, b.select(a > 100.0, 100.0, a)))
        return narrow(b, 0.5 * e + 0.5 / e)
    fraction, exponent = exp_parts(b, abs(x))
    half = scale(b, fraction, exponent - 1)
    return half + 0.25 / half


def tanh(b: Builder, x: Value) -> Value:
    """Hyperbolic tangent. float32: 0.99 ULP; float64: 2 ULP."""
    a = abs(x)
    if x.dtype == "float32":
        # In float32 throughout: a third faster than through float64. Beyond 0.9 the error of e^2a weighs little.
        s = x * x
        small = b.fma(horner(b, s, table.TANH32) * s, a, a)
        # Below a power of two the reciprocal may be one unit low; that is less than 1 - 2r rounds away.
        large = b.fma(b.reciprocal(exp_of_double(b, b.at_most(a, 10.0)) + 1.0), -2.0, 1.0)
        return b.copysign(b.select(a >= 0.9, large, small), x)  # of NaN `small` is NaN
    # t = e^-2a - 1 where a < 1/2 or so, else from e^2a.
    a = b.select(a > 30.0, 30.0, a)
    near = a < 0.5
    t, rest = expm1_wide(b, b.select(near, -2.0, b.const("float64", 2.0)) * a)
    total = t + rest
    bottom = total + 2.0
    small = -total / bottom
    large = 1.0 - 2.0 / bottom
    return b.select(x == 0.0, x, b.copysign(b.select(near, small, large), x))


def asinh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic sine. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    a = abs(wide)
    huge = a > 2.0**28
    safe = b.select(huge, 1.0, a)
    s = safe * safe
    argument = safe + s / (1.0 + b.sqrt(1.0 + s))
    if short:
        y = b.select(huge, log_short(b, b.select(huge, a, 1.0)) + LN2, log1p_short(b, argument))
        y = narrow(b, y)
    else:
        y = b.select(huge, log(b, a) + LN2, log1p_wide(b, argument))
    y = b.select(abs(x) == INF, INF, y)
    return b.select(b.isnan(x), NAN, b.select(x == 0.0, x, b.copysign(y, x)))


def acosh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic cosine, NaN below 1. float32: 0.51 ULP; float64: 3 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    huge = wide > 2.0**28
    t = b.select(huge, 1.0, wide) - 1.0
    argument = t + b.sqrt(t * (t + 2.0))
    if short:
        y = narrow(b, b.select(huge, log_short(b, b.select(huge, wide, 1.0)) + LN2, log1p_short(b, argument)))
    else:
        y = b.select(huge, log(b, wide) + LN2, log1p_wide(b, argument))
    y = b.select(x == INF, INF, b.select(x == 1.0, 0.0, y))
    return b.select(x >= 1.0, y, NAN)


def atanh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic tangent, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    a = abs(wide)
    argument = (a + a) / (1.0 - a)
    y = 0.5 * (log1p_short(b, argument) if short else log1p_wide(b, argument))
    y = narrow(b, y) if short else y
    y = b.select(abs(x) == 1.0, INF, y)
    return b.select(abs(x) <= 1.0, b.select(x == 0.0, x, b.copysign(y, x)), NAN)
