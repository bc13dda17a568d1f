"""Where a thread of a kernel over rows and columns is, and the arithmetic of indices."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I32, I64, offset
from volta.numba_cuda.codegen.threads import WARP, block_index, thread_index

TILE_THREADS = 256


def tile_of(columns: int) -> int:
    """log2 of how many threads of a block lie along the columns: whole warps if possible, and few that idle."""
    least = min(WARP.bit_length() - 1, (columns - 1).bit_length())
    return min(range(least, TILE_THREADS.bit_length()), key=lambda s: (-(-columns >> s) << s, -s))


def columns_each(columns: int, most: int) -> int:
    """How many columns a thread takes: as many of ``most`` as leave the fewest threads idle."""

    def covered(each: int) -> int:
        share = -(-columns // each)
        shift = tile_of(share)
        return each * (-(-share >> shift) << shift)

    return min(range(most, 0, -1), key=covered)


class Tile:
    """A thread's place in a tile of rows by columns: ``TILE_THREADS`` threads, 2**shift of them along the columns.

    A thread has ``each`` groups of ``lanes`` columns, the width of the tile apart; `group` says where.
    """

    def __init__(
        self, b: ir.IRBuilder, shift: ir.Value, columns: ir.Value, lanes: int, each: int = 1,
        block: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """``block`` is the number of the tile, if not that of the block of threads."""
        self.b, self.lanes = b, lanes
        thread, block = thread_index(b), block_index(b) if block is None else block
        self.along = b.shl(I64(1), shift)
        self.groups = b.udiv(columns, I64(lanes)) if lanes > 1 else columns
        share = b.udiv(b.add(self.groups, I64(each - 1)), I64(each)) if each > 1 else self.groups
        row, chunk = divide(b, block, b.lshr(b.sub(b.add(share, self.along), I64(1)), shift))
        self.row = b.add(b.mul(row, b.lshr(I64(TILE_THREADS), shift)), b.lshr(thread, shift))
        wide = b.mul(chunk, I64(each)) if each > 1 else chunk
        self.first = b.add(b.shl(wide, shift), b.and_(thread, b.sub(self.along, I64(1))))

    def group(self, k: ir.Value | int) -> tuple[ir.Value, ir.Value]:
        """The first column of the thread's k-th group, and whether it is there; if it is not, those behind are not."""
        b = self.b
        number = self.first if k == 0 else b.add(self.first, b.mul(self.along, I64(k) if isinstance(k, int) else k))
        return b.mul(number, I64(self.lanes)), b.icmp_signed("<", number, self.groups)


def blocks_of(rows: int, columns: int, lanes: int, shift: int, each: int = 1) -> int:
    """Blocks that cover all rows and columns with tiles."""
    return -(-rows // (TILE_THREADS >> shift)) * -(-columns // (lanes * each) >> shift)


def divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder of i64 values below 2**32."""
    small, by = b.trunc(x, I32), b.trunc(y, I32)
    quotient = b.udiv(small, by)
    return b.zext(quotient, I64), b.zext(b.sub(small, b.mul(quotient, by)), I64)


def word(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    """Word ``index`` of an array of int64."""
    return b.load(offset(b, base, b.shl(index, I64(3))), align=8, typ=I64)


def halves(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The low and the high 32 bits, as unsigned numbers."""
    return b.and_(x, I64(0xFFFFFFFF)), b.lshr(x, I64(32))
