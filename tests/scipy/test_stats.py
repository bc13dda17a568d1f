"""Distributions and statistics against SciPy's, inside and outside of their support."""

import doctest
import inspect

import numpy as np
import pytest
import scipy.stats

import volta
import volta.numpy as vnp
from volta import random
from volta.core.errors import ShapeError
from volta.scipy import stats
from volta.scipy.stats import continuous, discrete, samples, several
from volta.scipy.stats.distribution import Distribution
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

R = np.random.default_rng(3)
REAL = np.concatenate([R.normal(size=20) * 3, [0.0, 1.0, -1.0]]).astype("float32")
UNIT = np.concatenate([R.uniform(0, 1, 18), [0.0, 1.0, -0.5, 1.5, 0.5]]).astype("float32")
COUNTS = np.float32([*range(12), 2.5, -1])
SHAPES = {
    "beta": (2.5, 0.8), "chi2": (3.5,), "gamma": (2.2,), "gennorm": (1.4,), "pareto": (2.5,), "t": (4.5,),
    "truncnorm": (-1.5, 2.5), "vonmises": (2.0,), "wrapcauchy": (0.4,), "bernoulli": (0.3,), "betabinom": (8, 2.0, 3.0),
    "binom": (9, 0.35), "geom": (0.3,), "nbinom": (4.0, 0.4), "poisson": (3.5,),
}  # fmt: skip
FAMILIES = {n: d for m in (continuous, discrete) for n, d in vars(m).items() if isinstance(d, Distribution)}
CASES = [(name, f) for name, d in FAMILIES.items() for f in d.functions()]


def _of(name, function):
    d = FAMILIES[name]
    shapes = SHAPES.get(name, ())
    place = ((0.3, 1.7) if d.scaled else (1,)) if name not in ("vonmises", "wrapcauchy") else (0.0, 1.0)
    x = UNIT if function in ("ppf", "isf") or name == "beta" else REAL if d.scaled else COUNTS
    return x, (*shapes, *place)


@pytest.mark.few(24)
@pytest.mark.parametrize("name, function", CASES)
def test_values(name, function):
    x, parameters = _of(name, function)
    if name == "wrapcauchy":
        x = np.abs(x)
    if name == "bernoulli":  # SciPy's quantile of 0 is the number below all; JAX's is 0
        x = x[(x > 0) & (x < 1)] if function in ("ppf", "isf") else x
    got = getattr(getattr(stats, name), function)(x, *parameters)
    with np.errstate(all="ignore"):
        want = getattr(getattr(scipy.stats, name), function)(x.astype("float64"), *parameters)
    assert got.dtype == "float32" and got.shape == x.shape
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_slopes_are_those_of_the_values_and_bits_are_one(name):
    d = FAMILIES[name]
    function = "logpdf" if d.scaled else "logpmf"
    x, parameters = _of(name, function)
    f = getattr(d, function)
    x = np.float64(x[:6])
    assert_bits_equal(volta.jit(f)(x, *parameters), f(x, *parameters))
    assert_bits_equal(volta.vmap(lambda v: f(v, *parameters))(x), f(x, *parameters))
    where, h = len(parameters) - (2 if d.scaled else 1), 1e-6
    place = 0 if d.shapes and name not in ("betabinom", "binom") else where
    if d.scaled or place < where:
        values = [np.float64(p) for p in parameters]
        got = volta.jacrev(lambda p: f(x, *values[:place], p, *values[place + 1 :]))(values[place])
        ends = [f(x, *values[:place], values[place] + s * h, *values[place + 1 :]) for s in (1, -1)]
        with np.errstate(invalid="ignore"):
            want = (np.asarray(ends[0]) - np.asarray(ends[1])) / (2 * h)
        inside = np.isfinite(want)
        np.testing.assert_allclose(np.asarray(got)[inside], want[inside], rtol=1e-4, atol=1e-5)
        assert np.isfinite(np.asarray(got)).all()  # outside of the support too


def test_names_and_signatures_are_those_of_jax():
    pytest.importorskip("jax")
    import jax.scipy.stats as theirs

    for name in FAMILIES:
        for function, f in vars(getattr(theirs, name)).items():
            if function in ("logpdf", "pdf", "logpmf", "pmf", "cdf", "sf", "logcdf", "logsf", "ppf", "isf"):
                own = inspect.signature(getattr(getattr(stats, name), function)).parameters
                assert set(inspect.signature(f).parameters) - {"x", "q", "k", "p", "n"} <= set(own) | {"df"}


def test_parameters_that_are_none():
    assert np.isnan(stats.norm.logpdf(0.0, 0.0, -1.0).item()) and np.isnan(stats.gamma.pdf(1.0, -1.0).item())
    assert np.isnan(stats.binom.pmf(1, 3, 1.5).item()) and np.isnan(stats.norm.ppf(1.5).item())
    assert np.isnan(stats.norm.pdf(vnp.nan).item())
    assert stats.norm.logpdf(x=1.0, scale=2.0).item() == stats.norm.logpdf(1.0, 0.0, 2.0).item()
    with pytest.raises(AttributeError, match="norm has no rvs; it has cdf, isf, logcdf"):
        stats.norm.rvs(3)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        stats.gamma.pdf(1.0)
    assert "logpdf" in dir(stats.norm) and "rvs" not in dir(stats.norm) and "gamma(a, loc, scale)" in repr(stats.gamma)


def test_vectors():
    mean, cov = np.float32([0.5, -1.0]), np.float32([[2.0, 0.3], [0.3, 1.0]])
    x = np.float32(R.normal(size=(3, 4, 2)))
    want = scipy.stats.multivariate_normal(mean, cov)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, cov), want.logpdf(x), rtol=1e-5)
    np.testing.assert_allclose(stats.multivariate_normal.pdf(x, mean, cov), want.pdf(x), rtol=1e-5)
    several_covs = np.stack([cov, cov * 2, cov * 3])[:, None]
    got = stats.multivariate_normal.logpdf(x, mean, several_covs)
    np.testing.assert_allclose(got[1], scipy.stats.multivariate_normal(mean, cov * 2).logpdf(x[1]), rtol=1e-5)
    assert stats.multivariate_normal.logpdf(0.0, 0.0, 1.0).item() == pytest.approx(scipy.stats.norm.logpdf(0.0))
    np.testing.assert_allclose(
        stats.multivariate_normal.logpdf(x, mean, 2.0), scipy.stats.multivariate_normal(mean, 2.0).logpdf(x), rtol=1e-5
    )
    alpha, shares = np.float32([1.5, 2.0, 3.0]), np.float32([0.2, 0.3, 0.5])
    want = scipy.stats.dirichlet.logpdf(np.float64([0.2, 0.3, 0.5]), alpha)
    np.testing.assert_allclose(stats.dirichlet.logpdf(shares, alpha), want, rtol=1e-5)
    np.testing.assert_allclose(stats.dirichlet.pdf(shares[:2], alpha), np.exp(want), rtol=1e-5)
    assert stats.dirichlet.logpdf(shares * 2, alpha).item() == -np.inf
    counts = np.float32([[2, 1, 3], [2, 2, 3]])
    got = stats.multinomial.pmf(counts, 6, shares)
    np.testing.assert_allclose(got, scipy.stats.multinomial.pmf(counts, 6, np.float64([0.2, 0.3, 0.5])), rtol=1e-5)
    for call in (
        lambda: stats.multivariate_normal.logpdf(x, mean, np.eye(3)),
        lambda: stats.dirichlet.logpdf(shares[:1], alpha),
        lambda: stats.gaussian_kde(vnp.ones(1)),
        lambda: stats.mode(vnp.ones((0,))),
    ):
        with pytest.raises(ShapeError):
            call()


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_samples(axis):
    x = R.integers(0, 4, (5, 6))
    for keepdims in (False, True):
        got, want = stats.mode(x, axis, keepdims=keepdims), scipy.stats.mode(x, axis, keepdims=keepdims)
        assert np.array_equal(got.mode, want.mode) and np.array_equal(got.count, want.count)
    for method in ("average", "min", "max", "dense", "ordinal"):
        np.testing.assert_array_equal(stats.rankdata(x, method, axis=axis).reshape(-1),
                                      scipy.stats.rankdata(x, method, axis=axis).reshape(-1))  # fmt: skip
    np.testing.assert_allclose(stats.sem(x, axis), scipy.stats.sem(x, axis), rtol=1e-5)
    with pytest.raises(ValueError, match="rankdata: the method must be 'average'"):
        stats.rankdata(x, "least")
    for f in (stats.mode, stats.sem, stats.rankdata):
        with pytest.raises(NotImplementedError, match="nan_policy is 'propagate'"):
            f(x, nan_policy="omit")


@pytest.mark.parametrize("method", [None, "silverman", 0.4, lambda k: 0.3])
def test_estimated_densities(method):
    data, points = np.float32(R.normal(size=(2, 30))), np.float32(R.normal(size=(2, 5)))
    weights = np.float32(R.uniform(1, 2, 30))
    got, want = stats.gaussian_kde(data, method, weights), scipy.stats.gaussian_kde(data, method, weights)
    np.testing.assert_allclose(got(points), want(points), rtol=1e-4)
    np.testing.assert_allclose(got.logpdf(points), want.logpdf(points), rtol=1e-4)
    np.testing.assert_allclose(got.covariance, want.covariance, rtol=1e-4)
    np.testing.assert_allclose(
        got.integrate_gaussian(np.zeros(2), np.eye(2)), want.integrate_gaussian([0, 0], np.eye(2)), rtol=1e-4
    )
    np.testing.assert_allclose(got.integrate_kde(got), want.integrate_kde(want), rtol=1e-4)
    one, other = stats.gaussian_kde(data[0], method), scipy.stats.gaussian_kde(data[0], method)
    np.testing.assert_allclose(one.integrate_box_1d(-1.0, 0.5), other.integrate_box_1d(-1.0, 0.5), rtol=1e-4)
    assert_bits_equal(volta.jit(lambda k, p: k.pdf(p))(got, points), got.pdf(points))
    draws = got.resample(random.key(0), (2000,))
    assert draws.shape == (2, 2000) and np.allclose(np.asarray(draws).mean(1), np.average(data, 1, weights), atol=0.15)


@pytest.mark.parametrize("module", [samples, several], ids=lambda m: m.__name__)
def test_examples(module):
    examples = {"vnp": vnp, **{name: getattr(stats, name) for name in stats.__all__}}
    done = doctest.testmod(module, extraglobs=examples)
    assert done.attempted >= 3 and not done.failed
