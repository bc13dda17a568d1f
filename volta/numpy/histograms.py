"""Histograms of numbers and of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.calculus import diff
from volta.numpy.creation import asarray, linspace
from volta.numpy.promotion import as_value, aval_of, convert, promote_floats, scalar_like
from volta.numpy.reductions import max as _max
from volta.numpy.reductions import min as _min
from volta.numpy.reductions import sum as _sum
from volta.numpy.sorting import searchsorted
from volta.ops import lax


def histogram_bin_edges(
    a: ArrayLike, bins: int | ArrayLike = 10, range: Sequence[Any] | None = None, weights: ArrayLike | None = None
) -> Array:
    """The edges of ``bins`` bins of equal width over ``range`` (the range of the data); given edges pass through.

    >>> histogram_bin_edges(np.float32([0, 4]), bins=2)
    Array([0., 2., 4.], dtype=float32)
    """
    if isinstance(bins, str):
        raise NotImplementedError(at_user_line("histogram_bin_edges: rules by name are not supported; give a number"))
    a = promote_floats("histogram_bin_edges", shaping.ravel(a))[0]
    if isinstance(bins, Array) and not bins.shape:
        bins = bins.__index__()
    if not isinstance(bins, (int, np.integer)):
        return asarray(bins, a.dtype)
    if range is not None:
        low, high = (asarray(v, a.dtype) for v in range)
    elif a.shape[0]:
        low, high = _min(a), _max(a)
    else:
        low, high = a.dtype.type(0), a.dtype.type(1)
    half = scalar_like(a, 0.5)
    flat = lax.eq(low, high)
    low, high = lax.select_n(flat, low, lax.sub(low, half)), lax.select_n(flat, high, lax.add(high, half))
    return linspace(low, high, int(bins) + 1, dtype=a.dtype)


def histogram(
    a: ArrayLike,
    bins: int | ArrayLike = 10,
    range: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array]:
    """How many elements (or how much weight) each bin has, as floats, and the bins' edges.

    Bins contain their lower edge, the last one both. With ``density`` the integral over the bins is 1.

    >>> histogram(np.float32([1, 2, 2, 5]), bins=2)
    (Array([3., 1.], dtype=float32), Array([1., 3., 5.], dtype=float32))
    """
    counts, (edges,) = histogramdd(
        shaping.reshape(a, (-1, 1)),
        [bins],
        None if range is None else [range],
        None if weights is None else shaping.ravel(shaping.broadcast_to(weights, shaping.shape(a))),
        density,
    )
    return convert(counts, edges.dtype), edges


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """The histogram of points in the plane, and the edges of both axes; ``bins`` is one for both, or one each."""
    if not isinstance(bins, (int, np.integer)) and len(bins) != 2:
        bins = [bins, bins]
    points = shaping.stack([as_value(x), as_value(y)], axis=1)
    counts, (x_edges, y_edges) = histogramdd(points, bins, range, weights, density)
    return counts, x_edges, y_edges


def histogramdd(
    sample: ArrayLike,
    bins: Any = 10,
    range: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, list[Array]]:
    """The histogram of points, one a row of ``sample``, and the edges of each axis; ``bins`` is one, or one an axis.

    Counts are int32, as in JAX; with ``weights`` or ``density`` they are floats.
    """
    sample = promote_floats("histogramdd", sample)[0]
    aval = aval_of("histogramdd", sample)
    if aval.ndim != 2:
        raise ShapeError(at_user_line(f"histogramdd: the sample must be a matrix, one point a row, got {aval.shape}"))
    n, dims = aval.shape
    each = [bins] * dims if isinstance(bins, (int, np.integer)) else list(bins)
    ranges = [None] * dims if range is None else list(range)
    if len(each) != dims or len(ranges) != dims:
        raise ShapeError(at_user_line(f"histogramdd: {len(each)} bins and {len(ranges)} ranges for {dims} axes"))
    edges, places = [], []
    inside: Any = None
    for k, (own, limits) in enumerate(zip(each, ranges, strict=True)):
        x = lax.index_in_dim(sample, k, 1, False)
        axis = histogram_bin_edges(x, own, limits)
        size = axis.shape[0] - 1
        first, last = (lax.index_in_dim(axis, i, 0, False) for i in (0, size))
        ok = lax.bitwise_and(lax.ge(x, first), lax.le(x, last))
        inside = ok if inside is None else lax.bitwise_and(inside, ok)
        places.append(lax.min(lax.sub(searchsorted(axis, x, "right"), np.int32(1)), np.int32(size - 1)))
        edges.append(axis)
    dtype = sample.dtype if weights is not None or density else dtypes.int32
    one = lax.full((n,), 1, dtype) if weights is None else convert(as_value(weights), dtype)
    value = lax.select_n(inside, lax.full((n,), 0, one.dtype), one)
    shape = tuple(e.shape[0] - 1 for e in edges)
    counts = lax.scatter(lax.full(shape, 0, one.dtype), value, places, axes=tuple(np.arange(dims).tolist()), op="add")
    if density:
        counts = lax.div(counts, _sum(counts))
        for k, axis in enumerate(edges):
            widths = shaping.reshape(diff(axis), tuple(-1 if i == k else 1 for i in np.arange(dims)))
            counts = binary.divide(counts, widths)
    return counts, edges
