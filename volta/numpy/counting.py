"""Small functions of polynomials, integrals, membership and flat positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.indexing import getitem
from volta.numpy.promotion import as_shape, as_value, aval_of, canonical_axis, convert, promote_floats, scalar_like
from volta.numpy.reductions import any as _any
from volta.numpy.reductions import sum as _sum
from volta.ops import lax

Array = Any


def polyval(p: Array, x: Array) -> Array:
    """The polynomial with the coefficients ``p``, the highest power first, at ``x``, by Horner's rule.

    >>> polyval(np.float32([1, 0, -2]), np.float32(3))
    Array(7., dtype=float32)
    """
    coefficients = as_value(p)
    if coefficients.ndim != 1:
        raise ShapeError(at_user_line(f"polyval: the coefficients must be a vector, got shape {coefficients.shape}"))
    out: Any = binary.multiply(x, 0)
    for c in coefficients:
        out = binary.add(binary.multiply(out, x), c)
    return as_value(out)


def trapezoid(y: Array, x: Array | None = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral of ``y`` along ``axis`` by the trapezoidal rule, at the points ``x`` or at distance ``dx``."""
    y = promote_floats("trapezoid", y)[0]
    axis = canonical_axis("trapezoid", axis, aval_of("trapezoid", y).ndim)
    y = shaping.moveaxis(y, axis, -1)
    pairs = binary.add(getitem(y, (..., slice(1, None))), getitem(y, (..., slice(None, -1))))
    if x is not None:
        points = as_value(x)
        points = points if points.ndim == 1 else shaping.moveaxis(points, axis, -1)
        dx = binary.subtract(getitem(points, (..., slice(1, None))), getitem(points, (..., slice(None, -1))))
    areas = binary.multiply(pairs, dx)
    return lax.mul(_sum(areas, -1), scalar_like(areas, 0.5))


def isin(element: Array, test_elements: Array, invert: bool = False) -> Array:
    """Whether each element is among ``test_elements``: every pair is compared."""
    a = shaping.expand_dims(element, -1)
    found = _any(binary.equal(a, shaping.ravel(test_elements)), -1)
    return lax.bitwise_not(found) if invert else found


def unravel_index(indices: Array, shape: Any) -> tuple[Array, ...]:
    """The coordinates, one array an axis, of positions in the flat array of ``shape``."""
    sizes = as_shape("unravel_index", shape)
    flat = convert(as_value(indices), dtypes.int64 if math.prod(sizes) > 2**31 - 1 else dtypes.int32)
    out = []
    for n in reversed(sizes):
        out.append(binary.remainder(flat, n))
        flat = binary.floor_divide(flat, n)
    return tuple(reversed(out))


def ravel_multi_index(multi_index: Sequence[Array], dims: Any) -> Array:
    """The positions in the flat array of shape ``dims`` of elements given by their coordinates."""
    sizes = as_shape("ravel_multi_index", dims)
    if len(multi_index) != len(sizes):
        raise ShapeError(at_user_line(f"ravel_multi_index: {len(multi_index)} coordinates for {len(sizes)} axes"))
    out: Any = np.int32(0)
    for index, n in zip(multi_index, sizes, strict=True):
        out = binary.add(binary.multiply(out, n), index)
    return as_value(out)
