"""Smooth functions that are computed in pieces, with derivatives of their own.

Where the pieces meet (two equal operands, 0, the end of a series) the operations have kinks that the functions have
not; close to there, a quotient's derivatives cancel. The partials here are right on both sides, to any order.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.source import at_user_line
from volta.numpy.promotion import aval_of, convert, float_operands, promote_floats, scalar_like, zero_like
from volta.ops import lax
from volta.trace.composite import Composite, with_partials

# -- logarithms and lengths --------------------------------------------------------------------------------------------


def _difference(x: Array, y: Array) -> Array:
    """x - y, and 0 of equal infinities."""
    d = lax.sub(x, y)
    return lax.select(lax.bitwise_and(lax.eq(x, y), lax.ne(d, d)), 0.0, d)


def _log_of_sum(x: Array, y: Array, rest: Any) -> Array:
    delta = lax.sub(x, y)
    same_infinity = lax.ne(delta, delta)  # or a NaN: x + y is right for both
    safe = lax.select(same_infinity, 0.0, delta)
    return lax.select(same_infinity, lax.add(x, y), lax.add(lax.max(x, y), rest(lax.neg(lax.abs(safe)))))


@with_partials(
    lambda t, ans, x, y: lax.mul(t, lax.logistic(_difference(x, y))),
    lambda t, ans, x, y: lax.mul(t, lax.logistic(_difference(y, x))),
)
def _logaddexp(x: Array, y: Array) -> Array:
    return _log_of_sum(x, y, lambda d: lax.log1p(lax.exp(d)))


@with_partials(
    lambda t, ans, x, y: lax.mul(t, lax.logistic(lax.mul(_difference(x, y), math.log(2.0)))),
    lambda t, ans, x, y: lax.mul(t, lax.logistic(lax.mul(_difference(y, x), math.log(2.0)))),
)
def _logaddexp2(x: Array, y: Array) -> Array:
    return _log_of_sum(x, y, lambda d: lax.mul(lax.log1p(lax.exp2(d)), float(np.log2(np.e))))


def logaddexp(x: ArrayLike, y: ArrayLike) -> Array:
    """log(exp(x) + exp(y)) without overflow."""
    return _logaddexp(*float_operands("logaddexp", x, y))


def logaddexp2(x: ArrayLike, y: ArrayLike) -> Array:
    """log2(2**x + 2**y) without overflow."""
    return _logaddexp2(*float_operands("logaddexp2", x, y))


def _share_of_length(t: Array, length: Array, x: Array) -> Array:
    """t * x / length; 0 where the length is 0 (a kink, as abs has) or infinite."""
    none = lax.bitwise_or(lax.eq(length, 0.0), lax.eq(length, math.inf))
    return lax.mul(t, lax.select(none, 0.0, lax.div(x, lax.select(none, 1.0, length))))


@with_partials(
    lambda t, ans, x, y: _share_of_length(t, ans, x),
    lambda t, ans, x, y: _share_of_length(t, ans, y),
)
def _hypot(x: Array, y: Array) -> Array:
    x, y = lax.abs(x), lax.abs(y)
    large, small = lax.max(x, y), lax.min(x, y)
    ratio = lax.div(small, lax.select(lax.eq(large, 0.0), 1.0, large))
    length = lax.mul(large, lax.sqrt(lax.add(lax.mul(ratio, ratio), 1.0)))
    return lax.select(lax.bitwise_or(lax.eq(x, math.inf), lax.eq(y, math.inf)), math.inf, length)


def hypot(x: ArrayLike, y: ArrayLike) -> Array:
    """sqrt(x*x + y*y) without overflow. The gradient at (0, 0), a kink, is 0."""
    return _hypot(*float_operands("hypot", x, y))


def _slope_of_root(t: Array, ans: Array, x: Array) -> Array:
    none = lax.eq(ans, 0.0)
    return lax.select(none, 0.0, lax.div(lax.mul(t, 0.5), lax.select(none, 1.0, ans)))


@with_partials(_slope_of_root)
def root_of_squares(x: Array) -> Array:
    """The square root of a sum of squares. At 0 a length has a kink, as abs has, and its slope counts as 0."""
    return lax.sqrt(x)


def square_of_size(x: Array) -> Array:
    """``x * x``; of a complex number the sum of its parts' squares, which is real."""
    if not dtypes.is_complex(aval_of("", x).dtype):
        return lax.mul(x, x)
    re, im = lax.real(x), lax.imag(x)
    return lax.add(lax.mul(re, re), lax.mul(im, im))


def _slope_by_share(t: Array, ans: Array, below: Array, above: Array, share: Array) -> Array:
    same_infinity = lax.bitwise_and(lax.eq(below, above), lax.eq(lax.abs(below), math.inf))
    return lax.mul(t, lax.select(same_infinity, 0.0, lax.sub(above, below)))


@with_partials(
    lambda t, ans, below, above, share: lax.mul(t, lax.sub(1.0, share)),
    lambda t, ans, below, above, share: lax.mul(t, share),
    _slope_by_share,
)
def blend(below: Array, above: Array, share: Array) -> Array:
    """``below`` and ``share`` of the way to ``above``; ``below`` itself where both are equal, infinite ones too."""
    out = lax.add(lax.mul(below, lax.sub(1.0, share)), lax.mul(above, share))
    return lax.select(lax.eq(below, above), below, out)


# -- sin(x) / x --------------------------------------------------------------------------------------------------------


@cache
def _slope_of_sine_over(k: int) -> Composite:
    """The derivative of order ``k`` of sin(p) / p: near 0 a power series, further out by the product rule."""
    radius, first = float(max(2, k)), -(-k // 2)
    series: list[float] = []
    while not series or radius ** (2 * len(series)) * abs(series[-1]) > 1e-18:
        n = first + len(series)
        series.append((-1) ** n * math.factorial(2 * n) / math.factorial(2 * n - k) / math.factorial(2 * n + 1))

    def value(p: Array) -> Array:
        square, near = lax.mul(p, p), lax.zeros_like(p)
        for c in reversed(series):
            near = lax.add(lax.mul(square, near), c)
        near = lax.mul(p, near) if k % 2 else near
        sin, cos = lax.sin(p), lax.cos(p)
        turns = (sin, cos, lax.neg(sin), lax.neg(cos))
        far = lax.div(sin, p)
        for j in range(1, k + 1):
            far = lax.div(lax.sub(turns[j % 4], lax.mul(far, float(j))), p)
        return lax.select(lax.lt(lax.abs(p), radius), near, far)

    return Composite(f"sinc_{k}", value, (lambda t, ans, p: lax.mul(t, _slope_of_sine_over(k + 1)(p)),))


@with_partials(lambda t, ans, p: lax.mul(t, _slope_of_sine_over(1)(p)))
def _sine_over(p: Array) -> Array:
    zero = lax.eq(p, 0.0)
    safe = lax.select(zero, 1.0, p)
    return lax.select(zero, 1.0, lax.div(lax.sin(safe), safe))


def sinc(x: ArrayLike) -> Array:
    """sin(pi x) / (pi x), with its limit 1 at 0."""
    x = promote_floats("sinc", x)[0]
    return _sine_over(lax.mul(x, math.pi))


# -- Bessel functions --------------------------------------------------------------------------------------------------

# Chebyshev series of exp(-x) I0(x) on [0, 8] and of exp(-x) sqrt(x) I0(x) on [8, inf) (Cephes, i0f).
_I0_NEAR = (
    -1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7, 1.11738753912010371815e-6,
    -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
    -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2,
    -2.37374148058994688156e-2, 4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1,
    -3.04682672343198398683e-1, 6.76795274409476084995e-1,
)  # fmt: skip
_I0_FAR = (
    3.39623202570838634515e-9, 2.26666899049817806459e-8, 2.04891858946906374183e-7, 2.89137052083475648297e-6,
    6.88975834691682398426e-5, 3.36911647825569408990e-3, 8.04490411014108831608e-1,
)  # fmt: skip


def _chebyshev(x: Array, coefficients: tuple[float, ...]) -> Array:
    b0: Any = zero_like(x)
    b1, b2 = b0, b0
    for c in coefficients:
        b0, b1, b2 = lax.add(lax.sub(lax.mul(x, b0), b1), scalar_like(x, c)), b0, b1
    return lax.mul(lax.sub(b0, b2), scalar_like(x, 0.5))


_SERIES, _ASYMPTOTIC, _FAR = 24, 10, 16.0
"""How many terms float32 needs of a Bessel function's power series below ``_FAR``, and of its asymptotic one above."""


@cache
def _bessel(n: int) -> Composite:
    """The modified Bessel function of order ``n`` in float32; its derivative is the mean of its neighbours in n."""

    def value(x: Array) -> Array:
        half, near = lax.mul(x, 0.5), lax.ones_like(x)
        square = lax.mul(half, half)
        for m in range(_SERIES, 0, -1):
            near = lax.add(lax.mul(lax.mul(square, 1.0 / (m * (m + n))), near), 1.0)
        near = lax.mul(near, lax.mul(lax.integer_pow(half, n), 1.0 / math.factorial(n)))
        a = lax.max(lax.abs(x), _FAR)
        inverse, far = lax.div(1.0, lax.mul(a, 8.0)), lax.ones_like(x)
        for k in range(_ASYMPTOTIC, 0, -1):
            far = lax.sub(1.0, lax.mul(lax.mul(inverse, (4 * n * n - (2 * k - 1) ** 2) / k), far))
        far = lax.mul(lax.exp(a), lax.div(far, lax.sqrt(lax.mul(a, 2 * math.pi))))
        far = lax.mul(far, lax.sign(x)) if n % 2 else far
        return lax.select(lax.lt(lax.abs(x), _FAR), near, far)

    def slope(t: Array, ans: Array, x: Array) -> Array:
        return lax.mul(t, lax.mul(lax.add(_bessel(n - 1)(x) if n > 1 else _i0(x), _bessel(n + 1)(x)), 0.5))

    return Composite(f"bessel_{n}", value, (slope,))


@with_partials(lambda t, ans, x: lax.mul(t, _bessel(1)(x)))
def _i0(x: Array) -> Array:
    a = lax.abs(x)
    near = _chebyshev(lax.sub(lax.mul(a, 0.5), 2.0), _I0_NEAR)
    big = lax.max(a, 8.0)
    far = lax.div(_chebyshev(lax.sub(lax.div(32.0, big), 2.0), _I0_FAR), lax.sqrt(big))
    scaled = lax.select_n(lax.le(a, 8.0), far, near)
    return lax.mul(lax.exp(a), scaled)


def i0(x: ArrayLike) -> Array:
    """The modified Bessel function of order 0, in float32 (float64 is refused).

    >>> i0(np.float32(0)).round(6)
    Array(1., dtype=float32)
    """
    x = promote_floats("i0", x)[0]
    own = aval_of("i0", x)
    if own.dtype == dtypes.float64:
        raise DTypeError(at_user_line("i0: computes in float32 only; convert the operand with astype('float32')"))
    return convert(_i0(convert(x, dtypes.float32, own.weak_type)), own.dtype, own.weak_type)
