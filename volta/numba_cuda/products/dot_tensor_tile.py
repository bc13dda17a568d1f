"""How warps multiply tiles that lie in shared memory: by ``mma`` (a warp), or by ``wgmma`` (four warps; Hopper).

The left operand of products in tf32 is rounded here, in registers; the right one where it is made (`round_operands`).
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I64, offset
from volta.numba_cuda.codegen import ptx_mma, ptx_round, ptx_wgmma, ptx_wgmma_held
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.products.dot_tensor_load import BLOCK, LINE, PIECE

STEPS = 4
"""Instructions over a line of 128 bytes of k, in ascending k."""

MMA = {"bfloat16": ptx_mma.MMA_BF16, "float16": ptx_mma.MMA_F16, "tf32": ptx_mma.MMA_TF32, "int8": ptx_mma.MMA_S8}

BAND = 16
"""Rows of which a warp's threads have the sums of a step: two in each eight columns, and two eight rows below."""

Pair = tuple[ir.Value, ir.Value, int]


class GroupTile:
    """``wgmma``: each group of four warps has 64 rows of the tile, and all its columns."""

    needs_fence = True

    def __init__(self, b: ir.IRBuilder, kind: str, along: tuple[str, str], thread: ir.Value, rows: int, cols: int):
        self.b, self.kind, self.along = b, kind, along
        group, within = b.udiv(thread, I64(4 * WARP)), b.urem(thread, I64(4 * WARP))
        self.first_byte = b.mul(group, I64(BLOCK * LINE))
        warp, lane = b.udiv(within, I64(WARP)), b.urem(within, I64(WARP))
        self.rows, self.cols = BAND, cols
        self.first_row, self.first_col = b.add(b.mul(group, I64(BLOCK)), b.mul(warp, I64(BAND))), I64(0)
        self.row = b.add(self.first_row, b.udiv(lane, I64(4)))
        self.col = b.mul(b.urem(lane, I64(4)), I64(2))
        self.count = cols // 2

    @staticmethod
    def threads(rows: int, cols: int) -> int:
        return rows // BLOCK * 4 * WARP

    def begin(self, left: ir.Value, right: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Begin to go on with the sums over one tile of k."""
        own = offset(self.b, left, self.first_byte)
        if self.kind == "tf32":
            return ptx_wgmma_held.multiply_group_held(self.b, "tf32", self._rounded(own), right, sums)
        return ptx_wgmma.multiply_group(self.b, self.kind, own, right, self.along, sums)

    def _rounded(self, left: ir.Value) -> list[ir.Value]:
        """The thread's elements of its group's rows, rounded: of two rows 8 apart those at t and t + 4 of every 8."""
        b, words = self.b, []
        line = b.urem(self.row, I64(BLOCK))
        start = offset(b, left, b.add(b.mul(line, I64(LINE)), b.mul(self.col, I64(2))))
        low = b.and_(line, I64(7))
        for piece in range(LINE // PIECE):
            place = offset(b, start, b.mul(b.xor(low, I64(piece)), I64(PIECE)))
            for below in range(0, BAND, 8):
                x = b.load(offset(b, place, below * LINE), typ=ir.FloatType(), align=4)
                words.append(ptx_round.round_tf32(b, x))
        return words

    def end(self, sums: list[ir.Value]) -> list[ir.Value]:
        return ptx_wgmma.multiply_group_wait(self.b, sums)

    def places(self) -> list[Pair]:
        """Pairs of neighbouring sums: row and column in the tile, and the position of the first."""
        b = self.b
        return [
            (b.add(self.row, I64(8 * half)), b.add(self.col, I64(8 * i)), 4 * i + 2 * half)
            for half in range(2)
            for i in range(self.count // 4)
        ]


class WarpTile:
    """``mma``: each warp has a rectangle of the tile."""

    needs_fence = False

    def __init__(self, b: ir.IRBuilder, kind: str, along: tuple[str, str], thread: ir.Value, rows: int, cols: int):
        self.b, self.kind, self.along = b, kind, along
        self.rows, self.cols = self.rectangle(rows, cols)
        warp, lane = b.udiv(thread, I64(WARP)), b.urem(thread, I64(WARP))
        across = cols // self.cols
        self.first_row = b.mul(b.udiv(warp, I64(across)), I64(self.rows))
        self.first_col = b.mul(b.urem(warp, I64(across)), I64(self.cols))
        self.lane = lane
        firsts = self.first_row, self.first_col
        self.parts = [self._parts(along[side], side, firsts[side]) for side in range(2)]

    @staticmethod
    def rectangle(rows: int, cols: int) -> tuple[int, int]:
        """Rows and columns of one warp."""
        return min(64, rows // 2), 64 if cols >= 256 else 32

    @staticmethod
    def threads(rows: int, cols: int) -> int:
        own = WarpTile.rectangle(rows, cols)
        return rows // own[0] * (cols // own[1]) * WARP

    def begin(self, left: ir.Value, right: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with the sums over one tile of k."""
        b, now = self.b, list(sums)
        for step in range(STEPS):
            lefts = [self._load(left, 0, i, step) for i in range(self.rows // 16)]
            rights = [self._load(right, 1, i, step) for i in range(self.cols // 16)]
            for i, x in enumerate(lefts):
                for j in range(self.cols // 8):
                    y = rights[j // 2][2 * (j % 2) : 2 * (j % 2) + 2]
                    first = 4 * (i * (self.cols // 8) + j)
                    now[first : first + 4] = ptx_mma.mma(b, MMA[self.kind], x, y, now[first : first + 4])
        return now

    def end(self, sums: list[ir.Value]) -> list[ir.Value]:
        return sums

    def _parts(self, along: str, side: int, start: ir.Value) -> list[ir.Value]:
        """What this thread's pointers have from the lane and the swizzle; the rest is a constant (`_load`).

        One for each instruction over a line along k, else one for each 16 rows or columns.
        """
        b = self.b
        matrix, i = b.udiv(self.lane, I64(8)), b.urem(self.lane, I64(8))
        low, high = b.and_(matrix, I64(1)), b.lshr(matrix, I64(1))
        down, deep = (low, high) if side == 0 else (high, low)  # the order in which `mma` takes the four matrices
        if along == "k":
            line = b.add(start, b.add(b.mul(down, I64(8)), i))
            pieces = [b.add(I64(2 * step), deep) for step in range(STEPS)]
        else:
            line = b.add(b.mul(b.udiv(start, I64(BLOCK)), I64(BLOCK)), b.add(b.mul(deep, I64(8)), i))
            first = b.add(b.udiv(b.urem(start, I64(BLOCK)), I64(8)), down)
            pieces = [b.add(first, I64(2 * n)) for n in range((self.rows, self.cols)[side] // 16)]
        return [b.add(b.mul(line, I64(LINE)), b.mul(b.xor(piece, i), I64(PIECE))) for piece in pieces]

    def _load(self, tile: ir.Value, side: int, number: int, step: int) -> list[ir.Value]:
        """The `number`-th 16 rows (or columns), 32 bytes of k of instruction `step`, as four words."""
        along_k = self.along[side] == "k"
        part, further = (step, number) if along_k else (number, step)
        here = offset(self.b, offset(self.b, tile, self.parts[side][part]), 16 * LINE * further)
        words = ptx_mma.load_matrices(self.b, here, 4, not along_k)
        if side == 0 and self.kind == "tf32":
            words = [ptx_round.round_tf32(self.b, self.b.bitcast(x, ir.FloatType())) for x in words]
        return words

    def places(self) -> list[Pair]:
        """Pairs of neighbouring sums: row and column in the tile, and the position of the first."""
        b = self.b
        row = b.add(self.first_row, b.udiv(self.lane, I64(4)))
        col = b.add(self.first_col, b.mul(b.urem(self.lane, I64(4)), I64(2)))
        return [
            (b.add(row, I64(16 * i + 8 * half)), b.add(col, I64(8 * j)), 4 * (i * (self.cols // 8) + j) + 2 * half)
            for i in range(self.rows // 16)
            for half in range(2)
            for j in range(self.cols // 8)
        ]


TILES: dict[str, type[GroupTile] | type[WarpTile]] = {"wgmma": GroupTile, "mma": WarpTile}
