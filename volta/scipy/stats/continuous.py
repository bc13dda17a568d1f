"""Distributions with a density."""

from __future__ import annotations

import math
from typing import Any

from volta.numpy import binary, powers, ufuncs
from volta.scipy import special
from volta.scipy.stats.distribution import Distribution, softplus

_LOG_2PI = math.log(2 * math.pi)


def _positive(*shapes: Any) -> Any:
    fine = binary.greater(shapes[0], 0)
    for s in shapes[1:]:
        fine = binary.logical_and(fine, binary.greater(s, 0))
    return fine


def _nonnegative(y: Any, *shapes: Any) -> Any:
    return binary.greater_equal(y, 0)


def _unit(y: Any, *shapes: Any) -> Any:
    return binary.logical_and(binary.greater_equal(y, 0), binary.less_equal(y, 1))


def _above(y: Any) -> Any:
    """``y``, and 0 where it is below."""
    return binary.maximum(y, 0)


def _between(y: Any) -> Any:
    return binary.clip(y, 0, 1)


norm = Distribution(
    "norm",
    (),
    {
        "logpdf": lambda y: (y * y + _LOG_2PI) * -0.5,
        "cdf": special.ndtr,
        "logcdf": special.log_ndtr,
        "sf": lambda y: special.ndtr(-y),
        "logsf": lambda y: special.log_ndtr(-y),
        "ppf": special.ndtri,
        "isf": lambda q: -special.ndtri(q),
    },
)

expon = Distribution(
    "expon",
    (),
    {
        "logpdf": lambda y: -y,
        "cdf": lambda y: -ufuncs.expm1(-_above(y)),
        "logsf": lambda y: -_above(y),
        "ppf": lambda q: -ufuncs.log1p(-q),
        "isf": lambda q: -ufuncs.log(q),
    },
    _nonnegative,
    lambda: 0.0,
)

uniform = Distribution(
    "uniform",
    (),
    {"logpdf": lambda y: y * 0, "cdf": _between, "sf": lambda y: _between(1 - y), "ppf": lambda q: q},
    _unit,
    lambda: 0.0,
)


def _below_in_laplace(y: Any) -> Any:
    half = ufuncs.exp(-ufuncs.absolute(y)) * 0.5
    return binary.where_three(y < 0, half, 1 - half)


laplace = Distribution(
    "laplace",
    (),
    {
        "logpdf": lambda y: -ufuncs.absolute(y) - math.log(2),
        "cdf": _below_in_laplace,
        "sf": lambda y: _below_in_laplace(-y),
        "ppf": lambda q: binary.where_three(q < 0.5, ufuncs.log(2 * q), -ufuncs.log(2 * (1 - q))),
    },
)

logistic = Distribution(
    "logistic",
    (),
    {
        "logpdf": lambda y: -ufuncs.absolute(y) - 2 * softplus(-ufuncs.absolute(y)),
        "cdf": special.expit,
        "logcdf": special.log_expit,
        "sf": lambda y: special.expit(-y),
        "logsf": lambda y: special.log_expit(-y),
        "ppf": special.logit,
        "isf": lambda q: -special.logit(q),
    },
)


def _quantile_of_cauchy(q: Any) -> Any:
    """tan(pi (q - 1/2)), exact where it is infinite."""
    size = binary.divide(1.0, ufuncs.tan(math.pi * binary.minimum(q, 1 - q)))
    return binary.where_three(q < 0.5, -size, size)


cauchy = Distribution(
    "cauchy",
    (),
    {
        "logpdf": lambda y: -math.log(math.pi) - ufuncs.log1p(y * y),
        "cdf": lambda y: binary.arctan2(1.0, -y) / math.pi,
        "sf": lambda y: binary.arctan2(1.0, y) / math.pi,
        "ppf": _quantile_of_cauchy,
        "isf": lambda q: -_quantile_of_cauchy(q),
    },
)

gumbel_r = Distribution(
    "gumbel_r",
    (),
    {
        "logpdf": lambda y: -y - ufuncs.exp(-y),
        "logcdf": lambda y: -ufuncs.exp(-y),
        "sf": lambda y: -ufuncs.expm1(-ufuncs.exp(-y)),
        "ppf": lambda q: -ufuncs.log(-ufuncs.log(q)),
        "isf": lambda q: -ufuncs.log(-ufuncs.log1p(-q)),
    },
)

gumbel_l = Distribution(
    "gumbel_l",
    (),
    {
        "logpdf": lambda y: y - ufuncs.exp(y),
        "cdf": lambda y: -ufuncs.expm1(-ufuncs.exp(y)),
        "logsf": lambda y: -ufuncs.exp(y),
        "ppf": lambda q: ufuncs.log(-ufuncs.log1p(-q)),
        "isf": lambda q: ufuncs.log(-ufuncs.log(q)),
    },
)

gamma = Distribution(
    "gamma",
    ("a",),
    {
        "logpdf": lambda y, a: special.xlogy(a - 1, y) - y - special.gammaln(a),
        "cdf": lambda y, a: special.gammainc(a, _above(y)),
        "sf": lambda y, a: special.gammaincc(a, _above(y)),
    },
    _nonnegative,
    lambda a: 1.0,
    valid=_positive,
)

chi2 = Distribution(
    "chi2",
    ("df",),
    {
        "logpdf": lambda y, df: gamma.standard("logpdf")(y * 0.5, df * 0.5) - math.log(2),
        "cdf": lambda y, df: gamma.standard("cdf")(y * 0.5, df * 0.5),
        "sf": lambda y, df: gamma.standard("sf")(y * 0.5, df * 0.5),
    },
    _nonnegative,
    lambda df: 1.0,
    valid=_positive,
)

beta = Distribution(
    "beta",
    ("a", "b"),
    {
        "logpdf": lambda y, a, b: special.xlogy(a - 1, y) + special.xlog1py(b - 1, -y) - special.betaln(a, b),
        "cdf": lambda y, a, b: special.betainc(a, b, _between(y)),
        "sf": lambda y, a, b: special.betainc(b, a, _between(1 - y)),
    },
    _unit,
    lambda a, b: 0.5,
    valid=_positive,
)


def _below_in_t(y: Any, df: Any) -> Any:
    tail = 0.5 * special.betainc(df * 0.5, 0.5, df / (df + y * y))
    return binary.where_three(y > 0, 1 - tail, tail)


t = Distribution(
    "t",
    ("df",),
    {
        "logpdf": lambda y, df: (
            special.gammaln((df + 1) * 0.5)
            - special.gammaln(df * 0.5)
            - 0.5 * ufuncs.log(df * math.pi)
            - (df + 1) * 0.5 * ufuncs.log1p(y * y / df)
        ),
        "cdf": _below_in_t,
        "sf": lambda y, df: _below_in_t(-y, df),
    },
    valid=_positive,
)

pareto = Distribution(
    "pareto",
    ("b",),
    {
        "logpdf": lambda y, b: ufuncs.log(b) - (b + 1) * ufuncs.log(y),
        "cdf": lambda y, b: -ufuncs.expm1(-b * ufuncs.log(binary.maximum(y, 1))),
        "logsf": lambda y, b: -b * ufuncs.log(binary.maximum(y, 1)),
        "ppf": lambda q, b: ufuncs.exp(-ufuncs.log1p(-q) / b),
        "isf": lambda q, b: ufuncs.exp(-ufuncs.log(q) / b),
    },
    lambda y, b: binary.greater_equal(y, 1),
    lambda b: 1.0,
    valid=_positive,
)


def _above_in_gennorm(y: Any, b: Any) -> Any:
    half = 0.5 * special.gammaincc(1 / b, powers.power(ufuncs.absolute(y), b))
    return binary.where_three(y < 0, 1 - half, half)


gennorm = Distribution(
    "gennorm",
    ("beta",),
    {
        "logpdf": lambda y, b: ufuncs.log(0.5 * b) - special.gammaln(1 / b) - powers.power(ufuncs.absolute(y), b),
        "cdf": lambda y, b: _above_in_gennorm(-y, b),
        "sf": _above_in_gennorm,
    },
    valid=_positive,
)


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the share of a standard normal distribution between both, from the side where it is small."""
    right = a > 0
    low, high = binary.where_three(right, -b, a), binary.where_three(right, -a, b)
    above, below = special.log_ndtr(high), special.log_ndtr(low)
    return above + ufuncs.log1p(-ufuncs.exp(below - above))


truncnorm = Distribution(
    "truncnorm",
    ("a", "b"),
    {
        "logpdf": lambda y, a, b: norm.standard("logpdf")(y) - _log_mass(a, b),
        "logcdf": lambda y, a, b: _share_of_mass(binary.clip(y, a, b), a, b, below=True),
        "logsf": lambda y, a, b: _share_of_mass(binary.clip(y, a, b), a, b, below=False),
    },
    lambda y, a, b: binary.logical_and(binary.greater_equal(y, a), binary.less_equal(y, b)),
    lambda a, b: a,
    valid=lambda a, b: binary.less(a, b),
)


def _share_of_mass(y: Any, a: Any, b: Any, below: bool) -> Any:
    end, other = (a, b) if below else (b, a)
    none, whole = binary.equal(y, end), binary.equal(y, other)
    safe = binary.where_three(binary.logical_or(none, whole), binary.where_three(a > -math.inf, a, -1.0) + 0.5, y)
    part = _log_mass(a, safe) if below else _log_mass(safe, b)
    return binary.where_three(none, -math.inf, binary.where_three(whole, 0.0, part - _log_mass(a, b)))


vonmises = Distribution(
    "vonmises",
    ("kappa",),
    {"logpdf": lambda y, kappa: kappa * (ufuncs.cos(y) - 1) - _LOG_2PI - ufuncs.log(special.i0e(kappa))},
    valid=lambda kappa: binary.greater_equal(kappa, 0),
)

wrapcauchy = Distribution(
    "wrapcauchy",
    ("c",),
    {"logpdf": lambda y, c: ufuncs.log1p(-c * c) - _LOG_2PI - ufuncs.log(1 + c * c - 2 * c * ufuncs.cos(y))},
    lambda y, c: binary.logical_and(binary.greater_equal(y, 0), binary.less_equal(y, 2 * math.pi)),
    lambda c: 0.0,
    valid=lambda c: binary.logical_and(c > 0, c < 1),
)
