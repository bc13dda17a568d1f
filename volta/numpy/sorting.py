"""Order: sort, argsort, searchsorted, quantiles, and functions of sorted data."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast_array,
    canonical_axes,
    canonical_axis,
    convert,
    promote_dtypes,
    promote_floats,
    scalar_like,
)
from volta.numpy.reductions import any as _any
from volta.numpy.reductions import mean
from volta.numpy.ufuncs import isnan
from volta.ops import lax

Array = Any


def _axis(name: str, a: Array, axis: int | None) -> tuple[Array, int]:
    return (shaping.ravel(a), 0) if axis is None else (as_value(a), canonical_axis(name, axis, aval_of(name, a).ndim))


def sort(a: Array, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Array:
    """The elements in ascending order along ``axis`` (None: of the flat array), NaN last. Always stable."""
    a, axis = _axis("sort", a, axis)
    out = lax.sort(a, axis)
    return lax.rev(out, (axis,)) if descending else out


def argsort(a: Array, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Array:
    """The int32 positions that put the elements in ascending order along ``axis``. Always stable."""
    a, axis = _axis("argsort", a, axis)
    places = lax.broadcasted_iota(dtypes.int32, a.shape, axis)
    if not descending:
        return lax.sort((a, places), axis)[1]
    # equal elements keep their order: sort by (value, place from the end), then read from the end
    from_end = lax.rev(lax.sort((a, lax.rev(places, (axis,))), axis, num_keys=2)[1], (axis,))
    return lax.sub(np.int32(a.shape[axis] - 1), from_end)


def lexsort(keys: Any, axis: int = -1) -> Array:
    """The int32 positions that order by the last key first, then by the one before it, and so on."""
    items = [as_value(k) for k in keys]
    axis = canonical_axis("lexsort", axis, items[0].ndim)
    places = lax.broadcasted_iota(dtypes.int32, items[0].shape, axis)
    return lax.sort((*reversed(items), places), axis, num_keys=len(items))[-1]


def searchsorted(a: Array, v: Array, side: str = "left") -> Array:
    """Where elements of ``v`` belong in the sorted vector ``a``, before ('left') or after ('right') equal ones.

    A binary search with one round a bit of the length, so its cost in the program is log2(len(a)).
    """
    a, v = promote_dtypes("searchsorted", a, v)
    aval, shape = aval_of("searchsorted", a), aval_of("searchsorted", v).shape
    if aval.ndim != 1:
        raise ShapeError(at_user_line(f"searchsorted: `a` must be a vector, got shape {aval.shape}"))
    if side not in ("left", "right"):
        raise ValueError(at_user_line(f"searchsorted: side must be 'left' or 'right', not {side!r}"))
    n = aval.shape[0]
    count: Any = lax.full(shape, 0, dtypes.int32)
    if not n:
        return as_value(count)
    is_nan = isnan(v) if dtypes.is_float(aval.dtype) else None
    step = 1 << (n.bit_length() - 1)
    while step:  # `count` elements lie before v; try `step` more
        probe = lax.add(count, np.int32(step - 1))
        element = lax.gather(a, [probe], axes=(0,), mode="clip")
        before = lax.lt(element, v) if side == "left" else lax.bitwise_not(lax.lt(v, element))
        if is_nan is not None:  # NaN sort last: a NaN is before v only if v is NaN and equals count as before
            nan_element = isnan(element)
            number = lax.bitwise_not(nan_element)
            before = (
                lax.bitwise_or(before, lax.bitwise_and(is_nan, number))
                if side == "left"
                else lax.bitwise_or(lax.bitwise_and(before, number), is_nan)
            )
        fits = lax.lt(probe, np.int32(n))
        count = lax.select_n(lax.bitwise_and(fits, before), count, lax.add(count, np.int32(step)))
        step >>= 1
    return as_value(count)


def digitize(x: Array, bins: Array, right: bool = False) -> Array:
    """The number of the bin, among ascending ``bins``, that each element falls into."""
    return searchsorted(bins, x, "left" if right else "right")


def bincount(x: Array, weights: Array | None = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often each of 0, 1, 2, … occurs in the vector ``x`` (or the sum of its ``weights``).

    ``length`` fixes the result's length; it must be given while ``x`` is traced. Larger values are left out.
    """
    aval = aval_of("bincount", x)
    if not dtypes.is_integer(aval.dtype) or aval.ndim != 1:
        raise DTypeError(at_user_line(f"bincount: needs a vector of integers, got {aval.short()}"))
    if length is None:
        if isinstance(x, Tracer):
            raise ConcretizationTypeError(
                at_user_line("bincount: the largest value is not known while tracing; give length=n")
            )
        values = np.asarray(x)
        length = max(minlength, int(values.max()) + 1 if values.size else 0)
    index = convert(x, dtypes.int32)
    updates = lax.full(aval.shape, 1, dtypes.int32) if weights is None else as_value(weights)
    start = lax.full((length,), 0, updates.dtype)
    return lax.scatter(start, updates, [index], axes=(0,), mode="drop", op="add")


def unique(x: Array, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements in ascending order.

    While ``x`` is traced ``size`` must be given; what is left over is ``fill_value`` (the smallest element).
    """
    flat = shaping.ravel(x)
    if size is None:
        if isinstance(flat, Tracer):
            raise ConcretizationTypeError(
                at_user_line("unique: how many elements are distinct is not known while tracing; give a bound: size=n")
            )
        size = int(np.unique(np.asarray(flat)).size)
    if flat.shape[0] == 0:
        return lax.full((size,), 0 if fill_value is None else fill_value, flat.dtype)
    ordered = sort(flat)
    first = lax.full((1,), True, dtypes.bool_)
    after, sooner = lax.slice(ordered, (1,), ordered.shape), lax.slice(ordered, (0,), (flat.shape[0] - 1,))
    new = lax.ne(after, sooner)
    if dtypes.is_float(flat.dtype):  # all NaN count as one
        new = lax.bitwise_and(new, lax.bitwise_not(lax.bitwise_and(isnan(after), isnan(sooner))))
    new = lax.concatenate([first, new], 0)
    slot = lax.sub(lax.cumsum(lax.convert_element_type(new, dtypes.int32), 0), np.int32(1))
    fill = lax.index_in_dim(ordered, 0, 0, False) if fill_value is None else convert(fill_value, flat.dtype)
    start = lax.broadcast_in_dim(fill, (size,), ())
    index = lax.select_n(new, np.int32(size), slot)
    return lax.scatter(start, ordered, [index], axes=(0,), mode="drop", op="set")


# -- quantiles ---------------------------------------------------------------------------------------------------------


def quantile(
    a: Array, q: Any, axis: int | tuple[int, ...] | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """The ``q``-quantiles of the elements along ``axis``; NaN where one is NaN. ``q`` in [0, 1] may be an array.

    ``method``: 'linear', 'lower', 'higher', 'nearest' or 'midpoint'.
    """
    x, q = promote_floats("quantile", a, q)
    aval = aval_of("quantile", x)
    axes = canonical_axes("quantile", axis, aval.ndim)
    rest = tuple(i for i in range(aval.ndim) if i not in axes)
    lanes = shaping.reshape(shaping.transpose(x, rest + axes), tuple(aval.shape[i] for i in rest) + (-1,))
    n = lanes.shape[-1]
    if n == 0:
        raise ShapeError(at_user_line(f"quantile: no elements along axis {axis} of shape {aval.shape}"))
    ordered = sort(lanes)
    q_shape = aval_of("quantile", q).shape
    place = lax.clamp(scalar_like(q, 0.0), lax.mul(q, scalar_like(q, n - 1)), scalar_like(q, n - 1))
    low, high = lax.floor(place), lax.ceil(place)
    at_low, at_high = (_pick(ordered, p) for p in (low, high))
    if method == "linear":
        t = broadcast_array(shaping.reshape(lax.sub(place, low), q_shape + (1,) * len(rest)), at_low.shape)
        out = lax.add(lax.mul(at_low, lax.sub(scalar_like(t, 1.0), t)), lax.mul(at_high, t))
        # where both neighbours are one element no blend may touch it (infinities)
        out = lax.select_n(lax.eq(at_low, at_high), out, at_low)
    elif method == "lower":
        out = at_low
    elif method == "higher":
        out = at_high
    elif method == "nearest":
        out = _pick(ordered, lax.round(place))
    elif method == "midpoint":
        out = lax.mul(lax.add(at_low, at_high), scalar_like(at_low, 0.5))
    else:
        raise ValueError(at_user_line(f"quantile: unknown method {method!r}"))
    bad = broadcast_array(_any(isnan(lanes), -1), out.shape)
    out = lax.select_n(bad, out, scalar_like(out, float("nan")))
    if keepdims:
        out = shaping.reshape(out, q_shape + tuple(1 if i in axes else n for i, n in enumerate(aval.shape)))
    return out


def _pick(ordered: Array, place: Array) -> Array:
    """The sorted elements at ``place`` (of the shape of q), with q's axes in front."""
    return lax.gather(ordered, [convert(place, dtypes.int32)], axes=(ordered.ndim - 1,), mode="clip")


def percentile(
    a: Array, q: Any, axis: int | tuple[int, ...] | None = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """:func:`quantile` with ``q`` in percent."""
    q = promote_floats("percentile", q)[0]
    return quantile(a, lax.div(q, scalar_like(q, 100.0)), axis, method=method, keepdims=keepdims)


def median(a: Array, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Array:
    """The middle element along ``axis``, or the mean of the two middle ones."""
    return quantile(a, 0.5, axis, method="midpoint", keepdims=keepdims)


def interp(x: Array, xp: Array, fp: Array, left: Any = None, right: Any = None) -> Array:
    """Linear interpolation of the points ``(xp, fp)``, ``xp`` ascending; outside the first and last value hold."""
    x, xp, fp = promote_floats("interp", x, xp, fp)
    if aval_of("interp", xp).ndim != 1 or aval_of("interp", xp).shape != aval_of("interp", fp).shape:
        raise ShapeError(at_user_line("interp: xp and fp must be vectors of one length"))
    n = aval_of("interp", xp).shape[0]
    i = lax.clamp(np.int32(1), searchsorted(xp, x, "right"), np.int32(max(n - 1, 1)))
    before = lax.sub(i, np.int32(1))
    x0, x1, f0, f1 = (
        lax.gather(v, [j], axes=(0,), mode="clip") for v, j in ((xp, before), (xp, i), (fp, before), (fp, i))
    )
    width = lax.sub(x1, x0)
    safe = lax.select_n(lax.eq(width, scalar_like(width, 0.0)), width, scalar_like(width, 1.0))
    out = lax.add(f0, lax.mul(lax.div(lax.sub(x, x0), safe), lax.sub(f1, f0)))
    first, last = (lax.index_in_dim(v, k, 0, False) for v, k in ((xp, 0), (xp, n - 1)))
    low = lax.index_in_dim(fp, 0, 0, False) if left is None else convert(left, aval_of("", fp).dtype)
    high = lax.index_in_dim(fp, n - 1, 0, False) if right is None else convert(right, aval_of("", fp).dtype)
    out = binary.where_three(binary.less(x, first), low, out)
    return binary.where_three(binary.greater(x, last), high, out)


def cov(m: Array, rowvar: bool = True, ddof: int = 1) -> Array:
    """The covariance matrix of the rows of ``m`` (of its columns when ``rowvar`` is False)."""
    x = promote_floats("cov", shaping.atleast_2d(m))[0]
    x = x if rowvar or shaping.ndim(m) == 1 else shaping.transpose(x)
    d = binary.subtract(x, mean(x, 1, keepdims=True))
    total = lax.dot_general(d, d, (((1,), (1,)), ((), ())))
    out = lax.div(total, scalar_like(total, x.shape[1] - ddof))
    return shaping.squeeze(out) if out.shape == (1, 1) else out
