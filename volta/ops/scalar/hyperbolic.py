"""sinh, cosh, tanh and their inverses."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.exponential import exp_of_double, exp_parts, exp_short_parts, expm1_wide, times_power
from volta.ops.scalar.logarithm import log, log1p_or_log_of_double, log1p_short, log1p_wide
from volta.ops.scalar.parts import INF, LN2, NAN, Builder, Value, horner, narrow, scale, widen


def sinh(b: Builder, x: Value) -> Value:
    """Hyperbolic sine. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    magnitude = b.at_most(abs(x), 100.0) if short else abs(x)
    a = widen(b, magnitude) if short else magnitude
    s = a * a
    small = b.fma(a * s, horner(b, s, table.SINH_SHORT if short else table.SINH), a)
    if short:
        up, down = _half_exponentials(b, a)
        large = up - down
    else:
        fraction, exponent = exp_parts(b, a)
        # e^a / 2 as one rounding of the scaling, which does not overflow where sinh does not.
        half = scale(b, fraction, exponent - 1)
        large = half - 0.25 / half
    y = b.select(magnitude < 1.0, small, large)
    return b.copysign(b.select(b.isnan(x), NAN, narrow(b, y) if short else y), x)


def _half_exponentials(b: Builder, a: Value) -> tuple[Value, Value]:
    """float64: half of e^a and of e^-a with a relative error below 2^-32, for |a| <= 100."""
    # The constant is what gives the bits on record for every input of both functions.
    fraction, power = exp_short_parts(b, a, 1.0 - 4 * 2.0**-52)
    return times_power(b, fraction * 0.5, power), times_power(b, b.quotient(0.5, fraction), -power)


def cosh(b: Builder, x: Value) -> Value:
    """Hyperbolic cosine. float32: 0.51 ULP; float64: 2 ULP."""
    if x.dtype == "float32":
        up, down = _half_exponentials(b, widen(b, b.between(abs(x), -100.0, 100.0)))
        return narrow(b, up + down)
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
    magnitude = abs(x)
    a = widen(b, magnitude) if short else magnitude
    huge = magnitude > 2.0**28
    safe = b.select(huge, 1.0, a)
    s = safe * safe
    if short:
        argument = safe + b.quotient(s, 1.0 + b.root(1.0 + s))
        y = narrow(b, log1p_or_log_of_double(b, argument, huge, a))
    else:
        argument = safe + s / (1.0 + b.sqrt(1.0 + s))
        y = b.select(huge, log(b, a) + LN2, log1p_wide(b, argument))
    return b.copysign(b.select(magnitude < INF, y, magnitude), x)


def acosh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic cosine, NaN below 1. float32: 0.51 ULP; float64: 3 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    huge = x > 2.0**28
    t = b.select(huge, 1.0, wide) - 1.0
    square = t * (t + 2.0)
    if short:
        y = narrow(b, log1p_or_log_of_double(b, t + b.root(square), huge, wide))
    else:
        y = b.select(huge, log(b, wide) + LN2, log1p_wide(b, t + b.sqrt(square)))
    return b.select(x >= 1.0, b.select(x == INF, INF, y), NAN)


def atanh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic tangent, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    a = widen(b, abs(x)) if short else abs(x)
    if short:
        y = narrow(b, 0.5 * log1p_short(b, b.quotient(a + a, 1.0 - a)))
    else:
        y = 0.5 * log1p_wide(b, (a + a) / (1.0 - a))
    y = b.select(abs(x) == 1.0, INF, y)
    return b.select(abs(x) <= 1.0, b.copysign(y, x), NAN)
