"""Polynomials through points: :func:`polyfit`."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.array import ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, decompositions, linear_systems, matrices, shaping, ufuncs
from volta.numpy.contractions import dot
from volta.numpy.creation import asarray
from volta.numpy.promotion import as_value, promote_floats
from volta.numpy.reductions import sum as _sum


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of degree ``deg`` that is nearest to the points ``(x, y)`` in squares, the highest power first.

    Args:
        x: (n,).
        y: (n,) or (n, k), of which each column has its polynomial, (deg + 1, k).
        rcond: singular values below this share of the largest one count as 0 (n times the dtype's precision).
        full: give the sums of squares that are left, the rank, the singular values and ``rcond`` too.
        w: (n,), the weights of the points' distances (not of their squares).
        cov: give the covariance matrix of the coefficients too, divided by what is left for each degree of freedom;
            with 'unscaled' without that.

    Raises:
        ShapeError: ``x``, ``y`` and ``w`` do not fit.
        ValueError: ``deg`` is negative; or ``cov`` is True and there are no more points than coefficients.

    >>> polyfit(np.float64([0, 1, 2]), np.float64([1, 3, 7]), 2).round(6).tolist()
    [1.0, 1.0, 1.0]
    """
    x, y = map(as_value, promote_floats("polyfit", x, y))
    order = int(deg) + 1
    if order < 1:
        raise ValueError(at_user_line(f"polyfit: the degree must not be negative, got {deg}"))
    if x.ndim != 1 or y.ndim not in (1, 2) or not x.size or len(x) != len(y):
        raise ShapeError(at_user_line(f"polyfit: takes (n,) and (n,) or (n, k) points, got {x.shape} and {y.shape}"))
    rcond = len(x) * float(np.finfo(x.dtype).eps) if rcond is None else float(rcond)
    left, right = matrices.vander(x, order), y
    if w is not None:
        w = as_value(promote_floats("polyfit", w)[0])
        if w.shape != x.shape:
            raise ShapeError(at_user_line(f"polyfit: takes a weight for each of {len(x)} points, got {w.shape}"))
        left, right = binary.multiply(left, w[:, None]), binary.multiply(right, w if y.ndim == 1 else w[:, None])
    scale = ufuncs.sqrt(_sum(binary.multiply(left, left), 0))  # columns of one length are better to solve with
    left = binary.divide(left, scale)
    found, residuals, rank, s = decompositions.lstsq(left, right, rcond)
    found = binary.divide(found, scale if y.ndim == 1 else scale[:, None])
    if full:
        return found, residuals, rank, s, asarray(np.asarray(rcond, x.dtype))
    if not cov:
        return found
    if cov != "unscaled" and len(x) <= order:
        raise ValueError(at_user_line(f"polyfit: {len(x)} points leave nothing to estimate the covariance with"))
    squares = dot(shaping.matrix_transpose(left), left)
    base = binary.divide(linear_systems.inv(squares), binary.multiply(scale[:, None], scale))
    base = base if y.ndim == 1 else base[:, :, None]
    return found, base if cov == "unscaled" else binary.multiply(base, binary.divide(residuals, len(x) - order))
