"""Volta's own runtime over the CUDA driver: devices, streams, events, copies. Errors carry the driver's name."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import attrs

from volta.core.errors import DeviceError, DeviceLostError
from volta.core.locks import free_in_children
from volta.core.recent import Recent
from volta.numba_cuda.device import cuda_api, staging
from volta.numba_cuda.device.flights import Flight
from volta.numba_cuda.device.pool import Pool
from volta.numba_cuda.device.streams import Event, Stream, thread

_lock = threading.RLock()
free_in_children(globals(), "_lock")

_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSORS, _SHARED = 75, 76, 16, 97  # CUdevice_attribute


@attrs.define
class Counters:
    """Since the process began: bytes of arrays copied between host and device and between devices, bytes of args tables
    and how often one was filled, and launches of plans."""

    host_to_device: int = 0
    device_to_host: int = 0
    device_to_device: int = 0
    args: int = 0
    tables: int = 0
    launches: int = 0


counters = Counters()


@attrs.frozen
class DeviceInfo:
    """A GPU: its number, name, compute capability, multiprocessors, bytes of memory, and of a block's shared memory."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    shared: int


class Runtime:
    """The driver's functions and the devices it knows."""

    def __init__(self, api: SimpleNamespace) -> None:
        self.api = api
        self.process = os.getpid()
        self.check(api.cuInit(0))
        self.version = self.number(api.cuDriverGetVersion)
        if self.version < cuda_api.OLDEST_DRIVER:
            raise DeviceError(
                f"the NVIDIA driver knows CUDA {_dotted(self.version)}; Volta needs one that knows "
                f"{_dotted(cuda_api.OLDEST_DRIVER)} or newer: update the driver"
            )
        self.count = self.number(api.cuDeviceGetCount)
        self._devices: dict[int, Device] = {}

    def number(self, function: Callable[..., int], *args: Any, kind: Any = ctypes.c_int) -> int:
        """What a function of the driver writes to its first argument."""
        out = kind()
        self.check(function(ctypes.byref(out), *args))
        return int(out.value or 0)

    def text(self, function: Callable[..., int], code: int) -> str:
        out = ctypes.c_char_p()
        function(code, ctypes.byref(out))
        return (out.value or b"").decode()

    def check(self, code: int) -> None:
        """Raise what a status stands for, unless it is success.

        Raises:
            MemoryError: the device has no more memory.
            DeviceLostError: the error is of those after which a process has lost the device.
            DeviceError: any other, with the driver's name for it.
        """
        if code:
            self._raise(code)

    def _raise(self, code: int) -> None:
        name = self.text(self.api.cuGetErrorName, code) or f"CUDA error {code}"
        if code == cuda_api.OUT_OF_MEMORY:
            raise MemoryError(name)
        said = f"{name}: {self.text(self.api.cuGetErrorString, code) or 'no further word from the driver'}"
        device = thread.device
        if code in cuda_api.STICKY and device is not None:
            device.lost = device.lost or said
            device.refuse()
        raise DeviceError(said)

    def device(self, index: int = 0) -> Device:
        """A device by its number; DeviceError if there is none."""
        with _lock:
            if os.getpid() != self.process:
                raise DeviceError(
                    "CUDA does not survive fork: this process was forked after its parent had used the GPU. "
                    "Start processes with multiprocessing's 'spawn'."
                )
            found = self._devices.get(index)
            if found is None:
                if not 0 <= index < self.count:
                    raise DeviceError(f"there is no GPU {index}; the driver sees {self.count}")
                found = self._devices[index] = Device(self, index)
            return found

    def devices(self) -> list[Device]:
        """Those that have been used."""
        return list(self._devices.values())


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class Device:
    """A GPU: its context, its streams, its memory and the kernels loaded on it."""

    def __init__(self, runtime: Runtime, index: int) -> None:
        self.runtime, self.api, self.index = runtime, runtime.api, index
        self.name = f"cuda:{index}"
        self.lost = ""
        self.handle = runtime.number(self.api.cuDeviceGet, index)
        self.info = self._info()
        if self.info.capability < cuda_api.OLDEST_CAPABILITY:
            have, need = (".".join(map(str, x)) for x in (self.info.capability, cuda_api.OLDEST_CAPABILITY))
            raise DeviceError(
                f"{self.name}, {self.info.name}, has compute capability {have}; Volta needs {need} or newer"
            )
        self.context = runtime.number(self.api.cuDevicePrimaryCtxRetain, self.handle, kind=ctypes.c_void_p)
        self.units: WeakValueDictionary[str, Any] = WeakValueDictionary()  # loaded code, by a kernel's symbol
        self.recent: Recent[Any, Any] = Recent(256)  # units to keep although no plan may need them
        self.unused: deque[Any] = deque()  # modules to unload: nobody needs their kernels any more
        self.numbers: dict[Any, Any] = {}  # scalars on the device, by their bytes
        self.graphs: list[None] = []  # one entry for each of few kernels
        self._events: list[int] = []
        self._idle: list[Stream] = []
        self.beside = 0  # how many `use_stream` blocks are open
        self.flights: list[Flight] = []  # of streams that have loops
        self.flying = threading.RLock()  # held while flights are changed by more than an append
        self.switches = runtime.count > 1
        self.main = Stream(self)
        self.copies = Stream(self)  # large copies to the device run on it
        asked = Stream.mark, Event.passed, Event.wait
        self.pool = Pool(self.allocate, self._free, *asked, rest=self.rest)
        self.pinned = Pool(self.allocate_pinned, self._free_pinned, *asked, first=2 << 20, rest=self.rest)

    def _info(self) -> DeviceInfo:
        api, number = self.api, self.runtime.number
        name = ctypes.create_string_buffer(256)
        self.runtime.check(api.cuDeviceGetName(ctypes.addressof(name), 256, self.handle))
        attribute = functools.partial(number, api.cuDeviceGetAttribute)
        return DeviceInfo(
            self.index,
            name.value.decode(),
            (attribute(_CAPABILITY_MAJOR, self.handle), attribute(_CAPABILITY_MINOR, self.handle)),
            attribute(_MULTIPROCESSORS, self.handle),
            number(api.cuDeviceTotalMem, self.handle, kind=ctypes.c_size_t),
            attribute(_SHARED, self.handle),
        )

    def check(self, code: int) -> None:
        if code:
            thread.device = self
            self.runtime._raise(code)

    def done(self, code: int) -> bool:
        """What the driver answers when it is asked whether work is done."""
        if code == cuda_api.NOT_READY:
            return False
        self.check(code)
        return True

    def refuse(self) -> None:
        """Raise DeviceLostError if the process has lost the device."""
        if self.lost:
            raise DeviceLostError(
                f"{self.lost}. This came from work launched earlier; {self.name} ({self.info.name}, "
                f"{self.pool.live:,} bytes in use) is lost to this process until it is restarted"
            )

    def enter(self) -> None:
        """Make the device's context this thread's."""
        if thread.device is not self or self.switches:
            if self.lost:
                self.refuse()
            self.check(self.api.cuCtxSetCurrent(self.context))
            thread.device = self

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        """The stream that work of this thread goes to: the device's one, unless `use_stream` says otherwise."""
        if not self.beside:
            return self.main
        found = thread.streams
        return found.get(self.index, self.main) if found else self.main

    def synchronize(self) -> None:
        """Wait for everything launched on this thread's stream."""
        self.stream().synchronize()

    def rest(self) -> None:
        """Wait until no loop is under way: behind one, what comes next could keep us in the driver, deaf to signals."""
        for flight in self.flights:
            flight.rest()

    @contextmanager
    def use_stream(self) -> Iterator[Stream]:
        """Inside the block this thread's work goes to a stream of its own. Streams are kept and used again."""
        if thread.streams is None:
            thread.streams = {}
        streams = thread.streams
        before = streams.get(self.index)
        try:
            made = self._idle.pop()
        except IndexError:
            made = Stream(self)
        streams[self.index] = made
        with _lock:
            self.beside += 1
        try:
            yield made
        finally:
            with _lock:
                self.beside -= 1
            if before is None:
                del streams[self.index]
            else:
                streams[self.index] = before
            self._idle.append(made)

    # -- memory --------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, out: ctypes.c_uint64 | None = None) -> int:
        """Memory of the driver's, which the pool hands out in pieces; the driver writes its address to ``out``."""
        self.enter()
        out = ctypes.c_uint64() if out is None else out
        self.check(self.api.cuMemAlloc(ctypes.byref(out), nbytes))
        return out.value

    def _free(self, address: int) -> None:
        self.enter()
        self.check(self.api.cuMemFree(address))  # waits for the work that uses it

    def allocate_pinned(self, nbytes: int, out: ctypes.c_uint64 | None = None) -> int:
        """Page-locked memory of the host."""
        self.enter()
        out = ctypes.c_uint64() if out is None else out
        self.check(self.api.cuMemHostAlloc(ctypes.byref(out), nbytes, 0))
        return out.value

    def _free_pinned(self, address: int) -> None:
        self.check(self.api.cuMemFreeHost(address))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device, whoever uses it."""
        self.enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.api.cuMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def to_device(self, address: int, host: int, nbytes: int, stream: Stream) -> None:
        """Copy from host memory, in order with the stream's work; the host memory is free on return."""
        self.enter()
        if nbytes >= staging.LARGE:
            staging.to_device(self, address, host, nbytes, stream)
        elif nbytes:
            self.check(self.api.cuMemcpyHtoDAsync(address, host, nbytes, stream.handle))
        counters.host_to_device += nbytes

    def to_host(self, host: int, address: int, nbytes: int, stream: Stream) -> None:
        """Copy to host memory, after the stream's work, and wait for it."""
        self.enter()
        if stream.flying():
            stream.synchronize()
        if nbytes >= staging.LARGE:
            staging.to_host(self, host, address, nbytes, stream)
        elif nbytes:
            self.check(self.api.cuMemcpyDtoHAsync(host, address, nbytes, stream.handle))
        stream.synchronize()
        counters.device_to_host += nbytes

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy within the device, in order with the stream's work."""
        self.enter()
        if nbytes:
            self.check(self.api.cuMemcpyDtoDAsync(to, source, nbytes, stream.handle))
        counters.device_to_device += nbytes

    def copy_rows(self, call: ctypes.Structure, nbytes: int, stream: Stream) -> None:
        """Copy rows of bytes within the device, as `boxes` says, in order with the stream's work."""
        self.enter()
        self.check(self.api.cuMemcpy3DAsync(ctypes.byref(call), stream.handle))
        counters.device_to_device += nbytes

    def copy_from(self, other: Device, to: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy from another device's memory, in order with this one's stream."""
        self.enter()
        if nbytes:
            self.check(self.api.cuMemcpyPeerAsync(to, self.context, source, other.context, nbytes, stream.handle))
        counters.device_to_device += nbytes


_source: list[Callable[[], SimpleNamespace]] = [cuda_api.load]


@functools.cache
def _made() -> Runtime:
    return Runtime(_source[-1]())


@atexit.register
def _end_loops() -> None:
    """The process ends: no loop of its is to keep a device, or the driver from letting go of it."""
    if _made.cache_info().currsize and _made().process == os.getpid():
        for device in _made().devices():
            for flight in device.flights:
                flight.end()


def _runtime() -> Runtime:
    with _lock:  # of threads that come first at one time, each would make one: devices are compared by identity
        return _made()


def use(source: Callable[[], SimpleNamespace] | None) -> None:
    """Take the driver's functions from somewhere else, as tests do; None: from the driver again."""
    _source[1:] = [source] if source is not None else []
    _made.cache_clear()
    thread.__dict__.clear()


def why_none() -> str:
    """Why there is no GPU to be used; empty if there is one."""
    try:
        return "" if _runtime().count else "the NVIDIA driver sees no GPU on this machine"
    except DeviceError as error:
        return str(error)


def count() -> int:
    """How many GPUs the driver sees (0 where there is none, or no driver)."""
    return 0 if why_none() else _runtime().count


def device(index: int = 0) -> Device:
    """A GPU by its number; DeviceError if there is none."""
    return _runtime().device(index)


def info(index: int = 0) -> DeviceInfo:
    return device(index).info
