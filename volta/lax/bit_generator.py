"""Bits by Philox-4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

A keyed bijection of 128-bit counters, of which one gives four words of bits. The layout is XLA's, so that the bits are
those of JAX on a CPU: of a state of four words the first two are the key, and the first counter is the number whose
words are, from the lowest, the third, the fourth, the first and the second; counters go up by one. Here it is the
definition, on every device and in every batch. As with threefry all is plain operations on integers.
"""

from __future__ import annotations

import enum
import math
from functools import partial
from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import as_shape
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import lax

__all__ = ["RandomAlgorithm", "rng_bit_generator"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key, from round to round
_ROUNDS = 10


class RandomAlgorithm(enum.IntEnum):
    """Which generator ``rng_bit_generator`` takes. The default is Philox; XLA's form of Threefry is refused.

    >>> lax.RandomAlgorithm.RNG_PHILOX.value
    2
    """

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def _u32(x: Any) -> Any:
    return lax.convert_element_type(x, np.uint32)


def _high(x: Any) -> Any:
    return _u32(lax.shift_right_logical(x, np.uint64(32)))


def joined(low: Any, high: Any) -> Any:
    """Numbers of 64 bits of their words."""
    high = lax.shift_left(lax.convert_element_type(high, np.uint64), np.uint64(32))
    return lax.bitwise_or(high, lax.convert_element_type(low, np.uint64))


def philox4x32(key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """The cipher: two uint32 words of key and four of counter (scalars or arrays of a shape) to four words of bits."""
    (k0, k1), (x0, x1, x2, x3) = key, counter
    for turn in range(_ROUNDS):
        if turn:
            k0, k1 = (lax.add(k, np.uint32(step)) for k, step in zip((k0, k1), _STEPS, strict=True))
        first, second = (
            lax.mul(lax.convert_element_type(x, np.uint64), np.uint64(m))
            for x, m in zip((x0, x2), _MULTIPLIERS, strict=True)
        )
        x0, x1, x2, x3 = (
            lax.bitwise_xor(lax.bitwise_xor(_high(second), x1), k0),
            _u32(second),
            lax.bitwise_xor(lax.bitwise_xor(_high(first), x3), k1),
            _u32(first),
        )
    return x0, x1, x2, x3


def philox_bits(state: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Uniform bits of the four words of a state: unsigned integers, of 64 bits two words each (the lower first), of
    fewer than 32 the lower bits of one."""
    wide = dtype.itemsize == 8
    n = math.prod(shape)
    k0, k1, low, high = (state[i] for i in range(4))
    index = lax.iota(np.uint64, -(-n // (2 if wide else 4)))
    lower = lax.add(index, joined(low, high))
    carried = lax.convert_element_type(lax.lt(lower, index), np.uint64)
    upper = lax.add(carried, joined(k0, k1))
    out: tuple[Any, ...] = philox4x32((k0, k1), (_u32(lower), _high(lower), _u32(upper), _high(upper)))
    if wide:
        out = (joined(*out[:2]), joined(*out[2:]))
    rows = lax.concatenate([lax.reshape(lax.convert_element_type(x, dtype), (1, *index.shape)) for x in out], 0)
    flat = lax.reshape(lax.transpose(rows, (1, 0)), (rows.shape[0] * rows.shape[1],))
    return lax.reshape(flat if flat.shape[0] == n else lax.slice(flat, (0,), (n,)), shape)


def rng_bit_generator(
    key: Any, shape: Any, dtype: Any = np.uint32, algorithm: Any = RandomAlgorithm.RNG_DEFAULT
) -> tuple[Array, Array]:
    """A state after drawing, and uniform bits: Philox-4x32, which is the definition here, on every device.

    Args:
        key: a state: four uint32 words, or two uint64 words.
        shape: of the bits.
        dtype: an unsigned integer dtype.
        algorithm: ``RandomAlgorithm.RNG_DEFAULT`` or ``RNG_PHILOX``, which are the same.

    Raises:
        DTypeError: for another dtype of state or bits.
        ShapeError: for another shape of state.
        ValueError: for another algorithm.

    >>> state, bits = lax.rng_bit_generator(np.array([0, 42, 0, 42], np.uint32), (2,))
    >>> state, bits
    (Array([ 0, 42,  1, 42], dtype=uint32), Array([2620864722, 2991908441], dtype=uint32))
    """
    aval, dtype, shape = get_aval(key), dtypes.canonicalize(dtype), as_shape("lax.rng_bit_generator", shape)
    if algorithm not in (RandomAlgorithm.RNG_DEFAULT, RandomAlgorithm.RNG_PHILOX):
        raise ValueError(
            at_user_line(f"lax.rng_bit_generator: there is RNG_PHILOX, got {algorithm!r}; volta.random has threefry")
        )
    if not dtypes.is_unsigned(dtype) or aval.dtype not in (dtypes.uint32, dtypes.uint64):
        raise DTypeError(
            at_user_line(
                f"lax.rng_bit_generator: the state is uint32 or uint64 and bits are unsigned, got {aval} and {dtype}"
            )
        )
    if aval.shape != (16 // aval.dtype.itemsize,):
        raise ShapeError(
            at_user_line(f"lax.rng_bit_generator: a state is uint32 of shape (4,) or uint64 of shape (2,), got {aval}")
        )
    return _drawn(key, shape, dtype)


@partial(jit, static_argnums=(1, 2))
def _drawn(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Any]:
    wide = get_aval(key).dtype == dtypes.uint64
    words = [half(key[i]) for i in range(2) for half in (_u32, _high)] if wide else [key[i] for i in range(4)]
    counters = -(-math.prod(shape) // (2 if dtype.itemsize == 8 else 4))
    after = lax.add(joined(*words[2:]), np.uint64(counters))
    state = (key[0], after) if wide else (*words[:2], _u32(after), _high(after))
    return lax.concatenate([lax.reshape(x, (1,)) for x in state], 0), philox_bits(words, shape, dtype)
