"""Which attention kernel a call runs: tiles by what the GPU has room for, rows one by one where there are few."""

from __future__ import annotations

import attrs

from volta.numba_cuda.attention import build_attention, forward_bytes
from volta.numba_cuda.attention_backward import backward_bytes, build_attention_dkv, build_attention_dq
from volta.numba_cuda.attention_rows import THREADS, build_attention_rows, row_blocks
from volta.numba_cuda.attention_tiles import WIDE, AttentionTile
from volta.numba_cuda.ptx import KernelSource, level_of, shared_of
from volta.xla_like.attention import OPERANDS, Arg, AttentionSpec
from volta.xla_like.dot_schedule import item_size
from volta.xla_like.kernels import KernelCall, LibraryKernel, kernel_name

KERNELS = ("attention", "attention_dq", "attention_dkv")

FEW_ROWS = 16
"""Calls of at most this many rows run row by row."""

_FEW_BLOCKS = 132
"""Below this many blocks of threads, smaller ones share the work out better."""

_SHAPES: dict[str, tuple[tuple[int, int, int, tuple[int, ...]], ...]] = {
    "attention": ((64, 8, 8, (4, 2, 1)), (128, 8, 16, (8, 4, 2, 1)), (256, 4, 16, (8, 6, 4, 2)), (512, 2, 16, (8, 4))),
    "attention_dq": ((64, 8, 16, (4, 2, 1)), (128, 4, 16, (12, 8, 6, 4, 2)), (256, 2, 16, (8, 4, 2))),
    "attention_dkv": ((64, 8, 16, (4, 2, 1)), (128, 4, 16, (8, 6, 4, 2)), (256, 2, 16, (8, 4, 2))),
}
"""By the largest head (in words of 4 bytes): a thread's rows, lanes across, and how many warps a block may have."""


@attrs.frozen
class Chosen:
    """A kernel, its grid, the threads of a block and its bytes of shared memory."""

    source: KernelSource
    grid: int
    threads: int
    shared: int


def choose(call: KernelCall, capability: str) -> Chosen:
    """The kernel of an attention call on a GPU of a compute capability."""
    kernel = call.kernel
    assert isinstance(kernel, LibraryKernel)
    spec = attrs.evolve(kernel.spec, vector_bits=512)  # the width of the CPU's registers means nothing here
    word = words_of(call)
    heads, t, s = word[Arg.B] * word[Arg.N], word[Arg.T], word[Arg.S]
    rows = s if kernel.name == "attention_dkv" else t
    stem = kernel_name(LibraryKernel(kernel.name, spec))
    tile = tile_of(kernel.name, spec, rows, heads, in_groups(call, spec), capability) if t and s else None
    if tile is None:
        source = KernelSource(
            f"{stem}_rows", f"{kernel.name} {spec} rows", lambda m, n: build_attention_rows(m, n, kernel.name, spec)
        )
        return Chosen(source, row_blocks(kernel.name, heads, t, s), THREADS, 0)
    return Chosen(tile_source(kernel.name, spec, tile), heads * -(-rows // tile.rows), tile.threads,
                  tile_bytes(kernel.name, spec, tile))  # fmt: skip


def tile_source(kernel: str, spec: AttentionSpec, tile: AttentionTile) -> KernelSource:
    build = {"attention": build_attention, "attention_dq": build_attention_dq, "attention_dkv": build_attention_dkv}
    name = f"{kernel_name(LibraryKernel(kernel, spec))}_{tile.suffix()}"
    return KernelSource(name, f"{kernel} {spec} {tile}", lambda m, n: build[kernel](m, n, spec, tile))


def tile_bytes(kernel: str, spec: AttentionSpec, tile: AttentionTile) -> int:
    return forward_bytes(spec, tile) if kernel == "attention" else backward_bytes(spec, tile)


def tile_of(
    kernel: str, spec: AttentionSpec, rows: int, heads: int, whole: bool, capability: str
) -> AttentionTile | None:
    """The tile for so many rows of so many heads; None: there is none, rows run one by one."""
    if rows <= FEW_ROWS:
        return None
    words = max(spec.head, spec.value_head) * item_size(spec.accumulator) // 4
    copies, room = level_of(capability) >= (8, 0), shared_of(capability)
    for most, rows_each, across, counts in _SHAPES[kernel]:
        fitting = [
            tile
            for tile in (
                AttentionTile(rows_each, across, n, whole, copies, parked=rows_each == 8 and kernel != "attention")
                for n in counts
            )
            if words <= most and tile_bytes(kernel, spec, tile) <= room
        ]
        while len(fitting) > 1:
            tile, smaller = fitting[:2]
            few = heads * -(-rows // tile.rows) < _FEW_BLOCKS
            if not few and rows > smaller.rows:
                break
            fitting.pop(0)
        if fitting:
            return fitting[0]
    return None


def words_of(call: KernelCall) -> dict[Arg, int]:
    """A call's args behind the addresses."""
    return dict(zip((a for a in Arg if a not in OPERANDS), call.sizes, strict=True))


def in_groups(call: KernelCall, spec: AttentionSpec) -> bool:
    """Whether every operand with heads can be copied 16 bytes at a time."""
    item = item_size(spec.dtype)
    if any(width * item % WIDE for width in (spec.head, spec.value_head)):
        return False
    word = words_of(call)
    for arg, access in zip(OPERANDS, call.accesses, strict=True):
        first = {a.name: a for a in Arg}.get(f"{arg.name}_B")
        if access.buffer is None or first is None or arg in (Arg.START, Arg.MASK):
            continue
        if access.offset % WIDE or any(word[Arg(first + i)] % WIDE for i in range(3)):
            return False
    return True
