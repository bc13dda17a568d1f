"""Reductions: sums, products, extremes, means, logic and counting along axes.

Several axes reduce as one row-major sequence; the order of a sum depends on its length alone (the bit contract's SUM).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast_array,
    broadcast_shapes_of,
    canonical_axes,
    canonical_axis,
    common_dtype,
    convert,
    scalar_like,
)
from volta.numpy.smooth import root_of_squares, square_of_size
from volta.numpy.ufuncs import to_bool
from volta.ops import lax

Axis = int | tuple[int, ...] | None


def keep_axes(a: ArrayLike, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> Array:
    """``a``, reduced from ``shape`` over ``axes``, with those axes back as size 1 when ``keepdims``."""
    if not keepdims or not axes:
        return a
    return lax.reshape(a, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def _masked(name: str, x: Array, where: Any, neutral: Any) -> Array:
    """``x`` with ``neutral`` wherever the mask ``where`` is False."""
    if where is None:
        return x
    aval = aval_of(name, x)
    mask = to_bool(name, where)
    shape = broadcast_shapes_of(name, [aval.shape, aval_of(name, mask).shape])
    x = broadcast_array(x, shape)
    mask = mask if aval_of(name, mask).shape == () else broadcast_array(mask, shape)
    return lax.select_n(mask, convert(neutral, aval.dtype), x)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Small integers and booleans are summed as (u)int32."""
    if dtype == dtypes.bool_ or (dtypes.is_signed(dtype) and dtype.itemsize < 4):
        return dtypes.int32
    return dtypes.uint32 if dtypes.is_unsigned(dtype) and dtype.itemsize < 4 else dtype


def _total_dtype(name: str, x: Array, dtype: Any, promote_integers: bool) -> np.dtype:
    own = aval_of(name, x).dtype
    if dtype is not None:
        return dtypes.canonicalize(dtype)
    return sum_dtype(own) if promote_integers or own == dtypes.bool_ else own


def _reduce(
    name: str,
    primitive: Callable[[Any, tuple[int, ...]], Any],
    x: Array,
    axis: Axis,
    keepdims: bool,
) -> Array:
    aval = aval_of(name, x)
    axes = canonical_axes(name, axis, aval.ndim)
    # no axes: the reduction of each single element is itself
    out = primitive(x, axes) if axes else as_value(x)
    return keep_axes(out, aval.shape, axes, keepdims)


def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Array:
    """Sum over ``axis`` (None: all). Booleans and small integers are summed as 32-bit integers, without
    ``promote_integers`` in their own dtype; float16 and bfloat16 are added up in float32 and rounded once.

    >>> volta.numpy.sum(volta.numpy.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Array([4., 6.], dtype=float32)
    """
    a = convert(a, _total_dtype("sum", a, dtype, promote_integers))
    out = _reduce("sum", lax.reduce_sum, _masked("sum", a, where, 0), axis, keepdims)
    return out if initial is None else lax.add(out, convert(initial, get_aval(out).dtype))


def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Array:
    """Product over ``axis`` (None: all). Booleans and small integers are multiplied as 32-bit integers, without
    ``promote_integers`` small integers in their own dtype."""
    a = convert(a, _total_dtype("prod", a, dtype, promote_integers))
    out = _reduce("prod", lax.reduce_prod, _masked("prod", a, where, 1), axis, keepdims)
    return out if initial is None else lax.mul(out, convert(initial, get_aval(out).dtype))


def _extreme(
    name: str, x: Array, axis: Axis, keepdims: bool, initial: Any, where: Any, reduce: Any, pair: Any, worst: Any
) -> Array:
    aval = aval_of(name, x)
    axes = canonical_axes(name, axis, aval.ndim)
    if initial is None:
        if where is not None:
            raise ValueError(at_user_line(f"{name}: `where` needs `initial`, the answer where nothing is selected"))
        for a in axes:
            if aval.shape[a] == 0:
                raise ShapeError(
                    at_user_line(
                        f"{name}: axis {a} of shape {aval.shape} is empty, so there is no {name}; give `initial`"
                    )
                )
    elif 0 in (aval.shape[a] for a in axes):  # of no elements, `initial` is the answer
        kept = tuple(n for i, n in enumerate(aval.shape) if i not in axes)
        return keep_axes(as_value(broadcast_array(convert(initial, aval.dtype), kept)), aval.shape, axes, keepdims)
    out = _reduce(name, reduce, _masked(name, x, where, worst(aval.dtype)), axis, keepdims)
    return out if initial is None else pair(out, convert(initial, aval.dtype))


def max(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """The largest element over ``axis`` (None: all); NaN wins.

    >>> volta.numpy.max(volta.numpy.array([3, 1, 2]))
    Array(3, dtype=int32)
    """
    return _extreme("max", a, axis, keepdims, initial, where, lax.reduce_max, lax.max, dtypes.lowest)


def min(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None) -> Array:
    """The smallest element over ``axis`` (None: all); NaN wins."""
    return _extreme("min", a, axis, keepdims, initial, where, lax.reduce_min, lax.min, dtypes.highest)


amax, amin = max, min


def ptp(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest less the smallest element."""
    return lax.sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def all(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Whether every element is nonzero, over ``axis`` (None: all)."""
    return _reduce("all", lax.reduce_and, _masked("all", to_bool("all", a), where, True), axis, keepdims)


def any(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Whether some element is nonzero, over ``axis`` (None: all)."""
    return _reduce("any", lax.reduce_or, _masked("any", to_bool("any", a), where, False), axis, keepdims)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements are nonzero, as int32."""
    return sum(to_bool("count_nonzero", a), axis, keepdims=keepdims)


# -- positions ---------------------------------------------------------------------------------------------------------


def _position(name: str, primitive: Any, x: Array, axis: int | None, keepdims: bool) -> Array:
    aval = aval_of(name, x)
    if axis is None:
        flat = lax.reshape(x, (aval.size,)) if aval.ndim != 1 else x
        out = _position(name, primitive, flat, 0, False)
        return lax.reshape(out, (1,) * aval.ndim) if keepdims and aval.ndim else out
    axis = canonical_axis(name, axis, aval.ndim)
    if aval.shape[axis] == 0:
        raise ShapeError(at_user_line(f"{name}: axis {axis} of shape {aval.shape} is empty"))
    out = primitive(x, axis, dtypes.int32)
    return keep_axes(out, aval.shape, (axis,), keepdims)


def argmax(a: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first largest element along ``axis`` (None: of the flat array), as int32; NaN wins."""
    return _position("argmax", lax.argmax, a, axis, keepdims)


def argmin(a: ArrayLike, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first smallest element along ``axis`` (None: of the flat array), as int32; NaN wins."""
    return _position("argmin", lax.argmin, a, axis, keepdims)


# -- moments -----------------------------------------------------------------------------------------------------------


def _moment_operand(name: str, x: Array, dtype: Any) -> tuple[Array, np.dtype]:
    """``x`` in the dtype to compute in, and the dtype of the answer."""
    own = aval_of(name, x).dtype
    out = dtypes.canonicalize(dtype) if dtype is not None else dtypes.to_float(own)
    if not dtypes.is_inexact(out):
        raise DTypeError(at_user_line(f"{name}: dtype must be a float or complex dtype, not {out}"))
    return convert(x, dtypes.compute_dtype(out)), out


def _spread_dtype(out: np.dtype, asked: Any) -> np.dtype:
    """The dtype of a variance: real, but where a complex one is asked for."""
    return dtypes.part_dtype(out) if asked is None else out


def _count(name: str, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool, where: Any) -> Any:
    """How many elements each mean is over: an int, or an array when there is a mask."""
    if where is None:
        return math.prod(shape[a] for a in axes)
    return sum(broadcast_array(to_bool(name, where), shape), axes, keepdims=keepdims)


def _divide(total: Array, count: Any) -> Array:
    dtype = get_aval(total).dtype
    if dtypes.is_complex(dtype):
        return lax.complex(*(_divide(part(total), count) for part in (lax.real, lax.imag)))
    return lax.div(total, lax.convert_element_type(count, dtype) if isinstance(count, Array) else dtype.type(count))


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool, where: Any) -> Array:
    aval = aval_of("mean", x)
    if where is not None:
        shape = broadcast_shapes_of("mean", [aval.shape, aval_of("mean", where).shape])
        x = broadcast_array(x, shape)
    total = sum(x, axes, keepdims=keepdims, where=where)
    return _divide(total, _count("mean", get_aval(x).shape, axes, keepdims, where))


def mean(a: ArrayLike, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """SUM / n over ``axis`` (None: all). Integers become float32; float16 and bfloat16 are averaged in float32.

    >>> volta.numpy.mean(volta.numpy.array([1.0, 2.0, 6.0]))
    Array(3., dtype=float32)
    """
    a, out = _moment_operand("mean", a, dtype)
    axes = canonical_axes("mean", axis, get_aval(a).ndim)
    return convert(_mean(a, axes, keepdims, where), out)


def _less(count: Any, ddof: float, correction: float | None) -> Any:
    """How many elements a variance is divided by: the array API says ``correction`` for what NumPy calls ``ddof``."""
    less = ddof if correction is None else correction
    if ddof and correction is not None:
        raise ValueError(at_user_line("ddof and correction are two names for one number: give one of them"))
    if not isinstance(count, Array):
        return count - less
    return lax.sub(count, np.int32(less)) if less == int(less) else lax.sub(convert(count, dtypes.float32), less)


def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Variance in two passes: the mean, then SUM(d*d) / (n - ddof) of the distances d from it; of complex numbers the
    squares of their sizes, real unless ``dtype`` is complex. NaN where ``ddof`` leaves no element to divide by.

    ``mean`` is the mean where it is known, with the reduced axes as 1; ``correction`` another name of ``ddof``.

    >>> var(np.float32([1, 3]), correction=1)
    Array(2., dtype=float32)
    """
    a, out = _moment_operand("var", a, dtype)
    axes = canonical_axes("var", axis, get_aval(a).ndim)
    if where is not None:
        a = _masked("var", a, where, 0)  # now, so that a NaN left out cannot come back through the gradient of d * d
    center = _mean(a, axes, True, where) if mean is None else convert(mean, get_aval(a).dtype)
    d = lax.sub(a, broadcast_array(center, get_aval(a).shape)) if get_aval(center).shape else lax.sub(a, center)
    count = _count("var", get_aval(a).shape, axes, keepdims, where)
    total = sum(square_of_size(d), axes, keepdims=keepdims, where=where)
    rest = _less(count, ddof, correction)
    if not isinstance(rest, Array):
        return convert(_divide(total, rest if rest > 0 else math.nan), _spread_dtype(out, dtype))
    square = _divide(total, rest)
    square = lax.select_n(lax.gt(rest, rest.dtype.type(0)), scalar_like(square, math.nan), square)
    return convert(square, _spread_dtype(out, dtype))


def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Standard deviation: the square root of :func:`var`. Of equal elements its gradient is 0."""
    a, out = _moment_operand("std", a, dtype)
    square = var(a, axis, ddof=ddof, keepdims=keepdims, where=where, mean=mean, correction=correction)
    return convert(root_of_squares(square), _spread_dtype(out, dtype))


def average(
    a: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The mean weighted by ``weights`` (the shape of ``a``, or that of its axes ``axis`` in their order); with
    ``returned`` the sum of the weights as well.

    >>> average(np.float32([1, 4]), weights=np.float32([2, 1]))
    Array(2., dtype=float32)
    """
    if weights is None:
        out = mean(a, axis, keepdims=keepdims)
        if not returned:
            return out
        shape = aval_of("average", a).shape
        count = math.prod(shape[i] for i in canonical_axes("average", axis, len(shape)))
        return out, as_value(lax.full(get_aval(out).shape, count, get_aval(out).dtype))
    shape, wshape = aval_of("average", a).shape, aval_of("average", weights).shape
    if wshape != shape:
        named = () if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
        places = [canonical_axis("average", a, len(shape)) for a in named]
        if wshape != tuple(shape[i] for i in places):
            raise ShapeError(
                at_user_line(
                    f"average: weights of shape {wshape} do not fit an operand of shape {shape} at axis {axis}"
                )
            )
        order = tuple(sorted(range(len(places)), key=places.__getitem__))
        weights = lax.transpose(weights, order) if len(order) > 1 else weights
        weights = lax.broadcast_in_dim(weights, shape, tuple(sorted(places)))
    dtype = dtypes.to_float(common_dtype("average", a, weights)[0])
    a, weights = convert(a, dtype), convert(weights, dtype)
    total = sum(weights, axis, keepdims=keepdims)
    out = lax.div(sum(lax.mul(a, weights), axis, keepdims=keepdims), total)
    return (out, total) if returned else out
