"""asin, acos, atan and atan2."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import INF, NAN, Builder, Value, horner, narrow, quick_two_sum, widen

_PI_2, _PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17
_PI_4, _PI_4_LOW = 0.7853981633974483, 3.061616997868383e-17
_PI, _PI_LOW = 3.141592653589793, 1.2246467991473532e-16


def _arc_parts(b: Builder, a: Value, short: bool) -> tuple[Value, Value, Value]:
    """float64, 0 <= a <= 1: whether a > 1/2, and asin of a, or half of acos of a where it is, as a sum of two."""
    coefficients = table.ASIN_SHORT if short else table.ASIN
    outer = a > 0.5
    z = b.select(outer, (1.0 - a) * 0.5, a * a)
    root = b.sqrt(z)
    s = b.select(outer, root, a)
    tail = s * z * horner(b, z, coefficients)
    if not short:
        # The part of the square root that was rounded off; z / 0 where a is 1.
        lost = b.fma(-root, root, z) / b.select(root > 0.0, root + root, 1.0)
        tail = tail + b.select(outer, lost, 0.0)
    return outer, s, tail


def asin(b: Builder, x: Value) -> Value:
    """Inverse sine, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 1 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    a = abs(wide)
    outer, s, tail = _arc_parts(b, a, short)
    head = _PI_2 - 2.0 * s
    error = (_PI_2 - head) - 2.0 * s
    large = head + (error + (_PI_2_LOW - 2.0 * tail))
    y = b.copysign(b.select(outer, large, s + tail), wide)
    y = narrow(b, y) if short else y
    return b.select(abs(x) <= 1.0, b.select(x == 0.0, x, y), NAN)


def acos(b: Builder, x: Value) -> Value:
    """Inverse cosine, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 1 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    outer, s, tail = _arc_parts(b, abs(wide), short)
    negative = wide < 0.0
    # |x| <= 1/2: pi/2 - asin(x); x > 1/2: twice the half; x < -1/2: pi less that.
    signed_s, signed_tail = b.copysign(s, wide), b.select(negative, -tail, tail)
    inner_head = _PI_2 - signed_s
    inner = inner_head + (((_PI_2 - inner_head) - signed_s) + (_PI_2_LOW - signed_tail))
    left_head = _PI - 2.0 * s
    left = left_head + (((_PI - left_head) - 2.0 * s) + (_PI_LOW - 2.0 * tail))
    y = b.select(outer, b.select(negative, left, 2.0 * (s + tail)), inner)
    y = narrow(b, y) if short else y
    return b.select(abs(x) <= 1.0, y, NAN)


def _arc_of_ratio(b: Builder, y: Value, x: Value, short: bool) -> tuple[Value, Value]:
    """float64, y, x >= 0 and finite, not both 0: atan(y / x) in [0, pi/2] as a sum of two.

    By the angle addition that brings the ratio into [-tan(pi/8), tan(pi/8)].
    """
    low = y <= x * 0.41421356237309503
    high = y * 0.41421356237309503 > x
    middle = ~(low | high)
    bottom_part = b.select(middle, y, 0.0)
    top = b.select(low, y, b.select(high, -x, y - x))
    bottom = b.select(high, y, x) + bottom_part
    t = top / bottom
    base = b.select(low, 0.0, b.select(high, b.const("float64", _PI_2), _PI_4))
    base_low = b.select(low, 0.0, b.select(high, b.const("float64", _PI_2_LOW), _PI_4_LOW))
    s = t * t
    tail = t * s * horner(b, s, table.ATAN_SHORT if short else table.ATAN)
    if not short:
        # What rounding took from top, bottom and the quotient.
        top_low = b.select(middle, _difference_error(b, y, x, top), 0.0)
        bottom_low = b.select(middle, _sum_error(b, x, y, bottom), 0.0)
        lost = b.fma(-t, bottom, top) + (top_low - t * bottom_low)
        tail = tail + (base_low + lost / bottom * (1.0 - s))
        head, rest = quick_two_sum(b, b.select(low, t, base), b.select(low, 0.0, t))
        return head, rest + tail
    return base + t, tail


def _sum_error(b: Builder, x: Value, y: Value, total: Value) -> Value:
    from_y = total - x
    return (x - (total - from_y)) + (y - from_y)


def _difference_error(b: Builder, x: Value, y: Value, total: Value) -> Value:
    return _sum_error(b, x, -y, total)


def atan(b: Builder, x: Value) -> Value:
    """Inverse tangent. float32: 0.51 ULP; float64: 1 ULP."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    a = abs(wide)
    infinite = a == INF
    head, tail = _arc_of_ratio(b, b.select(infinite, 1.0, a), b.select(infinite, b.const("float64", 0.0), 1.0), short)
    y = b.copysign(head + tail, wide)
    return b.select(x == 0.0, x, narrow(b, y) if short else y)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y) in [-pi, pi]. float32: 0.51 ULP; float64: 1 ULP."""
    short = y.dtype == "float32"
    nan = b.isnan(y) | b.isnan(x)
    wide_y, wide_x = (widen(b, y), widen(b, x)) if short else (y, x)
    above, across = abs(wide_y), abs(wide_x)
    # Infinities become a corner of a finite square, (0, 0) the point (1, 0); what is left is scaled to the middle.
    any_infinite = (above == INF) | (across == INF)
    one = b.const("float64", 1.0)
    above, across = (b.select(any_infinite, b.select(v == INF, one, 0.0), v) for v in (above, across))
    across = b.select((above == 0.0) & (across == 0.0), 1.0, across)
    if not short:
        larger = b.select(above > across, above, across)
        factor = b.select(larger > 2.0**900, b.const("float64", 2.0**-500), 1.0)
        factor = b.select(larger < 2.0**-400, b.const("float64", 2.0**500), factor)
        above, across = above * factor, across * factor
    head, tail = _arc_of_ratio(b, above, across, short)
    left = b.copysign(b.const("float64", 1.0), wide_x) < 0.0
    mirrored = _PI - head
    mirrored_low = ((_PI - mirrored) - head) + (_PI_LOW - tail)
    angle = b.select(left, mirrored + mirrored_low, head + tail)
    angle = b.copysign(angle, wide_y)
    angle = narrow(b, angle) if short else angle
    return b.select(nan, NAN, angle)
