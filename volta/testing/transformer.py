"""A small transformer to test with: everything that training touches, from data that every machine can make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn, optim, random
from volta.api.autodiff import value_and_grad
from volta.api.jit import jit


@attrs.frozen
class Transformer:
    """A decoder-only language model. Its functions are pure; parameters are nested dicts of float32 arrays.

    >>> model = Transformer(layers=1, width=8, heads=2, length=4, vocabulary=16)
    >>> params = model.init(random.key(0))
    >>> model.logits(params, np.zeros((1, 4), np.int32)).shape
    (1, 4, 16)
    """

    vocabulary: int = 256
    width: int = 64
    heads: int = 4
    layers: int = 2
    length: int = 64
    batch: int = 8

    def init(self, key: Any) -> Any:
        """Parameters drawn with a key."""

        def matrix(key: Any, rows: int, columns: int) -> Any:
            return random.normal(key, (rows, columns)) / math.sqrt(rows)

        def layer(key: Any) -> Any:
            keys, w = random.split(key, 4), self.width
            return {
                "norm1": vnp.ones(w),
                "qkv": matrix(keys[0], w, 3 * w),
                "out": matrix(keys[1], w, w),
                "norm2": vnp.ones(w),
                "up": matrix(keys[2], w, 4 * w),
                "down": matrix(keys[3], 4 * w, w),
            }

        keys = random.split(key, self.layers + 2)
        return {
            "tokens": 0.02 * random.normal(keys[0], (self.vocabulary, self.width)),
            "positions": 0.02 * random.normal(keys[1], (self.length, self.width)),
            "layers": [layer(k) for k in keys[2:]],
            "norm": vnp.ones(self.width),
        }

    def logits(self, params: Any, tokens: Any) -> Any:
        """(batch, length) int32 tokens to (batch, length, vocabulary) float32."""
        x = params["tokens"][tokens] + params["positions"]
        shape = (*tokens.shape, self.heads, self.width // self.heads)
        for p in params["layers"]:
            parts = vnp.split(nn.layer_norm(x, p["norm1"]) @ p["qkv"], 3, axis=-1)
            y = nn.dot_product_attention(*(part.reshape(shape) for part in parts), is_causal=True)
            x = x + y.reshape(x.shape) @ p["out"]
            x = x + nn.gelu(nn.layer_norm(x, p["norm2"]) @ p["up"]) @ p["down"]
        return nn.layer_norm(x, params["norm"]) @ params["tokens"].T

    def draw(self, key: Any) -> tuple[Any, Any]:
        """A batch to learn from: each token follows from the one before by a fixed rule, but for some noise."""
        first, noise = random.split(key)
        start = random.randint(first, (self.batch, 1), 0, self.vocabulary)
        steps = vnp.arange(self.length + 1)
        flips = random.bernoulli(noise, 0.1, (self.batch, self.length + 1)).astype(np.int32)
        tokens = (start + 7 * steps + steps * steps // 5 + flips) % self.vocabulary
        return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)

    def loss(self, params: Any, inputs: Any, targets: Any) -> Any:
        """Mean cross entropy."""
        return vnp.mean(nn.softmax_cross_entropy_with_integer_labels(self.logits(params, inputs), targets))

    def make_step(self, optimizer: Any) -> Callable[..., Any]:
        """A compiled step of training: (params, state, key) to (params, state, loss); the first two are donated."""

        def step(params: Any, state: Any, key: Any) -> Any:
            loss, gradients = value_and_grad(self.loss)(params, *self.draw(key))
            updates, state = optimizer.update(gradients, state, params)
            return optim.apply_updates(params, updates), state, loss

        return jit(step, donate_argnums=(0, 1))
