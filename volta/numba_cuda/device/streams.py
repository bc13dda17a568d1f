"""Queues of a device's work, and points in them; what is current in a thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from volta.numba_cuda.device import cuda_api
from volta.numba_cuda.device.flights import Flight
from volta.numba_cuda.device.launcher import waiter

if TYPE_CHECKING:
    from volta.numba_cuda.device.driver import Device

_NON_BLOCKING, _NO_TIMING = 1, 2  # CUstream_flags, CUevent_flags


class _Thread(threading.local):
    """What a thread has: the device whose context is current, and its streams by device."""

    device: Device | None = None
    streams: dict[int, Stream] | None = None


thread = _Thread()


class Stream:
    """A queue of a device's work, done in its order."""

    __slots__ = ("__del__", "__weakref__", "_wait", "device", "flight", "handle")
    __del__: Callable[[], None]  # no step of Python's (see `DeviceBuffer`); of an event, too

    def __init__(self, device: Device) -> None:
        self.device = device
        self.flight: Flight | None = None  # what is remembered of its loops, from the first one on
        device.enter()
        self.handle = device.runtime.number(device.api.cuStreamCreate, _NON_BLOCKING, kind=ctypes.c_void_p)
        self.__del__ = partial(device.api.cuStreamDestroy, self.handle)
        self._wait = waiter(self.words(device.api.cuStreamSynchronize), device.api)

    def words(self, function: Any, more: int = 0) -> np.ndarray:
        """The words of a native call (see `launcher`): a function of the driver's, the stream, places for ``more``."""
        api, device = self.device.api, self.device
        first = cuda_api.address_of(function), cuda_api.address_of(api.cuCtxSetCurrent), device.context, self.handle
        return np.array([*first, *[0] * more], np.int64)

    def synchronize(self) -> None:
        """Wait for all that was launched on it."""
        flight = self.flight
        if flight is not None and flight.stretches:  # see `flights`
            flight.wait()
            return
        code = self._wait()
        if code:
            self.device.check(code)

    def flying(self) -> bool:
        """Whether a loop may be under way."""
        return self.flight is not None and bool(self.flight.stretches)

    def idle(self) -> bool:
        """Whether all that was launched on it is done."""
        self.device.enter()
        return self.device.done(self.device.api.cuStreamQuery(self.handle))

    def watched(self) -> Flight:
        """What is remembered of its loops, from now on."""
        with self.device.flying:
            if self.flight is None:
                self.flight = Flight(self)
            return self.flight

    def mark(self) -> Event:
        """An event that is passed when the work launched so far is done."""
        return Event(self)

    def wait_for(self, event: Event) -> None:
        """Later work of this stream comes after an event of another."""
        self.device.enter()
        self.device.check(self.device.api.cuStreamWaitEvent(self.handle, event.handle, 0))
        if event.stream.flying():
            self.watched().follow(event.stream.watched())


class Event:
    """A point in a stream's work. With ``timing``, the time between two can be asked."""

    __slots__ = ("__del__", "device", "handle", "stream")
    __del__: Callable[[], None]

    def __init__(self, stream: Stream, timing: bool = False) -> None:
        self.stream = stream
        device = self.device = stream.device
        self.handle = 0
        device.enter()
        try:
            self.handle = 0 if timing else device._events.pop()
        except IndexError:
            pass
        if not self.handle:
            flags = 0 if timing else _NO_TIMING
            self.handle = device.runtime.number(device.api.cuEventCreate, flags, kind=ctypes.c_void_p)
        self.__del__ = partial(device.api.cuEventDestroy if timing else device._events.append, self.handle)
        device.check(device.api.cuEventRecord(self.handle, stream.handle))

    def passed(self) -> bool:
        """Whether the work before it is done."""
        self.device.enter()
        return self.device.done(self.device.api.cuEventQuery(self.handle))

    def wait(self) -> None:
        """Until the work before it is done."""
        if self.stream.flying():
            self.stream.watched().until(self.passed)
            return
        self.device.enter()
        self.device.check(self.device.api.cuEventSynchronize(self.handle))

    def since(self, earlier: Event) -> float:
        """Microseconds from another event to this one."""
        out = ctypes.c_float()
        self.device.check(self.device.api.cuEventElapsedTime(ctypes.byref(out), earlier.handle, self.handle))
        return 1e3 * out.value
