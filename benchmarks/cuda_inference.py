"""Inference with a decoder of 7 billion parameters: a token with weights in Q4_K, and prompts at level device.

Rows of the group "inference" of benchmarks/gpu.py. JAX has no products with weights in blocks: its own are bfloat16.
A prompt's layers have the same weights, which are too many for a cache; so they are drawn once.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import decode, programs
from benchmarks.cuda_mixed import device_level
from benchmarks.gpu_harness import Row, draw, jax_on, ready, turns, volta_on

SHAPE = types.SimpleNamespace(layers=32, width=4096, heads=32, key_heads=32, hidden=11008, vocabulary=32000)
PROMPTS, LAYERS = (512, 2048), 8  # of the prompts' model
_PRODUCTS = ("q", "k", "v", "out", "gate", "up", "down")


def token_rows() -> Iterator[Row]:
    """A token, and a copy of as many bytes as its weights have."""
    import volta
    from volta import models, tree

    rng = np.random.default_rng(0)
    with volta.default_device("cuda"):
        made = functools.cache(lambda *s: decode.blocks("Q4_K", *s, rng))  # each its own memory
        model = decode.model(SHAPE, lambda *s: tree.map(lambda x: volta.device_put(x, "cuda"), made(*s)))
        nbytes = sum(x.nbytes for name, x in model.params.items() for x in tree.leaves(x) if name != "embedding")
        tokens = models.generate(model, list(range(1, 33)), max_tokens=1500)
        seconds = turns({"volta": lambda: next(tokens)}, lambda token: None)
        copied = nbytes / decode.copy_speed()
    yield {"name": "7B, a token, weights in Q4_K", "bytes": nbytes, "seconds": {**seconds, "copy": copied}}


def prompt_params(width: int, hidden: int, heads: int, layers: int, vocabulary: int, length: int) -> programs.Tree:
    """Float32 parameters of a decoder, its layers' being the same arrays; weights are (inputs, outputs)."""
    sizes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    layer = {name: draw(*sizes.get(name, (width, width)), seed=i) / 64 for i, name in enumerate(_PRODUCTS)}
    layer |= {"norm1": np.ones(width, "f4"), "norm2": np.ones(width, "f4")}
    depth = width // heads
    angles = np.outer(np.arange(length), 10000.0 ** -(np.arange(depth // 2) / (depth // 2)))
    params = {"embedding": draw(vocabulary, width), "norm": np.ones(width, "f4"), "output": draw(width, vocabulary)}
    return params | {"layers": [layer] * layers, "cos": np.cos(angles), "sin": np.sin(angles)}


def last_logits(fw: programs.Framework, heads: int, p: programs.Tree, tokens: Any) -> Any:
    """The logits behind a prompt (length,) of a decoder of Llama's shape."""
    xp, (length,) = fw.xp, tokens.shape

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype("float32")
        return (wide / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    def turned(x: Any) -> Any:
        first, second = xp.split(x.astype("float32"), 2, axis=-1)
        cos, sin = (p[name][:, None, :] for name in ("cos", "sin"))
        return xp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

    x = p["embedding"][tokens]
    for layer in p["layers"]:
        y = norm(x, layer["norm1"])
        q, k, v = (xp.reshape(xp.matmul(y, layer[name]), (length, heads, -1)) for name in "qkv")
        y = fw.attention(turned(q)[None], turned(k)[None], v[None], is_causal=True)[0]
        x = x + xp.matmul(xp.reshape(y, (length, -1)), layer["out"])
        y = norm(x, layer["norm2"])
        gate = xp.matmul(y, layer["gate"])
        x = x + xp.matmul(gate / (1 + xp.exp(-gate)) * xp.matmul(y, layer["up"]), layer["down"])
    return xp.matmul(norm(x[-1:], p["norm"]), p["output"])[0]


def prompt_rows(length: int) -> Iterator[Row]:
    """A prompt in bfloat16; then Volta's weights in Q4_K beside JAX's in bfloat16."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp
    from volta import tree
    from volta.models.decoder import apply

    s, rng = SHAPE, np.random.default_rng(0)
    host = prompt_params(s.width, s.hidden, s.heads, LAYERS, s.vocabulary, length)
    tokens = np.arange(1, length + 1, dtype=np.int32)
    layer = host.pop("layers")[0]

    def placed(place: Any, xp: Any) -> programs.Tree:
        half = programs.map_tree(lambda x: xp.asarray(place(x)[0], "bfloat16"), host | {"layers": [layer]})
        wide = {name: xp.asarray(place(host[name])[0], "float32") for name in ("cos", "sin")}
        return half | wide | {"layers": half["layers"] * LAYERS}

    ours, theirs = (functools.partial(last_logits, fw, s.heads) for fw in (programs.volta(), programs.jax()))
    there = placed(volta_on, vnp), *volta_on(tokens)
    other = functools.partial(jax.jit(theirs), placed(jax_on, jnp), *jax_on(tokens))
    flops = 2 * length * LAYERS * sum(layer[name].size for name in _PRODUCTS)
    name = f"7B's shape, {LAYERS} layers, a prompt of {length}"
    with device_level("bfloat16"):
        seconds = turns({"volta": functools.partial(volta.jit(ours), *there), "jax": other}, ready)
    yield {"name": f"{name}, bfloat16", "flops": flops, "seconds": seconds}
    made = functools.cache(lambda *s: tree.map(lambda x: volta_on(x)[0], decode.blocks("Q4_K", *s, rng)))
    with volta.default_device("cuda"), device_level("bf16"):
        model = decode.model(types.SimpleNamespace(**{**vars(s), "layers": LAYERS}), made)
        step = volta.jit(lambda params, *rest: apply(model.config, params, *rest)[0])
        given = tokens[None], model.caches(1, length), np.array([0]), np.array([length - 1])
        given = tree.map(lambda x: volta.device_put(x, "cuda"), given)
        contenders = {"volta": functools.partial(step, model.params, *given), "jax": other}
        yield {"name": f"{name}, volta's weights in Q4_K", "flops": flops, "seconds": turns(contenders, ready)}


def inference_rows() -> Iterator[Row]:
    for length in PROMPTS:
        yield from prompt_rows(length)
    yield from token_rows()
