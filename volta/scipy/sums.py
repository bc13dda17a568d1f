"""Special functions that are sums: zeta and polygamma, Bernoulli's numbers, hypergeometric functions."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.floats import standard
from volta.core.source import at_user_line
from volta.numpy.creation import asarray
from volta.numpy.promotion import broadcast_array
from volta.ops import lax
from volta.scipy.gamma_functions import gamma_sign, is_pole
from volta.scipy.series import EPS, in_float64, polynomial, refuse_slope, settled
from volta.trace.composite import Composite, with_partials

__all__ = ["bernoulli", "boxcox", "boxcox1p", "hyp1f1", "hyp2f1", "polygamma", "zeta"]


# -- the zeta function -------------------------------------------------------------------------------------------------


def _bernoulli_numbers(n: int) -> list[Fraction]:
    numbers = [Fraction(1)]
    for m in range(1, n + 1):
        numbers.append(-sum((math.comb(m + 1, k) * b for k, b in enumerate(numbers)), Fraction(0)) / (m + 1))
    return numbers


_DIRECT = 10
_EULER = tuple(float(b / math.factorial(2 * k + 2)) for k, b in enumerate(_bernoulli_numbers(26)[2::2]))


def _slope_of_zeta(t: Array, ans: Array, x: Array, q: Array) -> Array:
    return lax.neg(lax.mul(t, lax.mul(x, _zeta(lax.add(x, 1.0), q))))


@with_partials(refuse_slope("zeta", "x"), _slope_of_zeta)
def _zeta(x: Array, q: Array) -> Array:
    """Ten terms as they are and the rest by Euler and Maclaurin's formula."""
    both = lax.add(x, q)
    inside = lax.bitwise_and(lax.gt(x, 1.0), lax.gt(q, 0.0))
    pole = lax.bitwise_and(lax.ge(x, 1.0), lax.bitwise_and(lax.le(q, 0.0), lax.eq(q, lax.floor(q))))
    pole = lax.bitwise_or(pole, lax.bitwise_and(lax.eq(x, 1.0), lax.gt(q, 0.0)))
    edge = lax.select(lax.ne(both, both), math.nan, lax.select(pole, math.inf, math.nan))
    x, q = lax.select(inside, x, lax.full_like(both, 2.0)), lax.select(inside, q, lax.full_like(both, 1.0))
    total = lax.zeros_like(both)
    for n in range(_DIRECT - 1, -1, -1):
        total = lax.add(total, lax.pow(lax.add(q, float(n)), lax.neg(x)))
    end = lax.add(q, float(_DIRECT))
    power = lax.pow(end, lax.neg(x))
    rest = lax.add(lax.div(lax.mul(power, end), lax.sub(x, 1.0)), lax.mul(power, 0.5))
    factor, square = lax.div(lax.mul(power, x), end), lax.mul(end, end)
    tail = lax.zeros_like(both)
    for k, b in enumerate(_EULER):
        tail = lax.add(tail, lax.mul(factor, b))
        step = lax.mul(lax.add(x, 2.0 * k + 1.0), lax.add(x, 2.0 * k + 2.0))
        factor = lax.div(lax.mul(factor, step), square)
    vanishing = lax.gt(x, 1e4)  # the factors would overflow, and only the first term counts
    return lax.select(inside, lax.add(total, lax.select(vanishing, 0.0, lax.add(rest, tail))), edge)


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Array:
    """Hurwitz's zeta function, the sum of 1 / (n + q)^x over n from 0 on; Riemann's where ``q`` is left out.

    It has a derivative by ``q`` alone. NaN for x < 1.

    >>> round(zeta(2.0).item(), 4)
    1.6449
    """
    return in_float64("zeta", _zeta, x, 1.0 if q is None else q)


def _slope_of_polygamma(t: Array, ans: Array, n: Array, x: Array) -> Array:
    return lax.mul(t, _polygamma(lax.add(n, 1.0), x))


@with_partials(refuse_slope("polygamma", "n"), _slope_of_polygamma)
def _polygamma(n: Array, x: Array) -> Array:
    n, x = _spread(n, x)
    order = lax.add(n, 1.0)
    even = lax.eq(lax.mul(lax.floor(lax.mul(n, 0.5)), 2.0), n)
    factor = lax.exp(lax.lgamma(order))
    of_order = lax.mul(lax.select(even, lax.neg(factor), factor), _zeta(lax.select(lax.eq(n, 0.0), 2.0, order), x))
    return lax.select(lax.eq(n, 0.0), lax.digamma(x), of_order)


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """The derivative of order ``n`` of digamma, for x > 0; it has a derivative by ``x`` alone.

    >>> round(polygamma(1, 1.0).item(), 4)
    1.6449
    """
    return in_float64("polygamma", _polygamma, n, x)


@standard
def bernoulli(n: int) -> Array:
    """Bernoulli's numbers B0 to Bn (with B1 = -1/2), each the nearest float32.

    Raises:
        DTypeError: ``n`` is no integer of 0 or more.

    >>> bernoulli(2).tolist()
    [1.0, -0.5, 0.1666666716337204]
    """
    if isinstance(n, (float, complex)) or not hasattr(n, "__index__") or n < 0:
        raise DTypeError(at_user_line(f"bernoulli: n must be an int of 0 or more, not {n!r:.40}"))
    with np.errstate(over="ignore"):
        numbers = np.array([_as_float(b) for b in _bernoulli_numbers(n.__index__())])
        return asarray(numbers.astype(np.float32))


def _as_float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.copysign(math.inf, x)


# -- Box and Cox's transformation --------------------------------------------------------------------------------------


def _power_less_one(lam: Array, logarithm: Array) -> Array:
    exponent = lax.mul(lam, logarithm)
    none = lax.bitwise_or(lax.eq(lam, 0.0), lax.lt(lax.abs(exponent), 1e-290))  # a subnormal one has few digits
    return lax.select(none, logarithm, lax.div(lax.expm1(exponent), lax.select(none, 1.0, lam)))


def _slope_by_power(k: int, lam: Array, logarithm: Array) -> Array:
    """The derivative of order ``k`` of (exp(lam L) - 1) / lam by lam: near 0 a power series, further out by parts.

    It is L^(k+1) times the integral of s^k exp(s lam L) from 0 to 1.
    """
    exponent = lax.mul(lam, logarithm)
    radius, series = float(max(2, k)), [1.0 / (k + 1)]
    while radius ** len(series) * series[-1] > 1e-18:
        n = len(series)
        series.append(1.0 / (math.factorial(n) * (n + k + 1)))
    close = lax.bitwise_or(lax.eq(lam, 0.0), lax.lt(lax.abs(exponent), radius))
    small = lax.select(lax.bitwise_and(close, lax.ne(lam, 0.0)), exponent, 0.0)
    near = lax.mul(lax.integer_pow(logarithm, k + 1), polynomial(small, tuple(reversed(series))))
    lam, exponent = lax.select(close, 1.0, lam), lax.select(close, 1.0, exponent)
    parts = lax.ones_like(exponent)
    for j in range(1, k + 1):
        parts = lax.sub(1.0, lax.mul(lax.div(float(j), exponent), parts))
    power = lax.exp(exponent)
    upper = lax.mul(lax.div(lax.mul(lax.integer_pow(logarithm, k), power), lam), parts)
    lower = lax.div((-1.0) ** k * math.factorial(k), lax.integer_pow(lam, k + 1))
    return lax.select(close, near, lax.sub(lax.select(lax.eq(power, 0.0), 0.0, upper), lower))


@cache
def _boxcox(k: int, past: float) -> Composite:
    """The derivative of order ``k`` by the power, of ``past`` + x. By x it is that of (past + x)^(lam - 1)."""
    log = lax.log1p if past else lax.log

    def value(x: Array, lam: Array) -> Array:
        return _slope_by_power(k, lam, log(x)) if k else _power_less_one(lam, log(x))

    def by_x(t: Array, ans: Array, x: Array, lam: Array) -> Any:
        base = lax.add(x, past)
        outside = lax.lt(base, 0.0)
        logarithm = lax.select(lax.eq(base, 0.0), 0.0, log(x))  # as of powers
        power = lax.pow(lax.select(outside, math.nan, base), lax.sub(lam, 1.0))
        return lax.mul(t, lax.mul(power, lax.integer_pow(logarithm, k)))

    return Composite(f"boxcox_{k}", value, (by_x, lambda t, ans, x, lam: lax.mul(t, _boxcox(k + 1, past)(x, lam))))


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """(x^lmbda - 1) / lmbda, and log(x) where ``lmbda`` is 0.

    >>> boxcox(3.0, 2.0).item()
    4.0
    """
    return in_float64("boxcox", _boxcox(0, 0.0), x, lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """:func:`boxcox` of 1 + x, exact near 0.

    >>> boxcox1p(2.0, 2.0).item()
    4.0
    """
    return in_float64("boxcox1p", _boxcox(0, 1.0), x, lmbda)


# -- hypergeometric functions ------------------------------------------------------------------------------------------


def _series(tops: tuple[Any, ...], bottom: Any, x: Any, active: Any) -> Any:
    def step(i: Any, term: Any, total: Any) -> Any:
        factor = lax.div(x, lax.mul(lax.add(bottom, lax.sub(i, 1.0)), i))
        for top in tops:
            factor = lax.mul(factor, lax.add(top, lax.sub(i, 1.0)))
        term = lax.mul(term, factor)
        total = lax.add(total, term)
        growing = lax.gt(lax.abs(factor), 0.9)
        return (term, total), lax.bitwise_or(growing, lax.gt(lax.abs(term), lax.mul(lax.abs(total), EPS)))

    one = lax.ones_like(x)
    return settled(step, (one, one), active, 10_000)[1]


def _spread(*xs: Any) -> list[Any]:
    """Operands of one shape."""
    shape = max((x.shape for x in xs), key=len)
    return [broadcast_array(x, shape) for x in xs]


def _slope_of_hyp1f1(t: Array, ans: Array, a: Array, b: Array, x: Array) -> Array:
    return lax.mul(t, lax.mul(lax.div(a, b), _hyp1f1(lax.add(a, 1.0), lax.add(b, 1.0), x)))


@with_partials(refuse_slope("hyp1f1", "a"), refuse_slope("hyp1f1", "b"), _slope_of_hyp1f1)
def _hyp1f1(a: Array, b: Array, x: Array) -> Array:
    """The series; of negative x by Kummer's transformation, so that terms do not cancel."""
    a, b, x = _spread(a, b, x)
    negative, total = lax.lt(x, 0.0), lax.add(a, lax.add(b, x))
    known = lax.bitwise_and(lax.eq(total, total), lax.lt(lax.abs(x), 700.0))
    top = lax.select(negative, lax.sub(b, a), a)
    total = _series((top,), b, lax.select(known, lax.abs(x), 0.5), known)
    return lax.select(known, lax.mul(total, lax.select(negative, lax.exp(x), 1.0)), math.nan)


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Kummer's confluent hypergeometric function, with a derivative by ``x`` alone; NaN for |x| > 700.

    >>> round(hyp1f1(1.0, 1.0, 1.0).item(), 4)
    2.7183
    """
    return in_float64("hyp1f1", _hyp1f1, a, b, x)


def _slope_of_hyp2f1(t: Array, ans: Array, a: Array, b: Array, c: Array, x: Array) -> Array:
    after = _hyp2f1(lax.add(a, 1.0), lax.add(b, 1.0), lax.add(c, 1.0), x)
    return lax.mul(t, lax.mul(lax.div(lax.mul(a, b), c), after))


@with_partials(*(refuse_slope("hyp2f1", operand) for operand in "abc"), _slope_of_hyp2f1)
def _hyp2f1(a: Array, b: Array, c: Array, x: Array) -> Array:
    """The series within |x| < 1; of negative x by Pfaff's transformation, which halves it at least."""
    a, b, c, x = _spread(a, b, c, x)
    negative = lax.lt(x, 0.0)
    ends = lax.bitwise_or(is_pole(a), is_pole(b))  # the series is a polynomial
    known = lax.bitwise_or(lax.lt(x, 1.0), lax.bitwise_and(ends, lax.lt(x, math.inf)))
    safe = lax.select(known, x, 0.5)
    rest = lax.sub(1.0, safe)
    point = lax.select(negative, lax.div(safe, lax.neg(rest)), safe)
    total = _series((a, lax.select(negative, lax.sub(c, b), b)), c, point, known)
    out = lax.mul(total, lax.select(negative, lax.pow(rest, lax.neg(a)), 1.0))
    excess = lax.sub(c, lax.add(a, b))
    at_one = lax.exp(
        lax.sub(
            lax.add(lax.lgamma(c), lax.lgamma(excess)), lax.add(lax.lgamma(lax.sub(c, a)), lax.lgamma(lax.sub(c, b)))
        )
    )
    signs = [gamma_sign(v) for v in (c, excess, lax.sub(c, a), lax.sub(c, b))]
    at_one = lax.mul(at_one, lax.mul(lax.mul(signs[0], signs[1]), lax.mul(signs[2], signs[3])))
    at_one = lax.select(lax.gt(excess, 0.0), at_one, math.inf)
    beyond = lax.select(lax.eq(x, 1.0), at_one, math.nan)
    return lax.select(lax.eq(x, 0.0), 1.0, lax.select(known, out, beyond))


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Gauss's hypergeometric function for x <= 1, with a derivative by ``x`` alone.

    >>> round(hyp2f1(1.0, 1.0, 2.0, 0.5).item(), 4)
    1.3863
    """
    return in_float64("hyp2f1", _hyp2f1, a, b, c, x)
