"""Bessel functions: the modified ones of orders 0 and 1, and those of the first kind."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from volta.core.array import Array, ArrayLike
from volta.numpy.promotion import promote_floats
from volta.numpy.shaping import stack
from volta.ops import lax
from volta.scipy import series_tables as tables
from volta.scipy.integrals import odd
from volta.scipy.series import chebyshev, in_float64
from volta.trace.composite import Composite, with_partials

__all__ = ["bessel_jn", "i0e", "i1", "i1e"]


# -- modified Bessel functions -----------------------------------------------------------------------------------------


def _slope_of_i0e(t: Array, ans: Array, x: Array) -> Any:
    return lax.mul(t, _scaled_slope(0, 1)(x))


def _slope_of_i1e(t: Array, ans: Array, x: Array) -> Any:
    return lax.mul(t, _scaled_slope(1, 1)(x))


@with_partials(_slope_of_i0e)
def _i0e(x: Array) -> Array:
    a = lax.abs(x)
    near = chebyshev(lax.min(a, 8.0), 0.0, 8.0, tables.I0E_NEAR)
    large = lax.max(a, 8.0)
    far = lax.div(chebyshev(lax.div(8.0, large), 0.0, 1.0, tables.I0E_FAR), lax.sqrt(large))
    return lax.select(lax.le(a, 8.0), near, lax.select(lax.ne(x, x), x, far))


@with_partials(_slope_of_i1e)
def _i1e(x: Array) -> Array:
    a = lax.abs(x)
    small = lax.min(a, 8.0)
    near = lax.mul(small, chebyshev(small, 0.0, 8.0, tables.I1E_NEAR))
    large = lax.max(a, 8.0)
    far = lax.div(chebyshev(lax.div(8.0, large), 0.0, 1.0, tables.I1E_FAR), lax.sqrt(large))
    return lax.select(lax.ne(x, x), x, odd(x, lax.select(lax.le(a, 8.0), near, far)))


_TERMS, _ASYMPTOTIC, _FAR = 45, 30, 24.0
"""How many terms float64 needs of a Bessel function's power series below ``_FAR``, and of its asymptotic one above."""


def _of_order(n: int, x: Array) -> Any:
    """exp(-|x|) times the modified Bessel function of order ``n``."""
    if n < 2:
        return (_i0e, _i1e)[n](x)
    a = lax.abs(x)
    half = lax.mul(lax.min(a, _FAR), 0.5)
    near, square = lax.ones_like(x), lax.mul(half, half)
    for m in range(_TERMS, 0, -1):
        near = lax.add(lax.mul(lax.mul(square, 1.0 / (m * (m + n))), near), 1.0)
    near = lax.mul(near, lax.mul(lax.integer_pow(half, n), 1.0 / math.factorial(n)))
    near = lax.mul(near, lax.exp(lax.neg(lax.min(a, _FAR))))
    large = lax.max(a, _FAR)
    inverse, far = lax.div(1.0, lax.mul(large, 8.0)), lax.ones_like(x)
    for k in range(_ASYMPTOTIC, 0, -1):
        far = lax.sub(1.0, lax.mul(lax.mul(inverse, (4 * n * n - (2 * k - 1) ** 2) / k), far))
    far = lax.div(far, lax.sqrt(lax.mul(large, 2 * math.pi)))
    of_size = lax.select(lax.lt(a, _FAR), near, far)
    return odd(x, of_size) if n % 2 else of_size


def _slope_of_order(n: int, k: int, x: Array) -> Any:
    """exp(-|x|) times the derivative of order ``k``: a mean of neighbours in ``n``."""
    total: Any = lax.zeros_like(x)
    for i in range(k + 1):
        total = lax.add(total, lax.mul(_of_order(abs(n - k + 2 * i), x), math.comb(k, i) / 2.0**k))
    return total


@cache
def _scaled_slope(n: int, k: int) -> Composite:
    """The derivative of order ``k`` of exp(-|x|) times the function of order ``n``; at 0 the mean of both sides'."""

    def value(x: Array) -> Array:
        total: Any = lax.zeros_like(x)
        for j in range(k + 1):
            term = lax.mul(_slope_of_order(n, k - j, x), float(math.comb(k, j)))
            total = lax.sub(total, lax.mul(term, lax.sign(x))) if j % 2 else lax.add(total, term)
        return total

    return Composite(f"i{n}e_{k}", value, (lambda t, ans, x: lax.mul(t, _scaled_slope(n, k + 1)(x)),))


@cache
def _i1_slope(k: int) -> Composite:
    def value(x: Array) -> Array:
        return lax.mul(_slope_of_order(1, k, x), lax.exp(lax.abs(x)))

    return Composite(f"i1_{k}", value, (lambda t, ans, x: lax.mul(t, _i1_slope(k + 1)(x)),))


@with_partials(lambda t, ans, x: lax.mul(t, _i1_slope(1)(x)))
def _i1(x: Array) -> Array:
    return lax.mul(_i1e(x), lax.exp(lax.abs(x)))


def i0e(x: ArrayLike) -> Array:
    """exp(-|x|) I0(x): the modified Bessel function of order 0, which does not overflow.

    >>> i0e(0.0).tolist()
    1.0
    """
    return in_float64("i0e", _i0e, x)


def i1e(x: ArrayLike) -> Array:
    """exp(-|x|) I1(x): the modified Bessel function of order 1, which does not overflow.

    >>> i1e(0.0).tolist()
    0.0
    """
    return in_float64("i1e", _i1e, x)


def i1(x: ArrayLike) -> Array:
    """The modified Bessel function of order 1.

    >>> round(i1(1.0).item(), 4)
    0.5652
    """
    return in_float64("i1", _i1, x)


# -- Bessel functions of the first kind --------------------------------------------------------------------------------


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """The Bessel functions of the first kind of orders 0 to ``v``, along a new first axis.

    Miller's recurrence downwards from order ``n_iter`` (more than ``v``, and than the largest |z|).

    >>> [round(x, 4) for x in bessel_jn(1.0, v=1).tolist()]
    [0.7652, 0.4401]
    """
    x = promote_floats("bessel_jn", z)[0]
    start = max(n_iter, v + 1) // 2 * 2

    def value(x: Array) -> Array:
        safe = lax.select(lax.eq(x, 0.0), 1.0, x)
        after, last = lax.zeros_like(x), lax.full_like(x, 1e-30)
        orders, total = {}, lax.zeros_like(x)
        for n in range(start, -1, -1):
            if n <= v:
                orders[n] = last
            if n % 2 == 0:
                total = lax.add(total, last if n == 0 else lax.mul(last, 2.0))
            after, last = last, lax.sub(lax.div(lax.mul(last, 2.0 * n), safe), after)
            shrink = lax.select(lax.gt(lax.abs(last), 1e100), 1e-100, 1.0)
            after, last, total = (lax.mul(y, shrink) for y in (after, last, total))
            orders = {k: lax.mul(y, shrink) for k, y in orders.items()}
        zero = lax.eq(x, 0.0)
        return stack([lax.select(zero, 1.0 if n == 0 else 0.0, lax.div(orders[n], total)) for n in range(v + 1)])

    return in_float64("bessel_jn", value, x)
