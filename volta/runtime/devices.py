"""Devices: what there is, where arrays live, and how they move. The CUDA backend is loaded on its first use."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import CutShortError, DeviceError, OutOfMemoryError
from volta.core.later import import_later
from volta.core.policy import DeterminismLevel
from volta.core.sharding import Box
from volta.core.source import at_user_line
from volta.runtime.array import ConcreteArray
from volta.runtime.context import use_backend
from volta.runtime.memory import Buffer, as_numpy, default_pool
from volta.runtime.shared_buffer import SharedBuffer

HOST = "cpu:0"

LARGE = 1 << 20
"""Host arrays of at least this many bytes are copied to a GPU beside its other work, in a stream of their own."""


@functools.cache
def cuda() -> Any:
    """The CUDA backend; DeviceError where it cannot be had, with the reason."""
    backend = cuda_backend()
    why = backend.driver.why_none()
    if why:
        raise DeviceError(f"no NVIDIA GPU can be used: {why}")
    return backend


def cuda_backend() -> Any:
    """The CUDA backend, whether or not there is a GPU: it can plan and compile."""
    return import_later("volta.numba_cuda.backend")


def cuda_kernel_classes() -> tuple[tuple[str, DeterminismLevel], ...]:
    """The classes of kernels that the CUDA backend has, each with its level; asking needs no GPU."""
    schedule = import_later("volta.numba_cuda.schedule")
    return tuple(schedule.KERNEL_CLASSES.items())


def names(backend: str) -> list[str]:
    """The devices of a backend, 'cpu' or 'cuda', by name; DeviceError if it has none."""
    return [HOST] if backend == "cpu" else [f"cuda:{i}" for i in range(cuda().driver.count())]


def resolve(device: Any) -> str:
    """The full name of a device that is there: 'cuda' is 'cuda:0'. DeviceError if it is not."""
    text = HOST if device is None else str(device)
    text = text if ":" in text else f"{text}:0"
    kind = text.split(":")[0]
    if kind not in ("cpu", "cuda"):
        text = f"there is no device {device!r}; devices are strings: 'cpu:0', and 'cuda:0' and so on"
        raise DeviceError(at_user_line(text))
    there = names(kind)
    if text not in there:
        raise DeviceError(at_user_line(f"there is no device {device!r}; there are {', '.join(there)}"))
    return text


def gpu(name: str) -> Any:
    """The driver's record of a GPU by its name."""
    return cuda().driver.device(int(name.split(":")[1]))


class DeviceBuffer(Buffer):
    """A range of a GPU's memory, which goes back to its pool when the last reference is dropped.

    That takes no step of Python's, as with the host's (see `memory`).
    """

    __slots__ = ("__del__", "ready", "seen", "stream", "stretch")
    __del__: Callable[[], None]
    owner: Any

    def __init__(self, block: Any, nbytes: int, stream: Any) -> None:
        self.address: int = block.address
        self.nbytes = nbytes
        self.owner = block
        self.stream: Any = stream
        self.ready: Any = None  # an event: what the stream was given later need not be waited for
        self.seen: tuple[Any, ...] = ()  # other streams that have waited for the value
        self.stretch: Any = None  # of the stream's work: where a loop in it is cut short, the value is not there
        self.__del__ = partial(block.pool.returned.append, block)

    def written_by(self, stream: Any) -> None:
        """A stream is about to write another value: after what other streams read of this one."""
        for other in self.owner.others or ():
            if other is not stream:
                stream.wait_for(other.mark())
        self.stream, self.ready, self.seen = stream, None, ()

    @property
    def device(self) -> str:  # type: ignore[override]
        return str(self.stream.device.name)

    def read(self, aval: ShapedArray) -> np.ndarray:
        """The bytes of an array, copied to the host once all work before is done.

        Raises:
            CutShortError: there is no value.
        """
        refuse_lost(self, aval)
        out = np.empty(self.nbytes, np.uint8) if self.nbytes < LARGE else None
        if out is None:  # fresh memory costs a page fault every 4 KB, more than the copy
            memory = default_pool().allocate(self.nbytes)
            out = as_numpy(memory, (self.nbytes,), None, np.uint8, writable=True)
        stream = self.stream
        if self.ready is not None:
            stream = stream.device.copies
            stream.wait_for(self.ready)
        stream.device.to_host(out.ctypes.data, self.address, self.nbytes, stream)
        refuse_lost(self, aval)
        return out

    def mark(self) -> None:
        """What the stream is given from now on need not be waited for."""
        if self.ready is None:
            self.ready = self.stream.mark()

    def wait(self, aval: ShapedArray) -> None:
        """Until the memory of an array holds what was launched to write it; CutShortError if that is not to come."""
        if self.stretch is not None:
            refuse_lost(self, aval)
        self.stream.synchronize()
        if self.stretch is not None:
            refuse_lost(self, aval)


def refuse_lost(buffer: Buffer, aval: ShapedArray) -> None:
    """Raise CutShortError where the value of an array was to come from a loop that was cut short."""
    if buffer.stretch is not None and buffer.stretch.lost:
        raise CutShortError(
            at_user_line(
                f"this {aval.short()} array on {buffer.device} was never computed: an interrupt (Ctrl-C, or what "
                "another signal's handler raised) ended the loop that it comes from. Call again what made it. Arrays "
                "that were complete are as they were; those that were donated to it, and to calls behind it, are gone."
            )
        )


def visible_to(buffer: Buffer, stream: Any) -> None:
    """Let a stream use memory of another stream of its device: after the work there now, and before its reuse."""
    while type(buffer) is SharedBuffer:
        buffer = buffer.owner  # type: ignore[assignment]
    assert isinstance(buffer, DeviceBuffer)
    if stream in buffer.seen:  # it has waited, and nobody writes a value twice
        return
    block = buffer.owner
    if block.others is None:
        block.others = {}
    block.others[stream] = None
    if buffer.ready is not None:
        stream.wait_for(buffer.ready)
        buffer.stream, buffer.ready = stream, None
    else:
        stream.wait_for(buffer.stream.mark())
        buffer.seen = (*buffer.seen, stream)


def empty(nbytes: int, stream: Any) -> DeviceBuffer:
    """Memory for a stream's work, not cleared.

    Raises:
        OutOfMemoryError: there is none left.
    """
    pool = stream.device.pool
    try:
        return DeviceBuffer(pool.take(nbytes, stream), nbytes, stream)
    except MemoryError as error:
        raise OutOfMemoryError(at_user_line(f"{no_memory(error, stream.device)}.\n{WAY_OUT}")) from None


WAY_OUT = (
    "Drop arrays that are no longer needed, donate arguments (donate_argnums), use smaller shapes, recompute with "
    "volta.checkpoint, or raise the limit. The arrays that were there are as they were."
)


def no_memory(error: MemoryError, device: Any) -> str:
    """What a failed allocation says: what was asked for, and what is held."""
    free, total = device.memory_info()
    stats = device.pool.stats()
    limit = device.pool.limit
    bound = f", the limit is {limit:,}" if limit is not None else ""
    return (
        f"RESOURCE_EXHAUSTED: {device.name} has no memory for {getattr(error, 'needed', 0):,} bytes more: "
        f"{stats.live:,} are in use, {stats.pooled:,} pooled (the largest piece {stats.largest:,}){bound}; "
        f"the device has {total:,} bytes, {free:,} free"
    )


def pool(device: str = "cuda:0") -> Any:
    """The pool that arrays and arenas on a GPU come from."""
    return gpu(resolve(device)).pool


def memory_stats(device: str = "cuda:0") -> Any:
    """What a GPU's pool holds and has done so far."""
    return pool(device).stats()


@contextmanager
def memory_limit(nbytes: int | None, device: str = "cuda:0") -> Iterator[None]:
    """Inside the block a GPU's pool holds at most so many bytes (None: what the device has)."""
    found = pool(device)
    before, found.limit = found.limit, nbytes
    try:
        yield
    finally:
        found.limit = before


@contextmanager
def stream(device: str = "cuda:0") -> Iterator[Any]:
    """Inside the block this thread's work on a GPU goes to a stream of its own, beside the device's other work.

    Arrays may be used across streams: the user's stream waits for what the maker's had queued. The bits are the same.
    """
    found = gpu(resolve(device))
    with found.use_stream() as made:
        yield made


def profile() -> Any:
    """``with profile() as p:`` times each launch of the programs inside, one by one; ``print(p)`` shows the table."""
    return cuda().profile.profile()


def place(x: ConcreteArray, device: str = "cuda:0", on: Any = None) -> ConcreteArray:
    """A copy of an array on a GPU; an array that is there already passes through.

    Args:
        on: the stream that will use it; large arrays are copied beside its other work.
    """
    buffer = x.buffer()
    if buffer.device == device:
        return x
    target = gpu(device)
    to = on or target.stream()
    if buffer.device == HOST:
        if on is None and x.aval.nbytes >= LARGE:
            to = target.copies
        out = empty(x.aval.nbytes, to)
        target.to_device(out.address, x.address, x.aval.nbytes, to)
        if to is target.copies:
            out.ready = to.mark()
    else:
        x.block_until_ready()
        out = empty(x.aval.nbytes, to)
        target.copy_from(gpu(buffer.device), out.address, buffer.address, x.aval.nbytes, to)
        to.synchronize()  # the other device may reuse the memory
    return ConcreteArray(x.aval, out, 0)


def part_of(x: ConcreteArray, box: Box, aval: ShapedArray) -> ConcreteArray:
    """A box of an array on a GPU as an array there."""
    buffer, boxes = x.buffer(), cuda().boxes
    stream = buffer.stream
    refuse_lost(buffer, x.aval)
    out = empty(aval.nbytes, stream)
    boxes.copy(
        stream.device, out.address, boxes.whole(aval.shape), buffer.address, boxes.Box(x.aval.shape, box),
        aval.dtype.itemsize, stream,
    )  # fmt: skip
    out.stretch = buffer.stretch
    return ConcreteArray(aval, out, 0)


_NUMBERS = 1024


def number(x: ConcreteArray, target: Any) -> ConcreteArray:
    """A number's copy on a GPU. They are kept, as they recur, and shared, so that no call overwrites them."""
    key = (x.aval, ctypes.string_at(x.address, x.aval.nbytes))
    found: ConcreteArray | None = target.numbers.get(key)
    if found is None:
        if len(target.numbers) >= _NUMBERS:
            target.numbers.clear()
        found = place(x, target.name, target.main)
        found.share()
        target.numbers[key] = found
    return found


def fetch(x: ConcreteArray) -> ConcreteArray:
    """A GPU array's copy on the host; a host array passes through."""
    buffer = x.buffer()
    if buffer.device == HOST:
        return x
    out = default_pool().allocate(x.aval.nbytes)
    refuse_lost(buffer, x.aval)
    buffer.stream.device.to_host(out.address, buffer.address, x.aval.nbytes, buffer.stream)
    refuse_lost(buffer, x.aval)
    return ConcreteArray(x.aval, out, out.address)


def put(x: ConcreteArray, device: str) -> ConcreteArray:
    """An array on a device; what is there already is not copied."""
    return fetch(x) if device == HOST else place(x, device)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    """Inside the block, operations on arrays that are on no GPU run on this device ('cpu', 'cuda' or 'cuda:1').

    Raises:
        DeviceError: the device is not there.

    >>> import volta
    >>> with volta.default_device("cpu"):
    ...     volta.numpy.ones(3).device
    'cpu:0'
    """
    kind, number = resolve(device).split(":")
    with use_backend(kind, int(number)):
        yield
