"""The incomplete gamma and beta functions: shares of the integrals that define them."""

from __future__ import annotations

import math
from typing import Any

from volta.core.array import Array, ArrayLike
from volta.ops import lax
from volta.scipy.gamma_functions import log_of_beta, stirling
from volta.scipy.integrals import exp1_in_float64
from volta.scipy.series import EPS, in_float64, refuse_slope, settled
from volta.scipy.uniform import LARGE_BETA, LARGE_GAMMA, beta_density, excess, large_beta, large_gamma, log1p_less
from volta.trace.composite import with_partials

__all__ = ["betainc", "gammainc", "gammaincc", "random_gamma_grad"]

_TINY = 1e-300


# -- the incomplete gamma functions ------------------------------------------------------------------------------------


def _density(a: Array, x: Array) -> Array:
    """x^a exp(-x) / gamma(a + 1)."""
    large = lax.ge(a, 10.0)
    ten, one = lax.select(large, a, 10.0), lax.select(large, 1.0, a)
    away = log1p_less(lax.div(lax.sub(x, ten), ten))
    of_large = lax.exp(lax.sub(lax.mul(ten, away), stirling(ten)))
    of_large = lax.div(of_large, lax.sqrt(lax.mul(ten, 2 * math.pi)))
    of_small = lax.exp(lax.sub(lax.sub(lax.mul(one, lax.log(x)), x), lax.lgamma(lax.add(one, 1.0))))
    return lax.select(large, of_large, of_small)


def _ordinary(a: Array, x: Array) -> tuple[Any, Array, Array]:
    """Where both are positive and finite, and operands that are so everywhere."""
    positive = lax.bitwise_and(lax.gt(a, 0.0), lax.gt(x, 0.0))
    both = lax.bitwise_and(positive, lax.bitwise_and(lax.lt(a, math.inf), lax.lt(x, math.inf)))
    return both, lax.select(both, a, 1.0), lax.select(both, x, 1.0)


def _from_below(a: Array, x: Array, active: Any) -> tuple[Any, Any]:
    """The sum of x^n / ((a + 1) … (a + n)) over n from 0, and its derivative by a."""

    def step(n: Any, term: Any, slope: Any, total: Any, slopes: Any) -> Any:
        term = lax.mul(term, lax.div(x, lax.add(a, n)))
        slope = lax.sub(slope, lax.div(1.0, lax.add(a, n)))
        change = lax.mul(term, slope)
        total, slopes = lax.add(total, term), lax.add(slopes, change)
        more = lax.bitwise_or(lax.gt(term, lax.mul(total, EPS)), lax.gt(lax.abs(change), lax.mul(lax.abs(slopes), EPS)))
        return (term, slope, total, slopes), more

    zero, one = lax.zeros_like(x), lax.ones_like(x)
    return settled(step, (one, zero, one, zero), active)[2:]


def _nonzero(x: Any) -> Any:
    return lax.select(lax.lt(lax.abs(x), _TINY), _TINY, x)


def _from_above(a: Array, x: Array, active: Any) -> tuple[Any, Any]:
    """The continued fraction of Gamma(a, x) / (x^a exp(-x)), and its derivative by a (Lentz's method)."""

    def step(i: Any, b: Any, c: Any, d: Any, h: Any, dc: Any, dd: Any, dh: Any) -> Any:
        top, b = lax.mul(i, lax.sub(a, i)), lax.add(b, 2.0)
        dd = lax.sub(lax.add(lax.mul(i, d), lax.mul(top, dd)), 1.0)
        d = lax.div(1.0, _nonzero(lax.add(lax.mul(top, d), b)))
        dd = lax.neg(lax.mul(dd, lax.mul(d, d)))
        dc = lax.sub(lax.div(lax.sub(i, lax.div(lax.mul(top, dc), c)), c), 1.0)
        c = _nonzero(lax.add(b, lax.div(top, c)))
        factor = lax.mul(d, c)
        dh = lax.add(lax.mul(dh, factor), lax.mul(h, lax.add(lax.mul(dd, c), lax.mul(d, dc))))
        return (b, c, d, lax.mul(h, factor), dc, dd, dh), lax.gt(lax.abs(lax.sub(factor, 1.0)), 4 * EPS)

    b, zero = lax.add(lax.sub(x, a), 1.0), lax.zeros_like(x)
    d = lax.div(1.0, _nonzero(b))
    state = (b, lax.full_like(x, 1 / _TINY), d, d, zero, lax.mul(d, d), lax.mul(d, d))
    out = settled(step, state, active)
    return out[3], out[6]


def _parts(a: Array, x: Array) -> tuple[Any, Any, Any]:
    """P(a, x), Q(a, x) and dP/da of ordinary operands."""
    a, x = lax.add(a, lax.zeros_like(x)), lax.add(x, lax.zeros_like(a))
    large = lax.ge(a, LARGE_GAMMA)
    of_large = large_gamma(lax.select(large, a, LARGE_GAMMA), lax.select(large, x, LARGE_GAMMA))
    of_others = _summed(lax.select(large, 1.0, a), lax.select(large, 1.0, x))
    p, q, by_a = (lax.select(large, one, other) for one, other in zip(of_large, of_others, strict=True))
    return p, q, by_a


def _summed(a: Array, x: Array) -> tuple[Any, Any, Any]:
    """The same by a sum or a continued fraction."""
    above = lax.gt(x, lax.add(a, 1.0))
    density, log = _density(a, x), lax.log(x)
    total, slopes = _from_below(a, x, lax.bitwise_not(above))
    fraction, slope = _from_above(a, x, above)
    below = lax.mul(density, total)
    by_a = lax.add(lax.mul(below, lax.sub(log, lax.digamma(lax.add(a, 1.0)))), lax.mul(density, slopes))
    upper = lax.mul(density, a)
    rest = lax.mul(upper, fraction)
    rest_by_a = lax.add(lax.mul(rest, lax.sub(log, lax.digamma(a))), lax.mul(upper, slope))
    p, q = lax.select(above, lax.sub(1.0, rest), below), lax.select(above, rest, lax.sub(1.0, below))
    return p, q, lax.select(above, lax.neg(rest_by_a), by_a)


def _edges(a: Array, x: Array, inside: Any, whole: float) -> Array:
    """P (``whole`` 1) or Q (0) also where an operand is a zero, infinite or none that is allowed."""
    both, _, _ = _ordinary(a, x)
    outside = lax.bitwise_or(lax.lt(a, 0.0), lax.lt(x, 0.0))
    outside = lax.bitwise_or(outside, lax.bitwise_or(lax.ne(a, a), lax.ne(x, x)))
    outside = lax.bitwise_or(outside, lax.bitwise_and(lax.eq(a, 0.0), lax.eq(x, 0.0)))
    outside = lax.bitwise_or(outside, lax.bitwise_and(lax.eq(a, math.inf), lax.eq(x, math.inf)))
    none = lax.bitwise_or(lax.eq(x, 0.0), lax.eq(a, math.inf))
    return lax.select(both, inside, lax.select(outside, math.nan, lax.select(none, 1.0 - whole, whole)))


@with_partials(
    lambda t, ans, a, x: lax.mul(t, _slope_by_a(ans, a, x)),
    lambda t, ans, a, x: lax.mul(t, _slope_by_x(ans, a, x)),
)
def _peak(a: Array, x: Array) -> Any:
    """x^(a - 1) exp(-x) / gamma(a): the derivative by ``x``. At x = 0 it is that of a power."""
    both, safe_a, safe_x = _ordinary(a, x)
    at_zero = lax.select(lax.lt(a, 1.0), math.inf, lax.select(lax.eq(a, 1.0), 1.0, 0.0))
    edge = lax.select(lax.bitwise_and(lax.eq(x, 0.0), lax.gt(a, 0.0)), at_zero, 0.0)
    return lax.select(both, lax.div(lax.mul(_density(safe_a, safe_x), safe_a), safe_x), edge)


def _slope_by_a(peak: Any, a: Array, x: Array) -> Any:
    """As of powers, the logarithm counts as 0 at x = 0. At a = 0, where 1 / gamma(a) is 0, its slope is 1."""
    both, safe_a, safe_x = _ordinary(a, x)
    inside = lax.mul(lax.select(both, peak, 0.0), lax.sub(lax.log(safe_x), lax.digamma(safe_a)))
    start, safe_x = _start(a, x)
    return lax.select(both, inside, lax.select(start, lax.div(lax.exp(lax.neg(safe_x)), safe_x), 0.0))


def _start(a: Array, x: Array) -> tuple[Any, Array]:
    """Where ``a`` is 0 and x > 0, and an ``x`` that is so everywhere."""
    start = lax.bitwise_and(lax.eq(a, 0.0), lax.gt(x, 0.0))
    return start, lax.select(start, x, lax.add(lax.ones_like(x), lax.zeros_like(a)))


def _slope_by_x(peak: Any, a: Array, x: Array) -> Any:
    """The difference of the densities of a - 1 and ``a``."""
    both, safe_a, safe_x = _ordinary(a, x)
    inside = lax.mul(lax.select(both, peak, 0.0), lax.sub(lax.div(lax.sub(safe_a, 1.0), safe_x), 1.0))
    less = lax.sub(a, 1.0)
    edge = lax.sub(lax.select(lax.eq(less, 0.0), 0.0, _peak(less, x)), peak)
    steep = lax.lt(less, 0.0)
    at_steep = lax.mul(peak, lax.div(lax.select(steep, less, -1.0), lax.select(steep, x, 1.0)))
    edge = lax.select(steep, at_steep, edge)
    at_zero = lax.bitwise_and(lax.eq(x, 0.0), lax.gt(a, 0.0))
    return lax.select(both, inside, lax.select(at_zero, edge, 0.0))


@with_partials(
    refuse_slope("gammainc", "a, a second time"),
    lambda t, ans, a, x: lax.mul(t, _slope_by_a(_peak(a, x), a, x)),
)
def _share_by_a(a: Array, x: Array) -> Any:
    start, after = _start(a, x)
    both, a, x = _ordinary(a, x)
    return lax.select(both, _parts(a, x)[2], lax.select(start, lax.neg(exp1_in_float64(after)), 0.0))


def _by_a(t: Array, ans: Array, a: Array, x: Array) -> Array:
    return lax.mul(t, _share_by_a(a, x))


def _by_x(t: Array, ans: Array, a: Array, x: Array) -> Array:
    return lax.mul(t, _peak(a, x))


@with_partials(_by_a, _by_x)
def _gammainc(a: Array, x: Array) -> Array:
    _, safe_a, safe_x = _ordinary(a, x)
    return _edges(a, x, _parts(safe_a, safe_x)[0], 1.0)


@with_partials(
    lambda t, ans, a, x: lax.neg(_by_a(t, ans, a, x)),
    lambda t, ans, a, x: lax.neg(_by_x(t, ans, a, x)),
)
def _gammaincc(a: Array, x: Array) -> Array:
    _, safe_a, safe_x = _ordinary(a, x)
    return _edges(a, x, _parts(safe_a, safe_x)[1], 0.0)


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """The share of the gamma function's integral below ``x``, with derivatives by both.

    >>> round(gammainc(1.0, 2.0).item(), 4)
    0.8647
    """
    return in_float64("gammainc", _gammainc, a, x)


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """1 - :func:`gammainc`, exact where that is nearly 1.

    >>> round(gammaincc(1.0, 2.0).item(), 4)
    0.1353
    """
    return in_float64("gammaincc", _gammaincc, a, x)


def random_gamma_grad(a: ArrayLike, sample: ArrayLike) -> Array:
    """The derivative by ``a`` of a draw from the gamma distribution: -(dP/da) / (dP/dx) of P = :func:`gammainc`.

    >>> random_gamma_grad(1.0, 1.0).item() > 0
    True
    """

    def value(a: Array, x: Array) -> Array:
        both, safe_a, safe_x = _ordinary(a, x)
        one = lax.ones_like(x)
        slope = lax.div(lax.neg(_by_a(one, one, safe_a, safe_x)), _by_x(one, one, safe_a, safe_x))
        return lax.select(both, slope, math.nan)

    return in_float64("random_gamma_grad", value, a, sample)


# -- the incomplete beta function --------------------------------------------------------------------------------------


def _beta_fraction(a: Array, b: Array, x: Array, rest: Array, below: Array, active: Any) -> Any:
    """a times the incomplete beta function over x^a (1 - x)^b / beta(a, b), by a continued fraction (Lentz's method).

    1 - x is ``rest``, and a - (a + b) x is ``below``: as these are given, nothing cancels where x or 1 - x is small
    (the form of Didonato and Morris).
    """
    start = _nonzero(lax.div(lax.add(below, 1.0), lax.add(a, 1.0)))
    turns = lax.add(rest, 1.0)

    def step(n: Any, c: Any, d: Any, h: Any) -> Any:
        ahead = lax.sub(lax.add(a, n), 1.0)  # a + n - 1
        sum_ = lax.add(ahead, n)
        here = lax.mul(lax.sub(b, n), x)
        part = lax.div(n, sum_)
        top = lax.mul(lax.mul(part, lax.mul(lax.add(ahead, b), x)), here)
        top = lax.mul(top, lax.select(lax.eq(n, 1.0), lax.div(1.0, sum_), lax.div(ahead, sum_)))
        share = lax.div(lax.add(a, n), lax.add(sum_, 2.0))
        bottom = lax.add(lax.add(below, 1.0), lax.mul(n, turns))
        bottom = lax.add(lax.add(lax.mul(part, here), n), lax.mul(share, bottom))
        c = _nonzero(lax.add(bottom, lax.div(top, c)))
        d = lax.div(1.0, _nonzero(lax.add(bottom, lax.mul(top, d))))
        factor = lax.mul(c, d)
        return (c, d, lax.mul(h, factor)), lax.gt(lax.abs(lax.sub(factor, 1.0)), 4 * EPS)

    state = (start, lax.zeros_like(start), start)
    return lax.div(1.0, settled(step, state, active)[2])


def _slope_of_betainc(t: Array, ans: Array, a: Array, b: Array, x: Array) -> Array:
    inside = lax.bitwise_and(lax.gt(x, 0.0), lax.lt(x, 1.0))
    x = lax.select(inside, x, 0.5)
    power = lax.add(lax.mul(lax.sub(a, 1.0), lax.log(x)), lax.mul(lax.sub(b, 1.0), lax.log1p(lax.neg(x))))
    return lax.mul(t, lax.select(inside, lax.exp(lax.sub(power, log_of_beta(a, b))), 0.0))


def _proper(a: Array) -> Any:
    return lax.bitwise_and(lax.gt(a, 0.0), lax.lt(a, math.inf))


def _limits_of_betainc(a: Array, b: Array, x: Array) -> Any:
    """Where a parameter is 0 or infinite, all of the beta distribution is at 0 or at 1; NaN elsewhere."""
    at_zero = lax.bitwise_and(lax.bitwise_or(lax.eq(a, 0.0), lax.eq(b, math.inf)), lax.gt(b, 0.0))
    at_zero = lax.bitwise_and(at_zero, lax.bitwise_and(lax.ge(a, 0.0), lax.lt(a, math.inf)))
    at_one = lax.bitwise_and(lax.bitwise_or(lax.eq(b, 0.0), lax.eq(a, math.inf)), lax.gt(a, 0.0))
    at_one = lax.bitwise_and(at_one, lax.bitwise_and(lax.ge(b, 0.0), lax.lt(b, math.inf)))
    above = lax.select(lax.gt(x, 0.0), 1.0, 0.0)
    whole = lax.select(lax.lt(x, 1.0), 0.0, 1.0)
    limit = lax.select(at_zero, above, lax.select(at_one, whole, math.nan))
    return lax.select(lax.bitwise_and(lax.ge(x, 0.0), lax.le(x, 1.0)), limit, math.nan)


@with_partials(refuse_slope("betainc", "a"), refuse_slope("betainc", "b"), _slope_of_betainc)
def _betainc(a: Array, b: Array, x: Array) -> Array:
    zero = lax.mul(lax.add(lax.add(a, b), x), 0.0)
    positive = lax.bitwise_and(_proper(a), _proper(b))
    inside = lax.bitwise_and(positive, lax.bitwise_and(lax.gt(x, 0.0), lax.lt(x, 1.0)))
    known = lax.bitwise_and(positive, lax.bitwise_and(lax.ge(x, 0.0), lax.le(x, 1.0)))
    edge = lax.select(known, lax.add(x, zero), _limits_of_betainc(a, b, x))
    a, b, x = (lax.select(inside, lax.add(v, zero), 0.5) for v in (a, b, x))
    turned = lax.gt(x, lax.div(lax.add(a, 1.0), lax.add(lax.add(a, b), 2.0)))
    other, above = lax.sub(1.0, x), excess(a, b, x)
    first, second = lax.select(turned, b, a), lax.select(turned, a, b)
    share, rest = lax.select(turned, other, x), lax.select(turned, x, other)
    below = lax.select(turned, above, lax.neg(above))
    large = lax.ge(lax.min(a, b), LARGE_BETA)
    summed = lax.bitwise_and(inside, lax.bitwise_not(large))
    part = lax.div(_beta_power(a, b, x), first)
    part = lax.mul(part, _beta_fraction(first, second, share, rest, below, summed))
    safe_a, safe_b = lax.select(large, a, LARGE_BETA), lax.select(large, b, LARGE_BETA)
    of_large = large_beta(safe_a, safe_b, lax.select(large, x, 0.5))
    part = lax.select(large, of_large, lax.select(turned, lax.sub(1.0, part), part))
    return lax.select(inside, part, edge)


def _beta_power(a: Array, b: Array, x: Array) -> Any:
    """x^a (1 - x)^b / beta(a, b)."""
    both = lax.ge(lax.min(a, b), 10.0)
    power = lax.add(lax.mul(a, lax.log(x)), lax.mul(b, lax.log1p(lax.neg(x))))
    of_small = lax.exp(lax.sub(power, log_of_beta(a, b)))
    of_both = beta_density(lax.select(both, a, 10.0), lax.select(both, b, 10.0), lax.select(both, x, 0.5))
    return lax.select(both, of_both, of_small)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """The share of the beta function's integral below ``x``, with a derivative by ``x`` alone.

    >>> round(betainc(1.0, 2.0, 0.5).item(), 4)
    0.75
    """
    return in_float64("betainc", _betainc, a, b, x)
