"""asin, acos, atan and atan2."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import INF, NAN, Builder, Value, horner, narrow, quick_two_sum, widen

_PI_2, _PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17
_PI_4, _PI_4_LOW = 0.7853981633974483, 3.061616997868383e-17
_PI, _PI_LOW = 3.141592653589793, 1.2246467991473532e-16


def _arc_short(b: Builder, x: Value) -> tuple[Value, Value]:
    """float32, |x| <= 1: whether |x| > 1/2, and asin of |x|, or half of acos of |x| where it is, in float64."""
    a = abs(x)
    outer = a > 0.5
    short = b.select(outer, b.fma(a, -0.5, 0.5), a)  # exact; if outer the square of the sine of half the angle
    wide = widen(b, short)
    s = b.select(outer, b.root(wide, short), wide)
    z = s * s
    return outer, b.fma(s * z, horner(b, z, table.ASIN_SHORT), s)


def _arc_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """float64, as `_arc_short`, the angle as a sum of two."""
    a = abs(x)
    outer = a > 0.5
    z = b.select(outer, (1.0 - a) * 0.5, a * a)
    root = b.sqrt(z)
    s = b.select(outer, root, a)
    # The part of the square root that was rounded off; z / 0 where a is 1.
    lost = b.fma(-root, root, z) / b.select(root > 0.0, root + root, 1.0)
    return outer, s, s * z * horner(b, z, table.ASIN) + b.select(outer, lost, 0.0)


def asin(b: Builder, x: Value) -> Value:
    """Inverse sine, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        outer, angle = _arc_short(b, x)
        y = narrow(b, b.select(outer, b.fma(angle, -2.0, _PI_2), angle))
    else:
        outer, s, tail = _arc_parts(b, x)
        head = _PI_2 - 2.0 * s
        error = (_PI_2 - head) - 2.0 * s
        large = head + (error + (_PI_2_LOW - 2.0 * tail))
        y = b.select(outer, large, s + tail)
    return b.select(abs(x) <= 1.0, b.copysign(y, x), NAN)


def acos(b: Builder, x: Value) -> Value:
    """Inverse cosine, NaN outside [-1, 1]. float32: 0.51 ULP; float64: 1 ULP."""
    negative = x < 0.0
    # |x| <= 1/2: pi/2 - asin(x); x > 1/2: twice the half; x < -1/2: pi less that.
    if x.dtype == "float32":
        outer, angle = _arc_short(b, x)
        one, two = b.const("float64", 1.0), b.const("float64", 2.0)
        factor = b.select(outer, b.select(negative, -two, two), b.select(negative, one, -one))
        start = b.select(outer, b.select(negative, b.const("float64", _PI), 0.0), _PI_2)
        y = narrow(b, b.fma(angle, factor, start))
    else:
        outer, s, tail = _arc_parts(b, x)
        signed_s, signed_tail = b.select(negative, -s, s), b.select(negative, -tail, tail)
        inner_head = _PI_2 - signed_s
        inner = inner_head + (((_PI_2 - inner_head) - signed_s) + (_PI_2_LOW - signed_tail))
        left_head = _PI - 2.0 * s
        left = left_head + (((_PI - left_head) - 2.0 * s) + (_PI_LOW - 2.0 * tail))
        y = b.select(outer, b.select(negative, left, 2.0 * (s + tail)), inner)
    return b.select(abs(x) <= 1.0, y, NAN)


_TAN_PI_8 = 0.41421356237309503
_TAN_3_PI_8 = 2.414213562373095


def _arc_of_ratio_short(b: Builder, y: Value, x: Value) -> tuple[Value, Value]:
    """`_arc_of_ratio` for float32 results, by products with zeros and ones. x is above 0."""
    low, high = y <= x * _TAN_PI_8, y * _TAN_PI_8 > x
    zero, one = b.const("float64", 0.0), b.const("float64", 1.0)
    take, give = b.select(high, zero, one), b.select(low, zero, -one)
    t = b.short_quotient(b.fma(y, take, x * give), b.fma(y, -give, x * take), far=True)
    s = t * t
    eighths = b.select(low, zero, b.select(high, b.const("float64", 2.0), one))
    return b.fma(eighths, _PI_4, t), t * s * horner(b, s, table.ATAN_SHORT)


def _arc_of_ratio(b: Builder, y: Value, x: Value) -> tuple[Value, Value]:
    """float64, y, x >= 0 and finite, not both 0: atan(y / x) in [0, pi/2] as a sum of two.

    By the angle addition that brings the ratio into [-tan(pi/8), tan(pi/8)].
    """
    low, high = y <= x * _TAN_PI_8, y * _TAN_PI_8 > x
    middle = ~(low | high)
    bottom_part = b.select(middle, y, 0.0)
    top = b.select(low, y, b.select(high, -x, y - x))
    bottom = b.select(high, y, x) + bottom_part
    t = top / bottom
    base = b.select(low, 0.0, b.select(high, b.const("float64", _PI_2), _PI_4))
    base_low = b.select(low, 0.0, b.select(high, b.const("float64", _PI_2_LOW), _PI_4_LOW))
    s = t * t
    tail = t * s * horner(b, s, table.ATAN)
    # What rounding took from top, bottom and the quotient.
    top_low = b.select(middle, _difference_error(b, y, x, top), 0.0)
    bottom_low = b.select(middle, _sum_error(b, x, y, bottom), 0.0)
    lost = b.fma(-t, bottom, top) + (top_low - t * bottom_low)
    tail = tail + (base_low + lost / bottom * (1.0 - s))
    head, rest = quick_two_sum(b, b.select(low, t, base), b.select(low, 0.0, t))
    return head, rest + tail


def _sum_error(b: Builder, x: Value, y: Value, total: Value) -> Value:
    from_y = total - x
    return (x - (total - from_y)) + (y - from_y)


def _difference_error(b: Builder, x: Value, y: Value, total: Value) -> Value:
    return _sum_error(b, x, -y, total)


def atan(b: Builder, x: Value) -> Value:
    """Inverse tangent. float32: 0.51 ULP; float64: 1 ULP."""
    if x.dtype == "float32":
        a = widen(b, b.between(abs(x), None, 2.0**64))
        low, high = abs(x) <= _TAN_PI_8, abs(x) > _TAN_3_PI_8
        zero, one = b.const("float64", 0.0), b.const("float64", 1.0)
        take, give = b.select(high, zero, one), b.select(low, zero, -one)
        t = b.quotient(b.fma(a, take, give), b.fma(a, -give, take))
        s = t * t
        eighths = b.select(low, zero, b.select(high, b.const("float64", 2.0), one))
        angle = b.fma(eighths, _PI_4, b.fma(t * s, horner(b, s, table.ATAN_SHORT), t))
        return b.copysign(narrow(b, angle), x)
    a = abs(x)
    infinite = a == INF
    head, tail = _arc_of_ratio(b, b.select(infinite, 1.0, a), b.select(infinite, b.const("float64", 0.0), 1.0))
    return b.select(x == 0.0, x, b.copysign(head + tail, x))


def _left(b: Builder, head: Value, tail: Value) -> Value:
    """float64: pi less an angle that is a sum of two."""
    mirrored = _PI - head
    return mirrored + (((_PI - mirrored) - head) + (_PI_LOW - tail))


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y) in [-pi, pi]. float32: 0.51 ULP; float64: 1 ULP."""
    above, across = abs(y), abs(x)
    if y.dtype == "float32":
        # Infinity is larger than float32, and 0 across smaller, by more than shows in the angle.
        far, near = b.const("float64", 2.0**500), b.const("float64", 2.0**-1000)
        wide_across = b.select(across == INF, far, b.select(across == 0.0, near, widen(b, across)))
        head, tail = _arc_of_ratio_short(b, b.select(above == INF, far, widen(b, above)), wide_across)
        left = b.bitcast(x, "int32") < 0
        return b.copysign(narrow(b, b.select(left, _left(b, head, tail), head + tail)), y)
    nan = b.isnan(y) | b.isnan(x)
    # Infinities become a corner of a finite square, (0, 0) the point (1, 0); what is left is scaled to the middle.
    any_infinite = (above == INF) | (across == INF)
    one = b.const("float64", 1.0)
    above, across = (b.select(any_infinite, b.select(v == INF, one, 0.0), v) for v in (above, across))
    across = b.select((above == 0.0) & (across == 0.0), 1.0, across)
    larger = b.select(above > across, above, across)
    factor = b.select(larger > 2.0**900, b.const("float64", 2.0**-500), 1.0)
    factor = b.select(larger < 2.0**-400, b.const("float64", 2.0**500), factor)
    head, tail = _arc_of_ratio(b, above * factor, across * factor)
    angle = b.select(b.bitcast(x, "int64") < 0, _left(b, head, tail), head + tail)
    return b.select(nan, NAN, b.copysign(angle, y))
