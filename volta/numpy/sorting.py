"""Order: sort, argsort, searchsorted, quantiles, and functions of sorted data."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import shaping, taking
from volta.numpy.promotion import (
    as_value,
    aval_of,
    canonical_axis,
    convert,
    promote_dtypes,
)
from volta.numpy.ufuncs import isnan
from volta.ops import lax


def _axis(name: str, a: Array, axis: int | None) -> tuple[Array, int]:
    return (shaping.ravel(a), 0) if axis is None else (as_value(a), canonical_axis(name, axis, aval_of(name, a).ndim))


def sort(a: ArrayLike, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Array:
    """The elements in ascending order along ``axis`` (None: of the flat array), NaN last. Always stable."""
    a, axis = _axis("sort", a, axis)
    out = lax.sort(a, axis)
    return lax.rev(out, (axis,)) if descending else out


def argsort(a: ArrayLike, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Array:
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


def searchsorted(
    a: ArrayLike, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *, method: str = "scan"
) -> Array:
    """Where elements of ``v`` belong in the sorted vector ``a``, before ('left') or after ('right') equal ones.

    ``sorter`` are the positions that sort ``a``, where it is not sorted. A binary search with one round a bit of the
    length, so its cost in the program is log2(len(a)), whatever ``method``.

    >>> searchsorted(np.float32([1, 2, 3]), np.float32(2.5))
    Array(2, dtype=int32)
    """
    if sorter is not None:
        a = taking.take(a, sorter)
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


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Array:
    """The number of the bin, among ascending (or descending) ``bins``, that each element falls into.

    >>> digitize(np.float32([0.5, 2.5]), np.float32([1, 2, 3]))
    Array([0, 2], dtype=int32)
    """
    bins = as_value(bins)
    if bins.ndim != 1:
        raise ShapeError(at_user_line(f"digitize: the bins must be a vector, got shape {bins.shape}"))
    n = bins.shape[0]
    rising = searchsorted(bins, x, "left" if right else "right")
    if n < 2:
        return rising
    falling = lax.sub(np.int32(n), searchsorted(shaping.flip(bins), x, "left" if right else "right"))
    ascends = lax.le(lax.index_in_dim(bins, 0, 0, False), lax.index_in_dim(bins, n - 1, 0, False))
    return lax.select_n(ascends, falling, rising)


def bincount(x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often each of 0, 1, 2, … occurs in the vector ``x`` (or the sum of its ``weights``).

    ``length`` fixes the result's length; it must be given while ``x`` is traced. Larger values are left out, and
    negative ones count as 0.

    >>> bincount(np.int32([0, 2, 2]))
    Array([1, 0, 2], dtype=int32)
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
        length = max(minlength, int(values.max()) + 1 if values.size else 0, 0)
    index = lax.max(convert(x, dtypes.int32), np.int32(0))
    updates = lax.full(aval.shape, 1, dtypes.int32) if weights is None else as_value(weights)
    start = lax.full((length,), 0, updates.dtype)
    return lax.scatter(start, updates, [index], axes=(0,), mode="drop", op="add")


def partition(a: ArrayLike, kth: int, axis: int | None = -1) -> Array:
    """The elements with the one of rank ``kth`` in its sorted place: smaller ones before it, larger ones behind.

    All are put in order, which is one such arrangement.

    >>> partition(np.int32([3, 1, 2]), 1)
    Array([1, 2, 3], dtype=int32)
    """
    a, axis = _axis("partition", a, axis)
    canonical_axis("partition: kth as an", kth, a.shape[axis])
    return sort(a, axis)


def argpartition(a: ArrayLike, kth: int, axis: int | None = -1) -> Array:
    """The positions that :func:`partition` takes elements from."""
    a, axis = _axis("argpartition", a, axis)
    canonical_axis("argpartition: kth as an", kth, a.shape[axis])
    return argsort(a, axis)
