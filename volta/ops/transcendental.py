"""Transcendental functions: elementwise primitives whose meaning is a definition of Volta's own, at most 1 ULP off."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from volta.core import dtypes
from volta.core.interp import get_aval
from volta.ops import base
from volta.ops.arithmetic import add, bitwise_and, div, eq, fma, ge, integer_pow, lt, mul, neg, real, round, sub
from volta.ops.elementwise import NUMBER, Function, elementwise
from volta.ops.primitive import FUNCTION
from volta.ops.selection import select

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "digamma", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "logistic", "pow", "rsqrt", "sin",
    "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

_function = partial(elementwise, cost=FUNCTION)

_LN2 = math.log(2.0)
_LN10 = math.log(10.0)
_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
_SQRT_PI_OVER_2 = math.sqrt(math.pi) / 2.0


def _square(x: Any) -> Any:
    return integer_pow(x, 2)


# -- exponentials and logarithms ---------------------------------------------------------------------------------------

exp = _function("exp", "Elementwise e to the x.", lambda t, ans, x: mul(t, ans), high=5.0)
exp2 = _function("exp2", "Elementwise 2 to the x.", lambda t, ans, x: mul(t, mul(ans, _LN2)), high=5.0)
expm1 = _function("expm1", "Elementwise exp(x) - 1, exact near 0.", lambda t, ans, x: mul(t, add(ans, 1.0)), high=5.0)
log = _function("log", "Elementwise natural logarithm.", lambda t, ans, x: div(t, x), low=0.1)
log2 = _function("log2", "Elementwise logarithm to base 2.", lambda t, ans, x: div(t, mul(x, _LN2)), low=0.1)
log10 = _function("log10", "Elementwise logarithm to base 10.", lambda t, ans, x: div(t, mul(x, _LN10)), low=0.1)
log1p = _function("log1p", "Elementwise log(1 + x), exact near 0.", lambda t, ans, x: div(t, add(x, 1.0)), low=-0.9)
logistic = _function("logistic", "Elementwise 1 / (1 + exp(-x)).", lambda t, ans, x: mul(t, mul(ans, sub(1.0, ans))))

# -- powers and roots --------------------------------------------------------------------------------------------------


def _pow_base(t: Any, ans: Any, x: Any, y: Any) -> Any:
    """y * x**(y - 1), and 0 where both are 0."""
    none = bitwise_and(eq(x, 0.0), eq(y, 0.0))
    exponent = select(none, base.scalar_like(1.0, get_aval(y)), sub(y, 1.0))
    return mul(t, mul(y, pow(x, exponent)))


def _pow_exponent(t: Any, ans: Any, x: Any, y: Any) -> Any:
    """log(x) * x**y, and 0 where x is 0 and y is not negative."""
    positive = ge(real(y) if dtypes.is_complex(base.dtype_of(y)) else y, 0.0)
    none = bitwise_and(eq(x, 0.0), positive)
    not_zero = select(none, base.scalar_like(1.0, get_aval(x)), x)
    return mul(t, mul(log(not_zero), ans))


pow = _function(
    "pow",
    "Elementwise x to the power y; of integers modulo the width, negative powers rounded towards 0.",
    _pow_base,
    _pow_exponent,
    arity=2,
    kinds=NUMBER,
    low=0.2,
    high=3.0,
)
sqrt = _function(
    "sqrt", "Elementwise square root, correctly rounded.", lambda t, ans, x: div(mul(t, 0.5), ans), low=0.1, cost=3
)
rsqrt = _function(
    "rsqrt", "Elementwise 1 / sqrt(x).", lambda t, ans, x: mul(t, mul(-0.5, div(ans, x))), low=0.1, cost=4
)
cbrt = _function("cbrt", "Elementwise cube root.", lambda t, ans, x: mul(t, div(integer_pow(ans, -2), 3.0)), low=0.1)

# -- trigonometric -----------------------------------------------------------------------------------------------------

sin = _function("sin", "Elementwise sine of radians.", lambda t, ans, x: mul(t, cos(x)))
cos: Function = _function("cos", "Elementwise cosine of radians.", lambda t, ans, x: neg(mul(t, sin(x))))
tan = _function(
    "tan", "Elementwise tangent of radians.", lambda t, ans, x: mul(t, add(_square(ans), 1.0)), low=-1.3, high=1.3
)
asin = _function(
    "asin", "Elementwise inverse sine.", lambda t, ans, x: mul(t, rsqrt(_complement(x))), low=-0.9, high=0.9
)
acos = _function(
    "acos",
    "Elementwise inverse cosine.",
    lambda t, ans, x: neg(mul(t, rsqrt(_complement(x)))),
    low=-0.9,
    high=0.9,
)
atan = _function("atan", "Elementwise inverse tangent.", lambda t, ans, x: div(t, add(_square(x), 1.0)))
atan2 = _function(
    "atan2", "Elementwise angle of the point (y, x), in (-pi, pi].",
    lambda t, ans, y, x: mul(t, div(x, add(_square(x), _square(y)))),
    lambda t, ans, y, x: mul(t, div(neg(y), add(_square(x), _square(y)))),
    arity=2, low=0.2,
)  # fmt: skip


def _complement(x: Any) -> Any:
    """1 - x * x, rounded once. As (1 - x) * (1 + x) it had a factor 0 at the ends, times an infinite cotangent; so
    has a complex one, which has no fused product."""
    if dtypes.is_complex(base.dtype_of(x)):
        return mul(sub(1.0, x), add(x, 1.0))
    return fma(neg(x), x, 1.0)


# -- hyperbolic --------------------------------------------------------------------------------------------------------

sinh = _function("sinh", "Elementwise hyperbolic sine.", lambda t, ans, x: mul(t, cosh(x)), low=-4.0, high=4.0)
cosh: Function = _function(
    "cosh", "Elementwise hyperbolic cosine.", lambda t, ans, x: mul(t, sinh(x)), low=-4.0, high=4.0
)
tanh = _function(
    "tanh",
    "Elementwise hyperbolic tangent.",
    lambda t, ans, x: mul(t, mul(sub(1.0, ans), add(ans, 1.0))),
    low=-4.0,
    high=4.0,
)
asinh = _function(
    "asinh", "Elementwise inverse hyperbolic sine.", lambda t, ans, x: mul(t, rsqrt(add(_square(x), 1.0)))
)
acosh = _function(
    "acosh", "Elementwise inverse hyperbolic cosine.",
    lambda t, ans, x: mul(t, mul(rsqrt(sub(x, 1.0)), rsqrt(add(x, 1.0)))), low=1.2,
)  # fmt: skip
atanh = _function(
    "atanh", "Elementwise inverse hyperbolic tangent.", lambda t, ans, x: div(t, _complement(x)),
    low=-0.9, high=0.9,
)  # fmt: skip

# -- error functions ---------------------------------------------------------------------------------------------------


def _gauss(x: Any) -> Any:
    return exp(neg(_square(x)))


erf = _function(
    "erf", "Elementwise error function.",
    lambda t, ans, x: mul(t, mul(_gauss(x), _TWO_OVER_SQRT_PI)), low=-3.0, high=3.0,
)  # fmt: skip
erfc = _function(
    "erfc", "Elementwise 1 - erf(x), exact for large x.",
    lambda t, ans, x: mul(t, mul(_gauss(x), -_TWO_OVER_SQRT_PI)), low=-3.0, high=3.0,
)  # fmt: skip
erf_inv = _function(
    "erf_inv", "Elementwise inverse of the error function.",
    lambda t, ans, x: mul(t, mul(exp(_square(ans)), _SQRT_PI_OVER_2)), low=-0.9, high=0.9,
)  # fmt: skip

# -- gamma functions ---------------------------------------------------------------------------------------------------

# Bernoulli numbers B2, B4, ...: trigamma(w) ~ 1/w + 1/(2 w^2) + sum of B2k / w^(2k + 1)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFT = 10


def _trigamma(x: Any) -> Any:
    """The derivative of digamma: reflected to x >= 1/2, moved up by the recurrence, then the asymptotic series."""
    reflected = lt(x, 0.5)
    z = select(reflected, sub(1.0, x), x)
    total = div(1.0, _square(z))
    for k in range(1, _SHIFT):
        total = add(total, div(1.0, _square(add(z, float(k)))))
    inverse = div(1.0, add(z, float(_SHIFT)))
    square = _square(inverse)
    series = mul(square, _BERNOULLI[-1])
    for b in reversed(_BERNOULLI[:-1]):
        series = mul(square, add(series, b))
    total = add(total, mul(inverse, add(add(mul(inverse, 0.5), series), 1.0)))
    # The distance from the pole is exact, so the sine is 0 there and right beside. Elsewhere no pole may be seen: an
    # infinite value that is not chosen makes the gradient NaN.
    from_pole = select(reflected, sub(x, round(x)), base.scalar_like(0.5, get_aval(x)))
    mirror = _square(div(math.pi, sin(mul(from_pole, math.pi))))
    return select(reflected, sub(mirror, total), total)


digamma = _function(
    "digamma", "Elementwise derivative of lgamma.", lambda t, ans, x: mul(t, _trigamma(x)), low=0.3
)  # fmt: skip
lgamma = _function(
    "lgamma", "Elementwise logarithm of the absolute value of the gamma function.",
    lambda t, ans, x: mul(t, digamma(x)), low=0.3,
)  # fmt: skip
