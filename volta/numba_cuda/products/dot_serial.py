"""Serial split-K: the blocks of a tile add their chunks' sums to its total one after the other, in ascending order: the
order of DOT. A block takes one chunk where tiles nearly fill the GPU and k is long: where few tiles are shared by many
blocks, handing the totals on takes longer than joining parts (dot_split.py).

Where tiles fill the GPU some times, and the last time only in part, the last tiles are taken by halves: a first block
has half of a tile's chunks, the next half of those that are left, and the last one chunk. So the GPU is filled until
the end, and totals are handed on a few times only. The tiles before these are computed by one block each.

Blocks are numbered chunk by chunk, so those of one tile begin far apart, and those before it are mostly done when a
block needs the total: at the end, or at the start of several chunks. The totals lie in scratch memory, behind the
semaphores: one for tickets, one for each tile, and one for each slot of the tree.

A slot of the tree is where blocks of a long k wait for their neighbours in DOT's tree. Tiles taken by halves have one
each; those before them share some more than are under way at once, so that nobody waits for a slot in practice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.dot_args import Args, ChunkAt, ceil_div, round_up
from volta.emit.loops import I1, I32, I64, if_else, if_then, offset
from volta.numba_cuda.codegen.ptx_semaphore import (
    QUAD,
    await_semaphore,
    read_serial,
    release_semaphore,
    take_ticket,
    write_serial,
)
from volta.numba_cuda.codegen.threads import barrier, device_pointer
from volta.numba_cuda.products.dot_blocks import Levels, Plus
from volta.xla_like.dot import CHUNK

_LINE = 256  # bytes: totals begin at a multiple
_AHEAD = 8  # vectors that are read before they are added


class SerialPart:
    """What of which tile a block computes, like a `Part`: chunks `first` to `last`, none of them left for `dot_join`;
    whether it `follows` another block of the tile, and whether the tile `ends` with it. ``taken`` is its ticket."""

    def __init__(
        self, b: ir.IRBuilder, args: Args, thread: ir.Value, taken: ir.Value, halves: bool, tree_slots: bool
    ) -> None:
        self.b = b
        self.words = device_pointer(b, args.WORKSPACE)
        self.leads = b.icmp_signed("==", thread, I32(0))
        tiles = b.trunc(args.TILES, I32)
        chunks, before = b.trunc(ceil_div(b, args.K, CHUNK), I32), b.trunc(args.WHOLE, I32)
        alone = b.icmp_signed("<", taken, before)
        number = b.select(alone, I32(0), b.sub(taken, before))
        self.order, self.own, self.later = b.udiv(number, tiles), b.urem(number, tiles), I1(0)
        self.tile = b.select(alone, taken, b.add(before, self.own))
        self.first, self.last, self.chunks = self.order, b.add(self.order, I32(1)), chunks
        if halves:
            left, after = b.lshr(chunks, self.first), b.lshr(chunks, self.last)
            self.first = b.select(alone, I32(0), b.sub(chunks, left))
            self.last = b.select(alone, chunks, b.sub(chunks, after))
        self.follows = b.icmp_signed(">", self.first, I32(0))
        self.ends = b.icmp_signed("==", self.last, chunks)
        self.place = offset(b, self.words, b.mul(b.add(b.zext(self.own, I64), I64(1)), I64(4)))
        words = b.add(args.TILES, I64(1))
        self.tree_slot = self.tile
        if tree_slots:
            shared_slots = b.trunc(args.TREE_SLOTS, I32)
            self.alone, self.guest = alone, b.udiv(taken, shared_slots)
            own_slot = b.urem(taken, shared_slots)
            self.tree_slot = b.select(alone, own_slot, b.add(shared_slots, self.own))
            self.slot_semaphore = offset(b, self.words, b.mul(b.add(words, b.zext(own_slot, I64)), I64(4)))
            words = b.add(words, args.TREE_SLOTS)
        self.totals = offset(b, self.words, round_up(b, b.mul(words, I64(4)), _LINE))

    def add(self, places: Sequence[ir.Value], slots: Sequence[ir.Value], kind: ir.VectorType, plus: Plus) -> None:
        """Add this thread's part of a chunk's sums to that of the tile's total: vectors of 16 bytes, sums in slots of
        shared memory, totals at places in scratch memory. The last block leaves the totals in the slots."""
        b = self.b

        def sum_of(i: int) -> ir.Value:
            return b.load(slots[i], typ=kind, align=16)

        def leave(i: int, vector: ir.Value) -> None:
            write_serial(b, places[i], b.bitcast(vector, QUAD))

        def keep(i: int, vector: ir.Value) -> None:
            b.store(vector, slots[i], align=16)

        def each(use: Callable[[int, ir.Value], None]) -> None:
            for first in range(0, len(places), _AHEAD):
                numbers = range(first, min(first + _AHEAD, len(places)))
                before = [b.bitcast(read_serial(b, places[i]), kind) for i in numbers]
                for i, total in zip(numbers, before, strict=True):
                    use(i, plus(total, sum_of(i)))

        with if_else(b, b.icmp_signed("==", self.first, I32(0))) as branch:
            with branch.then():
                for i in range(len(places)):
                    leave(i, sum_of(i))
            with branch.otherwise():
                with if_then(b, self.leads):
                    await_semaphore(b, self.place, self.first)
                barrier(b)
                with if_else(b, self.ends) as ending:
                    with ending.then():
                        each(keep)
                    with ending.otherwise():
                        each(leave)
        barrier(b)
        with if_then(b, self.leads):
            release_semaphore(b, self.place, self.last)

    def add_to_block(
        self, places: Sequence[ir.Value], slots: Sequence[ir.Value], kind: ir.VectorType, plus: Plus, levels: Levels
    ) -> None:
        """Like `add`, to the total of a block of k, which is joined with those before it where the block ends."""
        b = self.b
        here = ChunkAt(b, self.first, self.chunks)
        with if_then(b, self.follows):
            with if_then(b, self.leads):
                await_semaphore(b, self.place, self.first)
            barrier(b)
        with if_then(b, b.not_(here.begins)):
            for first in range(0, len(places), _AHEAD):
                numbers = range(first, min(first + _AHEAD, len(places)))
                before = [b.bitcast(read_serial(b, places[i]), kind) for i in numbers]
                for i, total in zip(numbers, before, strict=True):
                    b.store(plus(total, b.load(slots[i], typ=kind, align=16)), slots[i], align=16)
        with if_else(b, here.ends) as branch:
            with branch.then():
                levels.join(slots, here.block, here.last, kind, plus)
            with branch.otherwise():
                self._hand_on(places, slots)
        barrier(b)
        with if_then(b, self.leads):
            release_semaphore(b, self.place, self.last)

    def fetch(self, places: Sequence[ir.Value], slots: Sequence[ir.Value]) -> None:
        """Load what the blocks before have added up into this thread's slots."""
        b = self.b
        with if_then(b, self.follows):
            with if_then(b, self.leads):
                await_semaphore(b, self.place, self.order)
            barrier(b)
            found = [read_serial(b, place) for place in places]
            for slot, vector in zip(slots, found, strict=True):
                b.store(vector, slot, align=16)

    def enter_slot(self, number: ir.Value) -> None:
        """Before block ``number`` of k is joined with others: the tile that had the slot before must be done."""
        b = self.b
        with if_then(b, b.and_(self.alone, b.icmp_signed("==", number, I32(0)))):
            with if_then(b, self.leads):
                await_semaphore(b, self.slot_semaphore, self.guest)
            barrier(b)

    def leave_slot(self) -> None:
        """The tile's blocks are joined."""
        b = self.b
        with if_then(b, self.alone):
            barrier(b)
            with if_then(b, self.leads):
                release_semaphore(b, self.slot_semaphore, b.add(self.guest, I32(1)))

    def leave_block(self, places: Sequence[ir.Value], slots: Sequence[ir.Value], complete: ir.Value) -> None:
        """Let the next block begin; the total of a block of k, in slots, is left for it unless it is complete."""
        b = self.b
        with if_then(b, b.not_(complete)):
            self._hand_on(places, slots)
        barrier(b)
        with if_then(b, self.leads):
            release_semaphore(b, self.place, b.add(self.order, I32(1)))

    def _hand_on(self, places: Sequence[ir.Value], slots: Sequence[ir.Value]) -> None:
        b = self.b
        for place, slot in zip(places, slots, strict=True):
            write_serial(b, place, b.load(slot, typ=QUAD, align=16))

    def leave(self, places: Sequence[ir.Value], totals: Sequence[ir.Value]) -> None:
        """Leave totals for the next block."""
        b = self.b
        for place, vector in zip(places, totals, strict=True):
            write_serial(b, place, b.bitcast(vector, QUAD))
        barrier(b)
        with if_then(b, self.leads):
            release_semaphore(b, self.place, b.add(self.order, I32(1)))


def take_turn(b: ir.IRBuilder, args: Args, thread: ir.Value, shared: ir.Value) -> ir.Value:
    """The block's ticket, for all of its threads; it comes by shared memory, which is free again behind this."""
    with if_then(b, b.icmp_signed("==", thread, I32(0))):
        b.store(take_ticket(b, device_pointer(b, args.WORKSPACE)), shared, align=4)
    barrier(b)
    taken = b.load(shared, typ=I32, align=4)
    barrier(b)  # then copies may arrive there
    return taken


def serial_bytes(tiles: int, nbytes: int, tree_slots: int = 0) -> int:
    """The scratch memory of a product in serial split-K; a tile has `nbytes`."""
    return -(-semaphore_words(tiles, tree_slots) * 4 // _LINE) * _LINE + tiles * nbytes


def serial_blocks(k: int, halves: bool) -> int:
    """How many blocks add to a tile."""
    chunks = -(-k // CHUNK)
    return chunks.bit_length() if halves else chunks


def semaphore_words(tiles: int, tree_slots: int = 0) -> int:
    """How many of its words of 4 bytes must be 0 at the start."""
    return 1 + tiles + tree_slots
