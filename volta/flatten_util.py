"""A pytree as one vector and back, for algorithms that are written for vectors. The name of ``jax.flatten_util``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import volta.numpy as vnp
from volta.core import pytrees
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.ops import lax

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves of ``pytree``, in order, as one vector, and the function that makes such a tree of a vector.

    Args:
        pytree: a tree of arrays and numbers.

    Returns:
        A vector of the dtype that the leaves promote to, and ``unravel``: from a vector of that length to a tree of the
        same structure, shapes and dtypes. It raises ShapeError for another length.

    >>> import volta.numpy as vnp
    >>> flat, unravel = ravel_pytree({"b": vnp.zeros(2), "w": vnp.ones((1, 2))})
    >>> flat
    Array([0., 0., 1., 1.], dtype=float32)
    >>> unravel(flat * 2)["w"]
    Array([[2., 2.]], dtype=float32)
    """
    leaves, structure = pytrees.flatten(pytree)
    arrays = [vnp.asarray(leaf) for leaf in leaves]
    kinds = [(x.shape, x.dtype, x.size) for x in arrays]
    size = sum(n for _, _, n in kinds)
    ends = list(itertools.accumulate(n for _, _, n in kinds))[:-1]

    def unravel(flat: Any) -> Any:
        """The tree of a vector."""
        if vnp.shape(flat) != (size,):
            raise ShapeError(
                at_user_line(
                    f"unravel: the tree has {size} elements, so it needs shape ({size},), not {vnp.shape(flat)}"
                )
            )
        parts = vnp.split(flat, ends) if kinds else []
        return pytrees.unflatten(
            structure, [lax.reshape(x, shape).astype(dtype) for x, (shape, dtype, _) in zip(parts, kinds, strict=True)]
        )

    return vnp.concatenate([vnp.ravel(x) for x in arrays]) if arrays else vnp.zeros(0), unravel
