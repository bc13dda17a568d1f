"""Distributions of whole numbers, with ``loc`` but no ``scale``."""

from __future__ import annotations

from typing import Any

from volta.numpy import binary, ufuncs
from volta.scipy import special
from volta.scipy.stats.distribution import Distribution


def _whole(k: Any) -> Any:
    return binary.logical_and(binary.equal(k, ufuncs.floor(k)), binary.greater_equal(k, 0))


def _up_to(k: Any, n: Any) -> Any:
    return binary.logical_and(_whole(k), binary.less_equal(k, n))


def _share(p: Any) -> Any:
    return binary.logical_and(binary.greater_equal(p, 0), binary.less_equal(p, 1))


def _zero(*shapes: Any) -> float:
    return 0.0


def _log_comb(n: Any, k: Any) -> Any:
    return -ufuncs.log1p(n) - special.betaln(n - k + 1, k + 1)


bernoulli = Distribution(
    "bernoulli",
    ("p",),
    {
        "logpmf": lambda k, p: special.xlogy(k, p) + special.xlog1py(1 - k, -p),
        "cdf": lambda k, p: binary.where_three(k < 0, 0.0, binary.where_three(k < 1, 1 - p, 1.0)),
        "ppf": lambda q, p: binary.where_three(q <= 1 - p, 0.0, 1.0),
    },
    lambda k, p: _up_to(k, 1),
    _zero,
    scaled=False,
    valid=_share,
)

binom = Distribution(
    "binom",
    ("n", "p"),
    {"logpmf": lambda k, n, p: _log_comb(n, k) + special.xlogy(k, p) + special.xlog1py(n - k, -p)},
    lambda k, n, p: _up_to(k, n),
    _zero,
    scaled=False,
    valid=lambda n, p: binary.logical_and(_share(p), _whole(n)),
)

geom = Distribution(
    "geom",
    ("p",),
    {"logpmf": lambda k, p: special.xlog1py(k - 1, -p) + ufuncs.log(p)},
    lambda k, p: _whole(k - 1),
    lambda p: 1.0,
    scaled=False,
    valid=lambda p: binary.logical_and(p > 0, p <= 1),
)

nbinom = Distribution(
    "nbinom",
    ("n", "p"),
    {
        "logpmf": lambda k, n, p: (
            special.gammaln(k + n)
            - special.gammaln(n)
            - special.gammaln(k + 1)
            + special.xlogy(n, p)
            + special.xlog1py(k, -p)
        )
    },
    lambda k, n, p: _whole(k),
    _zero,
    scaled=False,
    valid=lambda n, p: binary.logical_and(binary.logical_and(n > 0, p > 0), p <= 1),
)

poisson = Distribution(
    "poisson",
    ("mu",),
    {
        "logpmf": lambda k, mu: special.xlogy(k, mu) - special.gammaln(k + 1) - mu,
        "cdf": lambda k, mu: binary.where_three(
            k < 0, 0.0, special.gammaincc(ufuncs.floor(binary.maximum(k, 0)) + 1, mu)
        ),
    },
    lambda k, mu: _whole(k),
    _zero,
    scaled=False,
    valid=lambda mu: binary.greater_equal(mu, 0),
)

betabinom = Distribution(
    "betabinom",
    ("n", "a", "b"),
    {"logpmf": lambda k, n, a, b: _log_comb(n, k) + special.betaln(k + a, n - k + b) - special.betaln(a, b)},
    lambda k, n, a, b: _up_to(k, n),
    _zero,
    scaled=False,
    valid=lambda n, a, b: binary.logical_and(_whole(n), binary.logical_and(a > 0, b > 0)),
)
