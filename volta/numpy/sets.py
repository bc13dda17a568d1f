"""Distinct elements and sets of elements, as sorted vectors.

How many elements a result has depends on values. Outside of transformations that is found out; inside, ``size`` bounds
it: what is missing is filled up with ``fill_value`` (the smallest element), and what is too much is cut off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.promotion import as_value, aval_of, canonical_axis, convert, promote_dtypes
from volta.numpy.reductions import any as _any
from volta.numpy.sorting import searchsorted, sort
from volta.numpy.taking import compress, nonzero, take
from volta.numpy.ufuncs import isnan
from volta.ops import lax

_FEW = 64


class UniqueAll(NamedTuple):
    """What :func:`unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What :func:`unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What :func:`unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements in ascending order (or the distinct slices along ``axis``), and on demand more.

    ``return_index`` adds where each occurs first, ``return_inverse`` which of them each element is, ``return_counts``
    how often each occurs. While ``ar`` is traced ``size`` must be given, and ``axis`` is not possible.

    >>> unique(np.int32([3, 4, 1, 3, 1]), return_counts=True)
    (Array([1, 3, 4], dtype=int32), Array([2, 2, 1], dtype=int32))
    """
    wanted = (return_index, return_inverse, return_counts)
    if axis is not None and aval_of("unique", ar).ndim != 1:
        out = _unique_slices(ar, axis, wanted, size, fill_value)
    else:
        out = _unique(shaping.ravel(ar), wanted, equal_nan, size, fill_value)
        if return_inverse and axis is None:
            out[2] = shaping.reshape(out[2], shaping.shape(ar))
    kept = [out[0], *(x for x, w in zip(out[1:], wanted, strict=True) if w)]
    return tuple(kept) if len(kept) > 1 else kept[0]


def _refuse_traced(name: str, *xs: Any) -> None:
    if any(isinstance(x, Tracer) for x in xs):
        raise ConcretizationTypeError(
            at_user_line(f"{name}: how many elements the result has is not known while tracing; give a bound: size=n")
        )


def _unique(flat: Array, wanted: Any, equal_nan: bool, size: int | None, fill_value: Any) -> list[Any]:
    if size is None:
        _refuse_traced("unique", flat)
        known = np.asarray(flat)
        if flat.dtype == dtypes.bfloat16:  # whose NaNs NumPy does not know
            known = known.astype(np.float32)
        size = int(np.unique(known, equal_nan=equal_nan).size)
    n, dtype = flat.shape[0], flat.dtype
    if n == 0:
        none = lax.full((size,), 0, dtypes.int32)
        return [
            lax.full((size,), 0 if fill_value is None else fill_value, dtype),
            none,
            lax.full((0,), 0, dtypes.int32),
            none,
        ]
    places: Any = None
    if any(wanted):
        ordered, places = lax.sort((flat, lax.iota(dtypes.int32, n)), 0)
    else:
        ordered = sort(flat)
    after, sooner = lax.slice(ordered, (1,), (n,)), lax.slice(ordered, (0,), (n - 1,))
    new = lax.ne(after, sooner)
    if dtypes.is_inexact(dtype) and equal_nan:  # all NaN count as one
        new = lax.bitwise_and(new, lax.bitwise_not(lax.bitwise_and(isnan(after), isnan(sooner))))
    new = lax.concatenate([lax.full((1,), True, dtypes.bool_), new], 0)
    slot = lax.sub(lax.cumsum(lax.convert_element_type(new, dtypes.int32), 0), np.int32(1))
    first = lax.select_n(new, np.int32(size), slot)  # only the first of equal elements writes

    def collect(items: Array, fill: Any) -> Array:
        start = lax.broadcast_in_dim(fill, (size,), ())
        return lax.scatter(start, items, [first], axes=(0,), mode="drop", op="set")

    fill = lax.index_in_dim(ordered, 0, 0, False) if fill_value is None else convert(fill_value, dtype)
    out = [collect(ordered, fill), None, None, None]
    if wanted[0]:
        out[1] = collect(places, lax.index_in_dim(places, 0, 0, False))
    if wanted[1]:
        zeros = lax.full((n,), 0, dtypes.int32)
        out[2] = lax.scatter(zeros, slot, [places], axes=(0,), mode="drop", op="set")
    if wanted[2]:
        zeros = lax.full((size,), 0, dtypes.int32)
        out[3] = lax.scatter(zeros, lax.full((n,), 1, dtypes.int32), [slot], axes=(0,), mode="drop", op="add")
    return out


def _unique_slices(ar: Array, axis: int, wanted: Any, size: int | None, fill_value: Any) -> list[Any]:
    if size is not None or fill_value is not None:
        raise ValueError(at_user_line("unique: size and fill_value are for the flat array (axis=None) only"))
    _refuse_traced("unique along an axis", ar)
    axis = canonical_axis("unique", axis, aval_of("unique", ar).ndim)
    _, *positions = np.unique(np.asarray(ar), True, True, True, axis)
    index, inverse, counts = (p.reshape(-1).astype(np.int32) for p in positions)
    return [take(ar, index, axis), *(as_value(p) for p in (index, inverse, counts))]


def unique_all(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The distinct elements, where each occurs first, which of them each element is, and how often each occurs."""
    return UniqueAll(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


def unique_counts(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """The distinct elements and how often each occurs."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """The distinct elements and which of them each element is."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements in ascending order."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Whether each element is among ``test_elements``. ``assume_unique`` and ``method`` are hints without effect.

    >>> isin(np.int32([1, 2, 3]), np.int32([3, 1]))
    Array([ True, False,  True], dtype=bool)
    """
    element, test = promote_dtypes("isin", element, test_elements)  # numbers meet arrays first: they take their dtype
    element, test = as_value(element), shaping.ravel(test)
    if test.shape[0] <= _FEW:
        found = _any(binary.equal(shaping.expand_dims(element, -1), test), -1)
    else:
        ordered = sort(test)
        place = searchsorted(ordered, element)
        found = binary.equal(lax.gather(ordered, [place], axes=(0,), mode="clip"), element)
    return lax.bitwise_not(found) if invert else found


def _distinct(name: str, x: Array, size: int | None) -> tuple[Array, Array, Array]:
    """The distinct elements, where each occurs first, and which of them are real: tracing makes room for all."""
    flat = shaping.ravel(x)
    if size is None:
        _refuse_traced(name, flat)
    values, index, counts = unique(flat, True, return_counts=True, size=None if size is None else flat.shape[0])
    return values, index, lax.gt(counts, np.int32(0))


def _keep(values: Array, mask: Array, size: int | None, fill_value: Any) -> Array:
    """The values where ``mask`` holds: as many as there are, or exactly ``size``."""
    if size is None:
        return compress(mask, values)
    if not values.shape[0]:
        return lax.full((size,), 0 if fill_value is None else fill_value, values.dtype)
    (places,) = nonzero(mask, size=size, fill_value=values.shape[0])
    fill = take(values, lax.slice(places, (0,), (1,)), mode="clip") if fill_value is None else fill_value
    missing = lax.eq(places, np.int32(values.shape[0]))
    return binary.where_three(missing, convert(fill, values.dtype), take(values, places, mode="clip"))


def union1d(ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements of both.

    >>> union1d(np.int32([1, 2]), np.int32([2, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    both = promote_dtypes("union1d", ar1, ar2)
    return unique(lax.concatenate([shaping.ravel(x) for x in both], 0), size=size, fill_value=fill_value)


def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The elements in both; with ``return_indices`` also where each occurs first in ``ar1`` and in ``ar2``.

    ``assume_unique`` is a hint without effect.

    >>> intersect1d(np.int32([1, 2, 3]), np.int32([2, 3, 4]))
    Array([2, 3], dtype=int32)
    """
    ar1, ar2 = map(shaping.ravel, promote_dtypes("intersect1d", ar1, ar2))
    values, index1, real1 = _distinct("intersect1d", ar1, size)
    mask1 = lax.bitwise_and(real1, isin(values, ar2))
    out = _keep(values, mask1, size, fill_value)
    if not return_indices:
        return out
    values, index2, real2 = _distinct("intersect1d", ar2, size)
    mask2 = lax.bitwise_and(real2, isin(values, ar1))
    return out, _keep(index1, mask1, size, ar1.shape[0]), _keep(index2, mask2, size, ar2.shape[0])


def setdiff1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The elements of ``ar1`` that ``ar2`` has not.

    >>> setdiff1d(np.int32([1, 2, 3]), np.int32([2]))
    Array([1, 3], dtype=int32)
    """
    if assume_unique:  # as in NumPy, they stay in their order then
        values = shaping.ravel(ar1)
        real = lax.full(values.shape, True, dtypes.bool_)
    else:
        values, _, real = _distinct("setdiff1d", ar1, size)
    mask = lax.bitwise_and(real, isin(values, ar2, invert=True))
    return _keep(values, mask, size, 0 if size is not None and fill_value is None else fill_value)


def setxor1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Array:
    """The elements that are in exactly one of both.

    >>> setxor1d(np.int32([1, 2, 3]), np.int32([3, 4]))
    Array([1, 2, 4], dtype=int32)
    """
    ar1, ar2 = map(shaping.ravel, promote_dtypes("setxor1d", ar1, ar2))
    union, _, real = _distinct("setxor1d", lax.concatenate([ar1, ar2], 0), size)
    one = lax.ne(isin(union, ar1), isin(union, ar2))
    return _keep(union, lax.bitwise_and(real, one), size, fill_value)
