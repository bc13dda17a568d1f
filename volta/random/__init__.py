"""Random numbers from explicit keys, with the names and habits of jax.random.

A key is a scalar of the dtype ``key<fry>`` (or raw, its two uint32 words). Nothing is hidden: the same key gives the
same numbers, on every machine, so split a key before each use.

>>> from volta import random
>>> key, subkey = random.split(random.key(0))
>>> random.normal(subkey, (3,)).shape
(3,)
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.random.derived import (
    ball,
    beta,
    cauchy,
    chisquare,
    dirichlet,
    double_sided_maxwell,
    f,
    generalized_normal,
    geometric,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    t,
    triangular,
    wald,
    weibull_min,
)
from volta.random.distributions import (
    bernoulli,
    categorical,
    choice,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    rademacher,
    truncated_normal,
)
from volta.random.keys import PRNGKey, clone, fold_in, key, key_data, key_dtype, key_impl, split, wrap_key_data
from volta.random.matrices import multivariate_normal, orthogonal
from volta.random.rejection import binomial, gamma, loggamma, multinomial, poisson
from volta.random.samplers import bits, permutation, randint, uniform

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
