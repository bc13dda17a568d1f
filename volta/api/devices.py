"""Devices, and arrays to and from them: the CPU, and an NVIDIA GPU where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from volta.api import shardings
from volta.core import pytrees
from volta.core.array import Array
from volta.core.device import Device
from volta.core.errors import DeviceError
from volta.core.extended import is_key
from volta.core.interp import Tracer
from volta.core.sharding import NamedSharding, SingleDeviceSharding
from volta.core.source import at_user_line
from volta.ops.base import settled
from volta.runtime import devices as _runtime
from volta.runtime import workers
from volta.runtime.array import as_array
from volta.runtime.context import current_context
from volta.runtime.sharded import ShardedArray


def default_backend() -> str:
    """The name of the kind of device that programs run on: 'cpu', or what `default_device` says."""
    return current_context().backend


def devices(backend: str | None = None) -> list[Device]:
    """The devices of a backend ('cpu' or 'cuda'): their names, which know their ``platform``, ``id`` and process.

    Raises:
        DeviceError: there is no such backend, or no GPU.

    >>> import volta
    >>> volta.devices("cpu")
    ['cpu:0']
    """
    backend = backend or default_backend()
    if backend not in ("cpu", "cuda"):
        kind = str(backend).split(":")[0]
        if kind in ("cpu", "cuda"):
            text = f"devices: {backend!r} is one device, no backend; devices({kind!r}) lists those of its backend"
            raise DeviceError(at_user_line(text))
        raise DeviceError(at_user_line(f"devices: there is no backend {backend!r}; there are 'cpu' and 'cuda'"))
    return list(map(Device, workers.names() if backend == workers.engine().kind else _runtime.names(backend)))


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def local_devices(backend: str | None = None) -> list[Device]:
    """The devices of a backend that belong to this process."""
    return [device for device in devices(backend) if device.is_local]


def local_device_count(backend: str | None = None) -> int:
    """How many of a backend's devices belong to this process."""
    return len(local_devices(backend))


def process_index() -> int:
    """The number of this process among those that run one program together."""
    return workers.engine().here[0]


def process_count() -> int:
    """How many processes run one program together. Simulated workers are in one."""
    found = workers.engine()
    return found.size // len(found.here)


def device_put(x: Any, device: Any = None) -> Any:
    """The leaves of a pytree as arrays on a device ('cpu', or 'cuda' for the GPU), or cut over those of a mesh.

    Args:
        x: a pytree of arrays, the same on every process that has a device of the mesh.
        device: a device's name, a ``NamedSharding``, or a pytree prefix of these.

    Raises:
        DeviceError: the device is not there.
        ShardingError: an array cannot be cut so.

    >>> import volta
    >>> volta.device_put({"a": 1.5})
    {'a': Array(1.5, dtype=float32, weak_type=True)}
    """
    if isinstance(device, SingleDeviceSharding):
        device = device.device
    if isinstance(device, (NamedSharding, dict, list, tuple)):
        leaves, tree = pytrees.flatten(x)
        wanted = shardings.prefix(device, x, "device_put")
        placed = [v if s is None else shardings.put(v, s) for v, s in zip(leaves, wanted, strict=True)]
        return pytrees.unflatten(tree, placed)
    where = None if device is None else _resolved(device)

    def put(leaf: Any) -> Any:
        leaf = leaf if isinstance(leaf, ShardedArray) else settled(leaf)
        if isinstance(leaf, Tracer):
            return leaf
        if isinstance(leaf, ShardedArray):
            if where is None:
                return leaf
            leaf = leaf.assembled()
        array = as_array(leaf)
        return array if where is None else _runtime.put(array, where)

    return pytrees.map(put, x)


def _resolved(device: Any) -> str:
    """The device of this process's that a name means, be it a worker's."""
    names = workers.names()
    number = names.index(str(device)) if str(device) in names else None
    here = number is not None and number in workers.engine().here
    return workers.engine().device(number) if number is not None and here else _runtime.resolve(device)


def device_get(x: Any) -> Any:
    """The leaves of a pytree as NumPy arrays; random keys, of which there are none, as arrays on the host.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> volta.device_get([vnp.arange(3)])
    [array([0, 1, 2], dtype=int32)]
    """
    return pytrees.map(lambda leaf: _on_host(leaf) if _has_elements(leaf) else leaf, x)


def _on_host(x: Any) -> Any:
    return _runtime.fetch(as_array(x)) if is_key(x.dtype) else np.asarray(x)


def block_until_ready(x: Any) -> Any:
    """Wait until the arrays of a pytree are there, and return it. On the CPU they always are."""
    return pytrees.map(lambda leaf: leaf.block_until_ready() if _has_elements(leaf) else leaf, x)


def _has_elements(leaf: Any) -> bool:
    return isinstance(leaf, Array) and not isinstance(leaf, Tracer)


@contextlib.contextmanager
def named_scope(name: str) -> Iterator[None]:
    """A name for a part of a program, as a context or a decorator: for readers; it changes no program.

    >>> import volta
    >>> with volta.named_scope("layer"):
    ...     y = volta.numpy.ones(2) + 1
    """
    if not isinstance(name, str):
        raise TypeError(at_user_line(f"named_scope: the name must be a string, not {type(name).__name__}"))
    yield
