"""Special functions, element by element, under the names of ``scipy.special``. Integers become float32.

>>> from volta.scipy.special import expit, logit
>>> expit(logit(0.25)).tolist()
0.25
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.floats import standard
from volta.nn import normalization
from volta.nn.normalization import logsumexp
from volta.numpy import binary
from volta.numpy.numbers import i0
from volta.numpy.promotion import float_operands, promote_floats, scalar_like
from volta.numpy.ufuncs import sinc
from volta.ops import lax

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "kl_div", "log1p",
    "log_expit", "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "psi", "rel_entr", "sinc",
    "softmax", "xlog1py", "xlogy",
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
    return normalization.softmax(x, axis)


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
    x = promote_floats("logit", x)[0]
    return lax.log(lax.div(x, lax.sub(scalar_like(x, 1.0), x)))


def log_expit(x: ArrayLike) -> Array:
    """log(expit(x)), exact where expit is nearly 0 or 1."""
    x = promote_floats("log_expit", x)[0]
    low = lax.min(x, scalar_like(x, 0.0))
    return lax.sub(low, lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


def _times_log(name: str, x: Array, y: Array, logarithm: Any) -> Array:
    x, y = float_operands(name, x, y)
    none = binary.equal(x, 0)
    # the logarithm sees no y that does not count, so that no NaN leaks through a gradient
    safe = binary.where_three(none, 1.0, y)
    return binary.where_three(none, scalar_like(x, 0.0), binary.multiply(x, logarithm(safe)))


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x * log(y), and 0 where ``x`` is 0.

    >>> xlogy(0.0, 0.0).tolist()
    0.0
    """
    return _times_log("xlogy", x, y, lax.log)


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x * log1p(y), and 0 where ``x`` is 0."""
    return _times_log("xlog1py", x, y, lax.log1p)


def entr(x: ArrayLike) -> Array:
    """-x * log(x): 0 at 0, and -inf below."""
    x = promote_floats("entr", x)[0]
    return binary.where_three(binary.less(x, 0), -math.inf, lax.neg(xlogy(x, x)))


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """p * log(p / q): 0 where ``p`` is 0 and q >= 0, inf where one of them is not allowed."""
    p, q = float_operands("rel_entr", p, q)
    both = binary.logical_and(binary.greater(p, 0), binary.greater(q, 0))
    safe_p, safe_q = binary.where_three(both, p, 1.0), binary.where_three(both, q, 1.0)
    value = binary.multiply(safe_p, lax.log(binary.divide(safe_p, safe_q)))
    zero = binary.logical_and(binary.equal(p, 0), binary.greater_equal(q, 0))
    return binary.where_three(both, value, binary.where_three(zero, 0.0, math.inf))


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """p * log(p / q) - p + q."""
    return binary.add(binary.subtract(rel_entr(p, q), p), q)


@standard
def ndtr(x: ArrayLike) -> Array:
    """The share of a standard normal distribution below ``x``."""
    x = promote_floats("ndtr", x)[0]
    return lax.mul(scalar_like(x, 0.5), lax.erfc(lax.mul(x, scalar_like(x, -math.sqrt(0.5)))))


@standard
def ndtri(p: ArrayLike) -> Array:
    """The inverse of :func:`ndtr`."""
    p = promote_floats("ndtri", p)[0]
    centered = lax.sub(lax.mul(p, scalar_like(p, 2.0)), scalar_like(p, 1.0))
    return lax.mul(lax.erf_inv(centered), scalar_like(p, math.sqrt(2.0)))


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
