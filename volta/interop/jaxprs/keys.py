"""Keys of ``jax.random`` as Volta's, and back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from volta import random
from volta.core.array import Array
from volta.core.errors import UnsupportedOperationError
from volta.core.source import at_user_line


def is_key(x: Any) -> bool:
    """Whether an array of JAX's, or the type of one, is of keys.

    Raises:
        UnsupportedOperationError: it is, of another generator than threefry.
    """
    dtype = getattr(x, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    if str(dtype) != "key<fry>":
        raise UnsupportedOperationError(
            at_user_line(f"from_jax: keys of type {dtype}: there are those of threefry, jax.random.key(seed)")
        )
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
    return random.wrap_key_data(np.asarray(jax.random.key_data(keys)))


def key_dtype() -> Any:
    """JAX's dtype of keys."""
    return jax.random.key(0).dtype
