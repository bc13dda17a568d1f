"""Functions with derivatives of their own: they mean their programs, and differentiate by their partials."""

import numpy as np
import pytest

import volta
import volta.nn
import volta.numpy as vnp
from volta import lax
from volta.testing import assert_bits_equal
from volta.trace.composite import with_partials
from volta.xla_like.passes import inline_calls

X = np.float32([[0.0, 1.0, -2.0], [0.0, 3.0, 0.5]])
Y = np.float32([[0.0, 1.0, 5.0], [1.0, -3.0, 0.5]])


@with_partials(lambda t, ans, x, y: lax.mul(t, y), lambda t, ans, x, y: lax.mul(t, lax.mul(x, 100.0)))
def product(x, y):
    return lax.mul(x, y)


def test_it_means_its_program_and_differentiates_by_its_partials() -> None:
    assert_bits_equal(product(X, Y), X * Y)
    gx, gy = volta.grad(lambda x, y: vnp.sum(product(x, y)), (0, 1))(X, Y)
    assert gx.tolist() == Y.tolist() and gy.tolist() == (100 * X).tolist()
    assert volta.jvp(product, (X, Y), (X, 0 * X))[1].tolist() == (X * Y).tolist()


@pytest.mark.parametrize("wrap", [volta.jit, volta.checkpoint, lambda f: volta.jit(volta.checkpoint(f))])
def test_calls_and_loops_keep_the_partials(wrap) -> None:
    expected = volta.grad(lambda y: vnp.sum(product(X, y)))(Y)
    assert_bits_equal(volta.grad(lambda y: vnp.sum(wrap(product)(X, y)))(Y), expected)

    def looped(y):
        return vnp.sum(lax.scan(lambda c, row: (c, product(*row)), 0.0, (vnp.asarray(X), y))[1])

    assert_bits_equal(volta.grad(looped)(Y), expected)
    assert_bits_equal(volta.jit(volta.grad(looped))(Y), expected)
    chosen = lambda y: vnp.sum(lax.cond(y[0, 0] == 0, product, lax.add, X, y))  # noqa: E731
    assert_bits_equal(volta.grad(chosen)(Y), expected)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (None, 1), (0, None)])
def test_mapped_operands_are_aligned(axes) -> None:
    x = np.moveaxis(X, 0, axes[0]) if axes[0] else X if axes[0] == 0 else X[0]
    y = np.moveaxis(Y, 0, axes[1]) if axes[1] else Y if axes[1] == 0 else Y[0]
    for f in (vnp.hypot, lambda x, y: volta.jvp(lambda x: vnp.hypot(x, y), (x,), (vnp.ones_like(x),))[1]):
        rows = [f(X[i] if axes[0] is not None else x, Y[i] if axes[1] is not None else y) for i in range(2)]
        assert_bits_equal(volta.vmap(f, axes)(x, y), vnp.stack(rows))
    assert_bits_equal(volta.vmap(lambda a: vnp.hypot(a, Y))(X[:, 0]), vnp.stack([vnp.hypot(a, Y) for a in X[:, 0]]))


def test_its_work_belongs_to_the_line_that_calls_it() -> None:
    def first(x):
        return volta.nn.softplus(x)

    def second(x):
        return volta.nn.softplus(x)

    for f in (first, second):
        program = inline_calls(volta.make_jaxpr(f)(X))
        assert len(program.eqns) > 5 and {e.source.function for e in program.eqns} == {f.__name__}


def test_a_logistic_regression_has_a_hessian_at_0() -> None:
    hessian = volta.hessian(lambda w: vnp.sum(volta.nn.softplus(w)))
    assert hessian(vnp.zeros(2)).tolist() == [[0.25, 0.0], [0.0, 0.25]]
    third = volta.grad(lambda x: volta.grad(volta.grad(volta.nn.log_sigmoid))(x))
    assert abs(float(third(0.0))) < 1e-6


def test_mixed_derivatives_of_power_at_exponents_0_and_1() -> None:
    mixed = volta.grad(volta.grad(vnp.power), 1)
    assert float(mixed(2.0, 0.0)) == 0.5
    np.testing.assert_allclose(float(mixed(2.0, 1.0)), 1 + np.log(2), rtol=1e-6)


def test_frexp_and_next_floats_have_slopes() -> None:
    assert float(volta.grad(lambda x: vnp.frexp(x)[0])(6.0)) == 0.125
    assert volta.grad(lambda x: vnp.sum(vnp.nextafter(x, Y)))(X).tolist() == vnp.ones_like(X).tolist()
    assert not np.asarray(volta.grad(lambda x: vnp.sum(vnp.spacing(x)))(X)).any()
