"""Pooling over windows, with the interface of ``flax.linen``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from volta import lax
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import base

__all__ = ["avg_pool", "max_pool", "min_pool"]


def _pooled(
    name: str,
    x: Any,
    start: Any,
    combine: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Any,
) -> Any:
    """``x`` of shape (…, space, features) reduced over windows of its space."""
    aval, n = get_aval(x), len(window_shape)
    before = aval.ndim - n - 1
    if before < 0 or (strides is not None and len(strides) != n):
        raise ShapeError(
            at_user_line(
                f"{name}: a window {tuple(window_shape)} with strides {strides} does not fit {aval}: wanted (…, space, "
                f"features) with {n} axes of space, and a stride for each"
            )
        )
    ones = (1,) * before
    pads = padding if isinstance(padding, str) else [(0, 0)] * before + [tuple(p) for p in padding] + [(0, 0)]
    steps = (1,) * n if strides is None else tuple(strides)
    return lax.reduce_window(x, start, combine, (*ones, *window_shape, 1), (*ones, *steps, 1), pads)


def max_pool(
    x: ArrayLike, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID"
) -> Array:
    """The largest element of each window of space; its derivative goes to the first such element.

    Args:
        x: shape (…, space, features).
        window_shape: the window's size, an axis of space each.
        strides: by how much it moves; None is 1 everywhere.
        padding: 'VALID', 'SAME' or ``(low, high)`` an axis of space; it takes no part.

    Raises:
        ShapeError: for windows that do not fit.

    >>> nn.max_pool(np.float32([[1], [5], [2], [4]]), (2,), (2,))
    Array([[5.],
           [4.]], dtype=float32)
    """
    return _pooled("max_pool", x, dtypes.lowest(base.dtype_of(x)), lax.max, window_shape, strides, padding)


def min_pool(
    x: ArrayLike, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID"
) -> Array:
    """The smallest element of each window of space; see :func:`max_pool`.

    >>> nn.min_pool(np.float32([[1], [5], [2], [4]]), (2,), (2,))
    Array([[1.],
           [2.]], dtype=float32)
    """
    return _pooled("min_pool", x, dtypes.highest(base.dtype_of(x)), lax.min, window_shape, strides, padding)


def avg_pool(
    x: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """The mean of each window of space: SUM of the bit contract, divided by how many elements there are.

    ``count_include_pad`` says whether padding, which is 0, counts as elements; for the rest see :func:`max_pool`.

    >>> nn.avg_pool(np.float32([[1], [5], [2], [4]]), (2,), (2,))
    Array([[3.],
           [3.]], dtype=float32)
    """
    total = _pooled("avg_pool", x, 0, lax.add, window_shape, strides, padding)
    dtype, shape = base.dtype_of(total), base.shape_of(total)
    if not dtypes.is_float(dtype):
        raise base.dtype_error("avg_pool", (get_aval(x),), "takes floats; use astype first.")
    if count_include_pad:
        return lax.div(total, base.fill(shape, prod(window_shape), dtype))
    there = lax.full(base.shape_of(x)[-len(window_shape) - 1 :], 1, dtype)
    counted = _pooled("avg_pool", there, 0, lax.add, window_shape, strides, padding)
    return lax.div(total, base.broadcast_to(counted, shape, range(len(shape) - counted.ndim, len(shape))))
