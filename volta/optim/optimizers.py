"""Whole optimizers. Each is a chain of parts; gradients go in, what to add to the parameters comes out."""

from __future__ import annotations

from collections.abc import Callable

from volta.optim.base import GradientTransformation, PyTree, Schedule, chain
from volta.optim.transforms import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    trace,
)


def sgd(
    learning_rate: float | Schedule, momentum: float | None = None, nesterov: bool = False
) -> GradientTransformation:
    """Stochastic gradient descent, with (Nesterov) momentum if asked.

    >>> import volta.numpy as vnp
    >>> from volta import optim
    >>> params, gradients = {"w": vnp.ones(3)}, {"w": vnp.ones(3)}
    >>> optimizer = optim.sgd(0.5, momentum=0.9)
    >>> updates, state = optimizer.update(gradients, optimizer.init(params), params)
    >>> [float(x) for x in optim.apply_updates(params, updates)["w"]]
    [0.5, 0.5, 0.5]
    """
    if momentum is None:
        if nesterov:
            raise ValueError("sgd: nesterov=True needs a momentum, such as momentum=0.9")
        return chain(scale_by_learning_rate(learning_rate))
    return chain(trace(momentum, nesterov), scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: float | Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, eps_root: float = 0.0
) -> GradientTransformation:
    """Adam (Kingma & Ba, ICLR 2015): see :func:`scale_by_adam` for the formula."""
    return chain(scale_by_adam(b1, b2, eps, eps_root), scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    weight_decay: float = 1e-4,
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019).

    The decay is scaled by the learning rate; ``mask`` says which parameters decay (:func:`add_decayed_weights`).
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def rmsprop(
    learning_rate: float | Schedule,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    momentum: float | None = None,
    nesterov: bool = False,
) -> GradientTransformation:
    """RMSProp: see :func:`scale_by_rms` for the formula. Momentum, if asked, comes after the learning rate."""
    if momentum is None and nesterov:
        raise ValueError("rmsprop: nesterov=True needs a momentum, such as momentum=0.9")
    last = [] if momentum is None else [trace(momentum, nesterov)]
    return chain(scale_by_rms(decay, eps, initial_scale), scale_by_learning_rate(learning_rate), *last)


def adagrad(
    learning_rate: float | Schedule, initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> GradientTransformation:
    """Adagrad (Duchi, Hazan & Singer, JMLR 2011): see :func:`scale_by_rss` for the formula."""
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def lion(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 1e-3,
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> GradientTransformation:
    """Lion (Chen et al., 2023): see :func:`scale_by_lion`, and :func:`add_decayed_weights` for the decay."""
    return chain(scale_by_lion(b1, b2), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
