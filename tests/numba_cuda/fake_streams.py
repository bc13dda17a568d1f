"""Streams and events of the stand-in for NVIDIA's driver: queues whose work runs when somebody waits for it.

Who asks the same question twice, with no call of another kind in between, waits: a few iterations of loops run then.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_TURNS = 50
"""Iterations of loops that run each time that somebody asks again."""


def finished(result: Any) -> Iterator[int]:
    """What work gave: a status, or for loops one a iteration."""
    if isinstance(result, int):
        yield result
    elif result is not None:
        yield from result


def put(address: int, value: int, kind: Any = ctypes.c_int64) -> None:
    """Answer by way of a pointer, as the driver does."""
    kind.from_address(address).value = value


class Stream:
    def __init__(self, device: int) -> None:
        self.device = device
        self.queue: deque[tuple[str, Any]] = deque()
        self.running: Iterator[int] | None = None  # what is left of work that has begun
        self.recording: list[Callable[[], int]] | None = None


class _Record:
    """One time that an event was recorded: an event may be recorded again while somebody waits for the last time."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream, self.done, self.time = stream, stream is None, 0.0


class _Event:
    def __init__(self) -> None:
        self.last = _Record(None)


class FakeStreams:
    """Handles by number, and the streams and events among them."""

    def __init__(self) -> None:
        self.sticky = 0  # once a kernel has failed, the answer to everything
        self.objects: dict[int, Any] = {}
        self.numbers = itertools.count(1000)
        self.clock = 0.0
        self.local = threading.local()
        self.asked: set[tuple[str, int]] = set()  # what has been asked since the last call of another kind
        self.again = False  # whether this question was among them

    def new_handle(self, thing: Any) -> int:
        number = next(self.numbers)
        self.objects[number] = thing
        return number

    def push(self, stream: int, work: Callable[[], int]) -> int:
        s = self.objects[stream]
        if s.recording is not None:
            s.recording.append(work)
        else:
            s.queue.append(("run", work))
        return 0

    def _step(self, s: Stream, until: _Record | None = None) -> None:
        """Run a stream's queue, up to a record of an event in it."""
        for _ in self._steps(s, until):
            pass

    def _steps(self, s: Stream, until: _Record | None = None) -> Iterator[None]:
        while (s.queue or s.running) and not (until is not None and until.done):
            if s.running is None:
                kind, what = s.queue.popleft()
                self.clock += 1.0
                if kind == "record":
                    what.done, what.time = True, self.clock
                    continue
                if kind == "wait":
                    s.running = (0 for _ in self._steps(what.stream, what)) if not what.done else None
                    continue
                s.running = finished(what())
            for status in s.running:
                self.sticky = self.sticky or status
                yield
            s.running = None

    def _some(self, s: Stream, until: _Record | None = None) -> None:
        """A part of that, for somebody who asks again."""
        for _ in itertools.islice(self._steps(s, until), _TURNS if self.again else 0):
            pass

    def drain_all(self) -> None:
        for s in [x for x in self.objects.values() if isinstance(x, Stream)]:
            self._step(s)

    def cuStreamCreate(self, out: int, flags: int) -> int:
        return put(out, self.new_handle(Stream(self.local.device))) or 0

    def cuStreamDestroy(self, stream: int) -> int:
        self._step(self.objects.pop(stream))
        return 0

    def cuStreamSynchronize(self, stream: int) -> int:
        self._step(self.objects[stream])
        return 0

    def cuStreamQuery(self, stream: int) -> int:
        s = self.objects[stream]
        self._some(s)
        return 600 if s.queue or s.running else 0

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        self.objects[stream].queue.append(("wait", self.objects[event].last))
        return 0

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> int:
        def gate() -> int:
            assert ctypes.c_uint32.from_address(address).value == value, "the gate was waited for while closed"
            return 0

        return self.push(stream, gate)

    def cuEventCreate(self, out: int, flags: int) -> int:
        return put(out, self.new_handle(_Event())) or 0

    def cuEventDestroy(self, event: int) -> int:
        del self.objects[event]
        return 0

    def cuEventRecord(self, event: int, stream: int) -> int:
        s = self.objects[stream]
        record = self.objects[event].last = _Record(s)
        s.queue.append(("record", record))
        return 0

    def cuEventQuery(self, event: int) -> int:
        last = self.objects[event].last
        if not last.done:
            self._some(last.stream, last)
        return 0 if last.done else 600

    def cuEventSynchronize(self, event: int) -> int:
        last = self.objects[event].last
        if not last.done:
            self._step(last.stream, last)
        return 0

    def cuEventElapsedTime(self, out: int, first: int, second: int) -> int:
        ctypes.c_float.from_address(out).value = 1e-3 * (self.objects[second].last.time - self.objects[first].last.time)
        return 0
