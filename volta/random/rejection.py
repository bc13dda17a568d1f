"""Distributions by rejection: proposals are drawn until each element has taken one, with keys as JAX splits them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.api.custom_derivatives import custom_jvp
from volta.api.jit import jit
from volta.api.vmap import vmap
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, NotDifferentiableError, ShapeError
from volta.core.source import at_user_line
from volta.random.distributions import exponential, normal
from volta.random.keys import check_key, check_shape, split
from volta.random.samplers import Shape, _float_dtype, dtype_or, parameters, uniform


def _until(accepted: Callable[..., Any], propose: Callable[..., Any], start: tuple[Any, ...]) -> tuple[Any, ...]:
    """``propose`` again, from ``start`` on, until ``accepted``."""
    found: tuple[Any, ...] = lax.while_loop(
        lambda state: vnp.logical_not(accepted(*state)), lambda s: propose(*s), start
    )
    return found


# -- gamma -------------------------------------------------------------------------------------------------------------


def gamma(key: Any, a: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Gamma values of shape parameter ``a`` and scale 1, by Marsaglia and Tsang's method (doi:10.1145/358407.358414).

    ``a`` is a positive number or an array; ``shape`` defaults to its shape. For small ``a`` values may underflow to 0:
    :func:`loggamma` gives their logarithms. A negative or NaN ``a`` gives NaN. There is no derivative by ``a`` yet.

    >>> from volta import random
    >>> bool((random.gamma(random.key(0), 2.5, (100,)) > 0).all())
    True
    """
    return _gamma("gamma", key, a, shape, dtype, False)


def loggamma(key: Any, a: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """Logarithms of gamma values, exact also where these would underflow; see :func:`gamma`.

    >>> from volta import random
    >>> bool(random.loggamma(random.key(0), 1e-6) < -100)
    True
    """
    return _gamma("loggamma", key, a, shape, dtype, True)


def _gamma(name: str, key: Any, a: Any, shape: Any, dtype: Any, log: bool) -> Any:
    dtype = _float_dtype(name, dtype)
    shape, (a,) = parameters(name, shape, dtype, a)
    return _gamma_of(check_key(name, key), a, name, shape, log)


@partial(custom_jvp, nondiff_argnums=(0, 2, 3, 4))
def _gamma_of(key: Any, a: Any, name: str, shape: Shape, log: bool) -> Any:
    return _gammas(key, a, shape, log)


@_gamma_of.defjvp
def _no_derivative(key: Any, name: str, shape: Shape, log: bool, primals: Any, tangents: Any) -> Any:
    raise NotDifferentiableError(
        at_user_line(
            f"random.{name} has no derivative by its shape parameter: draw outside of the function that is "
            "differentiated, or apply volta.lax.stop_gradient to the parameter"
        )
    )


@partial(jit, static_argnums=(2, 3))
def _gammas(key: Any, a: Any, shape: Shape, log: bool) -> Any:
    a = vnp.broadcast_to(a, shape)
    return vmap(partial(_one_gamma, log=log))(split(key, a.size), a.ravel()).reshape(shape)


def _one_gamma(key: Any, a: Any, log: bool) -> Any:
    dtype, asked = a.dtype, a
    a = vnp.where(a >= 0, a, 1)  # with others the loops would not end
    large = a >= 1
    d = vnp.where(large, a, a + 1) - np.asarray(1 / 3, dtype)  # below 1: gamma(a) ~ gamma(a + 1) * u ** (1 / a)
    c = np.asarray(1 / 3, dtype) / vnp.sqrt(d)

    def positive(key: Any, x: Any, v: Any) -> tuple[Any, Any, Any]:
        key, own = split(key)
        x = normal(own, (), dtype)
        return key, x, 1 + x * c

    def propose(key: Any, squared: Any, cubed: Any, u: Any) -> tuple[Any, Any, Any, Any]:
        key, x_key, u_key = split(key, 3)
        _, x, v = _until(lambda key, x, v: v > 0, positive, (x_key, zero, -one))
        return key, x * x, v * v * v, uniform(u_key, (), dtype)

    def accepted(key: Any, squared: Any, cubed: Any, u: Any) -> Any:
        surely = u < 1 - np.asarray(0.0331, dtype) * (squared * squared)
        return vnp.logical_or(surely, vnp.log(u) < squared * 0.5 + d * ((1 - cubed) + vnp.log(cubed)))

    zero, one = vnp.zeros((), dtype), vnp.ones((), dtype)
    key, own = split(key)
    _, _, cubed, _ = _until(accepted, propose, (key, zero, one, 2 * one))
    if log:
        drawn = -exponential(own, (), dtype)
        found = vnp.log(d) + vnp.log(cubed) + vnp.where(vnp.logical_or(large, drawn == 0), 0, drawn * (1 / a))
    else:
        found = d * cubed * vnp.where(large, 1, (1 - uniform(own, (), dtype)) ** (1 / a))
    return vnp.where(asked >= 0, found, np.nan)


# -- counts ------------------------------------------------------------------------------------------------------------


def poisson(key: Any, lam: ArrayLike, shape: Any = None, dtype: Any = np.int32) -> Array:
    """Poisson counts of mean ``lam``: products of uniform numbers below 10, transformed rejection above.

    (W. Hörmann, The transformed rejection method for generating Poisson random variables, 1993.) ``lam`` is a number
    or an array, not negative; ``shape`` defaults to its shape.

    >>> from volta import random
    >>> random.poisson(random.key(0), 3.0, (4,)).dtype
    dtype('int32')
    """
    dtype = dtype_or(np.int32, dtype)
    if not dtypes.is_integer(dtype):
        raise DTypeError(at_user_line(f"random.poisson: the dtype must be an integer dtype, got {dtype}"))
    shape, (lam,) = parameters("poisson", shape, np.dtype(np.float32), lam)
    return _poisson(check_key("poisson", key), lam, shape, dtype)


@partial(jit, static_argnums=(2, 3))
def _poisson(key: Any, lam: Any, shape: Shape, dtype: np.dtype) -> Any:
    lam = vnp.broadcast_to(lam, shape)
    few = vnp.logical_or(vnp.isnan(lam), lam < 10)
    small = _few_events(key, vnp.where(few, lam, 0), dtype)
    large = _many_events(key, vnp.where(few, np.float32(1e5), lam)).astype(dtype)
    return vnp.where(lam == 0, np.asarray(0, dtype), vnp.where(few, small, large))


def _few_events(key: Any, lam: Any, dtype: np.dtype) -> Any:
    """How many uniform numbers have a product of at least exp(-lam), by logarithms."""

    def draw(key: Any, count: Any, total: Any) -> tuple[Any, Any, Any]:
        key, own = split(key)
        count = vnp.where(total > -lam, count + 1, count)
        return key, count, total + vnp.log(uniform(own, lam.shape))

    start = (key, vnp.zeros(lam.shape, dtype), vnp.zeros(lam.shape, np.float32))
    _, count, _ = _until(lambda key, count, total: vnp.all(vnp.logical_not(total > -lam)), draw, start)
    return count - 1


def _many_events(key: Any, lam: Any) -> Any:
    log_lam = vnp.log(lam)
    b = 0.931 + 2.53 * vnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    edge = 0.9277 - 3.6224 / (b - 2)

    def propose(key: Any, found: Any, accepted: Any) -> tuple[Any, Any, Any]:
        key, first, second = split(key, 3)
        u = uniform(first, lam.shape) - 0.5
        v = uniform(second, lam.shape)
        near = 0.5 - abs(u)
        k = vnp.floor((2 * a / near + b) * u + lam + 0.43)
        fits = vnp.log(v * inverse / (a / (near * near) + b)) <= -lam + k * log_lam - lax.lgamma(k + 1)
        never = vnp.logical_or(k < 0, vnp.logical_and(near < 0.013, v > near))
        surely = vnp.logical_and(near >= 0.07, v <= edge)
        now = vnp.logical_or(surely, vnp.logical_and(vnp.logical_not(never), fits))
        return key, vnp.where(now, k, found), vnp.logical_or(accepted, now)

    start = (key, vnp.full(lam.shape, -1, np.float32), vnp.zeros(lam.shape, bool))
    return _until(lambda key, found, accepted: vnp.all(accepted), propose, start)[1]


def binomial(key: Any, n: ArrayLike, p: ArrayLike, shape: Any = None, dtype: Any = np.float32) -> Array:
    """How many of ``n`` trials succeed, each with probability ``p``; a float dtype, as in JAX.

    Sums of geometric numbers where n * min(p, 1 - p) is at most 10, transformed rejection above (W. Hörmann, The
    generation of binomial random variates, 1993). ``n`` and ``p`` are numbers or arrays; ``shape`` defaults to what
    they broadcast to. A negative or NaN ``n``, and ``p`` outside of [0, 1], give NaN.

    >>> from volta import random
    >>> bool((random.binomial(random.key(0), 10, 0.5, (100,)) <= 10).all())
    True
    """
    dtype = _float_dtype("binomial", dtype)
    shape, (n, p) = parameters("binomial", shape, dtype, n, p)
    return _binomial(check_key("binomial", key), n, p, shape)


@partial(jit, static_argnums=(3,))
def _binomial(key: Any, n: Any, p: Any, shape: Shape) -> Any:
    n, p = vnp.broadcast_to(n, shape), vnp.broadcast_to(p, shape)
    rare = p < 0.5
    q = vnp.where(rare, p, 1 - p)
    bad = vnp.logical_not(vnp.logical_and(q >= 0, n >= 0))  # NaNs too
    q = vnp.where(vnp.logical_not(q >= 0), np.asarray(0.01, p.dtype), abs(q))  # by -0 numbers would count backwards
    few = vnp.logical_or(vnp.logical_not(n >= 0), n * q <= 10)
    endless = vnp.isinf(n)
    n = vnp.floor(n)
    many = vnp.where(vnp.logical_or(few, endless), np.asarray(1e4, p.dtype), n)
    found = vnp.where(
        few,
        _few_successes(key, vnp.where(few, n, 0), q),
        _many_successes(key, many, vnp.where(vnp.logical_or(few, endless), np.asarray(0.5, p.dtype), q)),
    )
    found = vnp.where(rare, found, n - found)
    return vnp.where(bad, np.nan, vnp.where(endless, np.inf, found))


def multinomial(
    key: Any, n: ArrayLike, p: ArrayLike, *, shape: Any = None, dtype: Any = np.float32, unroll: int | bool = 1
) -> Array:
    """How many of ``n`` trials have each outcome, whose probabilities are ``p``'s along the last axis; a float dtype.

    One outcome after the other is a binomial number of the trials that are left.

    Args:
        key: a key.
        n: trials, for each row of ``p``; what ``shape`` without its last axis broadcasts from.
        p: probabilities, (…, outcomes); a row counts as if divided by its sum.
        shape: the result's, its last axis the outcomes; by default that of ``p``.
        dtype: of the counts.
        unroll: outcomes in one iteration; no bit depends on it.

    Raises:
        ShapeError: ``p`` has no axis, or does not broadcast to the shape.

    >>> from volta import random
    >>> random.multinomial(random.key(0), 100, np.float32([0.2, 0.3, 0.5])).sum().item()
    100.0
    """
    dtype = _float_dtype("multinomial", dtype)
    p, n = vnp.asarray(p, dtype), vnp.asarray(n, dtype)
    shape = p.shape if shape is None else check_shape("multinomial", shape)
    if not shape or not p.shape:
        text = f"random.multinomial: the outcomes are p's last axis; p has shape {p.shape}, the result {shape}"
        raise ShapeError(at_user_line(text))
    return _multinomial(check_key("multinomial", key), n, p, shape, unroll)


@partial(jit, static_argnums=(3, 4))
def _multinomial(key: Any, n: Any, p: Any, shape: Shape, unroll: int | bool) -> Any:
    n, p = vnp.broadcast_to(n, shape[:-1]), vnp.moveaxis(vnp.broadcast_to(p, shape), -1, 0)
    left = vnp.flip(vnp.cumsum(vnp.flip(p, 0), 0), 0)
    shares = vnp.clip(p / vnp.where(left == 0, 1, left), 0, 1)

    def outcome(rest: Any, of: Any) -> tuple[Any, Any]:
        count = binomial(of[0], rest, of[1], rest.shape, rest.dtype)
        return rest - count, count

    _, counts = lax.scan(outcome, n, (split(key, shape[-1]), shares), unroll=unroll)
    return vnp.moveaxis(counts, 0, -1)


def _few_successes(key: Any, n: Any, q: Any) -> Any:
    """How many trials up to a success, one after the other, fit into ``n``."""
    rate = vnp.log1p(-q)

    def draw(key: Any, count: Any, trials: Any) -> tuple[Any, Any, Any]:
        own, key = split(key)
        count = vnp.where(trials <= n, count + 1, count)
        return key, count, trials + vnp.ceil(vnp.log(uniform(own, q.shape, q.dtype)) / rate)

    start = (key, vnp.zeros(q.shape, q.dtype), vnp.zeros(q.shape, q.dtype))
    _, count, _ = _until(lambda key, count, trials: vnp.all(vnp.logical_not(trials <= n)), draw, start)
    return count - 1


_STIRLING = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip
"""log k! - log(sqrt(2 pi (k + 1)) ((k + 1) / e)^(k + 1)) + 1 / ... : Stirling's error at k + 1, for k from 0 to 9."""


def _stirling(k: Any) -> Any:
    table = vnp.asarray(_STIRLING, k.dtype)
    small = vnp.take(table, vnp.clip(k, 0, 9).astype(np.int32))
    inverse = 1 / (k + 1)
    square = inverse * inverse
    series = (1 / 12 - (1 / 360 - 1 / 1260 * square) * square) * inverse
    return vnp.where(k <= 9, small, series)


def _many_successes(key: Any, n: Any, p: Any) -> Any:
    spread = vnp.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = n * p + 0.5
    edge = 0.92 - 4.2 / b
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * spread
    m = vnp.floor((n + 1) * p)

    def propose(key: Any, found: Any, accepted: Any) -> tuple[Any, Any, Any]:
        key, first, second = split(key, 3)
        u = uniform(first, p.shape, p.dtype) - 0.5
        v = uniform(second, p.shape, p.dtype)
        near = 0.5 - abs(u)
        k = vnp.floor((2 * a / near + b) * u + c)
        bound = (
            (m + 0.5) * vnp.log((m + 1) / (odds * (n - m + 1)))
            + (n + 1) * vnp.log((n - m + 1) / (n - k + 1))
            + (k + 0.5) * vnp.log(odds * (n - k + 1) / (k + 1))
            + (_stirling(m) + _stirling(n - m) - _stirling(k) - _stirling(n - k))
        )
        fits = vnp.log(v * alpha / (a / (near * near) + b)) <= bound
        possible = vnp.logical_and(k >= 0, k <= n)
        now = vnp.logical_or(vnp.logical_and(near >= 0.07, v <= edge), vnp.logical_and(possible, fits))
        return key, vnp.where(now, k, found), vnp.logical_or(accepted, now)

    start = (key, vnp.full(p.shape, -1, p.dtype), vnp.zeros(p.shape, bool))
    return _until(lambda key, found, accepted: vnp.all(accepted), propose, start)[1]
