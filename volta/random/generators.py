"""The generators behind keys: what becomes of a key's words where one is made, split, folded or drawn from.

``rbg`` and ``unsafe_rbg`` draw by Philox (``volta.lax.rng_bit_generator``). Keys of ``rbg`` are two of threefry's side
by side, and new ones are made so; ``unsafe_rbg`` makes new ones by Philox, as in JAX: of every ten counters one.

A raw key says by its number of words what it is: two are threefry's, four are those of ``rbg``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.core.extended import FRY, RBG, UNSAFE_RBG, is_key
from volta.core.interp import get_aval
from volta.lax.bit_generator import philox_bits
from volta.ops.keys import unwrap, wrap
from volta.random import threefry

Shape = tuple[int, ...]


@attrs.frozen
class Generator:
    """What is done with the words of keys."""

    seed: Callable[[Any], Any]
    """The words of a key, from the two words of a seed."""
    split: Callable[[Any, Shape], Any]
    """So many new keys."""
    fold_in: Callable[[Any, Any], Any]
    """A new key, from one and a uint32."""
    bits: Callable[[Any, int, Shape], Any]
    """Unsigned integers of so many bits."""


def _halves(words: Any) -> tuple[Any, Any]:
    return words[:2], words[2:]


def _twice(seed: Any) -> Any:
    return vnp.concatenate([seed, seed])


def _split_halves(words: Any, shape: Shape) -> Any:
    return vnp.concatenate([threefry.split(half, shape) for half in _halves(words)], axis=-1)


def _fold_halves(words: Any, data: Any) -> Any:
    return vnp.concatenate([threefry.fold_in(half, data) for half in _halves(words)])


def _philox(words: Any, width: int, shape: Shape) -> Any:
    return philox_bits(words, shape, threefry.unsigned(width))


_APART = 10
"""Of so many counters one is a new key of ``unsafe_rbg``."""


def _split_unsafe(words: Any, shape: Shape) -> Any:
    n = math.prod(shape)
    return vnp.reshape(_philox(words, 32, (n, _APART, 4))[:, 0], (*shape, 4))


def _fold_unsafe(words: Any, data: Any) -> Any:
    of_data = _twice(vnp.stack([vnp.zeros((), np.uint32), data]))
    return lax.bitwise_xor(words, _philox(of_data, 32, (_APART, 4))[-1])


GENERATORS: dict[Any, Generator] = {
    FRY: Generator(lambda seed: seed, threefry.split, threefry.fold_in, threefry.random_bits),
    RBG: Generator(_twice, _split_halves, _fold_halves, _philox),
    UNSAFE_RBG: Generator(_twice, _split_unsafe, _fold_unsafe, _philox),
}

RAW: dict[int, Any] = {FRY.words: FRY, RBG.words: RBG}
"""What raw keys of so many words are."""


def type_of(key: Any) -> Any:
    """The type of a key, typed or raw."""
    aval = get_aval(key)
    return aval.dtype if is_key(aval.dtype) else RAW[aval.shape[-1]]


def as_given(key: Any, words: Any) -> Any:
    """New words in the form that ``key`` has."""
    return wrap(words, type_of(key).impl) if is_key(get_aval(key).dtype) else words


def _found(key: Any) -> tuple[Generator, Any]:
    """The generator of one key, and its words."""
    kind = type_of(key)
    return GENERATORS[kind], unwrap(key) if is_key(get_aval(key).dtype) else key


def split(key: Any, shape: Shape) -> Any:
    """New keys, in the form that ``key`` has."""
    generator, words = _found(key)
    return as_given(key, generator.split(words, shape))


def fold_in(key: Any, data: Any) -> Any:
    """A new key, in the form that ``key`` has."""
    generator, words = _found(key)
    return as_given(key, generator.fold_in(words, data))


def random_bits(key: Any, width: int, shape: Shape) -> Any:
    """Uniform bits: unsigned integers of 8, 16, 32 or 64 bits."""
    generator, words = _found(key)
    return generator.bits(words, width, shape)
