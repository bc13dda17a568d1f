"""A stage multiplied by ordinary fused multiply-adds: each thread a small tile of the output."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import is_float
from volta.emit.loops import I32, I64, fma, offset
from volta.numba_cuda.products.dot_feed import Layout, lines_of_k, vectors
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_tile import OperandLayout, Tile
from volta.xla_like.dot import item_size

_GROUP = 4  # neighbouring rows or columns of a thread, where they lie side by side in a stage


class FmaNest(Nest):
    step, cell = 1, _GROUP

    @staticmethod
    def layout(tile: Tile, operand: OperandLayout, length: int) -> Layout:
        size = item_size(operand.staged)
        # What lies along k is transposed on the way: with 16 bytes between lines, lanes write to different banks.
        return lines_of_k(size, length, tile.depth, 16 if operand.along == "k" else 0)

    def threads(self) -> None:
        """Neighbouring lanes share rows, their neighbours columns, so that two of them read the same 16 bytes."""
        b, t = self.b, self.tile
        lane, warp = b.and_(self.thread, I32(31)), b.lshr(self.thread, I32(5))
        lane_cols = 32 // t.lane_rows
        row_bits, col_bits = [1], [0]
        for bit in (2, 3, 4):
            (col_bits if 1 << len(col_bits) < lane_cols else row_bits).append(bit)

        def gather(bits: list[int]) -> ir.Value:
            total: ir.Value = I32(0)
            for i, bit in enumerate(bits):
                total = b.or_(total, b.shl(b.and_(b.lshr(lane, I32(bit)), I32(1)), I32(i)))
            return total

        across = t.cols // t.warp_cols
        self.down = b.add(b.mul(b.udiv(warp, I32(across)), I32(t.warp_rows)), b.mul(gather(row_bits), I32(_GROUP)))
        self.right = b.add(b.mul(b.urem(warp, I32(across)), I32(t.warp_cols)), b.mul(gather(col_bits), I32(_GROUP)))
        self.row_groups = [g * t.lane_rows * _GROUP for g in range(t.thread_rows // _GROUP)]
        self.col_groups = [g * lane_cols * _GROUP for g in range(t.thread_cols // _GROUP)]
        self.lane_cols = lane_cols

    def sides(self) -> None:
        b = self.b
        left = b.mul(self.down, I32(self.size))
        right = b.add(b.mul(self.right, I32(self.size)), I32(self.rhs.region))
        self.reads = ((left, self.lhs.layout.k, self.row_groups), (right, self.rhs.layout.k, self.col_groups))

    def fragments(self, stage: ir.Value, k: int | ir.Value) -> list[ir.Value]:
        b = self.b
        found: list[ir.Value] = []
        for place, line, groups in self.reads:
            start = offset(b, self.shared, b.zext(b.add(stage, place), I64))
            start = offset(b, start, k * line if isinstance(k, int) else b.zext(b.mul(k, I32(line)), I64))
            for g in groups:
                found += vectors(b, offset(b, start, g * self.size), self.kind, self.size, _GROUP)
        return found

    def products(self, fragments: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Row by row, there and back: each product shares an operand with the one before it, which saves reading it."""
        t = self.tile
        xs, ys = fragments[: t.thread_rows], fragments[t.thread_rows :]
        out = list(sums)
        for i, x in enumerate(xs):
            for j in range(t.thread_cols) if i % 2 == 0 else reversed(range(t.thread_cols)):
                n = i * t.thread_cols + j
                out[n] = self._link(x, ys[j], sums[n])
        return out

    def _link(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return fma(self.b, x, y, z) if is_float(self.spec.accumulator) else self.b.add(z, self.b.mul(x, y))

    def masked(self, fragments: Sequence[ir.Value], rest: ir.Value) -> Sequence[ir.Value]:
        return fragments  # one k at a time: there is always one

    def cell_at(self, number: int | ir.Value) -> tuple[ir.Value, ir.Value]:
        b, beside = self.b, len(self.col_groups)
        index = I32(number) if isinstance(number, int) else number
        row, col = b.udiv(index, I32(beside)), b.urem(index, I32(beside))
        down = b.add(b.mul(b.udiv(row, I32(_GROUP)), I32(self.tile.lane_rows * _GROUP)), b.urem(row, I32(_GROUP)))
        return b.add(self.down, down), b.add(self.right, b.mul(col, I32(self.lane_cols * _GROUP)))
