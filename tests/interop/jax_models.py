"""Models written for JAX, trained by ``volta.from_jax``; run as a program it prints a trained model's digest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import volta
from volta.testing.bits import digest


def _dense(key: Any, n: int, m: int) -> dict[str, Any]:
    return {"w": jax.random.normal(key, (n, m)) / n**0.5, "b": jnp.zeros(m)}


def _apply(layer: dict[str, Any], x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


def _normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def mlp_init(key: Any) -> Any:
    return [_dense(k, n, m) for k, (n, m) in zip(jax.random.split(key, 3), [(64, 32), (32, 32), (32, 10)], strict=True)]


def mlp(params: Any, x: Any, key: Any) -> Any:
    x = x.reshape(x.shape[0], -1)
    for layer in params[:-1]:
        x = jax.nn.relu(_apply(layer, x))
    kept = jax.random.bernoulli(key, 0.9, x.shape)  # dropout
    return _apply(params[-1], _normalized(jnp.where(kept, x / 0.9, 0.0)))


def cnn_init(key: Any) -> Any:
    one, two, three = jax.random.split(key, 3)
    kernels = [0.3 * jax.random.normal(one, (3, 3, 1, 8)), 0.1 * jax.random.normal(two, (3, 3, 8, 16))]
    return {"kernels": kernels, "head": _dense(three, 2 * 2 * 16, 10)}


def cnn(params: Any, x: Any, key: Any) -> Any:
    for kernel in params["kernels"]:
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return _apply(params["head"], x.reshape(x.shape[0], -1))


def transformer_init(key: Any) -> Any:
    keys = iter(jax.random.split(key, 16))
    block = lambda: {n: _dense(next(keys), *s) for n, s in {"qkv": (32, 96), "up": (32, 64), "down": (64, 32)}.items()}  # noqa: E731
    embedding = 0.3 * jax.random.normal(next(keys), (32, 32))
    return {"embedding": embedding, "blocks": [block(), block()], "head": _dense(next(keys), 32, 32)}


def transformer(params: Any, tokens: Any, key: Any) -> Any:
    batch, length = tokens.shape
    x = params["embedding"][tokens]
    for block in params["blocks"]:
        qkv = _apply(block["qkv"], _normalized(x)).reshape(batch, length, 3, 4, 8)
        q, k, v = (qkv[:, :, i] for i in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, 32)
        x = x + mixed
        x = x + _apply(block["down"], jax.nn.gelu(_apply(block["up"], _normalized(x))))
    return _apply(params["head"], _normalized(x))


def images() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(16, 8, 8, 1)).astype(np.float32), draw.integers(0, 10, 16).astype(np.int32)


def sentences() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return tuple(draw.integers(0, 32, (2, 4, 12)).astype(np.int32))  # type: ignore[return-value]


Model = tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, Any]]]
MODELS: dict[str, Model] = {
    "mlp": (mlp_init, mlp, images),
    "cnn": (cnn_init, cnn, images),
    "transformer": (transformer_init, transformer, sentences),
}


def adam(params: Any, moments: Any, grads: Any, step: Any) -> tuple[Any, Any]:
    """The new parameters and moments."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, moments[1], grads)
    rate = 1e-3 * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second), (first, second)


def step_of(name: str) -> tuple[Callable[..., Any], Any, tuple[Any, Any]]:
    """A training step of JAX's, ``(state, x, y) -> (state, loss)``, its first state, and the data."""
    init, apply, data = MODELS[name]
    params = jax.jit(init)(jax.random.PRNGKey(0))
    zeros = jax.tree.map(jnp.zeros_like, params)

    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments, count, key = state
        key, own = jax.random.split(key)

        def loss(params: Any) -> Any:
            chances = jax.nn.log_softmax(apply(params, x, own))
            return -jnp.mean(jnp.take_along_axis(chances, y[..., None], -1))

        value, grads = jax.value_and_grad(loss)(params)
        params, moments = adam(params, moments, grads, count + 1.0)
        return (params, moments, count + 1.0, key), value

    state = jax.tree.map(np.asarray, (params, (zeros, zeros), np.float32(0), jax.random.PRNGKey(1)))
    return step, state, data()


def trained(name: str, steps: int, run: Callable[..., Any]) -> tuple[Any, list[float]]:
    """The state after so many steps, which ``run`` makes of the step, and the losses."""
    step, state, (x, y) = step_of(name)
    made = run(step)
    losses = []
    for _ in range(steps):
        state, loss = made(state, x, y)
        losses.append(float(loss))
    return state, losses


if __name__ == "__main__":
    final, _ = trained(sys.argv[1], int(sys.argv[2]), volta.from_jax)
    print(digest(final))
