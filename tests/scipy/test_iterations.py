"""What is found by iterations: least values, solutions of equations, and of differential equations."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import random
from volta.core.errors import DTypeError, ShapeError, TreeError
from volta.experimental.ode import odeint
from volta.scipy.optimize import minimize
from volta.scipy.sparse import linalg
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

R = np.random.default_rng(5)
SQUARE = R.normal(size=(12, 12))
POSITIVE = SQUARE @ SQUARE.T + np.eye(12)
RIGHT = R.normal(size=12)
FUNCTIONS = {
    "rosenbrock": (lambda x: vnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), np.zeros(4), np.ones(4)),
    "quartic": (lambda x: vnp.sum((x - 2.0) ** 4 + (x - 2.0) ** 2), np.array([9.0, -7.0]), np.full(2, 2.0)),
    "steep": (lambda x: vnp.sum(x * x * np.array([1.0, 1e4])), np.array([1.0, 1.0]), np.zeros(2)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_least_values(name):
    f, start, least = FUNCTIONS[name]
    out = minimize(f, start, method="BFGS")
    assert out.success and out.status == 0 and out.nfev >= out.nit > 0
    np.testing.assert_allclose(out.x, least, atol=1e-4)
    assert float(vnp.max(vnp.abs(out.jac))) <= 1e-5 and out.fun == f(out.x)


@pytest.mark.slow
def test_minimize_jitted_and_batched_has_the_same_bits():
    f = lambda x, shift: vnp.sum((x - shift) ** 2 * (1 + x * x))  # noqa: E731
    starts = np.float32(R.normal(size=(3, 2)))
    solve = lambda x: minimize(f, x, args=(1.5,)).x  # noqa: E731
    one = vnp.stack([solve(x) for x in starts])
    assert_bits_equal(volta.jit(solve)(starts[0]), one[0])
    assert_bits_equal(volta.vmap(solve)(starts), one)


def test_minimize_says_how_it_ended():
    f, start, _ = FUNCTIONS["rosenbrock"]
    assert minimize(f, start, options={"maxiter": 2}).status == 1
    assert minimize(lambda x: vnp.sum(vnp.abs(x - 0.3)), start).status in (1, 3)  # at a kink no step is flat enough
    for call, error, words in (
        (lambda: minimize(f, start, method="Newton"), ValueError, "the method is 'BFGS'"),
        (lambda: minimize(f, start, options={"depth": 1}), ValueError, "unknown options depth"),
        (lambda: minimize(f, np.eye(2)), ShapeError, "must be a vector"),
        (lambda: minimize(lambda x: x, start), DTypeError, "must give a float of shape"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.few(1)
@pytest.mark.parametrize("name, matrix", [("cg", POSITIVE), ("bicgstab", POSITIVE), ("gmres", SQUARE + 4 * np.eye(12))])
def test_equations(name, matrix):
    solve = getattr(linalg, name)
    x, info = solve(matrix, RIGHT, tol=1e-10)
    assert info is None
    np.testing.assert_allclose(matrix @ np.asarray(x), RIGHT, atol=1e-7)
    tree = {"a": RIGHT[:5], "b": RIGHT[5:].reshape(7, 1)}
    product = lambda t: _like(tree, matrix @ vnp.concatenate([t["a"], t["b"][:, 0]]))  # noqa: E731
    got = solve(product, tree, tol=1e-10, M=lambda t: volta.tree.map(lambda v: v * 0.5, t), x0=tree)[0]
    np.testing.assert_allclose(got["b"][:, 0], x[5:], rtol=1e-5, atol=1e-7)
    jitted = volta.jit(lambda b: solve(matrix, b, tol=1e-10)[0])
    assert_bits_equal(jitted(RIGHT), x)
    slope = volta.grad(lambda m: vnp.sum(solve(m, RIGHT, tol=1e-12)[0]))(matrix)
    want = -np.outer(np.linalg.solve(matrix.T, np.ones(12)), np.linalg.solve(matrix, RIGHT))
    want = (want + want.T) / 2 if name == "cg" else want
    got = (slope + slope.T) / 2 if name == "cg" else slope
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert solve(matrix, RIGHT, maxiter=0)[0].tolist() == [0.0] * 12
    with pytest.raises(ShapeError, match="must be square"):
        solve(matrix[:3], RIGHT)
    with pytest.raises(ShapeError, match="x0 has 2 numbers"):
        solve(matrix, RIGHT, x0=np.ones(2))
    with pytest.raises(TreeError, match="the function must give"):
        solve(lambda x: (x, x), RIGHT)


def _like(tree, flat):
    return {"a": flat[:5], "b": flat[5:].reshape(7, 1)}


def test_gmres_refuses():
    with pytest.raises(ValueError, match="solve_method is 'batched'"):
        linalg.gmres(SQUARE, RIGHT, solve_method="quick")


# -- differential equations --------------------------------------------------------------------------------------------

TIMES = np.linspace(0.0, 2.0, 4)


def _spring(y, t, w):
    return {"x": y["v"], "v": -w * y["x"] - 0.1 * t * y["v"]}


def _at_end(w, x0, times):
    return vnp.sum(odeint(_spring, {"x": x0, "v": x0 * 0}, times, w)["x"] ** 2)


def test_solutions_of_a_spring():
    y = odeint(lambda y, t: {"x": y["v"], "v": -y["x"]}, {"x": np.float64(0), "v": np.float64(1)}, TIMES)
    np.testing.assert_allclose(y["x"], np.sin(TIMES), atol=1e-7)
    np.testing.assert_allclose(y["v"], np.cos(TIMES), atol=1e-7)
    y = odeint(lambda y, t: -y, np.float32([1, 2]), np.float32(TIMES), rtol=1e-5, atol=1e-6)
    assert y.dtype == "float32" and y.shape == (4, 2)
    np.testing.assert_allclose(y, np.exp(-TIMES)[:, None] * [1, 2], atol=1e-4)


@pytest.mark.slow
def test_slopes_of_solutions():
    """By parameters, the state and the times; against differences."""
    point = (np.float64(2.0), np.float64(1.0), TIMES)
    by_w, by_x, by_t = volta.grad(_at_end, (0, 1, 2))(*point)
    h = 1e-5
    for got, place in ((by_w, 0), (by_x, 1)):
        up, down = ([*point[:place], point[place] + s * h, *point[place + 1 :]] for s in (1, -1))
        assert float(got) == pytest.approx(float(_at_end(*up) - _at_end(*down)) / (2 * h), rel=1e-5)
    moved = [TIMES + s * h * np.eye(4)[2] for s in (1, -1)]
    want = float(_at_end(*point[:2], moved[0]) - _at_end(*point[:2], moved[1])) / (2 * h)
    assert float(by_t[2]) == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
def test_solutions_have_one_set_of_bits():
    f = lambda w: odeint(_spring, {"x": 1.0, "v": 0.0}, np.float32(TIMES), w, rtol=1e-4, atol=1e-4)["x"]  # noqa: E731
    ws = random.uniform(random.key(0), (3,)) + 1
    one = vnp.stack([f(w) for w in ws])
    assert_bits_equal(volta.jit(f)(ws[0]), one[0])
    assert_bits_equal(volta.vmap(f)(ws), one)


def test_traced_values_that_a_slope_closes_over_have_derivatives():
    f = lambda x: odeint(lambda y, t: -x * y, 1.0, TIMES)[-1]  # noqa: E731
    want = -TIMES[-1] * np.exp(-2 * TIMES[-1])
    for slope in (volta.grad(f), volta.jit(volta.grad(f)), lambda x: volta.vmap(volta.grad(f))(np.stack([x, x]))[1]):
        assert float(slope(np.float64(2.0))) == pytest.approx(want, rel=1e-5)
    both = volta.grad(lambda x, w: odeint(lambda y, t, w: -x * w * y, 1.0, TIMES, w)[-1], (0, 1))(np.float64(2), 1.0)
    assert [float(v) for v in both] == pytest.approx([want, 2 * want], rel=1e-5)
    y = odeint(
        lambda y, t: [y[1], -y[0]], np.float64([0, 1]), TIMES
    )  # a list for a vector, as SciPy's programs have it
    np.testing.assert_allclose(y[:, 0], np.sin(TIMES), atol=1e-7)


def test_solutions_that_give_up_are_nan_and_what_is_refused():
    y = odeint(lambda y, t: y * y, np.float64(1.0), np.array([0.0, 0.5, 2.0]), mxstep=50)  # infinite at 1
    assert y[1] == pytest.approx(2.0) and np.isnan(y[2].item())
    assert odeint(lambda y, t: -y, vnp.ones(2), vnp.asarray([0.0])).tolist() == [[1.0, 1.0]]
    y = volta.jit(lambda times: odeint(lambda y, t: -y, 1.0, times))(vnp.asarray([1.0, 0.0]))  # known too late
    assert y[0] == 1.0 and np.isnan(y[1].item())
    for call, error, words in (
        (lambda: odeint(lambda y, t: y, 1.0, 2.0), ShapeError, "times must be a vector"),
        (lambda: odeint(lambda y, t: y, 1, TIMES), DTypeError, "must be floats"),
        (lambda: odeint(lambda y, t: y, 1.0, TIMES[::-1]), ValueError, "times must ascend"),
        (lambda: odeint(lambda y, t: (y, y), 1.0, TIMES), ShapeError, "as many elements as the state"),
        (lambda: odeint(lambda y, t: vnp.ones(3), vnp.ones(2), TIMES), ShapeError, "as many elements as the state"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_derivatives_of_hermitian_equations_solve_with_the_conjugate():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    a, b = root @ root.conj().T + 3 * np.eye(3), rng.normal(size=3) + 1j * rng.normal(size=3)
    w = rng.normal(size=3) + 1j * rng.normal(size=3)

    def loss(solve):
        return lambda a, b: vnp.real(vnp.vdot(w, solve(a, b)))

    for solver in (linalg.cg, linalg.bicgstab, linalg.gmres):
        found = volta.grad(loss(lambda a, b, f=solver: f(a, b, tol=1e-12)[0]), (0, 1))(a, b)
        wanted = volta.grad(loss(vnp.linalg.solve), (0, 1))(a, b)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)
