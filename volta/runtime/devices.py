"""Devices: what there is, where arrays live, and how they move. The CUDA backend is loaded on its first use."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta.core.errors import DeviceError
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.runtime.array import Array
from volta.runtime.context import use_backend
from volta.runtime.memory import Buffer, HostPool, PoolStats

HOST, CUDA = "cpu:0", "cuda:0"


@functools.cache
def cuda() -> Any:
    """The CUDA backend; DeviceError where it cannot be had."""
    try:
        backend = importlib.import_module("volta.numba_cuda.backend")
    except ImportError as error:
        raise DeviceError(
            f"the CUDA backend needs the package cuda-bindings (pip install 'volta[cuda]'): {error}"
        ) from None
    if not backend.driver.count():
        raise DeviceError("no NVIDIA GPU is visible to the CUDA driver on this machine")
    return backend


def cuda_kernel_classes() -> tuple[tuple[str, DeterminismLevel], ...]:
    """The classes of kernels that the CUDA backend has, each with its level; asking needs no GPU."""
    kernels = importlib.import_module("volta.numba_cuda.kernels")
    return (
        *((name, DeterminismLevel.STRICT) for name in kernels.KERNEL_CLASSES),
        *((name, DeterminismLevel.DEVICE) for name in kernels.DEVICE_CLASSES),
    )


def resolve(device: str | None) -> str:
    """The full name of a device that is there: 'cuda' is 'cuda:0'. DeviceError if it is not."""
    text = HOST if device is None else device if ":" in device else f"{device}:0"
    if text not in (HOST, CUDA):
        raise DeviceError(at_user_line(f"there is no device {device!r}; there are {HOST!r} and {CUDA!r}"))
    if text == CUDA:
        cuda()
    return text


class DeviceBuffer(Buffer):
    """A range of a GPU's memory."""

    __slots__ = ()
    device = CUDA

    def read(self) -> np.ndarray:
        """The bytes, copied to the host once all work before is done."""
        out = np.empty(self.nbytes, np.uint8)
        cuda().driver.to_host(out.ctypes.data, self.address, self.nbytes)
        return out

    def wait(self) -> None:
        cuda().driver.synchronize()


class DevicePool(HostPool):
    """Hands out device memory in the host pool's size classes; freed blocks wait for the stream's later work."""

    where = "on the GPU"

    def __init__(self, limit: int | None = None) -> None:
        total = cuda().driver.info().memory
        super().__init__(limit, pool_limit=total)

    def allocate(self, nbytes: int) -> Buffer:
        block = super().allocate(nbytes)
        return DeviceBuffer(block.address, nbytes, block)

    def _new_block(self, size: int, free: list[Any]) -> Any:
        return _DeviceBlock(self, size, free)


class _DeviceBlock:
    """One allocation of the driver's, and the free list that it returns to."""

    def __init__(self, pool: DevicePool, size: int, free: list[Any]) -> None:
        self.pool, self.size, self.free = pool, size, free
        self.address: int = cuda().driver.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            cuda().driver.free(self.address)


@functools.cache
def pool() -> DevicePool:
    """The pool that arrays and arenas on the GPU come from."""
    return DevicePool()


def memory_stats() -> PoolStats:
    """What the GPU's pool holds and has done so far."""
    return pool().stats()


def place(x: Array) -> Array:
    """A host array's copy on the GPU; an array that is there already passes through."""
    buffer = x.buffer()
    if buffer.device == CUDA:
        return x
    out = pool().allocate(x.aval.nbytes)
    cuda().driver.to_device(out.address, x.address, x.aval.nbytes)
    return Array(x.aval, out, 0)


def fetch(x: Array) -> Array:
    """A GPU array's copy on the host; a host array passes through."""
    if x.buffer().device == HOST:
        return x
    return Array.from_numpy(x.numpy(), x.aval.weak_type)


def put(x: Array, device: str) -> Array:
    """An array on a device; what is there already is not copied."""
    return place(x) if device == CUDA else fetch(x)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    """Inside the block, operations on arrays that are on no GPU run on this device ('cpu' or 'cuda').

    Raises:
        DeviceError: the device is not there.

    >>> import volta
    >>> with volta.default_device("cpu"):
    ...     volta.numpy.ones(3).device
    'cpu:0'
    """
    with use_backend(resolve(device).split(":")[0]):
        yield


def empty(nbytes: int) -> Buffer:
    """Memory on the GPU, not cleared."""
    return pool().allocate(nbytes)
