"""Ordinary differential equations, under the name of ``jax.experimental.ode``.

Dormand and Prince's method of orders 5 and 4, whose steps follow the error that the two differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import volta.numpy as vnp
from volta import lax
from volta.api.autodiff import vjp
from volta.api.closures import closure_convert
from volta.api.custom_derivatives import custom_vjp
from volta.api.vmap import vmap
from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.array import ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.flatten_util import ravel_pytree

__all__ = ["odeint"]

_AT = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (
    35 / 384 - 1951 / 21600, 0.0, 500 / 1113 - 22642 / 50085, 125 / 192 - 451 / 720, -2187 / 6784 + 12231 / 42400,
    11 / 84 - 649 / 6300, -1 / 60,
)  # fmt: skip
_MIDDLE = (
    6025192743 / 30085553152 / 2, 0.0, 51252292925 / 65400821598 / 2, -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2, -1776094331 / 19743644256 / 2, 11237099 / 235043384 / 2,
)  # fmt: skip
"""What the state in the middle of a step is made of, to order 4."""


def _combined(weights: tuple[float, ...], slopes: list[Any]) -> Any:
    total: Any = 0.0
    for w, k in zip(weights, slopes, strict=False):
        if w:
            total = total + w * k
    return total


def _step(f: Any, y: Any, slope: Any, t: Any, h: Any) -> tuple[Any, Any, Any, Any]:
    """The state after ``h``, its slope, the error, and the state in the middle."""
    slopes = [slope]
    for at, weights in zip(_AT[1:], _STAGES[1:], strict=True):
        slopes.append(f(y + h * _combined(weights, slopes), t + h * at))
    after = y + h * _combined(_STAGES[-1], slopes)
    return after, slopes[-1], h * _combined(_ERROR, slopes), y + h * _combined(_MIDDLE, slopes)


def _length(x: Any) -> Any:
    return vnp.sqrt(vnp.mean(vnp.real(x * vnp.conj(x))))


def _relative(error: Any, y: Any, after: Any, rtol: float, atol: float) -> Any:
    return _length(error / (atol + rtol * vnp.maximum(vnp.abs(y), vnp.abs(after))))


def _first_step(f: Any, y: Any, slope: Any, t: Any, rtol: float, atol: float) -> Any:
    """By the sizes of the state, its slope and its curvature (Hairer, Nørsett and Wanner, II.4)."""
    scale = atol + rtol * vnp.abs(y)
    state, speed = _length(y / scale), _length(slope / scale)
    tiny = (state < 1e-5) | (speed < 1e-5)
    h = vnp.where(tiny, 1e-6, 0.01 * state / vnp.where(tiny, 1, speed))
    curve = _length((f(y + h * slope, t + h) - slope) / scale) / h
    flat = vnp.maximum(speed, curve) <= 1e-15
    best = (0.01 / vnp.where(flat, 1, vnp.maximum(speed, curve))) ** 0.2
    return vnp.minimum(100 * h, vnp.where(flat, vnp.maximum(1e-6, h * 1e-3), best))


def _between(share: Any, h: Any, y: Any, middle: Any, after: Any, slope: Any, slope_after: Any) -> Any:
    """The polynomial of order 4 through both ends of a step, its middle and the slopes at its ends."""
    a = 2 * h * (slope_after - slope) - 8 * (after + y) + 16 * middle
    b = h * (5 * slope - 3 * slope_after) + 18 * y + 14 * after - 32 * middle
    c = h * (slope_after - 4 * slope) - 11 * y - 5 * after + 16 * middle
    return (((a * share + b) * share + c) * share + h * slope) * share + y


def _solution(f: Any, y0: Any, ts: Any, rtol: float, atol: float, mxstep: float, hmax: float) -> Any:
    """The states at ascending times, the first of which is that of ``y0``."""

    def to_time(carry: Any, target: Any) -> tuple[Any, Any]:
        def going(s: Any) -> Any:
            i, _, _, t, h, *_ = s
            return (t < target) & (i < mxstep) & (h > 0)

        def advance(s: Any) -> Any:
            i, y, slope, t, h, last = s
            after, slope_after, error, middle = _step(f, y, slope, t, h)
            ratio = _relative(error, y, after, rtol, atol)
            good = ratio <= 1.0
            step = (t, h, y, middle, after, slope, slope_after)
            last = tuple(vnp.where(good, n, o) for n, o in zip(step, last, strict=True))
            growth = vnp.where(ratio == 0, 10.0, 0.9 * vnp.where(ratio == 0, 1.0, ratio) ** -0.2)
            growth = vnp.clip(growth, vnp.where(good, 1.0, 0.2), 10.0)
            growth = vnp.where(vnp.isfinite(ratio), growth, 0.2)
            y, slope, t = (vnp.where(good, n, o) for n, o in ((after, y), (slope_after, slope), (t + h, t)))
            return i + 1, y, slope, t, vnp.minimum(h * growth, hmax), last

        out = lax.while_loop(going, advance, (vnp.int32(0), *carry))[1:]
        y, _, t, _, (begin, h, *rest) = out
        share = (target - begin) / vnp.where(h > 0, h, 1)
        missed = (t < target) | (target < begin)  # it gave up, or times do not ascend
        value = vnp.where(missed, vnp.nan, _between(share, h, *rest))
        return out, value

    slope = f(y0, ts[0])
    h = vnp.minimum(_first_step(f, y0, slope, ts[0], rtol, atol), hmax)
    zero = h * 0
    begin = (y0, slope, ts[0], h, (ts[0], zero, y0, y0, y0, slope, slope))
    rest = lax.scan(to_time, begin, ts[1:])[1]
    return vnp.concatenate([y0[None], rest])


@partial(custom_vjp, nondiff_argnums=(0, 1, 2, 3, 4, 5))
def _flat(
    f: Any, unravel: Any, rtol: float, atol: float, mxstep: float, hmax: float, y0: Any, ts: Any, args: Any
) -> Any:
    return _solution(lambda y, t: f(unravel, y, t, args), y0, ts, rtol, atol, mxstep, hmax)


def _forward(f: Any, unravel: Any, rtol: Any, atol: Any, mxstep: Any, hmax: Any, y0: Any, ts: Any, args: Any) -> Any:
    ys = _flat(f, unravel, rtol, atol, mxstep, hmax, y0, ts, args)
    return ys, (ys, ts, args)


def _backward(f: Any, unravel: Any, rtol: Any, atol: Any, mxstep: Any, hmax: Any, kept: Any, g: Any) -> Any:
    """The adjoint equation, solved backwards from time to time, beside the state."""
    ys, ts, args = kept
    n = ys.shape[1]
    flat_args, unravel_args = ravel_pytree(args)

    def dynamics(state: Any, minus_t: Any) -> Any:
        y, cotangent, _, _ = _parts(state, n, flat_args.size)
        _, pull = vjp(lambda y, t, a: f(unravel, y, t, unravel_args(a)), y, -minus_t, flat_args)
        by_y, by_t, by_args = pull(cotangent)
        slope = f(unravel, y, -minus_t, args)
        return vnp.concatenate([-slope, by_y, vnp.reshape(by_t, (1,)), by_args])

    def back(carry: Any, i: Any) -> tuple[Any, Any]:
        cotangent, by_t0, by_args = carry
        by_time = vnp.vdot(vnp.conj(f(unravel, ys[i], ts[i], args)), g[i])
        by_t0 = by_t0 - by_time
        state = vnp.concatenate([ys[i], cotangent, vnp.reshape(by_t0, (1,)), by_args])
        times = vnp.stack([-ts[i], -ts[i - 1]])
        end = _solution(dynamics, state, times, rtol, atol, mxstep, hmax)[1]
        _, cotangent, by_t0, by_args = _parts(end, n, flat_args.size)
        return (cotangent + g[i - 1], by_t0[0], by_args), by_time

    last = ts.shape[0] - 1
    start = (g[-1], vnp.zeros((), ys.dtype), vnp.zeros_like(flat_args))
    (cotangent, by_t0, by_args), by_times = lax.scan(back, start, vnp.arange(last, 0, -1))
    return (
        cotangent,
        vnp.concatenate([vnp.reshape(by_t0, (1,)), by_times[::-1]]).astype(ts.dtype),
        unravel_args(by_args),
    )


def _parts(state: Any, n: int, m: int) -> tuple[Any, Any, Any, Any]:
    return state[:n], state[n : 2 * n], state[2 * n : 2 * n + 1], state[2 * n + 1 : 2 * n + 1 + m]


_flat.defvjp(_forward, _backward)


def _call(func: Any, unravel: Any, y: Any, t: Any, args: Any) -> Any:
    return ravel_pytree(func(unravel(y), t, *args))[0]


def odeint(
    func: Callable[..., Any], y0: Any, t: ArrayLike, *args: Any, rtol: float = 1.4e-8, atol: float = 1.4e-8,
    mxstep: float = math.inf, hmax: float = math.inf,
) -> Any:  # fmt: skip
    """The solution of ``dy/dt = func(y, t, *args)`` at times ``t``, where it is ``y0`` at the first.

    Args:
        func: gives the slope, a pytree of as many elements as ``y0`` has. Traced floats that it closes over have
            derivatives too.
        y0: a pytree of float arrays.
        t: (n,) ascending times. Of traced ones that descend the states are NaN.
        args: pytrees of float arrays, which have derivatives; settings that are none are closed over.
        rtol, atol: the error that a step may have, beside the state's size and by itself.
        mxstep: of steps from one time to the next; beyond it the states are NaN.
        hmax: the longest step.

    Returns:
        A pytree like ``y0`` whose arrays have a new first axis of n times. Reverse derivatives, by ``y0``, ``t`` and
        ``args``, solve the adjoint equation, in memory that does not grow with steps.

    Raises:
        ShapeError: ``t`` is no vector of times, or the slope has another number of elements than the state.
        DTypeError: states and arguments that are not floats.
        ValueError: known times that do not ascend.

    >>> y = odeint(lambda y, t: -y, vnp.asarray(1.0), vnp.asarray([0.0, 1.0]))
    >>> [round(x, 4) for x in y.tolist()]
    [1.0, 0.3679]
    """
    ts = vnp.asarray(t)
    if ts.ndim != 1 or not ts.shape[0]:
        raise ShapeError(at_user_line(f"odeint: the times must be a vector, got shape {ts.shape}"))
    if not isinstance(ts, Tracer) and not np.all(np.diff(np.asarray(ts)) >= 0):
        raise ValueError(at_user_line(f"odeint: the times must ascend, got {np.asarray(ts)}"))
    flat, unravel = ravel_pytree(pytrees.map(vnp.asarray, y0))
    arrays = pytrees.map(vnp.asarray, args)
    for x in (flat, ts, *pytrees.leaves(arrays)):
        if not vnp.issubdtype(x.dtype, vnp.floating):
            text = f"odeint: states, times and arguments must be floats, not {x.dtype}; close over settings"
            raise DTypeError(at_user_line(text))
    slope = func(unravel(flat), ts[0], *arrays)
    flat_slope = ravel_pytree(slope)[0]
    if flat_slope.shape != flat.shape:
        slopes, states = (pytrees.text(pytrees.structure(x)) for x in (slope, y0))
        text = f"odeint: the slope, {slopes}, must have as many elements as the state, {states}"
        raise ShapeError(at_user_line(text))
    converted, closed_over = closure_convert(func, unravel(flat), ts[0], *arrays)
    f, given = partial(_call, converted if closed_over else func), (*arrays, *closed_over)
    state = flat.astype(vnp.result_type(flat, flat_slope, 0.0))
    ys = _flat(f, unravel, rtol, atol, mxstep, hmax, state, ts.astype(state.dtype), given)
    return vmap(unravel)(ys)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
