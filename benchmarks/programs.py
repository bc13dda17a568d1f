"""The programs that are measured, each written once and run by every framework.

A program takes a `Framework` (the names it needs, under one spelling) and plain NumPy data; nothing in it knows which
framework runs it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Tree = Any


@dataclass(frozen=True)
class Framework:
    """One framework under common names. A field is None where the framework has nothing of the kind."""

    name: str
    xp: Any  # its NumPy namespace
    array: Callable[[Any], Any]  # from NumPy data
    softmax: Callable[[Any], Any]  # over the last axis
    gelu: Callable[[Any], Any] | None = None  # the tanh form
    log_softmax: Callable[[Any], Any] | None = None
    attention: Callable[..., Any] | None = None  # of (batch, length, heads, depth) queries, keys, values; is_causal=
    jit: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | None = None
    grad: Callable[..., Any] | None = None
    value_and_grad: Callable[..., Any] | None = None
    lax: Any = None  # its namespace of loops

    def arrays(self, tree: Tree) -> Tree:
        return map_tree(self.array, tree)


def map_tree(f: Callable[..., Any], *trees: Tree) -> Tree:
    """Maps over nested dicts and lists. (Written out because no tree library is common to all frameworks.)"""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tree(f, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(map_tree(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)


def leaves(tree: Tree) -> list[Any]:
    out: list[Any] = []
    map_tree(out.append, tree)
    return out


def wait(result: Tree) -> Tree:
    """Wait until a result is computed. One leaf is enough: one execution finishes as a whole."""
    leaf = result
    while isinstance(leaf, dict | list | tuple):
        leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[-1]
    block = getattr(leaf, "block_until_ready", None)
    if block is not None:
        block()
    return result


# ---------------------------------------------------------------------------------------------- the frameworks


def volta() -> Framework:
    import volta
    import volta.numpy as vnp

    return Framework(
        name="volta",
        xp=vnp,
        array=vnp.asarray,
        softmax=functools.partial(volta.nn.softmax, axis=-1),
        gelu=functools.partial(volta.nn.gelu, approximate=True),
        log_softmax=functools.partial(volta.nn.log_softmax, axis=-1),
        attention=volta.nn.dot_product_attention,
        jit=volta.jit,
        vmap=volta.vmap,
        grad=volta.grad,
        value_and_grad=volta.value_and_grad,
        lax=volta.lax,
    )


def jax() -> Framework:
    import jax
    import jax.numpy as jnp

    return Framework(
        name="jax",
        xp=jnp,
        array=jnp.asarray,
        softmax=functools.partial(jax.nn.softmax, axis=-1),
        gelu=functools.partial(jax.nn.gelu, approximate=True),
        log_softmax=functools.partial(jax.nn.log_softmax, axis=-1),
        attention=jax.nn.dot_product_attention,
        jit=jax.jit,
        vmap=jax.vmap,
        grad=jax.grad,
        value_and_grad=jax.value_and_grad,
        lax=jax.lax,
    )


def torch() -> Framework:
    """PyTorch in its deterministic mode; `torch.compile` is its jit."""
    import torch

    torch.use_deterministic_algorithms(True)
    return Framework(
        name="torch",
        xp=torch,
        array=torch.from_numpy,
        softmax=functools.partial(torch.softmax, dim=-1),
        jit=torch.compile,
        vmap=functools.partial(_torch_vmap, torch.func.vmap),
        grad=torch.func.grad,
    )


def _torch_vmap(vmap: Callable[..., Any], f: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
    return vmap(f, in_dims=in_axes)


def numpy() -> Framework:
    """NumPy has no transforms: its `vmap` is the same code given the whole batch, as its users write it."""

    def softmax(x: Any) -> Any:
        e = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return e / np.sum(e, axis=-1, keepdims=True)

    def gelu(x: Any) -> Any:
        c = np.float32(np.sqrt(2 / np.pi))
        return np.float32(0.5) * x * (1 + np.tanh(c * (x + np.float32(0.044715) * x * x * x)))

    return Framework(name="numpy", xp=np, array=np.asarray, softmax=softmax, gelu=gelu, vmap=lambda f, in_axes: f)


ALL = {"volta": volta, "jax": jax, "torch": torch, "numpy": numpy}


def available(*names: str) -> dict[str, Framework]:
    """The named frameworks that can be imported here, in the order named."""
    found = {}
    for name in names:
        try:
            found[name] = ALL[name]()
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != name:  # installed, but broken: say so
                raise
    return found


# ------------------------------------------------------------------------------------------------ the programs


def layer_norm(fw: Framework, x: Any, gain: Any) -> Any:
    mean = fw.xp.mean(x, axis=-1, keepdims=True)
    d = x - mean
    variance = fw.xp.mean(d * d, axis=-1, keepdims=True)
    return d / fw.xp.sqrt(variance + 1e-5) * gain


def mlp_params(width: int = 256, hidden: int = 512) -> Tree:
    r = np.random.RandomState(0)
    return {
        "w1": r.randn(width, hidden).astype("f4") / np.float32(np.sqrt(width)),
        "b1": r.randn(hidden).astype("f4"),
        "g1": r.randn(hidden).astype("f4"),
        "w2": r.randn(hidden, width).astype("f4") / np.float32(np.sqrt(hidden)),
        "g2": r.randn(width).astype("f4"),
    }


def mlp(fw: Framework, p: Tree, x: Any) -> Any:
    """Two layers with layer norm and tanh; `x` is one example or a batch of them."""
    h = layer_norm(fw, fw.xp.tanh(fw.xp.matmul(x, p["w1"]) + p["b1"]), p["g1"])
    return layer_norm(fw, fw.xp.matmul(h, p["w2"]), p["g2"])


def attention_params(width: int = 64) -> Tree:
    r = np.random.RandomState(1)
    return {name: r.randn(width, width).astype("f4") / np.float32(np.sqrt(width)) for name in ("q", "k", "v", "o")}


def attention(fw: Framework, p: Tree, x: Any) -> Any:
    """Softmax attention; `x` is one sequence (length, width) or a batch of them."""
    q, k, v = (fw.xp.matmul(x, p[name]) for name in "qkv")
    scores = fw.xp.matmul(q, fw.xp.swapaxes(k, -1, -2)) / x.shape[-1] ** 0.5
    return fw.xp.matmul(fw.xp.matmul(fw.softmax(scores), v), p["o"])


@dataclass(frozen=True)
class TransformerConfig:
    vocabulary: int = 256
    width: int = 64
    heads: int = 4
    layers: int = 2
    length: int = 64
    batch: int = 8


SMALL = TransformerConfig()
LARGE = TransformerConfig(width=128, layers=4, length=128, batch=16)


def transformer_data(c: TransformerConfig) -> tuple[Tree, Any, Any]:
    """(parameters, tokens, targets) as NumPy arrays."""
    r = np.random.RandomState(0)

    def weights(*shape: int) -> Any:
        return (r.randn(*shape) * 0.02).astype("f4")

    layers = [
        {
            "ln1": np.ones(c.width, "f4"),
            "ln2": np.ones(c.width, "f4"),
            "wqkv": weights(c.width, 3 * c.width),
            "wo": weights(c.width, c.width),
            "w1": weights(c.width, 4 * c.width),
            "w2": weights(4 * c.width, c.width),
        }
        for _ in range(c.layers)
    ]
    params = {
        "emb": weights(c.vocabulary, c.width),
        "pos": weights(c.length, c.width),
        "layers": layers,
        "lnf": np.ones(c.width, "f4"),
    }
    x, y = (r.randint(0, c.vocabulary, (c.batch, c.length)).astype("i4") for _ in range(2))
    return params, x, y


def transformer_loss(fw: Framework, c: TransformerConfig, p: Tree, x: Any, y: Any) -> Any:
    xp, depth = fw.xp, c.width // c.heads
    h = p["emb"][x] + p["pos"]
    for layer in p["layers"]:
        a = xp.matmul(layer_norm(fw, h, layer["ln1"]), layer["wqkv"])
        a = xp.reshape(a, (c.batch, c.length, 3, c.heads, depth))
        o = fw.attention(a[:, :, 0], a[:, :, 1], a[:, :, 2], is_causal=True)
        o = xp.reshape(o, (c.batch, c.length, c.width))
        h = h + xp.matmul(o, layer["wo"])
        m = fw.gelu(xp.matmul(layer_norm(fw, h, layer["ln2"]), layer["w1"]))
        h = h + xp.matmul(m, layer["w2"])
    logits = xp.matmul(layer_norm(fw, h, p["lnf"]), xp.transpose(p["emb"], (1, 0)))
    picked = xp.take_along_axis(fw.log_softmax(logits), y[..., None], axis=-1)
    return -xp.mean(picked)


def transformer_step(fw: Framework, c: TransformerConfig) -> Callable[..., Any]:
    """(params, m, v, x, y) -> (params, m, v, loss): one step of Adam, not compiled yet."""

    def step(p: Tree, m: Tree, v: Tree, x: Any, y: Any) -> Any:
        loss, g = fw.value_and_grad(lambda p: transformer_loss(fw, c, p, x, y))(p)
        m = map_tree(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = map_tree(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        p = map_tree(lambda p, m, v: p - 1e-3 * m / (fw.xp.sqrt(v) + 1e-8), p, m, v)
        return p, m, v, loss

    return step


def step_arguments(fw: Framework, c: TransformerConfig) -> tuple[Any, ...]:
    params, x, y = transformer_data(c)
    zeros = map_tree(np.zeros_like, params)
    return (*(fw.arrays(tree) for tree in (params, zeros, zeros)), fw.array(x), fw.array(y))
