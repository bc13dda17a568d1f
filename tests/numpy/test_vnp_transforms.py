"""NumPy functions under transforms: gradients equal JAX's; batched and jitted functions have the eager bits."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import volta
import volta.nn
import volta.numpy as vnp
from tests.numpy.vnp_compare import floats, leaves

X = floats(4, 5)
P = np.abs(X) + np.float32(0.3)
I = np.int32([[0, 3], [1, 1]])  # noqa: E741
ORDER = np.argsort(X, 0).astype(np.int32)[:3]
W = floats(4, 5)[::-1].copy()

FUNCTIONS = {
    "arithmetic": lambda np, x: x * W - x / (np.abs(W) + 1) + (x + 1) ** 3,
    "power": lambda np, x: (np.abs(x) + 0.5) ** W + 2.0**x,
    "minmax": lambda np, x: np.maximum(x, W) * np.minimum(x, 0.5),
    "where": lambda np, x: np.where(x > 0, np.sqrt(np.abs(x)), x * 2),
    "clip": lambda np, x: np.clip(x, -1.0, 1.0) * x,
    "trig": lambda np, x: np.sin(x) * np.arctan2(x, 2.0) + np.tanh(np.sinh(x)),
    "hypot": lambda np, x: np.hypot(x, W) + np.logaddexp(x, W) + np.sinc(x),
    "mod": lambda np, x: np.mod(x, 1.3) * x,
    "sum": lambda np, x: np.sum(x * x, 0) / np.sum(np.abs(x), keepdims=True)[0],
    "prod": lambda np, x: np.prod(x, 1),
    "max": lambda np, x: np.max(x, 0) * np.min(x),
    "moments": lambda np, x: np.var(x, 1) + np.std(x) * np.mean(x, 1),
    "cumsum": lambda np, x: np.cumsum(x * x, 1),
    "cumprod": lambda np, x: np.cumprod(x, 0),
    "index": lambda np, x: x[1:3, ::-1] * x[-1] + x[0, 2],
    "gather": lambda np, x: x[I] * x[I[0, 0]] + x[:, I[1, 0] : I[1, 0] + 1].sum(),
    "mixed": lambda np, x: x[np.asarray(I), 1:3],
    "take": lambda np, x: np.take(x, np.asarray(I), 1)[:3, 0, :1] * np.take_along_axis(x, np.asarray(ORDER), 0),
    "set": lambda np, x: x.at[1].set(x[0] * 2).at[:, 2].multiply(3.0),
    "add": lambda np, x: x.at[np.asarray(I)].add(x[0] ** 2),
    "mask": lambda np, x: x.at[x > 0].set(0.0) * x,
    "shapes": lambda np, x: np.concatenate([x.T, np.roll(x, 2, 1).T], 1).reshape(2, -1) ** 2,
    "tile": lambda np, x: np.tile(x, (2, 1)) * np.repeat(x, 2, 0),
    "pad": lambda np, x: np.pad(x, ((1, 0), (2, 1)), mode="reflect") ** 2,
    "pad constant": lambda np, x: np.pad(x, 1, constant_values=2.0) ** 2,
    "triangle": lambda np, x: np.tril(x, 1) * np.triu(x) + np.diag(np.diag(x))[:, :1],
    "matmul": lambda np, x: (x @ x.T) @ np.sin(x),
    "batched": lambda np, x: np.matmul(x[:, None, :], np.stack([x.T, 2 * x.T])[:, None]),
    "einsum": lambda np, x: np.einsum("ij,kj,kl->il", x, np.asarray(W), x),
    "norm": lambda np, x: np.linalg.norm(x, axis=1) * np.linalg.norm(x),
    "sort": lambda np, x: np.sort(x, 1) * np.arange(5.0),
    "median": lambda np, x: np.median(x, 1) + np.quantile(x, 0.3),
    "interp": lambda np, x: np.interp(x, np.array([-2.0, 0.0, 2.0]), np.array([1.0, 3.0, -1.0])),
    "scalars": lambda np, x: np.stack([x[0, 0], x[1, 1] * 2]) * 0.5,
}


def total(np_, f):
    def loss(x):
        out = f(np_, x)
        return np_.sum(out * np_.cos(np_.arange(out.size, dtype="float32").reshape(out.shape)))

    return loss


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.few(8)
@pytest.mark.turns(6)
def test_gradients_equal_jax(name):
    jax = pytest.importorskip("jax")
    theirs = jax.grad(total(jax.numpy, FUNCTIONS[name]))
    want = (theirs if name == "mask" else jax.jit(theirs))(jax.numpy.asarray(X))  # JAX's masks are not traced
    got = volta.grad(total(vnp, FUNCTIONS[name]))(vnp.asarray(X))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.turns(6)
def test_jit_and_vmap_change_no_bit(name):
    f = lambda x: FUNCTIONS[name](vnp, x)  # noqa: E731
    xs = floats(3, 4, 5)
    rows = [leaves(f(vnp.asarray(x))) for x in xs]
    batch = leaves(volta.vmap(f)(vnp.asarray(xs)))
    jitted = [leaves(volta.jit(f)(vnp.asarray(x))) for x in xs]
    for k, whole in enumerate(batch):
        for i in range(len(xs)):
            row = np.asarray(rows[i][k])
            assert np.asarray(whole)[i].tobytes() == row.tobytes()
            assert np.asarray(jitted[i][k]).tobytes() == row.tobytes()


PACKAGES = (vnp, volta.nn, volta.lax, volta.random)


@pytest.mark.parametrize(
    "module",
    [m.name for p in PACKAGES for m in pkgutil.iter_modules(p.__path__, p.__name__ + ".")]
    + ["volta.sharding", "volta.train", "volta.distributed"],
)
@pytest.mark.turns(6)
def test_examples_in_docstrings(module):
    names = {"volta": volta, "np": np, "vnp": vnp, "nn": volta.nn, "lax": volta.lax}
    result = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert not result.failed


def test_every_public_function_is_documented():
    for module in (vnp, volta.nn):
        for name in module.__all__:
            value = getattr(module, name)
            assert not callable(value) or value.__doc__, name
