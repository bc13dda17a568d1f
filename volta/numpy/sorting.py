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


def _ordered(x: Any) -> list[tuple[Any, Any]]:
    """What an order goes by, and which of it is NaN (None: nothing can be): the number; of a complex one, as NumPy has
    it, how much of it is NaN (the imaginary part, the real one, both), then its parts."""
    dtype = aval_of("searchsorted", x).dtype
    if dtypes.is_complex(dtype):
        parts = [(part, isnan(part)) for part in (lax.real(x), lax.imag(x))]
        real, imag = (lax.convert_element_type(bad, dtypes.int32) for _, bad in parts)
        return [(lax.add(lax.add(real, real), imag), None), *parts]
    return [(x, isnan(x) if dtypes.is_float(dtype) else None)]


def _less(x: list[tuple[Any, Any]], y: list[tuple[Any, Any]]) -> Any:
    """Whether x comes before y: NaN come last, and equal first parts leave it to the second ones."""
    (a, a_nan), (b, b_nan) = x[0], y[0]
    less = lax.lt(a, b)
    if a_nan is not None:
        less = lax.bitwise_or(less, lax.bitwise_and(b_nan, lax.bitwise_not(a_nan)))
    if len(x) == 1:
        return less
    alike = lax.eq(a, b) if a_nan is None else lax.bitwise_or(lax.eq(a, b), lax.bitwise_and(a_nan, b_nan))
    return lax.bitwise_or(less, lax.bitwise_and(alike, _less(x[1:], y[1:])))


def searchsorted(
    a: ArrayLike, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *, method: str = "scan"
) -> Array:
    """Where elements of ``v`` belong in the sorted vector ``a``, before ('left') or after ('right') equal ones.

    ``sorter`` are the positions that sort ``a``, where it is not sorted. A binary search with one round a bit of the
    length, so its cost in the program is log2(len(a)), whatever ``method``. NaN come last, complex numbers in the order
    of :func:`sort`.

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
    wanted = _ordered(v)
    step = 1 << (n.bit_length() - 1)
    while step:  # `count` elements lie before v; try `step` more
        probe = lax.add(count, np.int32(step - 1))
        element = lax.gather(a, [probe], axes=(0,), mode="clip")
        found = _ordered(element)
        before = _less(found, wanted) if side == "left" else lax.bitwise_not(_less(wanted, found))
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

    What is before rises, what is behind falls, as in JAX.

    >>> partition(np.int32([3, 5, 1, 4, 2]), 1)
    Array([1, 2, 5, 4, 3], dtype=int32)
    """
    a, axis = _axis("partition", a, axis)
    kth = canonical_axis("partition: kth as an", kth, a.shape[axis])
    smaller, larger = shaping.split(sort(a, axis), [kth + 1], axis)
    return shaping.concatenate([smaller, shaping.flip(larger, axis)], axis)


def argpartition(a: ArrayLike, kth: int, axis: int | None = -1) -> Array:
    """Positions of elements with the one of rank ``kth`` in its sorted place: those of smaller ones before it, as they
    rise; those of larger ones behind, in ascending order of positions.

    >>> argpartition(np.int32([3, 5, 1, 4, 2]), 1)
    Array([2, 4, 0, 1, 3], dtype=int32)
    """
    a, axis = _axis("argpartition", a, axis)
    kth = canonical_axis("argpartition: kth as an", kth, a.shape[axis])
    smaller, larger = shaping.split(argsort(a, axis), [kth + 1], axis)
    return shaping.concatenate([smaller, sort(larger, axis)], axis)
