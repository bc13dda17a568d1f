"""Products with few tiles and a long k: the tiles that would leave multiprocessors idle are computed in parts of k.

A part is some chunks. The first part of a tile adds its chunks' sums up; the others leave each chunk's sum by itself
in scratch memory, and a second launch (`dot_join`) adds them, in ascending order, to what the first part left: the
order of DOT. A tile's slots are the first part's total, then one for each chunk behind that part.
"""

from __future__ import annotations

from typing import Protocol

from llvmlite import ir

from volta.emit.dot_args import Args, ceil_div
from volta.emit.loops import I32, I64, minimum, offset
from volta.numba_cuda.target.threads import block_index, device_pointer
from volta.xla_like.dot_schedule import CHUNK, Arg

WHOLE, PER = Arg.SCRATCH_LHS, Arg.SCRATCH_RHS
"""What else means nothing on a GPU: tiles that one block computes each, and the chunks of a part of the others.
The scratch memory is `Arg.PACKED`."""


class Share(Protocol):
    """What of its tile's chunks a block computes: from `first` to `last` (not included); `later`: each by itself."""

    @property
    def first(self) -> ir.Value: ...

    @property
    def last(self) -> ir.Value: ...

    @property
    def later(self) -> ir.Value: ...


class Part:
    """What of which tile a block computes: chunks `first` to `last` (not included); `later`: it is not a first part."""

    def __init__(self, b: ir.IRBuilder, args: Args) -> None:
        self.b, self.args = b, args
        self.chunks = b.trunc(ceil_div(b, args.K, CHUNK), I32)
        whole, per = b.trunc(args.values[WHOLE], I32), b.trunc(args.values[PER], I32)
        self.per = per
        number = b.trunc(block_index(b), I32)
        self.whole = b.icmp_signed("<", number, whole)
        behind = b.sub(number, whole)
        parts = b.udiv(b.add(self.chunks, b.sub(per, I32(1))), per)
        self.split = b.udiv(behind, parts)  # which of the tiles in parts
        part = b.urem(behind, parts)
        self.tile = b.select(self.whole, number, b.add(whole, self.split))
        self.first = b.select(self.whole, I32(0), b.mul(part, per))
        self.last = b.select(self.whole, self.chunks, minimum(b, self.chunks, b.add(self.first, per)))
        self.later = b.icmp_signed(">", self.first, I32(0))

    def slot(self, chunk: ir.Value) -> ir.Value:
        """The slot of a chunk behind the first part."""
        return self.b.add(self.b.sub(chunk, self.per), I32(1))

    def scratch(self, slot: ir.Value, nbytes: int) -> ir.Value:
        """Where a slot of this tile begins; a slot has `nbytes`."""
        return slot_at(self.b, self.args, self.split, self.chunks, self.per, slot, nbytes)


def slot_at(
    b: ir.IRBuilder, args: Args, split: ir.Value, chunks: ir.Value, per: ir.Value, slot: ir.Value, nbytes: int
) -> ir.Value:
    """Where a slot begins, of which of the tiles in parts."""
    number = b.add(b.mul(split, b.add(b.sub(chunks, per), I32(1))), slot)
    return offset(b, device_pointer(b, args.PACKED), b.mul(b.zext(number, I64), I64(nbytes)))


def slots_of(chunks: int, per: int) -> int:
    """The slots of a tile in parts of `per` chunks."""
    return chunks - per + 1
