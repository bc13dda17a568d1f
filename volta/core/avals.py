"""Abstract values: what the tracer knows of an array without its data."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.errors import ShapeError, VoltaError
from volta.core.extended import is_key
from volta.core.source import at_user_line

Shape = tuple[int, ...]

MOST_DIMENSIONS, MOST_BYTES = 64, 2**63 - 1


@attrs.frozen(slots=True, cache_hash=True)
class ShapedArray:
    """Shape, dtype and whether the dtype is weak (came from a Python scalar)."""

    shape: Shape
    dtype: np.dtype
    weak_type: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def stored(self) -> ShapedArray:
        """The type of what lies in memory: of random keys their words, along a last axis."""
        return _words_of(self) if is_key(self.dtype) else self

    def keys(self, kind: Any) -> ShapedArray:
        """The type of keys of a type that have these words."""
        return _keys_of(self, kind)

    @property
    def sharding(self) -> None:
        """Types say nothing of where arrays lie; programs written for JAX ask."""
        return None

    def check(self, name: str) -> None:
        """Refuse what no array can be.

        Raises:
            ShapeError: a negative size, more than 64 dimensions, or sizes that amount to 2^63 bytes or more.
        """
        if self.shape:
            _check(name, self.shape, self.dtype.itemsize)

    def update(self, **changes: Any) -> ShapedArray:
        return attrs.evolve(self, **changes)

    def strip_weak(self) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def short(self) -> str:
        """``f32[3,4]``; a weak type carries a star, ``f32*[]``."""
        star = "*" if self.weak_type else ""
        return f"{dtypes.short_name(self.dtype)}{star}[{','.join(map(str, self.shape))}]"

    __str__ = short


@lru_cache(maxsize=256)
def _words_of(keys: ShapedArray) -> ShapedArray:
    kind: Any = keys.dtype
    return ShapedArray((*keys.shape, kind.words), dtypes.uint32)


@lru_cache(maxsize=256)
def _keys_of(words: ShapedArray, kind: Any) -> ShapedArray:
    return ShapedArray(words.shape[:-1], kind)


def as_shape(name: str, shape: Any) -> Shape:
    """A shape given as an int or a sequence of ints.

    Raises:
        ShapeError: for what is no shape.
        TracerIntegerConversionError: for sizes that are traced, and so not known.
    """
    try:
        try:
            out: Shape = (operator.index(shape),)
        except TypeError as error:
            if isinstance(error, VoltaError):
                raise
            out = tuple(map(operator.index, shape))
    except TypeError as error:
        if isinstance(error, VoltaError):
            raise
        raise ShapeError(at_user_line(f"{name}: a shape is an int or a tuple of ints, not {shape!r:.80}")) from None
    _check(name, out, 1)
    return out


def _check(name: str, shape: Shape, itemsize: int) -> None:
    if shape and min(shape) < 0:
        raise ShapeError(at_user_line(f"{name}: shape {shape} has a negative size"))
    if len(shape) > MOST_DIMENSIONS:
        text = f"{name}: an array has at most {MOST_DIMENSIONS} dimensions, not {len(shape)}"
        raise ShapeError(at_user_line(text))
    if math.prod(filter(None, shape)) * itemsize > MOST_BYTES:
        raise ShapeError(at_user_line(f"{name}: an array of shape {shape} has 2^63 bytes or more"))
