"""Distributions made of others and of rejected proposals: JAX's values, one by one as in a batch, and their errors."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pytest

import volta
from tests.sampling import sampled
from volta import random
from volta.core.errors import ArgumentError, DTypeError, NotDifferentiableError, ShapeError
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

A = np.float32([0.01, 0.5, 1, 2, 30])
COUNTS = np.float32([0, 0.1, 3, 9.9, 10, 50, 1000, np.nan])

CASES: dict[str, tuple[Any, ...]] = {
    "ball": (3, 2, (30,)),
    "beta": (A, 2.0, (20, 5)),
    "binomial": (
        np.float32([0, 5, 20, 100, 1e4, -1, np.inf, 50]),
        np.float32([0.5, 0.3, 0.9, 0.5, 0.01, 0.5, 0.5, np.nan]),
        (50, 8),
    ),
    "cauchy": ((60,),),
    "chisquare": (A, (20, 5)),
    "dirichlet": (A, (20,)),
    "double_sided_maxwell": (1.0, 2.0, (10,)),
    "f": (np.float32([3] * 20), np.float32([4] * 20), (20,)),  # JAX takes no numbers here
    "gamma": (A, (40, 5)),
    "generalized_normal": (1.5, (30,)),
    "geometric": (np.float32([0.1, 0.5, 0.9]), (30, 3)),
    "loggamma": (A, (40, 5)),
    "lognormal": (A,),
    "maxwell": ((10,),),
    "pareto": (A, (10, 5)),
    "poisson": (COUNTS, (50, 8)),
    "rayleigh": (A, (10, 5)),
    "t": (A, (20, 5)),
    "triangular": (0.0, 0.3, 1.0, (50,)),
    "wald": (A[:4], (20, 4)),  # of larger means JAX's have lost digits
    "weibull_min": (2.0, 1.5, (50,)),
}
COVARIANCE = np.float32([[2, 0.5, 0], [0.5, 1, -0.3], [0, -0.3, 0.7]])
CASES["multivariate_normal"] = (np.float32([1, 2, 3]), COVARIANCE, (20,))
CASES["orthogonal"] = (4, (3,))
QUICK = ("wald", "multivariate_normal")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", EACH)
def test_values_are_those_of_jax_but_for_rounding(name: str) -> None:
    jax = pytest.importorskip("jax")
    args = CASES[name]
    ours = np.asarray(getattr(random, name)(random.key(7), *args))
    theirs = np.asarray(getattr(jax.random, name)(jax.random.PRNGKey(7), *args))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    apart = ~np.isclose(ours, theirs, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert apart.mean() < 0.01 + 0.03 * (name == "wald")  # whether a proposal is taken hangs on a rounding


@pytest.mark.parametrize("name", EACH)
def test_a_draw_has_its_bits_compiled_and_in_a_batch_of_keys(name: str) -> None:
    args = CASES[name]

    def draw(key: Any) -> Any:
        return getattr(random, name)(key, *args)

    keys = random.split(random.key(3), 2)
    alone = [draw(key) for key in keys]
    assert_bits_equal(volta.jit(draw)(keys[0]), alone[0])
    for one, both in zip(alone, volta.vmap(draw)(keys), strict=True):
        assert_bits_equal(both, one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "mean", "variance"),
    [
        ("gamma", (0.3,), 0.3, 0.3),
        ("gamma", (7.0,), 7, 7),
        ("poisson", (4.0,), 4, 4),
        ("poisson", (123.0,), 123, 123),
        ("binomial", (30, 0.1), 3, 2.7),
        ("binomial", (1000, 0.7), 700, 210),
        ("beta", (2.0, 6.0), 0.25, 12 / (64 * 9)),
        ("chisquare", (5.0,), 5, 10),
        ("geometric", (0.25,), 4, 12),
        ("maxwell", (), 2 * np.sqrt(2 / np.pi), 3 - 8 / np.pi),
        ("rayleigh", (2.0,), 2 * np.sqrt(np.pi / 2), 4 * (2 - np.pi / 2)),
        ("t", (9.0,), 0, 9 / 7),
        ("triangular", (0.0, 1.0, 4.0), 5 / 3, (16 + 1 - 4) / 18),
        ("wald", (2.0,), 2, 8),
        ("weibull_min", (1.0, 1.0), 1, 1),
    ],
)
def test_means_and_variances(name: str, args: Any, mean: float, variance: float) -> None:
    n = 40_000
    x = np.asarray(getattr(random, name)(random.key(1), *args, shape=(n,)), np.float64)
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(x.var() / variance - 1) < 0.1 + 0.2 * (name == "wald")


@pytest.mark.slow
def test_small_gammas_are_there_as_logarithms() -> None:
    logs = random.loggamma(random.key(0), 1e-3, (100,))
    assert np.isfinite(np.asarray(logs)).all() and (np.asarray(logs) < -100).any()
    drawn = random.gamma(random.key(0), 2.0, (50,))
    np.testing.assert_allclose(random.loggamma(random.key(0), 2.0, (50,)), np.log(drawn), rtol=1e-5, atol=1e-6)


EDGES = np.float32([np.nan, -1, -np.inf, -0.5, -0.0, 0, 1e-30, 0.3, 1, 2, 1e30, np.inf])
SHAPED = "gamma loggamma beta chisquare t dirichlet generalized_normal poisson wald pareto geometric binomial f".split()


@sampled("name", SHAPED, quick=["gamma"])
def test_every_draw_ends_whatever_the_parameters(name: str) -> None:
    """A loop over proposals never accepts one by a comparison with NaN."""
    f = getattr(random, name)
    if name in ("beta", "binomial", "f"):
        a, b = np.meshgrid(EDGES, EDGES)
        found, wrong = f(random.key(3), a, b), ~((a >= 0) & (b >= 0))
        assert found.shape == a.shape
    elif name == "dirichlet":
        found, wrong = f(random.key(3), np.stack([EDGES, np.ones_like(EDGES)], 1))[:, 0], ~(EDGES >= 0)
    elif name == "generalized_normal":
        edges = EDGES[EDGES != 0]
        found, wrong = np.float32([f(random.key(3), float(p)) for p in edges]), np.isnan(edges)
    else:
        found, wrong = f(random.key(3), EDGES), ~(EDGES >= 0)
    if name not in ("poisson", "geometric", "wald", "pareto"):
        assert np.isnan(np.asarray(found)[wrong]).all()


@pytest.mark.parametrize("mean", [1e-30, 0.1, 3.0, 100.0, 1e4, 1e12, 1e20])
def test_inverse_gaussians_of_any_mean(mean: float) -> None:
    """From the same normal and uniform values, with 80 digits; the difference of the textbook loses them all."""
    first, second = random.split(random.key(5))
    normals, levels = np.asarray(random.normal(first, (30,))), np.asarray(random.uniform(second, (30,)))
    want = []
    with decimal.localcontext(prec=80):
        m = decimal.Decimal(float(np.float32(mean)))
        for z, u in zip(normals, levels, strict=True):
            y = decimal.Decimal(float(z)) ** 2
            x = m + m * m * y / 2 - m / 2 * (4 * m * y + m * m * y * y).sqrt()
            want.append(float(x if decimal.Decimal(float(u)) <= m / (m + x) else m * m / x))
    np.testing.assert_allclose(random.wald(random.key(5), mean, (30,)), np.float32(want), rtol=2e-6)


def test_a_derivative_that_is_not_there_is_said() -> None:
    with pytest.raises(NotDifferentiableError, match=r"random.gamma.*stop_gradient"):
        volta.grad(lambda a: random.gamma(random.key(0), a))(2.0)
    scale = volta.grad(lambda s: s * random.gamma(random.key(0), 2.0))(1.0)
    assert_bits_equal(np.float32(scale), np.float32(random.gamma(random.key(0), 2.0)))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda k: random.gamma(k, 1.0, dtype="int32"), DTypeError, "float dtype"),
        (lambda k: random.poisson(k, 1.0, dtype="float32"), DTypeError, "integer dtype"),
        (lambda k: random.geometric(k, 0.5, dtype="float32"), DTypeError, "integer dtype"),
        (lambda k: random.gamma(k, np.ones(3, "f4"), (2,)), ShapeError, "do not broadcast to shape"),
        (lambda k: random.beta(k, np.ones(3, "f4"), np.ones(2, "f4")), ShapeError, "do not broadcast"),
        (lambda k: random.dirichlet(k, 1.0), ShapeError, "must have an axis"),
    ],
)
def test_what_does_not_fit_is_said(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        call(random.key(0))


@pytest.mark.parametrize("method", ["cholesky", pytest.param("eigh", marks=pytest.mark.slow), "svd"])
def test_normal_vectors_have_their_covariance(method: str) -> None:
    x = np.asarray(random.multivariate_normal(random.key(0), np.zeros(3), COVARIANCE, (20_000,), method=method))
    np.testing.assert_allclose(np.cov(x.T), COVARIANCE, atol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(3, None), (4, 2), (2, 5)])
def test_orthogonal_matrices(n: int, m: int | None) -> None:
    q = np.asarray(random.orthogonal(random.key(0), n, (6,), m=m))
    assert q.shape == (6, n, m or n)
    short = q if q.shape[1] <= q.shape[2] else np.swapaxes(q, 1, 2)
    np.testing.assert_allclose(short @ np.swapaxes(short, 1, 2), np.tile(np.eye(short.shape[1]), (6, 1, 1)), atol=1e-5)


def test_vectors_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="wanted a mean"):
        random.multivariate_normal(random.key(0), np.zeros(3), np.eye(2))
    with pytest.raises(ShapeError, match="do not broadcast to shape"):
        random.multivariate_normal(random.key(0), np.zeros((4, 2)), np.eye(2), (3,))
    with pytest.raises(ArgumentError, match="method is one of"):
        random.multivariate_normal(random.key(0), np.zeros(2), np.eye(2), method="lu")


def test_multinomial_counts():
    shares = np.float32([0.1, 0.0, 0.6, 0.3])
    drawn = np.asarray(volta.vmap(lambda key: random.multinomial(key, 50, shares))(random.split(random.key(1), 2000)))
    assert drawn.shape == (2000, 4) and (drawn.sum(1) == 50).all() and (drawn[:, 1] == 0).all()
    np.testing.assert_allclose(drawn.mean(0), 50 * shares, atol=0.5)
    np.testing.assert_allclose(np.cov(drawn.T), 50 * (np.diag(shares) - np.outer(shares, shares)), atol=1.2)


def test_multinomial_of_rows():
    """Trials and probabilities of each row; a row is what it would be with any other sum, and whatever is unrolled."""
    key, n = random.key(3), np.array([5, 0, 40], np.float32)
    shares = np.float32([[0.5, 0.25, 0.25], [1, 0, 0], [0, 0.25, 0.75]])
    drawn = random.multinomial(key, n, shares)
    assert (np.asarray(drawn).sum(1) == n).all() and drawn[1].tolist() == [0, 0, 0] and drawn[2, 0] == 0
    assert_bits_equal(drawn, random.multinomial(key, n, 4 * shares))
    assert_bits_equal(drawn, random.multinomial(key, n, shares, unroll=3))
    assert random.multinomial(key, 9, shares[0], shape=(2, 5, 3)).shape == (2, 5, 3)


def test_multinomial_needs_outcomes():
    with pytest.raises(ShapeError, match="the outcomes are p's last axis; p has shape \\(\\)"):
        random.multinomial(random.key(0), 3, 0.5)
