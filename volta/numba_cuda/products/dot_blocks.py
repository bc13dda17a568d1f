"""Products of several blocks of k: a tile's sums of blocks wait in scratch memory for their neighbours in DOT's tree.

While a block of k is computed nothing of this takes registers: its total is in shared memory, where it is joined with
those before it. A tile has a place there for each level of the tree, so memory grows with the logarithm of k. Each
thread reads what it wrote itself, or, in serial split-K, what the thread in its place wrote before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from volta.emit.dot_args import Args
from volta.emit.loops import I64, if_then, offset
from volta.emit.pairs import joined_levels, level_of
from volta.numba_cuda.codegen.ptx_semaphore import QUAD, read_serial, write_serial
from volta.numba_cuda.codegen.threads import device_pointer
from volta.numba_cuda.launches import aligned
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.numba_cuda.products.dot_tile import Tile
from volta.xla_like.dot import levels_of

_AHEAD = 8  # vectors that are read before they are added

Plus = Callable[[ir.Value, ir.Value], ir.Value]


class Levels:
    """The places of one owner: at each level `nbytes`; the sums at `first` and every `step` bytes behind it are this
    thread's."""

    def __init__(
        self,
        b: ir.IRBuilder,
        args: Args,
        owner: ir.Value,
        nbytes: int,
        first: ir.Value,
        step: int,
        serial: bool = False,
    ) -> None:
        self.b, self.nbytes, self.step, self.serial = b, nbytes, step, serial
        own = b.mul(b.mul(b.zext(owner, I64), args.LEVELS), I64(nbytes))
        self.start = offset(b, device_pointer(b, args.WORKSPACE), b.add(b.add(args.TREE, own), first))

    def places(self, level: ir.Value, numbers: Sequence[int | ir.Value]) -> list[ir.Value]:
        """Where the sums with these numbers, of this thread, wait at a level."""
        b = self.b
        start = offset(b, self.start, b.mul(b.zext(level, I64), I64(self.nbytes)))
        far = [I64(n * self.step) if isinstance(n, int) else b.mul(b.zext(n, I64), I64(self.step)) for n in numbers]
        return [offset(b, start, x) for x in far]

    def read(self, place: ir.Value, kind: ir.Type) -> ir.Value:
        b = self.b
        return b.bitcast(read_serial(b, place), kind) if self.serial else b.load(place, typ=kind, align=16)

    def write(self, place: ir.Value, vector: ir.Value) -> None:
        b = self.b
        if self.serial:
            write_serial(b, place, b.bitcast(vector, QUAD))
        else:
            b.store(vector, place, align=16)

    def join(self, slots: Sequence[ir.Value], number: ir.Value, last: ir.Value, kind: ir.Type, plus: Plus) -> None:
        """Join the total of block ``number`` of k, which lies in slots of shared memory, with those that wait.

        What that gives waits as well, or, behind the ``last`` block, is in the slots."""
        b, every = self.b, range(len(slots))
        with joined_levels(b, number, last) as level:
            places = self.places(level, every)
            for first in range(0, len(slots), _AHEAD):
                numbers = every[first : first + _AHEAD]
                before = [self.read(places[i], kind) for i in numbers]
                for i, x in zip(numbers, before, strict=True):
                    b.store(plus(x, b.load(slots[i], typ=kind, align=16)), slots[i], align=16)
        with if_then(b, b.not_(last)):
            for place, slot in zip(self.places(level_of(b, number), every), slots, strict=True):
                self.write(place, b.load(slot, typ=kind, align=16))


def tile_levels(
    b: ir.IRBuilder, args: Args, tile: Tile, size: int, owner: ir.Value, thread: ir.Value, serial: bool = False
) -> Levels:
    """Where an owner's sums of a tile wait, in the order of a thread's slots."""
    own = b.mul(b.zext(thread, I64), I64(16))
    return Levels(b, args, owner, tile_bytes(tile, size), own, 16 * tile.threads, serial)


def tree_bytes(owners: int, k: int, nbytes: int) -> int:
    """The scratch memory in which so many owners' sums wait, of `nbytes` each; 0 where there is one block of k."""
    return owners * levels_of(k) * nbytes


def tree_words(k: int, before: int) -> Mapping[Sharing, int]:
    """What a product's args say of its tree, which lies behind so many bytes of scratch memory."""
    return {Sharing.LEVELS: levels_of(k), Sharing.TREE: aligned(before)} if levels_of(k) else {}


def tile_bytes(tile: Tile, size: int) -> int:
    """The sums of a tile."""
    return tile.rows * tile.cols * size
