"""Activation functions. Each takes an array of any shape and gives one of that shape; integers become float32."""

from __future__ import annotations

import math
from typing import Any

import volta.numpy as vnp
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.floats import standard
from volta.core.source import at_user_line
from volta.numpy.promotion import as_value, aval_of, canonical_axis, promote_floats, scalar_like, zero_like
from volta.ops import lax
from volta.trace.composite import with_partials


def relu(x: ArrayLike) -> Array:
    """max(x, 0). The derivative at 0 is 0.

    >>> import volta.numpy as vnp
    >>> relu(vnp.array([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    aval_of("relu", x)
    x = as_value(x)
    zero = zero_like(x)
    # a select, and not max: the derivative of max at a tie would be 1/2. NaN is not <= 0, so it passes.
    return lax.select_n(lax.le(x, zero), x, zero)


def identity(x: ArrayLike) -> Array:
    """``x`` itself, as an array.

    >>> identity(2)
    Array(2, dtype=int32, weak_type=True)
    """
    return vnp.asarray(x)


def sparse_plus(x: ArrayLike) -> Array:
    """0 below -1, ``x`` above 1, and the parabola (x + 1)**2 / 4 between.

    >>> import volta.numpy as vnp
    >>> sparse_plus(vnp.array([-2.0, 0.0, 3.0])).tolist()
    [0.0, 0.25, 3.0]
    """
    x = promote_floats("sparse_plus", x)[0]
    return vnp.where(x <= -1, 0.0, vnp.where(x >= 1, x, (x + 1) ** 2 / 4))


def sparse_sigmoid(x: ArrayLike) -> Array:
    """0 below -1, 1 above 1, and the line (x + 1) / 2 between: the slope of :func:`sparse_plus`.

    >>> sparse_sigmoid(0.0).tolist()
    0.5
    """
    return 0.5 * vnp.clip(vnp.asarray(x) + 1.0, 0.0, 2.0)


def log1mexp(x: ArrayLike) -> Array:
    """log(1 - exp(-x)) for positive ``x``, exact for small and large ones.

    >>> round(float(log1mexp(1.0)), 4)
    -0.4587
    """
    return _log1mexp(promote_floats("log1mexp", x)[0])


@with_partials(lambda t, ans, x: lax.neg(lax.mul(t, lax.mul(ans, lax.add(ans, 1.0)))))
def _bose(x: Array) -> Array:
    """1 / (exp(x) - 1): the slope of :func:`log1mexp`."""
    return lax.div(lax.exp(lax.neg(x)), lax.neg(lax.expm1(lax.neg(x))))


@with_partials(lambda t, ans, x: lax.mul(t, _bose(x)))
def _log1mexp(x: Array) -> Array:
    small = lax.lt(x, 0.6931472)
    low, high = lax.neg(lax.expm1(lax.neg(x))), lax.neg(lax.exp(lax.neg(x)))
    return lax.select(small, lax.log(low), lax.log1p(high))


def relu6(x: ArrayLike) -> Array:
    """min(max(x, 0), 6)."""
    x = promote_floats("relu6", x)[0]
    return lax.clamp(zero_like(x), x, scalar_like(x, 6))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return lax.logistic(promote_floats("sigmoid", x)[0])


def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)), without underflow."""
    x = promote_floats("log_sigmoid", x)[0]
    return lax.neg(softplus(lax.neg(x)))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)), without overflow."""
    return _softplus(promote_floats("softplus", x)[0])


@with_partials(lambda t, ans, x: lax.mul(t, lax.logistic(x)))
def _softplus(x: Array) -> Array:
    """logaddexp(x, 0), in which there are no two infinities to tell apart."""
    return lax.add(lax.max(x, 0.0), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


def silu(x: ArrayLike) -> Array:
    """x * sigmoid(x), also called swish."""
    x = promote_floats("silu", x)[0]
    return lax.mul(x, lax.logistic(x))


swish = silu


def mish(x: ArrayLike) -> Array:
    """x * tanh(softplus(x))."""
    x = promote_floats("mish", x)[0]
    return lax.mul(x, lax.tanh(softplus(x)))


def tanh(x: ArrayLike) -> Array:
    """Hyperbolic tangent."""
    return lax.tanh(promote_floats("tanh", x)[0])


@standard
def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """x times the normal distribution function at x; by default in its tanh form, as in ``jax.nn``."""
    x = promote_floats("gelu", x)[0]
    half = scalar_like(x, 0.5)
    if not approximate:
        # erfc keeps its relative precision where 1 + erf would cancel
        return lax.mul(lax.mul(x, half), lax.erfc(lax.mul(lax.neg(x), scalar_like(x, math.sqrt(0.5)))))
    cubic = lax.add(x, lax.mul(scalar_like(x, 0.044715), lax.integer_pow(x, 3)))
    tanh = lax.tanh(lax.mul(scalar_like(x, math.sqrt(2 / math.pi)), cubic))
    return lax.mul(x, lax.fma(tanh, half, half))  # of (1 + tanh) / 2 every bit, the half being exact


def _exponential_below_zero(x: Array, slope: Any, inner: Any = None) -> Array:
    """x above 0, slope * expm1(x / inner) below, with a finite gradient everywhere."""
    positive = lax.gt(x, zero_like(x))
    # where the exponential is not used its argument is 0, so that it cannot overflow into the gradient
    safe = lax.select_n(positive, x, zero_like(x))
    curve = lax.expm1(safe if inner is None else vnp.divide(safe, inner))
    return vnp.where(positive, x, vnp.multiply(slope, curve))


def elu(x: ArrayLike, alpha: Any = 1.0) -> Array:
    """x above 0, alpha * (exp(x) - 1) below."""
    return _exponential_below_zero(promote_floats("elu", x)[0], alpha)


def celu(x: ArrayLike, alpha: Any = 1.0) -> Array:
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    return _exponential_below_zero(promote_floats("celu", x)[0], alpha, alpha)


def selu(x: ArrayLike) -> Array:
    """The scaled elu that keeps means and variances of deep networks."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return vnp.multiply(scale, elu(x, alpha))


def leaky_relu(x: ArrayLike, negative_slope: Any = 0.01) -> Array:
    """x above 0, negative_slope * x below."""
    x = promote_floats("leaky_relu", x)[0]
    return vnp.where(lax.ge(x, zero_like(x)), x, vnp.multiply(negative_slope, x))


def hard_tanh(x: ArrayLike) -> Array:
    """x limited to [-1, 1]."""
    # no clamp: the derivative at both ends is that of the middle
    x = as_value(x)
    low, high = scalar_like(x, -1), scalar_like(x, 1)
    return lax.select(lax.lt(x, low), low, lax.select(lax.gt(x, high), high, x))


def hard_sigmoid(x: ArrayLike) -> Array:
    """relu6(x + 3) / 6."""
    x = promote_floats("hard_sigmoid", x)[0]
    return lax.div(relu6(lax.add(x, scalar_like(x, 3.0))), scalar_like(x, 6.0))


def hard_silu(x: ArrayLike) -> Array:
    """x * hard_sigmoid(x), also called hard swish."""
    x = promote_floats("hard_silu", x)[0]
    return lax.mul(x, hard_sigmoid(x))


hard_swish = hard_silu


def soft_sign(x: ArrayLike) -> Array:
    """x / (abs(x) + 1). The second derivative at 0, where it jumps, is that of the right side."""
    x = promote_floats("soft_sign", x)[0]
    size = lax.select(lax.lt(x, zero_like(x)), lax.neg(x), x)
    return lax.div(x, lax.add(size, scalar_like(x, 1.0)))


def squareplus(x: ArrayLike, b: Any = 4) -> Array:
    """(x + sqrt(x*x + b)) / 2."""
    x = promote_floats("squareplus", x)[0]
    return vnp.multiply(vnp.add(x, vnp.sqrt(vnp.add(lax.mul(x, x), b))), 0.5)


def swiglu(gate: ArrayLike, up: ArrayLike) -> Array:
    """silu(gate) times ``up``: the gated layer of Llama's kind of models.

    >>> swiglu(np.float32([0.0, 100.0]), np.float32([3.0, 3.0])).tolist()
    [0.0, 300.0]
    """
    return vnp.multiply(silu(gate), up)


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """The first half along ``axis`` times the sigmoid of the second half."""
    aval = aval_of("glu", x)
    n = aval.shape[canonical_axis("glu", axis, aval.ndim)]
    if n % 2:
        raise ShapeError(at_user_line(f"glu: axis {axis} of shape {aval.shape} must have an even size"))
    first, second = vnp.split(x, 2, axis)
    return vnp.multiply(first, sigmoid(second))
