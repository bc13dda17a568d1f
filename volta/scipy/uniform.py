"""The incomplete gamma and beta functions of large parameters: normal distributions with corrections (Temme's
expansions), where sums and continued fractions would take some multiple of a parameter's root of steps.

With eta^2 / 2 the relative entropy at ``x``, a share is erfc(eta sqrt(n / 2)) / 2 and a density times a series in
1 / n, whose coefficients are functions of eta. Where the share is no 0 eta is small, so they are polynomials.
"""

from __future__ import annotations

import math
from typing import Any

from volta.core.array import Array
from volta.ops import lax
from volta.scipy.gamma_functions import stirling
from volta.scipy.series import polynomial

LARGE_GAMMA = 1e6
LARGE_BETA = 1e9
"""From there on the expansions are exact to some 1e-15; what they leave out is of order n ** -2.5 and n ** -1.5."""

_FARTHEST = 750.0
"""An exponent beyond which every density is 0."""

# Of eta, from the highest power on: (x / a - 1) / eta, and Temme's c0 and c1.
_DISTANCE = (-2.5536449147560258671e-5, 5.8788947677836566725e-5, 1 / 4320, -1 / 270, 1 / 36, 1 / 3, 1.0)
_C0 = (
    -2.1854485106799921615e-6, 3.9192631785224377817e-5, -1.787551440329218107e-4, 3.5273368606701940035e-4,
    1 / 864, -2 / 135, 1 / 12, -1 / 3,
)  # fmt: skip
_C0_SLOPE = tuple(k * c for k, c in zip(range(7, 0, -1), _C0[:-1], strict=True))
_C1 = (2.0576131687242798354e-4, -9.9022633744855967078e-4, 1 / 378, -1 / 288, -1 / 540)


def log1p_less(m: Array) -> Array:
    """log(1 + m) - m, without cancelling near 0."""
    near = lax.lt(lax.abs(m), 0.5)
    small = lax.select(near, m, 0.0)
    r = lax.div(small, lax.add(small, 2.0))
    square = lax.mul(r, r)
    rest = polynomial(square, tuple(1.0 / (2 * k + 1) for k in range(17, 0, -1)))
    series = lax.sub(lax.mul(lax.mul(lax.mul(r, square), 2.0), rest), lax.mul(small, r))
    safe = lax.select(near, 1.0, m)
    return lax.select(near, series, lax.sub(lax.log1p(safe), safe))


def _shares(above: Any, exponent: Any, rest: Any) -> tuple[Any, Any]:
    """Both shares: the smaller one is a tail of the normal distribution with ``rest`` added on the upper side."""
    tail = lax.mul(lax.erfc(lax.sqrt(exponent)), 0.5)
    small = lax.select(above, lax.add(tail, rest), lax.sub(tail, rest))
    other = lax.sub(1.0, small)
    return lax.select(above, other, small), lax.select(above, small, other)


def large_gamma(a: Array, x: Array) -> tuple[Any, Any, Any]:
    """P(a, x), Q(a, x) and dP/da for a >= LARGE_GAMMA."""
    m = lax.div(lax.sub(x, a), a)
    above, entropy = lax.ge(m, 0.0), lax.neg(log1p_less(m))
    exponent = lax.mul(a, entropy)
    eta = lax.sqrt(lax.mul(lax.select(lax.lt(exponent, _FARTHEST), entropy, 0.0), 2.0))
    eta = lax.select(above, eta, lax.neg(eta))
    density = lax.div(lax.exp(lax.neg(exponent)), lax.sqrt(lax.mul(a, 2 * math.pi)))
    c = lax.add(polynomial(eta, _C0), lax.div(polynomial(eta, _C1), a))
    p, q = _shares(above, exponent, lax.mul(density, c))
    distance = polynomial(eta, _DISTANCE)
    log = lax.sub(distance, lax.mul(eta, 0.5))  # log(x / a) / eta
    slope = lax.add(log, lax.mul(c, lax.sub(lax.mul(log, eta), lax.div(0.5, a))))
    slope = lax.sub(slope, lax.div(lax.mul(polynomial(eta, _C0_SLOPE), distance), a))
    return p, q, lax.neg(lax.mul(density, slope))


def _product(u: Any, v: Any) -> tuple[Any, Any]:
    """The product, and what rounding it takes away (Dekker)."""

    def halves(z: Any) -> tuple[Any, Any]:
        wide = lax.mul(z, 2.0**27 + 1)
        high = lax.sub(wide, lax.sub(wide, z))
        return high, lax.sub(z, high)

    (a, b), (c, d), whole = halves(u), halves(v), lax.mul(u, v)
    rest = lax.add(lax.sub(lax.mul(a, c), whole), lax.add(lax.mul(a, d), lax.mul(b, c)))
    return whole, lax.add(rest, lax.mul(b, d))


def _excess(a: Array, b: Array, x: Array) -> tuple[Any, Any, Any, Any]:
    """x b - (1 - x) a, of products that nearly cancel, and ``a`` and ``b``, in units of a power of two; the unit."""
    most = lax.max(a, b)
    unit = lax.select(lax.gt(most, 1e280), 2.0**-200, 1.0)
    a, b = lax.mul(a, unit), lax.mul(b, unit)
    rest = lax.sub(1.0, x)
    lost = lax.sub(lax.sub(1.0, rest), x)
    (p, p_rest), (q, q_rest) = _product(x, b), _product(rest, a)
    return lax.sub(lax.add(lax.sub(p, q), lax.sub(p_rest, q_rest)), lax.mul(lost, a)), a, b, unit


def excess(a: Array, b: Array, x: Array) -> Any:
    """x b - (1 - x) a: how far ``x`` is above the mean a / (a + b), times a + b."""
    away, _, _, unit = _excess(a, b, x)
    return lax.div(away, unit)


def _distances(a: Array, b: Array, x: Array) -> tuple[Any, Any]:
    """How far ``x`` and 1 - x are from the means a / (a + b) and b / (a + b), in parts of these."""
    away, a, b, _ = _excess(a, b, x)
    return lax.div(away, a), lax.div(lax.neg(away), b)


def beta_density(a: Array, b: Array, x: Array) -> Any:
    """x^a (1 - x)^b / beta(a, b) for a, b >= 10, of which no factor leaves the range."""
    first, second = _distances(a, b, x)
    exponent = lax.add(lax.mul(a, log1p_less(first)), lax.mul(b, log1p_less(second)))
    corrections = lax.sub(stirling(lax.add(a, b)), lax.add(stirling(a), stirling(b)))
    n = lax.mul(lax.div(a, lax.add(a, b)), b)
    return lax.mul(lax.exp(lax.add(exponent, corrections)), lax.sqrt(lax.div(n, 2 * math.pi)))


def large_beta(a: Array, b: Array, x: Array) -> Any:
    """The incomplete beta function for a, b >= LARGE_BETA."""
    n = lax.add(a, b)
    p, q = lax.div(a, n), lax.div(b, n)
    first, second = _distances(a, b, x)
    exponent = lax.neg(lax.add(lax.mul(a, log1p_less(first)), lax.mul(b, log1p_less(second))))
    wide = lax.sqrt(lax.mul(p, q))
    delta = lax.mul(lax.select(lax.lt(exponent, _FARTHEST), first, 0.0), lax.sqrt(lax.div(p, q)))
    skew = lax.div(lax.sub(q, p), lax.mul(wide, 3.0))
    fourth = lax.div(lax.sub(1.0, lax.mul(lax.mul(p, q), 3.0)), lax.mul(lax.mul(p, q), 4.0))
    c = lax.add(skew, lax.mul(lax.sub(lax.mul(lax.mul(skew, skew), 1.5), fourth), delta))
    density = lax.div(lax.exp(lax.neg(exponent)), lax.sqrt(lax.mul(n, 2 * math.pi)))
    return _shares(lax.ge(first, 0.0), exponent, lax.neg(lax.mul(density, c)))[0]
