"""Distributions of vectors."""

from __future__ import annotations

import math
from types import SimpleNamespace

from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, linalg, reductions, ufuncs
from volta.numpy.promotion import promote_floats
from volta.numpy.shaping import concatenate, expand_dims
from volta.scipy import special
from volta.scipy.linalg import solve_triangular

# -- the multivariate normal distribution ------------------------------------------------------------------------------


def _normal_logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Array:
    """The logarithm of a normal density.

    Args:
        x: (…, n).
        mean: (…, n), or a number.
        cov: (…, n, n), positive definite; or a number, that of each component.

    Returns:
        (…), NaN where ``cov`` is not positive definite.

    >>> round(multivariate_normal.logpdf(vnp.zeros(2), vnp.zeros(2), vnp.eye(2)).item(), 4)
    -1.8379
    """
    if allow_singular is not None:
        raise NotImplementedError(at_user_line("multivariate_normal: covariances must be positive definite"))
    x, mean, cov = promote_floats("multivariate_normal.logpdf", x, mean, cov)
    if not mean.ndim:
        y = binary.subtract(x, mean)
        return (binary.divide(y * y, cov) + ufuncs.log(cov) + math.log(2 * math.pi)) * -0.5
    n = mean.shape[-1]
    y = binary.subtract(x, mean)
    if not cov.ndim:
        square = binary.divide(reductions.sum(y * y, -1), cov)
        return (square + n * (math.log(2 * math.pi) + ufuncs.log(cov))) * -0.5
    if cov.ndim < 2 or cov.shape[-2:] != (n, n):
        text = f"a mean of shape {mean.shape} needs a covariance (…, {n}, {n}), not one of shape {cov.shape}"
        raise ShapeError(at_user_line(f"multivariate_normal.logpdf: {text}"))
    factor = linalg.cholesky(cov)
    if factor.ndim == 2:  # one factor for all
        rows = solve_triangular(factor, y.reshape(-1, n).T, lower=True).T
        square = reductions.sum(rows * rows, -1).reshape(y.shape[:-1])
    else:
        lead = binary.add(y[..., 0] * 0, factor[..., 0, 0] * 0)
        y = binary.add(y, expand_dims(lead, -1))
        factor = binary.add(factor, expand_dims(expand_dims(lead, -1), -1))
        rows = solve_triangular(factor, expand_dims(y, -1), lower=True)[..., 0]
        square = reductions.sum(rows * rows, -1)
    diagonal = linalg.diagonal(factor)
    return square * -0.5 - n * 0.5 * math.log(2 * math.pi) - reductions.sum(ufuncs.log(diagonal), -1)


def _normal_pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """The exponential of ``logpdf``."""
    return ufuncs.exp(_normal_logpdf(x, mean, cov))


multivariate_normal = SimpleNamespace(logpdf=_normal_logpdf, pdf=_normal_pdf)

# -- shares and counts -------------------------------------------------------------------------------------------------


def _dirichlet_logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The logarithm of a Dirichlet density.

    Args:
        x: (n, …): shares that add up to 1; or (n - 1, …), of which the last is what is missing.
        alpha: (n,), positive.

    Returns:
        (…), -inf where ``x`` are no shares.

    >>> dirichlet.logpdf(vnp.asarray([0.5, 0.5]), vnp.ones(2)).item()
    0.0
    """
    x, alpha = promote_floats("dirichlet.logpdf", x, alpha)
    if alpha.ndim != 1 or x.shape[0] not in (alpha.shape[0], alpha.shape[0] - 1):
        text = f"dirichlet.logpdf: {alpha.shape} parameters do not fit shares of shape {x.shape} along the first axis"
        raise ShapeError(at_user_line(text))
    if x.shape[0] != alpha.shape[0]:
        missing = binary.subtract(1.0, reductions.sum(x, 0, keepdims=True))
        x = concatenate([x, missing], 0)
    powers = alpha.reshape(-1, *(1,) * (x.ndim - 1))
    shares = binary.logical_and(reductions.all(x > 0, 0), binary.less(ufuncs.absolute(reductions.sum(x, 0) - 1), 1e-6))
    safe = binary.where_three(shares, x, 0.5)
    constant = reductions.sum(special.gammaln(alpha)) - special.gammaln(reductions.sum(alpha))
    out = reductions.sum(special.xlogy(powers - 1, safe), 0) - constant
    return binary.where_three(shares, out, -math.inf)


def _dirichlet_pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The exponential of ``logpdf``."""
    return ufuncs.exp(_dirichlet_logpdf(x, alpha))


dirichlet = SimpleNamespace(logpdf=_dirichlet_logpdf, pdf=_dirichlet_pdf)


def _multinomial_logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The logarithm of the probability of counts.

    Args:
        x: (…, k) counts.
        n: how many there are in all.
        p: (k,) probabilities.

    Returns:
        (…), -inf where the counts do not add up to ``n``.

    >>> round(multinomial.logpmf(vnp.asarray([1, 1]), 2, vnp.asarray([0.5, 0.5])).item(), 4)
    -0.6931
    """
    n, x, p = promote_floats("multinomial.logpmf", n, x, p)
    total = special.gammaln(n + 1)
    out = total + reductions.sum(special.xlogy(x, p) - special.gammaln(x + 1), -1)
    return binary.where_three(binary.equal(reductions.sum(x, -1), n), out, -math.inf)


def _multinomial_pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The exponential of ``logpmf``."""
    return ufuncs.exp(_multinomial_logpmf(x, n, p))


multinomial = SimpleNamespace(logpmf=_multinomial_logpmf, pmf=_multinomial_pmf)
