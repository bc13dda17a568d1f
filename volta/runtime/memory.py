"""Host memory for arrays and arenas.

Blocks are aligned to 64 bytes and pooled by size class: a fresh block of more than 128 KB costs a page fault every
4 KB, which is slower than most kernels that would fill it, so a dropped block waits for the next array of its size.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from volta.core.errors import MemoryBudgetError
from volta.core.source import at_user_line

ALIGNMENT = 64


class Buffer:
    """A range of host memory: `address` and `nbytes`, alive as long as `owner` is.

    Make one with `HostPool.allocate`, or wrap foreign memory: ``Buffer(address, nbytes, owner)``.
    """

    __slots__ = ("__weakref__", "address", "nbytes", "owner")
    device = "cpu:0"
    stream: Any = None  # of a device's memory: the queue of work that writes it
    stretch: Any = None  # of a device's memory: what that work belongs to, where a loop comes before it

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.address = address
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(address={self.address:#x}, nbytes={self.nbytes})"


class _PooledBuffer(Buffer):
    """A buffer whose memory goes back to its pool when the last reference is dropped.

    What a signal's handler raises while a destructor of Python's runs is reported and dropped: a Ctrl-C would be lost.
    So the destructor is a slot, and in it a call of the interpreter's own functions alone, where no handler can run.
    """

    __slots__ = ("__del__",)
    __del__: Callable[[], None]

    def __init__(self, address: int, nbytes: int, owner: "_Block", give_back: Callable[[], None]) -> None:
        self.owner = owner
        self.address = address
        self.nbytes = nbytes
        self.__del__ = give_back


class _Block:
    """One piece of memory from the system, and the free list that it returns to."""

    __slots__ = ("address", "free", "memory", "size")

    def __init__(self, size: int, free: "list[_Block]") -> None:
        self.size = size
        self.free = free
        self.memory = np.empty(size + ALIGNMENT, np.uint8)  # NumPy asks for huge pages where that pays
        start = self.memory.ctypes.data
        self.address = start + -start % ALIGNMENT


@attrs.frozen
class PoolStats:
    """Bytes in live buffers now and at most, bytes waiting in the pool; blocks taken from the system, and reused."""

    live: int
    peak: int
    pooled: int
    allocations: int
    reuses: int


_RECOUNT = 256
"""Blocks that are taken from the system between two recounts."""

_SHARES = 4096
"""Into so many shares the bytes are divided that may wait to be reused: a returned block takes one at least."""


class _Mark:
    """What stands among the returned blocks and is none."""

    free = None


_MORE, _GONE = _Mark(), _Mark()
"""A further share that the block before takes; a block that is larger than all that may wait, and did not."""


def size_class(nbytes: int) -> int:
    """The bytes set aside for a request: eight classes to a power of two, so at most an eighth is unused."""
    if nbytes <= ALIGNMENT:
        return ALIGNMENT
    shift = max(6, (nbytes - 1).bit_length() - 4)
    return ((nbytes - 1 >> shift) + 1) << shift


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 8 << 30


class HostPool:
    """Hands out aligned host buffers, and takes them back when they are dropped.

    `limit` bounds the bytes of live buffers and of blocks kept for reuse together (None: no bound but the machine's),
    `pool_limit` the bytes kept for reuse (None: a quarter of the machine's memory).  Safe to use from several threads.
    """

    where = "on the host"

    def __init__(self, limit: int | None = None, pool_limit: int | None = None) -> None:
        self._limit = limit
        self._pool_limit = kept = _physical_memory() // 4 if pool_limit is None else pool_limit
        # Where destructors leave blocks until the next allocation looks. Each is followed by a mark for every further
        # share that it takes, and what has no room pushes out the oldest: so they are bounded without any arithmetic.
        self._share = max(1, kept // _SHARES)
        self._returned: deque[Any] = deque(maxlen=max(1, kept // self._share))
        self._give_back = self._returned.append
        self._lists: dict[int, list[_Block]] = {}  # by size class
        self._by_request: dict[int, list[_Block]] = {}  # the same lists by exact size, as sizes repeat
        self._live = 0
        self._peak = 0
        self._held = 0  # live and pooled together
        self._allocations = 0
        self._reuses = 0
        # All memory that there is, with its size. Callbacks would be Python's too; and a collection of cycles, which
        # clears references to the blocks in it, does not look at NumPy's arrays.
        self._blocks: dict[int, tuple[weakref.ref[Any], int]] = {}

    @property
    def limit(self) -> int | None:
        """The bound on the bytes held; None for none.  A smaller limit applies to the next allocation."""
        return self._limit

    @limit.setter
    def limit(self, nbytes: int | None) -> None:
        self._limit = nbytes

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least one and exactly `nbytes` usable bytes, not cleared, aligned to 64 bytes.

        Raises `MemoryBudgetError` if that would exceed the limit, or if the machine has no more memory.
        """
        try:
            free = self._by_request[nbytes]
            if self._returned:
                block = self._returned.pop()
                if block.free is free:  # the last one fits, as it often does
                    self._reuses += 1
                    return _PooledBuffer(block.address, nbytes, block, partial(self._give_back, block))
                self._returned.append(block)
                self._sort_in()
            block = free.pop()
        except (KeyError, IndexError):
            block = self._take(nbytes)
        else:
            self._reuses += 1
            self._live = live = self._live + block.size
            if live > self._peak:
                self._peak = live
        if block.size > self._share:
            return _PooledBuffer(block.address, nbytes, block, self._by_shares(block))
        return _PooledBuffer(block.address, nbytes, block, partial(self._give_back, block))

    def _by_shares(self, block: _Block) -> Callable[[], None]:
        """What returns a block that takes several shares."""
        if block.size > self._pool_limit:
            return partial(self._give_back, _GONE)
        return partial(self._returned.extend, (block, *[_MORE] * ((block.size - 1) // self._share)))

    def _sort_in(self) -> None:
        """Returned blocks into their free lists, or back to the system where too many wait."""
        returned = self._returned
        unseen = len(returned) == returned.maxlen  # some may have been pushed out
        try:
            while returned:
                block = returned.popleft()
                if block is _GONE:
                    unseen = True
                elif block is not _MORE:
                    self._live = live = self._live - block.size
                    if self._held - live <= self._pool_limit:
                        block.free.append(block)
                    else:
                        self._held -= block.size
        except IndexError:  # another thread had the last
            pass
        if unseen:
            self._recount()

    def _take(self, nbytes: int) -> _Block:
        """A block where the exact size was not seen before, or its free list is empty."""
        if nbytes < 0:
            raise ValueError(f"a buffer cannot have {nbytes} bytes")
        self._sort_in()
        size = size_class(nbytes)
        free = self._lists.setdefault(size, [])
        if len(self._by_request) > 4096:  # a program with ever new sizes must not grow this without bound
            self._by_request = {}
        self._by_request[nbytes] = free
        try:
            block = free.pop()
        except IndexError:
            block = self._fresh(size, nbytes, free)
            self._allocations += 1
            self._held += size
        else:
            self._reuses += 1
        self._live = live = self._live + size
        if live > self._peak:
            self._peak = live
        return block

    def _fresh(self, size: int, nbytes: int, free: list[_Block]) -> _Block:
        limit = self._limit
        if limit is not None or not self._allocations % _RECOUNT:
            self._recount()
        if limit is not None and self._held + size > limit:
            self.trim()
            if self._live + size > limit:
                raise MemoryBudgetError(
                    at_user_line(
                        f"cannot allocate {nbytes:,} bytes {self.where}: {self._live:,} bytes are in use and the limit "
                        f"is {limit:,}. Drop arrays that are no longer needed, or raise the limit."
                    )
                )
        try:
            return self._noted(self._new_block(size, free))
        except MemoryError:
            self.trim()
        try:
            return self._noted(self._new_block(size, free))
        except MemoryError:
            raise MemoryBudgetError(
                at_user_line(
                    f"cannot allocate {nbytes:,} bytes {self.where}: the machine has no more memory "
                    f"({self._live:,} bytes are in use by this pool)."
                )
            ) from None

    def _new_block(self, size: int, free: "list[_Block]") -> _Block:
        return _Block(size, free)

    def _noted(self, block: _Block) -> _Block:
        ref = weakref.ref(block.memory)
        self._blocks[id(ref)] = ref, block.size
        return block

    def _recount(self) -> None:
        """Mend the counts: a block that an interrupt let go of, on its way out or back, is gone with its memory."""
        before, held = self._counts(), 0
        for key, (ref, size) in list(self._blocks.items()):
            if ref() is not None:
                held += size
            else:
                self._blocks.pop(key, None)
        pooled = sum(size * len(free) for size, free in list(self._lists.items()))
        if self._counts() == before:  # no other thread came in
            self._held, self._live = held, held - pooled

    def _counts(self) -> tuple[int, ...]:
        return self._held, self._live, self._allocations, self._reuses

    def trim(self) -> int:
        """Give all pooled blocks back to the system; returns the bytes given back."""
        self._sort_in()
        given = 0
        for free in list(self._lists.values()):
            while True:
                try:
                    block = free.pop()
                except IndexError:
                    break
                self._held -= block.size
                given += block.size
                del block
        self._recount()
        return given

    def stats(self) -> PoolStats:
        """What the pool holds and has done so far."""
        self._sort_in()
        self._recount()
        return PoolStats(self._live, self._peak, self._held - self._live, self._allocations, self._reuses)

    def reset_peak(self) -> None:
        """Start measuring `PoolStats.peak` anew from what is live now."""
        self._sort_in()
        self._recount()  # what an interrupt let go of is no longer there, and must not count as the peak
        self._peak = self._live


class _Exporter:
    """Carries a buffer into NumPy's array interface; the array made from it keeps it, and so the buffer, alive."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: Buffer, interface: dict[str, object]) -> None:
        self.buffer = buffer
        self.__array_interface__ = interface


def as_numpy(
    buffer: Buffer,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: npt.DTypeLike,
    writable: bool = False,
    offset: int = 0,
) -> np.ndarray:
    """A NumPy view of a buffer, without a copy, that keeps the buffer alive.

    `strides` are in bytes (None: row-major), `offset` is where the first element lies.  Raises ``ValueError`` if an
    element would lie outside the buffer.
    """
    dtype = np.dtype(dtype)
    shape = tuple(shape)
    if strides is None:
        low, high = 0, dtype.itemsize
        for length in shape:
            high *= length
    else:
        strides = tuple(strides)
        reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        low = sum(step for step in reach if step < 0)
        high = sum(step for step in reach if step > 0) + dtype.itemsize
    if 0 not in shape and (offset + low < 0 or offset + high > buffer.nbytes):
        raise ValueError(
            f"a view of shape {shape}, strides {strides}, dtype {dtype} and offset {offset} reaches outside its buffer "
            f"of {buffer.nbytes} bytes"
        )
    # NumPy's array interface has no names for extension types such as bfloat16: go through an integer of that size.
    plain = dtype if dtype.kind != "V" else np.dtype(f"u{dtype.itemsize}")
    interface = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": plain.str,
        "data": (buffer.address + offset, not writable),
    }
    array = np.asarray(_Exporter(buffer, interface))
    return array if plain is dtype else array.view(dtype)


_default_pool = HostPool()


def default_pool() -> HostPool:
    """The pool that arrays and arenas of this process come from."""
    return _default_pool


def wrap_numpy(array: np.ndarray) -> Buffer:
    """A buffer over a NumPy array's memory, without a copy; the array stays alive with it.

    The array must be C-contiguous (``ValueError`` otherwise).
    """
    if not array.flags.c_contiguous:
        raise ValueError(f"only C-contiguous arrays can be wrapped, got strides {array.strides} for {array.shape}")
    return Buffer(array.__array_interface__["data"][0], array.nbytes, array)
