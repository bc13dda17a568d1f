"""dtypes, under the names of ``jax.dtypes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from volta.api.arguments import float0
from volta.core.absent import namespace as _namespace
from volta.core.dtypes import canonicalize
from volta.core.errors import DTypeError as TypePromotionError
from volta.core.extended import extended, prng_key
from volta.numpy.inspection import finfo, iinfo
from volta.numpy.types import bfloat16, issubdtype, result_type

__all__ = [
    "TypePromotionError", "bfloat16", "canonicalize_dtype", "extended", "finfo", "float0", "iinfo", "issubdtype",
    "itemsize_bits", "prng_key", "result_type", "scalar_type_of",
]  # fmt: skip


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> np.dtype:
    """Any spelling of a dtype as Volta's own: ``float`` is float32, and float64 stays.

    >>> canonicalize_dtype(float)
    dtype('float32')
    """
    return canonicalize(dtype)


def itemsize_bits(dtype: Any) -> int:
    """How many bits an element takes.

    >>> itemsize_bits("bfloat16")
    16
    """
    return 8 * canonicalize(dtype).itemsize


def scalar_type_of(x: Any) -> type:
    """The Python type of an array's elements, or of a number: bool, int, float or complex.

    >>> scalar_type_of(np.float16(1))
    <class 'float'>
    """
    kind = np.dtype(getattr(x, "dtype", type(x))).kind
    return {"b": bool, "i": int, "u": int, "f": float, "V": float, "c": complex}[kind]


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
