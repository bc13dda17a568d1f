"""Products on Hopper's tensor cores: a persistent kernel with warp specialization, whose operands the copy engine (TMA)
loads as tensor maps describe them.

A producer warp has tiles loaded, consumer warps multiply them and write sums out. Barriers in shared memory say of
each stage when it is full, and when it may be filled again. A block computes one tile of the output after another, so
what is multiplied next is in flight while sums are written. There is something to multiply: no size is 0.

With an epilogue there are epilogue warps too: sums are left for them in shared memory, and two more barriers say when a
tile is there and when there is staging for the next one. So tensor cores and ordinary units work at one time, each on a
tile of its own. The writers take most of the registers that producers do not need.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I32, I64, if_else, if_then, loop, offset
from volta.numba_cuda.codegen import ptx_mbarrier, ptx_tensor_map, ptx_wgmma
from volta.numba_cuda.codegen.threads import WARP, barrier, block_count, block_index, warp_barrier
from volta.numba_cuda.products.dot_tensor_epilogue import StagingTile
from volta.numba_cuda.products.dot_tensor_load import BLOCK, LINE, line_along
from volta.numba_cuda.products.dot_tensor_product import Product
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.xla_like.dot import DotSpec

_WRITERS, _PRODUCERS = 128, 24
"""Registers of a thread, where a block of 640 threads begins with 96 each: there are no more than that to share out."""

_HOLDERS, _WRITERS_BESIDE = 112, 112
"""The same where who multiplies holds a left operand."""


class PersistentProduct(Product):
    """A block has one tile after another; one of its threads begins all copies."""

    def __init__(
        self, module: ir.Module, b: ir.IRBuilder, spec: DotSpec, variant: TensorVariant, function: ir.Function
    ) -> None:
        super().__init__(module, b, spec, variant, function)
        self.block_args = function.args[0]
        count = sum(side.load == "map" for side in (variant.lhs, variant.rhs))
        words = (variant.maps + ptx_tensor_map.MAP_WORDS * i for i in range(count))
        self.maps = [offset(b, self.block_args, 8 * word) for word in words]

    def emit(self) -> None:
        b, v = self.b, self.v
        producing = b.icmp_signed("==", self.thread, I64(v.multiplying + v.writing))
        with if_then(b, producing):
            for tensor in self.maps:
                ptx_tensor_map.acquire_map(b, tensor)
        tiles = self.args.WHOLE
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            for stage in range(v.stages):
                ptx_mbarrier.begin(b, self._full(I32(stage)), self._filling())
                ptx_mbarrier.begin(b, self._empty(I32(stage)), v.multiplying // WARP)
            if v.writing:
                ptx_mbarrier.begin(b, self._left(), v.multiplying // WARP)
                ptx_mbarrier.begin(b, self._taken(), v.writing // WARP)
            ptx_mbarrier.opened(b)
        barrier(b)
        first = b.icmp_signed("==", b.and_(self.thread, I64(WARP - 1)), I64(0))
        with if_else(b, b.icmp_signed("<", self.thread, I64(v.multiplying))) as branch:
            with branch.then():
                if v.kind == "tf32":
                    left = ptx_wgmma.registers_left(v.resident, v.threads, v.multiplying, _PRODUCERS)
                    ptx_wgmma.have_registers(b, _HOLDERS if v.writing else left, more=True)
                with loop(b, block_index(b), tiles, block_count(b), [I32(0), I32(0), I32(0)]) as it:
                    it.advance(*self._multiply(it.index, first, *it.values))
            with branch.otherwise():
                if v.writing:
                    self._write_all(tiles, first)
                elif v.sharing:
                    ptx_wgmma.have_registers(b, _PRODUCERS, more=False)
                produces = b.icmp_signed(">=", self.thread, I64(v.multiplying)) if v.unpacking else producing
                begin = [self._first_stage(), I32(0)]
                with if_then(b, produces), loop(b, block_index(b), tiles, block_count(b), begin) as it:
                    it.advance(*self._produce(it.index, *it.values))

    def _filling(self) -> int:
        """Who arrives where a stage becomes full, besides bytes."""
        return 1

    def _first_stage(self) -> ir.Value:
        """The stage that who produces fills first."""
        return I32(0)

    def _write_all(self, tiles: ir.Value, first: ir.Value) -> None:
        """Share out the registers of who does not multiply, and write the block's tiles."""
        b, v = self.b, self.v
        with if_else(b, b.icmp_signed("<", self.thread, I64(v.multiplying + v.writing))) as branch:
            with branch.then():
                ptx_wgmma.have_registers(b, _WRITERS_BESIDE if v.kind == "tf32" else _WRITERS, more=True)
                with loop(b, block_index(b), tiles, block_count(b), [I32(0)]) as it:
                    it.advance(self._write_out(it.index, first, *it.values))
            with branch.otherwise():
                ptx_wgmma.have_registers(b, _PRODUCERS, more=False)

    def _left(self) -> ir.Value:
        """The barrier that says that a tile is there for the epilogue, behind those of the stages."""
        return self._full(I32(self.v.stages))

    def _taken(self) -> ir.Value:
        """The barrier that says that there is staging for the next one."""
        return offset(self.b, self._left(), ptx_mbarrier.BARRIER_BYTES)

    def _staging(self) -> StagingTile:
        return StagingTile(self.b, self.spec, self.v, self.args, self._full(I32(self.v.stages + 1)))

    def _full(self, stage: ir.Value) -> ir.Value:
        """The barrier of a stage that says that it is full."""
        place = self.b.mul(self.b.zext(stage, I64), I64(2 * ptx_mbarrier.BARRIER_BYTES))
        return offset(self.b, offset(self.b, self.shared, self.v.stages * self.v.stage_bytes), place)

    def _empty(self, stage: ir.Value) -> ir.Value:
        return offset(self.b, self._full(stage), ptx_mbarrier.BARRIER_BYTES)

    def _after(self, stage: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The next stage, and the parity of the phases of its barriers."""
        b, following = self.b, self.b.add(stage, I32(1))
        last = b.icmp_signed("==", following, I32(self.v.stages))
        return b.select(last, I32(0), following), b.xor(parity, b.zext(last, I32))

    def _produce(self, number: ir.Value, stage: ir.Value, parity: ir.Value) -> list[ir.Value]:
        """Begin the copies of all of a tile's k; gives the stage and parity that come next."""
        b, a, v = self.b, self.args, self.v
        (b0, b1), row, col = self._place(number)
        items = []
        for steps in ((a.LHS_BATCH0, a.LHS_BATCH1), (a.RHS_BATCH0, a.RHS_BATCH1)):
            some = [b.icmp_signed("!=", step, I64(0)) for step in steps]  # what has no step has one item in the map
            items.append([b.trunc(b.select(has, x, I64(0)), I32) for has, x in zip(some, (b0, b1), strict=True)])
        starts = b.trunc(row, I32), b.trunc(col, I32)
        sides = list(zip(self.maps, (v.lhs, v.rhs), (v.rows, v.cols), starts, items, strict=True))
        with loop(b, 0, a.K, self.depth, [stage, parity], some=True) as it:
            stage, parity = it.values
            k, full = b.trunc(it.index, I32), self._full(stage)
            ptx_mbarrier.wait(b, self._empty(stage), b.xor(parity, I32(1)))
            ptx_mbarrier.expect(b, full, v.stage_bytes)
            places = self._tiles(b.zext(stage, I64))
            for place, (tensor, operand, length, start, (i0, i1)) in zip(places, sides, strict=True):
                if line_along(operand, v.kind) == "k":
                    ptx_tensor_map.copy_box(b, place, tensor, [k, start, i1, i0], full)
                    continue
                for block in range(length // BLOCK):
                    to, first = offset(b, place, block * BLOCK * LINE), b.add(start, I32(block * BLOCK))
                    ptx_tensor_map.copy_box(b, to, tensor, [first, k, i1, i0], full)
            it.advance(*self._after(stage, parity))
        return it.results

    def _multiply(
        self, number: ir.Value, first: ir.Value, stage: ir.Value, parity: ir.Value, phase: ir.Value
    ) -> list[ir.Value]:  # fmt: skip
        """Compute a tile; gives the stage, its parity and that of the epilogue that come next. The `first` thread of
        each warp empties stages."""
        b, a, zeros = self.b, self.args, self._zeros()
        with loop(b, 0, a.K, self.depth, [*zeros, stage, parity, stage], some=True) as it:
            *sums, stage, parity, before = it.values
            ptx_mbarrier.wait(b, self._full(stage), parity)
            sums = self.tile.begin(*self._tiles(b.zext(stage, I64)), list(sums))
            ptx_wgmma.multiply_group_wait_others(b)
            ptx_mbarrier.arrive(b, self._empty(before), b.and_(first, b.icmp_signed(">", it.index, I64(0))))
            it.advance(*sums, *self._after(stage, parity), stage)
        *sums, stage, parity, before = it.results
        sums = self.tile.end(list(sums))
        ptx_mbarrier.arrive(b, self._empty(before), first)
        if self.v.epilogue is None:
            self._write(*self._place(number), sums)
            return [stage, parity, phase]
        ptx_mbarrier.wait(b, self._taken(), b.xor(phase, I32(1)))
        self._staging().leave(self.tile, self.thread, sums, self._pair)
        warp_barrier(b)
        ptx_mbarrier.arrive(b, self._left(), first)
        return [stage, parity, b.xor(phase, I32(1))]

    def _write_out(self, number: ir.Value, first: ir.Value, phase: ir.Value) -> ir.Value:
        """Write a tile that others have left; gives the parity that comes next."""
        b, v = self.b, self.v
        item, row, col = self._place(number)
        thread = b.trunc(b.sub(self.thread, I64(v.multiplying)), I32)
        self._staging().prefetch(self._writer(item), row, col, thread, v.writing)
        ptx_mbarrier.wait(b, self._left(), phase)
        self._staging().write(self._writer(item), row, col, thread, v.writing)
        warp_barrier(b)
        ptx_mbarrier.arrive(b, self._taken(), first)
        return b.xor(phase, I32(1))
