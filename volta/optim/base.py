"""What an optimizer is here: a pair of pure functions over pytrees, composed by :func:`chain` (the habits of optax)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import volta.numpy as vnp
from volta.core import pytrees
from volta.numpy.smooth import square_of_size

PyTree = Any
Schedule = Callable[[Any], Any]
"""A function of the step count (0, 1, 2, …) that gives a hyperparameter's value at that step."""

_LAST_COUNT = 2**31 - 1


class GradientTransformation(NamedTuple):
    """A gradient transformation, such as an optimizer.

    ``init(params) -> state`` makes the state, a pytree of arrays (empty for stateless ones).
    ``update(updates, state, params=None) -> (updates, state)`` turns gradients into updates, and the old state into
    the new one. Both are pure, so they work under ``jit`` (with the state donated), ``vmap`` and ``checkpoint``.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


def stateless(f: Callable[[PyTree, PyTree], PyTree]) -> GradientTransformation:
    """A transformation without state, from ``f(updates, params) -> updates``."""

    def init(params: PyTree) -> PyTree:
        return EmptyState()

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return f(updates, params), state

    return GradientTransformation(init, update)


def identity() -> GradientTransformation:
    """Passes gradients through unchanged."""
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Apply transformations one after the other; the state is the tuple of their states.

    >>> from volta import optim
    >>> optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-3))
    """

    def init(params: PyTree) -> PyTree:
        return tuple(t.init(params) for t in transformations)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        if len(state) != len(transformations):
            raise ValueError(
                f"chain of {len(transformations)} transformations was given a state of {len(state)} parts; "
                "pass the state that this chain's own init made"
            )
        states = []
        for t, s in zip(transformations, state, strict=True):
            updates, s = t.update(updates, s, params)
            states.append(s)
        return updates, tuple(states)

    return GradientTransformation(init, update)


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """``params + updates``, leaf by leaf, each in the dtype of its parameter."""
    return pytrees.map(lambda p, u: (p + u).astype(p.dtype), params, updates)


def global_norm(tree: PyTree) -> Any:
    """The Euclidean norm of all leaves taken as one vector; leaves are added in pytree order. 0.0 for an empty tree."""
    squares = [vnp.sum(square_of_size(leaf)) for leaf in pytrees.leaves(tree)]
    if not squares:
        return vnp.zeros((), vnp.float32)
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    return vnp.sqrt(total)


def first_count() -> Any:
    """The step count at the start: an int32 zero."""
    return vnp.zeros((), vnp.int32)


def next_count(count: Any) -> Any:
    """``count + 1``, staying at the largest int32 instead of wrapping around."""
    return vnp.minimum(count, _LAST_COUNT - 1) + 1
