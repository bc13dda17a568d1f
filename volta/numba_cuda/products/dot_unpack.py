"""Products of few rows with weights in blocks of few bits: each byte is read once, at the speed of memory.

A warp computes 32 neighbouring columns over one chunk of k at a time, a lane one of them. Their bytes are copied to
shared memory in parts, in the order in which they are needed, so that the first numbers are unpacked while the others
are on their way, and where there is room those of the warp's next chunk too. The warps of a block take chunks of the
same columns; they leave the chunks' sums in shared memory, where the first warp adds them in ascending order, and joins
blocks of k in pairs.

Columns lie in shared memory so far apart that lanes read them from different banks.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.block_numbers import WORD
from volta.emit.dot_args import at, ceil_div
from volta.emit.loops import I1, I16, I32, I64, if_else, if_then, loop, minimum, offset
from volta.emit.pairs import join_block
from volta.numba_cuda.codegen.ptx_ops import ballot, commit_copies, copy_async, once, prefetch, wait_copies
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    warp_barrier,
)
from volta.numba_cuda.products.dot_block_parts import Unit, chunk_bytes, parts, runs
from volta.numba_cuda.products.dot_epilogue import Epilogue
from volta.numba_cuda.products.dot_in_blocks import AT_ONCE, KIND, QUAD, VALUES, InBlocks
from volta.numba_cuda.products.dot_numbers import ThreadNumbers, has_smaller
from volta.xla_like.dot import CHUNK, CHUNKS, DotSpec

UNPACKED_ROWS = 8
"""Rows up to which weights are unpacked by each product that reads them."""

_NEAR = 128  # bytes that are asked for at once
_LINE = 4 * WARP  # bytes of a sum of each lane


@attrs.frozen
class UnpackVariant:
    """``rows`` of the left operand, warps of a block, chunks whose bytes a warp has at once (``stages``), chunks whose
    sums a block holds (``held``, a multiple of the warps), the ``unit`` of copies, whether all chunks are ``full``, and
    for how many ``levels`` of DOT's tree there is room (0: k is one block)."""

    rows: int
    warps: int
    stages: int
    held: int
    unit: Unit
    full: bool
    levels: int = 0
    epilogue: Epilogue | None = None

    @property
    def threads(self) -> int:
        return self.warps * WARP

    def blocks(self, n: int) -> int:
        """Blocks for a product of n columns."""
        return -(-n // WARP)

    def pitch(self, fmt: BlockFormat) -> int:
        """Bytes from column to column in shared memory: an odd number of quads, where quads are read, or of words."""
        size = QUAD if self.unit == QUAD else WORD
        return (-(-chunk_bytes(fmt) // size) | 1) * size

    def stage_bytes(self, fmt: BlockFormat) -> int:
        """A warp's part of a chunk: its columns, then the rows' values."""
        return -(-WARP * self.pitch(fmt) // QUAD) * QUAD + self.rows * CHUNK * 4

    def shared_bytes(self, spec: DotSpec) -> int:
        assert spec.blocks is not None
        sums = self.rows * (self.held + self.levels) * _LINE
        return sums + self.warps * self.stages * self.stage_bytes(spec.blocks)


def build_unpack(module: ir.Module, name: str, spec: DotSpec, variant: UnpackVariant) -> ir.Function:
    """Add the kernel; its args are those of `Arg` and `Ahead`."""
    resident = 2 if variant.threads == 512 and variant.rows <= 2 else None
    function, b = new_entry(module, name, variant.threads, resident)
    _Unpack(b, spec, variant, function).emit()
    b.ret_void()
    return function


class _Unpack(InBlocks[UnpackVariant]):
    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: UnpackVariant, function: ir.Function) -> None:
        super().__init__(b, spec, variant, function)
        self.parts = parts(self.fmt, variant.unit)

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.v
        self.first = b.mul(block_index(b), I64(WARP))
        self.last = b.trunc(minimum(b, b.sub(b.sub(a.N, I64(1)), self.first), WARP - 1), I32)  # column of the block
        self.columns = at(b, device_pointer(b, a.RHS), (self.first, a.RHS_N))
        lhs = device_pointer(b, a.LHS)
        self.x = [at(b, lhs, (minimum(b, I64(r), b.sub(a.M, I64(1))), a.LHS_M)) for r in range(v.rows)]
        held = v.rows * (v.held + v.levels) * _LINE
        own = I64(v.stages * v.stage_bytes(self.fmt))
        self.mine = offset(b, self.shared, b.add(I64(held), b.mul(self.warp, own)))
        self.chunks = ceil_div(b, a.K, CHUNK)
        if v.stages > 1:
            self._copy(self.warp)
        totals = [self.zero] * v.rows
        if v.levels:
            with loop(b, 0, self.chunks, v.held, totals, some=True) as segment:
                once(b)
                end = minimum(b, b.add(segment.index, I64(v.held)), self.chunks)
                segment.advance(*self._segment(segment.index, end, list(segment.values)))
            totals = segment.results
        else:
            totals = self._segment(I64(0), self.chunks, totals)
        with if_then(b, b.icmp_signed("==", self.warp, I64(0))):
            self.write(b.add(self.first, self.lane), totals)
        each, lines = v.threads, ceil_div(b, a.NEXT_BYTES, _NEAR)
        begin = b.add(b.mul(block_index(b), I64(each)), self.thread)
        with loop(b, begin, lines, b.mul(ceil_div(b, a.N, WARP), I64(each))) as it:
            prefetch(b, offset(b, device_pointer(b, a.NEXT), b.mul(it.index, I64(_NEAR))))

    def _segment(self, begin: ir.Value, end: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """The first warp's totals with the sums of chunks from `begin` to `end`."""
        b = self.b
        self._sums(begin, end)
        barrier(b)
        with if_else(b, b.icmp_signed("==", self.warp, I64(0))) as branch:
            with branch.then():
                branch.give(*self._added(begin, end, totals))
            with branch.otherwise():
                branch.give(*totals)
        if self.v.levels:
            barrier(b)  # before the next chunks' sums take the place of these
        return list(branch.results)

    def _sums(self, begin: ir.Value, end: ir.Value) -> None:
        """The warp's chunks of a segment."""
        b, v = self.b, self.v

        def chunk(index: ir.Value) -> None:
            for r, x in enumerate(self._chunk(index)):
                b.store(x, self._sum(b.sub(index, begin), r), align=4)

        if v.warps == v.held:
            own = b.add(begin, self.warp)
            with if_then(b, b.icmp_signed("<", own, end)):
                chunk(own)
            return
        with loop(b, b.add(begin, self.warp), end, v.warps) as it:
            once(b)
            chunk(it.index)

    # -- bytes to shared memory ----------------------------------------------------------------------------------------

    def _stage(self, chunk: ir.Value) -> ir.Value:
        """Where a chunk's bytes lie in shared memory."""
        b, v = self.b, self.v
        if v.stages == 1:
            return self.mine
        turn = b.urem(b.udiv(chunk, I64(v.warps)), I64(v.stages))
        return offset(b, self.mine, b.mul(turn, I64(v.stage_bytes(self.fmt))))

    def _depth(self, chunk: ir.Value) -> ir.Value:
        return minimum(self.b, self.b.sub(self.args.K, self.b.mul(chunk, I64(CHUNK))), CHUNK)

    def _copy(self, chunk: ir.Value) -> None:
        """Start copying a chunk, where there is such: as many groups of copies as it has parts, in any case."""
        b = self.b
        there = b.icmp_signed("<", chunk, self.chunks)
        source, to = at(b, self.columns, (chunk, self.args.RHS_K)), self._stage(chunk)
        depth = self._depth(chunk)
        for number, units in enumerate(self.parts):
            with if_then(b, there):
                if not number:
                    self._copy_rows(chunk, depth, self._rows_at(to))
                for begin, count in runs(units):
                    self._copy_units(source, to, depth, begin, count)
            commit_copies(b)

    def _rows_at(self, stage: ir.Value) -> ir.Value:
        v = self.v
        return offset(self.b, stage, v.stage_bytes(self.fmt) - v.rows * CHUNK * 4)

    def _copy_rows(self, chunk: ir.Value, depth: ir.Value, to: ir.Value) -> None:
        """The rows' values, zeros where there are none."""
        b, v = self.b, self.v
        for r, x in enumerate(self.x):
            for i in range(0, CHUNK, VALUES * WARP):
                k = b.add(b.mul(self.lane, I64(VALUES)), I64(i))
                source = offset(b, x, b.mul(b.add(b.mul(chunk, I64(CHUNK)), k), I64(4)))
                valid = None if v.full else self._clamped(b.mul(b.sub(depth, k), I64(4)), QUAD)
                copy_async(b, offset(b, offset(b, to, r * CHUNK * 4), b.mul(k, I64(4))), source, QUAD, valid)

    def _copy_units(self, source: ir.Value, to: ir.Value, depth: ir.Value, begin: int, count: int) -> None:
        """So many units of each column, neighbouring lanes reading neighbours."""
        b, fmt, unit = self.b, self.fmt, self.v.unit
        step, pitch = b.trunc(self.args.RHS_N, I32), self.v.pitch(fmt)
        lane = b.trunc(self.lane, I32)
        nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
        waiting = []
        for first in range(0, WARP * count, WARP):
            number = b.add(lane, I32(first))
            column = b.udiv(number, I32(count))
            byte = b.mul(b.add(b.sub(number, b.mul(column, I32(count))), I32(begin)), I32(unit))
            line = offset(b, source, b.zext(b.mul(minimum(b, column, self.last), step), I64))
            place = offset(b, to, b.zext(b.add(b.mul(column, I32(pitch)), byte), I64))
            far = b.zext(byte, I64)
            if unit != 2:
                valid = None if self.v.full else self._clamped(b.sub(nbytes, far), unit)
                copy_async(b, place, offset(b, line, far), unit, valid)
                continue
            # of a chunk that is not full the rest is not looked at
            here = far if self.v.full else minimum(b, far, b.sub(nbytes, I64(unit)))
            waiting.append((b.load(offset(b, line, here), typ=I16, align=unit), place))
            if len(waiting) == AT_ONCE or first + WARP == WARP * count:
                for value, there in waiting:
                    b.store(value, there, align=unit)
                waiting.clear()

    def _clamped(self, number: ir.Value, most: int) -> ir.Value:
        """A number from 0 to `most`, as an i32."""
        b = self.b
        number = minimum(b, number, most)
        return b.trunc(b.select(b.icmp_signed(">", number, I64(0)), number, I64(0)), I32)

    # -- chains --------------------------------------------------------------------------------------------------------

    def _chunk(self, chunk: ir.Value) -> list[ir.Value]:
        """The chains of the warp's columns over a chunk."""
        b, v, fmt = self.b, self.v, self.fmt
        ahead = 0
        if v.stages > 1:
            self._copy(b.add(chunk, I64(v.warps)))
            ahead = len(self.parts)
        else:
            self._copy(chunk)
        stage, depth = self._stage(chunk), self._depth(chunk)
        if not has_smaller(fmt):
            return self._chains(stage, depth, ahead, len(self.parts), False)
        wait_copies(b, ahead + len(self.parts) - 1)
        larger, overflows = self._larger(self._rows_at(stage))
        with if_else(b, b.icmp_signed("!=", ballot(b, overflows), I32(0))) as branch:
            with branch.then():
                wait_copies(b, ahead)
                branch.give(*self._chains(stage, depth, ahead, 0, False))
            with branch.otherwise():
                for place, value in larger:
                    b.store(value, place, align=QUAD)
                branch.give(*self._chains(stage, depth, ahead, len(self.parts), True))
        return list(branch.results)

    def _larger(self, rows: ir.Value) -> tuple[list[tuple[ir.Value, ir.Value]], ir.Value]:
        """The values that this lane copied, times 2^`SMALLER`, with their places; whether any is infinite then."""
        b, found, overflows = self.b, [], I1(0)
        for r in range(self.v.rows):
            for i in range(0, CHUNK, VALUES * WARP):
                k = b.add(b.mul(self.lane, I64(VALUES)), I64(r * CHUNK + i))
                place = offset(b, rows, b.mul(k, I64(4)))
                value, infinite = self.enlarged(b.load(place, typ=KIND, align=QUAD))
                overflows = b.or_(overflows, infinite)
                found.append((place, value))
        return found, overflows

    def _chains(
        self, stage: ir.Value, depth: ir.Value, ahead: int, waiting: int, smaller: bool
    ) -> list[ir.Value]:  # fmt: skip
        """The chains of a chunk whose bytes are in shared memory, or come there in so many parts that are waited for.

        `smaller`: the rows' values are 2^`SMALLER` times as large, and the numbers that much smaller."""
        b, v, fmt = self.b, self.v, self.fmt
        column, rows = at(b, stage, (self.lane, I64(v.pitch(fmt)))), self._rows_at(stage)
        sums = [self.zero] * v.rows

        def at_rows(first: int) -> list[ir.Value]:
            return [offset(b, rows, 4 * (r * CHUNK + first)) for r in range(v.rows)]

        numbers: ThreadNumbers | None = None
        each = CHUNK // max(1, waiting)
        step = min(each, fmt.elements)  # a part is some blocks, or a block some parts
        for first in range(0, CHUNK, step):
            if first % each == 0:
                if waiting:
                    wait_copies(b, ahead + waiting - 1 - first // each)
                warp_barrier(b)
            block, inside = divmod(first, fmt.elements)
            if not inside:
                numbers = ThreadNumbers(b, fmt, column, block * fmt.nbytes, v.unit == QUAD, smaller)
            assert numbers is not None
            if v.full or not first:
                sums = self.links([numbers], at_rows(first), range(inside, inside + step), sums)
                continue
            with if_else(b, b.icmp_signed(">", depth, I64(first))) as branch:
                with branch.then():
                    branch.give(*self.links([numbers], at_rows(first), range(step), sums))
                with branch.otherwise():
                    branch.give(*sums)
            sums = list(branch.results)
        warp_barrier(b)  # before other bytes take the place of these
        return sums

    # -- sums of chunks ------------------------------------------------------------------------------------------------

    def _sum(self, chunk: ir.Value, r: int) -> ir.Value:
        """Where the lane's sum of a chunk of the segment is."""
        b = self.b
        line = b.add(b.mul(chunk, I64(self.v.rows)), I64(r))
        return offset(b, at(b, self.shared, (line, I64(_LINE))), b.mul(self.lane, I64(4)))

    def _added(self, begin: ir.Value, end: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """The sums of a segment's chunks, in order, block of k by block, each joined with those that wait."""
        b, v = self.b, self.v
        if not v.levels:
            return self._block(I64(0), end)
        with loop(b, begin, end, CHUNKS, totals, some=True) as it:
            many = minimum(b, b.sub(end, it.index), CHUNKS)
            block = b.lshr(it.index, I64(CHUNKS.bit_length() - 1))
            ends = b.icmp_signed("==", b.add(it.index, many), self.chunks)
            sums = self._block(b.sub(it.index, begin), many)
            it.advance(*join_block(b, sums, block, ends, self._waiting, self._leave, b.fadd))
        return list(it.results)

    def _block(self, first: ir.Value, many: ir.Value) -> list[ir.Value]:
        """The sums of so many chunks, one at least, added in order: all are read at once."""
        b, v = self.b, self.v
        every, last = range(min(CHUNKS, v.held)), b.sub(many, I64(1))
        places = [b.add(first, minimum(b, I64(i), last)) for i in every]
        sums = [[b.load(self._sum(at, r), typ=ir.FloatType(), align=4) for r in range(v.rows)] for at in places]
        now = sums[0]
        for i in every[1:]:
            exists = b.icmp_signed("<", I64(i), many)
            now = [b.select(exists, b.fadd(x, y), x) for x, y in zip(now, sums[i], strict=True)]
        return now

    def _waiting(self, level: ir.Value) -> list[ir.Value]:
        every = range(self.v.rows)
        return [self.b.load(self._level(level, r), typ=ir.FloatType(), align=4) for r in every]

    def _leave(self, level: ir.Value, sums: Sequence[ir.Value]) -> None:
        for r, x in enumerate(sums):
            self.b.store(x, self._level(level, r), align=4)

    def _level(self, level: ir.Value, r: int) -> ir.Value:
        """Where the sum of a level of the tree waits, behind those of chunks."""
        return self._sum(self.b.add(level, I64(self.v.held)), r)
