"""Weights of a sum of one over axes, and what is reduced over axes and meets what it comes from again.

`volta.nn` has these as its own, and `volta.random` draws with them.
"""

from __future__ import annotations

import math
from typing import Any

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.interp import get_aval
from volta.numpy.promotion import canonical_axes, promote_floats, scalar_like, zero_like
from volta.numpy.taking import where as choose
from volta.numpy.ufuncs import isneginf
from volta.ops import lax

Axis = int | tuple[int, ...] | None


def spread(reduced: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """A reduction of ``x`` over ``axes``, ready to meet ``x`` again."""
    shape = get_aval(x).shape
    if len(axes) == len(shape):
        return reduced
    return lax.broadcast_in_dim(reduced, shape, tuple(i for i in range(len(shape)) if i not in axes))


def axes_of(name: str, x: Array, axis: Axis) -> tuple[int, ...]:
    """The axes to reduce."""
    return canonical_axes(name, axis, get_aval(x).ndim)


def sum_over(x: Array, axes: tuple[int, ...]) -> Array:
    return lax.reduce_sum(x, axes) if axes else x


def top_of(x: Array, axes: tuple[int, ...]) -> Array:
    """The maximum (of complex numbers: of real parts) over ``axes``, -inf of none, a constant for derivatives."""
    shape = get_aval(x).shape
    if any(not shape[a] for a in axes):
        return lax.full([n for a, n in enumerate(shape) if a not in axes], -math.inf, get_aval(x).dtype)
    if dtypes.is_complex(get_aval(x).dtype):  # the sizes of exponentials go by the real parts
        top = top_of(lax.real(x), axes)
        return lax.complex(top, zero_like(top))
    return lax.stop_gradient(lax.reduce_max(x, axes) if axes else x)


def softmax(x: ArrayLike, axis: Axis = -1, where: Any = None) -> Array:
    """exp(x - max(x)) / SUM(exp(x - max(x))) over ``axis``. With a mask ``where``, the rest counts as -inf.

    >>> import volta.numpy as vnp
    >>> softmax(vnp.array([1.0, 1.0, 1.0, 1.0]))
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    x = promote_floats("softmax", x)[0]
    axes = axes_of("softmax", x, axis)
    if where is not None:
        x = choose(where, x, scalar_like(x, -math.inf))
    top = top_of(x, axes)
    if where is not None:  # a row with nothing selected is all zeros, not NaN
        top = lax.select_n(isneginf(top), top, zero_like(top))
    e = lax.exp(lax.sub(x, spread(top, x, axes)))
    total = sum_over(e, axes)
    if where is not None:
        total = lax.select_n(lax.eq(total, zero_like(total)), total, scalar_like(total, 1.0))
    return lax.div(e, spread(total, e, axes))
