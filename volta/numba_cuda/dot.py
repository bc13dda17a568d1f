"""Matrix products: which kernel a call runs, and the kernels.

A block computes a tile of the output. Each element is one chain of FMAs in ascending k from +0.0 for each 256 of k, and
these chains' sums are added in ascending order; so whatever is chosen here changes no bit. Elements beyond the edges
are computed from the last row or column and not stored.
"""

from __future__ import annotations

import hashlib

import attrs
from llvmlite import ir

from volta.numba_cuda.dot_fma import FmaNest
from volta.numba_cuda.dot_mma import MmaNest
from volta.numba_cuda.dot_nest import Nest
from volta.numba_cuda.dot_tile import Along, DotVariant, Operand, Tile
from volta.numba_cuda.ptx import KernelSource
from volta.numba_cuda.threads import new_entry
from volta.xla_like.dot_schedule import CHUNK, Arg, DotSpec, item_size
from volta.xla_like.kernels import KernelCall, LibraryKernel


@attrs.frozen
class _Chip:
    """A GPU: multiprocessors, shared memory of a block and of a multiprocessor, asynchronous copies, and the k of
    the best instruction of its float64 tensor cores (0: they do not pay)."""

    processors: int
    block_bytes: int
    processor_bytes: int
    direct: bool
    mma: int


_CHIPS = {
    "7.5": _Chip(68, 64 << 10, 64 << 10, False, 0),
    "8.0": _Chip(108, 163 << 10, 164 << 10, True, 4),
    "8.6": _Chip(84, 99 << 10, 100 << 10, True, 0),
    "8.9": _Chip(128, 99 << 10, 100 << 10, True, 0),
    "9.0": _Chip(132, 227 << 10, 228 << 10, True, 8),
}

_FMA = {
    Tile(128, 128, 16, 8, 8, stages=3, blocks=1): 49,
    Tile(128, 128, 16, 8, 8, stages=2, blocks=1): 47,
    Tile(64, 128, 16, 8, 8, stages=2, blocks=3): 48,
    Tile(64, 64, 16, 8, 8, stages=2, blocks=6): 43,
    Tile(32, 64, 16, 4, 4, stages=2, blocks=4): 25,
    Tile(16, 64, 16, 4, 4, stages=2, blocks=8): 20,
}
_FMA_LONG = {Tile(64, 64, 8, 4, 4, stages=2, blocks=2): 20, Tile(32, 32, 8, 4, 4, stages=2, blocks=4): 14}
_MMA = {
    Tile(64, 128, 16, 8, 8, stages=3, blocks=2, mma=8): 58,
    Tile(128, 128, 16, 8, 8, stages=3, blocks=1, mma=8): 57,
    Tile(64, 64, 16, 8, 8, stages=3, blocks=4, mma=8): 50,
    Tile(32, 64, 16, 4, 4, stages=3, blocks=4, mma=8): 40,
}
_MMA_LONG = {
    Tile(128, 128, 8, 8, 8, stages=4, blocks=1, mma=8): 54,
    Tile(64, 128, 8, 8, 8, stages=3, blocks=2, mma=8): 49,
    Tile(64, 64, 8, 8, 8, stages=3, blocks=2, mma=8): 43,
    Tile(32, 64, 8, 4, 4, stages=3, blocks=4, mma=8): 35,
}
"""Tiles, and about how many TFLOP/s an H200 makes of them where there is work for all of it."""


def build_dot(module: ir.Module, name: str, spec: DotSpec, variant: DotVariant) -> ir.Function:
    """Add a product kernel; its args are those of the CPU's (`volta.xla_like.dot_schedule.Arg`)."""
    function, b = new_entry(module, name, variant.tile.threads, variant.tile.blocks)
    _engine(variant.tile)(b, spec, variant, function).emit()
    b.ret_void()
    return function


def _engine(tile: Tile) -> type[Nest]:
    return MmaNest if tile.mma else FmaNest


def shared_bytes(spec: DotSpec, v: DotVariant) -> int:
    """Dynamic shared memory of a block: the stages, and the totals of long products."""
    layout, t = _engine(v.tile).layout, v.tile
    stage = layout(t, v.lhs, t.rows).bytes + layout(t, v.rhs, t.cols).bytes
    return t.stages * stage + (0 if v.short else t.rows * t.cols * item_size(spec.accumulator))


def blocks_of(tile: Tile, m: int, n: int, batches: int) -> int:
    return batches * -(-m // tile.rows) * -(-n // tile.cols)


def launch_of(call: KernelCall, capability: str) -> tuple[KernelSource, int, int, int]:
    """A product's kernel, its blocks, the threads of one, and their dynamic shared memory."""
    assert isinstance(call.kernel, LibraryKernel)
    spec = attrs.evolve(call.kernel.spec, vector_bits=512)  # the width of the CPU's registers means nothing here
    sizes = _Sizes(call)
    v = choose(spec, sizes, capability)
    text = f"dot {spec} {v}"
    name = f"volta_dot_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    source = KernelSource(name, text, lambda module, symbol: build_dot(module, symbol, spec, v))
    return source, blocks_of(v.tile, sizes.m, sizes.n, sizes.batches), v.tile.threads, shared_bytes(spec, v)


class _Sizes:
    """The sizes and strides of a call, by `Arg`."""

    def __init__(self, call: KernelCall) -> None:
        self.call = call
        self.m, self.n, self.k = self[Arg.M], self[Arg.N], self[Arg.K]
        self.batches = call.tasks // (-(-self.m // self[Arg.TASK_ROWS]) * -(-self.n // self[Arg.TASK_COLS]))

    def __getitem__(self, which: Arg) -> int:
        return self.call.sizes[which - Arg.BATCH1]

    def aligned(self, nbytes: int, operand: Arg, *which: Arg) -> bool:
        """Whether an operand begins at multiples of `nbytes`, in all items of the batch, and these strides are such."""
        inner = self[Arg.BATCH1]
        batch0 = {Arg.LHS: Arg.LHS_BATCH0, Arg.RHS: Arg.RHS_BATCH0, Arg.OUT: Arg.OUT_BATCH0}[operand]
        steps = [self[w] for w in which] + [self.call.accesses[operand].offset]
        steps += [self[batch0]] * (self.batches > inner) + [self[Arg(batch0 + 1)]] * (inner > 1)
        return not any(step % nbytes for step in steps)


def choose(spec: DotSpec, sizes: _Sizes, capability: str) -> DotVariant:
    """The tile that should finish first, and how the operands get into it."""
    chip = _CHIPS[capability.removesuffix("a")]
    long = item_size(spec.accumulator) == 8
    if chip.mma and spec.accumulator == "float64":
        table = _MMA_LONG if "float64" in (spec.lhs, spec.rhs) else _MMA
        tiles = {attrs.evolve(tile, mma=chip.mma): rate for tile, rate in table.items()}
    else:
        tiles = _FMA_LONG if long else _FMA
    found: tuple[float, DotVariant] | None = None
    for tile, rate in tiles.items():
        v = _variant(spec, sizes, chip, tile)
        nbytes = shared_bytes(spec, v)
        if nbytes > chip.block_bytes:
            continue
        blocks = blocks_of(tile, sizes.m, sizes.n, sizes.batches)
        held = max(1, min(tile.blocks, chip.processor_bytes // (nbytes + 1024)))
        waves, rest = divmod(blocks, held * chip.processors)
        cost = (waves * held + -(-rest // chip.processors)) * tile.rows * tile.cols / rate
        if found is None or cost < found[0]:
            found = cost, v
    assert found is not None, (spec, capability)
    return found[1]


def _variant(spec: DotSpec, sizes: _Sizes, chip: _Chip, tile: Tile) -> DotVariant:
    lhs = _operand(spec, spec.lhs, sizes, chip, tile, tile.rows, Arg.LHS, Arg.M, Arg.LHS_M, Arg.LHS_K)
    rhs = _operand(spec, spec.rhs, sizes, chip, tile, tile.cols, Arg.RHS, Arg.N, Arg.RHS_N, Arg.RHS_K)
    each = (2 if tile.mma else 4) * item_size(spec.out)
    wide = item_size(spec.out) >= 4 and sizes.n % (2 if tile.mma else 4) == 0
    wide = wide and sizes.aligned(min(16, each), Arg.OUT, Arg.OUT_M)
    return DotVariant(tile, lhs, rhs, sizes.k % tile.depth == 0, sizes.k <= CHUNK, wide)


def _operand(
    spec: DotSpec, dtype: str, sizes: _Sizes, chip: _Chip, tile: Tile, length: int, operand: Arg, size: Arg, own: Arg,
    k: Arg,
) -> Operand:  # fmt: skip
    nbytes = item_size(dtype)
    along: Along = "k" if sizes[k] == nbytes else "line" if sizes[own] == nbytes else ""
    if along == "k" and sizes[own] == nbytes and sizes.k == 1:
        along = "line"
    staged = spec.accumulator
    if tile.mma and dtype != "float64":
        staged = "float32"
    direct = chip.direct and nbytes >= 4 and dtype.removeprefix("u") == staged
    most = min(16 // nbytes, tile.depth * length // tile.threads)
    width = 1
    if along and sizes.aligned(most * nbytes, operand, own if along == "k" else k):
        if along == "line":
            width = most if sizes[size] % most == 0 else 1
        elif tile.mma if direct else sizes.k % most == 0:
            width = most  # direct copies that turn an operand copy element by element
    return Operand(along, width, dtype, staged, direct)
