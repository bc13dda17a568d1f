"""Laws that every transform keeps on random programs: the same bits eager and compiled, alone and in a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp

pytestmark = pytest.mark.turns(6)

N = 5
UNARY = [vnp.sin, vnp.tanh, vnp.exp, lambda x: x * 0.5, lambda x: -x, lambda x: vnp.sum(x, keepdims=True) + 0 * x]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y,
    lambda x, y: vnp.where(x > y, x, y),
    lambda x, y: x / (1.0 + y * y),
    lambda x, y: vnp.dot(x, y) * vnp.tanh(x),
]
WRAP = [lambda f: f, volta.jit, volta.checkpoint]


@st.composite
def programs(draw):
    """Steps ``(wrapper, function, operand numbers)``; every value made so far can be an operand."""
    steps = []
    for k in range(draw(st.integers(1, 7))):
        wrap = draw(st.integers(0, len(WRAP) - 1))
        arity = draw(st.integers(1, 2))
        function = draw(st.integers(0, len(UNARY if arity == 1 else BINARY) - 1))
        operands = tuple(draw(st.integers(0, 1 + k)) for _ in range(arity))
        steps.append((wrap, function, operands))
    return tuple(steps)


def build(steps, wrapped=True):
    def f(x, y):
        values = [x, y]
        for wrap, function, operands in steps:
            op = (UNARY if len(operands) == 1 else BINARY)[function]
            op = WRAP[wrap](op) if wrapped else op
            values.append(vnp.tanh(op(*[values[i] for i in operands])))
        return values[-1]

    return f


def loss_of(f):
    return lambda x, y: vnp.sum(f(x, y))


def data(*shape):
    return np.random.default_rng(7).standard_normal((2, *shape)).astype(np.float32)


def bits(tree):
    out = []
    for v in volta.tree.leaves(tree):
        a = np.array(v)
        a[np.isnan(a)] = np.nan
        out.append((a.shape, a.dtype, a.tobytes()))
    return out


@given(programs())
def test_compiling_changes_no_bit(steps) -> None:
    x, y = data(N)
    f = build(steps)
    assert bits(volta.jit(f)(x, y)) == bits(f(x, y)) == bits(build(steps, wrapped=False)(x, y))


@given(programs())
def test_gradients_are_the_same_however_they_are_composed(steps) -> None:
    x, y = data(N)
    plain = volta.value_and_grad(loss_of(build(steps, wrapped=False)), (0, 1))(x, y)
    f = loss_of(build(steps))
    assert bits(volta.value_and_grad(f, (0, 1))(x, y)) == bits(plain)
    assert bits(volta.jit(volta.value_and_grad(f, (0, 1)))(x, y)) == bits(plain)
    assert bits(volta.value_and_grad(volta.jit(f), (0, 1))(x, y)) == bits(plain)


@given(programs())
def test_batching_changes_no_bit(steps) -> None:
    xs, ys = data(3, N)
    f = build(steps)
    mapped = volta.vmap(f)(xs, ys)
    gradients = volta.vmap(volta.grad(loss_of(f)))(xs, ys)
    for i in range(3):
        assert bits(mapped[i]) == bits(f(xs[i], ys[i]))
        assert bits(gradients[i]) == bits(volta.grad(loss_of(f))(xs[i], ys[i]))


@given(programs())
def test_forward_and_reverse_agree(steps) -> None:
    x, y = (v.astype(np.float64) for v in data(N))
    f = build(steps)
    out, out_dot = volta.jvp(f, (x, y), (y, x))
    again, pushforward = volta.linearize(f, x, y)
    assert bits(out) == bits(again)
    np.testing.assert_allclose(np.asarray(pushforward(y, x)), np.asarray(out_dot), rtol=1e-12, atol=1e-12)
    _, pullback = volta.vjp(f, x, y)
    x_bar, y_bar = pullback(x)
    reverse = np.dot(np.asarray(x_bar), y) + np.dot(np.asarray(y_bar), x)
    np.testing.assert_allclose(np.dot(np.asarray(out_dot), x), reverse, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_second_order_against_finite_differences(dtype) -> None:
    def f(x):
        return vnp.sum(vnp.tanh(x) * vnp.exp(-x * x))

    x = np.linspace(-1, 1, 4).astype(dtype)
    hessian = np.asarray(volta.hessian(f)(x))
    g = volta.grad(f)
    eps = 1e-5 if dtype == np.float64 else 1e-2
    columns = [(np.asarray(g(x + eps * e)) - np.asarray(g(x - eps * e))) / (2 * eps) for e in np.eye(4, dtype=dtype)]
    np.testing.assert_allclose(hessian, np.stack(columns), rtol=1e-2, atol=1e-6 if dtype == np.float64 else 1e-3)
    assert hessian.dtype == dtype
