"""What programs cost in counts, which are the same on every machine: kernels, launches, planned bytes, instructions.

`scripts/baselines.py` keeps them on record, and says what moved. Plans are made for 512-bit registers with products of
bytes, and for an H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
from llvmlite import ir

import volta
import volta.numpy as vnp
from tests.golden.golden_programs import PROGRAMS
from volta import models, nn, optim, random, tree
from volta.models import generation
from volta.numba_cpu import schedule as cpu
from volta.numba_cpu.host_plan import host_plan
from volta.numba_cpu.lower import source_of
from volta.numba_cuda import schedule as cuda
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.device_plan import device_plan
from volta.numba_cuda.launches import every
from volta.testing.transformer import Transformer
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import kernel_name

RECORD = Path(__file__).resolve().parent / "counts.json"

Counts = dict[str, int]


def training_step() -> Any:
    """A step of a transformer by Adam, with its parameters and state donated."""
    model, optimizer = attrs.evolve(Transformer(), layers=2), optim.adam(1e-3)
    params = volta.eval_shape(model.init, volta.random.key(0))
    return model.make_step(optimizer).trace(params, volta.eval_shape(optimizer.init, params), volta.random.key(1))


def _decomposed(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    return volta.jit(f).trace(*(volta.ShapeDtypeStruct(shape, np.float32) for shape in shapes))


def decoder_token() -> Any:
    """A token of a decoder of two layers, with weights of few bits and its caches donated."""
    config = models.Config(256, 256, layers=2, heads=4, key_heads=4, head_size=64, hidden=512)
    model = models.random_decoder(config)
    packed = lambda x: nn.QuantizedArray(np.zeros((x.shape[0], x.shape[1] // 256 * 144), np.uint8), "Q4_K")  # noqa: E731
    params = tree.map(lambda x: packed(x) if x.ndim == 2 else x, model.params)
    kept = np.array([1]), np.array([True]), random.key(0)[None], generation.batched([nn.Sampling()])
    given = params, np.array([1]), model.caches(1, 64), np.array([5]), *kept, np.zeros((1, 256), bool)
    return volta.jit(generation.draw, static_argnums=0, donate_argnums=(3,)).trace(config, *given)


def _traced(name: str) -> Any:
    f, args = PROGRAMS[name]
    return volta.jit(lambda *xs: f(*xs)).trace(*args)


TRACED: Mapping[str, Callable[[], Any]] = {
    **{name: lambda name=name: _traced(name) for name in PROGRAMS},  # type: ignore[misc]
    "training_step": training_step,
    "solve": lambda: _decomposed(vnp.linalg.solve, (200, 200), (200, 1)),
    "eig": lambda: _decomposed(vnp.linalg.eig, (40, 40)),
    "decoder_token": decoder_token,
}
"""Name -> a traced function."""


def counts(name: str) -> Counts:
    """A program's counts on both backends; each distinct kernel is one that is compiled."""
    traced = TRACED[name]()
    plan, program = build_plan(
        traced.jaxpr, donated=traced.donated, scheduler=cpu.Schedule(vector_bits=512), name="counted"
    )
    there, _ = build_plan(traced.jaxpr, donated=traced.donated, scheduler=cuda.Schedule(), name="counted")
    with mock.patch("volta.numba_cpu.dot_schedule.has_byte_products", lambda: True):
        host, device = host_plan(plan, cpu.Schedule(vector_bits=512)), device_plan(there)
    launches = host.all_launches()
    kernels = {kernel_name(x.kernel): x.kernel for launch in launches for x in launch.each()}
    sources = {x.source.name: x.source for x in every(device.launches)}
    with mock.patch("volta.numba_cpu.target.vector_bits", lambda: 512):
        module = ir.Module("counted")
        for kernel in kernels.values():
            source = source_of(kernel)
            source.build(module, source.name)
    return {
        "equations": len(program.eqns),
        "cpu launches": len(launches),
        "cpu kernels": len(kernels),
        "cpu instructions": _instructions(module),
        "cpu peak bytes": plan.peak_live_bytes,
        "cpu arena bytes": plan.arena_bytes,
        "cuda launches": len(list(every(device.launches))),
        "cuda kernels": len(sources),
        "cuda instructions": _instructions(ptx.emit_module(sources.values(), "9.0")),
        "cuda peak bytes": device.peak_live_bytes,
    }


def _instructions(module: ir.Module) -> int:
    """LLVM's instructions as they are emitted, before its passes: so no version of LLVM moves them."""
    return sum(len(block.instructions) for function in module.functions for block in function.blocks)


def moved(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> Iterable[str]:
    """Each count that is another one now, as a line."""
    for name, found in now.items():
        for what, n in found.items():
            old = before.get(name, {}).get(what)
            if old is None:
                yield f"{name}: {what} {n:,} (new)"
            elif old != n:
                yield (
                    f"{name}: {what} {old:,} -> {n:,} ({100 * (n / old - 1):+.1f}%)"
                    if old
                    else f"{name}: {what} 0 -> {n:,}"
                )


__all__ = ["RECORD", "TRACED", "counts", "moved"]
