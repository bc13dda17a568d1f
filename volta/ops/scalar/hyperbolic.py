"""sinh, cosh, tanh and their inverses."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.exponential import exp_of_double, exp_parts, exp_short_parts, expm1_wide
from volta.ops.scalar.logarithm import log, log1p_wide, log_near_one, log_of_ratio_short
from volta.ops.scalar.parts import INF, LN2, NAN, Builder, Value, horner, narrow, scale, widen

_SQRT_HALF_BITS32 = 0x3F3504F3


def sinh(b: Builder, x: Value) -> Value:
    """Hyperbolic sine. float32: 0.51 ULP; float64: 2 ULP."""
    short = x.dtype == "float32"
    magnitude = b.between(abs(x), None, 100.0) if short else abs(x)
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
    return b.copysign(narrow(b, y) if short else b.select(b.isnan(x), NAN, y), x)


def _half_exponentials(b: Builder, a: Value) -> tuple[Value, Value]:
    """float64: half of e^a and of e^-a with a relative error below 2^-32, for |a| <= 100."""
    # The constant is what gives the bits on record for every input of both functions.
    fraction, power = exp_short_parts(b, a, 1.0 - 4 * 2.0**-52)
    # A NaN's power is 0; of the first it stays one.
    return b.times_power(fraction * 0.5, power), b.times_power(b.quotient(1.0, fraction), -1 - power)


def cosh(b: Builder, x: Value) -> Value:
    """Hyperbolic cosine. float32: 0.51 ULP; float64: 2 ULP."""
    if x.dtype == "float32":
        up, down = _half_exponentials(b, widen(b, b.between(abs(x), None, 100.0)))
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


def _without_high_powers(b: Builder, x: Value) -> tuple[Value, Value]:
    """float32, x not negative: x over a power of two that takes it below 2^41, and how many powers (int32) that is."""
    bits = b.bitcast(x, "int32")
    over = b.max((bits >> 23) - (127 + 40), 0)
    return b.bitcast(bits - (over << 23), "float32"), over


def asinh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic sine. float32: 0.51 ULP; float64: 2 ULP."""
    magnitude = abs(x)
    if x.dtype == "float32":
        # log(a + sqrt(1 + a^2)); less 1, over itself and 1, that is a / (1 + sqrt(1 + a^2)).
        near, over = _without_high_powers(b, magnitude)
        a = widen(b, near)
        root = b.root(b.fma(a, a, 1.0), b.fma(near, near, 1.0))
        y = narrow(b, log_near_one(b, a + root, a, root + 1.0, over))
    else:
        huge = magnitude > 2.0**28
        safe = b.select(huge, 1.0, magnitude)
        s = safe * safe
        argument = safe + s / (1.0 + b.sqrt(1.0 + s))
        y = b.select(huge, log(b, magnitude) + LN2, log1p_wide(b, argument))
    return b.copysign(b.select(magnitude < INF, y, magnitude), x)


def acosh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic cosine, NaN below 1. float32: 0.51 ULP; float64: 3 ULP."""
    if x.dtype == "float32":
        # log(a + sqrt(a^2 - 1)); less 1, over itself and 1, that is sqrt(a^2 - 1) / (a + 1).
        near, over = _without_high_powers(b, x)
        a = widen(b, near)
        root = b.root(b.fma(a, a, -1.0), b.fma(near, near, -1.0))
        y = narrow(b, log_near_one(b, a + root, root, a + 1.0, over))
    else:
        huge = x > 2.0**28
        t = b.select(huge, 1.0, x) - 1.0
        y = b.select(huge, log(b, x) + LN2, log1p_wide(b, t + b.sqrt(t * (t + 2.0))))
    return b.select(x >= 1.0, b.select(x == INF, INF, y), NAN)


def atanh(b: Builder, x: Value) -> Value:
    """Inverse hyperbolic tangent, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 2 ULP."""
    if x.dtype == "float32":
        # Half of log((1 + a) / (1 - a)); the power of two that is nearest to this is found in float32.
        a = abs(x)
        e = (b.bitcast((1.0 + a) * b.near_reciprocal(1.0 - a), "int32") - _SQRT_HALF_BITS32) >> 23
        wide = widen(b, a)
        power = b.times_power(b.const("float64", 1.0), e)
        less, more = 1.0 - power, 1.0 + power
        s = b.quotient(b.fma(wide, more, less), b.fma(wide, less, more))
        tail = log_of_ratio_short(b, s, 2.0 - 2 * 2.0**-52)
        y = narrow(b, 0.5 * b.fma(b.cast(e, "float64"), LN2, tail))
    else:
        a = abs(x)
        y = 0.5 * log1p_wide(b, (a + a) / (1.0 - a))
    y = b.select(abs(x) == 1.0, INF, y)
    return b.select(abs(x) <= 1.0, b.copysign(y, x), NAN)
