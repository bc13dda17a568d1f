"""Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

A keyed bijection of 64-bit counters: element i of every sample is the cipher of its own logical index i, so a sample
does not depend on how the work is cut into kernels, threads or devices. Written in plain operations on uint32 over one
flat axis, so that a whole sample, counters and what follows the bits included, fuses into one elementwise kernel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.core import dtypes

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # keeps the key schedule from being all zeros


def _u32(value: int) -> np.uint32:
    return np.uint32(value)


def _rotate_left(x: Any, distance: int) -> Any:
    left = lax.shift_left(x, _u32(distance))
    return lax.bitwise_or(left, lax.shift_right_logical(x, _u32(32 - distance)))


def threefry2x32(key: tuple[Any, Any], x0: Any, x1: Any) -> tuple[Any, Any]:
    """The cipher: two uint32 words of key and of counter (scalars or arrays of one shape) to two words of bits."""
    k0, k1 = key
    schedule = (k0, k1, lax.bitwise_xor(lax.bitwise_xor(k0, k1), _u32(_PARITY)))
    x0, x1 = lax.add(x0, k0), lax.add(x1, k1)
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            x0 = lax.add(x0, x1)
            x1 = lax.bitwise_xor(_rotate_left(x1, distance), x0)
        x0 = lax.add(x0, schedule[(block + 1) % 3])
        x1 = lax.add(x1, lax.add(schedule[(block + 2) % 3], _u32(block + 1)))
    return x0, x1


def words(key: Any) -> tuple[Any, Any]:
    """The two uint32 scalars of a key."""
    return key[0], key[1]


def counters(n: int) -> tuple[Any, Any]:
    """The indices 0 … n-1 as (high, low) words; the high word is a scalar zero while 32 bits suffice."""
    if n <= 2**32:
        return _u32(0), lax.iota(np.uint32, n)
    index = lax.iota(np.uint64, n)
    high = lax.convert_element_type(lax.shift_right_logical(index, np.uint64(32)), np.uint32)
    return high, lax.convert_element_type(index, np.uint32)


def split(key: Any, shape: tuple[int, ...]) -> Any:
    """The words of new keys: element i is the cipher of i."""
    first, second = threefry2x32(words(key), *counters(math.prod(shape)))
    return vnp.stack([first, second], axis=-1).reshape((*shape, 2))


def fold_in(key: Any, data: Any) -> Any:
    """The words of the key that is the cipher of a uint32."""
    return vnp.stack(threefry2x32(words(key), np.uint32(0), data))


def random_bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    """Uniform bits: unsigned integers of 8, 16, 32 or 64 bits, equal to those of jax.random for the same key."""
    first, second = threefry2x32(words(key), *counters(math.prod(shape)))
    if width == 64:
        high = lax.shift_left(lax.convert_element_type(first, np.uint64), np.uint64(32))
        bits = lax.bitwise_or(high, lax.convert_element_type(second, np.uint64))
    else:
        bits = lax.bitwise_xor(first, second)
        if width != 32:
            bits = lax.convert_element_type(bits, unsigned(width))
    return lax.reshape(bits, shape)


def unsigned(width: int) -> np.dtype:
    """The unsigned dtype of so many bits."""
    return next(d for d in dtypes.UNSIGNED if 8 * d.itemsize == width)
