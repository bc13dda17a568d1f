"""Taylor series: those of known functions, JAX's, under transforms, and what is refused."""

import math

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.errors import ArgumentError, TreeError
from volta.experimental.jet import jet
from volta.testing import assert_bits_equal

X = np.linspace(0.3, 0.9, 4)


def test_series_of_functions_that_are_known():
    x, line = vnp.asarray(X), [np.ones(4), np.zeros(4), np.zeros(4), np.zeros(4)]
    for f, derivatives in (
        (vnp.exp, [np.exp(X)] * 4),
        (vnp.sin, [np.cos(X), -np.sin(X), -np.cos(X), np.sin(X)]),
        (lambda x: 1 / x, [(-1) ** k * math.factorial(k) * X ** -(k + 1.0) for k in range(1, 5)]),
        (lambda x: x**3, [3 * X**2, 6 * X, 6 + 0 * X, 0 * X]),
    ):
        value, found = jet(f, (x,), (line,))
        assert_bits_equal(value, f(x))
        np.testing.assert_allclose(np.stack(found), np.stack(derivatives), rtol=1e-13, atol=1e-13)


def test_the_terms_of_a_curve_are_composed():
    """A polynomial of a polynomial, whose coefficients NumPy multiplies out."""
    curve = np.polynomial.Polynomial([0.5, 2.0, -1.5, 0.25])
    want = (curve**3 - 2 * curve).coef[:4]
    terms = [curve.coef[k] * math.factorial(k) for k in range(1, 4)]
    value, found = jet(lambda x: x**3 - 2 * x, (np.float64(0.5),), (terms,))
    scaled = [float(d) / math.factorial(k) for k, d in enumerate([value, *found])]
    np.testing.assert_allclose(scaled, want, rtol=1e-14)


FUNCTIONS = {
    "of two": lambda m, x, y: m.numpy.sin(x * y) + m.numpy.exp(-x),
    "a product": lambda m, x, y: m.numpy.tanh(m.numpy.outer(x, y)) @ y,
    "a tree": lambda m, x, y: {"a": m.numpy.log(x), "b": (m.numpy.sum(x / y),)},
    "a composition": lambda m, x, y: m.nn.softmax(x) * m.numpy.sqrt(y) ** 3,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_series_are_jaxs(name):
    jax = pytest.importorskip("jax")
    from jax.experimental.jet import jet as theirs

    f, y = FUNCTIONS[name], X[::-1] + 0.5
    series = ([np.ones(4), X, -X], [X, np.ones(4), 2 * X])
    with jax.enable_x64(True):
        want = theirs(lambda x, y: f(jax, x, y), (X, y), series)
    got = jet(lambda x, y: f(volta, x, y), (X, y), series)
    for ours, other in zip(volta.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(other), rtol=1e-11, atol=1e-11)


def test_under_transforms_the_bits_are_the_same():
    def terms(x):
        return jet(lambda x: vnp.sin(x) * x, (x,), ([vnp.ones_like(x), vnp.zeros_like(x)],))[1][1]

    x = vnp.asarray(X)
    assert_bits_equal(volta.jit(terms)(x), terms(x))
    assert_bits_equal(volta.vmap(terms)(x), terms(x))
    slope = volta.grad(lambda x: vnp.sum(terms(x)))(x)
    np.testing.assert_allclose(slope, volta.vmap(volta.grad(volta.grad(volta.grad(lambda x: vnp.sin(x) * x))))(x))
    looped = jet(lambda x: lax.fori_loop(0, 3, lambda i, x: x * x, x), (np.float64(1.1),), ([1.0, 0.0],))
    np.testing.assert_allclose([float(v) for v in (looped[0], *looped[1])], [1.1**8, 8 * 1.1**7, 56 * 1.1**6])


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="jet: 2 arguments need as many series of one length, got 1"):
        jet(vnp.add, (1.0, 2.0), ([1.0],))
    with pytest.raises(ArgumentError, match=r"of lengths \[1, 2\]"):
        jet(vnp.add, (1.0, 2.0), ([1.0], [1.0, 2.0]))
    with pytest.raises(TreeError):
        jet(lambda t: t["a"], ({"a": 1.0},), ([(1.0,)],))
    assert jet(vnp.exp, (vnp.float64(0.0),), ([],)) == (1.0, [])
