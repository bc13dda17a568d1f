"""Named distributions, from uniform samples and Volta's own functions."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.promotion import aval_of
from volta.random.keys import _split, check_key, check_shape
from volta.random.samplers import (
    Shape,
    _fits,
    _float_dtype,
    dtype_or,
    parameters,
    permutation,
    randint,
    range_of,
    scaled,
    unit,
)


def _between(key: Any, shape: Shape, dtype: np.dtype, low: float, high: float) -> Any:
    """A uniform sample in [low, high), with bounds known now."""
    start, end = np.asarray(low, dtype), np.asarray(high, dtype)
    return vnp.maximum(start, scaled(unit(key, shape, dtype), start, end))


def normal(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard normal values: sqrt(2) * erf_inv(u) for u uniform in (-1, 1). Of a complex dtype both parts are, over
    sqrt(2), so that the squares of sizes have mean 1.

    >>> from volta import random
    >>> random.normal(random.key(0), (2, 3)).shape
    (2, 3)
    """
    dtype, shape = dtype_or(np.float32, dtype), check_shape("normal", shape)
    if dtypes.is_complex(dtype):
        return _complex_normal(check_key("normal", key), shape, dtype)
    return _normal(check_key("normal", key), shape, _float_dtype("normal", dtype))


@partial(jit, static_argnums=(1, 2))
def _complex_normal(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    re, im = (_normal(k, shape, dtypes.part_dtype(dtype)) for k in _split(key, (2,)))
    return lax.complex(re, im) / np.asarray(math.sqrt(2), dtype)


@partial(jit, static_argnums=(1, 2))
def _normal(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))
    return np.asarray(math.sqrt(2), dtype) * lax.erf_inv(_between(key, shape, dtype, low, 1.0))


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Standard normal values under the condition lower < x < upper.

    ``lower`` and ``upper`` are numbers or arrays; ``shape`` defaults to what they broadcast to.

    >>> from volta import random
    >>> x = random.truncated_normal(random.key(0), -2.0, 2.0, (100,))
    >>> bool(x.max() < 2)
    True
    """
    dtype = _float_dtype("truncated_normal", dtype)
    shape, (lower, upper) = parameters("truncated_normal", shape, dtype, lower, upper)
    return _truncated_normal(check_key("truncated_normal", key), lower, upper, shape, dtype)


@partial(jit, static_argnums=(3, 4))
def _truncated_normal(key: Any, lower: Any, upper: Any, shape: Shape, dtype: np.dtype) -> Any:
    root = np.asarray(math.sqrt(2), dtype)
    low, high = lax.erf(lower / root), lax.erf(upper / root)
    u = vnp.maximum(low, scaled(unit(key, shape, dtype), low, high))
    x = root * lax.erf_inv(u)
    # Rounding must not carry a value out of the open interval.
    infinity = np.asarray(math.inf, dtype)
    return vnp.clip(x, vnp.nextafter(lower, infinity), vnp.nextafter(upper, -infinity))


def _fine(name: str, mode: Any) -> bool:
    """Whether a sampler is to draw twice the bits, for what has a small probability."""
    if mode in ("low", None):
        return False
    if mode != "high":
        raise ValueError(at_user_line(f"random.{name}: mode is 'low' or 'high', not {mode!r}"))
    return True


def _pair(key: Any, shape: Shape, dtype: np.dtype) -> tuple[Any, Any]:
    """Two uniform samples: the coarse part of a finer one, and what comes after it."""
    both = unit(key, (2, *shape), dtype)
    return both[0], both[1] * np.asarray(2.0 ** -dtypes.finfo(dtype).nmant, dtype)


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Array:
    """True with probability ``p`` (a float or an array of floats), bool; ``shape`` defaults to that of ``p``.

    In float32 a probability is a multiple of 2**-23; with ``mode="high"``, which draws twice the bits, of 2**-46.

    >>> from volta import random
    >>> random.bernoulli(random.key(0), 0.5, (3,))
    Array([False, False,  True], dtype=bool)
    """
    aval = aval_of("random.bernoulli", p)
    if not dtypes.is_float(aval.dtype):
        raise DTypeError(at_user_line(f"random.bernoulli: the probability must be a float, got {aval}"))
    shape = aval.shape if shape is None else check_shape("bernoulli", shape)
    _fits("bernoulli", shape, p)
    key, fine = check_key("bernoulli", key), _fine("bernoulli", mode)
    return _bernoulli(key, vnp.asarray(p, aval.dtype), shape, fine)


@partial(jit, static_argnums=(2, 3))
def _bernoulli(key: Any, p: Any, shape: Shape, fine: bool) -> Any:
    if fine:
        coarse, rest = _pair(key, shape, p.dtype)
        return rest < p - coarse
    return unit(key, shape, p.dtype) < p


def rademacher(key: Any, shape: Any = (), dtype: Any = np.int32) -> Array:
    """-1 or 1 with equal probability."""
    dtype = dtype_or(np.int32, dtype)
    if dtypes.is_unsigned(dtype):
        raise DTypeError(at_user_line(f"random.rademacher: there is no -1 in {dtype}; use a signed dtype or a float's"))
    return vnp.where(bernoulli(key, 0.5, check_shape("rademacher", shape)), np.asarray(1, dtype), np.asarray(-1, dtype))


def exponential(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Exponential values of rate 1: -log1p(-u)."""
    return _exponential(
        check_key("exponential", key), check_shape("exponential", shape), _float_dtype("exponential", dtype)
    )


@partial(jit, static_argnums=(1, 2))
def _exponential(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    return -vnp.log1p(-unit(key, shape, dtype))


def gumbel(key: Any, shape: Any = (), dtype: Any = np.float32, mode: str | None = None) -> Array:
    """Standard Gumbel values: -log(-log(u)). The largest possible in float32 is about 16.

    With ``mode="high"`` it is about 32, as twice the bits are drawn; the default is ``"low"``.
    """
    key, dtype = check_key("gumbel", key), _float_dtype("gumbel", dtype)
    return _gumbel(key, check_shape("gumbel", shape), dtype, _fine("gumbel", mode))


@partial(jit, static_argnums=(1, 2, 3))
def _gumbel(key: Any, shape: Shape, dtype: np.dtype, fine: bool) -> Any:
    if fine:
        coarse, rest = _pair(key, shape, dtype)
        smallest = np.asarray(dtypes.finfo(dtype).tiny, dtype)
        u = vnp.where(coarse >= 0.5, coarse, coarse + rest + smallest)  # from 0.5 on the sum could round up to 1
        return -vnp.log(-vnp.log1p(-u))
    return -vnp.log(-vnp.log(_between(key, shape, dtype, dtypes.finfo(dtype).tiny, 1.0)))


def laplace(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard Laplace values: sign(u) * log1p(-|u|) for u uniform in (-1, 1)."""
    return _laplace(check_key("laplace", key), check_shape("laplace", shape), _float_dtype("laplace", dtype))


@partial(jit, static_argnums=(1, 2))
def _laplace(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    u = _between(key, shape, dtype, -1.0 + float(dtypes.finfo(dtype).epsneg), 1.0)
    return vnp.sign(u) * vnp.log1p(-abs(u))


def logistic(key: Any, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard logistic values: log(u) - log1p(-u)."""
    return _logistic(check_key("logistic", key), check_shape("logistic", shape), _float_dtype("logistic", dtype))


@partial(jit, static_argnums=(1, 2))
def _logistic(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    u = _between(key, shape, dtype, dtypes.finfo(dtype).tiny, 1.0)
    return vnp.log(u) - vnp.log1p(-u)


def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True, mode: str | None = None
) -> Array:
    """Indices drawn with probability softmax(logits) along ``axis``, int32, by the Gumbel-max trick.

    Args:
        key: a key.
        logits: unnormalised log probabilities.
        axis: the axis of the categories.
        shape: the result's shape; must end with the shape of ``logits`` without ``axis`` (the default), or with what
            that broadcasts to.
        replace: whether the draws of one row of ``logits`` may be of one category. If not, they are the first of all
            categories in the order of logits and noise, so ``shape`` ends with the rows themselves.
        mode: as that of `gumbel`: with ``"high"`` probabilities below 1e-7 are right in float32.

    Raises:
        ShapeError: ``shape`` does not fit, or there is no such axis.
        ValueError: more is to be drawn without replacement than there are categories.

    >>> import volta.numpy as vnp
    >>> from volta import random
    >>> random.categorical(random.key(0), vnp.array([0.0, 100.0, 0.0]), shape=(4,))
    Array([1, 1, 1, 1], dtype=int32)
    """
    key, logits, fine = check_key("categorical", key), vnp.asarray(logits), _fine("categorical", mode)
    dtype = dtypes.to_float(logits.dtype)
    if not logits.ndim or not -logits.ndim <= axis < logits.ndim:
        raise ShapeError(at_user_line(f"random.categorical: axis {axis} is out of range for shape {logits.shape}"))
    axis %= logits.ndim
    batch = logits.shape[:axis] + logits.shape[axis + 1 :]
    shape = batch if shape is None else check_shape("categorical", shape)
    own = shape[len(shape) - len(batch) :]
    if len(shape) < len(batch) or not (_broadcasts(batch, own) if replace else batch == own):
        what = "or what it broadcasts to" if replace else "as it is drawn without replacement"
        text = f"random.categorical: shape {shape} must end with {batch}, that of logits without axis {axis}, {what}"
        raise ShapeError(at_user_line(text))
    prefix = shape[: len(shape) - len(batch)]
    if replace:
        return _categorical(key, logits.astype(dtype), prefix, own, axis, fine)
    if math.prod(prefix) > logits.shape[axis]:
        text = f"cannot draw {math.prod(prefix)} of {logits.shape[axis]} categories without replacement"
        raise ValueError(at_user_line(f"random.categorical: {text}"))
    return _categories(key, logits.astype(dtype), prefix, axis, fine)


def _broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) == len(to) and all(n in (1, m) for n, m in zip(shape, to, strict=True))


@partial(jit, static_argnums=(2, 3, 4, 5))
def _categorical(key: Any, logits: Any, prefix: Shape, own: Shape, axis: int, fine: bool) -> Any:
    noise = _gumbel(key, (*prefix, *own[:axis], logits.shape[axis], *own[axis:]), logits.dtype, fine)
    return vnp.argmax(noise + logits, axis=len(prefix) + axis)


@partial(jit, static_argnums=(2, 3, 4))
def _categories(key: Any, logits: Any, prefix: Shape, axis: int, fine: bool) -> Any:
    """The first categories of each row in the order of logits and noise (Gumbel top-k)."""
    noisy = vnp.moveaxis(logits + _gumbel(key, logits.shape, logits.dtype, fine), axis, -1)
    _, found = lax.top_k(noisy, math.prod(prefix))
    return vnp.moveaxis(found, -1, 0).reshape(prefix + found.shape[:-1])


def choice(
    key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0, mode: str | None = None
) -> Array:
    """Elements of ``range(a)``, or slices of an array along ``axis``, drawn at random.

    Args:
        key: a key.
        a: an int or an array.
        shape: how many to draw, as a shape that takes the place of ``axis``.
        replace: whether one element can be drawn twice.
        p: probabilities, one for each element; equal when None.
        axis: the axis of ``a`` to draw along.
        mode: as that of `gumbel`, of which draws without replacement by probabilities are made.

    Raises:
        ValueError: when more elements than there are should be drawn without replacement.

    >>> from volta import random
    >>> random.choice(random.key(0), 10, (4,))
    Array([9, 0, 2, 3], dtype=int32)
    """
    key, shape = check_key("choice", key), check_shape("choice", shape)
    values = vnp.asarray(a) if range_of(a) is None else None
    if values is not None and not -values.ndim <= axis < values.ndim:
        raise ShapeError(at_user_line(f"random.choice: axis {axis} is out of range for shape {values.shape}"))
    axis = 0 if values is None else axis % values.ndim
    n, draws = operator.index(a) if values is None else values.shape[axis], math.prod(shape)
    if draws and n <= 0:
        raise ValueError(at_user_line("random.choice: there is nothing to draw from"))
    if not replace and draws > n:
        raise ValueError(at_user_line(f"random.choice: cannot draw {draws} of {n} elements without replacement"))
    if p is not None and get_aval(p).shape != (n,):
        raise ShapeError(at_user_line(f"random.choice: p must have shape ({n},), got {get_aval(p).shape}"))

    if p is None and not replace:
        chosen = permutation(key, n if values is None else values, axis)
        taken = (slice(None),) * axis + (slice(draws),)
        full = (draws,) if values is None else values.shape[:axis] + (draws,) + values.shape[axis + 1 :]
        return _spread(chosen[taken], full, axis, shape)
    if p is None:
        index = randint(key, shape, 0, n)
    else:
        index = _weighted(key, vnp.asarray(p), shape, replace, _fine("choice", mode))
    return index if values is None else vnp.take(values, index, axis=axis)


def _spread(x: Any, full: Shape, axis: int, shape: Shape) -> Any:
    return x.reshape(full[:axis] + shape + full[axis + 1 :])


@partial(jit, static_argnums=(2, 3, 4))
def _weighted(key: Any, p: Any, shape: Shape, replace: bool, fine: bool) -> Any:
    p = p.astype(dtypes.to_float(p.dtype))
    if not replace:  # Gumbel top-k: the largest of log p + noise
        noise = _gumbel(key, p.shape, p.dtype, fine) + vnp.log(p)
        return vnp.argsort(-noise)[: math.prod(shape)].reshape(shape).astype(np.int32)
    edges = vnp.cumsum(p)
    target = edges[-1] * (1 - unit(key, shape, p.dtype))
    return _first_at_least(edges, target)


def _first_at_least(edges: Any, target: Any) -> Any:
    """For each target the first index whose edge is not below it: a branch-free binary search, one gather a bit."""
    n = edges.shape[0]
    low = vnp.zeros(target.shape, np.int32)  # invariant: every edge before `low` is below the target
    step = 1 << max(0, n.bit_length() - 1)
    while step:
        probe = low + step
        below = vnp.take(edges, vnp.minimum(probe, n) - 1, axis=0) < target
        low = vnp.where(vnp.logical_and(probe <= n, below), probe, low)
        step >>= 1
    return vnp.minimum(low, n - 1)
