"""A decoder-only transformer in the two shapes that most files have, Llama's and GPT-2's: functions over a pytree.

What of a row's result depends on other rows, on how many tokens are taken at once, or on the size of the cache:
nothing, not one bit. Products, norms and activations are computed row by row; attention sees keys by their positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn, random
from volta.core.array import Array
from volta.core.errors import ArgumentError
from volta.core.source import at_user_line
from volta.nn.caches import KeyValueCache

Params = Mapping[str, Any]
Caches = Sequence[Any]


@attrs.frozen
class Config:
    """The shape of a decoder. Hashable: a compiled step is made for one.

    Args:
        vocabulary, width, layers, heads, key_heads, head_size, hidden: sizes; ``hidden`` of the layer inside a block.
        context: the longest text, in tokens.
        kind: "llama" (RMS norm, rotary positions, SwiGLU) or "gpt2" (layer norm, learned positions, GELU).
        eps: of the norms.
        interleaved: rotary pairs are neighbours, as in GGUF files of Llama models.
        rotary_base, rotary_size: as :func:`volta.nn.rotary_frequencies` takes them (0: all of a head).
        window: how many tokens each one sees (None: all before it).
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    hidden: int
    context: int = 2048
    kind: Literal["llama", "gpt2"] = "llama"
    eps: float = 1e-5
    interleaved: bool = False
    rotary_base: float = 10000.0
    rotary_size: int = 0
    window: int | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "key_heads", "head_size", "hidden", "context"):
            if getattr(self, name) < 1:
                raise ArgumentError(at_user_line(f"Config: {name} must be positive, got {getattr(self, name)}"))
        if self.heads % self.key_heads:
            text = f"Config: {self.key_heads} key heads do not divide {self.heads} heads"
            raise ArgumentError(at_user_line(text))
        if self.kind not in ("llama", "gpt2"):
            raise ArgumentError(at_user_line(f"Config: kind must be 'llama' or 'gpt2', got {self.kind!r:.40}"))


@attrs.frozen(eq=False, repr=False)
class Decoder:
    """A model: its ``config`` and its ``params``, a pytree.

    ``params`` has "embedding" (vocabulary, width), "layers", "norm" and, where it is not the embedding, "output"; of
    GPT-2's kind "positions" (context, width). A layer has "norm1", "norm2" (each with "scale" and maybe "bias"), and
    the products "q", "k", "v", "out", "gate" (Llama's), "up" and "down", each with "weight" (outputs, inputs), an array
    or a :class:`volta.nn.QuantizedArray`, and maybe "bias". "frequencies" are those of rotary positions.
    """

    config: Config
    params: Params

    def __repr__(self) -> str:
        return f"Decoder({self.config})"

    def caches(self, batch: int, length: int, dtype: Any = np.float32) -> tuple[KeyValueCache, ...]:
        """Empty caches, one a layer, for ``batch`` rows of up to ``length`` tokens."""
        c = self.config
        make = lambda: KeyValueCache.zeros(batch, length, heads=c.key_heads, size=c.head_size, dtype=dtype)  # noqa: E731
        return tuple(make() for _ in range(c.layers))

    def __call__(self, tokens: Any, caches: Caches, start: Any, last: Any = None) -> tuple[Array, tuple[Any, ...]]:
        """Logits of the next token; see :func:`apply`."""
        return apply(self.config, self.params, tokens, caches, start, last)


def apply(
    config: Config, params: Params, tokens: Any, caches: Caches, start: Any, last: Any = None
) -> tuple[Array, tuple[Any, ...]]:
    """Logits of the next token after each of ``tokens`` (B, T), which stand at positions ``start`` (B,) and on.

    ``last`` (B,): only those after so many of the tokens, less one; (B, vocabulary) then, else (B, T, vocabulary).
    Also the caches with these tokens in them.
    """
    tokens, start = vnp.asarray(tokens), vnp.asarray(start)
    positions = start[:, None] + vnp.arange(tokens.shape[1])
    x = nn.embedding(params["embedding"], tokens).astype(np.float32)
    if config.kind == "gpt2":
        x = x + nn.embedding(params["positions"], vnp.minimum(positions, config.context - 1)).astype(np.float32)
    found = []
    for layer, cache in zip(params["layers"], caches, strict=True):
        y, cache = _attention(config, params, layer, _norm(config, layer["norm1"], x), cache, positions, start)
        x = x + y
        x = x + _block(config, layer, _norm(config, layer["norm2"], x))
        found.append(cache)
    x = _norm(config, params["norm"], x)
    if last is not None:
        x = vnp.take_along_axis(x, vnp.asarray(last)[:, None, None], axis=1)[:, 0]
    return nn.linear(x, params.get("output", params["embedding"])).astype(np.float32), tuple(found)


def _attention(
    config: Config, params: Params, layer: Params, x: Array, cache: Any, positions: Array, start: Array
) -> tuple[Array, Any]:
    heads = {"q": config.heads, "k": config.key_heads, "v": config.key_heads}
    q, k, v = (_linear(layer[name], x).reshape(*x.shape[:2], count, config.head_size) for name, count in heads.items())
    if config.kind == "llama":
        q, k = (_norm(config, layer[n], y) if n in layer else y for y, n in ((q, "q_norm"), (k, "k_norm")))
        turned = params.get("frequencies")
        if turned is None:
            turned = nn.rotary_frequencies(config.rotary_size or config.head_size, config.rotary_base)
        q, k = (nn.rotary_embedding(y, positions, turned, interleaved=config.interleaved) for y in (q, k))
    cache = cache.update(k, v, start)
    y = cache.attend(q, start, window=config.window)
    return _linear(layer["out"], y.reshape(*x.shape[:2], config.heads * config.head_size)), cache


def _block(config: Config, layer: Params, x: Array) -> Array:
    up = _linear(layer["up"], x)
    y = nn.gelu(up, approximate=True) if config.kind == "gpt2" else nn.swiglu(_linear(layer["gate"], x), up)
    return _linear(layer["down"], y)


def _norm(config: Config, norm: Params, x: Array) -> Array:
    if config.kind == "gpt2":
        return nn.layer_norm(x, norm["scale"], norm["bias"], eps=config.eps)
    return nn.rms_norm(x, norm["scale"], eps=config.eps)


def _linear(product: Params, x: Array) -> Array:
    return nn.linear(x, product["weight"], product.get("bias"))


def random_decoder(config: Config, seed: int = 0) -> Decoder:
    """A model of random float32 parameters: for tests, and to measure what a shape costs."""
    keys = iter(random.split(random.key(seed), 16 * config.layers + 3))
    c, gpt2 = config, config.kind == "gpt2"

    def matrix(outputs: int, inputs: int) -> Array:
        return random.normal(next(keys), (outputs, inputs)) * np.float32(1 / math.sqrt(inputs))

    def product(outputs: int, inputs: int) -> dict[str, Any]:
        weight = {"weight": matrix(outputs, inputs)}
        return weight | {"bias": random.normal(next(keys), (outputs,)) * np.float32(0.1)} if gpt2 else weight

    def norm() -> dict[str, Any]:
        scale = {"scale": vnp.ones(c.width)}
        return scale | {"bias": vnp.zeros(c.width)} if gpt2 else scale

    made: dict[str, Any] = {"embedding": matrix(c.vocabulary, c.width), "norm": norm(), "layers": []}
    if gpt2:
        made["positions"] = matrix(c.context, c.width)
    for _ in range(c.layers):
        layer = {"norm1": norm(), "norm2": norm()}
        layer["q"] = product(c.heads * c.head_size, c.width)
        layer["k"], layer["v"] = (product(c.key_heads * c.head_size, c.width) for _ in range(2))
        layer["out"], layer["up"] = product(c.width, c.heads * c.head_size), product(c.hidden, c.width)
        layer |= {} if gpt2 else {"gate": product(c.hidden, c.width)}
        layer["down"] = product(c.width, c.hidden)
        made["layers"].append(layer)
    return Decoder(config, made)
