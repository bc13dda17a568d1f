"""Devices, and arrays to and from them. Volta's arrays live in the memory of the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from volta.core import pytrees
from volta.core.errors import DeviceError
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.runtime.array import Array, as_array

_CPU = "cpu:0"


def default_backend() -> str:
    """The name of the kind of device that programs run on."""
    return "cpu"


def devices(backend: str | None = None) -> list[str]:
    """The devices there are, by name.

    >>> import volta
    >>> volta.devices()
    ['cpu:0']
    """
    if backend not in (None, "cpu"):
        raise DeviceError(at_user_line(f"devices: there is no backend {backend!r}; there is 'cpu'"))
    return [_CPU]


local_devices = devices


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def process_index() -> int:
    """The number of this process among those that run one program together: 0."""
    return 0


def process_count() -> int:
    """How many processes run one program together: 1."""
    return 1


def device_put(x: Any, device: Any = None) -> Any:
    """The leaves of a pytree as arrays on a device.

    >>> import volta
    >>> volta.device_put({"a": 1.5})
    {'a': Array(1.5, dtype=float32, weak_type=True)}
    """
    if device not in (None, "cpu", _CPU):
        raise DeviceError(at_user_line(f"device_put: there is no device {device!r}; there is {_CPU!r}"))
    return pytrees.map(lambda leaf: leaf if isinstance(leaf, Tracer) else as_array(leaf), x)


def device_get(x: Any) -> Any:
    """The leaves of a pytree as NumPy arrays.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> volta.device_get([vnp.arange(3)])
    [array([0, 1, 2], dtype=int32)]
    """
    return pytrees.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) else leaf, x)


def block_until_ready(x: Any) -> Any:
    """Wait until the arrays of a pytree are there, and return it. On the CPU they always are."""
    return pytrees.map(lambda leaf: leaf.block_until_ready() if isinstance(leaf, Array) else leaf, x)


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
