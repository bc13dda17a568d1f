"""What the attention kernels share: tiles in shared memory, and matrices of pairs.

A block of threads owns a tile of *resident* rows (queries, or keys in the kernel for their gradients) and traverses
the other side in blocks of 64 *streamed* rows. A warp's lanes form `down` rows of ``across``; a thread has `rows_each`
of the tile's rows, `beside` of them neighbours, and of the 64 streamed rows every ``across``-th: so SUM's halving of 64
lanes runs in registers first and between neighbouring threads last. What a warp computes of a matrix of pairs it keeps
in a part of shared memory of its own, where it is the left operand of the next product. There it lies transposed, a
line for each streamed row, so that a thread reads and writes the pairs of neighbouring rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, item_size
from volta.emit.loops import I32, I64, if_then, offset
from volta.numba_cuda.attention.attention_copies import Copies
from volta.numba_cuda.attention.attention_layout import AttentionTile, Matrix
from volta.numba_cuda.codegen.threads import WARP
from volta.xla_like.attention import BLOCK, AttentionSpec

ABSENT = {4: 0x7FA5F00D, 8: 0x7FF5A5A5F00DF00D}
"""Bits of a NaN that no arithmetic gives: what stands in a matrix for a pair that is not visible."""


class Tiles(Copies):
    """Emits what one block of threads of an attention kernel does; see the module's first lines."""

    warp_group: ir.Value  # of several
    warp: ir.Value  # within the warp group

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: AttentionSpec, tile: AttentionTile) -> None:
        super().__init__(b, args, spec, tile)
        self.columns = BLOCK // tile.across
        self.down = WARP // tile.across
        self.beside = min(self.group, tile.rows_each)
        lane = b.and_(self.thread, I64(WARP - 1))
        self.lane = b.trunc(lane, I32)
        self.warp = b.lshr(self.thread, I64(5))
        if tile.warp_groups > 1:
            self.warp_group, self.warp = b.udiv(self.warp, I64(tile.warps)), b.urem(self.warp, I64(tile.warps))
        # Two neighbouring lanes are one above the other: so half a warp reads 128 bytes of each operand, not 256.
        upper = b.lshr(lane, I64(tile.across.bit_length()))
        self.tx = b.and_(b.lshr(lane, I64(1)), I64(tile.across - 1))
        self.ty = b.or_(b.and_(lane, I64(1)), b.shl(upper, I64(1)))
        self.across_lanes = b.trunc(self.tx, I32)

    # -- pairs -------------------------------------------------------------------------------------------------------

    def first_pair(self, pairs: Matrix) -> ir.Value:
        """Where the pairs of the thread's rows begin with the first streamed row."""
        return offset(self.b, pairs.pointer, self.b.mul(self.row(0), I64(self.size)))

    def pair_places(self, pairs: Matrix) -> list[ir.Value]:
        """Where the thread's own pairs lie, row by row."""
        b = self.b
        start = offset(b, self.first_pair(pairs), b.mul(self.tx, I64(pairs.line)))
        return [
            offset(b, start, self.step(r) * self.size + c * self.tile.across * pairs.line)
            for r in range(self.tile.rows_each)
            for c in range(self.columns)
        ]

    def _beside(self, count: int) -> list[list[int]]:
        """Numbers of pairs that are neighbours, among so many of whole rows of the thread."""
        rows, columns = count // self.columns, self.columns
        return [
            [(r + i) * columns + c for i in range(self.beside)]
            for r in range(0, rows, self.beside)
            for c in range(columns)
        ]

    def write_pairs(self, places: Sequence[ir.Value], values: Sequence[ir.Value]) -> None:
        b = self.b
        for numbers in self._beside(len(values)):
            vector: ir.Value = ir.Constant(ir.VectorType(self.kind, self.beside), ir.Undefined)
            for i, n in enumerate(numbers):
                vector = b.insert_element(vector, values[n], I32(i))
            b.store(vector, places[numbers[0]], align=self.beside * self.size)

    def read_pairs(self, places: Sequence[ir.Value]) -> list[ir.Value]:
        out = list(places)
        for numbers in self._beside(len(places)):
            for n, value in zip(numbers, self.neighbours(places[numbers[0]], self.beside), strict=True):
                out[n] = value
        return out

    def neighbours(self, pointer: ir.Value, count: int) -> list[ir.Value]:
        """So many neighbouring elements in shared memory."""
        b = self.b
        found = b.load(pointer, align=count * self.size, typ=ir.VectorType(self.kind, count))
        return [b.extract_element(found, I32(i)) for i in range(count)]

    def put(
        self, places: Sequence[ir.Value], values: Sequence[ir.Value], mixed: ir.Value,
        visible: Callable[[], Sequence[ir.Value]], write: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        """Leave pairs for the warp; where some are not visible, those as absent."""
        b = self.b
        (write or self.write_pairs)(places, values)
        with if_then(b, mixed):
            absent = ir.Constant(self.bits, ABSENT[self.size])
            for place, seen in zip(places, visible(), strict=True):
                with if_then(b, b.not_(seen)):
                    b.store(absent, place, align=self.size)

    def park(self, pairs: Matrix, values: list[ir.Value]) -> list[ir.Value]:
        """Put the thread's own pairs aside, if they are to wait in shared memory."""
        if self.tile.parked:
            self.write_pairs(self.pair_places(pairs), values)
        return values

    def unpark(self, pairs: Matrix, values: list[ir.Value]) -> list[ir.Value]:
        """The thread's own pairs, as they were put or parked (an absent one is some number)."""
        return self.own_pairs(pairs) if self.tile.parked else values

    def own_pairs(self, pairs: Matrix) -> list[ir.Value]:
        """What lies at the thread's own places of a matrix of pairs."""
        return self.read_pairs(self.pair_places(pairs))

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
        r, beside = b.udiv(self.tx, I64(self.lane_rows)), I64(self.beside)
        below = b.mul(b.udiv(r, beside), I64(self.beside * self.down))
        return b.add(self.row(0), b.add(below, b.urem(r, beside)))

    def spread_rows(self, value: ir.Value) -> list[ir.Value]:
        """From each lane its row's value; to each thread those of all its rows."""
        b = self.b
        start = b.and_(self.lane, I32(WARP - 2 * self.tile.across | 1))
        lanes = [b.or_(start, I32(2 * r * self.lane_rows)) for r in range(self.tile.rows_each)]
        return [self.shuffled("idx", value, lane) for lane in lanes]

    def row(self, r: int) -> ir.Value:
        """The thread's r-th row within the block's tile."""
        b = self.b
        first = b.add(b.mul(self.warp, I64(self.tile.warp_rows)), b.mul(self.ty, I64(self.beside)))
        return b.add(first, I64(self.step(r)))

    def step(self, r: int) -> int:
        """Rows from the thread's first to its r-th: `beside` of them are neighbours."""
        return r // self.beside * self.beside * self.down + r % self.beside

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
