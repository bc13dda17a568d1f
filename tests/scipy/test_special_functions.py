"""Special functions by series, fractions and integrals: SciPy's values, slopes by differences, one set of bits."""

import doctest

import mpmath
import numpy as np
import pytest
import scipy.special

import volta
import volta.numpy as vnp
from volta.core.errors import DTypeError, NotDifferentiableError
from volta.scipy import bessel, gamma_functions, gaussians, incomplete, integrals, special, sums
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

R = np.random.default_rng(11)
BROAD = np.concatenate([R.uniform(-8, 8, 60), 10.0 ** R.uniform(-4, 4, 30), -(10.0 ** R.uniform(-4, 2, 20)), [0.0]])
POSITIVE = np.concatenate([10.0 ** R.uniform(-3, 3, 60), R.uniform(0.1, 20, 60), [1.0, 2.0, 10.0]])
OTHER = np.concatenate([10.0 ** R.uniform(-3, 3, 60), R.uniform(0.1, 20, 63)])
SHARES = R.uniform(0.001, 0.999, POSITIVE.size)
ORDERS = R.integers(0, 9, POSITIVE.size).astype(float)
SMALL = R.uniform(0.2, 4, (3, POSITIVE.size))
MIDDLE = R.uniform(-5, 5, POSITIVE.size)

MODULES = (bessel, gamma_functions, gaussians, incomplete, integrals, sums)

VALUES = {
    "bernoulli": None, "bessel_jn": None, "multigammaln": None,
    "beta": (SMALL[0], SMALL[1]), "betainc": (SMALL[0], OTHER / 50, SHARES), "betaln": (POSITIVE, OTHER),
    "boxcox": (POSITIVE, MIDDLE / 5), "boxcox1p": (POSITIVE, MIDDLE / 5), "comb": (ORDERS + 20, ORDERS),
    "dawsn": (BROAD,), "erfcx": (BROAD[np.abs(BROAD) < 8],), "exp1": (POSITIVE[POSITIVE < 80],),
    "expi": (BROAD[np.abs(BROAD) < 80],), "expn": (ORDERS, POSITIVE / 20), "factorial": (ORDERS,),
    "fresnel": (BROAD[np.abs(BROAD) < 40],), "gamma": (BROAD[np.abs(BROAD) < 8],), "gammainc": (POSITIVE, OTHER),
    "gammaincc": (SMALL[0], OTHER / 50), "gammasgn": (BROAD,), "hyp1f1": (*SMALL[:2], MIDDLE),
    "hyp2f1": (*SMALL, MIDDLE / 5.5), "i0e": (BROAD,), "i1": (BROAD[np.abs(BROAD) < 8],), "i1e": (BROAD,),
    "log_ndtr": (BROAD[BROAD > -1e3],), "loggamma": (POSITIVE,), "owens_t": (MIDDLE / 2, MIDDLE[::-1]),
    "poch": (SMALL[0], SMALL[1]), "polygamma": (np.minimum(ORDERS, 3), SMALL[1] * 5), "sici": (POSITIVE,),
    "spence": (POSITIVE,), "zeta": (SMALL[0] + 1.5, SMALL[1] * 5),
}  # fmt: skip
FUNCTIONS = [name for name, values in VALUES.items() if values]


def test_all_functions_are_among_the_cases():
    modules = MODULES
    assert {name for m in modules for name in m.__all__} - {"random_gamma_grad"} == set(VALUES) <= set(special.__all__)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_values(name, dtype):
    """In float32 and bfloat16 they are SciPy's float64 values, rounded."""
    xs = [np.asarray(x.astype(vnp.dtype(dtype))) for x in VALUES[name]]
    wide = [x.astype("float64") for x in xs]
    exact = [x.astype(int) for x in wide] if name == "comb" else wide
    want = getattr(scipy.special, name)(*exact)
    got = getattr(special, name)(*xs)
    for g, w in zip(
        got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True
    ):
        assert g.dtype == dtype and g.shape == w.shape
        rtol = {"float32": 1.3e-7, "float64": 1e-9, "bfloat16": 8e-3}[dtype]
        least = {"float32": 2e-45, "float64": 1e-12 if name == "betaln" else 0, "bfloat16": 1e-40}[dtype]
        np.testing.assert_allclose(np.asarray(g).astype("float64"), w, rtol=rtol, atol=least)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_set_of_bits(name):
    """Compiled, batched or a single element."""
    xs, f = [np.float32(x[:24]) for x in VALUES[name]], getattr(special, name)
    first = (lambda *xs: f(*xs)[0]) if name in ("fresnel", "sici") else f
    want = first(*xs)
    assert_bits_equal(volta.jit(first)(*xs), want)
    assert_bits_equal(volta.vmap(first)(*(x.reshape(4, 6) for x in xs)).reshape(24), want)
    assert_bits_equal(first(*(x[5] for x in xs)), want[5])


SLOPES = {name: len(VALUES[name]) - 1 for name in FUNCTIONS if name not in ("comb", "gammasgn", "factorial", "expn")}
ALSO = {"beta": [0], "betaln": [0], "gammainc": [0], "gammaincc": [0], "owens_t": [0], "poch": [0], "boxcox": [0]}


@pytest.mark.few(5)
@pytest.mark.parametrize("name, place", [*SLOPES.items(), *((n, p) for n, ps in ALSO.items() for p in ps)])
def test_slopes(name, place):
    f = getattr(special, name)
    xs = [x[:12] for x in VALUES[name]]
    first = (lambda *xs: f(*xs)[0]) if name in ("fresnel", "sici") else f
    got = volta.vmap(volta.grad(first, place))(*xs)
    step = 1e-6 * np.maximum(np.abs(xs[place]), 1e-2)
    up, down = ([*xs[:place], xs[place] + s * step, *xs[place + 1 :]] for s in (1, -1))
    want = (np.asarray(first(*up)) - np.asarray(first(*down))) / (2 * step)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * np.abs(want).max() + 1e-12)


@pytest.mark.slow
def test_second_derivatives():
    for name, x in {"gamma": 2.5, "dawsn": 0.7, "i0e": 1.5, "log_ndtr": -3.0, "spence": 0.3, "erfcx": -0.4}.items():
        slope, h = volta.grad(getattr(special, name)), 1e-5
        want = (float(slope(np.float64(x + h))) - float(slope(np.float64(x - h)))) / (2 * h)
        assert abs(float(volta.grad(slope)(np.float64(x))) - want) < 1e-6 * max(1, abs(want))


EDGES = np.array([0.0, -0.0, 1.0, -1.0, -2.0, 0.5, np.inf, -np.inf, np.nan])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", "dawsn erfcx exp1 expi fresnel gamma i0e i1e log_ndtr sici gammasgn".split())
def test_edges_of_one_operand(name):
    got, want = getattr(special, name)(EDGES), getattr(scipy.special, name)(EDGES)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for g, w in pairs:
        keep = np.isfinite(EDGES) & (EDGES >= 0) if name in ("sici", "gammasgn") else np.full(EDGES.size, True)
        np.testing.assert_allclose(np.asarray(g)[keep], w[keep], rtol=1e-14)


FAR = np.array([1e100, 1e149, 1e151, 1.5e154, 1.8e154, 1e155, 1e200, 1e300, 1.7976931348623157e308])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", "dawsn erfcx exp1 expi fresnel i0e i1 i1e log_ndtr loggamma ndtr sici spence".split())
def test_to_the_end_of_the_range(name):
    """No square on the way leaves the range before the result does, and nothing far away counts as something nearer."""
    x = FAR if name in ("sici", "exp1", "loggamma", "spence") else np.concatenate([FAR, -FAR])
    got, want = getattr(special, name)(x), getattr(scipy.special, name)(x)
    for g, w in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
        taken = w == w if name == "fresnel" else np.full(x.size, True)  # SciPy's own squares leave the range
        np.testing.assert_allclose(np.asarray(g)[taken], w[taken], rtol=1e-13, atol=1e-320)


def test_slopes_of_spence_to_the_end_of_the_range():
    slope = volta.grad(special.spence)
    for x in FAR[[0, 1, 2, 7]]:
        np.testing.assert_allclose(slope(x), np.log(x) / (1 - x), rtol=1e-14)
    np.testing.assert_allclose(volta.grad(slope)(FAR[0]), (np.log(FAR[0]) - 1) / FAR[0] ** 2, rtol=1e-14)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_edges_of_the_incomplete_gamma_function(name):
    edges = np.array([0.0, 1.0, 2.5, np.inf, -1.0, np.nan])
    a, x = np.meshgrid(edges, edges)
    np.testing.assert_allclose(getattr(special, name)(a, x), getattr(scipy.special, name)(a, x), rtol=1e-14)


def test_edges_of_others():
    assert special.betainc(2.0, 3.0, vnp.asarray([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert np.isnan(np.asarray(special.betainc(2.0, 3.0, vnp.asarray([-0.1, 1.1, vnp.nan])))).all()
    assert special.zeta(vnp.asarray([1.0, 2.0]), vnp.asarray([1.0, -1.0])).tolist() == [np.inf, np.inf]
    assert np.isnan(special.zeta(0.5).item()) and special.zeta(1e5).item() == 1.0
    assert special.hyp2f1(1.0, 1.0, 3.0, 1.0).item() == pytest.approx(2.0) and np.isnan(
        special.hyp2f1(1.0, 1.0, 3.0, 2.0)
    )
    assert special.comb(vnp.asarray([3, 3, -1]), vnp.asarray([4, -1, 0])).tolist() == [0.0, 0.0, 0.0]
    assert special.comb(3, 2, repetition=True).item() == 6.0 and special.factorial(-2.0).item() == 0.0
    assert special.spence(0.0).item() == pytest.approx(np.pi**2 / 6)
    assert special.factorial(np.arange(23.0)).tolist() == [
        float(v) for v in scipy.special.factorial(range(23), exact=True)
    ]


def test_functions_of_numbers():
    np.testing.assert_allclose(special.bernoulli(30), scipy.special.bernoulli(30), rtol=1e-6)
    np.testing.assert_allclose(
        special.multigammaln(POSITIVE + 2, 3), scipy.special.multigammaln(POSITIVE + 2, 3), rtol=1e-12
    )
    want = [scipy.special.jv(n, MIDDLE) for n in range(4)]
    np.testing.assert_allclose(special.bessel_jn(MIDDLE, v=3), want, rtol=1e-10)
    assert special.bessel_jn(0.0, v=2).tolist() == [1.0, 0.0, 0.0]


def test_draws_of_gamma_follow_their_parameter():
    """The quantile moves by it."""
    for a in (0.3, 1.0, 20.0):
        x, h = scipy.special.gammaincinv(a, 0.3), 1e-6 * a
        want = (scipy.special.gammaincinv(a + h, 0.3) - scipy.special.gammaincinv(a - h, 0.3)) / (2 * h)
        got = incomplete.random_gamma_grad(np.float64(a), np.float64(x))
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: special.factorial(3, exact=True), NotImplementedError, "math.factorial"),
        (lambda: special.comb(3, 2, exact=True), NotImplementedError, "math.comb"),
        (lambda: special.bernoulli(1.5), DTypeError, "n must be an int of 0 or more"),
        (lambda: special.bernoulli(-1), DTypeError, "n must be an int of 0 or more"),
        (lambda: special.multigammaln(3.0, 2.0), DTypeError, "d must be an int"),
        (lambda: volta.grad(special.betainc)(1.0, 2.0, 0.5), NotDifferentiableError, "betainc: .* respect to a"),
        (lambda: volta.grad(special.zeta)(2.0, 1.0), NotDifferentiableError, "zeta: .* respect to x"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples(module):
    done = doctest.testmod(module, extraglobs={"vnp": vnp, "volta": volta})
    assert done.attempted >= 4 and not done.failed


WHOLE = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, -10.0, -2.5, 3.0, 12.0, -20.0, 1e3]


@pytest.mark.parametrize("name", ["beta", "betaln", "poch"])
def test_values_at_poles(name):
    """Where gamma has poles above and below they are reflected away. A pole of beta has no sign: SciPy's depends on the
    order of the operands."""
    a, b = np.meshgrid(WHOLE, WHOLE)
    got, want = np.asarray(getattr(special, name)(a, b)), getattr(scipy.special, name)(a, b)
    if name == "beta":
        poles = np.isinf(got)
        assert (np.isinf(want) == poles).all()
        got, want = got[~poles], want[~poles]
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert special.betaln(-10.0, -10.0).item() == np.inf


@pytest.mark.parametrize("name", ["boxcox", "boxcox1p"])
def test_powers_next_to_0_lose_no_digits(name):
    x, powers = np.meshgrid([5e-324, 1e-5, 0.5, 3.0, 1e300], [5e-324, 3e-320, -1e-310, 1e-300, 1e-9])
    np.testing.assert_allclose(getattr(special, name)(x, powers), getattr(scipy.special, name)(x, powers), rtol=1e-9)


def test_beta_of_an_infinite_operand():
    for a in (0.3, 2.0, 100.0, np.inf):
        assert special.beta(a, np.inf).item() == special.beta(np.inf, a).item() == 0.0
        assert special.betaln(a, np.inf).item() == special.betaln(np.inf, a).item() == -np.inf


@pytest.mark.parametrize("a", [1e6, 1e7, 1e10, 1e15, 1e20, 1e38, 1e300])
def test_shares_of_gamma_distributions_with_large_parameters(a) -> None:
    """At the mean and above SciPy's are good, of 1e20 to 2e-11; below it, near to the normal distribution."""
    x = a + np.float64([0.0, 0.1, 1.0, 5.0, 20.0, 35.0]) * np.sqrt(a)
    np.testing.assert_allclose(special.gammaincc(a, x), scipy.special.gammaincc(a, x), rtol=3e-11)
    np.testing.assert_allclose(special.gammainc(a, x), scipy.special.gammainc(a, x), rtol=1e-13)
    below = a - np.float64([0.1, 1.0, 5.0]) * np.sqrt(a)
    normal = scipy.special.ndtr((below - a) / np.sqrt(a))
    np.testing.assert_allclose(special.gammainc(a, below), normal, rtol=100 / np.sqrt(a) + 1e-12)


def test_shares_of_gamma_distributions_go_on_where_the_expansion_begins() -> None:
    a, t = np.float64([1e6 * (1 - 2.0**-50), 1e6]), np.float64([-6.0, -1.0, 0.0, 0.5, 6.0])[:, None]
    x = a + t * np.sqrt(a)
    for f in (special.gammainc, special.gammaincc, volta.vmap(volta.vmap(volta.grad(special.gammainc)))):
        below, above = np.asarray(f(np.broadcast_to(a, x.shape), x)).T
        np.testing.assert_allclose(above, below, rtol=1e-10)


@pytest.mark.parametrize("a", [1e9, 1e12, 1e15])
def test_shares_of_beta_distributions_with_large_parameters(a) -> None:
    """Against the normal distribution, to which a distribution with equal parameters is near to order 1 / a."""
    z = np.float64([-5.0, -1.0, 0.0, 0.5])
    x = 0.5 + z * np.sqrt(1 / (8 * a))
    z = (x - 0.5) * np.sqrt(8 * a)
    np.testing.assert_allclose(special.betainc(a, a, x), scipy.special.ndtr(z), rtol=1e3 / a + 1e-12)
    assert abs(special.betainc(a, a, 0.5).item() - 0.5) < 1e-15


def _share_by_a_sum(a: float, b: float, x: float) -> mpmath.mpf:
    """The incomplete beta function, by a sum of positive terms that has few of them where ``a`` is small."""
    with mpmath.workdps(50):
        a, b, x = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(x)
        term, n = x**a * (1 - x) ** b / a / mpmath.beta(a, b), 0
        total = term
        while term > total * mpmath.mpf(10) ** -25:
            term *= (a + b + n) / (a + 1 + n) * x
            total, n = total + term, n + 1
        return total


@pytest.mark.parametrize(
    "large, small", [(1e12, 30.0), (1e15, 3.0), (1e12, 0.5), (1e13, 300.0), (1e9, 5.0), (1e4, 5.0), (1e8, 0.01)]
)
def test_shares_of_beta_distributions_whose_parameters_lie_far_apart(large, small) -> None:
    away = (small + np.float64([-0.9, -0.5, 0.0, 0.3, 1.0, 3.0]) * min(small, np.sqrt(small))) / (large + small)
    away = 1.0 - (1.0 - away)  # a difference from 1 that a float64 has
    below = [_share_by_a_sum(small, large, x) for x in away.tolist()]
    np.testing.assert_allclose(special.betainc(small, large, away), np.float64(below), rtol=4e-13)
    np.testing.assert_allclose(
        special.betainc(large, small, 1.0 - away), np.float64([1 - p for p in below]), rtol=4e-13
    )


def test_gamma_is_good_to_some_units_up_to_the_ends_of_its_range() -> None:
    x = np.concatenate([R.uniform(-170, 171.6, 400), 10.0 ** R.uniform(-305, 0, 100), [1e-300, -1e-300, 171.6, -170.5]])
    np.testing.assert_allclose(special.gamma(x), scipy.special.gamma(x), rtol=6e-15)
    edges = np.float64([np.inf, -np.inf, 0.0, -0.0, -11.0, -180.0, -180.5, 201.0, 1e300, -1e300, 5e-324, np.nan])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(special.gamma(edges), scipy.special.gamma(edges))
