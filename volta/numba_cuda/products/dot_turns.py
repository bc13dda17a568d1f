"""Products of tiles that nearly fill the GPU, and a long k: a block computes one chunk of a tile, and the blocks of a
tile take turns to add their chunks' sums to its total, in ascending order: the order of DOT. Where few tiles are shared
by many blocks, handing the totals on takes longer than joining parts (dot_split.py).

Blocks are numbered chunk by chunk, so those of one tile begin far apart, and its turn has mostly come when a block is
done. The totals lie in scratch memory, behind the words that count: one for numbers, and one for each tile's turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.dot_args import Args, ceil_div, round_up
from volta.emit.loops import I1, I32, I64, if_else, if_then, offset
from volta.numba_cuda.products.dot_tile import Tile
from volta.numba_cuda.target.ptx_turns import (
    QUAD,
    await_turn,
    pass_turn,
    read_in_turn,
    take_number,
    write_in_turn,
)
from volta.numba_cuda.target.threads import barrier, device_pointer
from volta.xla_like.dot_schedule import CHUNK, Arg

TILES = Arg.SCRATCH_LHS
"""What else means nothing on a GPU: how many tiles there are. The scratch memory is `Arg.PACKED`."""

_LINE = 256  # bytes: totals begin at a multiple
_AHEAD = 8  # vectors that are read before they are added


class Turn:
    """What of which tile a block computes, like a `Part`: chunk `first`, and none of it is left for `dot_join`."""

    def __init__(self, b: ir.IRBuilder, args: Args, thread: ir.Value, shared: ir.Value) -> None:
        self.b = b
        self.words = device_pointer(b, args.PACKED)
        self.leads = b.icmp_signed("==", thread, I32(0))
        with if_then(b, self.leads):
            b.store(take_number(b, self.words), shared, align=4)
        barrier(b)
        number = b.load(shared, typ=I32, align=4)
        barrier(b)  # then copies may arrive there
        tiles = b.trunc(args.values[TILES], I32)
        self.first, self.tile, self.later = b.udiv(number, tiles), b.urem(number, tiles), I1(0)
        self.last = b.add(self.first, I32(1))
        self.ends = b.icmp_signed("==", self.last, b.trunc(ceil_div(b, args.K, CHUNK), I32))
        self.place = offset(b, self.words, b.mul(b.add(b.zext(self.tile, I64), I64(1)), I64(4)))
        start = round_up(b, b.mul(b.add(args.values[TILES], I64(1)), I64(4)), _LINE)
        self.totals = offset(b, self.words, start)

    def add(
        self, places: Sequence[ir.Value], slots: Sequence[ir.Value], kind: ir.VectorType,
        plus: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:  # fmt: skip
        """Add this thread's part of a chunk's sums to that of the tile's total: vectors of 16 bytes, sums in slots of
        shared memory, totals at places in scratch memory. The last turn leaves the totals in the slots."""
        b = self.b

        def sum_of(i: int) -> ir.Value:
            return b.load(slots[i], typ=kind, align=16)

        def leave(i: int, vector: ir.Value) -> None:
            write_in_turn(b, places[i], b.bitcast(vector, QUAD))

        def keep(i: int, vector: ir.Value) -> None:
            b.store(vector, slots[i], align=16)

        def each(use: Callable[[int, ir.Value], None]) -> None:
            for first in range(0, len(places), _AHEAD):
                numbers = range(first, min(first + _AHEAD, len(places)))
                before = [b.bitcast(read_in_turn(b, places[i]), kind) for i in numbers]
                for i, total in zip(numbers, before, strict=True):
                    use(i, plus(total, sum_of(i)))

        with if_else(b, b.icmp_signed("==", self.first, I32(0))) as branch:
            with branch.then():
                for i in range(len(places)):
                    leave(i, sum_of(i))
            with branch.otherwise():
                with if_then(b, self.leads):
                    await_turn(b, self.place, self.first)
                barrier(b)
                with if_else(b, self.ends) as ending:
                    with ending.then():
                        each(keep)
                    with ending.otherwise():
                        each(leave)
        barrier(b)
        with if_then(b, self.leads):
            pass_turn(b, self.place, self.last)


def turn_bytes(tiles: int, tile: Tile, size: int) -> int:
    """The scratch memory of a product whose blocks take turns; a sum has `size` bytes."""
    return -(-turn_words(tiles) * 4 // _LINE) * _LINE + tiles * tile.rows * tile.cols * size


def turn_words(tiles: int) -> int:
    """How many of its words of 4 bytes must be 0 at the start."""
    return 1 + tiles
