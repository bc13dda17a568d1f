"""Keys of ``jax.random`` as Volta's, and back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from volta import random
from volta.core.array import Array
from volta.core.errors import UnsupportedOperationError
from volta.core.extended import KEY_TYPES
from volta.core.source import at_user_line

KINDS = {t.name: t for t in KEY_TYPES}
"""Volta's types of keys, which have the names of JAX's."""


def kind_of(keys: Any) -> Any:
    """Volta's type of keys of JAX's."""
    return KINDS[str(keys.dtype)]


def is_key(x: Any) -> bool:
    """Whether an array of JAX's, or the type of one, is of keys.

    Raises:
        UnsupportedOperationError: it is, of a generator that Volta does not have.
    """
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    if str(dtype) not in KINDS:
        raise UnsupportedOperationError(at_user_line(f"from_jax: keys of type {dtype}: there are {', '.join(KINDS)}"))
    return True


def check_drawing() -> None:
    """Refuse JAX's old way to draw numbers from keys."""
    if not jax.config.jax_threefry_partitionable:
        raise NotImplementedError(
            "JAX draws numbers in its old way, jax_threefry_partitionable is off. Volta has those of the new one: "
            "jax.config.update('jax_threefry_partitionable', True)"
        )


def from_jax(keys: Any) -> Array:
    """Keys of JAX's as Volta's."""
    return random.wrap_key_data(np.asarray(jax.random.key_data(keys)), dtype=kind_of(keys))


def key_dtype(kind: Any) -> Any:
    """JAX's dtype of keys of a type of Volta's."""
    return jax.random.key(0, impl=kind.impl).dtype
