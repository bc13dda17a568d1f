"""The parts that optimizers are made of: momentum, Adam's scaling, weight decay, clipping, step sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import volta.numpy as vnp
from volta.core import pytrees
from volta.core.floats import standard
from volta.numpy.smooth import square_of_size
from volta.optim.base import (
    GradientTransformation,
    PyTree,
    Schedule,
    first_count,
    global_norm,
    next_count,
    stateless,
)


def scale(step_size: float) -> GradientTransformation:
    """Multiply updates by a constant."""
    return stateless(lambda updates, params: pytrees.map(lambda u: step_size * u, updates))


class ScaleByScheduleState(NamedTuple):
    """``count``: int32 scalar, the number of updates made."""

    count: Any


def scale_by_schedule(schedule: Schedule) -> GradientTransformation:
    """Multiply updates by ``schedule(count)``, where ``count`` is 0 at the first update."""

    def init(params: PyTree) -> PyTree:
        return ScaleByScheduleState(first_count())

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        step_size = vnp.asarray(schedule(state.count))
        scaled = pytrees.map(lambda u: step_size.astype(u.dtype) * u, updates)
        return scaled, ScaleByScheduleState(next_count(state.count))

    return GradientTransformation(init, update)


def scale_by_learning_rate(learning_rate: float | Schedule) -> GradientTransformation:
    """Multiply updates by minus the learning rate, a number or a schedule: the last link of a descent optimizer."""
    if callable(learning_rate):
        schedule = learning_rate
        return scale_by_schedule(lambda count: -schedule(count))
    return scale(-learning_rate)


class TraceState(NamedTuple):
    """``trace``: the decaying sum of past updates, like the parameters."""

    trace: PyTree


def trace(decay: float, nesterov: bool = False) -> GradientTransformation:
    """Momentum: ``t = g + decay * t``; updates are ``t``, with ``nesterov`` ``g + decay * t`` (Sutskever 2013)."""

    def init(params: PyTree) -> PyTree:
        return TraceState(pytrees.map(vnp.zeros_like, params))

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        new = pytrees.map(lambda g, t: g + decay * t, updates, state.trace)
        out = pytrees.map(lambda g, t: g + decay * t, updates, new) if nesterov else new
        return out, TraceState(new)

    return GradientTransformation(init, update)


class ScaleByAdamState(NamedTuple):
    """``count``: int32 scalar; ``mu`` and ``nu``: running first and second moments, like the parameters."""

    count: Any
    mu: PyTree
    nu: PyTree


def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0
) -> GradientTransformation:
    """Adam's rescaling (Kingma & Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1).

    With t = count + 1, and gradient g::

        mu = b1 * mu + (1 - b1) * g              nu = b2 * nu + (1 - b2) * g * g
        update = (mu / (1 - b1**t)) / (sqrt(nu / (1 - b2**t) + eps_root) + eps)

    ``eps_root`` inside of the root keeps derivatives through the update finite where a gradient is zero.
    """

    def init(params: PyTree) -> PyTree:
        zeros = pytrees.map(vnp.zeros_like, params)
        return ScaleByAdamState(first_count(), zeros, pytrees.map(vnp.zeros_like, params))

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        count = next_count(state.count)
        mu = pytrees.map(lambda g, m: (1 - b1) * g + b1 * m, updates, state.mu)
        nu = pytrees.map(lambda g, v: (1 - b2) * square_of_size(g) + b2 * v, updates, state.nu)
        mu_correction = 1 - b1 ** count.astype(vnp.float32)
        nu_correction = 1 - b2 ** count.astype(vnp.float32)

        def direction(m: Any, v: Any) -> Any:
            m_hat = m / mu_correction.astype(m.dtype)
            v_hat = v / nu_correction.astype(v.dtype)
            return m_hat / (vnp.sqrt(v_hat + eps_root) + eps)

        return pytrees.map(direction, mu, nu), ScaleByAdamState(count, mu, nu)

    return GradientTransformation(init, update)


class ScaleByRmsState(NamedTuple):
    """``nu``: the running second moment, like the parameters."""

    nu: PyTree


def scale_by_rms(decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0) -> GradientTransformation:
    """Divide by the running root mean square (Tieleman & Hinton, "RMSProp", 2012).

    ``nu = decay * nu + (1 - decay) * g * g``, which begins at ``initial_scale``; updates are ``g / sqrt(nu + eps)``.
    """

    def init(params: PyTree) -> PyTree:
        return ScaleByRmsState(pytrees.map(lambda p: vnp.full_like(p, initial_scale), params))

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        nu = pytrees.map(lambda g, v: (1 - decay) * square_of_size(g) + decay * v, updates, state.nu)
        return pytrees.map(lambda g, v: g / vnp.sqrt(v + eps), updates, nu), ScaleByRmsState(nu)

    return GradientTransformation(init, update)


class ScaleByRssState(NamedTuple):
    """``sum_of_squares``: of all gradients so far, like the parameters."""

    sum_of_squares: PyTree


def scale_by_rss(initial_accumulator_value: float = 0.1, eps: float = 1e-7) -> GradientTransformation:
    """Divide by the root of the sum of squares so far (Duchi, Hazan & Singer, JMLR 2011).

    ``s = s + g * g``, which begins at ``initial_accumulator_value``; updates are ``g / sqrt(s + eps)``, 0 where s is 0.
    """

    def init(params: PyTree) -> PyTree:
        return ScaleByRssState(pytrees.map(lambda p: vnp.full_like(p, initial_accumulator_value), params))

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        total = pytrees.map(lambda g, s: square_of_size(g) + s, updates, state.sum_of_squares)
        scaled = pytrees.map(lambda g, s: vnp.where(s > 0, g / vnp.sqrt(s + eps), 0.0), updates, total)
        return scaled, ScaleByRssState(total)

    return GradientTransformation(init, update)


class ScaleByLionState(NamedTuple):
    """``mu``: the running mean of gradients, like the parameters."""

    mu: PyTree


def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> GradientTransformation:
    """The sign of an interpolated momentum (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).

    Updates are ``sign(b1 * mu + (1 - b1) * g)``; then ``mu = b2 * mu + (1 - b2) * g``.
    """

    def init(params: PyTree) -> PyTree:
        return ScaleByLionState(pytrees.map(vnp.zeros_like, params))

    @standard
    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        signs = pytrees.map(lambda g, m: vnp.sign((1 - b1) * g + b1 * m), updates, state.mu)
        mu = pytrees.map(lambda g, m: (1 - b2) * g + b2 * m, updates, state.mu)
        return signs, ScaleByLionState(mu)

    return GradientTransformation(init, update)


def add_decayed_weights(
    weight_decay: float, mask: PyTree | Callable[[PyTree], PyTree] | None = None
) -> GradientTransformation:
    """Add ``weight_decay * params`` to updates (Loshchilov & Hutter, ICLR 2019, arXiv:1711.05101).

    ``mask`` is a pytree of Python bools shaped like the parameters (or a function that makes it from them): False
    leaves a parameter without decay.
    """

    def f(updates: PyTree, params: PyTree) -> PyTree:
        if params is None:
            raise ValueError("weight decay needs the parameters: call update(gradients, state, params)")
        if mask is None:
            return pytrees.map(lambda u, p: u + weight_decay * p, updates, params)
        chosen = mask(params) if callable(mask) else mask
        return pytrees.map(lambda u, p, m: u + weight_decay * p if m else u, updates, params, chosen)

    return stateless(f)


def clip(max_delta: float) -> GradientTransformation:
    """Clip every element of the updates to [-max_delta, max_delta]."""
    return stateless(lambda updates, params: pytrees.map(lambda u: vnp.clip(u, -max_delta, max_delta), updates))


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Scale all updates down together so that their :func:`global_norm` is at most ``max_norm`` (arXiv:1211.5063)."""

    def f(updates: PyTree, params: PyTree) -> PyTree:
        norm = global_norm(updates)
        small = norm < max_norm
        return pytrees.map(lambda u: vnp.where(small, u, (u / norm.astype(u.dtype)) * max_norm), updates)

    return stateless(f)
