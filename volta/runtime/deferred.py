"""A program that is first called with arguments on a GPU which is not the context's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.runtime.array import ConcreteArray
from volta.runtime.executable import Executable


class Deferred:
    """It runs where its arguments lie, and is compiled for a device when it is first to run there: for the context's
    own, whose plan and kernels nobody may ever need, when no argument lies on a GPU."""

    __slots__ = ("_compiled", "_here", "_there")

    def __init__(self, device: Any, there: Executable, compiled: Callable[[Any], Executable]) -> None:
        self._compiled = compiled  # for a GPU; for None, for the context's own device
        self._here: Executable | None = None
        self._there = {device: there._run}

    def __call__(self, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        """As an `Executable`'s."""
        if arrays and not arrays[0].address:  # most calls: this much is done by hand
            found = self._there.get((arrays[0]._buffer or arrays[0].buffer()).stream.device)
            if found is not None:
                return found(arrays)
        device = gpu_of(arrays)
        if device is None:
            if self._here is None:
                self._here = self._compiled(None)
            return self._here(arrays)
        if device not in self._there:
            self._there[device] = self._compiled(device)._run
        return self._there[device](arrays)


def gpu_of(arrays: Sequence[Any]) -> Any:
    """The first GPU that an array lies on."""
    for x in arrays:
        if type(x) is ConcreteArray and not x.address:  # on a GPU, or gone
            stream = (x._buffer or x.buffer()).stream
            if stream is not None:
                return stream.device
    return None
