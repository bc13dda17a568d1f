"""Bessel functions: the modified ones of orders 0 and 1, and those of the first kind."""

from __future__ import annotations

from volta.core.array import Array, ArrayLike
from volta.numpy.promotion import promote_floats
from volta.numpy.shaping import stack
from volta.ops import lax
from volta.scipy import series_tables as tables
from volta.scipy.integrals import odd
from volta.scipy.series import chebyshev, in_float64
from volta.trace.composite import with_partials

__all__ = ["bessel_jn", "i0e", "i1", "i1e"]


def _slope_of_i0e(t: Array, ans: Array, x: Array) -> Array:
    return lax.mul(t, lax.sub(_i1e(x), lax.mul(ans, lax.sign(x))))


@with_partials(_slope_of_i0e)
def _i0e(x: Array) -> Array:
    a = lax.abs(x)
    near = chebyshev(lax.min(a, 8.0), 0.0, 8.0, tables.I0E_NEAR)
    large = lax.max(a, 8.0)
    far = lax.div(chebyshev(lax.div(8.0, large), 0.0, 1.0, tables.I0E_FAR), lax.sqrt(large))
    return lax.select(lax.le(a, 8.0), near, lax.select(lax.ne(x, x), x, far))


def _slope_of_i1e(t: Array, ans: Array, x: Array) -> Array:
    zero = lax.eq(x, 0.0)
    quotient = lax.select(zero, 0.5, lax.div(ans, lax.select(zero, 1.0, x)))
    return lax.mul(t, lax.sub(lax.sub(_i0e(x), quotient), lax.mul(ans, lax.sign(x))))


@with_partials(_slope_of_i1e)
def _i1e(x: Array) -> Array:
    a = lax.abs(x)
    small = lax.min(a, 8.0)
    near = lax.mul(small, chebyshev(small, 0.0, 8.0, tables.I1E_NEAR))
    large = lax.max(a, 8.0)
    far = lax.div(chebyshev(lax.div(8.0, large), 0.0, 1.0, tables.I1E_FAR), lax.sqrt(large))
    return lax.select(lax.ne(x, x), x, odd(x, lax.select(lax.le(a, 8.0), near, far)))


def _slope_of_i1(t: Array, ans: Array, x: Array) -> Array:
    zero = lax.eq(x, 0.0)
    quotient = lax.select(zero, 0.5, lax.div(ans, lax.select(zero, 1.0, x)))
    return lax.mul(t, lax.sub(lax.mul(_i0e(x), lax.exp(lax.abs(x))), quotient))


@with_partials(_slope_of_i1)
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
