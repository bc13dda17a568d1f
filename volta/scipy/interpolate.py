"""Interpolation on grids, under the names of ``jax.scipy.interpolate``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import volta.numpy as vnp
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ConcretizationTypeError, ShapeError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy.promotion import promote_floats

__all__ = ["RegularGridInterpolator"]


class RegularGridInterpolator:
    """Values between the points of a grid whose axes may be unevenly spaced.

    Args:
        points: the coordinates along each axis, ascending vectors.
        values: (n1, n2, …, *more): the values at the grid's points.
        method: 'linear' or 'nearest'.
        bounds_error: whether a point outside is an error (known points only).
        fill_value: the value outside; None to go on as at the edge.

    >>> f = RegularGridInterpolator((vnp.asarray([0.0, 1.0]),), vnp.asarray([10.0, 20.0]))
    >>> f(vnp.asarray([[0.25]])).tolist()
    [12.5]
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: Any = np.nan,
    ):
        self._check(method)
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value
        self.values = promote_floats("RegularGridInterpolator", values)[0]
        self.grid = tuple(vnp.asarray(p) for p in points)
        if len(self.grid) > self.values.ndim:
            text = f"{len(self.grid)} axes for values of {self.values.ndim} dimensions"
            raise ShapeError(at_user_line(f"RegularGridInterpolator: {text}"))
        for i, p in enumerate(self.grid):
            if p.shape != (self.values.shape[i],):
                text = f"axis {i} has points of shape {p.shape}, the values {self.values.shape[i]} along it"
                raise ShapeError(at_user_line(f"RegularGridInterpolator: {text}"))
            if not isinstance(p, Tracer) and not np.all(np.diff(np.asarray(p)) > 0):
                raise ValueError(at_user_line(f"RegularGridInterpolator: the points along axis {i} must ascend"))

    @staticmethod
    def _check(method: str) -> None:
        if method not in ("linear", "nearest"):
            text = f"RegularGridInterpolator: the method must be 'linear' or 'nearest', not {method!r}"
            raise ValueError(at_user_line(text))

    def __call__(self, xi: ArrayLike, method: str | None = None) -> Array:
        """The values at points (…, n axes), or a tuple of coordinates."""
        chosen = self.method if method is None else method
        self._check(chosen)
        if isinstance(xi, tuple):
            xi = vnp.stack(vnp.broadcast_arrays(*(vnp.asarray(x) for x in xi)), -1)
        xi = promote_floats("RegularGridInterpolator", xi)[0]
        n = len(self.grid)
        if xi.ndim < 1 or xi.shape[-1] != n:
            raise ShapeError(at_user_line(f"RegularGridInterpolator: points (…, {n}) are needed, got {xi.shape}"))
        places: list[tuple[Any, Any]] = []
        inside: Any = True
        for i, p in enumerate(self.grid):
            x = xi[..., i]
            index = vnp.clip(vnp.searchsorted(p, x) - 1, 0, p.shape[0] - 2)
            share = (x - p[index]) / (p[index + 1] - p[index])
            inside = vnp.logical_and(inside, vnp.logical_and(x >= p[0], x <= p[-1]))
            places.append((index, share))
        if self.bounds_error:
            if isinstance(inside, Tracer):
                text = "bounds_error asks whether points are outside, which is not known while tracing"
                raise ConcretizationTypeError(at_user_line(f"RegularGridInterpolator: {text}; leave it off"))
            if not bool(vnp.all(inside)):
                raise ValueError(at_user_line("RegularGridInterpolator: a point is outside of the grid"))
        trailing = (...,) + (None,) * (self.values.ndim - n)
        out: Any = 0.0
        if chosen == "nearest":
            out = self.values[tuple(vnp.where(share <= 0.5, i, i + 1) for i, share in places)]
        else:
            for corner in itertools.product((0, 1), repeat=n):
                weight: Any = 1.0
                for c, (_, share) in zip(corner, places, strict=True):
                    weight = weight * (share if c else 1 - share)
                value = self.values[tuple(i + c for c, (i, _) in zip(corner, places, strict=True))]
                out = out + value * weight[trailing]
        if self.fill_value is None:
            return out
        return vnp.where(inside[trailing], out, self.fill_value)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
