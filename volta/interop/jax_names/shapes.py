"""``jax.lax``'s functions of shapes, and what its Taylor series count by: names that layers written for JAX ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import volta
from volta.core.array import Array

Shape = tuple[int, ...]


def _shape_of(function: Callable[..., Any], *shapes: Sequence[int]) -> Shape:
    """The shape of what a function gives of float32 arrays."""
    given = [volta.ShapeDtypeStruct(tuple(map(int, s)), np.dtype(np.float32)) for s in shapes]
    return tuple(volta.eval_shape(function, *given).shape)


def conv_general_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Any, padding: Any, dimension_numbers: Any
) -> Shape:
    """The shape of a convolution."""
    how = {"window_strides": window_strides, "padding": padding, "dimension_numbers": dimension_numbers}
    return _shape_of(partial(volta.lax.conv_general_dilated, **how), lhs_shape, rhs_shape)


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Any, padding: Any, dimension_numbers: Any
) -> Shape:
    """The shape of a transposed convolution."""
    how = {"strides": window_strides, "padding": padding, "dimension_numbers": dimension_numbers}
    return _shape_of(partial(volta.lax.conv_transpose, **how), lhs_shape, rhs_shape)


def reduce_window_shape_tuple(
    operand_shape: Sequence[int], window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any = None, window_dilation: Any = None,
) -> Shape:  # fmt: skip
    """The shape of windows' reductions."""

    def reduced(x: Any) -> Any:
        return volta.lax.reduce_window(
            x, np.float32(0), volta.lax.add, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )

    return _shape_of(reduced, operand_shape)


def fact(n: Any) -> Array:
    """n!, by which Taylor's terms are divided."""
    out: Array = volta.numpy.exp(volta.scipy.special.gammaln(volta.numpy.asarray(n) + 1.0))
    return out


LAX: dict[str, Any] = {
    f.__name__: f for f in (conv_general_shape_tuple, conv_transpose_shape_tuple, reduce_window_shape_tuple)
}
JET: dict[str, Any] = {"fact": fact}
