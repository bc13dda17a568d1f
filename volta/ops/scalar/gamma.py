"""lgamma and digamma, computed in float64 for both kinds."""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.logarithm import log
from volta.ops.scalar.parts import INF, NAN, Builder, Value, horner, narrow, widen

# Stirling's series: lgamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + sum of these over x^(2k - 1), and of digamma.
_STIRLING = (
    -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12,
)  # fmt: skip
_DIGAMMA = (3617 / 8160, -1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)
_HALF_LOG_2PI = 0.9189385332046727
_PI, _LOG_PI = 3.141592653589793, 1.1447298858494002
_STEPS = 8  # the series is used from this argument on


def _sin_cos_pi(b: Builder, x: Value) -> tuple[Value, Value]:
    """float64: |sin(pi x)| and cos(pi x) up to the sign that both have in common with (-1)^round(x)."""
    r = (x - b.round_even(x)) * _PI  # in [-pi/2, pi/2]
    outer = abs(r) > _PI / 4
    c = b.select(outer, _PI / 2 - abs(r), r)
    s = c * c
    sine = b.fma(c * s, horner(b, s, table.SIN), c)
    cosine = b.fma(s * s, horner(b, s, table.COS), b.fma(s, -0.5, 1.0))
    sign = b.copysign(b.const("float64", 1.0), r)
    return b.select(outer, cosine * sign, sine), b.select(outer, sine, cosine)


def lgamma(b: Builder, x: Value) -> Value:
    """log |gamma(x)|; infinite at 0, -1, -2, ... float32: 1 ULP; float64: 20 ULP, more near zeros below -2."""
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    a = abs(wide)
    # a <= 2.5: lgamma(2 + z) with z = a - 2, a - 1 or a, less the logarithm of what the shift multiplied.
    z = b.select(a < 0.5, a, b.select(a < 1.5, a - 1.0, a - 2.0))
    near = z * horner(b, z, table.LGAMMA)
    product = b.select(a < 0.5, b.fma(a, a, a), b.select(a < 1.5, a, 1.0))
    # a < 8: Stirling's series at a + 6 less the logarithm of the product on the way.
    low = a < 8.0
    rising = a * (a + 1.0) * (a + 2.0) * (a + 3.0) * (a + 4.0) * (a + 5.0)
    far = b.select(low, a + 6.0, a)
    inverse = 1.0 / far
    # One logarithm serves the shifts; the series needs another.
    shift = log(b, b.select(a <= 2.5, product, b.select(low, rising, 1.0)))
    series = inverse * horner(b, inverse * inverse, _STIRLING)
    stirling = b.fma(far - 0.5, log(b, far) - 1.0, series + (_HALF_LOG_2PI - 0.5))
    y = b.select(a <= 2.5, near, stirling) - shift
    # Reflection: gamma(x) gamma(-x) = -pi / (x sin(pi x)).
    sine, _ = _sin_cos_pi(b, a)
    reflected = _LOG_PI - log(b, abs(sine) * a) - y
    y = b.select(wide < 0.0, reflected, y)
    pole = (wide <= 0.0) & (b.floor(wide) == wide)
    y = b.select(pole | (a == INF), INF, y)
    y = b.select(b.isnan(wide), NAN, y)
    return narrow(b, y) if short else y


def digamma(b: Builder, x: Value) -> Value:
    """The derivative of lgamma; NaN at -1, -2, ..., and minus or plus infinity at +0 and -0.

    float32: 1 ULP; float64: 20 ULP, more near its zeros.
    """
    short = x.dtype == "float32"
    wide = widen(b, x) if short else x
    negative = wide < 0.0
    a = b.select(negative, 1.0 - wide, wide)
    low = a < float(_STEPS)
    # The sum of 1 / (a + k) on the way to a + 8, as one fraction: p / q + 1 / t = (p t + q) / (q t).
    base = b.select(low, a, 1.0)
    p, q = b.const("float64", 1.0), base
    for k in range(1, _STEPS):
        t = base + float(k)
        p, q = b.fma(p, t, q), q * t
    far = b.select(low, a + float(_STEPS), a)
    inverse = 1.0 / far
    square = inverse * inverse
    series = b.fma(square, horner(b, square, _DIGAMMA), log(b, far) - 0.5 * inverse)
    y = series - b.select(low, p / q, 0.0)
    sine, cosine = _sin_cos_pi(b, wide)
    y = b.select(negative, y - _PI * cosine / sine, y)
    y = b.select(negative & (b.floor(wide) == wide), NAN, y)
    y = b.select(wide == 0.0, b.copysign(b.const("float64", INF), -wide), y)
    y = b.select(wide == INF, INF, y)
    return narrow(b, y) if short else y
