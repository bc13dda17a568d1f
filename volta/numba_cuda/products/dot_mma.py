"""A stage multiplied on float64 tensor cores, whose products are chains of fused multiply-adds in ascending k."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import scalar_type
from volta.emit.loops import I32, I64, offset
from volta.numba_cuda.codegen.ptx_mma import MMA_F64, mma
from volta.numba_cuda.products.dot_feed import Layout, lines_along_k, lines_of_k
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_tile import OperandLayout, Tile
from volta.xla_like.dot import item_size

_F64 = ir.DoubleType()


class MmaNest(Nest):
    """Of a warp's part of the tile each instruction computes 16 rows (8 with k = 4) and 8 columns."""

    cell = 2

    @staticmethod
    def layout(tile: Tile, operand: OperandLayout, length: int) -> Layout:
        # Lanes of a warp read 8 lines and 4 neighbours along k: pads keep them in different banks.
        size = item_size(operand.staged)
        if operand.along == "k":
            return lines_along_k(size, length, tile.depth, 4 * size)
        return lines_of_k(size, length, tile.depth, 32)

    def threads(self) -> None:
        b, t = self.b, self.tile
        self.step = t.mma
        self.high = 8 if t.mma == 4 else 16
        self.op = MMA_F64[(8, 8, 4) if t.mma == 4 else (16, 8, t.mma)]
        self.downs, self.rights = t.warp_rows // self.high, t.warp_cols // 8
        lane, warp = b.and_(self.thread, I32(31)), b.lshr(self.thread, I32(5))
        across = t.cols // t.warp_cols
        self.group, self.four = b.lshr(lane, I32(2)), b.and_(lane, I32(3))
        self.down = b.add(b.mul(b.udiv(warp, I32(across)), I32(t.warp_rows)), self.group)
        self.warp_col = b.mul(b.urem(warp, I32(across)), I32(t.warp_cols))
        self.lefts = self.high // 8 * t.mma // 4  # registers of one left fragment

    def sides(self) -> None:
        b = self.b
        left, right = self.lhs.layout, self.rhs.layout
        col = b.add(self.warp_col, self.group)
        self.left_place = b.add(b.mul(self.down, I32(left.line)), b.mul(self.four, I32(left.k)))
        self.right_place = b.add(
            b.add(b.mul(col, I32(right.line)), b.mul(self.four, I32(right.k))), I32(self.rhs.region)
        )

    def fragments(self, stage: ir.Value, k: int | ir.Value) -> list[ir.Value]:
        """As they lie in shared memory; they become float64 where they are multiplied."""
        b = self.b
        found = []
        tall = self.high // 8
        for place, layout, dtype, lines, each in (
            (
                self.left_place,
                self.lhs.layout,
                self.variant.lhs.staged,
                [i * self.high for i in range(self.downs)],
                tall,
            ),
            (self.right_place, self.rhs.layout, self.variant.rhs.staged, [j * 8 for j in range(self.rights)], 1),
        ):
            here = b.add(stage, place)
            if isinstance(k, int):
                start = offset(b, offset(b, self.shared, b.zext(here, I64)), k * layout.k)
            else:
                start = offset(b, self.shared, b.zext(b.add(here, b.mul(k, I32(layout.k))), I64))
            kind = scalar_type(dtype)
            for line in lines:
                for i in range(each * self.tile.mma // 4):
                    more = (line + 8 * (i % each)) * layout.line + 4 * (i // each) * layout.k
                    found.append(b.load(offset(b, start, more), typ=kind, align=item_size(dtype)))
        return found

    def products(self, fragments: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
        b = self.b
        wide = [x if x.type == _F64 else b.fpext(x, _F64) for x in fragments]
        split = self.downs * self.lefts
        rights = self.tile.mma // 4
        xs = [wide[i * self.lefts : (i + 1) * self.lefts] for i in range(self.downs)]
        ys = [wide[split + j * rights : split + (j + 1) * rights] for j in range(self.rights)]
        each = self.high // 4  # sums of one instruction
        out = list(sums)
        for i, x in enumerate(xs):
            for j in range(self.rights) if i % 2 == 0 else reversed(range(self.rights)):
                at = (i * self.rights + j) * each
                out[at : at + each] = mma(b, self.op, x, ys[j], out[at : at + each])
        return out

    def masked(self, fragments: Sequence[ir.Value], rest: ir.Value) -> Sequence[ir.Value]:
        """Behind the end the right operand is +0 (copies fill with zeros) and the left one is made -0.

        Their product is -0, and adding that changes nothing at all.
        """
        b = self.b
        tall, out = self.high // 8, list(fragments)
        for n in range(self.downs * self.lefts):
            k = b.add(self.four, I32(4 * (n % self.lefts // tall)))
            out[n] = b.select(b.icmp_signed("<", k, rest), out[n], ir.Constant(out[n].type, -0.0))
        return out

    def cell_at(self, number: int | ir.Value) -> tuple[ir.Value, ir.Value]:
        b, tall = self.b, self.high // 8
        index = I32(number) if isinstance(number, int) else number
        half, pair = b.urem(index, I32(tall)), b.udiv(index, I32(tall))
        below, beside = b.udiv(pair, I32(self.rights)), b.urem(pair, I32(self.rights))
        row = b.add(self.down, b.add(b.mul(below, I32(self.high)), b.mul(half, I32(8))))
        return row, b.add(b.add(self.warp_col, b.shl(self.four, I32(1))), b.mul(beside, I32(8)))
