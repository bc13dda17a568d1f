"""The CUDA driver, as much of it as Volta uses: device, memory, modules, graphs. Errors carry the driver's name."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import attrs
from cuda.bindings import driver as cu

from volta.core.errors import DeviceError

_state = threading.local()
_lock = threading.RLock()


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; DeviceError with the driver's name for it, MemoryError where memory ran out."""
    code, *values = result
    if code != cu.CUresult.CUDA_SUCCESS:
        if code == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(code.name)
        text = cu.cuGetErrorString(code)[1]
        raise DeviceError(f"{code.name}: {text.decode() if text else 'no further word from the driver'}")
    return values[0] if len(values) == 1 else tuple(values)


@attrs.define
class Counters:
    """Bytes copied between host and device, and launches of graphs, since the process began."""

    host_to_device: int = 0
    device_to_host: int = 0
    launches: int = 0


counters = Counters()


@attrs.frozen
class DeviceInfo:
    """A GPU: its number, name, compute capability, multiprocessors and bytes of memory."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int


@functools.cache
def count() -> int:
    """How many GPUs the driver sees (0 where there is none, or no driver)."""
    try:
        check(cu.cuInit(0))
        return int(check(cu.cuDeviceGetCount()))
    except (DeviceError, RuntimeError):
        return 0


@functools.cache
def info(index: int = 0) -> DeviceInfo:
    device = check(cu.cuDeviceGet(index))
    kind = cu.CUdevice_attribute

    def attribute(which: Any) -> int:
        return int(check(cu.cuDeviceGetAttribute(which, device)))

    name = check(cu.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    capability = (
        attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        attribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    )
    processors = attribute(kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    return DeviceInfo(index, name, capability, processors, int(check(cu.cuDeviceTotalMem(device))))


@functools.cache
def _context() -> Any:
    if not count():
        raise DeviceError("no NVIDIA GPU is visible to the CUDA driver")
    return check(cu.cuDevicePrimaryCtxRetain(check(cu.cuDeviceGet(0))))


def enter() -> None:
    """Make the device's context this thread's; every other function here needs that."""
    if not getattr(_state, "entered", False):
        with _lock:
            check(cu.cuCtxSetCurrent(_context()))
        _state.entered = True


@functools.cache
def stream() -> Any:
    """The one stream of the device: work and frees are ordered by it."""
    enter()
    return check(cu.cuStreamCreate(int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))


def synchronize() -> None:
    """Wait for everything that was launched."""
    enter()
    check(cu.cuStreamSynchronize(stream()))


def allocate(nbytes: int) -> int:
    """Device memory; MemoryError if there is none left."""
    enter()
    return int(check(cu.cuMemAlloc(nbytes)))


def free(address: int) -> None:
    """Give device memory back, once the work that uses it is done."""
    enter()
    check(cu.cuStreamSynchronize(stream()))
    check(cu.cuMemFree(address))


def to_device(address: int, host: int, nbytes: int) -> None:
    """Copy from pageable host memory, in order with the stream's work; the host memory is free on return."""
    enter()
    if nbytes:
        check(cu.cuMemcpyHtoDAsync(address, host, nbytes, stream()))
        check(cu.cuStreamSynchronize(stream()))
        counters.host_to_device += nbytes


def to_host(host: int, address: int, nbytes: int) -> None:
    """Copy to host memory and wait for it."""
    enter()
    if nbytes:
        check(cu.cuMemcpyDtoHAsync(host, address, nbytes, stream()))
    check(cu.cuStreamSynchronize(stream()))
    counters.device_to_host += nbytes


def copy(to: int, source: int, nbytes: int) -> None:
    """Copy within the device, in order with the stream's work."""
    enter()
    if nbytes:
        check(cu.cuMemcpyDtoDAsync(to, source, nbytes, stream()))


def memory_info() -> tuple[int, int]:
    """Free and total bytes of the device."""
    enter()
    free, total = check(cu.cuMemGetInfo())
    return int(free), int(total)


class PinnedTable:
    """A block of int64 words in page-locked host memory, to copy to the device from."""

    def __init__(self, count: int) -> None:
        enter()
        self.nbytes = 8 * max(1, count)
        self.address = int(check(cu.cuMemHostAlloc(self.nbytes, 0)))
        self.words = (ctypes.c_int64 * max(1, count)).from_address(self.address)
        self._copied: Any = None

    def copy_to(self, address: int) -> None:
        """Copy the words to device memory, in order with the stream's work; the words must not change until `wait`."""
        check(cu.cuMemcpyHtoDAsync(address, self.address, self.nbytes, stream()))
        if self._copied is None:
            self._copied = check(cu.cuEventCreate(int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)))
        check(cu.cuEventRecord(self._copied, stream()))
        counters.host_to_device += self.nbytes

    def wait(self) -> None:
        """Until the last copy is done: then the words may be written again."""
        if self._copied is not None:
            check(cu.cuEventSynchronize(self._copied))

    def __del__(self) -> None:
        if cu is not None:
            if self._copied is not None:
                cu.cuEventDestroy(self._copied)
            cu.cuMemFreeHost(self.address)


class Module:
    """Loaded machine code; keep it as long as its functions are used."""

    def __init__(self, ptx: str) -> None:
        enter()
        log = bytearray(8192)
        options = [cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        result = cu.cuModuleLoadDataEx(ptx.encode() + b"\0", len(options), options, [log, len(log)])
        try:
            self.handle = check(result)
        except DeviceError as error:
            text = bytes(log).split(b"\0")[0].decode(errors="replace")
            raise DeviceError(f"{error}\nthe driver's assembler says: {text}") from None

    def function(self, name: str) -> Any:
        return check(cu.cuModuleGetFunction(self.handle, name.encode()))


_STATIC_SHARED = 48 << 10
"""Bytes of shared memory that any block may have; for more the kernel's limit must be raised."""


def allow_shared(function: Any, nbytes: int) -> None:
    """Let a kernel's blocks have this much dynamic shared memory; DeviceError where the device has less."""
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if nbytes > _STATIC_SHARED and check(cu.cuFuncGetAttribute(which, function)) < nbytes:
        check(cu.cuFuncSetAttribute(function, which, nbytes))


class Direct:
    """Kernels launched one by one: for plans of so few that a graph would only cost more."""

    def __init__(self, launches: list[tuple[Any, int, int, int, int]]) -> None:
        """``launches`` as those of a `Graph`."""
        self._launches = []
        for function, grid, threads, address, shared in launches:
            value = ctypes.c_uint64(address)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
            self._launches.append((function, grid, threads, shared, ctypes.addressof(pointers), (value, pointers)))

    def launch(self) -> None:
        s = stream()
        for function, grid, threads, shared, pointers, _ in self._launches:
            check(cu.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, s, pointers, 0))
        counters.launches += 1


class Graph:
    """Kernels captured once, which read their args from a table in device memory; launched as one."""

    def __init__(self, launches: list[tuple[Any, int, int, int, int]]) -> None:
        """``launches``: (function, blocks, threads, address of the args block, bytes of dynamic shared memory)."""
        enter()
        s = stream()
        check(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        try:
            for function, grid, threads, address, shared in launches:
                args = ((address,), (ctypes.c_void_p,))
                check(cu.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, s, args, 0))
        finally:
            graph = cu.cuStreamEndCapture(s)
        self._graph = check(graph)
        self._exec = check(cu.cuGraphInstantiate(self._graph, 0))

    def launch(self) -> None:
        check(cu.cuGraphLaunch(self._exec, stream()))
        counters.launches += 1

    def __del__(self) -> None:
        if cu is not None and hasattr(self, "_exec"):
            cu.cuGraphExecDestroy(self._exec)
            cu.cuGraphDestroy(self._graph)
