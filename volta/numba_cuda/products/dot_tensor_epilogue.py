"""The epilogue of a product on tensor cores: a tile of sums, rounded to the output's dtype, goes through shared memory.

Who multiplies has two neighbours in a row here and there; epilogues read and write rows of several arrays. So sums are
left in shared memory, and taken from there row by row: by the threads that multiplied, or (`dot_tensor_persistent`) by
others, while those go on with the next tile.

A row lies in lines of 128 bytes, all rows of a column of lines one after the other; pieces of 16 bytes are exchanged
within a line so that neither pairs nor rows meet in a bank.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.builder import Value
from volta.emit.dot_args import Args
from volta.emit.loops import I32, I64, if_else, if_then, loop, offset
from volta.numba_cuda.codegen.threads import CONSTANT_SPACE, WARP
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.numba_cuda.products.dot_epilogue import Writer
from volta.numba_cuda.products.dot_tensor_load import LINE, PIECE, PIECES
from volta.numba_cuda.products.dot_tensor_tile import BAND, GroupTile, WarpTile
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.xla_like.dot import DotSpec, item_size

_NEAR = 32
"""Elements of a row that are asked for at once: 128 bytes of 4 bytes each."""

_AT_ONCE = 2
"""Times as many elements are under way at once as where more threads have epilogues."""


class StagingTile:
    """A tile of the output in shared memory, `TensorVariant.room_bytes` from ``start`` on."""

    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: TensorVariant, args: Args, start: ir.Value) -> None:
        self.b, self.spec, self.v, self.args, self.start = b, spec, variant, args, start
        self.size = item_size(spec.out)

    def leave(
        self, tile: GroupTile | WarpTile, thread: ir.Value, sums: list[ir.Value],
        pair: Callable[[list[ir.Value], int], ir.Value],
    ) -> None:  # fmt: skip
        """Leave a thread's sums here; ``pair`` rounds two neighbours."""
        b, octets = self.b, tile.cols // 8
        lane = b.trunc(b.urem(thread, I64(WARP)), I32)
        row = b.add(b.trunc(tile.first_row, I32), b.lshr(lane, I32(2)))
        col = b.add(b.trunc(tile.first_col, I32), b.shl(b.and_(lane, I32(3)), I32(1)))
        byte = b.mul(col, I32(self.size))
        for first in range(0, len(sums), 2):  # two sums of a row, then two eight rows below, of each eight columns
            octet, below = first // 4 % octets, first // 4 // octets * BAND + first % 4 // 2 * 8
            place = self._place(b.add(row, I32(below)), b.add(byte, I32(8 * octet * self.size)))
            b.store(pair(sums, first), place, align=2 * self.size)

    def _place(self, row: ir.Value, byte: ir.Value) -> ir.Value:
        """A byte of a row of the tile (i32s)."""
        b = self.b
        rotation = b.and_(b.mul(row, I32(self.size // 2)), I32(PIECES - 1))
        piece = b.xor(b.and_(b.lshr(byte, I32(4)), I32(PIECES - 1)), rotation)
        line = b.add(b.mul(b.lshr(byte, I32(7)), I32(self.v.rows)), row)
        here = b.add(b.mul(line, I32(LINE)), b.add(b.mul(piece, I32(PIECE)), b.and_(byte, I32(PIECE - 1))))
        return offset(b, self.start, b.zext(here, I64))

    def _whole(self, row: ir.Value, col: ir.Value) -> ir.Value:
        """Whether all of the tile whose first row and column are given lies in the output."""
        b, a, v = self.b, self.args, self.v
        below, beside = b.add(row, I64(v.rows)), b.add(col, I64(v.cols))
        return b.and_(b.icmp_signed("<=", below, a.M), b.icmp_signed("<=", beside, a.N))

    def prefetch(self, writer: Writer, row: ir.Value, col: ir.Value, thread: ir.Value, threads: int) -> None:
        """Ask for what an epilogue will read beside a whole tile: `write` comes later."""
        b, beside = self.b, self.v.cols // _NEAR
        with if_then(b, self._whole(row, col)), loop(b, I32(0), I32(self.v.rows * beside // threads), I32(1)) as it:
            place = b.add(b.mul(it.index, I32(threads)), thread)
            down, right = b.udiv(place, I32(beside)), b.mul(b.urem(place, I32(beside)), I32(_NEAR))
            writer.prefetch(b.add(row, b.zext(down, I64)), b.add(col, b.zext(right, I64)))

    def write(self, writer: Writer, row: ir.Value, col: ir.Value, thread: ir.Value, threads: int) -> None:
        """Write the tile whose first row and column are given: this thread (an i32) of so many its part."""
        b, a, v = self.b, self.args, self.v
        assert v.epilogue is not None
        beside = v.cols // v.together
        cells = v.rows * beside // threads
        some = max(1, min(cells, _AT_ONCE * v.epilogue.together // v.together))

        def cell(number: ir.Value) -> tuple[ir.Value, ir.Value, Value]:
            place = b.add(b.mul(number, I32(threads)), thread)
            down, right = b.udiv(place, I32(beside)), b.mul(b.urem(place, I32(beside)), I32(v.together))
            lanes = ThreadBuilder(b, v.together, CONSTANT_SPACE)
            value = lanes.load(self._place(down, b.mul(right, I32(self.size))), self.spec.out)
            return b.add(row, b.zext(down, I64)), b.add(col, b.zext(right, I64)), value

        with if_else(b, self._whole(row, col)) as branch:
            with branch.then(), loop(b, I32(0), I32(cells), I32(some)) as it:
                writer.write_all([cell(b.add(it.index, I32(i))) for i in range(some)])
            with branch.otherwise(), loop(b, I32(0), I32(cells), I32(1)) as it:
                r, c, value = cell(it.index)
                with if_then(b, b.and_(b.icmp_signed("<", r, a.M), b.icmp_signed("<", c, a.N))):
                    writer.write_all([(r, c, value)])
