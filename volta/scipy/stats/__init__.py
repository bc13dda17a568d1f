"""Distributions and statistics under the names of ``jax.scipy.stats``.

>>> from volta.scipy.stats import norm
>>> norm.cdf(0.0).tolist()
0.5
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.scipy.stats.continuous import (
    beta,
    cauchy,
    chi2,
    expon,
    gamma,
    gennorm,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    norm,
    pareto,
    t,
    truncnorm,
    uniform,
    vonmises,
    wrapcauchy,
)  # fmt: skip
from volta.scipy.stats.discrete import bernoulli, betabinom, binom, geom, nbinom, poisson
from volta.scipy.stats.samples import gaussian_kde, mode, rankdata, sem
from volta.scipy.stats.several import dirichlet, multinomial, multivariate_normal

__all__ = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gaussian_kde",
    "gennorm", "geom", "gumbel_l", "gumbel_r", "laplace", "logistic", "mode", "multinomial", "multivariate_normal",
    "nbinom", "norm", "pareto", "poisson", "rankdata", "sem", "t", "truncnorm", "uniform", "vonmises", "wrapcauchy",
]  # fmt: skip

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
