"""pow and cbrt."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.exponential import exp2_short, exp2_wide
from volta.ops.scalar.logarithm import LOG2E_LOW, log2_short, split64_any, split_short
from volta.ops.scalar.parts import (
    EXPONENT,
    INF,
    LOG2E,
    MAGIC64,
    NAN,
    Builder,
    Value,
    horner,
    magic_integer,
    narrow,
    power_of_two,
    quick_two_sum,
    two_product,
    two_sum,
    widen,
)

_TWO_THIRDS, _TWO_THIRDS_LOW = 0.6666666666666666, 3.700743415417188e-17


def _log2_wide(b: Builder, x: Value) -> tuple[Value, Value]:
    """float64: log2 of a positive finite number as a sum of two, with a relative error below 2^-64."""
    m, e = split64_any(b, x)
    f = m - 1.0
    # s = f / (2 + f) as a sum of two.
    bottom, bottom_low = two_sum(b, b.const("float64", 2.0), f)
    s = f / bottom
    s_low = (b.fma(-s, bottom, f) - s * bottom_low) / bottom
    # 2 atanh(s) = 2 s + s^3 (2/3 + z Q(z)), z = s^2.
    z, z_low = two_product(b, s, s)
    z_low = b.fma(s + s, s_low, z_low)
    q = z * horner(b, z, table.LOG_TAIL)
    p, p_low = quick_two_sum(b, b.const("float64", _TWO_THIRDS), q)
    p_low = p_low + _TWO_THIRDS_LOW
    zp, zp_low = two_product(b, z, p)
    zp_low = b.fma(z, p_low, b.fma(z_low, p, zp_low))
    cubic, cubic_low = two_product(b, s, zp)
    cubic_low = b.fma(s, zp_low, b.fma(s_low, zp, cubic_low))
    high, low = quick_two_sum(b, s + s, cubic)
    low = low + (b.fma(s_low, 2.0, cubic_low))
    # Times 1 / ln 2, plus the exponent.
    product, product_low = two_product(b, high, b.const("float64", LOG2E))
    product_low = b.fma(low, LOG2E, b.fma(high, LOG2E_LOW, product_low))
    total, rest = two_sum(b, e, product)
    return quick_two_sum(b, total, rest + product_low)


def pow(b: Builder, x: Value, y: Value) -> Value:
    """x ** y with the special cases of C and NumPy. float32: 0.6 ULP; float64: 1 ULP. Of integers see `_pow_whole`."""
    if x.dtype == "float32":
        return _pow_short(b, x, y)
    if x.dtype != "float64":
        return _pow_whole(b, x, y)
    a = abs(x)
    ordinary = (a > 0.0) & (a < INF)
    log_high, log_low = _log2_wide(b, b.select(ordinary, a, 1.0))
    exponent, low = two_product(b, log_high, y)
    low = b.fma(log_low, y, low)
    inside = abs(exponent) < 1100.0
    exponent = b.select(exponent >= 1100.0, 1100.0, b.select(exponent <= -1100.0, -1100.0, exponent))
    magnitude = exp2_wide(b, exponent, b.select(inside, low, 0.0))
    # 0 and infinity to a power are 0 or infinity.
    grows = (a > 1.0) == (y > 0.0)
    magnitude = b.select(ordinary, magnitude, b.select(grows, b.const(x.dtype, INF), 0.0))
    whole = b.trunc(y) == y
    half = y * 0.5
    odd = whole & (b.trunc(half) != half)
    magnitude = b.select(odd, b.copysign(magnitude, x), magnitude)
    magnitude = b.select((x < 0.0) & (a < INF) & ~whole, NAN, magnitude)
    magnitude = b.select((a == 1.0) & (abs(y) == INF), 1.0, magnitude)
    magnitude = b.select(b.isnan(x) | b.isnan(y), NAN, magnitude)
    return b.select((y == 0.0) | (x == 1.0), 1.0, magnitude)


def _pow_short(b: Builder, x: Value, y: Value) -> Value:
    a = abs(x)
    # A power of more than 2^40 is even and takes all but 1 to 0 or infinity; this one does so too.
    power = widen(b, b.between(y, -(2.0**40), 2.0**40))
    # Of 0 and infinity the logarithm is taken for -1023 and 1024, which every power but 0 is to take there as well.
    further = b.select((a > 0.0) & (a < INF), b.const("int32", 0), 200)
    exponent = b.times_power(log2_short(b, a), further) * power
    magnitude = narrow(b, exp2_short(b, b.within(exponent, 200.0)))
    t = power + MAGIC64
    whole = t - MAGIC64 == power
    odd = whole & ((b.bitcast(t, "int64") & 1) != 0)
    magnitude = b.select(odd, b.copysign(magnitude, x), magnitude)
    none = b.isnan(x) | b.isnan(y) | ((x < 0.0) & (x > -INF) & ~whole)
    return b.select((y == 0.0) | (x == 1.0), 1.0, b.select(none, NAN, magnitude))


def _pow_whole(b: Builder, x: Value, y: Value) -> Value:
    """x ** y of integers, modulo the width: one squaring for each bit of the exponent.

    A negative power is rounded towards 0: all but those of 1 and -1 are 0. Of those the exponent's lowest bit decides,
    and it is the same when the sign is read as one more bit.
    """
    result = b.const(x.dtype, 1)
    power = x
    width = int(x.dtype.lstrip("uint"))
    for bit in range(width):
        result = b.select((y & (1 << bit)) != 0, result * power, result)
        if bit + 1 < width:
            power = power * power
    if x.dtype.startswith("uint"):
        return result
    return b.select((y < 0) & (x != 1) & (x != -1), 0, result)


def cbrt(b: Builder, x: Value) -> Value:
    """Cube root. float32 and float64: 0.51 ULP."""
    short = x.dtype == "float32"
    m, e = split_short(b, widen(b, abs(x))) if short else split64_any(b, abs(x))
    # e = 3 k + j with j in {-1, 0, 1}; e and j are counted in these units.
    unit = EXPONENT if short else 1.0
    t = b.fma(e, unit / 3.0, MAGIC64)
    k = t - MAGIC64
    j = b.fma(k, -3.0 / unit, e)
    root = b.select(
        j > 0.0, b.const("float64", 2.0 ** (1 / 3)), b.select(j < 0.0, b.const("float64", 0.5 ** (1 / 3)), 1.0)
    )
    y = horner(b, m - 1.0, table.CBRT) * root
    if short:
        y = narrow(b, b.times_power(y, b.bitcast(t, "int64")))
    else:
        radicand = m * b.select(j > 0.0, b.const("float64", 2.0), b.select(j < 0.0, b.const("float64", 0.5), 1.0))
        square, low = two_product(b, y, y)
        y = y - b.fma(low, y, b.fma(square, y, -radicand)) / (3.0 * square)
        y = y * power_of_two(b, magic_integer(b, t), "float64")
    return b.select((x == 0.0) | ~b.is_finite(x), x, b.copysign(y, x))
