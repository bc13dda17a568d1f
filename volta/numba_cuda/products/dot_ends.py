"""What becomes of a chunk's sums: they go to the totals of a tile or of its block of k, or are left for others."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.dot_args import Args, ChunkAt, at, ceil_div
from volta.emit.loops import I32, I64, if_else, if_then, offset
from volta.numba_cuda.products.dot_blocks import Levels
from volta.numba_cuda.products.dot_serial import SerialPart
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.numba_cuda.products.dot_split import Part, Share
from volta.numba_cuda.products.dot_totals import Totals
from volta.numba_cuda.products.dot_work import Work
from volta.xla_like.dot import CHUNK


class Ends(Totals):
    """What a `Nest` does where chunks end. ``sums`` are those of the last chunk, ``many``: others came before it."""

    args: Args
    ticket: ir.Value | None = None
    part: Part | None = None
    serial: SerialPart | None = None
    levels: Levels | None = None
    share: Share | None
    sums: list[ir.Value]
    many: ir.Value

    def _work(self) -> Work:
        """What this block computes, its args read once more."""
        args = Args(self.b, self.args.block, Sharing)
        return Work(self.b, self.spec, self.variant, args, self.thread, self.ticket)

    def settle(self, work: Work) -> None:
        """Settle what this block computes."""
        self.args, self.part, self.serial = work.args, work.part, work.serial
        self.place, self.levels = work.place, work.levels

    def end(self) -> None:
        """The last chunk of this block's share has ended."""
        b, v = self.b, self.variant
        if v.asks_again:
            self.settle(self._work())
        if self.serial and not v.halves:
            self._add_serially(self.serial)
            return
        if v.long:
            self._end_long()
            return
        totals = self._totals()
        if self.serial:
            with if_else(b, self.serial.ends) as branch:
                with branch.then():
                    self._write(totals)
                with branch.otherwise():
                    self.serial.leave(self.serial_places(self.serial), self.vectors_of(totals))
            return
        if self.part is None:
            self._write(totals)
            return
        with if_else(b, self.part.whole) as branch:
            with branch.then():
                self._write(totals)
            with branch.otherwise():
                slot = b.select(self.part.later, self.part.slot(b.sub(self.part.last, I32(1))), I32(0))
                self._leave(slot, totals)

    def chunk_ends(self, sums: list[ir.Value], index: ir.Value, per_chunk: int) -> None:
        """A chunk has ended that is not the last: its sums go to the totals, or where the totals are joined."""
        b = self.b
        if self.levels:
            ended = b.sub(b.udiv(index, I32(per_chunk)), I32(1))
            self._keep(sums, b.add(self.share.first, ended) if self.share else ended)
            return
        first = b.icmp_signed("==", index, I32(per_chunk))
        if self.serial:
            first = b.and_(first, b.not_(self.serial.follows))
        if self.part is None:
            self.absorb(sums, first)
            return
        with if_else(b, self.part.later) as branch:
            with branch.then():
                chunk = b.add(self.part.first, b.sub(b.udiv(index, I32(per_chunk)), I32(1)))
                self._leave(self.part.slot(chunk), sums)
            with branch.otherwise():
                self.absorb(sums, first)

    def _keep(self, sums: Sequence[ir.Value], chunk: ir.Value) -> None:
        """Add a chunk's sums to the total of its block of k. Where that is complete it is joined with those before it,
        or left where the blocks are joined."""
        b, part = self.b, self.part
        kind = ir.VectorType(self.kind, 16 // self.size)
        here = ChunkAt(b, chunk, b.trunc(ceil_div(b, self.args.K, CHUNK), I32))

        def join() -> None:
            with if_then(b, here.ends):
                work = self._work() if self.variant.asks_again else self
                assert work.levels is not None
                if work.serial:
                    work.serial.enter_slot(here.block)
                work.levels.join(self.slots(), here.block, here.last, kind, self.add)

        if part is None:
            self.absorb(sums, here.begins)
            join()
            return
        with if_else(b, part.later) as branch:
            with branch.then():
                self._leave(part.slot(chunk), sums)
            with branch.otherwise():
                self.absorb(sums, here.begins)
                with if_else(b, part.whole) as both:
                    with both.then():
                        join()
                    with both.otherwise():
                        done = b.or_(here.ends, b.icmp_signed("==", b.add(chunk, I32(1)), part.last))
                        with if_then(b, done):
                            totals = [b.load(slot, typ=kind, align=16) for slot in self.slots()]
                            self._leave_vectors(part.slot(chunk), totals)

    def _end_long(self) -> None:
        """The last chunk of this block's share has ended: write the tile, or leave what others go on with."""
        b = self.b
        chunks = b.trunc(ceil_div(b, self.args.K, CHUNK), I32)
        chunk = b.sub(self.share.last if self.share else chunks, I32(1))
        self._keep(self.sums, chunk)
        if self.serial:
            with if_else(b, self.serial.ends) as branch:
                with branch.then():
                    self.serial.leave_slot()
                    self.write_waiting()
                with branch.otherwise():
                    self.serial.leave_block(
                        self.serial_places(self.serial), self.slots(), ChunkAt(b, chunk, chunks).ends
                    )
        elif self.part:
            with if_then(b, self.part.whole):
                self.write_waiting()
        else:
            self.write_waiting()

    def _totals(self) -> list[ir.Value]:
        if self.variant.short:
            return self.sums
        b = self.b
        kind, out = ir.VectorType(self.kind, 16 // self.size), []
        for slot, vector in zip(self.slots(), self.vectors_of(self.sums), strict=True):
            out += self.values_of(b.select(self.many, self.add(b.load(slot, typ=kind, align=16), vector), vector))
        return out

    def _add_serially(self, serial: SerialPart) -> None:
        """Add the chunk's sums, which wait in shared memory, to the tile's total. The last block writes it."""
        b, kind = self.b, ir.VectorType(self.kind, 16 // self.size)
        self.store(self.vectors_of(self.sums))
        if self.levels:
            serial.add_to_block(self.serial_places(serial), self.slots(), kind, self.add, self.levels)
        else:
            serial.add(self.serial_places(serial), self.slots(), kind, self.add)
        with if_then(b, serial.ends):
            self.write_waiting()

    def serial_places(self, serial: SerialPart) -> list[ir.Value]:
        """Where this thread's totals are for the next block."""
        b, t = self.b, self.tile
        own = b.mul(b.zext(serial.own, I64), I64(t.rows * t.cols * self.size))
        start = at(b, serial.totals, (own, I64(1)), (b.zext(self.thread, I64), I64(16)))
        return [offset(b, start, i * t.threads * 16) for i in range(self.count * self.size // 16)]

    def _write(self, totals: Sequence[ir.Value]) -> None:
        place, v, cell = self.place, self.variant, self.cell
        if v.epilogue is not None:  # it has the registers for itself while the totals wait in shared memory
            self.store(self.vectors_of(totals))
            self.write_waiting()
            return
        writer = place.writer()
        for i in range(self.count // cell):
            writer.write(*place.at(*self.cell_at(i)), totals[i * cell : (i + 1) * cell], v.wide)

    def _leave(self, slot: ir.Value, sums: Sequence[ir.Value]) -> None:
        """Leave sums in a slot of this tile in scratch memory, for `dot_join`."""
        self._leave_vectors(slot, self.vectors_of(sums))

    def _leave_vectors(self, slot: ir.Value, vectors: Sequence[ir.Value]) -> None:
        assert self.part is not None
        b, t = self.b, self.tile
        to = self.part.scratch(slot, t.rows * t.cols * self.size)
        to = offset(b, to, b.zext(b.mul(self.thread, I32(16)), I64))
        for i, vector in enumerate(vectors):
            b.store(vector, offset(b, to, i * t.threads * 16), align=16)
