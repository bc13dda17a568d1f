"""Large copies between the host's ordinary memory and a device, chunk by chunk through page-locked memory.

The driver's own copies from ordinary memory wait for the stream first. Here one chunk moves while the next is filled.
"""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from volta.emit.jobs import Job

if TYPE_CHECKING:
    from volta.numba_cuda.device.driver import Device
    from volta.numba_cuda.device.streams import Event, Stream

LARGE = 1 << 20
"""Copies of at least this many bytes go through chunks."""

_CHUNK, _LARGE_CHUNK, _LARGEST = 2 << 20, 8 << 20, 64 << 20
"""A chunk is small, so that the first is soon on its way; for the largest copies it is worth several threads' work."""

_MOVERS = 4
"""Threads that fill and empty a chunk: one moves a fraction of what the link to a GPU does."""

_PIECE = 2 << 20

HOST = "host"
"""Stands for the stream of page-locked memory: the host writes it, in no stream's order."""


@functools.cache
def _movers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOVERS - 1, "volta-copy")


def move(to: int, source: int, nbytes: int) -> None:
    """Copy within host memory, in several threads where that pays."""
    pieces = max(1, min(_MOVERS, nbytes // _PIECE))
    size = nbytes // pieces // 64 * 64
    others = [Job(ctypes.memmove, to + i * size, source + i * size, size) for i in range(pieces - 1)]
    for other in others:
        other.share(_movers())
    done = (pieces - 1) * size
    ctypes.memmove(to + done, source + done, nbytes - done)
    for other in others:
        other.result()


def chunk_of(nbytes: int) -> int:
    """Bytes of a chunk, for a copy of so many."""
    return min(nbytes, _CHUNK if nbytes < _LARGEST else _LARGE_CHUNK)


class Chunks:
    """Two chunks of page-locked memory for one copy, and when each was last read or written by the device."""

    def __init__(self, device: Device, size: int) -> None:
        self.blocks = [device.pinned.take(size, HOST) for _ in range(2)]
        self.events: list[Event | None] = [None, None]

    def give_back(self, stream: Stream) -> None:
        for block in self.blocks:
            block.others = {stream: None}
            block.give_back()


def to_device(device: Device, address: int, host: int, nbytes: int, stream: Stream) -> None:
    """Copy to the device in the stream's order; the host memory is free on return."""
    size = chunk_of(nbytes)
    chunks = Chunks(device, size)
    try:
        for i, at in enumerate(range(0, nbytes, size)):
            count, k = min(size, nbytes - at), i % 2
            event, pinned = chunks.events[k], chunks.blocks[k].address
            if event is not None:
                event.wait()
            move(pinned, host + at, count)
            device.check(device.api.cuMemcpyHtoDAsync(address + at, pinned, count, stream.handle))
            chunks.events[k] = stream.mark()
    finally:
        chunks.give_back(stream)


def to_host(device: Device, host: int, address: int, nbytes: int, stream: Stream) -> None:
    """Copy to the host after the stream's work; the bytes are there on return."""
    size = chunk_of(nbytes)
    chunks = Chunks(device, size)
    starts = list(range(0, nbytes, size))
    try:
        for i, at in enumerate([*starts, -1]):
            if at >= 0:
                pinned = chunks.blocks[i % 2].address
                count = min(size, nbytes - at)
                device.check(device.api.cuMemcpyDtoHAsync(pinned, address + at, count, stream.handle))
                chunks.events[i % 2] = stream.mark()
            if i:
                event = chunks.events[(i - 1) % 2]
                assert event is not None
                event.wait()
                before = starts[i - 1]
                move(host + before, chunks.blocks[(i - 1) % 2].address, min(size, nbytes - before))
    finally:
        chunks.give_back(stream)
