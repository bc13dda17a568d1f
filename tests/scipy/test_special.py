"""Special functions against SciPy's, in both precisions."""

import doctest

import numpy as np
import pytest
import scipy.special

import volta
from volta.scipy import special

pytestmark = pytest.mark.turns(6)

X = np.random.default_rng(5).uniform(-3, 3, 50)
P = np.random.default_rng(6).uniform(0.01, 0.99, 50)
DOMAIN = {
    "erfinv": P * 2 - 1,
    "gammaln": X + 3.5,
    "digamma": X + 3.5,
    "psi": X + 3.5,
    "logit": P,
    "ndtri": P,
    "log1p": P,
}
UNARY = "digamma entr erf erfc erfinv exp2 expit expm1 gammaln log1p log_expit logit ndtr ndtri psi".split()


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name", UNARY)
def test_of_one_array(name, dtype):
    x = DOMAIN.get(name, X).astype(dtype)
    got = getattr(special, name)(x)
    assert got.dtype == dtype
    rtol = 3e-5 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(got, getattr(scipy.special, name)(x.astype("float64")), rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("name", "xlogy xlog1py rel_entr kl_div".split())
def test_of_two_arrays(name):
    x, y = np.float32([0, 0, 0.5, 2, -1, 0, -0.0]), np.float32([0, 3, 0.25, 4, 2, np.nan, np.nan])
    got = getattr(special, name)(x, y)
    np.testing.assert_allclose(got, getattr(scipy.special, name)(x, y), rtol=1e-6)


@pytest.mark.parametrize("name", ["rel_entr", "kl_div"])
def test_entropies_at_the_edges(name):
    """Also where p / q has no place in the dtype."""
    edges = np.array([0.0, -0.0, 1.0, 2.5, -1.0, np.inf, -np.inf, np.nan])
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 1e-6), (np.float16, 2e-3)):
        ends = [np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny, np.finfo(dtype).max / 300]
        p, q = np.meshgrid(*[np.array([*edges, *ends], dtype)] * 2)
        p64, q64 = p.astype("float64"), q.astype("float64")
        with np.errstate(over="ignore", invalid="ignore"):
            want = scipy.special.rel_entr(p64, q64)
            if name == "kl_div":  # SciPy's own overflows where p / q does
                want = np.where((p > 0) & (q > 0), want - p64 + q64, scipy.special.kl_div(p64, q64))
            np.testing.assert_allclose(getattr(special, name)(p, q), want.astype(dtype), rtol=rtol)


def test_slopes_of_entropies_where_a_quotient_leaves_the_range():
    p, q = np.float64(0.5), np.float64(1e300)
    for f in (special.rel_entr, special.kl_div):
        assert volta.grad(volta.grad(f))(p, q) == 2 and volta.grad(volta.grad(f), 1)(p, q) == -1e-300
        for point in ((2.0, np.nan), (np.nan, 2.0), (np.nan, 0.0)):
            assert all(np.isnan(slope) for slope in volta.grad(f, (0, 1))(*point))
    assert volta.grad(special.rel_entr)(np.inf, 2.0) == np.inf


def test_logarithms_of_gamma_next_to_zero():
    """gamma(x) is 1 / x there, from both sides."""
    x = np.array([5e-324, 1e-310, np.finfo("f8").tiny, 1e-200, 1e-160, 1e-154, 1e-151, 1e-150, 1e-149, 1e-100, 1e-30])
    for sign in (1, -1):
        np.testing.assert_allclose(special.gammaln(sign * x), -np.log(x), rtol=4 * np.finfo("f8").eps)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_quantiles_of_the_normal_distribution_next_to_zero(dtype):
    """Also where 2 p - 1 rounds to -1; and none outside of [0, 1]."""
    p = np.concatenate(
        [10.0 ** -np.arange(0.0, 300.0, 7.3), np.linspace(0.01, 0.99, 99), [0.0, 1.0, -0.1, 1.1, np.nan]]
    )
    least = np.finfo(dtype).smallest_subnormal
    p = np.append(p[~(p > 0) | (p > least)], [least, 3 * least, 1000 * least, np.finfo(dtype).tiny]).astype(dtype)
    with np.errstate(over="ignore"):
        want = scipy.special.ndtri(p.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(special.ndtri(p), want, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    x = scipy.special.ndtri(0.01)
    gradient = volta.grad(special.ndtri)(np.asarray(0.01, dtype)[()])
    np.testing.assert_allclose(gradient, np.sqrt(2 * np.pi) * np.exp(x * x / 2), rtol=50 * np.finfo(dtype).eps)


def test_gradients_at_the_edges_are_finite():
    assert volta.grad(lambda y: special.xlogy(0.0, y))(0.0) == 0
    assert volta.grad(lambda p: special.rel_entr(p, 0.5).sum())(np.float32(0.5)) == 1


def test_reductions_are_those_of_nn():
    x = X.astype("float32")
    np.testing.assert_allclose(special.logsumexp(x), scipy.special.logsumexp(x), rtol=1e-6)
    np.testing.assert_allclose(special.softmax(x), scipy.special.softmax(x), rtol=1e-5)
    table = x.reshape(5, 10)
    for name in ("softmax", "log_softmax"):
        ours, theirs = getattr(special, name), getattr(scipy.special, name)
        np.testing.assert_allclose(ours(table), theirs(table), rtol=1e-5)  # over all elements
        for axis in (None, 0, -1, (0, 1)):
            np.testing.assert_allclose(ours(table, axis), theirs(table, axis), rtol=1e-5)


@pytest.mark.turns(6)
def test_examples():
    assert doctest.testmod(special).failed == 0


def test_owens_t_of_infinite_operands():
    h, a = np.meshgrid(
        np.float64([0, 1, -2, np.inf, -np.inf, np.nan]), np.float64([0, 0.5, 3, np.inf, -np.inf, np.nan])
    )
    np.testing.assert_allclose(volta.scipy.special.owens_t(h, a), scipy.special.owens_t(h, a), rtol=1e-12, atol=1e-300)
