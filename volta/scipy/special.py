"""Special functions, element by element, under the names of ``scipy.special``. Integers become float32.

>>> from volta.scipy.special import expit, logit
>>> expit(logit(0.25)).tolist()
0.25
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.floats import standard
from volta.nn import normalization
from volta.nn.normalization import logsumexp
from volta.numpy import binary, normalizing
from volta.numpy.promotion import aval_of, convert, float_operands, promote_floats, scalar_like
from volta.numpy.smooth import i0, sinc
from volta.numpy.ufuncs import isnan
from volta.ops import lax
from volta.scipy.bessel import bessel_jn, i0e, i1, i1e
from volta.scipy.gamma_functions import (
    beta,
    betaln,
    comb,
    factorial,
    gamma,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
)  # fmt: skip
from volta.scipy.gaussians import dawsn, erfcx, log_ndtr, owens_t
from volta.scipy.incomplete import betainc, gammainc, gammaincc
from volta.scipy.integrals import exp1, expi, expn, fresnel, sici, spence
from volta.scipy.spherical import sph_harm_y
from volta.scipy.sums import bernoulli, boxcox, boxcox1p, hyp1f1, hyp2f1, polygamma, zeta
from volta.trace.composite import with_partials

__all__ = [
    "bernoulli", "bessel_jn", "beta", "betainc", "betaln", "boxcox", "boxcox1p", "comb", "dawsn", "digamma",
    "entr", "erf", "erfc", "erfcx", "erfinv", "exp1", "exp2", "expi", "expit", "expm1", "expn", "factorial",
    "fresnel", "gamma", "gammainc", "gammaincc", "gammaln", "gammasgn", "hyp1f1", "hyp2f1", "i0", "i0e", "i1",
    "i1e", "kl_div", "log1p", "log_expit", "log_ndtr", "log_softmax", "loggamma", "logit", "logsumexp",
    "multigammaln", "ndtr", "ndtri", "owens_t", "poch", "polygamma", "psi", "rel_entr", "sici", "sinc",
    "softmax", "spence", "sph_harm_y", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


def _unary(name: str, primitive: Callable[..., Array], what: str) -> Callable[[ArrayLike], Array]:
    def f(x: ArrayLike) -> Array:
        return primitive(promote_floats(name, x)[0])

    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"{what}, element by element."
    return f


erf = _unary("erf", lax.erf, "The error function")
erfc = _unary("erfc", lax.erfc, "1 - erf(x), exact for large ``x``")
erfinv = _unary("erfinv", lax.erf_inv, "The inverse of the error function")
gammaln = _unary("gammaln", lax.lgamma, "The logarithm of the absolute gamma function")
digamma = _unary("digamma", lax.digamma, "The derivative of :func:`gammaln`")
psi = digamma
expit = _unary("expit", lax.logistic, "1 / (1 + exp(-x))")
exp2 = _unary("exp2", lax.exp2, "2 to the power ``x``")
expm1 = _unary("expm1", lax.expm1, "exp(x) - 1, exact near 0")
log1p = _unary("log1p", lax.log1p, "log(1 + x), exact near 0")


def softmax(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array:
    """exp(x) / SUM(exp(x)) over ``axis`` (None: over all elements; :func:`volta.nn.softmax` takes the last axis).

    >>> import volta.numpy as vnp
    >>> softmax(vnp.zeros((2, 2))).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    return normalizing.softmax(x, axis)


def log_softmax(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array:
    """log(:func:`softmax`), exact where that is nearly 0.

    >>> import volta.numpy as vnp
    >>> log_softmax(vnp.zeros(1)).tolist()
    [0.0]
    """
    return normalization.log_softmax(x, axis)


def logit(x: ArrayLike) -> Array:
    """log(x / (1 - x)).

    >>> logit(0.5).tolist()
    0.0
    """
    return _logit(promote_floats("logit", x)[0])


@with_partials(lambda t, ans, x: lax.add(lax.div(t, x), lax.div(t, lax.sub(1.0, x))))
def _logit(x: Array) -> Array:
    return lax.log(lax.div(x, lax.sub(1.0, x)))


def log_expit(x: ArrayLike) -> Array:
    """log(expit(x)), exact where expit is nearly 0 or 1."""
    return _log_expit(promote_floats("log_expit", x)[0])


@with_partials(lambda t, ans, x: lax.mul(t, lax.logistic(lax.neg(x))))
def _log_expit(x: Array) -> Array:
    return lax.sub(lax.min(x, 0.0), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


def _times_log(x: Array, y: Array, logarithm: Any) -> Array:
    none = lax.bitwise_and(lax.eq(x, 0.0), lax.eq(y, y))
    return lax.select(none, 0.0, lax.mul(x, logarithm(lax.select(none, 1.0, y))))


def _slope_of_quotient(t: Array, ans: Array, x: Array, y: Array) -> Array:
    return lax.neg(lax.mul(t, _quotient(ans, y)))


@with_partials(lambda t, ans, x, y: lax.div(t, y), _slope_of_quotient)
def _quotient(x: Array, y: Array) -> Array:
    """x / y; 0 where both are 0, as beside it, where x is 0."""
    none = lax.bitwise_and(lax.eq(x, 0.0), lax.eq(y, 0.0))
    return lax.div(x, lax.select(none, 1.0, y))


@with_partials(lambda t, ans, x, y: lax.mul(t, lax.log(y)), lambda t, ans, x, y: lax.mul(t, _quotient(x, y)))
def _xlogy(x: Array, y: Array) -> Array:
    return _times_log(x, y, lax.log)


@with_partials(
    lambda t, ans, x, y: lax.mul(t, lax.log1p(y)),
    lambda t, ans, x, y: lax.mul(t, _quotient(x, lax.add(y, 1.0))),
)
def _xlog1py(x: Array, y: Array) -> Array:
    return _times_log(x, y, lax.log1p)


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x * log(y), and 0 where ``x`` is 0 (and ``y`` a number).

    >>> xlogy(0.0, 0.0).tolist()
    0.0
    """
    return _xlogy(*float_operands("xlogy", x, y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x * log1p(y), and 0 where ``x`` is 0 (and ``y`` a number)."""
    return _xlog1py(*float_operands("xlog1py", x, y))


def entr(x: ArrayLike) -> Array:
    """-x * log(x): 0 at 0, and -inf below."""
    return _entr(promote_floats("entr", x)[0])


def _slope_of_entr(t: Array, ans: Array, x: Array) -> Array:
    none = lax.lt(x, 0.0)
    return lax.mul(t, lax.select(none, 0.0, lax.sub(-1.0, lax.log(lax.select(none, 1.0, x)))))


@with_partials(_slope_of_entr)
def _entr(x: Array) -> Array:
    return lax.select(lax.lt(x, 0.0), -math.inf, lax.neg(_times_log(x, x, lax.log)))


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """p * log(p / q): 0 where ``p`` is 0 and q >= 0, inf where one of them is not allowed."""
    return _rel_entr(*float_operands("rel_entr", p, q))


def _entropic(p: Array, q: Array) -> tuple[Array, Array]:
    """Where both are positive; and what relative entropies are elsewhere: 0, NaN, infinity where it is not allowed."""
    both = lax.bitwise_and(lax.gt(p, 0.0), lax.gt(q, 0.0))
    zero = lax.bitwise_and(lax.eq(p, 0.0), lax.ge(q, 0.0))
    nan = lax.bitwise_or(lax.ne(p, p), lax.ne(q, q))
    return both, lax.select(nan, math.nan, lax.select(zero, 0.0, math.inf))


def _positive(both: Array, p: Array, q: Array) -> tuple[Array, Array]:
    return lax.select(both, p, 1.0), lax.select(both, q, 1.0)


@with_partials(lambda t, ans, p, q: lax.div(t, p), lambda t, ans, p, q: lax.neg(lax.div(t, q)))
def _log_of_quotient(p: Array, q: Array) -> Array:
    """log(p / q) for positive ones, also where the quotient leaves the range."""
    ratio = lax.div(p, q)
    limits = dtypes.finfo(aval_of("", ratio).dtype)
    inside = lax.bitwise_and(lax.ge(ratio, float(limits.tiny)), lax.lt(ratio, math.inf))
    return lax.sub(lax.log(lax.select(inside, ratio, p)), lax.log(lax.select(inside, 1.0, q)))


def _slope(t: Array, ans: Array, both: Array, inside: Array) -> Array:
    """Of what is constant outside; NaN of a NaN."""
    return lax.mul(t, lax.select(both, inside, lax.select(lax.ne(ans, ans), math.nan, 0.0)))


def _slope_by_p(t: Array, ans: Array, p: Array, q: Array) -> Array:
    both, _ = _entropic(p, q)
    return _slope(t, ans, both, lax.add(_log_of_quotient(*_positive(both, p, q)), 1.0))


def _slope_by_q(t: Array, ans: Array, p: Array, q: Array) -> Array:
    both, _ = _entropic(p, q)
    return _slope(t, ans, both, lax.neg(lax.div(*_positive(both, p, q))))


@with_partials(_slope_by_p, _slope_by_q)
def _rel_entr(p: Array, q: Array) -> Array:
    both, outside = _entropic(p, q)
    p, q = _positive(both, p, q)
    return lax.select(both, lax.mul(p, _log_of_quotient(p, q)), outside)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """p * log(p / q) - p + q."""
    p, q = float_operands("kl_div", p, q)
    both, outside = _entropic(p, q)
    inside = binary.logical_or(both, binary.equal(outside, 0))  # infinities outside take no part in the sum
    p_inside, q_inside = (binary.where_three(inside, x, 0.0) for x in (p, q))
    return binary.add(binary.subtract(rel_entr(p, q), p_inside), q_inside)


@standard
def ndtr(x: ArrayLike) -> Array:
    """The share of a standard normal distribution below ``x``."""
    x = promote_floats("ndtr", x)[0]
    return lax.mul(scalar_like(x, 0.5), lax.erfc(lax.mul(x, scalar_like(x, -math.sqrt(0.5)))))


@standard
def ndtri(p: ArrayLike) -> Array:
    """The inverse of :func:`ndtr`, also of shares next to 0.

    >>> round(ndtri(1e-20).item(), 3)
    -9.262
    """
    p = promote_floats("ndtri", p)[0]
    aval = aval_of("ndtri", p)
    wide = convert(p, dtypes.compute_dtype(aval.dtype), aval.weak_type)
    return convert(_ndtri(wide), aval.dtype, aval.weak_type)


@with_partials(
    lambda t, ans, p: lax.mul(t, lax.mul(lax.exp(lax.mul(lax.mul(ans, ans), 0.5)), math.sqrt(2.0 * math.pi)))
)
def _ndtri(wide: Array) -> Array:
    other = lax.sub(scalar_like(wide, 1.0), wide)
    upper = lax.gt(wide, other)
    share = binary.where_three(upper, other, wide)
    central = binary.greater(share, 0.1)
    centered = lax.sub(lax.mul(binary.where_three(central, wide, 0.5), scalar_like(wide, 2.0)), scalar_like(wide, 1.0))
    middle = lax.mul(lax.erf_inv(centered), scalar_like(wide, math.sqrt(2.0)))
    tail = _lower_tail(
        binary.where_three(binary.logical_and(binary.greater(share, 0), lax.bitwise_not(central)), share, 0.05)
    )
    tail = binary.where_three(
        binary.equal(share, 0), -math.inf, binary.where_three(binary.less(share, 0), math.nan, tail)
    )
    out = binary.where_three(central, middle, binary.where_three(upper, lax.neg(tail), tail))
    return binary.where_three(isnan(wide), wide, out)


_MILLS = (135135.0, 10395.0, 945.0, 105.0, 15.0, 3.0, 1.0, 1.0)


def _lower_tail(share: Array) -> Array:
    """Where the normal distribution has a small share below: a rational start (Abramowitz and Stegun, 26.2.23, off by
    less than 0.00045), and Newton's steps for the logarithm of the share, which is nearly a parabola there."""

    def number(value: float) -> Any:
        return scalar_like(share, value)

    def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
        total: Any = number(coefficients[0])
        for c in coefficients[1:]:
            total = lax.add(lax.mul(total, x), number(c))
        return total

    target = lax.log(share)
    t = lax.sqrt(lax.mul(target, number(-2.0)))
    above, below = polynomial(t, (0.010328, 0.802853, 2.515517)), polynomial(t, (0.001308, 0.189269, 1.432788, 1.0))
    x = lax.sub(lax.div(above, below), t)
    # Where a density may be subnormal it is left out: area / density is a series there (DLMF 7.12.1).
    edge = -37.0 if aval_of("ndtri", share).dtype == dtypes.float64 else -12.5
    for _ in range(2):
        far, square = lax.lt(x, number(edge)), lax.mul(x, x)
        density = lax.mul(lax.exp(lax.mul(square, number(-0.5))), number(1.0 / math.sqrt(2.0 * math.pi)))
        left_out = lax.add(lax.mul(square, number(0.5)), number(0.5 * math.log(2.0 * math.pi)))
        ratio = lax.div(polynomial(lax.div(number(-1.0), square), _MILLS), lax.neg(x))
        area, density = lax.select(far, ratio, ndtr(x)), lax.select(far, number(1.0), density)
        goal = lax.select(far, lax.add(target, left_out), target)
        x = lax.sub(x, lax.div(lax.mul(lax.sub(lax.log(area), goal), area), density))
    return x


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
