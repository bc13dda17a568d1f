"""The next token of a text from a model's logits: by a key, so that each request draws as it would alone."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import random
from volta.api.vmap import vmap
from volta.core import pytrees
from volta.core.array import Array, ArrayLike
from volta.core.errors import ArgumentError, ShapeError
from volta.core.source import at_user_line
from volta.lax import cond
from volta.ops import lax


@pytrees.register_dataclass
@attrs.frozen
class Sampling:
    """How a token is chosen. A pytree of numbers: another setting, or one for each row, needs no compilation.

    Args:
        temperature: the logits are divided by it; 0: the most probable token, without chance.
        top_k: only the so many most probable tokens (0: all). Of equal logits the first token is the more probable one.
        top_p: only the most probable tokens that together have at least this probability, one at least (1: all).
        repetition_penalty: logits of tokens seen before are divided by it where positive, else multiplied (1: none).

    Raises:
        ArgumentError: for numbers that mean nothing.
    """

    temperature: Any = 1.0
    top_k: Any = 0
    top_p: Any = 1.0
    repetition_penalty: Any = 1.0

    def checked(self) -> Sampling:
        """Itself; ArgumentError where a number that is known means nothing."""
        wanted = (
            ("temperature", lambda x: 0 <= _single(x) < math.inf, "0 or more, and finite in float32"),
            ("top_k", lambda x: 0 <= x < 2**31, "0 or more, in int32"),
            ("top_p", lambda x: 0 < _single(x) <= 1, "above 0, at most 1"),
            ("repetition_penalty", lambda x: 0 < _single(x) < math.inf, "above 0, and finite in float32"),
        )
        for name, fits, what in wanted:
            x = getattr(self, name)
            if isinstance(x, (int, float)) and not fits(x):
                raise ArgumentError(at_user_line(f"Sampling: {name} must be {what}, got {x}"))
        return self


def _single(x: float) -> float:
    """A setting as steps read it, in float32, which has no number as large as some."""
    with np.errstate(over="ignore"):
        return float(np.float32(min(x, 1e300)))


GREEDY = Sampling(temperature=0.0)


def sample_tokens(keys: Any, logits: Array, sampling: Sampling, seen: Array) -> Array:
    """One token a row, each as :func:`sample_token` has it; of rows that all want the most probable one, at once."""

    def by_chance() -> Array:
        return vmap(sample_token)(keys, logits, sampling, seen)

    def without() -> Array:
        by = sampling.repetition_penalty[:, None]
        return vnp.argmax(penalized(logits, seen, by), axis=-1).astype(np.int32)

    return cond(vnp.all(sampling.temperature <= 0), without, by_chance)


def sample_token(
    key: ArrayLike, logits: ArrayLike, sampling: Sampling = GREEDY, seen: ArrayLike | None = None
) -> Array:
    """One token, an int32. Rows of a batch by ``vmap``, each with a key of its own.

    What is left out has no probability at all: the noise of Gumbel's trick (:func:`volta.random.categorical`) goes to
    the tokens in the order of their logits.

    Args:
        key: a key.
        logits: (vocabulary,).
        sampling: a :class:`Sampling`.
        seen: (vocabulary,) booleans or counts; which tokens the repetition penalty is for.

    Raises:
        ShapeError: for logits that are no row.

    >>> from volta import nn, random
    >>> int(nn.sample_token(random.key(0), np.float32([0, 3, 1])))
    1
    """
    logits = vnp.asarray(logits).astype(np.float32)
    if logits.ndim != 1 or not logits.shape[0] or (seen is not None and np.shape(seen) != logits.shape):
        text = f"sample_token: logits {logits.shape} (seen {None if seen is None else np.shape(seen)}) are no row"
        raise ShapeError(at_user_line(text))
    if seen is not None:
        logits = penalized(logits, seen, sampling.repetition_penalty)
    cold = vnp.asarray(sampling.temperature) <= 0
    negated, order = lax.sort((-logits, lax.iota(np.int32, logits.shape[0])), num_keys=1)
    y = -negated / vnp.where(cold, np.float32(1), vnp.asarray(sampling.temperature, np.float32))
    rank = lax.iota(np.int32, logits.shape[0])
    k = vnp.asarray(sampling.top_k, np.int32)
    kept = (rank < k) | (k <= 0)
    y = vnp.where(kept, y, -math.inf)
    e = vnp.exp(y - y[0])  # the largest comes first
    p = e / vnp.sum(e)
    before = vnp.cumsum(p) - p
    kept = kept & ((before < vnp.asarray(sampling.top_p, np.float32)) | (rank == 0))
    drawn = random.categorical(key, vnp.where(kept, y, -math.inf))
    return vnp.where(cold, vnp.argmax(logits).astype(np.int32), order[drawn])


def penalized(logits: ArrayLike, seen: ArrayLike, penalty: ArrayLike) -> Array:
    """Logits with those of tokens seen before divided by ``penalty`` where positive, else multiplied."""
    x, by = vnp.asarray(logits), vnp.asarray(penalty, np.float32)
    return vnp.where(vnp.asarray(seen) != 0, vnp.where(x > 0, x / by, x * by), x)
