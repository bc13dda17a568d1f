"""Products with few tiles and a long k: the tiles that would leave multiprocessors idle are computed in parts of k.

A part is some chunks. The first part of a tile adds its chunks' sums up; the others leave each chunk's sum by itself
in scratch memory, and a second launch (`dot_join`) adds them, in ascending order, to what the first part left: the
order of DOT. A tile's slots are the first part's total, then one for each chunk behind that part.

Where k is more than a block, a part lies within one or is some whole blocks, so each block has slots like these: one if
parts are whole blocks. `dot_join` joins the blocks' totals in pairs.

Where that fills the multiprocessors better, each chunk behind a block's first part is a part of its own (``apart``).
Their numbers come behind those of all first parts, which begin at once: whoever has room takes single chunks meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from llvmlite import ir

from volta.emit.dot_args import Args, ceil_div
from volta.emit.loops import I32, I64, minimum, offset
from volta.numba_cuda.codegen.threads import block_index, device_pointer
from volta.xla_like.dot import CHUNK, CHUNKS


class Share(Protocol):
    """What of its tile's chunks a block computes: from `first` to `last` (not included); `later`: each by itself."""

    @property
    def first(self) -> ir.Value: ...

    @property
    def last(self) -> ir.Value: ...

    @property
    def later(self) -> ir.Value: ...


class Part:
    """What of which tile a block computes: chunks `first` to `last` (not included); `later`: it is not a first part
    (of its block of k, if there are several: ``long``). ``apart``: k is whole blocks, and first parts are alone in
    having several chunks."""

    def __init__(self, b: ir.IRBuilder, args: Args, long: bool, apart: bool) -> None:
        self.b, self.args, self.long = b, args, long
        self.chunks = b.trunc(ceil_div(b, args.K, CHUNK), I32)
        whole, per = b.trunc(args.WHOLE, I32), b.trunc(args.PER, I32)
        self.per = per
        number = b.trunc(block_index(b), I32)
        self.whole = b.icmp_signed("<", number, whole)
        behind = b.sub(number, whole)
        cut = self._apart if apart else self._even
        self.split, first, last = cut(behind)
        self.tile = b.select(self.whole, number, b.add(whole, self.split))
        self.first = b.select(self.whole, I32(0), first)
        self.last = b.select(self.whole, self.chunks, last)
        begins = b.and_(self.first, I32(CHUNKS - 1)) if long else self.first
        self.later = b.icmp_signed(">", begins, I32(0))

    def _even(self, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Of a part by its number: which of the tiles in parts it belongs to, and its chunks."""
        b, per = self.b, self.per
        parts = b.udiv(b.add(self.chunks, b.sub(per, I32(1))), per)
        first = b.mul(b.urem(number, parts), per)
        return b.udiv(number, parts), first, minimum(b, self.chunks, b.add(first, per))

    def _apart(self, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The same where parts behind first ones are single chunks."""
        b, per = self.b, self.per
        firsts = b.trunc(self.args.TILES, I32)
        blocks, others = b.udiv(self.chunks, I32(CHUNKS)), b.sub(I32(CHUNKS), per)
        single = b.sub(number, firsts)
        leads = b.icmp_signed("<", number, firsts)
        block = b.select(leads, number, b.udiv(single, others))  # of all tiles' blocks of k
        begins = b.mul(b.urem(block, blocks), I32(CHUNKS))
        first = b.select(leads, begins, b.add(b.add(begins, per), b.urem(single, others)))
        return b.udiv(block, blocks), first, b.add(first, b.select(leads, per, I32(1)))

    def slot(self, chunk: ir.Value) -> ir.Value:
        """The slot of a chunk behind the first part; of several blocks, of any chunk."""
        b = self.b
        if not self.long:
            return b.add(b.sub(chunk, self.per), I32(1))
        within = minimum(b, self.per, CHUNKS)
        behind = b.sub(b.and_(chunk, I32(CHUNKS - 1)), within)
        behind = b.select(b.icmp_signed("<", behind, I32(0)), I32(0), b.add(behind, I32(1)))
        return b.add(b.mul(b.udiv(chunk, I32(CHUNKS)), block_slots(b, within)), behind)

    def scratch(self, slot: ir.Value, nbytes: int) -> ir.Value:
        """Where a slot of this tile begins; a slot has `nbytes`."""
        return slot_at(self.b, self.args, self.split, self.chunks, self.per, slot, nbytes, self.long)


def block_slots(b: ir.IRBuilder, within: ir.Value) -> ir.Value:
    """The slots of a whole block of k that is cut into parts of so many chunks."""
    return b.sub(I32(CHUNKS + 1), within)


def slot_at(
    b: ir.IRBuilder, args: Args, split: ir.Value, chunks: ir.Value, per: ir.Value, slot: ir.Value, nbytes: int,
    long: bool,
) -> ir.Value:  # fmt: skip
    """Where a slot begins, of which of the tiles in parts."""
    slots = b.add(b.sub(chunks, per), I32(1))
    if long:  # those of the last block, behind those of whole ones
        within, before = minimum(b, per, CHUNKS), b.udiv(b.sub(chunks, I32(1)), I32(CHUNKS))
        rest = b.sub(b.sub(chunks, b.mul(before, I32(CHUNKS))), within)
        rest = b.select(b.icmp_signed("<", rest, I32(0)), I32(0), rest)
        slots = b.add(b.add(b.mul(before, block_slots(b, within)), rest), I32(1))
    number = b.add(b.mul(split, slots), slot)
    return offset(b, device_pointer(b, args.WORKSPACE), b.mul(b.zext(number, I64), I64(nbytes)))


def parts_of(chunks: int, per: int, apart: bool) -> int:
    """How many parts a tile has."""
    return chunks // CHUNKS * (CHUNKS + 1 - per) if apart else -(-chunks // per)


def slots_of(chunks: int, per: int) -> int:
    """The slots of a tile in parts of `per` chunks."""
    before, within = (chunks - 1) // CHUNKS, min(per, CHUNKS)
    return before * (CHUNKS + 1 - within) + max(0, chunks - before * CHUNKS - within) + 1


def part_sizes(chunks: int) -> Iterator[int]:
    """Chunks of a part, below `chunks`; of several blocks of k, a part is some, or a half of one, a quarter, ..."""
    if chunks <= CHUNKS:
        yield from _equally_many(chunks)
        return
    yield from (1 << i for i in range(CHUNKS.bit_length() - 1))
    yield from (CHUNKS * blocks for blocks in _equally_many(-(-chunks // CHUNKS)))


def _equally_many(units: int) -> Iterator[int]:
    """Units of a part, below `units`: of those that make equally many parts, the fewest and the most. Between them
    the cost goes along a line, so no others need to be looked at, of which there may be hundreds of thousands."""
    per = 1
    while per < units:
        number = -(-units // per)
        most = min((units - 1) // (number - 1), units - 1)
        yield per
        if most > per:
            yield most
        per = most + 1
