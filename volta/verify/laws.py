"""The laws on the device: compiling, batching, recomputing, donating, repeating and threads never change a bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn
from volta.api.autodiff import grad
from volta.api.checkpointing import checkpoint
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.api.vmap import vmap
from volta.core import pytrees
from volta.runtime import devices
from volta.runtime.context import execution_context
from volta.runtime.devices import default_device
from volta.testing.data import fill
from volta.verify.checks import Check, Setting, same
from volta.xla_like.compile import CompileOptions

PROGRAMS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x, w: vnp.tanh(x) * 2 + nn.gelu(x) / (1 + x * x),
    "reductions": lambda x, w: (vnp.sum(x), vnp.max(x, 0), vnp.argmin(x, 1), vnp.mean(x, 0)),
    "norms": lambda x, w: nn.layer_norm(nn.softmax(x, -1) + nn.softmax(x, 0)),
    "products": lambda x, w: nn.gelu(x @ w) @ w.T + x,
    "gather and scatter": lambda x, w: x.at[vnp.arange(64) % 5].add(w[:, :64] * 3)[::2],
    "sort and scan": lambda x, w: (vnp.sort(x, 1), vnp.cumsum(x, 0), vnp.argsort(x, 0)),
    "attention": lambda x, w: nn.dot_product_attention(
        *(y.reshape(1, 66, 4, 16) for y in (x, x * 2, x + 1)), is_causal=True
    ),
    "gradient": lambda x, w: grad(lambda x, w: vnp.sum(nn.log_softmax(nn.gelu(x @ w)) ** 2), (0, 1))(x, w),
}
_KINDS = ("normal", "ladder", "specials")
_OFF = attrs.evolve(
    CompileOptions(), **{f.name: False for f in attrs.fields(CompileOptions) if isinstance(f.default, bool)}
)


def _plain(tree: Any) -> Any:
    return pytrees.map(np.asarray, tree)


def laws(setting: Setting) -> Iterator[Check]:
    """Laws 1 to 5 of docs/determinism.md on fixed programs."""
    for name, f in PROGRAMS.items():
        for kind in _KINDS if setting.full else _KINDS[:1]:
            args = device_put((fill(kind, (66, 64)), fill(kind, (64, 66), seed=1)), setting.device)
            try:
                yield from _laws_of(f"{name} {kind}", f, args, setting)
            except Exception as error:  # one failure must not hide the others
                yield Check(f"{name} {kind}", problem=f"{type(error).__name__}: {error}")


def _laws_of(name: str, f: Callable[..., Any], args: Any, setting: Setting) -> Iterator[Check]:
    with default_device(setting.device):
        want = _plain(jit(f)(*args))
        yield same(f"{name}: twice", _plain(jit(f)(*args)), want)
        yield same(f"{name}: eager", _plain(f(*args)), want)
        with execution_context(options=_OFF):
            yield same(f"{name}: without passes", _plain(jit(lambda *a: f(*a))(*args)), want)
        yield same(f"{name}: recomputed", _plain(jit(checkpoint(f))(*args)), want)
        stacked = [vnp.stack([x * 0.5, x, x + 1]) for x in args]
        batched = _plain(jit(vmap(f))(*stacked))
        yield same(f"{name}: batched", pytrees.map(lambda x: x[1], batched), want)
        given = [x + 0 for x in args]
        alone = _plain(jit(f)(*given))
        yield same(f"{name}: donated", _plain(jit(lambda *a: f(*a), donate_argnums=(0, 1))(*given)), alone)
    compiled = jit(f)

    def call(_: int) -> Any:
        with default_device(setting.device):
            return _plain(compiled(*args))

    if setting.device != "cpu":
        with ExitStack() as streams:
            outs = []
            for _ in range(3):
                streams.enter_context(devices.stream(setting.device))
                outs.append(compiled(*args))
        for i, out in enumerate(outs):
            yield same(f"{name}: stream {i}", _plain(out), want)
    with ThreadPoolExecutor(4) as threads:
        for i, got in enumerate(threads.map(call, range(8))):
            yield same(f"{name}: thread {i}", got, want)
