"""Keys: where randomness comes from. A key is an ordinary uint32 array of shape (2,)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import as_shape
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.random.threefry import counters, threefry2x32, words


def key(seed: Any) -> Array:
    """A key from an integer seed.

    A key is a uint32 array of shape (2,), what jax.random calls a raw key (its ``PRNGKey``): it can be put into
    pytrees, mapped over with ``vmap``, saved and donated like any array. Its words are the seed's, high word first. The
    high word of a seed of 32 bits or fewer, as of a Python int in [-2**31, 2**31), is 0 also below zero: ``key(-1)``
    is [0, 2**32 - 1]. So they are jax.random's keys; for wider seeds those of JAX in its 64-bit mode.

    Args:
        seed: a Python int in [-2**63, 2**64), or an integer scalar array.

    Raises:
        DTypeError: when the seed is not an integer.
        ShapeError: when it is not a scalar; use ``vmap(key)(seeds)``.

    >>> from volta import random
    >>> random.key(42)
    Array([ 0, 42], dtype=uint32)
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**64:
            raise ValueError(at_user_line(f"random.key: the seed must have 64 bits, got {seed}"))
        high = 0 if -(2**31) <= seed < 0 else (seed >> 32) & 0xFFFFFFFF
        return vnp.asarray(np.array([high, seed & 0xFFFFFFFF], np.uint32))
    aval = get_aval(seed)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(at_user_line(f"random.key: the seed must be an integer, got {aval}"))
    if aval.shape:
        raise ShapeError(at_user_line(f"random.key: the seed must be a scalar, got {aval}; use vmap(key)(seeds)"))
    return _key(seed if aval.weak_type else vnp.asarray(seed))


PRNGKey = key


def key_data(keys: Any) -> Array:
    """The uint32 words of keys: the keys themselves, which are nothing else."""
    aval = get_aval(keys)
    if aval.dtype != dtypes.uint32 or aval.shape[-1:] != (2,):
        raise DTypeError(at_user_line(f"random.key_data: keys are uint32 arrays of shape (..., 2), got {aval}"))
    return vnp.asarray(keys)


def wrap_key_data(key_bits_array: Any, *, impl: str | None = None) -> Array:
    """Keys from their uint32 words, of shape (..., 2); ``impl`` can only be 'threefry2x32'."""
    if impl not in (None, "threefry2x32"):
        raise ValueError(at_user_line(f"random.wrap_key_data: impl must be 'threefry2x32', not {impl!r}"))
    return key_data(key_bits_array)


def key_impl(keys: Any) -> str:
    """The name of the generator behind keys: always 'threefry2x32'."""
    key_data(keys)
    return "threefry2x32"


def clone(key: Any) -> Array:
    """The same key. Using both gives the same numbers twice, which is what a clone is for."""
    return key_data(key)


@jit
def _key(seed: Any) -> Any:
    if get_aval(seed).weak_type:  # a traced Python int, of 64 bits, is narrow by its value
        seed = lax.convert_element_type(seed, seed.dtype)
        short = vnp.logical_and(seed >= -(2**31), seed < 0) if dtypes.is_signed(seed.dtype) else False
        seed = vnp.where(short, vnp.bitwise_and(seed, 0xFFFFFFFF), seed)
    low = lax.convert_element_type(seed, np.uint32)
    if seed.dtype.itemsize < 8:  # the words above a narrow seed are zero, as in JAX, also below zero
        high = vnp.zeros((), np.uint32)
    else:
        high = lax.convert_element_type(lax.shift_right_logical(seed, np.asarray(32, seed.dtype)), np.uint32)
    return vnp.stack([high, low])


def check_key(name: str, key: Any) -> Any:
    """``key`` as an array, or an error in the words of the function ``name``."""
    aval = get_aval(key)
    if aval.dtype != dtypes.uint32 or aval.shape != (2,):
        hint = "; use vmap for an array of keys" if aval.dtype == dtypes.uint32 and aval.shape[-1:] == (2,) else ""
        raise DTypeError(
            at_user_line(
                f"random.{name}: the key must be a uint32 array of shape (2,) from random.key, got {aval}{hint}"
            )
        )
    return vnp.asarray(key)


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A shape argument as a tuple of Python ints."""
    return as_shape(f"random.{name}", shape)


def split(key: Any, num: int | tuple[int, ...] = 2) -> Array:
    """New keys from one, independent of each other. Use the old key no further.

    Args:
        key: a key.
        num: how many, or the shape of the array of keys.

    Returns:
        uint32 array of shape (num, 2), or (*num, 2).

    >>> from volta import random
    >>> key, subkey = random.split(random.key(0))
    >>> subkey
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    return _split(check_key("split", key), check_shape("split", num))


@partial(jit, static_argnums=(1,))
def _split(key: Any, shape: tuple[int, ...]) -> Any:
    first, second = threefry2x32(words(key), *counters(math.prod(shape)))
    return vnp.stack([first, second], axis=-1).reshape((*shape, 2))


def fold_in(key: Any, data: Any) -> Array:
    """A new key from a key and an integer, such as a step count or a layer's number.

    Args:
        key: a key.
        data: a Python int in [0, 2**32), or an integer scalar array (taken modulo 2**32).

    >>> from volta import random
    >>> random.fold_in(random.key(0), 1)
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    key = check_key("fold_in", key)
    if isinstance(data, int) and not isinstance(data, bool):
        if not 0 <= data < 2**32:
            raise OverflowError(at_user_line(f"random.fold_in: data must be in [0, 2**32), got {data}"))
        return _fold_in(key, vnp.asarray(np.uint32(data)))
    aval = get_aval(data)
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DTypeError(
            at_user_line(f"random.fold_in: data must be an integer scalar, got {aval}; vmap maps over more")
        )
    if aval.weak_type:  # a traced Python int, which must fit as well
        data = lax.convert_element_type(data, np.uint32)
    return _fold_in(key, vnp.asarray(data))


@jit
def _fold_in(key: Any, data: Any) -> Any:
    return vnp.stack(threefry2x32(words(key), np.uint32(0), lax.convert_element_type(data, np.uint32)))
