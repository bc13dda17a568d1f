"""Products of few rows with weights in blocks on Hopper: bytes of weights stream through the multiprocessors.

Each multiprocessor has one block of threads, whose warps go their own ways. A warp takes a few columns at a time, over
up to 16 chunks of k: a lane has one chunk of some of these columns. While it multiplies, the copy engine fetches the
bytes of what it takes next, so memory never rests; and nobody waits for anybody, as the sums of a column's chunks are
found by lanes of one warp, which adds them in ascending order and joins blocks of k in pairs.

The rows' values stay in shared memory. Chunks lie there so far apart that lanes read them from different banks.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.dot_args import at, ceil_div
from volta.emit.loops import I1, I32, I64, if_else, if_then, loop, minimum, offset
from volta.emit.pairs import join_block
from volta.numba_cuda.codegen import ptx_mbarrier
from volta.numba_cuda.codegen.ptx_bulk import copy_bulk, prefetch_bulk
from volta.numba_cuda.codegen.ptx_following import await_earlier
from volta.numba_cuda.codegen.ptx_ops import ballot, once
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    warp_barrier,
)
from volta.numba_cuda.products.dot_block_parts import chunk_bytes
from volta.numba_cuda.products.dot_epilogue import Epilogue
from volta.numba_cuda.products.dot_in_blocks import AT_ONCE, KIND, QUAD, VALUES, InBlocks
from volta.numba_cuda.products.dot_numbers import (
    PERIOD,
    PeriodNumbers,
    ThreadNumbers,
    has_smaller,
    periods,
)
from volta.xla_like.dot import CHUNK, CHUNKS, DotSpec, levels_of

_LINE = 4 * CHUNK + QUAD  # bytes from chunk to chunk of a row
_BANKS = 8  # quads that lanes read at once
_NEAR = 4096  # bytes of what comes next that are asked for at once


@attrs.frozen
class StreamVariant:
    """``rows`` of the left operand, ``chunks`` of k, warps of a block, parts whose bytes a warp has at once
    (``stages``), chunks of a part (``span``), columns of a lane (``wide``), whether a part's bytes lie side by side
    (``dense``), and whether the weights are there before the kernels that come before it are done (``early``)."""

    rows: int
    chunks: int
    warps: int
    stages: int
    span: int
    wide: int
    dense: bool = False
    early: bool = False
    epilogue: Epilogue | None = None

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def across(self) -> int:
        """Columns that lie side by side in a warp."""
        return WARP // self.span

    @property
    def columns(self) -> int:
        """Columns of a part."""
        return self.wide * self.across

    @property
    def segments(self) -> int:
        """Parts of the same columns."""
        return -(-self.chunks // self.span)

    @property
    def levels(self) -> int:
        """Of DOT's tree, where k is more than one block."""
        return levels_of(self.chunks * CHUNK)

    def tiles(self, n: int) -> int:
        """Groups of columns that a warp takes at a time."""
        return -(-n // self.columns)

    def part_bytes(self, fmt: BlockFormat) -> int:
        """A column's bytes of a part."""
        return min(self.span, self.chunks) * chunk_bytes(fmt)

    def pitch(self, fmt: BlockFormat) -> int:
        """Bytes from column to column in shared memory: lanes that read at once have different banks."""
        quads = self.span * chunk_bytes(fmt) // QUAD
        if self.span < _BANKS:
            quads += (self.span - quads) % _BANKS
        return quads * QUAD

    def stage_bytes(self, fmt: BlockFormat) -> int:
        return self.columns * self.pitch(fmt)

    def sums_bytes(self) -> int:
        """A warp's sums: those of a part's chunks, then those of levels, in lines of a part's columns."""
        return 4 * self.columns * self.rows * (self.span + self.levels)

    def shared_bytes(self, spec: DotSpec) -> int:
        assert spec.blocks is not None
        own = self.stages * (self.stage_bytes(spec.blocks) + ptx_mbarrier.BARRIER_BYTES) + self.sums_bytes()
        return self.rows * self.chunks * _LINE + self.warps * (own + 4)


def streams(fmt: BlockFormat) -> bool:
    """Whether a format's chunks can be copied so that lanes read them from different banks."""
    return chunk_bytes(fmt) % (2 * QUAD) == QUAD


def span_of(chunks: int) -> int:
    """Chunks of a part, for so many of k: all, or those of a block of k, so that there are parts for many warps."""
    return next((span for span in (4, 8) if chunks <= span), CHUNKS)


def build_stream(module: ir.Module, name: str, spec: DotSpec, variant: StreamVariant) -> ir.Function:
    """Add the kernel; its args are those of `Arg` and `Ahead`."""
    function, b = new_entry(module, name, variant.threads, 1, waits=not variant.early)
    _Stream(b, spec, variant, function).emit()
    b.ret_void()
    return function


class _Stream(InBlocks[StreamVariant]):
    def emit(self) -> None:
        b, a, v = self.b, self.args, self.v
        self._lay_out()
        self.column, self.chunk = b.udiv(self.lane, I64(v.span)), b.and_(self.lane, I64(v.span - 1))
        blocks, warp, block = (b.trunc(x, I32) for x in (a.BLOCKS, self.warp, block_index(b)))
        self.rank = b.add(b.mul(warp, blocks), block)  # the last tiles are of different blocks
        self.warps = b.mul(blocks, I32(v.warps))
        tiles = b.udiv(b.add(b.trunc(a.N, I32), I32(v.columns - 1)), I32(v.columns))
        mine = b.sub(b.add(tiles, self.warps), b.add(self.rank, I32(1)))  # the others' included: not below 0
        self.parts = b.mul(b.udiv(mine, self.warps), I32(v.segments))
        with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
            for stage in range(v.stages):
                ptx_mbarrier.begin(b, self._barrier(I64(stage)), 1)
            ptx_mbarrier.opened(b)
        warp_barrier(b)
        for part in range(v.stages):
            self._copy(I32(part))
        if v.early:
            await_earlier(b)
        with if_then(b, b.icmp_signed("<=", self.parts, I32(v.stages))):
            self._ask_ahead()
        if not has_smaller(self.fmt):
            self._keep_rows(False)
            barrier(b)
            self._multiply(False)
            return
        overflows = self._keep_rows(True)
        with if_else(b, overflows) as branch:
            with branch.then():
                self._keep_rows(False)
                barrier(b)
                self._multiply(False)
            with branch.otherwise():
                self._multiply(True)

    def _lay_out(self) -> None:
        """Shared memory: the rows' values; then of each warp its stages, its sums, its barriers, and a word."""
        b, v = self.b, self.v
        self.each = v.stage_bytes(self.fmt)
        rows = v.rows * v.chunks * _LINE
        place = offset(b, self.shared, rows)
        self.stages = offset(b, place, b.mul(self.warp, I64(v.stages * self.each)))
        place = offset(b, place, v.warps * v.stages * self.each)
        self.sums = offset(b, place, b.mul(self.warp, I64(v.sums_bytes())))
        place = offset(b, place, v.warps * v.sums_bytes())
        self.barriers = offset(b, place, b.mul(self.warp, I64(v.stages * ptx_mbarrier.BARRIER_BYTES)))
        self.words = offset(b, place, v.warps * v.stages * ptx_mbarrier.BARRIER_BYTES)

    # -- bytes to shared memory ----------------------------------------------------------------------------------------

    def _barrier(self, stage: ir.Value) -> ir.Value:
        return offset(self.b, self.barriers, self.b.mul(stage, I64(ptx_mbarrier.BARRIER_BYTES)))

    def _where(self, part: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The first column of a part, and its first chunk."""
        b, v = self.b, self.v
        turn, segment = b.udiv(part, I32(v.segments)), b.urem(part, I32(v.segments))
        tile = b.add(self.rank, b.mul(turn, self.warps))
        return b.mul(tile, I32(v.columns)), b.mul(segment, I32(v.span))

    def _copy(self, part: ir.Value) -> None:
        """Start copying a part, where there is such: all of it, or a lane copies a column's bytes."""
        b, a, v = self.b, self.args, self.v
        first, chunk = self._where(part)
        stage, columns = self._stage(part), b.trunc(a.N, I32)
        nbytes = b.mul(minimum(b, b.sub(I32(v.chunks), chunk), v.span), I32(chunk_bytes(self.fmt)))

        def source(column: ir.Value) -> ir.Value:
            steps = ((column, a.RHS_N), (chunk, a.RHS_K))
            wide = ((b.sext(i, I64), b.sext(b.trunc(step, I32), I64)) for i, step in steps)
            return at(b, device_pointer(b, a.RHS), *wide)

        with if_then(b, b.icmp_signed("<", part, self.parts)):
            if v.dense:
                with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
                    nbytes = b.mul(nbytes, minimum(b, b.sub(columns, first), v.columns))
                    ptx_mbarrier.expect(b, self._barrier(stage), nbytes)
                    to = at(b, self.stages, (stage, I64(self.each)))
                    copy_bulk(b, to, source(first), nbytes, self._barrier(stage))
                return
            with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
                ptx_mbarrier.expect(b, self._barrier(stage), b.mul(nbytes, I32(v.columns)))
            warp_barrier(b)
            with if_then(b, b.icmp_signed("<", self.lane, I64(v.columns))):
                column = minimum(b, b.add(first, b.trunc(self.lane, I32)), b.sub(columns, I32(1)))
                to = at(b, self.stages, (stage, I64(self.each)), (self.lane, I64(v.pitch(self.fmt))))
                copy_bulk(b, to, source(column), nbytes, self._barrier(stage))

    def _stage(self, part: ir.Value) -> ir.Value:
        return self.b.zext(self.b.urem(part, I32(self.v.stages)), I64)

    def _ask_ahead(self) -> None:
        """Have the weights of the next product brought nearer."""
        b, a = self.b, self.args
        begin = b.zext(b.add(b.mul(b.trunc(self.lane, I32), self.warps), self.rank), I64)
        step = b.zext(b.mul(self.warps, I32(WARP)), I64)
        with loop(b, begin, ceil_div(b, a.NEXT_BYTES, _NEAR), step) as it:
            first = b.mul(it.index, I64(_NEAR))
            nbytes = b.and_(minimum(b, b.sub(a.NEXT_BYTES, first), _NEAR), I64(-QUAD))
            with if_then(b, b.icmp_signed(">", nbytes, I64(0))):
                prefetch_bulk(b, offset(b, device_pointer(b, a.NEXT), first), b.trunc(nbytes, I32))

    def _keep_rows(self, larger: bool) -> ir.Value:
        """Copy the rows' values to shared memory; `larger`: times 2^`SMALLER`, and whether any is infinite then."""
        b, a, v = self.b, self.args, self.v
        overflows = I1(0)
        count = v.chunks * CHUNK // VALUES
        steps = [(r, first) for r in range(v.rows) for first in range(0, count, v.threads)]
        for begin in range(0, len(steps), AT_ONCE):
            found = []
            for r, first in steps[begin : begin + AT_ONCE]:
                quad = b.add(self.thread, I64(first))
                place = minimum(b, quad, count - 1)
                row = at(b, device_pointer(b, a.LHS), (minimum(b, I64(r), b.sub(a.M, I64(1))), a.LHS_M))
                value = b.load(offset(b, row, b.mul(place, I64(QUAD))), typ=KIND, align=QUAD)
                found.append((r, quad, value))
            for r, quad, value in found:
                if larger:
                    value, infinite = self.enlarged(value)
                    overflows = b.or_(overflows, infinite)
                chunk, inside = b.lshr(quad, I64(6)), b.and_(quad, I64(CHUNK // VALUES - 1))
                to = at(b, self.shared, (chunk, I64(_LINE)), (inside, I64(QUAD)))
                with if_then(b, b.icmp_signed("<", quad, I64(count))):
                    b.store(value, offset(b, to, r * v.chunks * _LINE), align=QUAD)
        return self._any(overflows) if larger else overflows

    def _any(self, holds: ir.Value) -> ir.Value:
        """Whether an i1 holds for any thread of the block; all have met then."""
        b, found = self.b, I32(0)
        mask = ballot(b, holds)
        with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
            b.store(mask, offset(b, self.words, b.mul(self.warp, I64(4))), align=4)
        barrier(b)
        for warp in range(self.v.warps):
            found = b.or_(found, b.load(offset(b, self.words, 4 * warp), typ=I32, align=4))
        return b.icmp_signed("!=", found, I32(0))

    # -- chains --------------------------------------------------------------------------------------------------------

    def _multiply(self, smaller: bool) -> None:
        """The warp's parts, one after the other."""
        b, v = self.b, self.v
        with loop(b, I32(0), self.parts, I32(1), [self.zero] * v.rows) as it:
            once(b)
            part = it.index
            with if_then(b, b.icmp_signed("==", part, b.sub(self.parts, I32(v.stages)))):
                self._ask_ahead()
            stage, turn = self._stage(part), b.udiv(part, I32(v.stages))
            ptx_mbarrier.wait(b, self._barrier(stage), b.and_(turn, I32(1)))
            first, segment = self._where(part)
            first, chunk = b.zext(first, I64), b.zext(segment, I64)
            self._leave_sums(self._chains(stage, chunk, smaller))
            warp_barrier(b)
            self._copy(b.add(part, I32(v.stages)))
            totals = self._added(chunk, list(it.values))
            warp_barrier(b)  # before other sums take the place of these
            writes = b.icmp_signed("<", self.lane, I64(v.columns))
            if v.segments > 1:
                writes = b.and_(writes, b.icmp_signed(">=", b.add(chunk, I64(v.span)), I64(v.chunks)))
            with if_then(b, writes):
                self.write(b.add(first, self.lane), totals)
            it.advance(*totals)

    def _chains(self, stage: ir.Value, first: ir.Value, smaller: bool) -> list[ir.Value]:
        """The lane's chains over its chunk, column by column for each row.

        `smaller`: the rows' values are 2^`SMALLER` times as large, and the numbers that much smaller."""
        b, v, fmt = self.b, self.v, self.fmt
        pitch = v.pitch(fmt)
        own = at(
            b, self.stages, (stage, I64(self.each)), (self.column, I64(pitch)), (self.chunk, I64(chunk_bytes(fmt)))
        )
        columns = [offset(b, own, i * v.across * pitch) for i in range(v.wide)]
        chunk = minimum(b, b.add(first, self.chunk), v.chunks - 1)
        row = at(b, self.shared, (chunk, I64(_LINE)))

        def rows(by: ir.Value | int) -> list[ir.Value]:
            return [offset(b, offset(b, row, r * v.chunks * _LINE), by) for r in range(v.rows)]

        zeros = [self.zero] * (v.rows * v.wide)
        if fmt.elements < CHUNK or periods(fmt) is None:
            starts = [(i, i // fmt.elements * fmt.nbytes) for i in range(0, CHUNK, fmt.elements)]
            for start, begin in starts:
                numbers = [ThreadNumbers(b, fmt, x, begin, True, smaller) for x in columns]
                zeros = self.links(numbers, rows(4 * start), range(fmt.elements), zeros)
            return zeros
        blocks = [ThreadNumbers(b, fmt, x, 0, True, smaller) for x in columns]
        each, packed = len(fmt.scale.groups) * PERIOD // CHUNK, [x.packed() for x in blocks]
        with loop(b, 0, CHUNK // PERIOD, 1, zeros, some=True) as it:
            once(b)
            numbers = [
                PeriodNumbers(b, fmt, x, it.index, y.group_factors(words, it.index, each), smaller)
                for x, y, words in zip(columns, blocks, packed, strict=True)
            ]
            here = rows(b.mul(it.index, I64(4 * PERIOD)))
            it.advance(*self.links(numbers, here, range(PERIOD), it.values))
        return list(it.results)

    # -- sums of chunks ------------------------------------------------------------------------------------------------

    def _line(self, number: ir.Value, r: int, column: ir.Value) -> ir.Value:
        """The place of a column's sum, of a chunk of the part or, behind these, of a level."""
        b, v = self.b, self.v
        line = b.add(b.mul(number, I64(v.rows)), I64(r))
        return offset(b, self.sums, b.mul(b.add(b.mul(line, I64(v.columns)), column), I64(4)))

    def _leave_sums(self, sums: Sequence[ir.Value]) -> None:
        """Store the sums of the lane's chunk."""
        b = self.b
        for number, x in enumerate(sums):
            r, i = divmod(number, self.v.wide)
            b.store(x, self._line(self.chunk, r, b.add(self.column, I64(i * self.v.across))), align=4)

    def _added(self, first: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """The totals of the part's columns, one to a lane, with the sums of its chunks added in ascending order: of all
        of k behind the last part."""
        b, v, kind = self.b, self.v, ir.FloatType()
        own = b.and_(self.lane, I64(v.columns - 1))
        begins = b.icmp_signed("==", b.and_(first, I64(CHUNKS - 1)), I64(0))
        found = []
        for r in range(v.rows):
            lines = [b.load(self._line(I64(i), r, own), typ=kind, align=4) for i in range(v.span)]
            now = b.select(begins, lines[0], b.fadd(totals[r], lines[0])) if v.segments > 1 else lines[0]
            for i, x in enumerate(lines[1:], 1):
                there = b.icmp_signed("<", b.add(first, I64(i)), I64(v.chunks))
                now = b.select(there, b.fadd(now, x), now)
            found.append(now)
        if not v.levels:
            return found

        def waiting(level: ir.Value) -> list[ir.Value]:
            return [b.load(self._line(b.add(level, I64(v.span)), r, own), typ=kind, align=4) for r in range(v.rows)]

        def leave(level: ir.Value, sums: Sequence[ir.Value]) -> None:
            for r, x in enumerate(sums):
                with if_then(b, b.icmp_signed("<", self.lane, I64(v.columns))):
                    b.store(x, self._line(b.add(level, I64(v.span)), r, own), align=4)

        behind = b.add(first, I64(v.span))
        last = b.icmp_signed(">=", behind, I64(v.chunks))
        ends = b.or_(last, b.icmp_signed("==", b.and_(behind, I64(CHUNKS - 1)), I64(0)))
        with if_else(b, ends) as branch:
            with branch.then():
                block = b.lshr(first, I64(CHUNKS.bit_length() - 1))
                branch.give(*join_block(b, found, block, last, waiting, leave, b.fadd))
            with branch.otherwise():
                branch.give(*found)
        return list(branch.results)
