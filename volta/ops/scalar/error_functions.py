"""erf, erfc and the inverse of erf.

Away from 0, erfc(x) = exp(-x^2) P(t) / (1 + 2x) with one polynomial in t = (x - 4) / (x + 4).
"""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.exponential import exp, exp_parts, exp_short_parts
from volta.ops.scalar.logarithm import log, log1p_wide, log_short
from volta.ops.scalar.parts import INF, NAN, Builder, Value, horner, narrow, quick_two_sum, scale, two_product, widen

# log(erfc(t)) on [0.98, 4.02] in float32, weighted by erfc(t) / erf(t) (Lawson's iteration,
# one coefficient rounded at a time): error 2^-29.6 in erf.
_LOG_ERFC32 = (
    0.00018882124, -0.0029724175, 0.0219403375, -0.10332718, -0.63788325, -1.1272514, -0.00030043774,
)  # fmt: skip
# erf(x) / x - 1 in x^2 for |x| <= 1 in float32, one coefficient rounded at a time: error 2^-29.4.
_ERF32 = (
    7.80690316e-05, -0.000799785309, 0.0051871622, -0.0268533472, 0.112835787, -0.37612626, 0.128379166,
)  # fmt: skip
_TWO_OVER_ROOT_PI = 1.1283791670955126


def erf(b: Builder, x: Value) -> Value:
    """Error function. float32: 0.99 ULP; float64: 1 ULP."""
    a = abs(x)
    s = x * x
    if x.dtype == "float32":
        small = b.fma(horner(b, s, _ERF32), x, x)
        a = b.select(a > 4.0, 4.0, a)
        # The last step of the polynomial as a sum of two: its rounding would show in the result.
        product, product_low = two_product(b, horner(b, a, _LOG_ERFC32[:-1]), a)
        total, low = quick_two_sum(b, product, b.const("float32", _LOG_ERFC32[-1]))
        e = exp(b, total)
        large = 1.0 - b.fma(e, low + product_low, e)
    else:
        small = b.fma(horner(b, s, table.ERF), x, x)
        a = b.select(a > 6.5, 6.5, a)
        large = 1.0 - _erfc_wide(b, a)
    return b.select(a < 1.0, small, b.copysign(large, x))


def _erfc_wide(b: Builder, a: Value) -> Value:
    """float64: erfc(a) for 0.5 <= a <= 28."""
    square, low = two_product(b, a, a)
    fraction, exponent = exp_parts(b, -square, -low)
    ratio = horner(b, (a - 4.0) / (a + 4.0), table.ERFCX) / b.fma(a, 2.0, 1.0)
    return scale(b, fraction * ratio, exponent)


def _erfc_short(b: Builder, a: Value, square: Value) -> Value:
    """float64: erfc(a) for 0.5 <= a <= 16 with a relative error below 2^-27, given a^2."""
    left, right = a + 4.0, b.fma(a, 2.0, 1.0)
    inverse = b.quotient(1.0, left * right)
    ratio = horner(b, b.fma(right * inverse, -8.0, 1.0), table.ERFCX_SHORT)
    # The constant is what gives the bits on record for every input, whether the inverse is rounded or near it.
    fraction, power = exp_short_parts(b, -square, 1.0 + 10 * 2.0**-52)
    return b.times_power(fraction * (left * inverse) * ratio, power)


def erfc(b: Builder, x: Value) -> Value:
    """1 - erf(x), accurate where it is small. float32: 0.6 ULP; float64: 4 ULP."""
    if x.dtype == "float32":
        a = widen(b, b.between(abs(x), None, 11.0))
        square = a * a
        inner, below = abs(x) < 0.5, x < 0.0
        y = b.select(inner, b.fma(horner(b, square, table.ERF_SHORT), a, a), _erfc_short(b, a, square))
        start = b.select(inner, b.const("float64", 1.0), b.select(below, b.const("float64", 2.0), 0.0))
        return narrow(b, start + b.select(inner ^ below, -y, y))
    a = abs(x)
    small = 1.0 - b.fma(horner(b, x * x, table.ERF), x, x)
    a = b.select(a > 28.0, 28.0, a)
    large = _erfc_wide(b, a)
    return b.select(a < 0.5, small, b.select(x < 0.0, 2.0 - large, large))


def _erf_inv_short(b: Builder, x: Value, w: Value, short: bool) -> Value:
    """float64: erf_inv(x) with a relative error below 2^-26, given w = -log(1 - x^2)."""

    def outer() -> list[Value]:
        root = b.root(w, narrow(b, w)) if short else b.sqrt(w)
        return [horner(b, root - 4.25, table.ERF_INV_TAIL)]

    central = horner(b, w - 3.0, table.ERF_INV)
    return x * b.where_any(w > 6.0, outer, [central])[0]


def erf_inv(b: Builder, x: Value) -> Value:
    """Inverse of erf, NaN outside [-1, 1]. float32: 0.6 ULP; float64: 3 ULP."""
    inside = abs(x) < 1.0
    if x.dtype == "float32":
        wide = widen(b, b.select(inside, x, 0.0))
        y = narrow(b, _erf_inv_short(b, wide, -log_short(b, (1.0 - wide) * (1.0 + wide)), True))
    else:
        a = b.select(inside, abs(x), 0.0)
        w = b.select(a < 0.5, -log1p_wide(b, -(a * a)), -log(b, (1.0 - a) * (1.0 + a)))
        start = _erf_inv_short(b, a, w, False)
        # One step of Newton's method on erf, or on erfc where 1 - a is exact.
        error = b.select(a < 0.5, erf(b, start) - a, (1.0 - a) - _erfc_wide(b, b.select(start < 0.4, 0.5, start)))
        slope = _TWO_OVER_ROOT_PI * exp(b, -(start * start))
        y = b.copysign(start - error / slope, x)
    y = b.select(abs(x) == 1.0, b.copysign(b.const(x.dtype, INF), x), b.select(x == 0.0, x, y))
    return b.select(abs(x) <= 1.0, y, NAN)
