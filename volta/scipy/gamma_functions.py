"""The gamma function and its like: gamma, beta, factorials."""

from __future__ import annotations

import math
from typing import Any

from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.source import at_user_line
from volta.numpy import binary
from volta.numpy.promotion import promote_floats
from volta.ops import lax
from volta.scipy.complex_gamma import is_complex, loggamma_of_complex
from volta.scipy.series import in_complex128, in_float64, polynomial
from volta.trace.composite import with_partials

__all__ = ["beta", "betaln", "comb", "factorial", "gamma", "gammasgn", "loggamma", "multigammaln", "poch"]

_STIRLING = (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)


# -- the gamma function ------------------------------------------------------------------------------------------------


def _odd(whole: Array) -> Array:
    return lax.ne(lax.sub(whole, lax.mul(lax.floor(lax.mul(whole, 0.5)), 2.0)), 0.0)


def is_pole(x: Array) -> Array:
    return lax.bitwise_and(lax.eq(x, lax.floor(x)), lax.le(x, 0.0))


@with_partials(lambda t, ans, x: lax.mul(t, 0.0))
def _gammasgn(x: Array) -> Array:
    floor = lax.floor(x)
    pole = lax.bitwise_and(lax.eq(x, floor), lax.lt(x, 0.0))
    sign = lax.select(lax.bitwise_and(lax.lt(x, 0.0), _odd(floor)), -1.0, lax.select(lax.ne(x, x), math.nan, 1.0))
    negative_zero = lax.lt(lax.bitcast_convert_type(x, "int64"), 0)
    sign = lax.select(lax.bitwise_and(lax.eq(x, 0.0), negative_zero), -1.0, sign)
    return lax.select(lax.bitwise_or(pole, lax.eq(x, -math.inf)), math.nan, lax.add(sign, lax.zeros_like(x)))


def gamma_sign(x: Array) -> Any:
    """The sign of gamma, 1 at its poles."""
    return lax.select(is_pole(x), 1.0, _gammasgn(x))


@with_partials(lambda t, ans, x: lax.mul(t, lax.mul(ans, lax.digamma(x))))
def _gamma(x: Array) -> Array:
    """Whole numbers up to 22! exactly: the nearest float to their product."""
    size, sign = lax.abs(x), _gammasgn(x)
    out = lax.mul(sign, lax.exp(lax.lgamma(x)))
    small = lax.bitwise_and(lax.lt(size, 0.125), lax.ne(x, 0.0))  # 1 / x has no logarithm that is rounded
    near = lax.select(small, x, 0.125)
    out = lax.select(small, lax.div(lax.exp(lax.lgamma(lax.add(near, 1.0))), near), out)
    large = lax.bitwise_and(lax.gt(size, 10.0), lax.lt(size, 200.0))
    out = lax.select(large, _large_gamma(lax.select(large, x, 10.5), sign), out)
    whole = lax.bitwise_and(lax.eq(x, lax.floor(x)), lax.bitwise_and(lax.ge(x, 1.0), lax.le(x, 23.0)))
    exact = lax.ones_like(x)
    for n in range(2, 23):
        exact = lax.mul(exact, lax.select(lax.gt(x, float(n)), float(n), 1.0))
    out = lax.select(whole, exact, out)
    return lax.select(lax.eq(x, -math.inf), math.nan, out)


def _large_gamma(x: Array, sign: Any) -> Any:
    """Stirling's formula with the power in two halves: that of a whole one would be rounded before it is an exponent's.

    Below 0 by reflection: gamma(x) gamma(-x) = -pi / (x sin(pi x)).
    """
    size = lax.abs(x)
    half = lax.pow(size, lax.sub(lax.mul(size, 0.5), 0.25))
    other = lax.mul(half, lax.exp(lax.neg(size)))
    other = lax.mul(other, lax.mul(lax.exp(stirling(size)), math.sqrt(2 * math.pi)))
    away = lax.mul(lax.abs(lax.sub(size, lax.round(size))), math.pi)
    below = lax.div(lax.div(lax.div(math.pi, lax.mul(size, lax.sin(away))), other), half)
    return lax.select(lax.lt(x, 0.0), lax.mul(sign, below), lax.mul(half, other))


def gamma(x: ArrayLike) -> Array:
    """The gamma function: (x - 1)! of whole numbers, also of complex ones; NaN at the poles below 0.

    >>> gamma(5.0).tolist()
    24.0
    """
    if is_complex(x):
        return in_complex128("gamma", lambda z: lax.exp(loggamma_of_complex(z)), x)
    return in_float64("gamma", _gamma, x)


def gammasgn(x: ArrayLike) -> Array:
    """The sign of :func:`gamma`: 1 or -1, NaN at its poles below 0.

    >>> gammasgn(-0.5).tolist()
    -1.0
    """
    return in_float64("gammasgn", _gammasgn, x)


@with_partials(lambda t, ans, x: lax.mul(t, lax.digamma(x)))
def _loggamma(x: Array) -> Array:
    return lax.select(lax.lt(x, 0.0), math.nan, lax.lgamma(x))


def loggamma(x: ArrayLike) -> Array:
    """The logarithm of :func:`gamma`; NaN below 0, where :func:`gammaln` has that of its size.

    Of complex numbers the branch that is continuous but along the negative real axis, real above 0.

    >>> loggamma(1.0).tolist()
    0.0
    """
    if is_complex(x):
        return in_complex128("loggamma", loggamma_of_complex, x)
    return in_float64("loggamma", _loggamma, x)


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """n! = gamma(n + 1), in floats; 0 of negative numbers.

    Raises:
        NotImplementedError: for ``exact``: there are no integers of any length.

    >>> factorial(4).tolist()
    24.0
    """
    if exact:
        raise NotImplementedError(at_user_line("factorial: exact integers of any length are Python's math.factorial"))
    x = promote_floats("factorial", n)[0]
    return binary.where_three(lax.lt(x, 0.0), 0.0, gamma(lax.add(lax.select(lax.lt(x, 0.0), 0.0, x), 1.0)))


def _one_over_gamma(z: Array) -> tuple[Any, Any]:
    """1 / gamma(z) and its slope, also at poles: left of 1/2 by the reflection formula, sin(pi z) gamma(1 - z) / pi."""
    low = lax.lt(z, 0.5)
    left, right = lax.select(low, z, 0.0), lax.select(low, 1.0, z)
    whole, mirror = lax.round(left), lax.sub(1.0, left)
    angle, other = lax.mul(lax.sub(left, whole), math.pi), _gamma(mirror)
    other = lax.mul(other, lax.select(_odd(whole), -1.0, 1.0))
    share = lax.mul(lax.mul(lax.sin(angle), 1 / math.pi), other)
    inverse = lax.div(1.0, _gamma(right))
    slope = lax.sub(lax.mul(lax.cos(angle), other), lax.mul(share, lax.digamma(mirror)))
    return lax.select(low, share, inverse), lax.select(low, slope, lax.neg(lax.mul(inverse, lax.digamma(right))))


def _near_and_far(z: Array, m: Array) -> tuple[Any, Any, Any, Any, Any]:
    """Whether gamma of z + m and of z can be multiplied as they are; both, where they can, and where they cannot."""
    end = lax.add(z, m)
    small = lax.bitwise_and(lax.lt(lax.abs(z), 20.0), lax.lt(lax.abs(end), 20.0))
    near = lax.select(small, end, 1.0), lax.select(small, z, 1.0)
    return small, *near, lax.select(small, 1.0, end), lax.select(small, 1.0, z)


def _poch_by_z(t: Array, ans: Array, z: Array, m: Array) -> Any:
    """Where z is a pole gamma(z + m) (1 / gamma)'(z): the function is 0 there, its slope is not."""
    small, end, start, far_end, far_start = _near_and_far(z, m)
    inverse, slope = _one_over_gamma(start)
    near = lax.mul(_gamma(end), lax.add(slope, lax.mul(inverse, lax.digamma(end))))
    far = lax.mul(ans, lax.sub(lax.digamma(far_end), lax.digamma(far_start)))
    return lax.mul(t, lax.select(small, near, far))


def _poch_by_m(t: Array, ans: Array, z: Array, m: Array) -> Any:
    small, end, start, far_end, _ = _near_and_far(z, m)
    near = lax.mul(lax.mul(_gamma(end), lax.digamma(end)), _one_over_gamma(start)[0])
    return lax.mul(t, lax.select(small, near, lax.mul(ans, lax.digamma(far_end))))


@with_partials(_poch_by_z, _poch_by_m)
def _poch(z: Array, m: Array) -> Array:
    """At poles of both (1 - z - m)_m with the sign of -1 to the power m, by reflection; at one it is 0 or infinite."""
    end = lax.add(z, m)
    above, below = is_pole(end), is_pole(z)
    both = lax.bitwise_and(above, below)
    sign = lax.select(lax.bitwise_and(both, _odd(lax.round(m))), -1.0, 1.0)
    z, end = lax.select(both, lax.sub(1.0, end), z), lax.select(both, lax.sub(1.0, z), end)
    small = lax.bitwise_and(lax.lt(lax.abs(z), 20.0), lax.lt(lax.abs(end), 20.0))
    quotient = lax.div(_gamma(lax.select(small, end, 1.0)), _gamma(lax.select(small, z, 1.0)))
    signs = lax.mul(_gammasgn(end), _gammasgn(z))
    far = lax.mul(signs, lax.exp(lax.sub(lax.lgamma(end), lax.lgamma(z))))
    out = lax.mul(sign, lax.select(small, quotient, far))
    at_pole = lax.add(lax.select(above, math.inf, 0.0), lax.mul(m, 0.0))
    out = lax.select(lax.bitwise_xor(above, below), at_pole, out)
    return lax.select(lax.eq(m, 0.0), 1.0, out)


def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Pochhammer's symbol gamma(z + m) / gamma(z).

    >>> poch(3.0, 2.0).tolist()
    12.0
    """
    return in_float64("poch", _poch, z, m)


def comb(N: ArrayLike, k: ArrayLike, *, exact: bool = False, repetition: bool = False) -> Array:
    """How many ways there are to take ``k`` of ``N`` things, in floats; with ``repetition`` a thing may be taken again.

    >>> comb(5, 2).tolist()
    10.0
    """
    if exact:
        raise NotImplementedError(at_user_line("comb: exact integers of any length are Python's math.comb"))
    if repetition:
        none = binary.logical_and(binary.equal(N, 0), binary.equal(k, 0))  # one way to take nothing from nothing
        return comb(binary.where_three(none, 0, binary.add(N, binary.subtract(k, 1))), k)
    return in_float64("comb", _comb, N, k)


def _comb(n: Array, k: Array) -> Array:
    there = lax.bitwise_and(lax.ge(n, k), lax.bitwise_and(lax.ge(k, 0.0), lax.ge(n, 0.0)))
    n, k = lax.select(there, n, 1.0), lax.select(there, k, 0.0)
    rest = lax.sub(n, k)
    logarithm = lax.neg(lax.add(lax.log(lax.add(n, 1.0)), log_of_beta(lax.add(k, 1.0), lax.add(rest, 1.0))))
    out = lax.exp(logarithm)
    whole = lax.bitwise_and(lax.eq(n, lax.floor(n)), lax.eq(k, lax.floor(k)))
    out = lax.select(lax.bitwise_and(whole, lax.lt(out, 2.0**45)), lax.round(out), out)
    return lax.select(there, out, 0.0)


# -- the beta function -------------------------------------------------------------------------------------------------


def stirling(a: Array) -> Array:
    """lgamma(a) - ((a - 1/2) log(a) - a + log(2 pi) / 2), for a of 10 and more."""
    inverse = lax.div(1.0, a)
    return lax.mul(inverse, polynomial(lax.mul(inverse, inverse), _STIRLING))


def _by_first(t: Array, ans: Array, a: Array, b: Array) -> Array:
    return lax.mul(t, lax.sub(lax.digamma(a), lax.digamma(lax.add(a, b))))


def _reflected(a: Array, b: Array, pole: Array, total: Array) -> Any:
    turned = lax.bitwise_and(pole, lax.bitwise_and(is_pole(total), lax.bitwise_not(is_pole(b))))
    return lax.select(turned, lax.sub(1.0, total), a)


@with_partials(_by_first, lambda t, ans, a, b: _by_first(t, ans, b, a))
def log_of_beta(a: Array, b: Array) -> Array:
    """By differences of Stirling's series where a term is large: those of logarithms of gamma would cancel.

    A pole of ``a`` beside one of a + b is that of 1 - a - b, by reflection; poles of both make it infinite.
    """
    total, poles = lax.add(a, b), (is_pole(a), is_pole(b))
    infinite = lax.bitwise_and(*poles)
    a, b = _reflected(a, b, poles[0], total), _reflected(b, a, poles[1], total)
    near = lax.sub(lax.add(lax.lgamma(a), lax.lgamma(b)), lax.lgamma(lax.add(a, b)))
    small, large = lax.min(a, b), lax.max(a, b)
    positive = lax.gt(small, 0.0)
    far = lax.bitwise_and(lax.ge(large, 10.0), lax.bitwise_and(positive, lax.lt(large, math.inf)))
    small, large = lax.select(far, small, 1.0), lax.select(far, large, 10.0)
    both = lax.ge(small, 10.0)
    ten = lax.select(both, small, 10.0)
    total, ratio = lax.add(small, large), lax.div(small, large)
    corrections = lax.sub(stirling(large), stirling(total))
    of_both = lax.add(corrections, stirling(ten))
    of_both = lax.add(of_both, lax.sub(0.5 * math.log(2 * math.pi), lax.mul(lax.log(large), 0.5)))
    share = lax.log(lax.div(small, total))
    of_both = lax.add(of_both, lax.mul(lax.sub(small, 0.5), share))
    of_both = lax.sub(of_both, lax.mul(large, lax.log1p(ratio)))
    of_one = lax.add(lax.add(lax.lgamma(small), corrections), lax.sub(small, lax.mul(small, lax.log(total))))
    of_one = lax.sub(of_one, lax.mul(lax.sub(large, 0.5), lax.log1p(ratio)))
    out = lax.select(infinite, math.inf, lax.select(far, lax.select(both, of_both, of_one), near))
    return lax.select(lax.bitwise_and(positive, lax.eq(lax.max(a, b), math.inf)), -math.inf, out)


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """The logarithm of the absolute :func:`beta`.

    >>> round(betaln(2.0, 3.0).item(), 4)
    -2.4849
    """
    return in_float64("betaln", log_of_beta, a, b)


def _sign_of_beta(a: Array, b: Array) -> Any:
    total = lax.add(a, b)
    sign = lax.mul(lax.mul(_gammasgn(a), _gammasgn(b)), _gammasgn(total))
    poles = lax.bitwise_or(lax.bitwise_or(is_pole(a), is_pole(b)), is_pole(total))
    reflected = lax.bitwise_and(is_pole(total), lax.bitwise_xor(is_pole(a), is_pole(b)))
    odd = lax.bitwise_and(reflected, _odd(lax.max(a, b)))
    return lax.select(odd, -1.0, lax.select(lax.bitwise_and(poles, lax.ne(sign, sign)), 1.0, sign))


def _beta(a: Array, b: Array) -> Array:
    return lax.mul(_sign_of_beta(a, b), lax.exp(log_of_beta(a, b)))


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """The beta function, gamma(a) gamma(b) / gamma(a + b).

    >>> round(beta(2.0, 3.0).item(), 4)
    0.0833
    """
    return in_float64("beta", _beta, a, b)


def multigammaln(a: ArrayLike, d: int) -> Array:
    """The logarithm of the gamma function of ``d`` dimensions.

    Raises:
        DTypeError: ``d`` is no integer.

    >>> round(multigammaln(3.0, 2).item(), 4)
    1.5502
    """
    if isinstance(d, (float, complex)) or not hasattr(d, "__index__"):
        raise DTypeError(at_user_line(f"multigammaln: d must be an int, not {d!r:.40}"))

    def value(a: Array) -> Array:
        total = lax.full_like(a, d * (d - 1) / 4.0 * math.log(math.pi))
        for i in range(d):
            total = lax.add(total, lax.lgamma(lax.sub(a, i / 2.0)))
        return total

    return in_float64("multigammaln", value, a)
