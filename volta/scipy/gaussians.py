"""Integrals of Gaussians: Dawson's, the scaled error function, logarithms of shares, Owen's T."""

from __future__ import annotations

import math
import sys
from typing import Any

from volta.core.array import Array, ArrayLike
from volta.ops import lax
from volta.scipy import series_tables as tables
from volta.scipy.integrals import odd, within
from volta.scipy.series import chebyshev, in_float64
from volta.trace.composite import with_partials

__all__ = ["dawsn", "erfcx", "log_ndtr", "owens_t"]


@with_partials(lambda t, ans, x: lax.mul(t, lax.sub(1.0, lax.mul(lax.mul(x, ans), 2.0))))
def _dawsn(x: Array) -> Array:
    a = lax.abs(x)
    small = lax.min(a, 3.0)
    near = lax.mul(small, chebyshev(lax.mul(small, small), 0.0, 9.0, tables.DAWSON_NEAR))
    w = lax.div(1.0, lax.max(a, 3.0))
    u = lax.mul(w, w)
    middle = chebyshev(within(u, 1 / 36, 1 / 9), 1 / 36, 1 / 9, tables.DAWSON_MIDDLE)
    far = chebyshev(within(u, 0.0, 1 / 36), 0.0, 1 / 36, tables.DAWSON_FAR)
    large = lax.mul(lax.mul(w, 0.5), lax.select(lax.lt(u, 1 / 36), far, middle))
    return odd(x, lax.select(lax.le(a, 3.0), near, large))


def dawsn(x: ArrayLike) -> Array:
    """Dawson's integral: exp(-x^2) times the integral of exp(t^2) from 0 to ``x``.

    >>> round(dawsn(1.0).item(), 4)
    0.5381
    """
    return in_float64("dawsn", _dawsn, x)


@with_partials(lambda t, ans, x: lax.mul(t, lax.sub(lax.mul(lax.mul(x, ans), 2.0), 2.0 / math.sqrt(math.pi))))
def _erfcx(x: Array) -> Array:
    a = lax.abs(x)
    finite = lax.min(a, sys.float_info.max)
    t = lax.div(lax.sub(finite, 3.75), lax.add(finite, 3.75))
    positive = lax.div(lax.mul(chebyshev(t, -1.0, 1.0, tables.ERFCX), 0.5), lax.add(finite, 0.5))
    positive = lax.select(lax.eq(a, math.inf), 0.0, positive)
    # exp(x^2) with the square's rounding made good
    below = lax.clamp(-30.0, x, 0.0)
    head = lax.div(lax.round(lax.mul(below, 1024.0)), 1024.0)
    rest = lax.mul(lax.sub(below, head), lax.add(below, head))
    square = lax.mul(lax.exp(lax.mul(head, head)), lax.exp(rest))
    negative = lax.sub(lax.mul(square, 2.0), positive)
    negative = lax.select(lax.lt(x, -27.0), math.inf, lax.select(lax.ne(x, x), x, negative))
    return lax.select(lax.ge(x, 0.0), positive, negative)


def erfcx(x: ArrayLike) -> Array:
    """exp(x^2) erfc(x), which does not vanish where erfc does.

    >>> round(erfcx(10.0).item(), 4)
    0.0561
    """
    return in_float64("erfcx", _erfcx, x)


@with_partials(lambda t, ans, x: lax.neg(lax.mul(t, lax.mul(ans, lax.select(lax.eq(ans, 0.0), 0.0, lax.add(x, ans))))))
def _near_hazard(x: Array) -> Array:
    return lax.div(math.sqrt(2 / math.pi), _erfcx(lax.mul(x, -math.sqrt(0.5))))


def _hazard(x: Array) -> Any:
    """The normal density over its share below. Far below a continued fraction, whose derivatives cancel nothing."""
    far = lax.lt(x, -8.0)
    size = lax.neg(lax.select(far, x, -8.0))
    fraction = size
    for k in range(24, 0, -1):
        fraction = lax.add(size, lax.div(float(k), fraction))
    return lax.select(far, fraction, _near_hazard(lax.select(far, 0.0, x)))


@with_partials(lambda t, ans, x: lax.mul(t, _hazard(x)))
def _log_ndtr(x: Array) -> Array:
    below, above = lax.min(x, -1.0), lax.max(x, -1.0)
    far = lax.select(lax.lt(x, -1e150), -1e150, below)  # of it the logarithm alone: beside the square it is nothing
    tail = lax.log(lax.mul(_erfcx(lax.mul(far, -math.sqrt(0.5))), 0.5))
    tail = lax.sub(tail, lax.mul(lax.mul(below, 0.5), below))
    rest = lax.mul(lax.erfc(lax.mul(above, math.sqrt(0.5))), 0.5)
    return lax.select(lax.lt(x, -1.0), tail, lax.log1p(lax.neg(rest)))


def log_ndtr(x: ArrayLike) -> Array:
    """The logarithm of the share of a standard normal distribution below ``x``, also where that is next to 0.

    >>> round(log_ndtr(-20.0).item(), 3)
    -203.917
    """
    return in_float64("log_ndtr", _log_ndtr, x)


# Gauss and Legendre's nodes and weights of 20 points on [0, 1], by which a smooth integrand is exact to 1e-16.
_NODES = tuple(
    zip(
        (0.0034357004074525, 0.0180140363610431, 0.0438827858743370, 0.0804415140888906, 0.1268340467699246,
         0.1819731596367425, 0.2445664990245865, 0.3131469556422902, 0.3861070744291775, 0.4617367394332513),
        (0.0088070035695761, 0.0203007149001935, 0.0313360241670545, 0.0416383707883524, 0.0509650599086202,
         0.0590972659807592, 0.0658443192245883, 0.0710480546591910, 0.0745864932363018, 0.0763766935653629),
        strict=True,
    )
)  # fmt: skip
_EVERYWHERE = (*_NODES, *((1.0 - x, w) for x, w in _NODES))


def _owens_area(h: Array, a: Array) -> Any:
    """The integral that defines T(h, a), for |a| <= 1."""
    total = lax.zeros_like(h)
    half = lax.mul(lax.mul(h, h), -0.5)
    for x, w in _EVERYWHERE:
        s = lax.mul(a, x)
        r = lax.add(lax.mul(s, s), 1.0)
        total = lax.add(total, lax.mul(lax.div(lax.exp(lax.mul(half, r)), r), w))
    return lax.mul(lax.mul(a, total), 1 / (2 * math.pi))


def _upper_share(x: Any) -> Any:
    return lax.mul(lax.erfc(lax.mul(x, math.sqrt(0.5))), 0.5)


@with_partials(
    lambda t, ans, h, a: lax.mul(
        t,
        lax.mul(
            lax.mul(lax.exp(lax.mul(lax.mul(h, h), -0.5)), lax.erf(lax.mul(lax.mul(a, h), math.sqrt(0.5)))),
            -0.5 / math.sqrt(2 * math.pi),
        ),
    ),
    lambda t, ans, h, a: lax.mul(
        t,
        lax.div(
            lax.exp(lax.mul(lax.mul(lax.mul(h, h), lax.add(lax.mul(a, a), 1.0)), -0.5)),
            lax.mul(lax.add(lax.mul(a, a), 1.0), 2 * math.pi),
        ),
    ),
)
def _owens_t(h: Array, a: Array) -> Array:
    h, b = lax.abs(h), lax.abs(a)
    turned = lax.gt(b, 1.0)
    product = lax.select(lax.eq(h, 0.0), h, lax.mul(h, lax.select(turned, b, 1.0)))  # 0 also of an infinite a
    upper, other = _upper_share(h), _upper_share(product)
    shares = lax.sub(lax.mul(lax.add(upper, other), 0.5), lax.mul(upper, other))
    area = _owens_area(lax.select(turned, product, h), lax.select(turned, lax.div(1.0, b), b))
    return odd(a, lax.select(turned, lax.sub(shares, area), area))


def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    """Owen's T: the share of two standard normal variables with x > h and 0 < y < a x.

    >>> round(owens_t(0.0, 1.0).item(), 4)
    0.125
    """
    return in_float64("owens_t", _owens_t, h, a)
