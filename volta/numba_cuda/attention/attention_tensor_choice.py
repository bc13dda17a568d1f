"""Which attention runs on tensor cores, and how: below strict, for bfloat16 at a precision of theirs."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.emit.attention_args import Arg
from volta.numba_cuda.attention.attention_choice import Chosen, in_groups, words_of
from volta.numba_cuda.attention.attention_tensor_fed import build_fed
from volta.numba_cuda.attention.attention_tensor_keys import build_dkv, dkv_bytes
from volta.numba_cuda.attention.attention_tensor_queries import build_dq, build_forward, dq_bytes, forward_bytes
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen.ptx import KernelSource, level_of
from volta.xla_like.attention import AttentionSpec, TensorSpec
from volta.xla_like.kernels import KernelCall, LibraryKernel, kernel_name

OLDEST = (8, 0)
"""The oldest compute capability whose tensor cores take bfloat16."""


@attrs.frozen
class _Kernel:
    plain: str  # the kernel of the same primitive on ordinary units
    build: Callable[[ir.Module, str, TensorSpec, TensorTile], ir.Function]
    nbytes: Callable[[TensorSpec, TensorTile], int]
    tiles: dict[tuple[str, int], TensorTile]  # by the instruction and the larger head


_KERNELS = {
    "attention_tc": _Kernel("attention", build_forward, forward_bytes, {
        ("mma", 64): TensorTile("mma", 4, 2, 1, 2, kept=True),
        ("mma", 128): TensorTile("mma", 8, 1, 1, 1, kept=True),
        ("wgmma", 64): TensorTile("wgmma", 8, 1, 1, 2),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1, feeders=4, slots=3),
    }),
    "attention_dq_tc": _Kernel("attention_dq", build_dq, dq_bytes, {
        ("mma", 64): TensorTile("mma", 4, 1, 1, 3, kept=True),
        ("mma", 128): TensorTile("mma", 4, 1, 2, 2),
        ("wgmma", 64): TensorTile("wgmma", 4, 1, 1, 3),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1),
    }),
    "attention_dkv_tc": _Kernel("attention_dkv", build_dkv, dkv_bytes, {
        ("mma", 64): TensorTile("mma", 4, 1, 1, 2, kept=True),
        ("mma", 128): TensorTile("mma", 4, 1, 2, 2),
        ("wgmma", 64): TensorTile("wgmma", 4, 1, 1, 3),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1),
    }),
}  # fmt: skip
"""What was fastest on an H200, of heads of 64 and 128 elements. One tile for each: which one it is may change bits."""

TENSOR_KERNELS = tuple(_KERNELS)


def settled(call: KernelCall, capability: str) -> KernelCall:
    """A call as it runs on a GPU: one without tensor cores for it runs the strict kernel, a stronger promise.

    Raises UnsupportedOperationError where there is none, as the operands were rounded from float32.
    """
    kernel = call.kernel
    if not isinstance(kernel, LibraryKernel) or kernel.name not in _KERNELS or level_of(capability) >= OLDEST:
        return call
    spec: TensorSpec = kernel.spec
    if spec.out != spec.dtype:
        raise UnsupportedOperationError(
            f"{call.describe()} of float32 arrays at precision 'bf16' needs a GPU of compute capability 8.0 or newer, "
            f"not {capability}; leave the precision at None"
        )
    plain = AttentionSpec(*(getattr(spec, x.name) for x in attrs.fields(AttentionSpec)))
    return attrs.evolve(call, kernel=LibraryKernel(_KERNELS[kernel.name].plain, plain))


def choose(call: KernelCall, capability: str) -> Chosen:
    """The kernel of a settled call on tensor cores."""
    assert isinstance(call.kernel, LibraryKernel)
    name, word = call.kernel.name, words_of(call)
    spec = call.kernel.spec
    kernel = _KERNELS[name]
    instruction = "wgmma" if capability == "9.0a" else "mma"
    tile = kernel.tiles[instruction, max(spec.head, spec.value_head)]
    tile = attrs.evolve(tile, whole=in_groups(call, spec))
    build = build_fed if tile.feeders else kernel.build
    source = KernelSource(
        f"{kernel_name(LibraryKernel(name, spec))}_{tile.suffix()}", f"{name} {spec} {tile}",
        lambda module, symbol: build(module, symbol, spec, tile),
    )  # fmt: skip
    rows = word[Arg.S if name == "attention_dkv_tc" else Arg.T]
    grid = word[Arg.B] * word[Arg.N] * -(-rows // tile.rows)
    return Chosen(source, grid, tile.threads, kernel.nbytes(spec, tile))
