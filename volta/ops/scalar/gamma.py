"""lgamma and digamma, computed in float64 for both kinds."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.logarithm import log, log_of_normal
from volta.ops.scalar.parts import INF, NAN, Builder, Value, horner, narrow, widen

# Stirling's series: lgamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + sum of these over x^(2k - 1), and of digamma.
_STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)  # fmt: skip
_DIGAMMA = (3617 / 8160, -1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)
_HALF_LOG_2PI = 0.9189385332046727
_PI, _LOG_PI = 3.141592653589793, 1.1447298858494002
_DIGAMMA_ZERO, _DIGAMMA_ZERO_LOW = 1.4616321449683622, 9.549995429965697e-17
_FAR = 8.5  # the series are used from here on
_TINY = 2.0**-500  # closer to 0 than this lgamma(x) and lgamma(-x) are equal, and pi x^2 may underflow
_STEPS = 7  # at most so many steps lead from below _FAR to the interval of a polynomial
_FEW = 3  # from this step on they are computed only where some number needs them


def _sin_cos_pi(b: Builder, x: Value) -> tuple[Value, Value]:
    """float64: |sin(pi x)| and cos(pi x) up to the sign that both have in common with (-1)^round(x)."""
    rest = x - b.round_even(x)
    outer = abs(rest) > 0.25
    r = (widen(b, rest) if x.dtype == "float32" else rest) * _PI  # in [-pi/2, pi/2]
    c = b.select(outer, _PI / 2 - abs(r), r)
    s = c * c
    sine = b.fma(c * s, horner(b, s, table.SIN), c)
    cosine = b.fma(s * s, horner(b, s, table.COS), b.fma(s, -0.5, 1.0))
    sign = b.copysign(b.const("float64", 1.0), r)
    return b.select(outer, cosine * sign, sine), b.select(outer, sine, cosine)


def _quotient(b: Builder, x: Value, y: Value, short: bool) -> Value:
    """float64: x / y for y above 0, rounded."""
    return b.short_quotient(x, y, far=True) if short else x / y


def lgamma(b: Builder, x: Value) -> Value:
    """log |gamma(x)|; infinite at 0, -1, -2, ... float32: 1 ULP; float64: 4 ULP, more near its zeros below -2."""
    short = x.dtype == "float32"
    magnitude = abs(x)
    a = widen(b, magnitude) if short else magnitude
    far = magnitude >= _FAR
    # lgamma(2 + z) with |z| <= 1/2, and the product p that leads from there to a, up (a > 2.5) or down (a < 1.5). Steps
    # and distances from integers are exact in either kind.
    safe = b.select(far, 2.0, magnitude)
    nearest = b.round_even(safe)
    low, lowest = nearest <= 1.0, nearest == 0.0
    one, none = b.const(x.dtype, 1.0), b.const(x.dtype, 0.0)

    def factor(k: int, below: Value, otherwise: Value) -> Value:
        found = b.select(nearest >= k + 2.0, safe - float(k), b.select(below, safe, otherwise))
        return widen(b, found) if short else found

    added = b.select(lowest, safe, none)
    p = b.fma(factor(1, low, one), factor(2, lowest, one), widen(b, added) if short else added)

    def product(p: Value) -> list[Value]:
        never = nearest < 0.0
        for k in range(_FEW, _STEPS):
            p = p * factor(k, never, one)
        return [p]

    (p,) = b.where_any(nearest >= _FEW + 2.0, lambda: product(p), [p])
    z = safe - nearest
    z = widen(b, z) if short else z
    # One logarithm serves both: of the product, or of a in Stirling's series.
    log_of = log_of_normal if short else log
    logarithm = log_of(b, b.select(far, a, p))
    near = b.fma(z, horner(b, z, table.LGAMMA), b.select(low, -logarithm, logarithm))

    def series() -> list[Value]:
        inverse = _quotient(b, b.const("float64", 1.0), a, short)
        tail = inverse * horner(b, inverse * inverse, _STIRLING)
        return [b.fma(a - 0.5, logarithm - 1.0, tail + (_HALF_LOG_2PI - 0.5))]

    (y,) = b.where_any(far, series, [near])

    def reflected() -> list[Value]:  # gamma(x) gamma(-x) = -pi / (x sin(pi x))
        sine, _ = _sin_cos_pi(b, magnitude)
        other = _LOG_PI - log_of(b, abs(sine) * a) - y
        return [other if short else b.select(a < _TINY, y, other)]

    (y,) = b.where_any(x < 0.0, reflected, [y])
    y = narrow(b, y) if short else y
    pole = (x <= 0.0) & (b.floor(x) == x)
    y = b.select(pole | (magnitude == INF), INF, y)
    return b.select(b.isnan(x), NAN, y)


def digamma(b: Builder, x: Value) -> Value:
    """The derivative of lgamma; NaN at -1, -2, ..., and minus or plus infinity at +0 and -0.

    float32: 1 ULP; float64: 4 ULP, more near its zeros below 0.
    """
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    negative = wide < 0.0
    a = b.select(negative, 1.0 - wide, wide)
    far = a >= _FAR
    # digamma(m) with 1 <= m <= 2, and the sum p / q of the 1 / (a + k) that lead from there to a.
    safe = b.select(far, 1.5, a)
    steps = b.floor(safe) - 1.0

    def sum_of_steps(p: Value, q: Value, begin: int, end: int) -> list[Value]:
        for k in range(begin, end):
            t = safe - float(k)
            needed = steps >= float(k)
            p, q = b.select(needed, b.fma(p, t, q), p), b.select(needed, q * t, q)
        return [p, q]

    p, q = sum_of_steps(b.const("float64", 0.0), b.const("float64", 1.0), 1, _FEW)
    p, q = b.where_any(steps >= float(_FEW), lambda: sum_of_steps(p, q, _FEW, _STEPS + 1), [p, q])
    below = steps < 0.0
    p, q = b.select(below, -1.0, p), b.select(below, safe, q)
    m = safe - steps
    # m is rounded where a is below 1: what it lost joins the distance from the zero.
    lost = b.select(below, safe - (m - 1.0), 0.0)
    distance = (m - _DIGAMMA_ZERO) + (lost - _DIGAMMA_ZERO_LOW)
    near = distance * horner(b, m - 1.5, table.DIGAMMA) + _quotient(b, p, q, short)

    def series() -> list[Value]:
        inverse = _quotient(b, b.const("float64", 1.0), a, short)
        square = inverse * inverse
        logarithm = log_of_normal(b, a) if short else log(b, a)
        return [b.fma(square, horner(b, square, _DIGAMMA), logarithm - 0.5 * inverse)]

    (y,) = b.where_any(far, series, [near])

    def reflected() -> list[Value]:  # digamma(1 - x) - digamma(x) = pi / tan(pi x)
        sine, cosine = _sin_cos_pi(b, wide)
        sign = b.copysign(b.const("float64", 1.0), sine)
        return [y - _quotient(b, _PI * cosine * sign, abs(sine), short)]

    (y,) = b.where_any(negative, reflected, [y])
    y = b.select(negative & (b.floor(wide) == wide), NAN, y)
    y = b.select(wide == 0.0, b.copysign(b.const("float64", INF), -wide), y)
    y = b.select(wide == INF, INF, y)
    return narrow(b, y) if short else y
