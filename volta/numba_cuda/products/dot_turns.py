"""Products whose blocks take turns at a tile: each adds its chunks' sums to the tile's total, in ascending order: the
order of DOT. A block takes one chunk where tiles nearly fill the GPU and k is long: where few tiles are shared by many
blocks, handing the totals on takes longer than joining parts (dot_split.py).

Where tiles fill the GPU some times, and the last time only in part, the last tiles are taken by halves: a first block
has half of a tile's chunks, the next half of those that are left, and the last one chunk. So the GPU is filled until
the end, and totals are handed on a few times only. The tiles before these are computed by one block each.

Blocks are numbered turn by turn, so those of one tile begin far apart, and its turn has mostly come when a block needs
the total: at the end, or at the start of several chunks. The totals lie in scratch memory, behind the words that count:
one for numbers, one for each tile's turns, and one for each room.

A room is where blocks of a long k wait for their neighbours in DOT's tree. Tiles taken by halves have one each; those
before them share some more than are under way at once, so that nobody waits for a room in practice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.dot_args import Args, ChunkAt, ceil_div, round_up
from volta.emit.loops import I1, I32, I64, if_else, if_then, offset
from volta.numba_cuda.codegen.ptx_turns import (
    QUAD,
    await_turn,
    pass_turn,
    read_in_turn,
    take_number,
    write_in_turn,
)
from volta.numba_cuda.codegen.threads import barrier, device_pointer
from volta.numba_cuda.products.dot_blocks import Levels, Plus
from volta.xla_like.dot import CHUNK

_LINE = 256  # bytes: totals begin at a multiple
_AHEAD = 8  # vectors that are read before they are added


class Turn:
    """What of which tile a block computes, like a `Part`: chunks `first` to `last`, none of them left for `dot_join`;
    whether it `follows` another block of the tile, and whether the tile `ends` with it."""

    def __init__(
        self, b: ir.IRBuilder, args: Args, thread: ir.Value, shared: ir.Value, halves: bool, rooms: bool
    ) -> None:
        self.b = b
        self.words = device_pointer(b, args.WORKSPACE)
        self.leads = b.icmp_signed("==", thread, I32(0))
        with if_then(b, self.leads):
            b.store(take_number(b, self.words), shared, align=4)
        barrier(b)
        taken = b.load(shared, typ=I32, align=4)
        barrier(b)  # then copies may arrive there
        tiles = b.trunc(args.TILES, I32)
        chunks, before = b.trunc(ceil_div(b, args.K, CHUNK), I32), b.trunc(args.WHOLE, I32)
        alone = b.icmp_signed("<", taken, before)
        number = b.select(alone, I32(0), b.sub(taken, before))
        self.turn, self.own, self.later = b.udiv(number, tiles), b.urem(number, tiles), I1(0)
        self.tile = b.select(alone, taken, b.add(before, self.own))
        self.first, self.last, self.chunks = self.turn, b.add(self.turn, I32(1)), chunks
        if halves:
            left, after = b.lshr(chunks, self.first), b.lshr(chunks, self.last)
            self.first = b.select(alone, I32(0), b.sub(chunks, left))
            self.last = b.select(alone, chunks, b.sub(chunks, after))
        self.follows = b.icmp_signed(">", self.first, I32(0))
        self.ends = b.icmp_signed("==", self.last, chunks)
        self.place = offset(b, self.words, b.mul(b.add(b.zext(self.own, I64), I64(1)), I64(4)))
        words = b.add(args.TILES, I64(1))
        self.room = self.tile
        if rooms:
            shared_rooms = b.trunc(args.ROOMS, I32)
            self.alone, self.guest = alone, b.udiv(taken, shared_rooms)
            own_room = b.urem(taken, shared_rooms)
            self.room = b.select(alone, own_room, b.add(shared_rooms, self.own))
            self.door = offset(b, self.words, b.mul(b.add(words, b.zext(own_room, I64)), I64(4)))
            words = b.add(words, args.ROOMS)
        self.totals = offset(b, self.words, round_up(b, b.mul(words, I64(4)), _LINE))

    def add(self, places: Sequence[ir.Value], slots: Sequence[ir.Value], kind: ir.VectorType, plus: Plus) -> None:
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

    def add_to_block(
        self, places: Sequence[ir.Value], slots: Sequence[ir.Value], kind: ir.VectorType, plus: Plus, levels: Levels
    ) -> None:
        """Like `add`, to the total of a block of k, which is joined with those before it where the block ends."""
        b = self.b
        here = ChunkAt(b, self.first, self.chunks)
        with if_then(b, self.follows):
            with if_then(b, self.leads):
                await_turn(b, self.place, self.first)
            barrier(b)
        with if_then(b, b.not_(here.begins)):
            for first in range(0, len(places), _AHEAD):
                numbers = range(first, min(first + _AHEAD, len(places)))
                before = [b.bitcast(read_in_turn(b, places[i]), kind) for i in numbers]
                for i, total in zip(numbers, before, strict=True):
                    b.store(plus(total, b.load(slots[i], typ=kind, align=16)), slots[i], align=16)
        with if_else(b, here.ends) as branch:
            with branch.then():
                levels.join(slots, here.block, here.last, kind, plus)
            with branch.otherwise():
                self._hand_on(places, slots)
        barrier(b)
        with if_then(b, self.leads):
            pass_turn(b, self.place, self.last)

    def fetch(self, places: Sequence[ir.Value], slots: Sequence[ir.Value]) -> None:
        """Bring what the blocks before have added up to this thread's slots."""
        b = self.b
        with if_then(b, self.follows):
            with if_then(b, self.leads):
                await_turn(b, self.place, self.turn)
            barrier(b)
            found = [read_in_turn(b, place) for place in places]
            for slot, vector in zip(slots, found, strict=True):
                b.store(vector, slot, align=16)

    def enter_room(self, number: ir.Value) -> None:
        """Before block ``number`` of k is joined with others: the tile that had the room before must be done."""
        b = self.b
        with if_then(b, b.and_(self.alone, b.icmp_signed("==", number, I32(0)))):
            with if_then(b, self.leads):
                await_turn(b, self.door, self.guest)
            barrier(b)

    def leave_room(self) -> None:
        """The tile's blocks are joined."""
        b = self.b
        with if_then(b, self.alone):
            barrier(b)
            with if_then(b, self.leads):
                pass_turn(b, self.door, b.add(self.guest, I32(1)))

    def leave_block(self, places: Sequence[ir.Value], slots: Sequence[ir.Value], complete: ir.Value) -> None:
        """Let the next turn begin; the total of a block of k, in slots, is left for it unless it is complete."""
        b = self.b
        with if_then(b, b.not_(complete)):
            self._hand_on(places, slots)
        barrier(b)
        with if_then(b, self.leads):
            pass_turn(b, self.place, b.add(self.turn, I32(1)))

    def _hand_on(self, places: Sequence[ir.Value], slots: Sequence[ir.Value]) -> None:
        b = self.b
        for place, slot in zip(places, slots, strict=True):
            write_in_turn(b, place, b.load(slot, typ=QUAD, align=16))

    def leave(self, places: Sequence[ir.Value], totals: Sequence[ir.Value]) -> None:
        """Leave totals for the block whose turn is next."""
        b = self.b
        for place, vector in zip(places, totals, strict=True):
            write_in_turn(b, place, b.bitcast(vector, QUAD))
        barrier(b)
        with if_then(b, self.leads):
            pass_turn(b, self.place, b.add(self.turn, I32(1)))


def turn_bytes(tiles: int, nbytes: int, rooms: int = 0) -> int:
    """The scratch memory of a product whose blocks take turns; a tile has `nbytes`."""
    return -(-turn_words(tiles, rooms) * 4 // _LINE) * _LINE + tiles * nbytes


def turns_of(k: int, halves: bool) -> int:
    """How many turns are taken at a tile."""
    chunks = -(-k // CHUNK)
    return chunks.bit_length() if halves else chunks


def turn_words(tiles: int, rooms: int = 0) -> int:
    """How many of its words of 4 bytes must be 0 at the start."""
    return 1 + tiles + rooms
