"""Which attention runs on tensor cores, and how: below strict, for bfloat16 at a precision of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.emit.args import Word
from volta.numba_cuda.attention import attention_choice
from volta.numba_cuda.attention.attention_choice import Chosen
from volta.numba_cuda.attention.attention_layout import WIDE
from volta.numba_cuda.attention.attention_tensor_keys import build_dkv, dkv_bytes
from volta.numba_cuda.attention.attention_tensor_pipeline import MAPS
from volta.numba_cuda.attention.attention_tensor_queries import build_dq, build_forward, dq_bytes, forward_bytes
from volta.numba_cuda.attention.attention_tensor_specialized import (
    build_specialized,
    build_specialized_dq,
    specialized_bytes,
    specialized_dq_bytes,
)
from volta.numba_cuda.attention.attention_tensor_specialized_keys import build_specialized_dkv, specialized_dkv_bytes
from volta.numba_cuda.attention.attention_tensor_tile import TensorTile
from volta.numba_cuda.codegen.ptx import KernelSource, level_of
from volta.numba_cuda.codegen.ptx_tensor_map import map_words
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.processors import H200, filling
from volta.xla_like.attention import BLOCK, Array, Attention, AttentionSpec, TensorSpec
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel, kernel_name

OLDEST = (8, 0)
"""The oldest compute capability whose tensor cores take bfloat16."""


@attrs.frozen
class _Kernel:
    """How a kernel is built and what shared memory it takes; ``tiles`` by the instruction and the larger head.

    ``mapped``: the operands that it has maps of, in their order.
    """

    build: Callable[[ir.Module, str, TensorSpec, TensorTile], ir.Function]
    nbytes: Callable[[TensorSpec, TensorTile], int]
    tiles: dict[tuple[str, int], TensorTile]
    mapped: tuple[Array, ...] = ()


_KERNELS = {
    "attention_tc": _Kernel(build_forward, forward_bytes, {
        ("mma", 64): TensorTile("mma", 4, 2, 1, 2, kept=True),
        ("mma", 128): TensorTile("mma", 8, 1, 1, 1, kept=True),
        ("wgmma", 64): TensorTile("wgmma", 8, 1, 1, 2),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1),
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

_MAPPED = {
    "attention_tc": _Kernel(build_specialized, specialized_bytes, {
        ("wgmma", 64): TensorTile("wgmma", 12, 1, 1, 1, kept=True, producers=4, stages=6, skips=True),
        ("wgmma", 128): TensorTile("wgmma", 12, 1, 1, 1, producers=4, stages=4, skips=True),
    }, (Array.Q, Array.K, Array.V)),
    "attention_dq_tc": _Kernel(build_specialized_dq, specialized_dq_bytes, {
        ("wgmma", 64): TensorTile("wgmma", 12, 1, 1, 1, producers=4, stages=6),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1, producers=4, stages=4),
    }, (Array.Q, Array.DO, Array.K, Array.V)),
    "attention_dkv_tc": _Kernel(build_specialized_dkv, specialized_dkv_bytes, {
        ("wgmma", 64): TensorTile("wgmma", 8, 1, 1, 1, producers=4, stages=4),
        ("wgmma", 128): TensorTile("wgmma", 8, 1, 1, 1, producers=4, stages=3),
    }, (Array.K, Array.V, Array.Q, Array.DO)),
}  # fmt: skip
"""The same where the copy engine loads the operands."""

_OF_FEW_ROWS = TensorTile("wgmma", 8, 1, 1, 1, kept=True, producers=4, stages=5, skips=True)
"""For a result of few rows, whose heads have 128 elements."""

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
    if found.mapped:
        words += maps_of(call, len(words))
    yield ctx.launch(
        found.source, found.grid, found.threads, words, found.shared, alone=True, mapped=found.mapped
    )  # fmt: skip


def choose(call: KernelCall, capability: str) -> Chosen:
    """The kernel of a call on tensor cores. That its operands have maps changes no bit."""
    op = attention_choice.op_of(call)
    name, spec = op.name, op.spec
    assert isinstance(spec, TensorSpec)
    instruction = "wgmma" if capability == "9.0a" else "mma"
    whole = attention_choice.in_groups(call)
    width, few = max(spec.head, spec.value_head), _few_rows(op)
    mapped = instruction == "wgmma" and name in _MAPPED and whole and not (few and width <= 64) and _have_maps(call)
    kernel = (_MAPPED if mapped else _KERNELS)[name]
    tile = _OF_FEW_ROWS if mapped and few else kernel.tiles[instruction, width]
    tile = attrs.evolve(tile, whole=whole)
    source = KernelSource(
        f"{kernel_name(LibraryKernel(name, spec))}_{tile.suffix()}", f"{name} {spec} {tile}",
        lambda module, symbol: kernel.build(module, symbol, spec, tile),
    )  # fmt: skip
    rows = op.keys if name == "attention_dkv_tc" else op.queries
    tiles = op.batch * op.heads * -(-rows // tile.rows)
    cut = name != "attention_dkv_tc" and not spec.causal  # the last tiles, into their groups' rows
    parts = tile.warps // tile.together if cut else 1
    grid = min(tiles * parts, tile.resident * filling(H200)) if mapped else tiles
    return Chosen(source, grid, tile.threads, kernel.nbytes(spec, tile), mapped)


def _few_rows(op: Attention) -> bool:
    """Whether a result's tiles of 192 rows are too few for blocks that take one after another. On an H200, 96 heads of
    64 elements and 1,024 rows, causal: 50 us, 45 by the plain kernel; 128 heads of 128: 121 us, 118 by tiles of 128
    rows, and 32 heads of 4,096 rows 256 and 263."""
    return op.name == "attention_tc" and op.queries < 2048


@attrs.frozen
class _Mapped:
    """An operand that has a map: where it lies, a row's elements; sizes and strides but for those, innermost first."""

    access: Access
    width: int
    sizes: list[int]
    strides: list[int]


def _mapped(call: KernelCall) -> Iterator[_Mapped]:
    op = attention_choice.op_of(call)
    for array in _MAPPED[op.name].mapped:
        keys = array in (Array.K, Array.V)
        sizes = [op.keys, op.heads // op.group] if keys else [op.queries, op.heads]
        width = op.spec.head if array in (Array.Q, Array.K) else op.spec.value_head
        access = call.accesses[array]
        yield _Mapped(access, width, [*sizes, op.batch], list(reversed(access.strides)))


def _have_maps(call: KernelCall) -> bool:
    """Whether tensor maps can describe the operands: rows one behind the other, and no step negative."""
    return all(x.strides[0] > 0 and min(x.strides) >= 0 for x in _mapped(call))


def maps_of(call: KernelCall, before: int) -> list[Word]:
    """The operands' tensor maps, as words behind so many of a launch: they begin at `MAPS`."""
    words: list[Word] = [0] * (MAPS - before)
    for x in _mapped(call):
        steps = [(n, step) if step else (1, WIDE) for n, step in zip(x.sizes, x.strides, strict=True)]
        found = map_words(2, [x.width, *(n for n, _ in steps)], [step for _, step in steps], BLOCK)
        words += [x.access, *found[1:]]  # the first word is the address
    return words
