"""Exponentials, logarithms, powers, roots and hyperbolic functions of complex numbers.

All are computed over float64: those of complex64 with its parts converted, and rounded once. Branch cuts and special
values are those of the Python array API: a cut is continuous from the side that the sign of a zero says. NumPy and C's
Annex G have the same but for two signs of zeros: tanh's imaginary part where the real one is infinite, and expm1(-0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.interp import get_aval
from volta.ops import base
from volta.ops.arithmetic import (
    abs,
    add,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    div,
    eq,
    fma,
    ge,
    gt,
    is_finite,
    le,
    lt,
    max,
    min,
    mul,
    ne,
    neg,
    sub,
)
from volta.ops.complexes.arithmetic import constant_like, in_float64, length, product, quotient, rounded
from volta.ops.complexes.pair import Pair, means, turned, turned_back
from volta.ops.selection import bitcast_convert_type, select
from volta.ops.transcendental import atan2, cos, cosh, exp, exp2, expm1, log, log1p, sin, sinh, sqrt, tan

Function = Callable[[Pair], Pair]


def of_float64(name: str) -> Callable[[Function], Function]:
    """Enter a function of pairs of float64 as what a primitive means."""

    def enter(function: Function) -> Function:
        def rule(z: Pair) -> Pair:
            return rounded(function(*in_float64(z)), base.dtype_of(z.re))

        means(name)(rule)
        return function

    return enter


def is_negative(x: Any) -> Any:
    """float64: whether the sign bit is set; a NaN counts as positive."""
    return lt(bitcast_convert_type(x, dtypes.int64), np.int64(0))


def with_sign(x: Any, like: Any) -> Any:
    """``x``, which is not negative, with the sign of another number."""
    return select(is_negative(like), neg(x), x)


def is_infinite(x: Any) -> Any:
    return eq(abs(x), math.inf)


def _one(x: Any) -> Any:
    return base.scalar_like(1.0, get_aval(x))


# -- exponentials ------------------------------------------------------------------------------------------------------


def _spiral(size: Any, more: Any, angle: Any, z: Pair) -> Pair:
    """``size`` times ``more`` at an angle, for the exponential of z; of its limits a zero stays real."""
    re, im = mul(mul(size, cos(angle)), more), mul(mul(size, sin(angle)), more)
    lost = bitwise_not(is_finite(z.im))
    down, up = (bitwise_and(lost, eq(z.re, x)) for x in (-math.inf, math.inf))
    im = select(eq(z.im, 0.0), z.im, select(down, 0.0, im))
    return Pair(select(down, 0.0, select(up, math.inf, re)), im)


def _in_two(x: Any, function: Any, limit: float, part: float) -> tuple[Any, Any]:
    """A function that grows as e^x, as two factors: above a limit one of them is that of ``part``."""
    above = gt(x, limit)
    return function(select(above, sub(x, part), x)), select(above, _MUCH[part], _one(x))


_MUCH = {700.0: float.fromhex("0x1.d945df4f8ec8ep+1009"), 1000.0: 2.0**1000}  # e^700, 2^1000
_LN2 = math.log(2.0)


@of_float64("exp")
def exponential(z: Pair) -> Pair:
    """e^x (cos y + i sin y)."""
    return _spiral(*_in_two(z.re, exp, 709.0, 700.0), z.im, z)


@of_float64("exp2")
def _exp2(z: Pair) -> Pair:
    return _spiral(*_in_two(z.re, exp2, 1023.0, 1000.0), mul(z.im, _LN2), z)


@of_float64("expm1")
def _expm1(z: Pair) -> Pair:
    """(e^x - 1) cos y - 2 sin(y / 2)^2, whose zero is positive, and the imaginary part of e^z."""
    whole, half = exponential(z), sin(mul(z.im, 0.5))
    less = sub(mul(expm1(z.re), cos(z.im)), mul(mul(half, half), 2.0))
    less = select(eq(less, 0.0), 0.0, less)
    re = select(bitwise_or(gt(z.re, 709.0), bitwise_not(is_finite(z.im))), whole.re, less)
    return Pair(select(eq(z.re, -math.inf), -1.0, re), whole.im)


@of_float64("logistic")
def _logistic(z: Pair) -> Pair:
    """1 / (1 + e^-z); left of 0 e^z / (1 + e^z)."""
    left, one = lt(z.re, 0.0), constant_like(z, 1.0)
    e = exponential(Pair(select(left, z.re, neg(z.re)), select(left, z.im, neg(z.im))))
    over = Pair(select(left, e.re, one.re), select(left, e.im, one.im))
    return quotient(over, Pair(add(e.re, 1.0), e.im))


# -- logarithms --------------------------------------------------------------------------------------------------------


@of_float64("log")
def logarithm(z: Pair) -> Pair:
    """log |z| + i atan2(y, x). Where |z| is near 1 it is log1p(x x + y y - 1) / 2, of exact products."""
    x, y = abs(z.re), abs(z.im)
    large, small = max(x, y), min(x, y)
    up, down = ge(large, 2.0**1000), lt(large, 2.0**-960)
    factor = select(up, 2.0**-60, select(down, 2.0**120, _one(x)))
    undo = select(up, 60 * _LN2, select(down, -120 * _LN2, base.scalar_like(0.0, get_aval(x))))
    far = add(log(length(mul(x, factor), mul(y, factor))), undo)
    p, q = mul(large, large), mul(small, small)
    rest = add(fma(large, large, neg(p)), fma(small, small, neg(q)))
    near = mul(log1p(add(add(sub(p, 1.0), q), rest)), 0.5)
    total = add(p, q)
    return Pair(select(bitwise_and(ge(total, 0.5), le(total, 2.0)), near, far), atan2(z.im, z.re))


def _scaled_log(factor: float) -> Function:
    def function(z: Pair) -> Pair:
        out = logarithm(z)
        return Pair(mul(out.re, factor), mul(out.im, factor))

    return function


of_float64("log2")(_scaled_log(1 / math.log(2.0)))
of_float64("log10")(_scaled_log(1 / math.log(10.0)))


@of_float64("log1p")
def _log1p(z: Pair) -> Pair:
    """log(1 + z); near 0 log1p(x (2 + x) + y y) / 2 + i atan2(y, 1 + x)."""
    away = logarithm(Pair(add(z.re, 1.0), z.im))
    near = mul(log1p(add(mul(z.re, add(z.re, 2.0)), mul(z.im, z.im))), 0.5)
    return Pair(select(lt(max(abs(z.re), abs(z.im)), 0.5), near, away.re), away.im)


@means("pow")
def _power(x: Pair, y: Pair) -> Pair:
    """e^(y log x), and 1 where y is 0. 0 to a power with a positive real part is 0, to others it is NaN."""
    dtype = base.dtype_of(x.re)
    x, y = in_float64(x, y)
    out = exponential(product(y, logarithm(x)))
    nothing = bitwise_and(eq(x.re, 0.0), eq(x.im, 0.0))
    none = bitwise_and(eq(y.re, 0.0), eq(y.im, 0.0))
    of_zero = select(gt(y.re, 0.0), 0.0, base.scalar_like(math.nan, get_aval(y.re)))
    re = select(none, 1.0, select(nothing, of_zero, out.re))
    return rounded(Pair(re, select(none, 0.0, select(nothing, of_zero, out.im))), dtype)


# -- roots -------------------------------------------------------------------------------------------------------------


@of_float64("sqrt")
def root(z: Pair) -> Pair:
    """With t = sqrt((|x| + |z|) / 2) it is t + i y / 2t, or |y| / 2t + i t with y's sign left of 0."""
    x, y = abs(z.re), abs(z.im)
    large = max(x, y)
    up, down = ge(large, 2.0**1020), lt(large, 2.0**-960)
    factor = select(up, 2.0**-4, select(down, 2.0**108, _one(x)))
    undo = select(up, 2.0**2, select(down, 2.0**-54, _one(x)))
    along = mul(x, factor)
    t = mul(sqrt(mul(add(along, length(along, mul(y, factor))), 0.5)), undo)
    other = select(eq(t, 0.0), 0.0, div(y, mul(t, 2.0)))
    right, endless = ge(z.re, 0.0), eq(y, math.inf)
    re = select(endless, math.inf, select(right, t, other))
    return Pair(re, with_sign(select(endless, math.inf, select(right, other, t)), z.im))


@of_float64("rsqrt")
def _rsqrt(z: Pair) -> Pair:
    return quotient(constant_like(z, 1.0), root(z))


# -- hyperbolic and trigonometric --------------------------------------------------------------------------------------


def _sides(x: Any) -> tuple[Any, Any, Any]:
    """sinh and cosh, and a factor of both where they would overflow."""
    size = abs(x)
    beyond = gt(size, 709.0)
    grown = exp(sub(size, 700.0))
    more = select(beyond, _MUCH[700.0] / 2, _one(x))
    return select(beyond, with_sign(grown, x), sinh(x)), select(beyond, grown, cosh(x)), more


@of_float64("sinh")
def _sinh(z: Pair) -> Pair:
    """sinh x cos y + i cosh x sin y."""
    odd, even, more = _sides(z.re)
    lost = bitwise_and(bitwise_not(is_finite(z.im)), bitwise_or(eq(z.re, 0.0), is_infinite(z.re)))
    re = select(lost, z.re, mul(mul(odd, cos(z.im)), more))
    return Pair(re, select(eq(z.im, 0.0), z.im, mul(mul(even, sin(z.im)), more)))


@of_float64("cosh")
def _cosh(z: Pair) -> Pair:
    """cosh x cos y + i sinh x sin y."""
    odd, even, more = _sides(z.re)
    lost = bitwise_not(is_finite(z.im))
    re = select(bitwise_and(lost, is_infinite(z.re)), math.inf, mul(mul(even, cos(z.im)), more))
    im = mul(mul(odd, sin(z.im)), more)
    im = select(bitwise_and(lost, eq(z.re, 0.0)), 0.0, im)
    return Pair(re, select(eq(z.im, 0.0), with_sign(abs(z.im), mul(with_sign(_one(z.im), z.re), z.im)), im))


@of_float64("tanh")
def _tanh(z: Pair) -> Pair:
    """Kahan's: with t = tan y, s = sinh x and d = 1 + (1 + t t) s s it is (1 + t t) cosh(x) s / d + i t / d; beyond
    |x| = 22 it is 1 with x's sign + i 4 sin y cos y e^(-2|x|), and of an infinite x + i 0 with y's sign."""
    size = abs(z.re)
    t, s = tan(z.im), sinh(z.re)
    beta = add(mul(t, t), 1.0)
    below = add(mul(mul(beta, s), s), 1.0)
    re, im = div(mul(mul(beta, cosh(z.re)), s), below), div(t, below)
    far, endless = gt(size, 22.0), eq(size, math.inf)
    vanishing = mul(mul(mul(sin(z.im), cos(z.im)), 4.0), exp(mul(size, -2.0)))
    vanishing = select(endless, with_sign(mul(_one(t), 0.0), z.im), vanishing)
    lost = bitwise_and(far, bitwise_not(bitwise_or(endless, is_finite(z.im))))
    side = select(lost, math.nan, with_sign(_one(size), z.re))
    re = select(far, side, select(eq(z.re, 0.0), z.re, re))
    return Pair(re, select(eq(z.im, 0.0), z.im, select(far, vanishing, im)))


def _turned(name: str, function: Function, back: bool) -> None:
    """A trigonometric function by a hyperbolic one of i z."""
    of_float64(name)(lambda z: turned_back(function(turned(z))) if back else function(turned(z)))


_turned("sin", _sinh, True)
_turned("cos", _cosh, False)
_turned("tan", _tanh, True)

# -- inverses ----------------------------------------------------------------------------------------------------------


def _both_roots(z: Pair) -> tuple[Pair, Pair]:
    """The roots of 1 - z and 1 + z."""
    return root(Pair(sub(1.0, z.re), neg(z.im))), root(Pair(add(z.re, 1.0), z.im))


def _is_large(z: Pair) -> Any:
    """Where products of roots would overflow, and log 2|z| is the answer."""
    return bitwise_or(ge(max(abs(z.re), abs(z.im)), 2.0**500), bitwise_or(is_infinite(z.re), is_infinite(z.im)))


def _unknown_height(z: Pair) -> Any:
    """On the imaginary axis, at a NaN: the real part is that of all of the axis."""
    return bitwise_and(eq(z.re, 0.0), ne(z.im, z.im))


def _log_of_twice(z: Pair) -> Any:
    return add(log(length(mul(z.re, 0.25), mul(z.im, 0.25))), 3 * _LN2)


@of_float64("asin")
def _asin(z: Pair) -> Pair:
    """Kahan's, with p = sqrt(1 - z) and q = sqrt(1 + z): atan2(x, Re(p q)) + i asinh(Im(conj(p) q))."""
    p, q = _both_roots(z)
    re = atan2(z.re, sub(mul(p.re, q.re), mul(p.im, q.im)))
    im = base.bind_named("asinh", sub(mul(p.re, q.im), mul(p.im, q.re)))
    large = _is_large(z)
    re = select(_unknown_height(z), z.re, select(large, atan2(z.re, abs(z.im)), re))
    return Pair(re, select(large, with_sign(_log_of_twice(z), z.im), im))


@of_float64("acos")
def _acos(z: Pair) -> Pair:
    """Kahan's: 2 atan2(Re p, Re q) + i asinh(Im(conj(q) p))."""
    p, q = _both_roots(z)
    im = base.bind_named("asinh", sub(mul(q.re, p.im), mul(q.im, p.re)))
    large = _is_large(z)
    re = select(large, atan2(abs(z.im), z.re), mul(atan2(p.re, q.re), 2.0))
    re = select(_unknown_height(z), math.pi / 2, re)
    return Pair(re, select(large, neg(with_sign(_log_of_twice(z), z.im)), im))


@of_float64("acosh")
def _acosh(z: Pair) -> Pair:
    """Kahan's, with p = sqrt(z - 1) and q = sqrt(z + 1): asinh(Re(conj(p) q)) + 2i atan2(Im p, Re q)."""
    p, q = root(Pair(sub(z.re, 1.0), z.im)), root(Pair(add(z.re, 1.0), z.im))
    re = base.bind_named("asinh", add(mul(p.re, q.re), mul(p.im, q.im)))
    large = _is_large(z)
    im = select(large, atan2(z.im, z.re), mul(atan2(p.im, q.re), 2.0))
    im = select(_unknown_height(z), math.pi / 2, im)
    return Pair(select(large, _log_of_twice(z), re), im)


@of_float64("atanh")
def _atanh(z: Pair) -> Pair:
    """log1p(4|x| / ((1 - |x|)^2 + y y)) / 4 with x's sign + i atan2(2y, (1 - x)(1 + x) - y y) / 2; near 1 and -1 the
    real part is log(2 / d) / 2, d being the distance to it, and far from 0 it is x / |z|^2."""
    x, y = abs(z.re), abs(z.im)
    rest = sub(1.0, x)
    usual = mul(log1p(div(mul(x, 4.0), add(mul(rest, rest), mul(y, y)))), 0.25)
    d = length(rest, y)
    re = select(lt(d, 2.0**-27), mul(sub(_LN2, log(d)), 0.5), usual)
    im = mul(atan2(mul(z.im, 2.0), sub(mul(sub(1.0, z.re), add(z.re, 1.0)), mul(y, y))), 0.5)
    large, size = _is_large(z), length(x, y)
    endless = eq(size, math.inf)
    far = select(endless, 0.0, div(div(x, size), size))
    flat = bitwise_and(eq(x, math.inf), bitwise_not(bitwise_or(eq(y, math.inf), is_finite(y))))
    quarter = select(flat, math.nan, with_sign(mul(_one(y), math.pi / 2), z.im))
    re = select(_unknown_height(z), 0.0, select(large, far, re))
    return Pair(with_sign(re, z.re), select(large, quarter, im))


_turned("asinh", _asin, True)
_turned("atan", _atanh, True)
