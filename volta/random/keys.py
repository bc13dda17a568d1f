"""Keys: where randomness comes from.

A key is a scalar of the dtype ``key<fry>``: so a program cannot take it for a number, and an array of keys has one
element a key. Its two words, a uint32 array of shape (2,), are what jax.random calls a raw key, and functions take
either; numbers are drawn from words. Keys of other generators (``impl="rbg"``) have a dtype and a number of words of
their own (``volta.core.extended``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray, as_shape
from volta.core.errors import DTypeError, ShapeError
from volta.core.extended import FRY, KEY_TYPES, is_key
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import keys as ops
from volta.random import generators
from volta.random.generators import GENERATORS, RAW, type_of
from volta.runtime.array import ConcreteArray

# -- the two forms of a key --------------------------------------------------------------------------------------------


def _words(keys: Any) -> Any:
    """The words of keys; of known ones the same memory."""
    return keys.stored() if type(keys) is ConcreteArray else ops.unwrap(keys)


def _typed(data: Any, kind: Any) -> Any:
    """Keys of words; of known ones the same memory."""
    if type(data) is ConcreteArray:
        return data.keyed(kind)
    return ops.wrap(data, kind.impl)


def _kind(name: str, impl: Any, dtype: Any = None) -> Any:
    """The type of a generator's keys; it is named by ``impl`` or by the ``dtype`` of its keys."""
    if dtype is not None:
        if impl is not None:
            raise ValueError(at_user_line(f"random.{name}: impl and dtype say the same: give one of them"))
        impl = dtype
    if impl is None:
        return FRY
    found = next((t for t in KEY_TYPES if impl in (t, t.impl)), None)
    if found is None:
        there = ", ".join(t.impl for t in KEY_TYPES)
        raise ValueError(at_user_line(f"random.{name}: impl={impl!r}: there is no such generator; there are {there}"))
    return found


def _type_of_key(name: str, key: Any) -> ShapedArray:
    """The type of a key, or of an array of them."""
    try:
        return get_aval(key)
    except DTypeError:
        what = f"{key!r:.60} of type {type(key).__name__}"
    raise DTypeError(at_user_line(f"random.{name}: a key is made by random.key(seed), got {what}"))


def check_key(name: str, key: Any) -> Any:
    """The words of ``key``, or itself, if they do not say its type; an error in the words of the function ``name``."""
    aval = _type_of_key(name, key)
    if is_key(aval.dtype) and not aval.shape:
        return _words(key) if aval.dtype in RAW.values() else key
    if _is_raw(aval) and aval.ndim == 1:
        return vnp.asarray(key)
    if is_key(aval.dtype) or _is_raw(aval):
        text = f"random.{name}: takes one key, got an array of them, {aval}; use vmap, or split one key as often"
        raise ShapeError(at_user_line(text))
    text = f"random.{name}: the key must be one of random.key(seed), or its uint32 words of shape (2,), got {aval}"
    raise DTypeError(at_user_line(text))


def _is_raw(aval: ShapedArray) -> bool:
    return aval.dtype == dtypes.uint32 and aval.ndim > 0 and aval.shape[-1] in RAW


def _as_given(key: Any, new: Any) -> Any:
    """New words, or keys, in the form that ``key`` has."""
    kind = get_aval(key).dtype
    return _typed(new, kind) if is_key(kind) and not is_key(get_aval(new).dtype) else new


# -- making keys -------------------------------------------------------------------------------------------------------


def key_dtype(impl: Any = None) -> Any:
    """The dtype of a generator's keys, by default of threefry's: ``key<fry>``.

    Raises:
        ValueError: there is no such generator.

    >>> from volta import random
    >>> random.key_dtype(), random.key_dtype("rbg")
    (key<fry>, key<rbg>)
    """
    return _kind("key_dtype", impl)


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """A key from an integer seed: a scalar of dtype ``key<fry>``.

    Keys can be put into pytrees and arrays, indexed, reshaped and chosen among, compared by ``==``, carried by loops,
    mapped over with ``vmap``, saved and donated like any array; arithmetic with them is refused. ``key_data`` gives
    their words, the seed's, high word first. The high word of a seed of 32 bits or fewer, as of a Python int in
    [-2**31, 2**31), is 0 also below zero: the words of ``key(-1)`` are [0, 2**32 - 1]. So they are jax.random's keys;
    for wider seeds those of JAX in its 64-bit mode.

    Args:
        seed: a Python int in [-2**63, 2**64), or an integer or bool scalar array.
        impl: the generator: 'threefry2x32', which is the default; 'rbg', whose bits are Philox's, in the layout of JAX
            on the CPU, and whose new keys are threefry's; 'unsafe_rbg', which makes new keys by Philox too.
        dtype: the same, as ``key_dtype`` gives it.

    Raises:
        DTypeError: when the seed is not an integer.
        ShapeError: when it is not a scalar; use ``vmap(key)(seeds)``.
        OverflowError: for a Python int of more than 64 bits.
        ValueError: for another generator, or where both are given.

    >>> from volta import random
    >>> random.key(42)
    Array((), dtype=key<fry>) overlaying:
    [ 0 42]
    """
    kind = _kind("key", impl, dtype)
    return _typed(_seeded("key", seed, kind), kind)


def PRNGKey(seed: Any, *, impl: Any = None) -> Array:  # noqa: N802 - JAX's name
    """A raw key: the words of ``key(seed)``, a uint32 array of shape (2,), of 'rbg' and 'unsafe_rbg' (4,).

    Every function that takes a key takes either, and draws the same numbers. Four words are taken for a key of 'rbg'.

    Args:
        seed, impl: as those of `key`, and so the errors.

    >>> from volta import random
    >>> random.PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    return _seeded("PRNGKey", seed, _kind("PRNGKey", impl))


def _seeded(name: str, seed: Any, kind: Any) -> Any:
    """The words of a generator's key from a seed."""
    words = _seed_words(name, seed)
    return words if kind == FRY else GENERATORS[kind].seed(words)


def _seed_words(name: str, seed: Any) -> Any:
    """The two words of a seed."""
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**64:
            raise OverflowError(at_user_line(f"random.{name}: the seed must have 64 bits, got {seed}"))
        high = 0 if -(2**31) <= seed < 0 else (seed >> 32) & 0xFFFFFFFF
        return vnp.asarray(np.array([high, seed & 0xFFFFFFFF], np.uint32))
    aval = get_aval(seed)
    if not (dtypes.is_integer(aval.dtype) or aval.dtype == dtypes.bool_):
        raise DTypeError(at_user_line(f"random.{name}: the seed must be an integer, got {aval}"))
    if aval.shape:
        raise ShapeError(at_user_line(f"random.{name}: the seed must be a scalar, got {aval}; use vmap({name})(seeds)"))
    return _of_seed(seed if aval.weak_type else vnp.asarray(seed))


@jit
def _of_seed(seed: Any) -> Any:
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


# -- keys and their words ----------------------------------------------------------------------------------------------


def key_data(keys: Any) -> Array:
    """The uint32 words of keys, of shape (..., 2), of other generators than threefry (..., 4); of raw keys themselves.

    >>> from volta import random
    >>> random.key_data(random.key(7))
    Array([0, 7], dtype=uint32)
    """
    aval = _type_of_key("key_data", keys)
    if is_key(aval.dtype):
        return _words(keys)
    _check_words("key_data", aval, RAW)
    return vnp.asarray(keys)


def _check_words(name: str, aval: ShapedArray, words: Collection[int]) -> None:
    if aval.dtype != dtypes.uint32 or not aval.shape or aval.shape[-1] not in words:
        shapes = " or ".join(f"(..., {n})" for n in words)
        raise DTypeError(at_user_line(f"random.{name}: words of keys are uint32 arrays of shape {shapes}, got {aval}"))


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """Keys of their uint32 words, of shape (..., 2), or (..., 4) for 'rbg'; ``impl`` and ``dtype`` as in `key`.

    Raises:
        DTypeError: for another dtype or shape.
        ValueError: for another generator.

    >>> from volta import random
    >>> random.wrap_key_data(random.PRNGKey(7)) == random.key(7)
    Array(True, dtype=bool)
    """
    kind = _kind("wrap_key_data", impl, dtype)
    data = key_bits_array if isinstance(key_bits_array, Array) else vnp.asarray(key_bits_array)  # JAX's words too
    _check_words("wrap_key_data", data.aval, (kind.words,))
    return _typed(data, kind)


def key_impl(keys: Any) -> str:
    """The name of the generator behind keys, typed or raw: 'threefry2x32', 'rbg' or 'unsafe_rbg'."""
    key_data(keys)
    return str(type_of(keys).impl)


def clone(key: Any) -> Array:
    """The same keys, typed or raw. Using both gives the same numbers twice, which is what a clone is for."""
    data = key_data(key)
    return _as_given(key, data)


# -- new keys ----------------------------------------------------------------------------------------------------------


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A shape argument as a tuple of Python ints."""
    return as_shape(f"random.{name}", shape)


def split(key: Any, num: int | tuple[int, ...] = 2) -> Array:
    """New keys from one, independent of each other. Use the old key no further.

    Args:
        key: a key.
        num: how many, or the shape of the array of keys.

    Returns:
        keys of shape (num,), or num; of a raw key raw ones, of shape (num, 2), or (*num, 2) (of four words, with 4).

    >>> from volta import random
    >>> key, subkey = random.split(random.key(0))
    >>> random.key_data(subkey)
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    return _as_given(key, _split(check_key("split", key), check_shape("split", num)))


_split = jit(generators.split, static_argnums=(1,))


def fold_in(key: Any, data: Any) -> Array:
    """A new key from a key and an integer, such as a step count or a layer's number.

    Args:
        key: a key.
        data: a Python int in [0, 2**32), or an integer scalar array (taken modulo 2**32).

    Returns:
        a key, raw where ``key`` is.

    >>> from volta import random
    >>> random.key_data(random.fold_in(random.key(0), 1))
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    raw = check_key("fold_in", key)
    if isinstance(data, int) and not isinstance(data, bool):
        if not 0 <= data < 2**32:
            raise OverflowError(at_user_line(f"random.fold_in: data must be in [0, 2**32), got {data}"))
        return _as_given(key, _fold_in(raw, vnp.asarray(np.uint32(data))))
    aval = get_aval(data)
    if not dtypes.is_integer(aval.dtype) or aval.shape:
        raise DTypeError(
            at_user_line(f"random.fold_in: data must be an integer scalar, got {aval}; vmap maps over more")
        )
    if aval.weak_type:  # a traced Python int, which must fit as well
        data = lax.convert_element_type(data, np.uint32)
    return _as_given(key, _fold_in(raw, vnp.asarray(data)))


@jit
def _fold_in(key: Any, data: Any) -> Any:
    return generators.fold_in(key, lax.convert_element_type(data, np.uint32))
