"""Device memory in few large segments: best fit, split and coalesced, reused in the order of streams.

Nothing here calls the driver: a pool is given what takes and returns segments, and what says when a stream is done.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

ALIGNMENT = 256

_PAGE = 2 << 20
"""The driver hands out memory in pages of this size."""

_FIRST, _MOST = 64 << 20, 512 << 20
"""Segments have at least the first and grow with what is reserved up to the second, so that few serve many."""

_ALONE = 256 << 20
"""From here on a block has a segment of its own, which is never split: arenas of large plans come back whole."""


_QUICK, _REQUESTS = 256, 1024
"""How many sizes have a list of their own, and how many exact sizes point at one."""


def rounded(nbytes: int) -> int:
    """The bytes set aside for a request."""
    unit = ALIGNMENT if nbytes < _ALONE else _PAGE
    return max(1, -(-nbytes // unit)) * unit


class OutOfDeviceMemory(MemoryError):
    """No segment could be had: ``needed`` bytes, ``limit`` the bound that was met (0: the device's memory)."""

    def __init__(self, needed: int, limit: int, stats: PoolStats) -> None:
        super().__init__(f"{needed:,} bytes")
        self.needed, self.limit, self.stats = needed, limit, stats


@attrs.frozen
class PoolStats:
    """Bytes of a pool.

    ``live`` are in arrays now, ``peak`` were at most; ``reserved`` are held from the driver now, ``reserved_peak`` at
    most, in ``segments`` pieces. ``pooled`` wait for reuse, the ``largest`` of them in one piece; ``pending`` wait for
    another stream. ``allocations`` counts calls of the driver, ``reuses`` blocks handed out without one.
    """

    live: int
    peak: int
    reserved: int
    reserved_peak: int
    largest: int
    pending: int
    segments: int
    allocations: int
    reuses: int

    @property
    def pooled(self) -> int:
        return self.reserved - self.live

    @property
    def fragmentation(self) -> float:
        """The share of pooled bytes that are not in the largest piece: 0 where all is one piece."""
        return 1 - self.largest / self.pooled if self.pooled else 0.0


class Segment:
    """One allocation of the driver's."""

    __slots__ = ("address", "alone", "size")

    def __init__(self, address: int, size: int, alone: bool) -> None:
        self.address, self.size, self.alone = address, size, alone


class Block:
    """A part of a segment, between its neighbours ``left`` and ``right`` there."""

    __slots__ = ("address", "free", "home", "left", "others", "pool", "right", "segment", "size", "store")

    def __init__(self, store: Store, segment: Segment, address: int, size: int) -> None:
        self.pool, self.store, self.segment = store.pool, store, segment
        self.address, self.size = address, size
        self.left: Block | None = None
        self.right: Block | None = None
        self.free = False  # in the store's sorted list
        self.home: list[Block] = []  # where it goes when it is given back: the quick list of its size
        self.others: dict[Any, None] | None = None  # streams, besides the store's, whose work touches it

    def give_back(self) -> None:
        """Return to the pool. Only attributes and appends, with no switch of threads between: safe in a destructor."""
        pool = self.pool
        pool._live = pool._live - self.size
        if self.others is None:
            self.home.append(self)
        else:
            pool._foreign.append(self)


class Store:
    """The segments whose blocks are reused in the order of one stream."""

    def __init__(self, pool: Pool, stream: Any) -> None:
        self.pool, self.stream = pool, stream
        self.quick: dict[int, list[Block]] = {}  # given back whole, by rounded size
        self.by_request: dict[int, list[Block]] = {}  # the same lists by exact size, as sizes repeat
        self.loose: list[Block] = []  # given back, of sizes that have no list
        self.free: list[tuple[int, int, Block]] = []  # coalesced, sorted by size
        self.alone: list[tuple[int, int, Block]] = []  # segments that are never split

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
        if size >= _ALONE:
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
        for blocks in (*self.quick.values(), self.loose):
            while True:
                try:
                    block = blocks.pop()
                except IndexError:
                    break
                self.merge(block)

    def empty_segments(self) -> list[Segment]:
        """Take the segments of which nothing is in use out of the store."""
        self.flush()
        whole = [x for x in (*self.free, *self.alone) if x[0] == x[2].segment.size]
        for x in whole:
            (self.alone if x[2].segment.alone else self.free).remove(x)
            x[2].free = False
        return [x[2].segment for x in whole]


class Pool:
    """Hands out device memory. Blocks belong to a stream: given back, they are reused by its later work at once.

    ``allocate`` and ``release`` are the driver's. What ``mark(stream)`` gives, ``passed`` can be asked about: is the
    work done that the stream had then; ``wait`` waits for it. Safe to use from several threads.
    """

    def __init__(
        self,
        allocate: Callable[[int], int],
        release: Callable[[int], None],
        mark: Callable[[Any], Any],
        passed: Callable[[Any], bool],
        wait: Callable[[Any], None],
        limit: int | None = None,
        first: int = _FIRST,
    ) -> None:
        self._first = first
        self._allocate, self._release, self._mark = allocate, release, mark
        self._passed, self._wait = passed, wait
        self.limit = limit
        self._lock = threading.RLock()
        self._stores: dict[Any, Store] = {}
        self._foreign: deque[Block] = deque()  # given back, touched by other streams
        self._pending: deque[tuple[Block, list[Any]]] = deque()  # the same, with what has to pass
        self._live = self._peak = self._reserved = self._reserved_peak = 0
        self._segments = self._allocations = self._reuses = 0

    def take(self, nbytes: int, stream: Any) -> Block:
        """A block of at least ``nbytes`` bytes, for work of ``stream``.

        Raises:
            OutOfDeviceMemory: the limit or the device's memory is met, with everything unused given back.
        """
        try:
            block = self._stores[stream].by_request[nbytes].pop()
        except (KeyError, IndexError):
            block = self._slow(nbytes, stream)
        else:
            self._reuses += 1
        self._live = live = self._live + block.size
        if live > self._peak:
            self._peak = live
        return block

    def _slow(self, nbytes: int, stream: Any) -> Block:
        if nbytes < 0:
            raise ValueError(f"a buffer cannot have {nbytes} bytes")
        size = rounded(nbytes)
        with self._lock:
            store = self._stores.get(stream)
            if store is None:
                store = self._stores[stream] = Store(self, stream)
            home = store.home(size, nbytes)
            self._collect()
            try:
                if home is store.loose:
                    raise IndexError
                block = home.pop()
            except IndexError:
                store.flush()  # the best fit is the best only among all
                found = store.fit(size)
                if found is None:
                    block = self._grow(store, size)
                else:
                    block = found
                    self._reuses += 1
            else:
                self._reuses += 1
            block.home = home
            return block

    def _collect(self, wait: bool = False) -> None:
        """Take back blocks whose other streams are done with them, or wait until they are."""
        while self._foreign:
            block = self._foreign.popleft()
            marks = [self._mark(s) for s in block.others or ()]
            block.others = None
            self._pending.append((block, marks))
        for _ in range(len(self._pending)):
            block, marks = self._pending.popleft()
            if wait:
                for m in marks:
                    self._wait(m)
            if wait or all(self._passed(m) for m in marks):
                block.home.append(block)
            else:
                self._pending.append((block, marks))

    def _grow(self, store: Store, size: int) -> Block:
        """A block from a new segment."""
        least = -(-size // _PAGE) * _PAGE
        alone = size >= _ALONE
        wish = least if alone else max(least, min(_MOST, max(self._first, self._reserved >> 4) // _PAGE * _PAGE))
        address = self._segment(wish)
        if address is None:
            self.trim()
            address = self._segment(wish)
            if address is None and wish > least:
                wish = least
                address = self._segment(wish)
        if address is None:
            bound = self.limit if self.limit is not None and self._reserved + least > self.limit else 0
            raise OutOfDeviceMemory(size, bound, self.stats())
        segment = Segment(address, wish, alone)
        block = Block(store, segment, address, wish)
        if alone:
            return block
        store.merge(block)
        found = store.fit(size)
        assert found is not None
        return found

    def _segment(self, size: int) -> int | None:
        if self.limit is not None and self._reserved + size > self.limit:
            return None
        try:
            address = self._allocate(size)
        except MemoryError:
            return None
        self._allocations += 1
        self._segments += 1
        self._reserved += size
        self._reserved_peak = max(self._reserved_peak, self._reserved)
        return address

    @property
    def live(self) -> int:
        """Bytes in use now."""
        return self._live

    def trim(self) -> int:
        """Give segments of which nothing is in use back to the driver; returns their bytes. Waits for other streams."""
        given = 0
        with self._lock:
            self._collect(wait=True)
            for store in self._stores.values():
                for segment in store.empty_segments():
                    self._release(segment.address)
                    self._segments -= 1
                    self._reserved -= segment.size
                    given += segment.size
        return given

    def stats(self) -> PoolStats:
        """What the pool holds and has done so far."""
        with self._lock:
            self._collect()
            for store in self._stores.values():
                store.flush()
            free = [x[-1][0] for s in self._stores.values() for x in (s.free, s.alone) if x]
            return PoolStats(
                self._live, self._peak, self._reserved, self._reserved_peak, max(free, default=0),
                sum(block.size for block, _ in self._pending), self._segments, self._allocations, self._reuses,
            )  # fmt: skip

    def reset_peak(self) -> None:
        """Start measuring the peaks anew from what is there now."""
        self._peak, self._reserved_peak = self._live, self._reserved
