"""Softmax and its relatives, normalisation layers, one-hot vectors and embeddings.

Softmax and layer norm follow the definitions of the bit contract, so their bits never depend on batch or fusion.
"""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.nn.quantized import QuantizedArray
from volta.numpy.normalizing import Axis, axes_of, spread, sum_over, top_of
from volta.numpy.promotion import (
    as_value,
    aval_of,
    canonical_axes,
    canonical_axis,
    convert,
    promote_floats,
    scalar_like,
    zero_like,
)
from volta.ops import lax


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    shape = get_aval(x).shape
    return lax.div(sum_over(x, axes), scalar_like(x, math.prod(shape[a] for a in axes)))


def log_softmax(x: ArrayLike, axis: Axis = -1, where: Any = None) -> Array:
    """x - max(x) - log(SUM(exp(x - max(x)))) over ``axis``; -inf of what ``where`` leaves out."""
    x = promote_floats("log_softmax", x)[0]
    axes = axes_of("log_softmax", x, axis)
    if where is not None:
        x = vnp.where(where, x, scalar_like(x, -math.inf))
    shifted = lax.sub(x, spread(top_of(x, axes), x, axes))
    total = lax.log(sum_over(lax.exp(shifted), axes))
    out = lax.sub(shifted, spread(total, shifted, axes))
    return out if where is None else vnp.where(where, out, scalar_like(out, -math.inf))


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: Any = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: Any = None,
) -> tuple[Array, Array]: ...
def logsumexp(
    a: ArrayLike, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(SUM(b * exp(a))) over ``axis`` (None: all), without overflow; infinities give infinities, not NaN.

    With ``return_sign`` the logarithm of the absolute value and the sign; without it a negative sum gives NaN, and a
    sum of complex numbers its complex logarithm.
    """
    x = promote_floats("logsumexp", a)[0]
    if where is not None:  # what is left out counts as a sum of nothing, in derivatives too
        x, where = vnp.broadcast_arrays(x, where)
        x = lax.select_n(vnp.astype(where, bool), scalar_like(x, -math.inf), x)
    if b is not None:
        b, x = vnp.broadcast_arrays(convert(b, get_aval(x).dtype), x)
        # a weight of 0 leaves its element out, also an infinite one
        x = lax.select_n(lax.eq(b, zero_like(b)), x, scalar_like(x, -math.inf))
    axes = canonical_axes("logsumexp", axis, get_aval(x).ndim)
    in_parts = dtypes.is_complex(get_aval(x).dtype)
    top = lax.stop_gradient(vnp.max(lax.real(x) if in_parts else x, axes, where=where, initial=-math.inf))
    top = lax.select_n(lax.is_finite(top), zero_like(top), top)
    top = lax.complex(top, zero_like(top)) if in_parts else top
    e = lax.exp(lax.sub(x, spread(top, x, axes)))
    total = vnp.sum(e if b is None else lax.mul(b, e), axis, keepdims=keepdims, where=where)
    sign = lax.sign(total)
    out = lax.log(lax.abs(total) if return_sign else total)
    top = lax.real(top) if in_parts and return_sign else top
    out = lax.add(out, lax.reshape(top, get_aval(out).shape))
    return (out, sign) if return_sign else out


def logmeanexp(x: ArrayLike, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Array:
    """log(MEAN(exp(x))) over ``axis``, of the elements where the mask ``where`` is True."""
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    shape = get_aval(x).shape
    if where is not None:
        count = vnp.sum(vnp.broadcast_to(where, shape), axis, keepdims=keepdims)
        return lax.sub(total, lax.log(convert(count, get_aval(total).dtype)))
    n = math.prod(shape[i] for i in canonical_axes("logmeanexp", axis, len(shape)))
    return lax.sub(total, lax.log(scalar_like(total, n)))


def standardize(
    x: ArrayLike, axis: Axis = -1, mean: Any = None, variance: Any = None, epsilon: float = 1e-5, where: Any = None
) -> Array:
    """(x - mean) / sqrt(variance + epsilon); mean and variance over ``axis`` unless given."""
    x = promote_floats("standardize", x)[0]
    if mean is None:
        mean = vnp.mean(x, axis, keepdims=True, where=where)
    d = vnp.subtract(x, mean)
    if variance is None:
        variance = vnp.mean(lax.mul(d, d), axis, keepdims=True, where=where)
    return vnp.multiply(d, lax.rsqrt(vnp.add(variance, epsilon)))


def layer_norm(x: ArrayLike, scale: Any = None, bias: Any = None, axis: Axis = -1, eps: float = 1e-5) -> Array:
    """(x - mean) * (1 / sqrt(var + eps)) over ``axis``, times ``scale``, plus ``bias``.

    Two passes: MEAN, then var = SUM(d * d) / n of the distances d from it. Half floats compute in float32.

    Args:
        x: any float array.
        scale, bias: None, or arrays of the sizes of the normalised axes (in their order in ``x``).
        axis: an axis or several (None: all).
        eps: added to the variance.

    >>> import volta.numpy as vnp
    >>> layer_norm(vnp.array([[1.0, 3.0]]), eps=0.0)
    Array([[-1.,  1.]], dtype=float32)
    """
    x, out_dtype = _compute("layer_norm", x)
    axes = axes_of("layer_norm", x, axis)
    d = lax.sub(x, spread(_mean(x, axes), x, axes))
    variance = _mean(lax.mul(d, d), axes)
    factor = lax.rsqrt(lax.add(variance, scalar_like(variance, eps)))
    y = lax.mul(d, spread(factor, d, axes))
    return convert(_affine("layer_norm", y, scale, bias, axes), out_dtype)


def rms_norm(x: ArrayLike, scale: Any = None, axis: Axis = -1, eps: float = 1e-6) -> Array:
    """x * (1 / sqrt(SUM(x * x) / n + eps)) over ``axis``, times ``scale``."""
    x, out_dtype = _compute("rms_norm", x)
    axes = axes_of("rms_norm", x, axis)
    square = _mean(lax.mul(x, x), axes)
    factor = lax.rsqrt(lax.add(square, scalar_like(square, eps)))
    y = lax.mul(x, spread(factor, x, axes))
    return convert(_affine("rms_norm", y, scale, None, axes), out_dtype)


def _compute(name: str, x: Array) -> tuple[Array, np.dtype]:
    """``x`` in the dtype to compute in, and the dtype of the answer."""
    x = promote_floats(name, x)[0]
    own = get_aval(x).dtype
    return convert(x, dtypes.compute_dtype(own)), own


def _affine(name: str, y: Array, scale: Any, bias: Any, axes: tuple[int, ...]) -> Array:
    shape = get_aval(y).shape
    sizes = tuple(shape[a] for a in axes)
    for what, value, combine in (("scale", scale, lax.mul), ("bias", bias, lax.add)):
        if value is None:
            continue
        own = aval_of(name, value).shape
        if own not in ((), sizes):
            raise ShapeError(
                at_user_line(f"{name}: {what} has shape {own}; over axes {axes} of shape {shape} it must be {sizes}")
            )
        value = convert(value, get_aval(y).dtype)
        y = combine(y, lax.broadcast_in_dim(value, shape, axes) if own else value)
    return y


def one_hot(x: ArrayLike, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Array:
    """Vectors with a 1 at the index ``x`` and 0 elsewhere, along a new ``axis``; all 0 for an index out of range.

    >>> one_hot(1, 3)
    Array([0., 1., 0.], dtype=float32)
    """
    dtype = dtypes.DEFAULT_FLOAT if dtype is None else dtypes.canonicalize(dtype)
    aval = aval_of("one_hot", x)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(at_user_line(f"one_hot: the classes must be integers, not {aval.short()}"))
    x = as_value(x)
    place = canonical_axis("one_hot", axis, aval.ndim + 1)
    shape = (*aval.shape[:place], int(num_classes), *aval.shape[place:])
    if aval.ndim:
        x = lax.broadcast_in_dim(x, shape, tuple(i for i in range(len(shape)) if i != place))
    return lax.convert_element_type(lax.eq(x, lax.broadcasted_iota(aval.dtype, shape, place)), dtype)


def embedding(table: ArrayLike | QuantizedArray, ids: ArrayLike) -> Array:
    """The rows ``ids`` of a table of shape (vocabulary, features): shape ``ids.shape + (features,)``.

    Ids count from 0; one out of range (also a negative one) gives a row of NaN, so that a bad tokenizer shows.
    The gradient of the table is summed in a fixed order. Of a quantized table only these rows are dequantized.
    """
    if isinstance(table, QuantizedArray):
        known = vnp.asarray(ids)
        rows = table[vnp.clip(known, 0, table.shape[0] - 1)].dequantize()
        inside = (known >= 0) & (known < table.shape[0])
        return vnp.where(inside[..., None], rows, math.nan)
    t, i = aval_of("embedding", table), aval_of("embedding", ids)
    if t.ndim < 1 or not dtypes.is_integer(i.dtype):
        raise DTypeError(at_user_line(f"embedding: needs a table and integer ids, got {t.short()} and {i.short()}"))
    return lax.gather(table, [ids if i.dtype.itemsize >= 4 else convert(ids, dtypes.int32)], axes=(0,), mode="fill")
