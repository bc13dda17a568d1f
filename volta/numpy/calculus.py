"""Functions of sampled curves: differences, gradients, integrals, interpolation."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, division, shaping
from volta.numpy.complexes import imag, real
from volta.numpy.creation import asarray
from volta.numpy.indexing import getitem
from volta.numpy.promotion import (
    as_value,
    aval_of,
    canonical_axes,
    canonical_axis,
    convert,
    promote_dtypes,
    promote_floats,
    scalar_like,
)
from volta.numpy.reductions import sum as _sum
from volta.numpy.scans import cumsum
from volta.numpy.sorting import searchsorted
from volta.ops import lax


def _part(x: Array, axis: int, cut: slice) -> Array:
    return getitem(x, (slice(None),) * axis + (cut,))


def diff(
    a: ArrayLike, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Array:
    """The differences of neighbours along ``axis``, ``n`` times, with values put before and behind first.

    >>> diff(np.int32([1, 4, 9]))
    Array([3, 5], dtype=int32)
    """
    a = as_value(a)
    if n < 0:
        raise ValueError(at_user_line(f"diff: the order must not be negative, got {n}"))
    if n == 0:
        return a  # nothing is put before and behind then
    axis = canonical_axis("diff", axis, a.ndim)
    parts = promote_dtypes("diff", *(part for part in (prepend, a, append) if part is not None))
    if len(parts) > 1:
        one = tuple(1 if i == axis else m for i, m in enumerate(a.shape))
        a = shaping.concatenate([shaping.broadcast_to(p, one) if shaping.ndim(p) == 0 else p for p in parts], axis)
    for _ in range(n):
        size = a.shape[axis]
        later, sooner = _part(a, axis, slice(1, None)), _part(a, axis, slice(None, builtins.max(size - 1, 0)))
        a = lax.ne(later, sooner) if a.dtype == dtypes.bool_ else lax.sub(later, sooner)
    return a


def ediff1d(ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None) -> Array:
    """The differences of neighbours in the flat array, with vectors put before and behind.

    >>> ediff1d(np.int32([1, 4, 9]), to_end=0)
    Array([3, 5, 0], dtype=int32)
    """
    out = diff(shaping.ravel(ary))
    ends = [None if v is None else shaping.ravel(asarray(v, out.dtype)) for v in (to_begin, to_end)]
    return lax.concatenate([v for v in (ends[0], out, ends[1]) if v is not None], 0)


def gradient(
    f: ArrayLike, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int | None = None
) -> Any:
    """The slope along each axis (or those of ``axis``): central differences inside, one-sided ones at the ends.

    ``varargs``: the distance of samples, one for all axes or one each; or the samples' coordinates, a vector an axis.
    One axis gives an array, several a list of arrays. ``edge_order`` other than 1 is not supported.

    >>> gradient(np.float32([1, 2, 4, 7]))
    Array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    if edge_order not in (None, 1):
        raise NotImplementedError(at_user_line(f"gradient: edge_order must be 1, not {edge_order}"))
    f = promote_floats("gradient", f)[0]
    nd = aval_of("gradient", f).ndim
    given = tuple(axis) if isinstance(axis, (tuple, list)) else axis
    axes = canonical_axes("gradient", given, nd)
    if isinstance(given, tuple):  # in the order asked for
        axes = tuple(canonical_axis("gradient", a, nd) for a in given)
    steps = varargs or (1.0,)
    steps = steps * len(axes) if len(steps) == 1 else steps
    if len(steps) != len(axes):
        raise ShapeError(at_user_line(f"gradient: {len(steps)} distances for {len(axes)} axes; give one, or one each"))
    out = [_slope(f, a, h) for a, h in zip(axes, steps, strict=True)]
    return out[0] if len(out) == 1 and not isinstance(given, tuple) else out


def _slope(f: Array, axis: int, h: Any) -> Array:
    n = f.shape[axis]
    if n < 2:
        raise ShapeError(at_user_line(f"gradient: axis {axis} of shape {f.shape} needs at least 2 samples"))
    cut = lambda a, b: _part(f, axis, slice(a, b))  # noqa: E731
    h = asarray(h, f.dtype)
    if h.ndim == 0:
        middle = binary.divide(lax.sub(cut(2, None), cut(None, -2)), lax.mul(h, scalar_like(h, 2.0)))
        first = binary.divide(lax.sub(cut(1, 2), cut(0, 1)), h)
        last = binary.divide(lax.sub(cut(-1, None), cut(-2, -1)), h)
        return lax.concatenate([first, middle, last], axis)
    if h.shape != (n,):
        raise ShapeError(at_user_line(f"gradient: coordinates of shape {h.shape} for the {n} samples of axis {axis}"))
    wide = shaping.reshape(diff(h), tuple(-1 if i == axis else 1 for i in range(f.ndim)))
    before, after = _part(wide, axis, slice(None, -1)), _part(wide, axis, slice(1, None))
    both = lax.add(before, after)
    middle = binary.add(
        binary.subtract(
            binary.multiply(cut(2, None), lax.div(before, lax.mul(after, both))),
            binary.multiply(cut(None, -2), lax.div(after, lax.mul(before, both))),
        ),
        binary.multiply(cut(1, -1), lax.div(lax.sub(after, before), lax.mul(before, after))),
    )
    first = binary.divide(lax.sub(cut(1, 2), cut(0, 1)), _part(wide, axis, slice(0, 1)))
    last = binary.divide(lax.sub(cut(-1, None), cut(-2, -1)), _part(wide, axis, slice(-1, None)))
    return lax.concatenate([first, middle, last], axis)


def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: Any = 1.0, axis: int = -1) -> Array:
    """The integral of ``y`` along ``axis`` by the trapezoidal rule, at the points ``x`` or at distance ``dx``.

    Distances, and points that are no vector, broadcast against ``y``.

    >>> trapezoid(np.float32([1, 2, 3]))
    Array(4., dtype=float32)
    """
    y = promote_floats("trapezoid", y)[0]
    place, ndim = canonical_axis("trapezoid", axis, y.ndim), y.ndim
    pairs = binary.add(_part(y, place, slice(1, None)), _part(y, place, slice(None, -1)))
    if x is not None:
        points = as_value(x)
        if points.ndim == 1:
            dx = shaping.reshape(diff(points), (-1,) + (1,) * (ndim - 1 - place))
        else:
            dx = diff(points, axis=axis)
    areas = binary.multiply(pairs, dx)
    return lax.mul(_sum(areas, axis), scalar_like(areas, 0.5))


def unwrap(p: ArrayLike, discont: Any = None, axis: int = -1, period: Any = 2 * math.pi) -> Array:
    """A phase without its jumps: neighbours along ``axis`` that differ by over half a ``period`` are brought nearer.

    Differences smaller than ``discont`` stay as they are.

    >>> unwrap(np.float32([0, 5, 1]), period=6.0)
    Array([ 0., -1.,  1.], dtype=float32)
    """
    p, full = promote_dtypes("unwrap", p, period)
    axis = canonical_axis("unwrap", axis, aval_of("unwrap", p).ndim)
    full = convert(full, p.dtype)
    whole = dtypes.is_integer(p.dtype)
    half = division.floor_divide(full, 2) if whole else binary.divide(full, 2)
    step = diff(p, axis=axis)
    near = binary.subtract(division.remainder(binary.add(step, half), full), half)
    up = binary.logical_and(binary.equal(near, lax.neg(half)), binary.greater(step, 0))
    up = binary.logical_and(up, binary.equal(division.remainder(full, 2), 0)) if whole else up  # else half is below it
    near = binary.where_three(up, half, near)
    fix = binary.subtract(near, step)
    jump = binary.less(binary.multiply(lax.abs(step), 2), full)  # less than half a period: no jump
    if discont is not None:
        jump = binary.logical_or(jump, binary.less(lax.abs(step), discont))
    fix = binary.where_three(jump, p.dtype.type(0), fix)
    return lax.concatenate(
        [_part(p, axis, slice(0, 1)), lax.add(_part(p, axis, slice(1, None)), cumsum(fix, axis))], axis
    )


def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: Any = None, right: Any = None, period: Any = None
) -> Array:
    """Linear interpolation of the points ``(xp, fp)``, ``xp`` ascending; outside the first and last value hold.

    ``left`` and ``right`` are the values outside instead, or 'extrapolate': the line goes on. With a ``period`` the
    curve repeats, and ``xp`` may be in any order. Values ``fp`` may be complex.

    >>> interp(np.float32([0.5, 9]), np.float32([0, 1, 2]), np.float32([5, 7, 8]))
    Array([6., 8.], dtype=float32)
    """
    x, xp = promote_floats("interp", x, xp)
    fp = promote_floats("interp", fp)[0]
    if dtypes.is_complex(aval_of("interp", fp).dtype):  # the parts are interpolated each
        part = lambda f, end: end if end is None or isinstance(end, str) else f(end)  # noqa: E731
        re, im = (interp(x, xp, f(fp), part(f, left), part(f, right), period) for f in (real, imag))
        return lax.complex(re, im)
    x, xp, fp = promote_floats("interp", x, xp, fp)
    for end in (left, right):
        if isinstance(end, str) and end != "extrapolate":
            raise ValueError(at_user_line(f"interp: left and right are values or 'extrapolate', not {end!r}"))
    if aval_of("interp", xp).ndim != 1 or aval_of("interp", xp).shape != aval_of("interp", fp).shape:
        raise ShapeError(at_user_line("interp: xp and fp must be vectors of one length"))
    if period is not None:
        period = lax.abs(asarray(period, aval_of("interp", xp).dtype))
        x, xp = division.remainder(x, period), division.remainder(xp, period)
        xp, fp = lax.sort((xp, fp), 0)
        ends = lambda v: (lax.slice_in_dim(v, -1, None, axis=0), lax.slice_in_dim(v, 0, 1, axis=0))  # noqa: E731
        (last, first), (flast, ffirst) = ends(xp), ends(fp)
        xp = lax.concatenate([lax.sub(last, period), xp, lax.add(first, period)], 0)
        fp = lax.concatenate([flast, fp, ffirst], 0)
    n = aval_of("interp", xp).shape[0]
    i = lax.clamp(np.int32(1), searchsorted(xp, x, "right"), np.int32(max(n - 1, 1)))
    before = lax.sub(i, np.int32(1))
    x0, x1, f0, f1 = (
        lax.gather(v, [j], axes=(0,), mode="clip") for v, j in ((xp, before), (xp, i), (fp, before), (fp, i))
    )
    width = lax.sub(x1, x0)
    safe = lax.select_n(lax.eq(width, scalar_like(width, 0.0)), width, scalar_like(width, 1.0))
    out = lax.add(f0, lax.mul(lax.div(lax.sub(x, x0), safe), lax.sub(f1, f0)))
    if period is not None:
        return out
    lowest, highest = (lax.index_in_dim(xp, k, 0, False) for k in (0, n - 1))
    dtype = aval_of("interp", fp).dtype
    if not isinstance(left, str):
        low = lax.index_in_dim(fp, 0, 0, False) if left is None else asarray(left, dtype)
        out = binary.where_three(binary.less(x, lowest), low, out)
    if not isinstance(right, str):
        high = lax.index_in_dim(fp, n - 1, 0, False) if right is None else asarray(right, dtype)
        out = binary.where_three(binary.greater(x, highest), high, out)
    return out
