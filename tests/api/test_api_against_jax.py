"""The same programs under JAX: values, derivatives, trees, shapes and dtypes of the answers."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp

jax = pytest.importorskip("jax")
jnp = jax.numpy

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
PARAMS = {
    "w": [RNG.standard_normal((4, 5)).astype(np.float32), RNG.standard_normal((5, 2)).astype(np.float32)],
    "b": 0.5,
}


def mlp(np_, p, x):
    for w in p["w"]:
        x = np_.tanh(x @ w + p["b"])
    return x


def loss(np_, p, x):
    y = mlp(np_, p, x)
    return np_.mean(np_.log(1.0 + np_.exp(y))) + 0.1 * np_.sum(p["w"][0] ** 2)


CASES = {
    "value_and_grad": lambda t, n: t.value_and_grad(lambda p: loss(n, p, X))(PARAMS),
    "grad of argnums": lambda t, n: t.grad(lambda p, x: loss(n, p, x), argnums=(0, 1))(PARAMS, X),
    "jit of grad": lambda t, n: t.jit(t.grad(lambda p: loss(n, p, X)))(PARAMS),
    "grad of jit": lambda t, n: t.grad(t.jit(lambda p: loss(n, p, X)))(PARAMS),
    "grad of checkpoint": lambda t, n: t.grad(t.checkpoint(lambda p: loss(n, p, X)))(PARAMS),
    "jvp": lambda t, n: t.jvp(lambda x: mlp(n, PARAMS, x), (X,), (Y,)),
    "vjp": lambda t, n: t.vjp(lambda x: n.sin(x) * 2, X)[1](Y),
    "linearize": lambda t, n: t.linearize(lambda x: mlp(n, PARAMS, x), X)[1](Y),
    "jacfwd": lambda t, n: t.jacfwd(lambda p: mlp(n, p, X[:1]))(PARAMS),
    "jacrev": lambda t, n: t.jacrev(lambda p: mlp(n, p, X[:1]))(PARAMS),
    "hessian": lambda t, n: t.hessian(lambda p: loss(n, {"w": PARAMS["w"], "b": p[0] * p[1]}, X))((0.5, 2.0)),
    "vmap": lambda t, n: t.vmap(lambda x, y: n.dot(x, y), in_axes=(1, None))(X, Y[:, 0]),
    "vmap of out_axes": lambda t, n: t.vmap(lambda x: {"a": n.outer(x, x), "b": n.sum(x)}, 0, {"a": 2, "b": 0})(X),
    "vmap of grad": lambda t, n: t.vmap(t.grad(loss_of(n)), in_axes=(None, 0))(PARAMS, X[:, None]),
    "vmap of vmap": lambda t, n: t.vmap(t.vmap(lambda a, b: n.sum(a * b), (0, None)), (None, 0))(X, Y),
    "gradient of indexing": lambda t, n: t.grad(lambda x: n.sum(x[n.array([0, 2, 0])] ** 3))(X),
    "gradient of max": lambda t, n: t.grad(lambda x: n.sum(n.max(x, axis=1) * 2))(X),
    "gradient of where": lambda t, n: t.grad(lambda x: n.sum(n.where(x > 0, n.log(n.abs(x) + 1), 0.0)))(X),
    "gradient of a matrix chain": lambda t, n: t.grad(lambda x: n.sum((x @ x.T) @ x))(X),
    "gradient of concatenate": lambda t, n: t.grad(lambda x: n.sum(n.concatenate([x, x * x], axis=1)[:, 2:6]))(X),
    "fourth derivative": lambda t, n: t.grad(t.grad(t.grad(t.grad(lambda x: n.exp(x) * n.sin(x)))))(0.3),
}


# What these differentiate by a Python float is float64 here: a Python number keeps its 64 bits, and its derivative too.
BY_A_NUMBER = {
    "value_and_grad", "grad of argnums", "jit of grad", "grad of jit", "grad of checkpoint", "jacrev", "hessian",
    "vmap of grad", "fourth derivative",
}  # fmt: skip


def loss_of(n):
    return lambda p, x: loss(n, p, x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(7)
@pytest.mark.turns(6)
def test_as_in_jax(name) -> None:
    ours, theirs = CASES[name](volta, vnp), jax.jit(lambda: CASES[name](jax, jnp))()
    assert str(jax.tree.structure(volta.tree.map(np.asarray, ours))) == str(jax.tree.structure(theirs))
    for a, b in zip(volta.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and (a.dtype == b.dtype or (name in BY_A_NUMBER and a.dtype == np.float64))
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("value", [2.5, np.float32(1), np.arange(3, dtype=np.float32)])
def test_scalar_arguments_have_the_weak_types_of_jax(value) -> None:
    def f(x):
        return x, x * 2, x * 0.5, x + x

    for a, b in zip(volta.make_jaxpr(f)(value).out_avals, jax.make_jaxpr(f)(value).out_avals, strict=True):
        assert (a.shape, a.weak_type) == (b.shape, b.weak_type)
        assert a.dtype == (np.float64 if isinstance(value, float) else b.dtype)  # see BY_A_NUMBER
