"""Kernels shared out in other ways, by other tiles and thread groups on grids of other sizes, have the same bits.

On a GPU work is shared out as for one multiprocessor, for those that there are, and for a hundred thousand; on the CPU
among as many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn
from volta.api.autodiff import grad
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.numba_cpu.threads import get_num_threads, set_num_threads
from volta.runtime.context import current_context, execution_context
from volta.runtime.devices import default_device
from volta.testing.data import fill
from volta.verify.checks import Check, Named, Setting, on_device, same

PROCESSORS = (None, 1, 100_000)
THREADS = (1, 2, 7)


def programs(data: Callable[..., Any] = fill) -> Iterator[Named]:
    """Each class of kernels that is shared out in several ways, over data that shows an order of additions.

    Who only looks at the programs says with ``data`` that operands are shapes, say.
    """

    def x(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        return data("ladder", shape, dtype, seed)

    slots = np.random.default_rng(0).integers(0, 300, 5000).astype(np.int32)
    product, highest = (lambda x, w: x @ w), (lambda x, w: vnp.matmul(x, w, precision="highest"))
    yield "map", lambda x: nn.gelu(x) + x, (x(600, 500),)
    yield "map of a transposed operand", lambda x, y: x.T * 2 + y, (x(300, 500), x(500, 300, seed=1))
    yield "rows", lambda x: (nn.softmax(x), nn.layer_norm(x)), (x(700, 300),)
    yield "long rows", lambda x: (vnp.sum(x * x, 1), vnp.argmax(x, 1), vnp.mean(x)), (x(40, 20_000),)
    yield "few long rows", lambda x: (vnp.sum(x, 1), vnp.max(x, 1)), (x(3, 300_000),)
    yield "columns", lambda x: (vnp.sum(x, 0), nn.softmax(x, 0)), (x(6000, 96),)
    yield "few long columns", lambda x: (vnp.sum(x, 0), vnp.argmin(x, 0)), (x(50_000, 12),)
    yield "product", product, (x(300, 1000), x(1000, 500, seed=1))
    yield "product and epilogue", lambda x, w, c: nn.gelu(x @ w + c), (x(300, 520), x(520, 500, seed=1), x(500, seed=2))
    yield "product of transposed operands", lambda x, w: x.T @ w.T, (x(1000, 200), x(130, 1000, seed=1))
    yield "product, highest", highest, (x(200, 600), x(600, 300, seed=1))
    exact = lambda x, w: vnp.matmul(x, w, precision="exact")  # noqa: E731
    yield "product, exact", exact, (x(300, 1040), x(1040, 520, seed=1))
    yield "product, float64", product, (x(200, 600, dtype="float64"), x(600, 100, dtype="float64", seed=1))
    yield "long product", product, (x(300, 9000), x(9000, 130, seed=1))
    yield "long product, highest", highest, (x(100, 9000), x(9000, 130, seed=1))
    yield "long product of few rows", lambda x, w: (x @ w, x[0] @ w), (x(3, 9000), x(9000, 256, seed=1))
    yield "product of few rows", lambda x, w: (x @ w, x[0] @ w), (x(3, 1000), x(1000, 4096, seed=1))
    yield "attention", *_attention(data, 8, 130, 130)
    yield "attention of one token", *_attention(data, 2, 1, 3000)
    yield "scatter", lambda t, u, i: t.at[i].add(u), (x(300, 40), x(5000, 40, seed=1), slots)
    yield "scatter of few columns", lambda t, u, i: t.at[i % 3].add(u), (x(3, 4), x(5000, 4, seed=1), slots)
    yield "sort", lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1)), (x(900, 100),)
    yield "passes of a transform", lambda x: (vnp.fft.rfft(x), vnp.fft.fft(x, axis=0)), (x(500, 384),)
    yield "scan", lambda x: (vnp.cumsum(x, 1), vnp.cumprod(x, 1)), (x(8, 40_000),)


def _attention(data: Callable[..., Any], heads: int, queries: int, keys: int) -> tuple[Callable[..., Any], Any]:
    q = data("normal", (1, queries, heads, 64), "float32", 0)
    k, v = (data("normal", (1, keys, heads, 64), "float32", i) for i in (1, 2))

    def value(q: Any, k: Any, v: Any) -> Any:
        return vnp.sum(nn.dot_product_attention(q, k, v) ** 2)

    return lambda q, k, v: (nn.dot_product_attention(q, k, v), grad(value, (0, 1, 2))(q, k, v)), (q, k, v)


def variants(setting: Setting) -> Iterator[Check]:
    """Each program in every way against the CPU's bits, and on a GPU, that the ways are several."""
    for name, f, args in programs():
        try:
            yield from (_by_threads if setting.device == "cpu" else _by_processors)(name, f, args, setting.device)
        except Exception as error:  # one failure must not hide the others
            yield Check(name, problem=f"{type(error).__name__}: {error}")


def _by_processors(name: str, f: Callable[..., Any], args: tuple[Any, ...], device: str) -> Iterator[Check]:
    want, ways = on_device(f, args, "cpu"), set()
    for processors, got, plan in shared_out(f, args, device):
        ways.add(launched(plan.launches))
        yield same(f"{name}: for {processors or 'its'} multiprocessors", got, want)
    problem = "" if len(ways) > 1 else "the same launches each time: nothing was compared"
    yield Check(f"{name}: ways", problem=problem, figures={"ways": len(ways)})


def shared_out(f: Callable[..., Any], args: Any, device: str) -> Iterator[tuple[int | None, Any, Any]]:
    """A program's results with work shared out for each of `PROCESSORS`, with its plans."""
    with default_device(device):
        args = device_put(args, device)
        for processors in PROCESSORS:
            with execution_context(options=attrs.evolve(current_context().options, processors=processors)):
                compiled = jit(lambda *a: f(*a)).lower(*args).compile()
                yield processors, compiled(*args), compiled.plan


def launched(launches: Any) -> tuple[Any, ...]:
    """What is chosen of launches: kernels, grids, threads, shared memory."""
    return tuple((x.source.name, x.grid, x.threads, x.shared) for x in launches)


def _by_threads(name: str, f: Callable[..., Any], args: tuple[Any, ...], device: str) -> Iterator[Check]:
    before, want = get_num_threads(), on_device(f, args, device)
    try:
        for threads in THREADS:
            set_num_threads(threads)
            yield same(f"{name}: {threads} threads", on_device(f, args, device), want)
    finally:
        set_num_threads(before)
