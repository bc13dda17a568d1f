"""Losses for each example, under optax's names. Average them as the model needs."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.nn.activations import log_sigmoid
from volta.nn.normalization import log_softmax
from volta.numpy.promotion import (
    aval_of,
    canonical_axis,
    convert,
    float_operands,
    promote_floats,
    scalar_like,
    zero_like,
)
from volta.ops import lax


def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: int | tuple[int, ...] = -1, where: Any = None
) -> Array:
    """-SUM(labels * log_softmax(logits)) over ``axis``; ``labels`` are probabilities (one-hot vectors, say)."""
    log_p = log_softmax(logits, axis, where)
    terms = vnp.multiply(labels, log_p)
    if where is not None:
        terms = vnp.where(where, terms, zero_like(terms))
    return lax.neg(vnp.sum(terms, axis))


def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: int = -1, where: Any = None
) -> Array:
    """log(SUM(exp(logits))) - logits[label] over ``axis``; ``labels`` has the other axes' shape.

    A label out of range gives NaN. With a mask ``where`` (the shape of ``logits``) the rest is left out of the sum.

    >>> import volta.numpy as vnp
    >>> softmax_cross_entropy_with_integer_labels(vnp.array([[0.0, 0.0]]), vnp.array([1]))
    Array([0.6931472], dtype=float32)
    """
    logits = promote_floats("softmax_cross_entropy", logits)[0]
    x, y = get_aval(logits), aval_of("softmax_cross_entropy", labels)
    axis = canonical_axis("softmax_cross_entropy", axis, x.ndim)
    rest = tuple(i for i in range(x.ndim) if i != axis)
    if not dtypes.is_integer(y.dtype):
        raise DTypeError(
            at_user_line(f"softmax_cross_entropy_with_integer_labels: labels are {y.short()}, not integers")
        )
    if y.shape != tuple(x.shape[i] for i in rest):
        raise ShapeError(
            at_user_line(
                f"softmax_cross_entropy_with_integer_labels: logits of shape {x.shape} and axis {axis} need labels of "
                f"shape {tuple(x.shape[i] for i in rest)}, got {y.shape}"
            )
        )
    if where is not None:
        logits = vnp.where(where, logits, scalar_like(logits, -np.inf))
    top = lax.stop_gradient(lax.reduce_max(logits, (axis,)))
    shifted = lax.sub(logits, lax.broadcast_in_dim(top, x.shape, rest))
    total = lax.log(lax.reduce_sum(lax.exp(shifted), (axis,)))
    # The label's logit as a masked sum of one term: exact, one pass with the rest, and its gradient needs no scatter.
    labels = convert(labels, dtypes.int32)
    place = lax.broadcasted_iota(dtypes.int32, x.shape, axis)
    here = lax.eq(place, lax.broadcast_in_dim(labels, x.shape, rest))
    chosen = lax.reduce_sum(lax.select_n(here, zero_like(logits), shifted), (axis,))
    inside = lax.lt(
        lax.bitcast_convert_type(labels, dtypes.uint32), np.uint32(x.shape[axis])
    )  # negative ones are large
    return lax.select_n(inside, scalar_like(logits, np.nan), lax.sub(total, chosen))


def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Array:
    """-labels * log(p) - (1 - labels) * log(1 - p), where p = sigmoid(logits), element by element."""
    logits, labels = float_operands("sigmoid_binary_cross_entropy", logits, labels)
    one = scalar_like(labels, 1.0)
    positive = lax.mul(labels, log_sigmoid(logits))
    negative = lax.mul(lax.sub(one, labels), log_sigmoid(lax.neg(logits)))
    return lax.neg(lax.add(positive, negative))


def squared_error(predictions: ArrayLike, targets: Any = None) -> Array:
    """(predictions - targets)**2, element by element."""
    errors = predictions if targets is None else vnp.subtract(predictions, targets)
    return vnp.square(errors)


def l2_loss(predictions: ArrayLike, targets: Any = None) -> Array:
    """Half of :func:`squared_error`."""
    return vnp.multiply(0.5, squared_error(predictions, targets))
