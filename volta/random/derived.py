"""Distributions that are functions of others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.normalizing import softmax
from volta.random.distributions import exponential, normal, rademacher
from volta.random.keys import check_key, check_shape, split
from volta.random.rejection import gamma, loggamma
from volta.random.samplers import Shape, _float_dtype, dtype_or, parameters, uniform


def beta(key: Any, a: ArrayLike, b: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Beta values of parameters ``a`` and ``b``: x / (x + y) of two gamma values.

    >>> from volta import random
    >>> x = random.beta(random.key(0), 2.0, 3.0, (100,))
    >>> bool(((x > 0) & (x < 1)).all())
    True
    """
    dtype = _float_dtype("beta", dtype)
    shape, (a, b) = parameters("beta", shape, dtype, a, b)
    first, second = split(check_key("beta", key))
    x, y = loggamma(first, a, shape, dtype), loggamma(second, b, shape, dtype)
    top = vnp.maximum(x, y)
    x, y = vnp.exp(x - top), vnp.exp(y - top)
    return x / (x + y)


def dirichlet(key: Any, alpha: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Points of a simplex, along the last axis, of concentrations ``alpha`` (shape (…, n)).

    ``shape`` is the result's without the last axis; it defaults to that of ``alpha``.

    >>> import volta.numpy as vnp
    >>> from volta import random
    >>> random.dirichlet(random.key(0), vnp.ones(3), (5,)).shape
    (5, 3)
    """
    dtype, aval = _float_dtype("dirichlet", dtype), get_aval(alpha)
    if not aval.ndim:
        raise ShapeError(at_user_line("random.dirichlet: alpha must have an axis, one concentration an element"))
    shape = aval.shape[:-1] if shape is None else check_shape("dirichlet", shape)
    drawn = loggamma(check_key("dirichlet", key), alpha, (*shape, aval.shape[-1]), dtype)
    return softmax(drawn) if drawn.shape[-1] else drawn


def chisquare(key: Any, df: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Chi-square values of ``df`` degrees of freedom: twice gamma values of df / 2."""
    dtype = _float_dtype("chisquare", dtype)
    shape, (df,) = parameters("chisquare", shape, dtype, df)
    return 2 * vnp.exp(loggamma(check_key("chisquare", key), df / 2, shape, dtype))


def f(key: Any, dfnum: ArrayLike, dfden: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """F values: the quotient of two chi-square values, each divided by its degrees of freedom."""
    dtype = _float_dtype("f", dtype)
    shape, (dfnum, dfden) = parameters("f", shape, dtype, dfnum, dfden)
    below, above = split(check_key("f", key))
    return (chisquare(above, dfnum, shape, dtype) / dfnum) / (chisquare(below, dfden, shape, dtype) / dfden)


def t(key: Any, df: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Student's t values of ``df`` degrees of freedom: a normal value over the root of a gamma value of its mean."""
    dtype = _float_dtype("t", dtype)
    shape, (df,) = parameters("t", shape, dtype, df)
    above, below = split(check_key("t", key))
    half = df / 2
    return normal(above, shape, dtype) * vnp.sqrt(half / gamma(below, half, shape, dtype))


def lognormal(key: Any, sigma: ArrayLike = 1.0, shape: Any = None, dtype: Any = np.float32) -> Array:
    """exp of normal values of standard deviation ``sigma``."""
    dtype = _float_dtype("lognormal", dtype)
    shape, (sigma,) = parameters("lognormal", shape, dtype, sigma)
    return vnp.exp(normal(check_key("lognormal", key), shape, dtype) * sigma)


def cauchy(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard Cauchy values: tan(pi (u - 1/2))."""
    return _cauchy(check_key("cauchy", key), check_shape("cauchy", shape), _float_dtype("cauchy", dtype))


@partial(jit, static_argnums=(1, 2))
def _cauchy(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    u = uniform(key, shape, dtype, minval=dtypes.finfo(dtype).eps, maxval=1)
    return vnp.tan(np.asarray(np.pi, dtype) * (u - np.asarray(0.5, dtype)))


def pareto(key: Any, b: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Pareto values of parameter ``b``, at least 1: exp(e / b) of exponential values."""
    dtype = _float_dtype("pareto", dtype)
    shape, (b,) = parameters("pareto", shape, dtype, b)
    return vnp.exp(exponential(check_key("pareto", key), shape, dtype) / b)


def rayleigh(key: Any, scale: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Rayleigh values: scale * sqrt(-2 log u)."""
    dtype = _float_dtype("rayleigh", dtype)
    shape, (scale,) = parameters("rayleigh", shape, dtype, scale)
    return scale * vnp.sqrt(vnp.log(uniform(check_key("rayleigh", key), shape, dtype)) * -2)


def weibull_min(
    key: Any, scale: ArrayLike, concentration: ArrayLike, shape: Any = (), dtype: Any = np.float32
) -> Array:
    """Weibull values: scale * (-log(1 - u)) ** (1 / concentration)."""
    dtype = _float_dtype("weibull_min", dtype)
    shape, (scale, concentration) = parameters("weibull_min", shape, dtype, scale, concentration)
    return (-vnp.log1p(-uniform(check_key("weibull_min", key), shape, dtype))) ** (1 / concentration) * scale


def maxwell(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Maxwell values: lengths of three normal values."""
    shape, dtype = check_shape("maxwell", shape), _float_dtype("maxwell", dtype)
    return vnp.linalg.norm(normal(check_key("maxwell", key), (*shape, 3), dtype), axis=-1)


def double_sided_maxwell(key: Any, loc: ArrayLike, scale: ArrayLike, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Maxwell values times ``scale`` of either sign, around ``loc``; ``shape`` comes before that of these two."""
    dtype = _float_dtype("double_sided_maxwell", dtype)
    own, (loc, scale) = parameters("double_sided_maxwell", None, dtype, loc, scale)
    shape = (*check_shape("double_sided_maxwell", shape), *own)
    length, sign = split(check_key("double_sided_maxwell", key))
    return maxwell(length, shape, dtype) * rademacher(sign, shape, dtype) * scale + loc


def wald(key: Any, mean: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Inverse Gaussian values of a mean and scale 1 (Michael, Schucany, Haas; doi:10.1080/00031305.1976.10479147)."""
    dtype = _float_dtype("wald", dtype)
    shape, (mean,) = parameters("wald", shape, dtype, mean)
    first, second = split(check_key("wald", key))
    a = mean / 2 * normal(first, shape, dtype) ** 2
    u = uniform(second, shape, dtype)
    # The smaller root, mean (1 + a - sqrt(a (a + 2))), without its difference: of large means nothing would be left.
    x = mean / (1 + a + vnp.sqrt(a) * vnp.sqrt(a + 2))
    return vnp.where(u <= mean / (mean + x), x, mean * (mean / x))


def geometric(key: Any, p: ArrayLike, shape: Any = None, dtype: Any = np.int32) -> Array:
    """How many trials, each with probability ``p`` in (0, 1), until one succeeds: at least 1."""
    dtype = dtype_or(np.int32, dtype)
    if not dtypes.is_integer(dtype):
        raise DTypeError(at_user_line(f"random.geometric: the dtype must be an integer dtype, got {dtype}"))
    shape, (p,) = parameters("geometric", shape, np.dtype(np.float32), p)
    u = uniform(check_key("geometric", key), shape)
    return (vnp.floor(vnp.log(u) / vnp.log1p(-p)) + 1).astype(dtype)


def triangular(
    key: Any, left: ArrayLike, mode: ArrayLike, right: ArrayLike, shape: Any = None, dtype: Any = np.float32
) -> Array:
    """Values in [left, right] whose density rises to ``mode`` and falls from there."""
    dtype = _float_dtype("triangular", dtype)
    shape, (left, mode, right) = parameters("triangular", shape, dtype, left, mode, right)
    u = uniform(check_key("triangular", key), shape, dtype)
    low = left + vnp.sqrt(u * (right - left) * (mode - left))
    high = right - vnp.sqrt((1 - u) * (right - left) * (right - mode))
    return vnp.where(u < (mode - left) / (right - left), low, high)


def _check_power(name: str, p: Any) -> None:
    if isinstance(p, (int, float)) and p == 0:
        raise ValueError(at_user_line(f"random.{name}: there is no distribution of p = 0; p is positive"))


def generalized_normal(key: Any, p: float, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Values whose density is proportional to exp(-|x| ** p)."""
    shape, dtype = check_shape("generalized_normal", shape), _float_dtype("generalized_normal", dtype)
    _check_power("generalized_normal", p)
    first, second = split(check_key("generalized_normal", key))
    return rademacher(second, shape, dtype) * gamma(first, 1 / p, shape, dtype) ** (1 / p)


def ball(key: Any, d: int, p: float = 2, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Points of the unit ball of the p-norm in ``d`` dimensions, which are the result's last axis."""
    shape, dtype = check_shape("ball", shape), _float_dtype("ball", dtype)
    _check_power("ball", p)
    first, second = split(check_key("ball", key))
    x = generalized_normal(first, p, (*shape, d), dtype)
    e = exponential(second, shape, dtype)
    return x / (((abs(x) ** p).sum(-1) + e) ** (1 / p))[..., None]
