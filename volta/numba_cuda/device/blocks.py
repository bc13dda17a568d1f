"""Blocks of device memory: parts of segments, split and coalesced, and lists of those that wait to be used again.

An interrupt may come between any two steps, and what holds a block then may be gone before it has noted so. What is
always true is the chain of a segment's blocks to the right, as each change of it is one step, and who refers to a
block. From these the rest follows, and is made again where an interrupt came in (`Store.mend`).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from volta.numba_cuda.device.pool import Pool

ALIGNMENT = 256

PAGE = 2 << 20
"""The driver hands out memory in pages of this size."""

ALONE = 256 << 20
"""From here on a block has a segment of its own, which is never split: arenas of large plans come back whole."""

_QUICK, _REQUESTS = 256, 1024
"""How many sizes have a list of their own, and how many exact sizes point at one."""


def rounded(nbytes: int) -> int:
    """The bytes set aside for a request."""
    unit = ALIGNMENT if nbytes < ALONE else PAGE
    return max(1, -(-nbytes // unit)) * unit


class Segment:
    """One allocation of the driver's; its ``first`` block is always the same."""

    __slots__ = ("address", "alone", "first", "size")

    def __init__(self, store: Store, address: int, size: int, alone: bool) -> None:
        self.address, self.size, self.alone = address, size, alone
        self.first = Block(store, self, address, size)

    def chain(self) -> list[Block]:
        """Its blocks, each with the right size and neighbours."""
        chain, block = list[Block](), self.first
        while True:
            chain.append(block)
            if block.right is None:
                break
            block = block.right
        for i, block in enumerate(chain):
            end = chain[i + 1].address if i + 1 < len(chain) else self.address + self.size
            block.left, block.size = chain[i - 1] if i else None, end - block.address
        return chain


class Block:
    """A part of a segment, between its neighbours ``left`` and ``right`` there."""

    __slots__ = ("address", "free", "home", "left", "marks", "others", "pool", "right", "segment", "size", "store")

    def __init__(self, store: Store, segment: Segment, address: int, size: int) -> None:
        self.pool, self.store, self.segment = store.pool, store, segment
        self.address, self.size = address, size
        self.left: Block | None = None
        self.right: Block | None = None
        self.free = False  # in the store's sorted list
        self.home: list[Block] = []  # where it waits when it was given back: the quick list of its size
        self.others: dict[Any, None] | None = None  # streams, besides the store's, whose work touches it
        self.marks: list[Any] | None = None  # given back: what these streams have to pass before it is used again

    def give_back(self) -> None:
        """Return to the pool, which looks at it later."""
        self.pool.returned.append(self)


def _references(blocks: list[Any], i: int) -> int:
    """How many references there are to an entry of a list besides the list's."""
    return sys.getrefcount(blocks[i]) - _IN_LIST


_IN_LIST = 0
_IN_LIST = _references([object()], 0)


class Store:
    """The segments whose blocks are reused in the order of one stream."""

    def __init__(self, pool: Pool, stream: Any) -> None:
        self.pool, self.stream = pool, stream
        self.quick: dict[int, list[Block]] = {}  # given back whole, by rounded size
        self.by_request: dict[int, list[Block]] = {}  # the same lists by exact size, as sizes repeat
        self.loose: list[Block] = []  # given back, of sizes that have no list
        self.free: list[tuple[int, int, Block]] = []  # coalesced, sorted by size
        self.alone: list[tuple[int, int, Block]] = []  # segments that are never split
        self.segments: list[Segment] = []

    def home(self, size: int, nbytes: int) -> list[Block]:
        """The list that blocks of a size return to. Programs of ever new sizes have one for all of these."""
        found = self.quick.get(size)
        if found is None:
            if len(self.quick) >= _QUICK:
                return self.loose
            found = self.quick[size] = []
        if len(self.by_request) < _REQUESTS:
            self.by_request[nbytes] = found
        return found

    def fit(self, size: int) -> Block | None:
        """The smallest free block that holds ``size``, cut to it; None if there is none."""
        if size >= ALONE:
            at = bisect_left(self.alone, (size,))
            if at < len(self.alone) and self.alone[at][0] - size <= size >> 3:
                return self.alone.pop(at)[2]
            return None
        at = bisect_left(self.free, (size,))
        if at == len(self.free):
            return None
        block = self.free.pop(at)[2]
        block.free = False
        if block.size > size:
            rest = Block(self, block.segment, block.address + size, block.size - size)
            rest.left, rest.right = block, block.right
            if block.right is not None:
                block.right.left = rest
            block.right, block.size = rest, size
            rest.free = True
            insort(self.free, (rest.size, rest.address, rest))
        return block

    def merge(self, block: Block) -> None:
        """A block that nobody holds, joined with its free neighbours."""
        if block.segment.alone:
            insort(self.alone, (block.size, block.address, block))
            return
        for other in (block.left, block.right):
            if other is None or not other.free:
                continue
            del self.free[bisect_left(self.free, (other.size, other.address))]
            other.free = False
            first, second = (other, block) if other is block.left else (block, other)
            first.size += second.size
            first.right = second.right
            if second.right is not None:
                second.right.left = first
            block = first
        block.free = True
        insort(self.free, (block.size, block.address, block))

    def flush(self) -> None:
        """Join what waits in the quick lists."""
        for block in self.returned():
            self.merge(block)

    def returned(self) -> Iterator[Block]:
        """Take what waits in the quick lists out of them."""
        for blocks in (*self.quick.values(), self.loose):
            while True:
                try:
                    yield blocks.pop()
                except IndexError:
                    break

    def mend(self) -> int:
        """Make whatever nobody holds free, and nothing else; returns the bytes of the rest."""
        waiting = {id(x[2]) for x in (*self.free, *self.alone)} | {id(x) for x in self.returned()}
        self.free.clear()
        self.alone.clear()
        held = 0
        for segment in self.segments:
            chain, heads = segment.chain(), list[Block]()
            count, run = len(chain), False
            # Besides who holds it, what refers to a block: the one to the left, or the segment; the one to the right.
            lost = [_references(chain, i) == 1 + (i + 1 < count) for i in range(count)]
            for block, is_lost in zip(chain, lost, strict=True):
                is_idle = is_lost or id(block) in waiting
                block.free = is_idle and block.others is None
                if block.free and run:
                    heads[-1].right = block.right
                    block.left = block.right = None  # such blocks are not to hold each other, nor others
                elif block.free:
                    heads.append(block)
                elif is_idle:  # others may still read it
                    self.pool.foreign.append(block)
                held += 0 if block.free else block.size
                run = block.free
            del chain
            segment.chain()
            for block in heads:
                (self.alone if segment.alone else self.free).append((block.size, block.address, block))
        self.free.sort()
        self.alone.sort()
        return held

    def empty_segments(self) -> list[Segment]:
        """The segments of which nothing is in use."""
        self.flush()
        return [x[2].segment for x in (*self.free, *self.alone) if x[0] == x[2].segment.size]

    def drop(self, segment: Segment) -> None:
        """Take a segment of which nothing is in use out of the store."""
        block = segment.first
        (self.alone if segment.alone else self.free).remove((block.size, block.address, block))
        block.free = False
        self.segments.remove(segment)
