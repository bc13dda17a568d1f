"""grad, value_and_grad, jvp, vjp, linearize and the Jacobians: what they take and give."""

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.ops.primitive import REGISTRY, NoDerivative

X = np.array([1, 2, 3], np.float32)


def test_argnums_one_and_many_negative_and_keywords() -> None:
    f = lambda x, y, *, z=1.0: vnp.sum(x * x * y * z)  # noqa: E731
    assert volta.grad(f)(X, 1.0).tolist() == [2, 4, 6]
    gx, gy = volta.grad(f, argnums=(0, 1))(X, 2.0, z=1.0)
    assert gx.tolist() == [4, 8, 12] and float(gy) == 14
    assert float(volta.grad(f, argnums=-1)(X, 2.0)) == 14
    (only,) = volta.grad(f, argnums=(1,))(X, 2.0)
    assert float(only) == 14


def test_gradients_have_the_trees_and_dtypes_of_the_arguments() -> None:
    params = {"w": [X, X.astype(np.float64)], "b": (np.float32(2.0), None)}

    def f(p):
        return vnp.sum(p["w"][0] * 2.0) + vnp.sum(p["w"][1]) * p["b"][0]

    gradient = volta.grad(f)(params)
    assert volta.tree.structure(gradient) == volta.tree.structure(params)
    assert [g.dtype.name for g in volta.tree.leaves(gradient)] == ["float32", "float32", "float64"]
    assert gradient["w"][1].tolist() == [2, 2, 2] and float(gradient["b"][0]) == 6


def test_gradients_of_python_numbers_are_weak() -> None:
    f = lambda x: x * x * np.float32(2)  # noqa: E731
    for gradient in (volta.grad(f), volta.grad(volta.jit(f)), volta.jit(volta.grad(f))):
        assert gradient(3.0).weak_type and float(gradient(3.0)) == 12
        assert not gradient(np.float32(3.0)).weak_type


def test_an_argument_that_is_not_used_has_a_zero_gradient() -> None:
    gx, gy = volta.grad(lambda x, y: vnp.sum(x), (0, 1))(X, X)
    assert gy.tolist() == [0, 0, 0]
    assert volta.grad(lambda x: vnp.float32(1.0) * 2)(X).tolist() == [0, 0, 0]
    assert volta.grad(lambda x: vnp.sum(volta.lax.stop_gradient(x) * 2))(X).tolist() == [0, 0, 0]


def test_has_aux() -> None:
    def f(x):
        y = x * x
        return vnp.sum(y), {"y": y, "label": "kept as it is", "n": 3}

    gradient, aux = volta.grad(f, has_aux=True)(X)
    assert gradient.tolist() == [2, 4, 6]
    assert aux["y"].tolist() == [1, 4, 9] and aux["label"] == "kept as it is"
    (value, aux), gradient = volta.value_and_grad(f, has_aux=True)(X)
    assert float(value) == 14 and aux["n"] == 3
    out, pullback, aux = volta.vjp(f, X, has_aux=True)
    assert pullback(2.0)[0].tolist() == [4, 8, 12] and float(out) == 14
    _, out_dot, aux = volta.jvp(f, (X,), (X,), has_aux=True)
    assert float(out_dot) == 28 and aux["y"].tolist() == [1, 4, 9]
    _, pushforward, aux = volta.linearize(f, X, has_aux=True)
    assert float(pushforward(X)) == 28
    second = volta.grad(lambda x: vnp.sum(volta.grad(f, has_aux=True)(x)[1]["y"]))
    assert second(X).tolist() == [2, 4, 6]


def test_integers_are_carried_as_float0() -> None:
    n = np.arange(3)
    gradient = volta.grad(lambda n, x: vnp.sum(x * n), allow_int=True)(n, X)
    assert gradient.dtype == volta.float0 and gradient.shape == (3,)
    out, pullback = volta.vjp(lambda x, n: (x * n, n + 1), X, n)
    gx, gn = pullback((X, np.zeros(3, volta.float0)))
    assert gx.tolist() == [0, 2, 6] and gn.dtype == volta.float0
    out, out_dot = volta.jvp(lambda x, n: (x * n, n + 1), (X, n), (X, np.zeros(3, volta.float0)))
    assert out_dot[0].tolist() == [0, 2, 6] and out_dot[1].dtype == volta.float0


def test_pullback_and_pushforward_are_reusable_and_composable() -> None:
    _, pullback = volta.vjp(lambda x: x * x, X)
    rows = np.eye(3, dtype=np.float32)
    jacobian = volta.vmap(lambda ct: pullback(ct)[0])(rows)
    assert jacobian.tolist() == np.diag([2.0, 4.0, 6.0]).tolist()
    assert volta.jit(lambda ct: pullback(ct)[0])(X).tolist() == [2, 8, 18]
    _, pushforward = volta.linearize(lambda x: x * x, X)
    assert volta.vmap(pushforward)(rows).tolist() == jacobian.tolist()
    # Differentiating through a vjp: the residuals are values of the outer trace.
    f = lambda x: vnp.sum(volta.vjp(lambda y: y * y * y, x)[1](X)[0])  # noqa: E731
    assert volta.grad(f)(X).tolist() == [6, 24, 54]


def test_higher_orders_and_mixtures() -> None:
    f = lambda x: x * x * x * x  # noqa: E731
    g = volta.grad
    assert [float(h(2.0)) for h in (g(f), g(g(f)), g(g(g(f))), g(g(g(g(f)))))] == [32, 48, 48, 24]
    assert float(volta.jit(g(volta.jit(g(volta.jit(f)))))(2.0)) == 48
    assert volta.vmap(g(g(f)))(X).tolist() == [12, 48, 108]
    assert float(g(lambda x: volta.jvp(f, (x,), (1.0,))[1])(2.0)) == 48
    assert float(volta.jvp(g(f), (2.0,), (1.0,))[1]) == 48
    assert float(g(lambda x: vnp.sum(volta.vmap(lambda y: x * y * y)(X)))(2.0)) == 14


def test_jacobians_of_trees() -> None:
    def f(p):
        return {"s": vnp.sum(p["a"]) * p["b"], "v": p["a"] * p["b"]}

    p = {"a": X, "b": np.float32(2.0)}
    for jacobian in (volta.jacfwd(f)(p), volta.jacrev(f)(p), volta.jit(volta.jacrev(f))(p)):
        assert jacobian["s"]["a"].tolist() == [2, 2, 2]
        assert float(jacobian["s"]["b"]) == 6
        assert jacobian["v"]["a"].tolist() == np.diag([2.0, 2.0, 2.0]).tolist()
        assert jacobian["v"]["b"].tolist() == [1, 2, 3]
    first, second = volta.jacrev(lambda x, y: x * y, argnums=(0, 1))(X, X)
    assert first.tolist() == second.tolist()
    jacobian, aux = volta.jacfwd(lambda x: (x * 2, "aux"), has_aux=True)(X)
    assert jacobian.shape == (3, 3) and aux == "aux"
    matrix = np.ones((2, 3), np.float32)
    assert volta.jacfwd(lambda m: vnp.sum(m, axis=0))(matrix).shape == (3, 2, 3)
    assert volta.jacrev(lambda m: vnp.sum(m, axis=0))(matrix).shape == (3, 2, 3)
    hessian = volta.hessian(lambda p: p["a"] * p["a"] * p["b"])({"a": 3.0, "b": 2.0})
    assert float(hessian["a"]["a"]) == 4 and float(hessian["a"]["b"]) == 6 and float(hessian["b"]["b"]) == 0


def test_a_primitive_without_a_derivative_says_so() -> None:
    sin = attrs.evolve(REGISTRY["sin"], jvp=NoDerivative("nobody has worked it out"))

    def f(x):
        return vnp.sum(sin.bind(x))

    for transform in (volta.grad(f), lambda x: volta.jvp(f, (x,), (x,))):
        with pytest.raises(volta.errors.NotDifferentiableError, match="`sin` has no derivative .nobody has") as caught:
            transform(X)
        assert "stop_gradient" in str(caught.value) and "sin.bind(x)" in str(caught.value)


def test_control_flow_on_values_under_grad() -> None:
    def f(x):
        return x * 2 if x > 0 else x * 3

    assert float(volta.grad(f)(1.0)) == 2 and float(volta.grad(f)(-1.0)) == 3
    assert float(volta.grad(volta.grad(lambda x: f(x) * x))(-1.0)) == 6
