"""Keys of ``jax.random`` as Volta has them: two uint32 words, along a last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import jax
import numpy as np

from volta.api.vmap import vmap
from volta.core import pytrees
from volta.core.array import Array
from volta.core.errors import UnsupportedOperationError
from volta.core.source import at_user_line
from volta.runtime.array import as_array

WORDS = 2


@attrs.frozen(eq=False)
class Key:
    """An array of JAX's keys among the arguments or results of a translated function: a pytree around its words."""

    words: Array


pytrees.register_dataclass(Key)


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


def words(keys: Any) -> Array:
    """JAX's keys as their words."""
    return as_array(np.asarray(jax.random.key_data(keys)))


def key_dtype() -> Any:
    """JAX's dtype of keys."""
    return jax.random.key(0).dtype


def among(eqn: Any) -> list[bool]:
    """Which operands of an equation are keys.

    Raises:
        NotImplementedError: some are, and a result is none: it does not just move them.
    """
    found = [is_key(v.aval) for v in eqn.invars]
    if any(found) and not (len(eqn.outvars) == 1 and is_key(eqn.outvars[0].aval)):
        raise NotImplementedError("of keys it is not translated; take jax.random.key_data of them before")
    return found


def by_words(move: Callable[..., Any], of_keys: list[bool]) -> Callable[..., Any]:
    """What moves elements, for keys: it moves the first words and the second ones in the same way."""
    return vmap(move, [-1 if k else None for k in of_keys], -1)
