"""Quantiles and covariances."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.constants import constant
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.along import take_along_axis
from volta.numpy.creation import asarray
from volta.numpy.promotion import (
    NUMBERS,
    as_value,
    aval_of,
    broadcast_array,
    canonical_axes,
    common_dtype,
    convert,
    promote_floats,
    scalar_like,
)
from volta.numpy.reductions import all as _all
from volta.numpy.reductions import any as _any
from volta.numpy.reductions import average
from volta.numpy.reductions import sum as _sum
from volta.numpy.scans import cumsum
from volta.numpy.smooth import blend
from volta.numpy.sorting import sort
from volta.numpy.ufuncs import astype, isnan
from volta.ops import lax

Axis = int | tuple[int, ...] | None
_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def _check(name: str, q: Any, most: int, out: Any) -> None:
    """Refuse ``out``, and a share that is known now and is none: percents given to a quantile, say."""
    if out is not None:
        raise TypeError(at_user_line(f"{name}: arrays are immutable, so there is no out=; use what is returned"))
    items = q if isinstance(q, (list, tuple)) else (q,)
    for item in items:
        if not isinstance(item, Array) and not np.all((np.asarray(item) >= 0) & (np.asarray(item) <= most)):
            raise ValueError(at_user_line(f"{name}: q lies between 0 and {most}, got {q!r:.80}"))


def _lanes(name: str, x: Array, axis: Axis) -> tuple[Array, tuple[int, ...]]:
    """The elements along ``axis`` as one last axis, and the axes."""
    aval = aval_of(name, x)
    axes = canonical_axes(name, axis, aval.ndim)
    rest = tuple(i for i in range(aval.ndim) if i not in axes)
    count = math.prod(aval.shape[i] for i in axes)
    if count == 0:
        raise ShapeError(at_user_line(f"{name}: no elements along axis {axis} of shape {aval.shape}"))
    return shaping.reshape(shaping.transpose(x, rest + axes), tuple(aval.shape[i] for i in rest) + (count,)), axes


def quantile(
    a: ArrayLike,
    q: Any,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """The ``q``-quantiles of the elements along ``axis``; NaN where one is NaN. ``q`` in [0, 1] may be a vector.

    ``method``: 'linear', 'lower', 'higher', 'nearest' or 'midpoint'; with ``weights`` it must be 'inverted_cdf'.

    >>> quantile(np.float32([1, 2, 3, 4]), np.float32(0.5))
    Array(2.5, dtype=float32)
    """
    _check("quantile", q, 1, out)
    return _quantile("quantile", a, q, 1, axis, method, keepdims, weights, False)


def nanquantile(
    a: ArrayLike,
    q: Any,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """:func:`quantile` of the elements that are not NaN; NaN where there are none.

    >>> nanquantile(np.float32([1, np.nan, 3]), np.float32(0.5))
    Array(2., dtype=float32)
    """
    _check("nanquantile", q, 1, out)
    return _quantile("nanquantile", a, q, 1, axis, method, keepdims, weights, True)


def _with_shares(name: str, q: Any, most: int, *xs: Any) -> list[Any]:
    """``xs`` in their common float dtype with ``q``, and ``q / most`` in the dtype that this one is computed in.

    A half float counts no positions beyond 2048; and a share that is a Python number meets it unrounded.
    """
    listed = isinstance(q, (list, tuple))
    if listed and not all(type(v) in NUMBERS for v in q):
        q, listed = asarray(q), False
    dtype = dtypes.to_float(common_dtype(name, *xs, 0.0 if listed else q)[0])
    wide = dtypes.compute_dtype(dtype)
    q = constant(q, wide) if listed else convert(q, wide)
    return [*(convert(x, dtype) for x in xs), lax.div(q, wide.type(most)) if most != 1 else q]


def _quantile(
    name: str,
    a: Array,
    q: Any,
    most: int,
    axis: Axis,
    method: str,
    keepdims: bool,
    weights: Array | None,
    ignore_nan: bool,
) -> Array:
    if weights is not None:
        return _weighted(name, a, q, most, axis, method, keepdims, weights, ignore_nan)
    if method not in _METHODS:
        raise ValueError(at_user_line(f"{name}: method must be one of {', '.join(_METHODS)}, not {method!r}"))
    x, q = _with_shares(name, q, most, a)
    aval, q_shape = aval_of(name, x), aval_of(name, q).shape
    lanes, axes = _lanes(name, x, axis)
    ordered = sort(lanes)
    rest = lanes.shape[:-1]
    bad, work = isnan(lanes), aval_of(name, q).dtype
    # positions of shape q + rest: NaN are last in order, so that those that are none are the first `count`
    if ignore_nan:
        count = convert(_sum(lax.bitwise_not(bad), -1), work)
        last = broadcast_array(
            lax.max(lax.sub(count, scalar_like(count, 1.0)), scalar_like(count, 0.0)), q_shape + rest
        )
        missing = lax.eq(count, scalar_like(count, 0.0))
    else:
        last, missing = work.type(lanes.shape[-1] - 1), _any(bad, -1)
    wanted = broadcast_array(shaping.reshape(q, q_shape + (1,) * len(rest)), q_shape + rest)
    place = lax.clamp(work.type(0), lax.mul(wanted, last), last)
    low, high = lax.floor(place), lax.ceil(place)

    def pick(positions: Array) -> Array:
        flat = shaping.moveaxis(shaping.reshape(positions, (math.prod(q_shape), *rest)), 0, -1)
        return shaping.reshape(
            shaping.moveaxis(take_along_axis(ordered, convert(flat, dtypes.int32), -1, mode="clip"), -1, 0),
            q_shape + rest,
        )

    if method in ("linear", "midpoint"):
        below, above = convert(pick(low), work), convert(pick(high), work)
        t = lax.sub(place, low) if method == "linear" else scalar_like(below, 0.5)
        out = convert(blend(below, above, t), lanes.dtype)
    else:
        out = pick({"lower": low, "higher": high, "nearest": lax.ceil(lax.sub(place, scalar_like(place, 0.5)))}[method])
    out = lax.select_n(broadcast_array(missing, out.shape), out, scalar_like(out, float("nan")))
    out = astype(out, out.dtype)  # never weak
    return _kept(out, q_shape, aval.shape, axes) if keepdims else out


def _kept(out: Array, q_shape: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    return shaping.reshape(out, q_shape + tuple(1 if i in axes else n for i, n in enumerate(shape)))


def _weighted(
    name: str, a: Array, q: Any, most: int, axis: Axis, method: str, keepdims: bool, weights: Array, ignore_nan: bool
) -> Array:
    """The smallest element at which the running weight reaches the share ``q`` of the whole."""
    if method != "inverted_cdf":
        raise ValueError(at_user_line(f"{name}: weights need method='inverted_cdf', not {method!r}"))
    x, w, q = _with_shares(name, q, most, a, weights)
    shape, q_shape = aval_of(name, x).shape, aval_of(name, q).shape
    if ignore_nan:
        w = binary.where_three(isnan(x), 0, w)
    lanes, axes = _lanes(name, x, axis)
    ordered, spread = lax.sort((lanes, _lanes(name, broadcast_array(w, shape), axis)[0]), lanes.ndim - 1)
    running = cumsum(spread, -1)
    total = lax.slice_in_dim(running, -1, None, axis=-1)
    share = lax.div(running, broadcast_array(total, running.shape))
    n = lanes.shape[-1]
    reached = binary.less(
        shaping.expand_dims(share, tuple(range(len(q_shape)))), shaping.reshape(q, q_shape + (1,) * lanes.ndim)
    )
    place = lax.min(_sum(reached, -1), np.int32(n - 1))
    flat = shaping.moveaxis(shaping.reshape(place, (math.prod(q_shape), *lanes.shape[:-1])), 0, -1)
    out = shaping.moveaxis(take_along_axis(ordered, flat, -1, mode="clip"), -1, 0)
    out = shaping.reshape(out, q_shape + lanes.shape[:-1])
    bad = broadcast_array((_all if ignore_nan else _any)(isnan(lanes), -1), out.shape)
    out = lax.select_n(bad, out, scalar_like(out, float("nan")))
    out = astype(out, out.dtype)
    return _kept(out, q_shape, shape, axes) if keepdims else out


def percentile(
    a: ArrayLike,
    q: Any,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """:func:`quantile` with ``q`` in percent.

    >>> percentile(np.float32([1, 2, 3, 4]), 50)
    Array(2.5, dtype=float32)
    """
    _check("percentile", q, 100, out)
    return _quantile("percentile", a, q, 100, axis, method, keepdims, weights, False)


def nanpercentile(
    a: ArrayLike,
    q: Any,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """:func:`nanquantile` with ``q`` in percent."""
    _check("nanpercentile", q, 100, out)
    return _quantile("nanpercentile", a, q, 100, axis, method, keepdims, weights, True)


def median(
    a: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """The middle element along ``axis``, or the mean of the two middle ones.

    Complex numbers have the order of :func:`sort`, as in NumPy.

    >>> median(np.float32([7, 1, 3]))
    Array(3., dtype=float32)
    """
    if dtypes.is_complex(aval_of("median", a).dtype) and out is None:
        return _complex_median(a, axis, keepdims)
    _check("median", 0.5, 1, out)
    return _quantile("median", a, 0.5, 1, axis, "midpoint", keepdims, None, False)


def _complex_median(a: ArrayLike, axis: Axis, keepdims: bool) -> Array:
    a = as_value(a)
    lanes, axes = _lanes("median", a, axis)
    n, bad = lanes.shape[-1], isnan(lanes)
    ordered = sort(lanes)
    if not n:
        out = lax.full(lanes.shape[:-1], complex(math.nan, math.nan), lanes.dtype)
    else:
        low, high = (lax.index_in_dim(ordered, k, lanes.ndim - 1, False) for k in ((n - 1) // 2, n // 2))
        out = low if n % 2 else lax.mul(lax.add(low, high), scalar_like(low, 0.5))
        out = lax.select_n(_any(bad, -1), out, lax.full(out.shape, complex(math.nan, math.nan), out.dtype))
    return _kept(out, (), a.shape, axes) if keepdims else out


def nanmedian(
    a: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """:func:`median` of the elements that are not NaN; NaN where there are none."""
    _check("nanmedian", 0.5, 1, out)
    return _quantile("nanmedian", a, 0.5, 1, axis, "midpoint", keepdims, None, True)


# -- covariance --------------------------------------------------------------------------------------------------------


def _rows(x: Array, rowvar: bool) -> Array:
    wide = shaping.atleast_2d(x)
    return wide if rowvar or shaping.ndim(x) < 2 else shaping.transpose(wide)


def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: Any = None,
) -> Array:
    """The covariance matrix of the rows of ``m`` and of ``y`` (of their columns when ``rowvar`` is False).

    It is divided by n - 1, by n with ``bias``, or by n - ``ddof``. ``fweights`` say how often an observation counts,
    ``aweights`` how much. ``dtype`` is that of the result, and of the computation.

    >>> cov(np.float32([[0, 1, 2], [2, 1, 0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    operands = promote_floats("cov", m) if y is None else promote_floats("cov", m, y)
    if dtype is not None:
        operands = [convert(x, dtypes.canonicalize(dtype)) for x in operands]
    if any(aval_of("cov", x).ndim > 2 for x in operands):
        raise ShapeError(at_user_line("cov: observations must be a vector or a matrix"))
    rows = [_rows(x, rowvar) for x in operands]
    x = rows[0] if len(rows) == 1 else shaping.concatenate(rows, 0)
    n = x.shape[1]
    ddof = (0 if bias else 1) if ddof is None else ddof
    w: Any = None
    for given in (fweights, aweights):
        if given is not None:
            if aval_of("cov", given).shape != (n,):
                raise ShapeError(at_user_line(f"cov: weights must be a vector of {n}, one an observation"))
            given = convert(as_value(given), x.dtype)
            w = given if w is None else lax.mul(w, given)
    center = average(x, 1, weights=w)
    d = binary.subtract(x, shaping.expand_dims(center, 1))
    divisor: Any
    if w is None:
        weighted, divisor = d, x.dtype.type(builtins.max(n - ddof, 0))
    else:
        weighted, total = binary.multiply(d, w), _sum(w)
        if aweights is None or ddof == 0:
            divisor = lax.sub(total, scalar_like(total, float(ddof)))
        else:
            share = lax.div(_sum(lax.mul(w, convert(as_value(aweights), x.dtype))), total)
            divisor = lax.sub(total, lax.mul(share, scalar_like(total, float(ddof))))
    divisor = divisor if w is None else binary.maximum(divisor, 0)  # as NumPy: no freedom left divides by 0
    out = lax.div(lax.dot_general(weighted, d, (((1,), (1,)), ((), ()))), divisor)
    return shaping.squeeze(out) if out.shape == (1, 1) else out


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """The matrix of correlation coefficients of the rows of ``x`` and of ``y``, within [-1, 1]; ``dtype``: its own.

    >>> corrcoef(np.float32([[0, 1, 2], [4, 2, 0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not aval_of("corrcoef", c).shape:
        return lax.div(c, c)
    n = c.shape[0]
    deviation = lax.sqrt(lax.gather(c, [np.arange(n, dtype=np.int32)] * 2, axes=(0, 1), mode="clip"))
    out = lax.div(c, binary.multiply(shaping.expand_dims(deviation, 1), deviation))
    return lax.clamp(scalar_like(out, -1.0), out, scalar_like(out, 1.0))
