"""What the attention kernels share: tiles in shared memory, and matrices of pairs.

A block of threads owns a tile of *resident* rows (queries, or keys in the kernel for their gradients) and walks over
the other side in blocks of 64 *streamed* rows. A warp's lanes form `down` rows of ``across``; a thread has `rows_each`
of the tile's rows, `down` apart, and of the 64 streamed rows every ``across``-th: so SUM's halving of 64 lanes runs in
registers first and between neighbouring threads last. What a warp computes of a matrix of pairs it keeps in a part of
shared memory of its own, where it is the left operand of the next product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, item_size
from volta.emit.loops import I32, I64, if_then, minimum, offset
from volta.numba_cuda.attention.attention_common import AttentionKernel
from volta.numba_cuda.target.ptx_ops import commit_copies, copy_async, wait_copies
from volta.numba_cuda.target.threads import WARP, barrier, thread_index
from volta.xla_like.attention import BLOCK, AttentionSpec

WIDE = 16
"""Bytes that a thread reads or copies at once."""

ABSENT = {4: 0x7FA5F00D, 8: 0x7FF5A5A5F00DF00D}
"""Bits of a NaN that no arithmetic gives: what stands in a matrix for a pair that is not visible."""


@attrs.frozen
class AttentionTile:
    """How a kernel runs: rows of a thread, lanes across, warps of a team; how operands are copied.

    ``whole``: every operand can be copied in groups of 16 bytes; ``copies``: copies may run on by themselves (8.0 and
    up). In the kernels for gradients ``places`` is how many blocks of the operand that is needed last have room, and
    ``parked`` says that weights wait in shared memory for their cotangents, not in registers. A block has as many
    ``teams``, each with warps for all the tile's rows; they compute different products of them at one time. ``ahead``:
    what a step of a product needs is read in the step before it, which takes registers.
    """

    rows_each: int
    across: int
    warps: int
    whole: bool
    copies: bool
    places: int = 1
    parked: bool = False
    teams: int = 1
    ahead: bool = False

    @property
    def threads(self) -> int:
        return self.teams * self.warps * WARP

    @property
    def warp_rows(self) -> int:
        return self.rows_each * (WARP // self.across)

    @property
    def rows(self) -> int:
        return self.warps * self.warp_rows

    def suffix(self) -> str:
        flags = f"{'w' * self.whole}{'c' * self.copies}{'p' * self.parked}{'a' * self.ahead}"
        return f"{self.rows_each}x{self.across}x{self.warps}{flags}{self.places}{self.teams}"


@attrs.frozen
class Matrix:
    """A matrix in shared memory: pointer to its first element, columns, and bytes from a row to the next."""

    pointer: ir.Value
    width: int
    line: int


def line_of(width: int, size: int) -> int:
    """Bytes of a row in shared memory: an odd number of groups, so that neighbouring rows lie in different banks."""
    return WIDE * (-(-width * size // WIDE) | 1)


def matrix_bytes(rows: int, width: int, size: int) -> int:
    """Bytes of a matrix, with what the last row's reader of whole groups may touch beyond it."""
    return rows * line_of(width, size) + 256


def pairs_line(across: int, size: int) -> int:
    return (BLOCK + across) * size


class Tiles(AttentionKernel):
    """Emits what one block of threads of an attention kernel does; see the module's first lines."""

    team: ir.Value  # of several
    warp: ir.Value  # within the team

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: AttentionSpec, tile: AttentionTile) -> None:
        super().__init__(b, args, spec)
        self.tile = tile
        self.group = WIDE // self.size
        self.columns = BLOCK // tile.across
        self.down = WARP // tile.across
        self.thread = thread_index(b)
        lane = b.and_(self.thread, I64(WARP - 1))
        self.lane = b.trunc(lane, I32)
        self.warp = b.lshr(self.thread, I64(5))
        if tile.teams > 1:
            self.team, self.warp = b.udiv(self.warp, I64(tile.warps)), b.urem(self.warp, I64(tile.warps))
        # Two neighbouring lanes are one above the other: so half a warp reads 128 bytes of each operand, not 256.
        upper = b.lshr(lane, I64(tile.across.bit_length()))
        self.tx = b.and_(b.lshr(lane, I64(1)), I64(tile.across - 1))
        self.ty = b.or_(b.and_(lane, I64(1)), b.shl(upper, I64(1)))
        self.across_lanes = b.trunc(self.tx, I32)

    # -- copies into shared memory -----------------------------------------------------------------------------------

    def bring(self, to: Matrix, rows: int, base: ir.Value, stride: ir.Value, first: ir.Value, size: ir.Value) -> None:
        """Copy rows ``first ..`` of an operand; beyond its ``size`` rows come copies of the last."""
        b, tile, dtype = self.b, self.tile, self.spec.dtype
        item = item_size(dtype)
        each = WIDE // item if tile.whole else 1
        parts = to.width // each
        total, last = rows * parts, b.sub(size, I64(1))
        turns = -(-total // tile.threads)
        for turn in range(turns):
            number = b.add(self.thread, I64(turn * tile.threads))

            def copy(number: ir.Value = number) -> None:
                row, part = b.udiv(number, I64(parts)), b.urem(number, I64(parts))
                line = offset(b, base, b.mul(minimum(b, b.add(first, row), last), stride))
                source = offset(b, line, b.mul(part, I64(each * item)))
                place = offset(b, to.pointer, b.mul(row, I64(to.line)))
                self.copy(source, offset(b, place, b.mul(part, I64(each * self.size))), each)

            if (turn + 1) * tile.threads > total:
                with if_then(b, b.icmp_unsigned("<", number, I64(total))):
                    copy()
            else:
                copy()
        if tile.copies:
            commit_copies(b)

    def copy(self, source: ir.Value, to: ir.Value, each: int) -> None:
        """Copy so many neighbouring elements into shared memory."""
        b, dtype = self.b, self.spec.dtype
        nbytes = each * item_size(dtype)
        if dtype not in HALF_DTYPES and self.tile.copies:
            copy_async(b, to, source, nbytes)
            return
        raw = ir.IntType(8 * item_size(dtype)) if dtype in HALF_DTYPES else self.kind
        if each == 1:
            b.store(self.one.from_memory(b.load(source, align=nbytes, typ=raw), dtype).ir, to, align=self.size)
            return
        found = b.load(source, align=WIDE, typ=ir.VectorType(raw, each))
        values = Builder(b, each).from_memory(found, dtype).ir
        for start in range(0, each, self.group):
            mask = ir.Constant(ir.VectorType(I32, self.group), list(range(start, start + self.group)))
            part = b.shuffle_vector(values, ir.Constant(values.type, ir.Undefined), mask)
            b.store(part, offset(b, to, start * self.size), align=WIDE)

    def arrived(self) -> None:
        """All threads meet, and see what each of them has copied."""
        if self.tile.copies:
            wait_copies(self.b, 0)
        barrier(self.b)

    def meet(self) -> None:
        barrier(self.b)

    # -- pairs -------------------------------------------------------------------------------------------------------

    def first_pair(self, pairs: Matrix) -> ir.Value:
        """Where the thread's first row of pairs begins."""
        b = self.b
        first = b.add(b.mul(self.warp, I64(self.tile.warp_rows)), self.ty)
        return offset(b, pairs.pointer, b.mul(first, I64(pairs.line)))

    def pair_places(self, pairs: Matrix) -> list[ir.Value]:
        """Where the thread's own pairs lie, row by row."""
        b = self.b
        start = offset(b, self.first_pair(pairs), b.mul(self.tx, I64(self.size)))
        return [
            offset(b, start, r * self.down * pairs.line + c * self.tile.across * self.size)
            for r in range(self.tile.rows_each)
            for c in range(self.columns)
        ]

    def distance(self, x: ir.Value) -> ir.Value:
        """An i64 as an i32 that compares alike with all numbers within a tile."""
        b, most = self.b, I64(1 << 16)
        x = minimum(b, x, most)
        return b.trunc(b.select(b.icmp_signed("<", x, I64(-(1 << 16))), I64(-(1 << 16)), x), I32)

    def put(
        self, places: Sequence[ir.Value], values: Sequence[ir.Value], mixed: ir.Value,
        visible: Callable[[], Sequence[ir.Value]],
    ) -> None:  # fmt: skip
        """Leave pairs for the warp; where some are not visible, those as absent."""
        b = self.b
        for place, value in zip(places, values, strict=True):
            b.store(value, place, align=self.size)
        with if_then(b, mixed):
            absent = ir.Constant(self.bits, ABSENT[self.size])
            for place, seen in zip(places, visible(), strict=True):
                with if_then(b, b.not_(seen)):
                    b.store(absent, place, align=self.size)

    def park(self, pairs: Matrix, values: list[ir.Value]) -> list[ir.Value]:
        """Put the thread's own pairs aside, if they are to wait in shared memory."""
        if self.tile.parked:
            for place, value in zip(self.pair_places(pairs), values, strict=True):
                self.b.store(value, place, align=self.size)
        return values

    def unpark(self, pairs: Matrix, values: list[ir.Value]) -> list[ir.Value]:
        """The thread's own pairs, as they were put or parked (an absent one is some number)."""
        return self.own_pairs(pairs) if self.tile.parked else values

    def own_pairs(self, pairs: Matrix) -> list[ir.Value]:
        """What lies at the thread's own places of a matrix of pairs."""
        return [self.b.load(place, typ=self.kind, align=self.size) for place in self.pair_places(pairs)]

    # -- rows --------------------------------------------------------------------------------------------------------

    def combine_rows(self, values: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """Each row's 64 columns by halving. A lane gets the result of one of its rows: that of `lane_row`."""
        b, columns = self.b, self.columns
        states = []
        for r in range(self.tile.rows_each):
            row = list(values[r * columns : (r + 1) * columns])
            while len(row) > 1:
                half = len(row) // 2
                row = [combine(row[i], row[i + half]) for i in range(half)]
            states.append(row[0])
        distance = self.tile.across // 2
        while distance:
            half = len(states) // 2
            if half:
                upper = b.icmp_signed("!=", b.and_(self.across_lanes, I32(distance)), I32(0))
                keep = [b.select(upper, states[half + i], states[i]) for i in range(half)]
                give = [b.select(upper, states[i], states[half + i]) for i in range(half)]
            else:
                keep = give = states
            states = [combine(x, self.shuffled("bfly", y, I32(2 * distance))) for x, y in zip(keep, give, strict=True)]
            distance //= 2
        return states[0]

    @property
    def lane_rows(self) -> int:
        """Lanes side by side that have the same row's results."""
        return self.tile.across // self.tile.rows_each

    def lane_row(self) -> ir.Value:
        """The row within the block's tile whose results `combine_rows` gives this lane."""
        b = self.b
        r = b.udiv(self.tx, I64(self.lane_rows))
        return b.add(b.add(b.mul(self.warp, I64(self.tile.warp_rows)), self.ty), b.mul(r, I64(self.down)))

    def spread_rows(self, value: ir.Value) -> list[ir.Value]:
        """From each lane its row's value; to each thread those of all its rows."""
        b = self.b
        start = b.and_(self.lane, I32(WARP - 2 * self.tile.across | 1))
        lanes = [b.or_(start, I32(2 * r * self.lane_rows)) for r in range(self.tile.rows_each)]
        return [self.shuffled("idx", value, lane) for lane in lanes]

    def row(self, r: int) -> ir.Value:
        """The thread's r-th row within the block's tile."""
        b = self.b
        return b.add(b.add(b.mul(self.warp, I64(self.tile.warp_rows)), self.ty), I64(r * self.down))

    # -- results -----------------------------------------------------------------------------------------------------

    def write_row(self, line: ir.Value, values: list[ir.Value], width: int) -> None:
        """Write the thread's columns of a row."""
        b, dtype, group = self.b, self.spec.dtype, self.group
        item = item_size(dtype)
        wide = self.tile.whole and dtype not in HALF_DTYPES
        for g in range(len(values) // group):
            column = b.add(b.mul(self.tx, I64(group)), I64(g * self.tile.across * group))
            for e in range(group):
                if wide and e:
                    break
                here = b.add(column, I64(e))
                with if_then(b, b.icmp_signed("<", here, I64(width))):
                    place = offset(b, line, b.mul(here, I64(item)))
                    if wide:
                        vector: ir.Value = ir.Constant(ir.VectorType(self.kind, group), ir.Undefined)
                        for i in range(group):
                            vector = b.insert_element(vector, values[g * group + i], ir.IntType(32)(i))
                        b.store(vector, place, align=16)
                    else:
                        value = self.one.value(values[g * group + e], self.dtype)
                        self.one.store(value, place, dtype)
