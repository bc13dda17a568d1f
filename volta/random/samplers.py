"""Samplers: arrays of random values from a key.

``bits``, ``uniform``, ``randint`` and ``permutation`` give the bits that jax.random gives for the same key. The others
use the same recipes over Volta's own functions (log, erf_inv, …), so they agree with JAX's to rounding, and with
themselves to the bit. Every call with the same key, shape and dtype gives the same values; ``dtype=None`` is the
default of each.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import numpy as np

import volta.lax as lax
import volta.numpy as vnp
from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.random.generators import random_bits
from volta.random.keys import _split, check_key, check_shape
from volta.random.threefry import unsigned

Shape = tuple[int, ...]


def dtype_or(default: Any, dtype: Any) -> np.dtype:
    """A ``dtype`` argument; None, as programs pass it on, is the default."""
    return dtypes.canonicalize(default if dtype is None else dtype)


def _float_dtype(name: str, dtype: Any) -> np.dtype:
    dtype = dtype_or(np.float32, dtype)
    if not dtypes.is_float(dtype):
        raise DTypeError(at_user_line(f"random.{name}: the dtype must be a float dtype, got {dtype}"))
    return dtype


def _fits(name: str, shape: Shape, *parameters: Any) -> None:
    """Parameters must broadcast to exactly ``shape``."""
    batch_shape(name, shape, *(get_aval(p).shape for p in parameters))


def batch_shape(name: str, shape: Any, *shapes: Shape) -> Shape:
    """The shape of what is drawn, by default what the parameters' shapes broadcast to: these must broadcast to it."""
    try:
        together = np.broadcast_shapes(*shapes)
        wanted = together if shape is None else check_shape(name, shape)
        good = np.broadcast_shapes(wanted, together) == wanted
    except ValueError:
        good = False
    if not good:
        to = "" if shape is None else f" to shape {shape}"
        raise ShapeError(at_user_line(f"random.{name}: parameters of shapes {list(shapes)} do not broadcast{to}"))
    return wanted


def parameters(name: str, shape: Any, dtype: np.dtype, *given: Any) -> tuple[Shape, list[Any]]:
    """A distribution's shape, by default what its parameters broadcast to, and these in its dtype."""
    values = [vnp.asarray(x, dtype) for x in given]
    return batch_shape(name, shape, *(x.shape for x in values)), values


def bits(key: Any, shape: Any = (), dtype: Any = np.uint32) -> Array:
    """Uniformly distributed bits as unsigned integers of ``dtype``.

    >>> from volta import random
    >>> random.bits(random.key(0), (2,))
    Array([4070199207, 4202968722], dtype=uint32)
    """
    dtype = dtype_or(np.uint32, dtype)
    if not dtypes.is_unsigned(dtype):
        raise DTypeError(at_user_line(f"random.bits: the dtype must be an unsigned integer, got {dtype}"))
    return _bits(check_key("bits", key), check_shape("bits", shape), dtype)


@partial(jit, static_argnums=(1, 2))
def _bits(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    return random_bits(key, 8 * dtype.itemsize, shape)


def uniform(key: Any, shape: Any = (), dtype: Any = np.float32, minval: Any = 0.0, maxval: Any = 1.0) -> Array:
    """Values in [minval, maxval), uniformly distributed.

    Args:
        key: a key.
        shape: the result's shape.
        dtype: a float dtype.
        minval, maxval: numbers or arrays that broadcast to ``shape``.

    Raises:
        DTypeError: when ``dtype`` is no float dtype.
        ShapeError: when minval or maxval do not broadcast to ``shape``.

    >>> from volta import random
    >>> random.uniform(random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    dtype, shape = _float_dtype("uniform", dtype), check_shape("uniform", shape)
    _fits("uniform", shape, minval, maxval)
    return _uniform(check_key("uniform", key), vnp.asarray(minval, dtype), vnp.asarray(maxval, dtype), shape, dtype)


@partial(jit, static_argnums=(3, 4))
def _uniform(key: Any, minval: Any, maxval: Any, shape: Shape, dtype: np.dtype) -> Any:
    low, high = minval.astype(dtype), maxval.astype(dtype)
    return vnp.maximum(low, scaled(unit(key, shape, dtype), low, high))


def unit(key: Any, shape: Shape, dtype: np.dtype) -> Any:
    """Multiples of 2**-mantissa in [0, 1): random mantissa bits under the exponent of 1.0, minus 1 (exact)."""
    width, mantissa = 8 * dtype.itemsize, dtypes.finfo(dtype).nmant
    drawn = 8 if mantissa < 8 else width  # bfloat16 draws 8 bits, as in JAX
    pattern = lax.shift_right_logical(
        lax.convert_element_type(random_bits(key, drawn, shape), unsigned(width)),
        np.asarray(drawn - mantissa, unsigned(width)),
    )
    pattern = lax.bitwise_or(pattern, np.asarray(1, dtype).view(unsigned(width)))
    return lax.sub(lax.bitcast_convert_type(pattern, dtype), np.asarray(1, dtype))


def scaled(u: Any, low: Any, high: Any) -> Any:
    """``u * (high - low) + low``: one FMA in float32 and float64, two roundings in the halves, as JAX has it."""
    if u.dtype.itemsize < 4:
        return u * (high - low) + low
    span, start = vnp.broadcast_to(high - low, u.shape), vnp.broadcast_to(low, u.shape)
    return lax.fma(u, span, start)


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = np.int32) -> Array:
    """Integers in [minval, maxval), uniformly distributed up to a bias below 2**-32 of the range; minval where empty.

    Args:
        key: a key.
        shape: the result's shape.
        minval, maxval: integers or integer arrays that broadcast to ``shape``; they are clipped to the dtype's range.
        dtype: an integer dtype.

    >>> from volta import random
    >>> random.randint(random.key(0), (4,), 0, 10)
    Array([9, 0, 2, 3], dtype=int32)
    """
    dtype, shape = dtype_or(np.int32, dtype), check_shape("randint", shape)
    if not dtypes.is_integer(dtype):
        raise DTypeError(at_user_line(f"random.randint: the dtype must be an integer dtype, got {dtype}"))
    for bound in (minval, maxval):
        if not dtypes.is_integer(get_aval(bound).dtype):
            raise DTypeError(at_user_line(f"random.randint: bounds must be integers, got {get_aval(bound)}"))
    _fits("randint", shape, minval, maxval)
    return _randint(check_key("randint", key), _bound(minval), _bound(maxval), shape, dtype)


def _clip_to(x: Any, dtype: np.dtype) -> Any:
    """An integer array in another integer dtype, clipped instead of wrapped."""
    here, there = dtypes.iinfo(x.dtype), dtypes.iinfo(dtype)
    low, high = max(here.min, there.min), min(here.max, there.max)
    return vnp.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype)).astype(dtype)


def _bound(x: Any) -> Array:
    """One beyond int32 is legal: a number counts for all of its 64 bits."""
    aval = get_aval(x)
    known = type(x) is int and -(2**31) <= x < 2**31
    return vnp.asarray(x, aval.dtype if not known and dtypes.is_number(aval.dtype, aval.weak_type) else None)


@partial(jit, static_argnums=(3, 4))
def _randint(key: Any, minval: Any, maxval: Any, shape: Shape, dtype: np.dtype) -> Any:
    if dtype.itemsize < 4:  # drawn in 32 bits, so that small dtypes are not biased
        info = dtypes.iinfo(dtype)
        minval = vnp.clip(minval.astype(np.int32), info.min, info.max)
        maxval = vnp.clip(maxval.astype(np.int32), info.min, info.max + 1)
    wide = dtype if dtype.itemsize >= 4 else dtypes.int32
    # A maxval just above the dtype's range is legal: randint(key, shape, 0, 2**32, uint32) gives every value.
    above = vnp.greater(maxval, _clip_to(vnp.asarray(np.asarray(dtypes.iinfo(wide).max, wide)), maxval.dtype))
    low, high = _clip_to(minval, wide), _clip_to(maxval, wide)

    width = 8 * wide.itemsize
    u = unsigned(width)
    one = np.asarray(1, u)
    span = (high - low).astype(u)
    span = vnp.where(high <= low, one, span)
    span = vnp.where(vnp.logical_and(above, high > low), span + one, span)
    # Two draws make a number of twice the width, whose bias is too small to see: (first * 2**width + second) % span.
    # A span of 0 stands for the full range of the dtype: x rem 0 is x.
    multiplier = _remainder(vnp.full_like(span, 2 ** (width // 2)), span)
    multiplier = _remainder(multiplier * multiplier, span)
    keys = _split(key, (2,))
    first, second = random_bits(keys[0], width, shape), random_bits(keys[1], width, shape)
    offset = _remainder(_remainder(first, span) * multiplier + _remainder(second, span), span)
    return (low + offset.astype(wide)).astype(dtype)


def _remainder(x: Any, span: Any) -> Any:
    return lax.rem(*vnp.broadcast_arrays(x, span))


def range_of(x: Any) -> int | None:
    """How many numbers an integer stands for, which may be a known array of rank 0; None for anything else.

    Raises:
        TracerIntegerConversionError: it is traced, so nobody knows.
    """
    whole = isinstance(x, (Array, np.ndarray, np.integer)) and not x.shape and dtypes.is_integer(get_aval(x).dtype)
    return operator.index(x) if whole or (isinstance(x, int) and not isinstance(x, bool)) else None


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Array:
    """A random permutation of ``range(x)`` for an int, or of an array's slices along ``axis``.

    With ``independent``, each vector along ``axis`` is shuffled by itself.

    >>> from volta import random
    >>> random.permutation(random.key(0), 5)
    Array([0, 1, 4, 3, 2], dtype=int32)
    """
    key, whole = check_key("permutation", key), range_of(x)
    if whole is not None:
        return _shuffle(key, vnp.arange(whole, dtype=np.int32), 0)
    x = vnp.asarray(x)
    if x.ndim == 0:
        raise DTypeError(
            at_user_line("random.permutation: give an int for a permuted range, or an array of rank 1 or more")
        )
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(at_user_line(f"random.permutation: axis {axis} is out of range for shape {x.shape}"))
    axis %= x.ndim
    if independent or x.ndim == 1:
        return _shuffle(key, x, axis)
    order = _shuffle(key, vnp.arange(x.shape[axis], dtype=np.int32), 0)
    return vnp.take(x, order, axis=axis)


@partial(jit, static_argnums=(2,))
def _shuffle(key: Any, x: Any, axis: int) -> Any:
    """Stable sorts by fresh random 32-bit keys, often enough that ties in all of them are improbable."""
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = _split(key, (2,))
        key = keys[0]
        _, x = lax.sort((random_bits(keys[1], 32, x.shape), x), dimension=axis, is_stable=True, num_keys=1)
    return x
