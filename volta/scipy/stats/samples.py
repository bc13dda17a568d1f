"""Statistics of samples: modes, ranks, standard errors, and densities estimated from them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta.core import dtypes, pytrees
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, linalg, reductions, ufuncs
from volta.numpy.along import take_along_axis
from volta.numpy.contractions import matmul
from volta.numpy.creation import full
from volta.numpy.promotion import as_value, canonical_axis, promote_floats
from volta.numpy.shaping import expand_dims, moveaxis, ravel
from volta.numpy.statistics import cov
from volta.ops import lax
from volta.random.distributions import choice
from volta.random.keys import split
from volta.random.matrices import multivariate_normal as draw_normal
from volta.scipy import special
from volta.scipy.linalg import solve_triangular


class ModeResult(NamedTuple):
    """What :func:`mode` gives."""

    mode: Array
    count: Any  # SciPy's name, which a tuple has for something else


def _last_axis(name: str, a: Any, axis: int | None) -> tuple[Any, int]:
    a = as_value(a)
    if axis is None:
        return ravel(a), 0
    axis = canonical_axis(name, axis, a.ndim)
    return moveaxis(a, axis, -1), axis


def _runs(ordered: Any) -> tuple[Any, Any]:
    """Of ascending elements along the last axis: where each run of equal ones begins, and where it ends (exclusive)."""
    n = ordered.shape[-1]
    places = lax.broadcasted_iota(dtypes.int32, ordered.shape, ordered.ndim - 1)
    before, after = lax.slice_in_dim(ordered, 0, n - 1, 1, -1), lax.slice_in_dim(ordered, 1, n, 1, -1)
    new = binary.not_equal(after, before)
    edge = full((*ordered.shape[:-1], 1), True)
    first = lax.concatenate([edge, new], ordered.ndim - 1)
    last = lax.concatenate([new, edge], ordered.ndim - 1)
    starts = lax.cummax(lax.select(first, places, 0), ordered.ndim - 1)
    ends = lax.cummin(lax.select(last, lax.add(places, 1), n), ordered.ndim - 1, reverse=True)
    return starts, ends


def mode(a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """The most frequent element along ``axis`` (the least of several), and how often it occurs.

    >>> mode(vnp.asarray([3, 1, 3, 1, 2])).mode.item()
    1
    """
    if nan_policy != "propagate":
        raise NotImplementedError(at_user_line(f"mode: nan_policy is 'propagate', not {nan_policy!r}"))
    ndim = as_value(a).ndim
    moved, place = _last_axis("mode", a, axis)
    if not moved.shape[-1]:
        raise ShapeError(at_user_line(f"mode: there is none of no elements (shape {as_value(a).shape})"))
    ordered = lax.sort(moved, -1)
    starts, ends = _runs(ordered)
    counts = lax.sub(ends, starts)
    best = lax.argmax(counts, counts.ndim - 1, dtypes.int32)
    pair = [take_along_axis(x, expand_dims(best, -1), -1)[..., 0] for x in (ordered, counts)]
    if keepdims:
        axes = tuple(range(ndim)) if axis is None else (place,)
        pair = [expand_dims(x, axes) for x in pair]
    return ModeResult(*pair)


def rankdata(a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """The ranks of elements from 1 on, along ``axis`` (None: of the flat array); equal ones share one.

    ``method`` says which: 'average', 'min', 'max', 'dense' (without gaps), or 'ordinal' (each its own). Among NaN there
    are no ranks, all are NaN. They are float32, in which up to 2**24 elements have exact ones.

    >>> rankdata(vnp.asarray([10, 20, 10])).tolist()
    [1.5, 3.0, 1.5]
    """
    if nan_policy != "propagate":
        raise NotImplementedError(at_user_line(f"rankdata: nan_policy is 'propagate', not {nan_policy!r}"))
    if method not in ("average", "min", "max", "dense", "ordinal"):
        known = "'average', 'min', 'max', 'dense' or 'ordinal'"
        raise ValueError(at_user_line(f"rankdata: the method must be {known}, not {method!r}"))
    moved, place = _last_axis("rankdata", a, axis)
    if not moved.shape[-1]:
        return full(moved.shape if axis is None else as_value(a).shape, 0.0, dtypes.float32)
    places = lax.broadcasted_iota(dtypes.int32, moved.shape, moved.ndim - 1)
    ordered, order = lax.sort((moved, places), moved.ndim - 1)
    back = lax.sort((order, places), moved.ndim - 1)[1]
    starts, ends = _runs(ordered)
    if method == "average":
        ranks = lax.mul(lax.convert_element_type(lax.add(lax.add(starts, ends), 1), dtypes.float32), 0.5)
    elif method == "dense":
        ranks = lax.cumsum(lax.convert_element_type(lax.eq(starts, places), dtypes.int32), moved.ndim - 1)
    else:
        ranks = {"min": lax.add(starts, 1), "max": ends, "ordinal": lax.add(places, 1)}[method]
    out = take_along_axis(lax.convert_element_type(ranks, dtypes.float32), back, -1)
    if dtypes.is_float(moved.dtype):
        unknown = reductions.any(ufuncs.isnan(moved), -1, keepdims=True)
        out = binary.where_three(unknown, math.nan, out)
    return out if axis is None else moveaxis(out, -1, place)


def sem(
    a: ArrayLike, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False
) -> Array:
    """The standard error of the mean: the standard deviation over the root of the number of elements.

    >>> round(sem(vnp.asarray([1.0, 2.0, 3.0])).item(), 4)
    0.5774
    """
    if nan_policy != "propagate":
        raise NotImplementedError(at_user_line(f"sem: nan_policy is 'propagate', not {nan_policy!r}"))
    a = promote_floats("sem", a)[0]
    n = a.size if axis is None else a.shape[axis]
    return binary.divide(reductions.std(a, axis, ddof=ddof, keepdims=keepdims), math.sqrt(n))


class gaussian_kde:
    """A density estimated from a sample by normal kernels: see ``scipy.stats.gaussian_kde``.

    Args:
        dataset: (n,) or (d, n), the sample.
        bw_method: 'scott' (by default), 'silverman', a factor, or a function of the estimate that gives one.
        weights: (n,), not all 0.

    >>> kde = gaussian_kde(vnp.asarray([0.0, 1.0, 2.0]))
    >>> kde(vnp.asarray([1.0])).shape
    (1,)
    """

    def __init__(self, dataset: ArrayLike, bw_method: Any = None, weights: ArrayLike | None = None):
        data = promote_floats("gaussian_kde", dataset)[0]
        self.dataset = data if data.ndim == 2 else data.reshape(1, -1)
        self.d, self.n = self.dataset.shape
        if self.n < 2:
            raise ShapeError(at_user_line(f"gaussian_kde: needs two points or more, got shape {data.shape}"))
        w = full((self.n,), 1.0 / self.n, data.dtype) if weights is None else promote_floats("gaussian_kde", weights)[0]
        if w.shape != (self.n,):
            raise ShapeError(at_user_line(f"gaussian_kde: weights of shape {w.shape} do not fit {self.n} points"))
        self.weights = binary.divide(w, reductions.sum(w))
        self.neff = binary.divide(1.0, reductions.sum(self.weights * self.weights))
        self.set_bandwidth(bw_method)

    def set_bandwidth(self, bw_method: Any = None) -> None:
        """Take another bandwidth."""
        if bw_method is None or bw_method == "scott":
            self.factor = self.neff ** (-1.0 / (self.d + 4))
        elif bw_method == "silverman":
            self.factor = (self.neff * (self.d + 2) / 4.0) ** (-1.0 / (self.d + 4))
        elif callable(bw_method):
            self.factor = bw_method(self)
        elif isinstance(bw_method, str):
            raise ValueError(at_user_line(f"gaussian_kde: no bandwidth is called {bw_method!r}"))
        else:
            self.factor = bw_method
        spread = cov(self.dataset, bias=False, aweights=self.weights)
        self.covariance = spread.reshape(self.d, self.d) * self.factor * self.factor
        self.inv_cov = linalg.inv(self.covariance)

    def logpdf(self, x: ArrayLike) -> Array:
        """The logarithm of the estimate at points (d, m), or (m,) where d is 1."""
        points = promote_floats("gaussian_kde", x)[0]
        points = points if points.ndim == 2 else points.reshape(self.d, -1)
        if points.shape[0] != self.d:
            raise ShapeError(
                at_user_line(f"gaussian_kde: points of shape {points.shape} are not of {self.d} dimensions")
            )
        factor = linalg.cholesky(self.covariance)
        away = (expand_dims(points, 2) - expand_dims(self.dataset, 1)).reshape(self.d, -1)
        rows = solve_triangular(factor, away, lower=True)
        square = reductions.sum(rows * rows, 0).reshape(points.shape[1], self.n)
        constant = self.d * 0.5 * math.log(2 * math.pi) + reductions.sum(ufuncs.log(linalg.diagonal(factor)))
        return special.logsumexp(square * -0.5 - constant, 1, b=self.weights)

    def pdf(self, x: ArrayLike) -> Array:
        """The estimate at points (d, m), or (m,) where d is 1."""
        return ufuncs.exp(self.logpdf(x))

    __call__ = evaluate = pdf

    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Array:
        """The integral of the estimate times a normal density."""
        mean, cov = promote_floats("gaussian_kde", mean, cov)
        total = cov.reshape(self.d, self.d) + self.covariance
        return reductions.sum(self._normal(self.dataset - mean.reshape(self.d, 1), total) * self.weights)

    def _normal(self, away: Any, covariance: Any) -> Any:
        factor = linalg.cholesky(covariance)
        rows = solve_triangular(factor, away, lower=True)
        constant = self.d * 0.5 * math.log(2 * math.pi) + reductions.sum(ufuncs.log(linalg.diagonal(factor)))
        return ufuncs.exp(reductions.sum(rows * rows, 0) * -0.5 - constant)

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Array:
        """The share of the estimate between two numbers; of one dimension only."""
        if self.d != 1:
            raise ShapeError(at_user_line(f"integrate_box_1d: the estimate has {self.d} dimensions"))
        scale = ufuncs.sqrt(self.covariance[0, 0])
        upper, lower = (special.ndtr((end - self.dataset[0]) / scale) for end in (high, low))
        return reductions.sum((upper - lower) * self.weights)

    def integrate_kde(self, other: gaussian_kde) -> Array:
        """The integral of the product of two estimates."""
        if other.d != self.d:
            raise ShapeError(at_user_line(f"integrate_kde: estimates of {self.d} and {other.d} dimensions"))
        away = (expand_dims(self.dataset, 2) - expand_dims(other.dataset, 1)).reshape(self.d, -1)
        values = self._normal(away, self.covariance + other.covariance).reshape(self.n, other.n)
        return matmul(matmul(self.weights, values), other.weights)

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Draws (d, \\*shape) from the estimate."""
        first, second = split(key)
        chosen = choice(first, self.n, shape=shape, replace=True, p=self.weights)
        center = self.dataset[:, chosen]
        noise = draw_normal(second, np.zeros(self.d, self.dataset.dtype), self.covariance, shape=shape)
        return center + moveaxis(noise, -1, 0)


def _children(k: gaussian_kde) -> tuple[tuple[Any, ...], None]:
    return (k.dataset, k.weights, k.neff, k.factor, k.covariance, k.inv_cov), None


def _from_children(_: None, children: Any) -> gaussian_kde:
    made = object.__new__(gaussian_kde)
    made.dataset, made.weights, made.neff, made.factor, made.covariance, made.inv_cov = children
    made.d, made.n = np.shape(made.dataset) or (0, 0)
    return made


pytrees.register_node(gaussian_kde, _children, _from_children)
