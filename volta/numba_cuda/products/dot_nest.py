"""The loop nest of a product: chunks of k, stages of a chunk, and the block's place in the output.

What multiplies a stage is an engine's own (`dot_fma`, `dot_mma`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.builder import is_float, scalar_type
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I1, I32, I64, if_then, loop, minimum, offset
from volta.numba_cuda.codegen.ptx_ops import commit_copies, wait_copies
from volta.numba_cuda.codegen.threads import barrier, dynamic_shared, thread_index
from volta.numba_cuda.products.dot_ends import Ends
from volta.numba_cuda.products.dot_feed import CastFeed, Feed, Layout
from volta.numba_cuda.products.dot_serial import take_turn
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.numba_cuda.products.dot_split import Share
from volta.numba_cuda.products.dot_tile import DotVariant, OperandLayout, Tile
from volta.numba_cuda.products.dot_work import Work
from volta.xla_like.dot import CHUNK, DotSpec, item_size

_PARTS = 4  # in which the copies of a stage begin


class Nest(Ends):
    """A product kernel under construction; engines say how a stage lies and how it is multiplied."""

    step: int
    """The k that one set of fragments covers."""

    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: DotVariant, function: ir.Function) -> None:
        self.b, self.spec, self.tile, self.variant = b, spec, variant.tile, variant
        self.args = Args(b, function.args[0], Sharing)
        self.size = item_size(spec.accumulator)
        self.kind = scalar_type(spec.accumulator)
        self.zero = ir.Constant(self.kind, 0.0 if is_float(spec.accumulator) else 0)
        self.thread = b.trunc(thread_index(b), I32)
        self.count = self.tile.thread_rows * self.tile.thread_cols
        self.direct = variant.lhs.direct or variant.rhs.direct

    # -- what engines say ----------------------------------------------------------------------------------------------

    @staticmethod
    def layout(tile: Tile, operand: OperandLayout, length: int) -> Layout:
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

    # -- the nest -----------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.variant
        self.shared = dynamic_shared(b.module, b)
        if v.serial:
            self.ticket = take_turn(b, a, self.thread, self.shared)
        self.settle(Work(b, self.spec, v, a, self.thread, self.ticket))
        self.chunks_of(self.part or self.serial)
        self.end()

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
    def _feed(operand: OperandLayout) -> type[Feed]:
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
        """All of k, or this part of it. While a stage is multiplied, those after it are in flight."""
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
        if self.serial and v.halves:
            self.serial.fetch(self.serial_places(self.serial), self.slots())
        self._meet()
        fragments = self.fragments(I32(0), 0)
        step = tiles if v.one_chunk else I32(per_chunk)
        stop = minimum(b, tiles, 1) if v.one_chunk else tiles
        self.many = b.and_(b.icmp_signed(">", tiles, I32(per_chunk)), b.not_(separate))
        if self.serial:
            self.many = b.or_(self.many, self.serial.follows)
        with loop(b, I32(0), stop, step, [*zeros, *fragments, *self.ahead, I32(0)]) as chunk:
            sums, state = list(chunk.values[: self.count]), list(chunk.values[self.count :])
            end = full
            if not v.one_chunk:
                with if_then(b, b.icmp_signed(">", chunk.index, I32(0))):
                    self.chunk_ends(sums, chunk.index, per_chunk)
                end = minimum(b, b.add(chunk.index, I32(per_chunk)), full)
            found = self._stages(chunk.index, end, [*zeros, *state])
            sums, state = found[: self.count], found[self.count :]
            if not v.whole:
                last = b.icmp_signed(">=", b.add(chunk.index, I32(per_chunk)), tiles)
                tail = b.select(b.and_(last, b.icmp_signed("<", full, tiles)), self.rest, I32(0))
                with loop(b, I32(0), tail, I32(self.step), sums) as rest:
                    left = self.masked(self.fragments(state[-1], rest.index), b.sub(tail, rest.index))
                    rest.advance(*self.products(left, list(rest.values)))
                sums = list(rest.results)
            chunk.advance(*sums, *state)
        self.sums = list(chunk.results[: self.count])

    def _stages(self, start: ir.Value, end: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        """Multiply whole stages: two an iteration, where a stage has but one set of fragments, so that sets trade
        places without being moved (seen: 59 of 144 instructions moved them). Beside a ragged end of k registers are too
        few for that.
        """
        b = self.b
        if self.step == self.tile.depth and self.variant.whole:
            pairs = b.and_(b.sub(end, start), I32(-2))
            between = b.select(b.icmp_signed("<", start, end), b.add(start, pairs), start)
            with loop(b, start, between, I32(2), values) as it:
                it.advance(*self._multiply(self._multiply(list(it.values))))
            start, values = between, list(it.results)
        with loop(b, start, end, I32(1), values) as it:
            it.advance(*self._multiply(list(it.values)))
        return list(it.results)

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
