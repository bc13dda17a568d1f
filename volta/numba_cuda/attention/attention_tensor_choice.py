"""Which attention runs on tensor cores, and how: below strict, for bfloat16 at a precision of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda.attention import attention_choice
from volta.numba_cuda.attention.attention_choice import Chosen
from volta.numba_cuda.attention.attention_tensor_keys import build_dkv, dkv_bytes
from volta.numba_cuda.attention.attention_tensor_queries import build_dq, build_forward, dq_bytes, forward_bytes
from volta.numba_cuda.attention.attention_tensor_specialized import build_specialized
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen.ptx import KernelSource, level_of
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.xla_like.attention import AttentionSpec, TensorSpec
from volta.xla_like.kernels import KernelCall, LibraryKernel, kernel_name

OLDEST = (8, 0)
"""The oldest compute capability whose tensor cores take bfloat16."""


@attrs.frozen
class _Kernel:
    build: Callable[[ir.Module, str, TensorSpec, TensorTile], ir.Function]
    nbytes: Callable[[TensorSpec, TensorTile], int]
    tiles: dict[tuple[str, int], TensorTile]  # by the instruction and the larger head


_KERNELS = {
    "attention_tc": _Kernel(build_forward, forward_bytes, {
        ("mma", 64): TensorTile("mma", 4, 2, 1, 2, kept=True),
        ("mma", 128): TensorTile("mma", 8, 1, 1, 1, kept=True),
        ("wgmma", 64): TensorTile("wgmma", 8, 1, 1, 2),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1, producers=4, stages=3),
    }),
    "attention_dq_tc": _Kernel(build_dq, dq_bytes, {
        ("mma", 64): TensorTile("mma", 4, 1, 1, 3, kept=True),
        ("mma", 128): TensorTile("mma", 4, 1, 2, 2),
        ("wgmma", 64): TensorTile("wgmma", 4, 1, 1, 3),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1),
    }),
    "attention_dkv_tc": _Kernel(build_dkv, dkv_bytes, {
        ("mma", 64): TensorTile("mma", 4, 1, 1, 2, kept=True),
        ("mma", 128): TensorTile("mma", 4, 1, 2, 2),
        ("wgmma", 64): TensorTile("wgmma", 4, 1, 1, 3),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1),
    }),
}  # fmt: skip
"""What was fastest on an H200, of heads of 64 and 128 elements. One tile for each: which one it is may change bits."""

TENSOR_KERNELS = tuple(_KERNELS)


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launch of a call on tensor cores; a GPU without such for it runs the strict kernel, a stronger promise.

    Raises UnsupportedOperationError where there is none, as the operands were rounded from float32.
    """
    op, capability = attention_choice.op_of(call), ctx.capability
    if level_of(capability) < OLDEST:
        spec = op.spec
        assert isinstance(spec, TensorSpec)
        if spec.out != spec.dtype:
            raise UnsupportedOperationError(
                f"{call.describe()} of float32 arrays at precision 'bf16' needs a GPU of compute capability 8.0 or "
                f"newer, not {capability}; leave the precision at None"
            )
        plain = AttentionSpec(*(getattr(spec, x.name) for x in attrs.fields(AttentionSpec)))
        yield from attention_choice.launches(attrs.evolve(call, kernel=attrs.evolve(op, spec=plain)), ctx)
        return
    found = choose(call, capability)
    words = attention_choice.words_of(call)
    yield ctx.launch(found.source, found.grid, found.threads, words, found.shared, alone=True)


def choose(call: KernelCall, capability: str) -> Chosen:
    """The kernel of a call on tensor cores."""
    op = attention_choice.op_of(call)
    name, spec = op.name, op.spec
    assert isinstance(spec, TensorSpec)
    kernel = _KERNELS[name]
    instruction = "wgmma" if capability == "9.0a" else "mma"
    tile = kernel.tiles[instruction, max(spec.head, spec.value_head)]
    tile = attrs.evolve(tile, whole=attention_choice.in_groups(call))
    build = build_specialized if tile.producers else kernel.build
    source = KernelSource(
        f"{kernel_name(LibraryKernel(name, spec))}_{tile.suffix()}", f"{name} {spec} {tile}",
        lambda module, symbol: build(module, symbol, spec, tile),
    )  # fmt: skip
    rows = op.keys if name == "attention_dkv_tc" else op.queries
    return Chosen(source, op.batch * op.heads * -(-rows // tile.rows), tile.threads, kernel.nbytes(spec, tile))
