"""The kernel of a product on tensor cores: tiles stream through shared memory, sums are rounded and written out."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, scalar_type
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I16, I32, I64, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.codegen import ptx_mma, ptx_ops, ptx_round, ptx_wgmma
from volta.numba_cuda.codegen.threads import (
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    thread_index,
)
from volta.numba_cuda.products.dot_epilogue import Writer
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.numba_cuda.products.dot_tensor_epilogue import StagingTile
from volta.numba_cuda.products.dot_tensor_load import ITEMS, LINE, PIECE, Loader, line_along
from volta.numba_cuda.products.dot_tensor_tile import TILES, Pair
from volta.numba_cuda.products.dot_tensor_variant import ALIGN, TensorVariant
from volta.xla_like.dot import DotSpec, item_size

_RASTER = 16
"""Rows of tiles whose blocks run side by side: they share what they read in the second-level cache."""

Item = tuple[ir.Value, ir.Value]
"""An item of the batch: its index in either dimension of it."""


class Product:
    """A block has one tile; its threads load what they multiply."""

    def __init__(
        self, module: ir.Module, b: ir.IRBuilder, spec: DotSpec, variant: TensorVariant, function: ir.Function
    ) -> None:
        self.b, self.spec, self.v = b, spec, variant
        self.args = Args(b, function.args[0], Sharing)
        self.thread = thread_index(b)
        self.depth = I64(LINE // ITEMS[variant.kind])
        along = line_along(variant.lhs, variant.kind), line_along(variant.rhs, variant.kind)
        self.tile = TILES[variant.instruction](b, variant.kind, along, self.thread, variant.rows, variant.cols)
        self.shared = _aligned(b, dynamic_shared(module, b))

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.v
        (b0, b1), row, col = self._place(block_index(b))
        lhs = at(b, device_pointer(b, a.LHS), (b0, a.LHS_BATCH0), (b1, a.LHS_BATCH1))
        rhs = at(b, device_pointer(b, a.RHS), (b0, a.RHS_BATCH0), (b1, a.RHS_BATCH1))
        loaders = (
            Loader(b, v.lhs, v.kind, v.rows, v.threads, self.thread, lhs, row, a.M, a.LHS_M, a.K, a.LHS_K),
            Loader(b, v.rhs, v.kind, v.cols, v.threads, self.thread, rhs, col, a.N, a.RHS_N, a.K, a.RHS_K),
        )
        zeros = self._zeros()
        sums = self._streamed(loaders, zeros) if v.asynchronous else self._staged(loaders, zeros)
        if v.epilogue is None:
            self._write((b0, b1), row, col, sums)
            return
        if v.asynchronous:
            ptx_ops.wait_copies(b, 0)  # what is copied behind the last stage is zeros
        barrier(b)
        staging = StagingTile(b, self.spec, v, a, self.shared)  # in place of the stages
        staging.leave(self.tile, self.thread, sums, self._pair)
        barrier(b)
        staging.write(self._writer((b0, b1)), row, col, b.trunc(self.thread, I32), v.threads)

    def _zeros(self) -> list[ir.Value]:
        count = self.v.rows * self.v.cols // self.v.multiplying
        return [ir.Constant(scalar_type(self.spec.accumulator), None)] * count

    def _place(self, number: ir.Value) -> tuple[Item, ir.Value, ir.Value]:
        """A tile's batch item, and its first row and column. There are fewer than 2^31 tiles."""
        b, a, v = self.b, self.args, self.v
        down, across, number = (b.trunc(x, I32) for x in (ceil_div(b, a.M, v.rows), ceil_div(b, a.N, v.cols), number))
        item, number = b.udiv(number, b.mul(down, across)), b.urem(number, b.mul(down, across))
        share = b.mul(across, I32(_RASTER))
        first = b.mul(b.udiv(number, share), I32(_RASTER))
        number, high = b.urem(number, share), minimum(b, b.sub(down, first), _RASTER)
        row, col = b.add(first, b.urem(number, high)), b.udiv(number, high)
        inner = b.trunc(a.BATCH1, I32)
        b0, b1, row, col = (b.zext(x, I64) for x in (b.udiv(item, inner), b.urem(item, inner), row, col))
        return (b0, b1), b.mul(row, I64(v.rows)), b.mul(col, I64(v.cols))

    def _tiles(self, stage: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The operands' tiles at a stage of shared memory."""
        left = at(self.b, self.shared, (stage, I64(self.v.stage_bytes)))
        return left, offset(self.b, left, self.v.rows * LINE)

    def _streamed(self, loaders: tuple[Loader, Loader], zeros: list[ir.Value]) -> list[ir.Value]:
        """Copies run by themselves, all but one stage ahead of the products."""
        b, stages = self.b, self.v.stages

        def begin(k: ir.Value, stage: ir.Value) -> None:
            for loader, tile in zip(loaders, self._tiles(stage), strict=True):
                loader.begin(k, tile)
            ptx_ops.commit_copies(b)

        distance = stages - 1
        for stage in range(distance):
            begin(b.mul(I64(stage), self.depth), I64(stage))
        ahead = b.mul(I64(distance), self.depth)
        with loop(b, 0, self.args.K, self.depth, [*zeros, I64(0), I64(distance)]) as it:
            *sums, stage, free = it.values
            ptx_ops.wait_copies(b, distance - 1)
            self._meet()
            sums = self.tile.begin(*self._tiles(stage), list(sums))
            begin(b.add(it.index, ahead), free)
            it.advance(*self.tile.end(sums), self._next(stage), self._next(free))
        return it.results[: len(zeros)]

    def _next(self, stage: ir.Value) -> ir.Value:
        following = self.b.add(stage, I64(1))
        return self.b.select(self.b.icmp_signed("==", following, I64(self.v.stages)), I64(0), following)

    def _staged(self, loaders: tuple[Loader, Loader], zeros: list[ir.Value]) -> list[ir.Value]:
        """While one tile is multiplied, the next one is in flight to registers."""
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
                    *values, stage = it.values
                    sums, loaded = list(values[: len(zeros)]), list(values[len(zeros) :])
                    tiles = self._tiles(stage)
                    loaders[0].put(loaded[: counts[0]], tiles[0])
                    loaders[1].put(loaded[counts[0] :], tiles[1])
                    self._meet()
                    following = fetch(b.add(it.index, self.depth))
                    sums = self.tile.end(self.tile.begin(*tiles, sums))
                    it.advance(*sums, *following, self._next(stage))
                branch.give(*it.results[: len(zeros)])
            with branch.otherwise():
                branch.give(*zeros)
        return branch.results

    def _meet(self) -> None:
        """What was written to shared memory is there, for all threads of the block."""
        if self.tile.needs_fence:
            ptx_wgmma.fence_tensor(self.b)
        barrier(self.b)

    def _out(self, item: Item) -> ir.Value:
        """Where an item of the output begins."""
        a = self.args
        return at(self.b, device_pointer(self.b, a.OUT), (item[0], a.OUT_BATCH0), (item[1], a.OUT_BATCH1))

    def _writer(self, item: Item) -> Writer:
        """What has the epilogue of an item."""
        b, a = self.b, self.args
        above = b.mul(b.add(b.mul(item[0], a.BATCH1), item[1]), a.M)
        return Writer(b, self.spec, a, self.v.epilogue, self._out(item), above)

    def _write(self, item: Item, row: ir.Value, col: ir.Value, sums: list[ir.Value]) -> None:
        out = self._out(item)
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
        pair = ir.Constant(ir.VectorType(low.type, 2), ir.Undefined)
        return b.insert_element(b.insert_element(pair, low, I32(0)), high, I32(1))

    def _write_pair(self, out: ir.Value, row: ir.Value, col: ir.Value, place: Pair, sums: list[ir.Value]) -> None:
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
        self, out: ir.Value, row: ir.Value, col: ir.Value, places: list[Pair], sums: list[ir.Value]
    ) -> None:  # fmt: skip
        """Four threads have two columns each of four times eight: they exchange them, and each writes eight."""
        b, a = self.b, self.args
        words = [self._pair(sums, first) for _, _, first in places]
        piece = ptx_mma.gather_piece(b, b.trunc(self.thread, I32), words)
        down, right, _ = places[0]
        own = b.mul(b.and_(self.thread, I64(3)), I64(6))  # from its two columns of the first eight to its own eight
        r, c = b.add(row, down), b.add(b.add(col, right), own)
        with if_then(b, b.and_(b.icmp_signed("<", r, a.M), b.icmp_signed("<", c, a.N))):
            b.store(piece, at(b, out, (r, a.OUT_M), (c, I64(2))), align=PIECE)


def _aligned(b: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The pointer at the next multiple of `ALIGN` (at most `ALIGN` further)."""
    shared = b.ptrtoint(b.addrspacecast(pointer, ir.PointerType(addrspace=3)), I32)
    beyond = b.and_(b.sub(I32(0), shared), I32(ALIGN - 1))
    return offset(b, pointer, b.zext(beyond, I64))
