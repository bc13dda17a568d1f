"""The loop nest of a product: chunks of k, stages of a chunk, and the block's place in the output.

What multiplies a stage is an engine's own (`dot_fma`, `dot_mma`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.builder import is_float, scalar_type
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I1, I32, I64, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.products.dot_feed import CastFeed, Feed, Layout
from volta.numba_cuda.products.dot_place import Place
from volta.numba_cuda.products.dot_split import Part, Share
from volta.numba_cuda.products.dot_tile import DotVariant, Operand, Tile
from volta.numba_cuda.products.dot_turns import Turn
from volta.numba_cuda.target.ptx_ops import commit_copies, wait_copies
from volta.numba_cuda.target.threads import barrier, block_index, dynamic_shared, own_args, thread_index
from volta.xla_like.dot_schedule import CHUNK, DotSpec, item_size

_PARTS = 4  # in which the copies of a stage begin


class Nest:
    """A product kernel under construction; engines say how a stage lies and how it is multiplied."""

    step: int
    """The k that one set of fragments covers."""

    count: int
    """A thread's sums."""

    cell: int
    """Neighbours in a row among them."""

    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: DotVariant, function: ir.Function) -> None:
        self.b, self.spec, self.tile, self.variant = b, spec, variant.tile, variant
        self.args = Args(b, own_args(b, function.args[0]))
        self.size = item_size(spec.accumulator)
        self.kind = scalar_type(spec.accumulator)
        self.zero = ir.Constant(self.kind, 0.0 if is_float(spec.accumulator) else 0)
        self.thread = b.trunc(thread_index(b), I32)
        self.count = self.tile.thread_rows * self.tile.thread_cols
        self.direct = variant.lhs.direct or variant.rhs.direct
        self.part: Part | None = None
        self.turn: Turn | None = None

    # -- what engines say ----------------------------------------------------------------------------------------------

    @staticmethod
    def layout(tile: Tile, operand: Operand, length: int) -> Layout:
        raise NotImplementedError

    def threads(self) -> None:
        """Settle which cells of the tile are this thread's."""
        raise NotImplementedError

    def sides(self) -> None:
        """Settle where this thread reads a stage."""
        raise NotImplementedError

    def fragments(self, stage: ir.Value, k: int | ir.Value) -> list[ir.Value]:
        """What this thread needs for the products of `step` k, from k of the stage on."""
        raise NotImplementedError

    def products(self, fragments: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Go on with every chain by `step` products."""
        raise NotImplementedError

    def masked(self, fragments: Sequence[ir.Value], rest: ir.Value) -> Sequence[ir.Value]:
        """The fragments where only `rest` k are left: the others' products change no sum."""
        raise NotImplementedError

    def cell_at(self, number: int | ir.Value) -> tuple[ir.Value, ir.Value]:
        """The place (row, column) in the tile of a thread's cell: its next `cell` sums, neighbours in a row."""
        raise NotImplementedError

    # -- the nest -----------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.variant
        self.shared = dynamic_shared(b.module, b)
        self.part = Part(b, a) if v.split else None
        self.turn = Turn(b, a, self.thread, self.shared, v.halves) if v.turns else None
        share = self.part or self.turn
        self.place = Place(b, self.spec, v, a, share.tile if share else b.trunc(block_index(b), I32))
        self.chunks_of(share)
        if self.turn and not v.halves:
            self._take_turn(self.turn)
            return
        totals = self._totals()
        if self.turn:
            with if_else(b, self.turn.ends) as branch:
                with branch.then():
                    self._write(totals)
                with branch.otherwise():
                    self.turn.leave(self._turn_places(self.turn), self.vectors_of(totals))
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

    def layouts(self) -> tuple[Layout, Layout]:
        """How the operands lie in a stage."""
        t, v = self.tile, self.variant
        return self.layout(t, v.lhs, t.rows), self.layout(t, v.rhs, t.cols)

    def chunks_of(self, share: Share | None) -> None:
        """Compute the sums of this block's share of its tile's chunks."""
        b, a, t, v = self.b, self.args, self.tile, self.variant
        self.share = share
        lhs, rhs, row, col = self.place.item("LHS"), self.place.item("RHS"), self.place.row, self.place.col
        if share:
            first = b.mul(b.zext(share.first, I64), I64(CHUNK))
            lhs, rhs = at(b, lhs, (first, a.LHS_K)), at(b, rhs, (first, a.RHS_K))
        left, right = self.layouts()
        self.stage = left.bytes + right.bytes
        self.lhs = self._feed(v.lhs)(b, self.thread, t, v.lhs, t.rows, left, 0, lhs, row, a.M, a.LHS_M, a.LHS_K)
        self.rhs = self._feed(v.rhs)(
            b, self.thread, t, v.rhs, t.cols, right, left.bytes, rhs, col, a.N, a.RHS_N, a.RHS_K
        )
        self.threads()
        self.sides()
        self._run()

    @staticmethod
    def _feed(operand: Operand) -> type[Feed]:
        return Feed if operand.direct else CastFeed

    def _after(self, stage: ir.Value) -> ir.Value:
        b = self.b
        following = b.add(stage, I32(self.stage))
        return b.select(b.icmp_unsigned("<", following, I32(self.stage * self.tile.stages)), following, I32(0))

    def _begin(self, ahead: list[ir.Value]) -> None:
        """Settle which stage is copied next; `ahead`: pointers, stage, tiles still to be copied."""
        b = self.b
        left, right, stage, tiles = ahead
        rest = None
        if not self.variant.whole:
            rest = b.select(b.icmp_signed("==", tiles, I32(1)), self.rest, I32(self.tile.depth))
        self.lhs.begin(self.shared, stage, left, tiles, rest)
        self.rhs.begin(self.shared, stage, right, tiles, rest)
        self.ahead = [
            offset(b, left, self.lhs.step), offset(b, right, self.rhs.step), self._after(stage), b.sub(tiles, I32(1))
        ]  # fmt: skip

    def copy(self, part: int, parts: int) -> None:
        """Start one of `parts` parts of the copies of a stage."""
        self.lhs.copy(part, parts)
        self.rhs.copy(part, parts)
        if part == parts - 1 and self.direct:
            commit_copies(self.b)

    def _finish(self) -> None:
        self.lhs.finish()
        self.rhs.finish()

    def _meet(self) -> None:
        """Wait for the stage that is next, and for all threads to be done with the one before."""
        if self.direct:
            wait_copies(self.b, self.tile.stages - 2)
        barrier(self.b)

    def _run(self) -> None:
        """All of k, or this part of it. While a stage is multiplied, those after it are on their way."""
        b, a, t, v = self.b, self.args, self.tile, self.variant
        zeros = [self.zero] * self.count
        per_chunk = CHUNK // t.depth
        tiles = b.trunc(ceil_div(b, a.K, t.depth), I32)
        full = b.trunc(b.udiv(a.K, I64(t.depth)), I32)
        self.rest = b.trunc(b.sub(a.K, b.mul(b.sub(ceil_div(b, a.K, t.depth), I64(1)), I64(t.depth))), I32)
        separate: ir.Value = I1(0)
        if self.share:
            start, end = b.mul(self.share.first, I32(per_chunk)), b.mul(self.share.last, I32(per_chunk))
            self.rest = b.select(b.icmp_signed("<=", tiles, end), self.rest, I32(t.depth))
            tiles = b.sub(minimum(b, tiles, end), start)
            full = b.sub(minimum(b, full, end), start)
            separate = self.share.later
        self.ahead = [self.lhs.first, self.rhs.first, I32(0), tiles]
        for _ in range(t.stages - 1):
            self._begin(self.ahead)
            self.copy(0, 1)
            self._finish()
        if self.turn and v.halves:
            self.turn.fetch(self._turn_places(self.turn), self._slots())
        self._meet()
        fragments = self.fragments(I32(0), 0)
        step = tiles if v.one_chunk else I32(per_chunk)
        stop = minimum(b, tiles, 1) if v.one_chunk else tiles
        self.many = b.and_(b.icmp_signed(">", tiles, I32(per_chunk)), b.not_(separate))
        if self.turn:
            self.many = b.or_(self.many, self.turn.follows)
        with loop(b, I32(0), stop, step, [*zeros, *fragments, *self.ahead, I32(0)]) as chunk:
            sums, state = list(chunk.values[: self.count]), list(chunk.values[self.count :])
            end = full
            if not v.one_chunk:
                with if_then(b, b.icmp_signed(">", chunk.index, I32(0))):
                    self._chunk_ends(sums, chunk.index, per_chunk)
                end = minimum(b, b.add(chunk.index, I32(per_chunk)), full)
            with loop(b, chunk.index, end, I32(1), [*zeros, *state]) as it:
                it.advance(*self._multiply(list(it.values)))
            sums, state = list(it.results[: self.count]), list(it.results[self.count :])
            if not v.whole:
                last = b.icmp_signed(">=", b.add(chunk.index, I32(per_chunk)), tiles)
                tail = b.select(b.and_(last, b.icmp_signed("<", full, tiles)), self.rest, I32(0))
                with loop(b, I32(0), tail, I32(self.step), sums) as rest:
                    found = self.masked(self.fragments(state[-1], rest.index), b.sub(tail, rest.index))
                    rest.advance(*self.products(found, list(rest.values)))
                sums = list(rest.results)
            chunk.advance(*sums, *state)
        self.sums = list(chunk.results[: self.count])

    def _chunk_ends(self, sums: list[ir.Value], index: ir.Value, per_chunk: int) -> None:
        """A chunk has ended that is not the last: its sums go to the totals, or where the totals are joined."""
        b = self.b
        first = b.icmp_signed("==", index, I32(per_chunk))
        if self.turn:
            first = b.and_(first, b.not_(self.turn.follows))
        if self.part is None:
            self._absorb(sums, first)
            return
        with if_else(b, self.part.later) as branch:
            with branch.then():
                chunk = b.add(self.part.first, b.sub(b.udiv(index, I32(per_chunk)), I32(1)))
                self._leave(self.part.slot(chunk), sums)
            with branch.otherwise():
                self._absorb(sums, first)

    def _multiply(self, values: list[ir.Value]) -> list[ir.Value]:
        """Multiply one whole stage, whose first fragments are here already, and fetch the first of the next."""
        stage = values[-1]
        self._begin(values[-5:-1])

        def following() -> ir.Value:
            self._finish()
            self._meet()
            return self._after(stage)

        sums, fragments, stage = self.stage_products(values[: self.count], values[self.count : -5], stage, following)
        return [*sums, *fragments, *self.ahead, stage]

    def stage_products(
        self, sums: list[ir.Value], fragments: list[ir.Value], stage: ir.Value, following: Callable[[], ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value], ir.Value]:
        """A stage's products, reading one step ahead; `following` is called before the next stage is read: it is that.

        The copies under way to a later stage begin in a few parts, or what is read for the products waits behind them.
        """
        steps = self.tile.depth // self.step
        parts = max(1, min(_PARTS, steps - 1))
        at = [i * (steps - 1) // parts for i in range(parts)]
        for n in range(steps):
            last = n == steps - 1
            if last:
                if steps == 1:
                    self.copy(0, 1)
                stage = following()
            ahead = self.fragments(stage, 0 if last else (n + 1) * self.step)
            if n in at and not last:
                self.copy(at.index(n), parts)
            sums = self.products(fragments, sums)
            fragments = ahead
        return sums, fragments, stage

    # -- totals wait in shared memory, where each thread has its own places -------------------------------------------

    def _slots(self) -> list[ir.Value]:
        b, t = self.b, self.tile
        start = offset(b, self.shared, b.zext(b.mul(self.thread, I32(16)), I64))
        first = self.stage * t.stages
        return [offset(b, start, first + i * t.threads * 16) for i in range(self.count * self.size // 16)]

    def vectors_of(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Values as vectors of 16 bytes, whose elements `values_of` puts in order again."""
        b, wide, out = self.b, 16 // self.size, []
        for first in range(0, len(values), wide):
            vector: ir.Value = ir.Constant(ir.VectorType(self.kind, wide), ir.Undefined)
            for i in range(wide):
                vector = b.insert_element(vector, values[first + i], I32(self._lane(i)))
            out.append(vector)
        return out

    def values_of(self, vector: ir.Value) -> list[ir.Value]:
        """The values in a vector of sums."""
        return [self.b.extract_element(vector, I32(self._lane(i))) for i in range(16 // self.size)]

    def _lane(self, i: int) -> int:
        """Where value `i` of a vector lies in it: in the place of its neighbour.

        A vector is stored from registers in a row, so that is where the sums are, and the even ones are in odd
        registers. The right operand's values, loaded as vectors too, are in order. So a sum and what is added to it
        come from different banks of registers, which give one operand at a time (seen: products up to 10% faster).
        """
        return i ^ 1 if self.size == 4 else i

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fadd(x, y) if is_float(self.spec.accumulator) else self.b.add(x, y)

    def _absorb(self, sums: Sequence[ir.Value], first: ir.Value) -> None:
        """Add a chunk's sums to the totals; the first chunk's are the totals."""
        b = self.b
        kind = ir.VectorType(self.kind, 16 // self.size)
        with b.if_else(first) as (then, otherwise):
            with then:
                for slot, vector in zip(self._slots(), self.vectors_of(sums), strict=True):
                    b.store(vector, slot, align=16)
            with otherwise:
                for slot, vector in zip(self._slots(), self.vectors_of(sums), strict=True):
                    b.store(self.add(b.load(slot, typ=kind, align=16), vector), slot, align=16)

    def _totals(self) -> list[ir.Value]:
        if self.variant.short:
            return self.sums
        b = self.b
        kind, out = ir.VectorType(self.kind, 16 // self.size), []
        for slot, vector in zip(self._slots(), self.vectors_of(self.sums), strict=True):
            out += self.values_of(b.select(self.many, self.add(b.load(slot, typ=kind, align=16), vector), vector))
        return out

    def _store(self, vectors: Sequence[ir.Value]) -> None:
        for slot, vector in zip(self._slots(), vectors, strict=True):
            self.b.store(vector, slot, align=16)

    def _take_turn(self, turn: Turn) -> None:
        """Add the chunk's sums, which wait in shared memory, to the tile's total. The last block writes it."""
        b = self.b
        self._store(self.vectors_of(self.sums))
        turn.add(self._turn_places(turn), self._slots(), ir.VectorType(self.kind, 16 // self.size), self.add)
        with if_then(b, turn.ends):
            self._write_waiting()

    def _turn_places(self, turn: Turn) -> list[ir.Value]:
        """Where this thread's totals are for the next turn."""
        b, t = self.b, self.tile
        own = b.mul(b.zext(turn.own, I64), I64(t.rows * t.cols * self.size))
        start = at(b, turn.totals, (own, I64(1)), (b.zext(self.thread, I64), I64(16)))
        return [offset(b, start, i * t.threads * 16) for i in range(self.count * self.size // 16)]

    def _write(self, totals: Sequence[ir.Value]) -> None:
        place, v, cell = self.place, self.variant, self.cell
        if v.epilogue is not None:  # it has the registers for itself while the totals wait in shared memory
            self._store(self.vectors_of(totals))
            self._write_waiting()
            return
        writer = place.writer()
        for i in range(self.count // cell):
            writer.write(*place.at(*self.cell_at(i)), totals[i * cell : (i + 1) * cell], v.wide)

    def _write_waiting(self) -> None:
        """Write the totals that wait in shared memory."""
        b, place, v = self.b, self.place, self.variant
        writer, cells = place.writer(), self.count // self.cell
        some = min(cells, (v.epilogue.together if v.epilogue else 16) // self.cell)
        with if_else(b, place.whole() if v.wide else I1(0)) as branch:
            with branch.then(), loop(b, I32(0), I32(cells), I32(some)) as it:
                numbers = [b.add(it.index, I32(i)) for i in range(some)]
                writer.write_all([(*place.at(*self.cell_at(n)), writer.rounded(self._waiting(n))) for n in numbers])
            with branch.otherwise(), loop(b, I32(0), I32(cells), I32(1)) as it:
                writer.write(*place.at(*self.cell_at(it.index)), self._waiting(it.index), v.wide)

    def _waiting(self, number: ir.Value) -> list[ir.Value]:
        """The totals of a cell, by its number, that wait in shared memory."""
        b, each = self.b, self.cell * self.size // 16
        first, kind = self._slots()[0], ir.VectorType(self.kind, 16 // self.size)
        found = []
        for i in range(each):
            place = b.mul(b.add(b.mul(number, I32(each)), I32(i)), I32(16 * self.tile.threads))
            found += self.values_of(b.load(offset(b, first, b.zext(place, I64)), typ=kind, align=16))
        return found

    def _leave(self, slot: ir.Value, sums: Sequence[ir.Value]) -> None:
        """Leave sums in a slot of this tile in scratch memory, for `dot_join`."""
        assert self.part is not None
        b, t = self.b, self.tile
        to = self.part.scratch(slot, t.rows * t.cols * self.size)
        to = offset(b, to, b.zext(b.mul(self.thread, I32(16)), I64))
        for i, vector in enumerate(self.vectors_of(sums)):
            b.store(vector, offset(b, to, i * t.threads * 16), align=16)
