"""Device memory in few large segments: best fit, split and coalesced, reused in the order of streams.

Nothing here calls the driver: a pool is given what takes and returns segments, and what says when a stream is done.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from volta.numba_cuda.device.blocks import ALONE, PAGE, Block, Segment, Store, rounded

T = TypeVar("T")

_FIRST, _MOST = 64 << 20, 512 << 20
"""Segments have at least the first and grow with what is reserved up to the second, so that few serve many."""


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


class Pool:
    """Hands out device memory. Blocks belong to a stream: given back, they are reused by its later work at once.

    ``allocate``, which is told where to leave the address as well, and ``release`` are the driver's; ``rest`` waits for
    what could keep ``release`` for long. What ``mark(stream)`` gives, ``passed`` can be asked about: is the work done
    that the stream had then; ``wait`` waits for it. Safe to use from several threads, and interrupts may come anywhere.
    """

    def __init__(
        self,
        allocate: Callable[[int, ctypes.c_uint64], int],
        release: Callable[[int], None],
        mark: Callable[[Any], Any],
        passed: Callable[[Any], bool],
        wait: Callable[[Any], None],
        limit: int | None = None,
        first: int = _FIRST,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._first, self._rest = first, rest
        self._allocate, self._release, self._mark = allocate, release, mark
        self._passed, self._wait = passed, wait
        self.limit = limit
        self._lock = threading.RLock()
        self._stores: dict[Any, Store] = {}
        self._fresh = ctypes.c_uint64()  # the segment that was allocated last, also where an interrupt came then
        self._inside = self._torn = False  # who has the lock is changing the books; has begun to, and has not ended
        self.returned: deque[Block] = deque()  # given back, by destructors too, since somebody looked
        self.foreign: deque[Block] = deque()  # given back, touched by other streams
        self._taken = self._peak = self._reserved = self._reserved_peak = 0
        self._segments = self._allocations = self._reuses = 0

    def take(self, nbytes: int, stream: Any) -> Block:
        """A block of at least ``nbytes`` bytes, for work of ``stream``.

        Raises:
            OutOfDeviceMemory: the limit or the device's memory is met, with everything unused given back.
        """
        try:
            home = self._stores[stream].by_request[nbytes]
            if self.returned:
                block = self.returned.pop()
                if block.home is home and block.others is None:  # the last one fits, as it often does
                    self._reuses += 1
                    return block
                self.returned.append(block)
                self._sort_in()
            block = home.pop()
        except (KeyError, IndexError):
            block = self._slow(nbytes, stream)
        else:
            self._reuses += 1
        self._taken = live = self._taken + block.size
        if live > self._peak:
            self._peak = live
        return block

    def _sort_in(self) -> None:
        """Blocks that were given back to where they wait."""
        returned = self.returned
        try:
            while returned:
                block = returned.popleft()
                self._taken = self._taken - block.size
                if block.others is None:
                    block.home.append(block)
                else:
                    self.foreign.append(block)
        except IndexError:  # another thread had the last
            pass

    def _slow(self, nbytes: int, stream: Any) -> Block:
        if nbytes < 0:
            raise ValueError(f"a buffer cannot have {nbytes} bytes")
        return self._carefully(self._find, rounded(nbytes), nbytes, stream)

    def _carefully(self, change: Callable[..., T], *given: Any) -> T:
        """Change the books, after an interrupt of who did so before has been mended."""
        with self._lock:
            inside, self._inside = self._inside, True  # a handler may come back here in the middle
            try:
                if self._torn and not inside:
                    self._mend()
                self._torn = True
                result = change(*given)
                self._torn = inside
                return result
            finally:
                self._inside = inside

    def _mend(self) -> None:
        """Make the books from what is there: whatever nobody holds is free."""
        self._sort_in()
        before = self._taken, self._allocations, self._reuses
        held = sum(store.mend() for store in self._stores.values()) - sum(x.size for x in tuple(self.foreign))
        segments = [x for store in self._stores.values() for x in store.segments]
        fresh, self._fresh.value = self._fresh.value, 0
        if fresh and all(x.address != fresh for x in segments):
            self._release(fresh)
        self._segments, self._reserved = len(segments), sum(x.size for x in segments)
        if before == (self._taken, self._allocations, self._reuses):  # no other thread came in
            self._taken = held

    def _find(self, size: int, nbytes: int, stream: Any) -> Block:
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
                self._mend()  # what an interrupt let go of need not be taken from the driver once more
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
        self._sort_in()
        for _ in range(len(self.foreign)):
            block = self.foreign.popleft()
            if block.marks is None:
                block.marks = [self._mark(s) for s in block.others or ()]
            if wait:
                for m in block.marks:
                    self._wait(m)
            if wait or all(self._passed(m) for m in block.marks):
                block.others = block.marks = None
                block.home.append(block)
            else:
                self.foreign.append(block)

    def _grow(self, store: Store, size: int) -> Block:
        """A block from a new segment."""
        least = -(-size // PAGE) * PAGE
        alone = size >= ALONE
        wish = least if alone else max(least, min(_MOST, max(self._first, self._reserved >> 4) // PAGE * PAGE))
        address = self._segment(wish)
        if address is None:
            self._trim()
            address = self._segment(wish)
            if address is None and wish > least:
                wish = least
                address = self._segment(wish)
        if address is None:
            bound = self.limit if self.limit is not None and self._reserved + least > self.limit else 0
            raise OutOfDeviceMemory(size, bound, self.stats())
        segment = Segment(store, address, wish, alone)
        store.segments.append(segment)
        if alone:
            return segment.first
        store.merge(segment.first)
        found = store.fit(size)
        assert found is not None
        return found

    def _segment(self, size: int) -> int | None:
        if self.limit is not None and self._reserved + size > self.limit:
            return None
        try:
            address = self._allocate(size, self._fresh)
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
        self._sort_in()
        return self._taken

    def trim(self) -> int:
        """Give segments of which nothing is in use back to the driver; returns their bytes. Waits for other streams."""
        return self._carefully(self._trim)

    def _trim(self) -> int:
        given = 0
        self._mend()
        self._collect(wait=True)
        self._rest()
        for store in self._stores.values():
            for segment in store.empty_segments():
                store.drop(segment)
                self._release(segment.address)
                self._segments -= 1
                self._reserved -= segment.size
                given += segment.size
        return given

    def stats(self) -> PoolStats:
        """What the pool holds and has done so far."""
        return self._carefully(self._stats)

    def _stats(self) -> PoolStats:
        self._collect()
        for store in self._stores.values():
            store.flush()
        free = [x[-1][0] for s in self._stores.values() for x in (s.free, s.alone) if x]
        return PoolStats(
            self._taken, self._peak, self._reserved, self._reserved_peak, max(free, default=0),
            sum(block.size for block in self.foreign), self._segments, self._allocations, self._reuses,
        )  # fmt: skip

    def reset_peak(self) -> None:
        """Start measuring the peaks anew from what is there now."""
        self._peak, self._reserved_peak = self.live, self._reserved
