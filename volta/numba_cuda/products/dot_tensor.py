"""Matrix products on tensor cores, for levels below strict.

An element's sum goes through its instructions in ascending k, 128 bytes of operands at a time with zeros behind the
last k, whatever the sizes of the other dimensions: so a row of a batch has the bits that it has alone. How one
instruction adds is the hardware's: the bits are those of one architecture.
"""

from __future__ import annotations

from typing import Literal

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.emit.builder import HALF_DTYPES
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I16, I32, I64, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.products.dot_tensor_load import LINE, PIECE, Loader, Operand, line_along
from volta.numba_cuda.products.dot_tensor_tile import GroupTile, Place, WarpTile
from volta.numba_cuda.target import ptx_ops, ptx_round, ptx_wgmma
from volta.numba_cuda.target.ptx import CAPABILITIES, KernelSource, level_of
from volta.numba_cuda.target.threads import (
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    own_args,
    thread_index,
)
from volta.xla_like.dot_schedule import Arg, DotSpec, item_size
from volta.xla_like.kernels import KernelCall, LibraryKernel

_RASTER = 8
"""Rows of tiles whose blocks run side by side: they share what they read in the second-level cache."""

_ALIGN = 1024
"""The swizzle goes by the bits of an address: tiles begin at multiples of this."""


_PROCESSORS = 132
"""Multiprocessors that tiles are chosen for."""


@attrs.frozen
class Shape:
    """A block's tile: rows, columns, tiles of k in shared memory, and blocks of a multiprocessor.

    Times in microseconds, measured on an H200: of a tile of k where a block has the multiprocessor for itself and where
    all that fit are there (of all of them together), and what a block takes besides.
    """

    rows: int
    cols: int
    stages: int
    resident: int
    alone: float
    together: float
    besides: float

    def time(self, tiles: int, depth: int) -> float:
        """What so many tiles take, each so many tiles of k deep."""
        rounds, rest = divmod(-(-tiles // _PROCESSORS), self.resident)
        last = depth * max(self.alone, self.together * rest / self.resident) + self.besides if rest else 0.0
        return rounds * (depth * self.together + self.besides) + last


_SHAPES: dict[str, tuple[Shape, ...]] = {
    "wgmma": (
        Shape(128, 256, 4, 1, 0.95, 0.95, 4.0), Shape(128, 192, 5, 1, 0.78, 0.78, 3.0),
        Shape(128, 128, 3, 2, 0.57, 1.15, 2.0), Shape(128, 64, 3, 3, 0.37, 1.11, 1.5),
        Shape(64, 64, 4, 3, 0.30, 0.66, 1.0),
    ),
    "mma": (Shape(128, 128, 3, 2, 0.9, 1.7, 2.0), Shape(64, 64, 3, 2, 0.4, 0.7, 1.5)),
    "staged": (Shape(128, 128, 2, 1, 1.7, 1.7, 3.0), Shape(64, 64, 2, 1, 0.8, 0.8, 2.0)),
}  # fmt: skip


@attrs.frozen
class TensorVariant:
    """How a product runs: the instruction, what it multiplies, a block's tile, tiles of k in shared memory, loads."""

    instruction: Literal["mma", "wgmma"]
    kind: str
    rows: int
    cols: int
    stages: int
    lhs: Operand
    rhs: Operand
    store: Literal["pieces", "pairs", "single"]  # the output takes 16 bytes, two columns, or one at once
    resident: int = 1  # blocks that a multiprocessor must have room for: bounds the registers

    @property
    def asynchronous(self) -> bool:
        return self.lhs.load == self.rhs.load == "async"

    @property
    def threads(self) -> int:
        return _TILES[self.instruction].threads(self.rows, self.cols)

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.cols) * LINE

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * self.stage_bytes + _ALIGN

    def suffix(self) -> str:
        shape = f"{self.instruction}_{self.kind}_{self.rows}x{self.cols}x{self.stages}x{self.resident}"
        return f"{shape}_{self.lhs.suffix()}_{self.rhs.suffix()}_{self.store}"


OLDEST = (8, 0)
"""The oldest compute capability whose tensor cores take these precisions."""

_TILES: dict[str, type[GroupTile] | type[WarpTile]] = {"wgmma": GroupTile, "mma": WarpTile}


def launch_of(call: KernelCall, capability: str) -> tuple[KernelSource, int, TensorVariant]:
    """The kernel of a call on tensor cores, its blocks, and how it runs, for a GPU of this compute capability.

    Raises UnsupportedOperationError where the GPU has no tensor cores for it.
    """
    assert isinstance(call.kernel, LibraryKernel)
    spec: DotSpec = call.kernel.spec
    if level_of(capability) < OLDEST:
        newer = " ".join(c for c in CAPABILITIES if level_of(c) >= OLDEST and not c.endswith("a"))
        raise UnsupportedOperationError(
            f"{call.describe()} at precision {spec.precision!r} needs a GPU of compute capability 8.0 or newer, not "
            f"{capability}; leave the precision at None, or compile for newer GPUs only (volta offline: --capability "
            f"{newer})"
        )
    variant = choose(spec, call, capability)
    m, n = (call.sizes[which - Arg.BATCH1] for which in (Arg.M, Arg.N))
    name = f"dot_tc_{spec.lhs}_{spec.out}_{variant.suffix()}"
    source = KernelSource(
        name, f"dot_tc {spec.lhs} {spec.out} {variant}", lambda module, s: build_tensor_dot(module, s, spec, variant)
    )
    return source, call.tasks * -(-m // variant.rows) * -(-n // variant.cols), variant


def choose(spec: DotSpec, call: KernelCall, capability: str) -> TensorVariant:
    """The kernel for a call. Nothing that is chosen here changes a bit."""
    arg = {which: call.sizes[which - Arg.BATCH1] for which in Arg if which >= Arg.BATCH1}
    # float32 operands are rounded to tf32 when they come here (`round_operands`); doing it again changes nothing
    kind = spec.lhs if item_size(spec.lhs) == 2 else {"bf16": "bfloat16", "tf32": "tf32"}[spec.precision]
    offsets = [access.offset for access in call.accesses[:3]]
    lhs = _operand(
        spec.lhs, (arg[Arg.LHS_BATCH0], arg[Arg.LHS_BATCH1], offsets[0]), arg[Arg.LHS_M],
        arg[Arg.LHS_K],
    )  # fmt: skip
    rhs = _operand(
        spec.rhs, (arg[Arg.RHS_BATCH0], arg[Arg.RHS_BATCH1], offsets[1]), arg[Arg.RHS_N],
        arg[Arg.RHS_K],
    )  # fmt: skip
    if not lhs.load == rhs.load == "async":
        lhs, rhs = (_through_registers(x, arg[size], arg[Arg.K]) for x, size in ((lhs, Arg.M), (rhs, Arg.N)))
    steps = (arg[Arg.OUT_BATCH0], arg[Arg.OUT_BATCH1], arg[Arg.OUT_M], offsets[2])
    store: Literal["pieces", "pairs", "single"] = "single"
    if arg[Arg.N] % 2 == 0 and not any(step % (2 * item_size(spec.out)) for step in steps):
        pieces = item_size(spec.out) == 2 and arg[Arg.N] % 8 == 0 and not any(step % PIECE for step in steps)
        store = "pieces" if pieces else "pairs"
    instruction: Literal["mma", "wgmma"] = "wgmma" if capability == "9.0a" else "mma"
    depth = -(-arg[Arg.K] * (4 if kind == "tf32" else 2) // LINE)

    def time(shape: Shape) -> float:
        tiles = call.tasks * -(-arg[Arg.M] // shape.rows) * -(-arg[Arg.N] // shape.cols)
        return shape.time(tiles, depth)

    best = min(_SHAPES["staged" if lhs.load != "async" else instruction], key=time)
    return TensorVariant(instruction, kind, best.rows, best.cols, best.stages, lhs, rhs, store, best.resident)


def _operand(dtype: str, steps: tuple[int, ...], stride: int, k_stride: int) -> Operand:
    """How an operand is brought; `steps` are further distances in bytes between its rows, columns or items."""
    item = item_size(dtype)
    along: Literal["k", "mn"] = "k" if k_stride == item else "mn"
    inner, outer = (k_stride, stride) if along == "k" else (stride, k_stride)
    pieces = inner == item and not any(step % PIECE for step in (*steps, outer))
    if not pieces:
        return Operand(dtype, along, "single")
    if item == 4 and along == "mn":
        return Operand(dtype, along, "whole")  # to lie along k in shared memory it has to be turned
    return Operand(dtype, along, "async")


def _through_registers(operand: Operand, size: int, k: int) -> Operand:
    """The same operand with loads that convert, and that read no byte beyond its end."""
    neighbours = k if operand.along == "k" else size
    whole = operand.load != "single" and neighbours % (PIECE // item_size(operand.dtype)) == 0
    return attrs.evolve(operand, load="whole" if whole else "single")


def build_tensor_dot(module: ir.Module, name: str, spec: DotSpec, variant: TensorVariant) -> ir.Function:
    """Add a kernel; its args are those of `volta.xla_like.dot_schedule.Arg`."""
    function, b = new_entry(module, name, variant.threads)
    note = module.add_metadata([module.globals[name], "minctasm", I32(variant.resident)])
    module.add_named_metadata("nvvm.annotations").add(note)
    _Product(module, b, spec, variant, function).emit()
    b.ret_void()
    return function


class _Product:
    def __init__(
        self, module: ir.Module, b: ir.IRBuilder, spec: DotSpec, variant: TensorVariant, function: ir.Function
    ) -> None:
        self.b, self.spec, self.v = b, spec, variant
        self.args = Args(b, own_args(b, function.args[0]))
        self.thread = thread_index(b)
        self.depth = I64(LINE // (4 if variant.kind == "tf32" else 2))
        along = line_along(variant.lhs, variant.kind), line_along(variant.rhs, variant.kind)
        self.tile = _TILES[variant.instruction](b, variant.kind, along, self.thread, variant.rows, variant.cols)
        self.shared = _aligned(b, dynamic_shared(module, b))

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.v
        item, row, col = self._place()
        item, inner = b.trunc(item, I32), b.trunc(a.BATCH1, I32)
        b0, b1 = b.zext(b.udiv(item, inner), I64), b.zext(b.urem(item, inner), I64)
        lhs = at(b, device_pointer(b, a.LHS), (b0, a.LHS_BATCH0), (b1, a.LHS_BATCH1))
        rhs = at(b, device_pointer(b, a.RHS), (b0, a.RHS_BATCH0), (b1, a.RHS_BATCH1))
        out = at(b, device_pointer(b, a.OUT), (b0, a.OUT_BATCH0), (b1, a.OUT_BATCH1))
        loaders = (
            Loader(b, v.lhs, v.kind, v.rows, v.threads, self.thread, lhs, row, a.M, a.LHS_M, a.K, a.LHS_K),
            Loader(b, v.rhs, v.kind, v.cols, v.threads, self.thread, rhs, col, a.N, a.RHS_N, a.K, a.RHS_K),
        )
        zeros = [ir.Constant(ir.FloatType(), 0.0)] * (v.rows * v.cols // v.threads)
        sums = self._streamed(loaders, zeros) if v.asynchronous else self._staged(loaders, zeros)
        self._write(out, row, col, sums)

    def _place(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The block's batch item, and the first row and column of its tile. A grid has fewer than 2^31 blocks."""
        b, a, v = self.b, self.args, self.v
        down, across, number = (
            b.trunc(x, I32) for x in (ceil_div(b, a.M, v.rows), ceil_div(b, a.N, v.cols), block_index(b))
        )
        item, number = b.udiv(number, b.mul(down, across)), b.urem(number, b.mul(down, across))
        share = b.mul(across, I32(_RASTER))
        first = b.mul(b.udiv(number, share), I32(_RASTER))
        number, high = b.urem(number, share), minimum(b, b.sub(down, first), _RASTER)
        row, col = b.add(first, b.urem(number, high)), b.udiv(number, high)
        item, row, col = (b.zext(x, I64) for x in (item, row, col))
        return item, b.mul(row, I64(v.rows)), b.mul(col, I64(v.cols))

    def _tiles(self, slot: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The operands' tiles at a slot of shared memory."""
        left = at(self.b, self.shared, (slot, I64(self.v.stage_bytes)))
        return left, offset(self.b, left, self.v.rows * LINE)

    def _streamed(self, loaders: tuple[Loader, Loader], zeros: list[ir.Value]) -> list[ir.Value]:
        """Copies run by themselves, all but one stage ahead of the products."""
        b, stages = self.b, self.v.stages

        def begin(k: ir.Value, slot: ir.Value) -> None:
            for loader, tile in zip(loaders, self._tiles(slot), strict=True):
                loader.begin(k, tile)
            ptx_ops.commit_copies(b)

        distance = stages - 1
        for stage in range(distance):
            begin(b.mul(I64(stage), self.depth), I64(stage))
        ahead = b.mul(I64(distance), self.depth)
        with loop(b, 0, self.args.K, self.depth, [*zeros, I64(0), I64(distance)]) as it:
            *sums, slot, free = it.values
            ptx_ops.wait_copies(b, distance - 1)
            self._meet()
            sums = self.tile.begin(*self._tiles(slot), list(sums))
            begin(b.add(it.index, ahead), free)
            it.advance(*self.tile.end(sums), self._next(slot), self._next(free))
        return it.results[: len(zeros)]

    def _next(self, slot: ir.Value) -> ir.Value:
        following = self.b.add(slot, I64(1))
        return self.b.select(self.b.icmp_signed("==", following, I64(self.v.stages)), I64(0), following)

    def _staged(self, loaders: tuple[Loader, Loader], zeros: list[ir.Value]) -> list[ir.Value]:
        """While one tile is multiplied, the next one is on its way to registers."""
        b = self.b
        counts = [0]

        def fetch(k: ir.Value) -> list[ir.Value]:
            parts = [loader.fetch(k) for loader in loaders]
            counts[0] = len(parts[0])
            return [x for part in parts for x in part]

        with if_else(b, b.icmp_signed(">", self.args.K, I64(0))) as branch:
            with branch.then():
                first = fetch(I64(0))
                with loop(b, 0, self.args.K, self.depth, [*zeros, *first, I64(0)]) as it:
                    *values, slot = it.values
                    sums, brought = list(values[: len(zeros)]), list(values[len(zeros) :])
                    tiles = self._tiles(slot)
                    loaders[0].put(brought[: counts[0]], tiles[0])
                    loaders[1].put(brought[counts[0] :], tiles[1])
                    self._meet()
                    following = fetch(b.add(it.index, self.depth))
                    sums = self.tile.end(self.tile.begin(*tiles, sums))
                    it.advance(*sums, *following, self._next(slot))
                branch.give(*it.results[: len(zeros)])
            with branch.otherwise():
                branch.give(*zeros)
        return branch.results

    def _meet(self) -> None:
        """What was written to shared memory is there, for all threads of the block."""
        if self.tile.needs_fence:
            ptx_wgmma.fence_tensor(self.b)
        barrier(self.b)

    def _write(self, out: ir.Value, row: ir.Value, col: ir.Value, sums: list[ir.Value]) -> None:
        places = self.tile.places()
        if self.v.store == "pieces":
            for i in range(0, len(places), 4):
                self._write_pieces(out, row, col, places[i : i + 4], sums)
        else:
            for place in places:
                self._write_pair(out, row, col, place, sums)

    def _pair(self, sums: list[ir.Value], first: int) -> ir.Value:
        """Two neighbouring sums as the output's dtype, in one register or a vector of two."""
        b, low, high = self.b, sums[first], sums[first + 1]
        if self.spec.out in HALF_DTYPES:
            return ptx_round.round_pair(b, low, high, self.spec.out)
        pair = ir.Constant(ir.VectorType(ir.FloatType(), 2), ir.Undefined)
        return b.insert_element(b.insert_element(pair, low, I32(0)), high, I32(1))

    def _write_pair(self, out: ir.Value, row: ir.Value, col: ir.Value, place: Place, sums: list[ir.Value]) -> None:
        b, a, size = self.b, self.args, item_size(self.spec.out)
        down, right, first = place
        r, c = b.add(row, down), b.add(col, right)
        here, pair = at(b, out, (r, a.OUT_M), (c, I64(size))), self._pair(sums, first)
        inside = b.icmp_signed("<", r, a.M)
        if self.v.store == "pairs":
            with if_then(b, b.and_(inside, b.icmp_signed("<", c, a.N))):
                b.store(pair, here, align=2 * size)
            return
        if self.spec.out in HALF_DTYPES:
            values = [b.trunc(b.lshr(pair, I32(shift)), I16) for shift in (0, 16)]
        else:
            values = [b.extract_element(pair, I32(i)) for i in range(2)]
        for i, value in enumerate(values):
            with if_then(b, b.and_(inside, b.icmp_signed("<", b.add(c, I64(i)), a.N))):
                b.store(value, offset(b, here, i * size), align=size)

    def _write_pieces(
        self, out: ir.Value, row: ir.Value, col: ir.Value, places: list[Place], sums: list[ir.Value]
    ) -> None:  # fmt: skip
        """Four threads have two columns each of four times eight: they exchange them, and each writes eight."""
        b, a = self.b, self.args
        words = [self._pair(sums, first) for _, _, first in places]
        number = b.trunc(b.and_(self.thread, I64(3)), I32)
        for distance in (1, 2):
            upper = b.icmp_signed("!=", b.and_(number, I32(distance)), I32(0))
            for i in (0, 2) if distance == 1 else (0, 1):
                low, high = words[i], words[i + distance]
                found = ptx_ops.shuffle(b, "bfly", b.select(upper, low, high), I32(distance))
                words[i], words[i + distance] = b.select(upper, found, low), b.select(upper, high, found)
        down, right, _ = places[0]
        own = b.mul(b.and_(self.thread, I64(3)), I64(6))  # from its two columns of the first eight to its own eight
        r, c = b.add(row, down), b.add(b.add(col, right), own)
        piece = ir.Constant(ir.VectorType(I32, 4), ir.Undefined)
        for i, word in enumerate(words):
            piece = b.insert_element(piece, word, I32(i))
        with if_then(b, b.and_(b.icmp_signed("<", r, a.M), b.icmp_signed("<", c, a.N))):
            b.store(piece, at(b, out, (r, a.OUT_M), (c, I64(2))), align=PIECE)


def _aligned(b: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The pointer at the next multiple of `_ALIGN` (at most `_ALIGN` further)."""
    shared = b.ptrtoint(b.addrspacecast(pointer, ir.PointerType(addrspace=3)), I32)
    beyond = b.and_(b.sub(I32(0), shared), I32(_ALIGN - 1))
    return offset(b, pointer, b.zext(beyond, I64))
