"""Integrals with a name: of exponentials, sines and logarithms, element by element."""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

from volta.core.array import Array, ArrayLike
from volta.ops import lax
from volta.scipy import series_tables as tables
from volta.scipy.series import EPS, chebyshev, in_float64, polynomial, refuse_slope, settled
from volta.trace.composite import Composite, with_partials

__all__ = ["exp1", "expi", "expn", "fresnel", "sici", "spence"]

_EULER = 0.57721566490153286060


def odd(x: Array, of_size: Any) -> Any:
    return lax.select(lax.lt(x, 0.0), lax.neg(of_size), of_size)


def within(x: Array, low: float, high: float) -> Array:
    """``x`` where a series holds, an end of its interval elsewhere; NaN stays."""
    return lax.clamp(low, x, high)


# -- exponentials ------------------------------------------------------------------------------------------------------


@with_partials(lambda t, ans, x: lax.neg(lax.mul(t, lax.div(lax.exp(lax.neg(x)), x))))
def exp1_in_float64(x: Array) -> Array:
    small = within(x, 0.0, 1.0)
    logarithm = lax.log(lax.select(lax.eq(small, 0.0), 1.0, small))
    near = lax.sub(lax.mul(small, chebyshev(small, 0.0, 1.0, tables.EXP1_NEAR)), lax.add(logarithm, _EULER))
    w = lax.div(1.0, lax.max(x, 1.0))
    middle = chebyshev(within(w, 0.2, 1.0), 0.2, 1.0, tables.EXP1_MIDDLE)
    far = chebyshev(within(w, 0.0, 0.2), 0.0, 0.2, tables.EXP1_FAR)
    large = lax.mul(lax.mul(lax.exp(lax.neg(x)), w), lax.select(lax.lt(w, 0.2), far, middle))
    out = lax.select(lax.le(x, 1.0), near, large)
    out = lax.select(lax.eq(x, 0.0), math.inf, lax.select(lax.lt(x, 0.0), math.nan, out))
    return lax.select(lax.eq(x, math.inf), 0.0, out)


def exp1(x: ArrayLike) -> Array:
    """The exponential integral E1: of exp(-t) / t from ``x`` on; NaN below 0.

    >>> round(exp1(1.0).item(), 4)
    0.2194
    """
    return in_float64("exp1", exp1_in_float64, x)


@with_partials(lambda t, ans, x: lax.mul(t, lax.div(lax.exp(x), x)))
def _expi(x: Array) -> Array:
    small = within(x, 0.0, 6.0)
    logarithm = lax.log(lax.select(lax.eq(small, 0.0), 1.0, small))
    near = lax.add(lax.mul(small, chebyshev(small, 0.0, 6.0, tables.EXPI_NEAR)), lax.add(logarithm, _EULER))
    w = lax.div(1.0, lax.max(x, 6.0))
    far = chebyshev(within(w, 0.0, 1 / 48), 0.0, 1 / 48, tables.EXPI_FAR)
    farther = chebyshev(within(w, 1 / 48, 1 / 16), 1 / 48, 1 / 16, tables.EXPI_FARTHER)
    middle = chebyshev(within(w, 1 / 16, 1 / 6), 1 / 16, 1 / 6, tables.EXPI_MIDDLE)
    scaled = lax.select(lax.lt(w, 1 / 48), far, lax.select(lax.lt(w, 1 / 16), farther, middle))
    large = lax.select(lax.eq(x, math.inf), math.inf, lax.mul(lax.mul(lax.exp(x), w), scaled))
    negative = lax.neg(exp1_in_float64(lax.abs(x)))
    return lax.select(lax.le(x, 0.0), negative, lax.select(lax.le(x, 6.0), near, large))


def expi(x: ArrayLike) -> Array:
    """The exponential integral Ei: of exp(t) / t up to ``x``.

    >>> round(expi(1.0).item(), 4)
    1.8951
    """
    return in_float64("expi", _expi, x)


def _slope_of_expn(t: Array, ans: Array, n: Array, x: Array) -> Array:
    return lax.neg(lax.mul(t, _expn(lax.sub(n, 1.0), x)))


@with_partials(refuse_slope("expn", "n"), _slope_of_expn)
def _expn(n: Array, x: Array) -> Array:
    """By the powers of x below 1 and the continued fraction above; of orders 0 and -1 as they are."""
    n, x = lax.add(n, lax.zeros_like(x)), lax.add(x, lax.zeros_like(n))
    above = lax.bitwise_and(lax.gt(x, 1.0), lax.lt(x, math.inf))
    below = lax.bitwise_and(lax.bitwise_and(lax.gt(x, 0.0), lax.le(x, 1.0)), lax.ge(n, 1.0))
    order, large, small = lax.max(n, 1.0), lax.select(above, x, 2.0), lax.select(below, x, 0.5)

    def turn(i: Any, b: Any, c: Any, d: Any, h: Any) -> Any:
        top, b = lax.mul(lax.neg(i), lax.add(order, lax.sub(i, 1.0))), lax.add(b, 2.0)
        d = lax.div(1.0, lax.add(lax.mul(top, d), b))
        c = lax.add(b, lax.div(top, c))
        factor = lax.mul(c, d)
        return (b, c, d, lax.mul(h, factor)), lax.gt(lax.abs(lax.sub(factor, 1.0)), 4 * EPS)

    start = lax.add(large, order)
    inverse = lax.div(1.0, start)
    fraction = settled(turn, (start, lax.full_like(start, 1e300), inverse, inverse), above)[3]
    last = lax.sub(order, 1.0)  # the power whose term has the logarithm

    def term(i: Any, power: Any, total: Any) -> Any:
        power = lax.div(lax.mul(lax.neg(small), power), i)
        special = lax.eq(i, last)
        plain = lax.neg(lax.div(power, lax.select(special, 1.0, lax.sub(i, last))))
        with_log = lax.mul(power, lax.sub(lax.digamma(order), lax.log(small)))
        change = lax.select(special, with_log, plain)
        going = lax.gt(lax.abs(change), lax.mul(lax.abs(total), EPS))
        return (power, lax.add(total, change)), lax.bitwise_or(going, lax.le(i, last))

    first = lax.sub(lax.neg(lax.log(small)), _EULER)
    first = lax.select(lax.eq(last, 0.0), first, lax.div(1.0, lax.select(lax.eq(last, 0.0), 1.0, last)))
    sums = settled(term, (lax.ones_like(x), first), below)[1]
    decay = lax.exp(lax.neg(x))
    out = lax.select(above, lax.mul(decay, fraction), sums)
    out = lax.select(lax.eq(n, 0.0), lax.div(decay, x), out)
    out = lax.select(lax.eq(n, -1.0), lax.div(lax.mul(decay, lax.add(lax.div(1.0, x), 1.0)), x), out)
    limit = lax.select(lax.gt(n, 1.0), lax.div(1.0, lax.select(lax.gt(n, 1.0), lax.sub(n, 1.0), 1.0)), math.inf)
    out = lax.select(lax.eq(x, 0.0), limit, lax.select(lax.eq(x, math.inf), 0.0, out))
    refused = lax.bitwise_or(lax.lt(x, 0.0), lax.lt(n, -1.0))
    return lax.select(refused, math.nan, out)


def expn(n: ArrayLike, x: ArrayLike) -> Array:
    """The exponential integral of order ``n`` (whole numbers from 0 on): of exp(-x t) / t^n from 1 on.

    >>> round(expn(2, 1.0).item(), 4)
    0.1485
    """
    return in_float64("expn", _expn, n, x)


# -- sines and cosines -------------------------------------------------------------------------------------------------


def _sici(x: Array) -> tuple[Any, Any]:
    a = lax.abs(x)
    small = lax.min(a, 4.0)
    square = lax.mul(small, small)
    si = lax.mul(small, chebyshev(square, 0.0, 16.0, tables.SI_NEAR))
    logarithm = lax.log(lax.select(lax.eq(small, 0.0), 1.0, small))
    ci = lax.add(lax.mul(square, chebyshev(square, 0.0, 16.0, tables.CI_NEAR)), lax.add(logarithm, _EULER))
    large = lax.clamp(4.0, a, sys.float_info.max)
    w = lax.div(1.0, large)
    u = lax.mul(w, w)
    far, near_u, far_u = lax.lt(u, 1 / 64), within(u, 1 / 64, 1 / 16), within(u, 0.0, 1 / 64)
    f = lax.select(
        far, chebyshev(far_u, 0.0, 1 / 64, tables.SICI_F_FAR),
        chebyshev(near_u, 1 / 64, 1 / 16, tables.SICI_F_MIDDLE),
    )  # fmt: skip
    g = lax.select(
        far, chebyshev(far_u, 0.0, 1 / 64, tables.SICI_G_FAR),
        chebyshev(near_u, 1 / 64, 1 / 16, tables.SICI_G_MIDDLE),
    )  # fmt: skip
    f, g = lax.mul(f, w), lax.mul(g, u)
    sin, cos = lax.sin(large), lax.cos(large)
    far_si = lax.sub(math.pi / 2, lax.add(lax.mul(f, cos), lax.mul(g, sin)))
    far_ci = lax.sub(lax.mul(f, sin), lax.mul(g, cos))
    near, nan = lax.le(a, 4.0), lax.ne(x, x)
    si = lax.select(near, si, lax.select(lax.eq(a, math.inf), math.pi / 2, far_si))
    ci = lax.select(near, ci, lax.select(lax.eq(a, math.inf), 0.0, far_ci))
    ci = lax.select(lax.eq(x, 0.0), -math.inf, lax.select(lax.eq(x, -math.inf), math.nan, ci))
    return lax.select(nan, x, odd(x, si)), lax.select(nan, x, ci)


def _over_itself(t: Array, of_x: Any, x: Array, limit: float) -> Any:
    zero = lax.eq(x, 0.0)
    return lax.mul(t, lax.select(zero, limit, lax.div(of_x, lax.select(zero, 1.0, x))))


@with_partials(lambda t, ans, x: _over_itself(t, lax.sin(x), x, 1.0))
def _si(x: Array) -> Array:
    return _sici(x)[0]


@with_partials(lambda t, ans, x: _over_itself(t, lax.cos(x), x, math.inf))
def _ci(x: Array) -> Array:
    return _sici(x)[1]


def sici(x: ArrayLike) -> tuple[Array, Array]:
    """The integrals of sin(t) / t from 0, and of cos(t) / t from infinity, to ``x``.

    Below 0 the second is its real part, which is that of -x, and NaN at -inf, as SciPy has it.

    >>> [round(v.item(), 4) for v in sici(1.0)]
    [0.9461, 0.3374]
    """
    return in_float64("sici", lambda x: (_si(x), _ci(x)), x)


def _fresnel(x: Array) -> tuple[Any, Any]:
    a = lax.abs(x)
    small = lax.min(a, 2.0)
    square = lax.mul(small, small)
    v = lax.mul(square, square)
    s = lax.mul(lax.mul(square, small), chebyshev(v, 0.0, 16.0, tables.FRESNEL_S_NEAR))
    c = lax.mul(small, chebyshev(v, 0.0, 16.0, tables.FRESNEL_C_NEAR))
    large = lax.clamp(2.0, a, 2.0**53)
    inverse = lax.div(1.0, lax.mul(large, math.pi))
    u = lax.div(lax.mul(inverse, inverse), lax.mul(large, large))
    f = lax.mul(inverse, chebyshev(u, 0.0, 1 / 157, tables.FRESNEL_F_FAR))
    g = lax.mul(lax.div(lax.mul(inverse, inverse), large), chebyshev(u, 0.0, 1 / 157, tables.FRESNEL_G_FAR))
    # x^2 modulo 4, so that the angle is small: the halves of x are squared apart
    high = lax.round(large)
    low = lax.sub(large, high)
    turns = lax.add(_modulo_four(high), lax.add(lax.mul(lax.mul(high, 2.0), low), lax.mul(low, low)))
    turns = lax.sub(turns, lax.mul(lax.round(lax.mul(turns, 0.25)), 4.0))
    sin, cos = lax.sin(lax.mul(turns, math.pi / 2)), lax.cos(lax.mul(turns, math.pi / 2))
    far_s = lax.sub(0.5, lax.add(lax.mul(f, cos), lax.mul(g, sin)))
    far_c = lax.add(0.5, lax.sub(lax.mul(f, sin), lax.mul(g, cos)))
    near, infinite = lax.le(a, 2.0), lax.gt(a, 2.0**52)
    s = lax.select(near, s, lax.select(infinite, 0.5, far_s))
    c = lax.select(near, c, lax.select(infinite, 0.5, far_c))
    nan = lax.ne(x, x)
    return lax.select(nan, x, odd(x, s)), lax.select(nan, x, odd(x, c))


def _modulo_four(whole: Any) -> Any:
    """The square of a whole number modulo 4: 0 of an even one, 1 of an odd one."""
    half = lax.mul(whole, 0.5)
    return lax.select(lax.eq(half, lax.floor(half)), 0.0, 1.0)


def _angle(x: Array) -> Any:
    return lax.mul(lax.mul(x, x), math.pi / 2)


@with_partials(lambda t, ans, x: lax.mul(t, lax.sin(_angle(x))))
def _fresnel_s(x: Array) -> Array:
    return _fresnel(x)[0]


@with_partials(lambda t, ans, x: lax.mul(t, lax.cos(_angle(x))))
def _fresnel_c(x: Array) -> Array:
    return _fresnel(x)[1]


def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    """Fresnel's integrals S and C: of sin(pi t^2 / 2) and of cos(pi t^2 / 2) from 0 to ``x``.

    >>> [round(v.item(), 4) for v in fresnel(1.0)]
    [0.4383, 0.7799]
    """
    return in_float64("fresnel", lambda x: (_fresnel_s(x), _fresnel_c(x)), x)


# -- logarithms --------------------------------------------------------------------------------------------------------


def _dilogarithm(u: Any) -> Any:
    """Li2(1 - exp(-u)) for |u| <= log 2: u - u^2 / 4 + the sum of B_2k u^(2k+1) / (2k+1)!."""
    numbers = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
    terms = tuple(b / math.factorial(2 * k + 3) for k, b in enumerate(numbers))
    square = lax.mul(u, u)
    tail = lax.mul(lax.mul(u, square), polynomial(square, tuple(reversed(terms))))
    return lax.add(lax.sub(u, lax.mul(square, 0.25)), tail)


@cache
def _slope_of_spence(k: int) -> Composite:
    """The derivative of order ``k`` of log(x) / (1 - x): near 1 a power series, further out by the product rule.

    There it is computed times x^k, so that at 0 nothing is taken from an infinity.
    """
    most = 1e308 ** (1 / max(k, 1))  # whose power of k is finite
    series = [(-1) ** (n + 1) / (n + 1) * math.perm(n, k) for n in range(k, k + 45)]

    def value(x: Array) -> Array:
        d = lax.sub(x, 1.0)
        close = lax.lt(lax.abs(d), 0.3)
        near = polynomial(lax.select(close, d, 0.0), tuple(reversed(series)))
        x, d = lax.select(close, 2.0, x), lax.select(close, 1.0, d)
        x, d = lax.min(x, most), lax.min(d, most)
        zero = lax.eq(x, 0.0)
        logarithm = lax.select(lax.bitwise_and(zero, bool(k)), 0.0, lax.log(x))  # times x it is 0
        far, power = lax.div(logarithm, d), lax.ones_like(x)
        for j in range(1, k + 1):
            power = lax.mul(power, x)
            of_log = (-1.0) ** (j - 1) * math.factorial(j - 1)
            far = lax.div(lax.sub(of_log, lax.mul(lax.mul(far, x), float(j))), d)
        return lax.select(close, near, lax.neg(lax.div(far, power)))

    return Composite(f"spence_{k + 1}", value, (lambda t, ans, x: lax.mul(t, _slope_of_spence(k + 1)(x)),))


@with_partials(lambda t, ans, x: lax.mul(t, _slope_of_spence(0)(x)))
def _spence(x: Array) -> Array:
    """By Li2's identities for z and 1 / z, and for z and 1 - z, which leave |log(1 - z)| <= log 2."""
    inverted = lax.gt(x, 2.0)
    y = lax.select(inverted, lax.div(1.0, x), x)
    mirrored = lax.lt(y, 0.5)
    inside = lax.bitwise_and(lax.gt(x, 0.0), lax.lt(x, math.inf))
    y = lax.select(inside, y, 0.75)
    direct = _dilogarithm(lax.neg(lax.log(y)))
    safe = lax.select(mirrored, y, 0.25)
    log, other = lax.log(safe), lax.log1p(lax.neg(safe))
    swapped = lax.sub(math.pi**2 / 6, lax.add(lax.mul(log, other), _dilogarithm(lax.neg(other))))
    out = lax.select(mirrored, swapped, direct)
    log = lax.log(lax.select(inverted, x, 1.0))
    out = lax.select(inverted, lax.neg(lax.add(lax.mul(lax.mul(log, log), 0.5), out)), out)
    edge = lax.select(lax.eq(x, 0.0), math.pi**2 / 6, lax.select(lax.eq(x, math.inf), -math.inf, math.nan))
    return lax.select(inside, out, edge)


def spence(x: ArrayLike) -> Array:
    """Spence's function: the integral of log(t) / (1 - t) from 1 to ``x``, which is Li2(1 - x).

    >>> round(spence(0.0).item(), 4)
    1.6449
    """
    return in_float64("spence", _spence, x)
