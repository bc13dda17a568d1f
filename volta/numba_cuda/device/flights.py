"""Loops that are under way: a wait for them hears signals, and ends them where a signal's handler raises.

A loop on a device may run for ever, and in the driver's own waits the interpreter runs no handlers. So a stream that is
given loops remembers them: each begins a *stretch* of its work, which ends at an event. As long as there is one that is
not over, the host waits by asking again and again, and between two questions handlers run. Where one raises, and the
loop that is running does not end by itself soon, the stream's stop word is set, which its loops look at between two
iterations (`numba_cuda.conditional_nodes`), so they fall through; and what the stretches would have made is marked as
lost, before the word is set. The word is cleared when the stream is idle, before anything else is launched on it.

Of a stream that never had a loop, and follows none that has, nothing is remembered, and waits are the driver's.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from volta.core.errors import DeviceError

if TYPE_CHECKING:
    from volta.numba_cuda.device.streams import Event, Stream

_SPIN, _SHARE, _LONGEST = 4e-3, 128, 1e-3
"""Seconds that a wait asks without a pause; then it pauses for a share of the time so far, at most so many seconds."""

_MOST = 128
"""Launches between two looks at what is still under way, while there is a loop. A stream takes about a thousand
commands, and whoever gives it one more waits in the driver; so less than twice as many are behind a loop."""

_GRACE, _GRACES = 0.4, 0.8
"""Seconds that a loop has to end by itself when a wait is interrupted, and that all have. So of a training whose steps
have loops nothing is lost: what is under way when these seconds are over, and was ending loop by loop, goes on."""

_PATIENCE = 0.5
"""Seconds that the end of the process waits for loops to end."""

WORDS = 3
"""Words of a stop word's copy on the device: a multiprocessor's cycles when it was updated; what it was; and
the address of the word itself, an int64 in page-locked memory of the host."""

_COPY = 64
"""Where in the page-locked memory the words lie that the device's copy begins with."""


class Stretch:
    """A stream's work from a loop on, up to the next. ``lost``: it was cut short, and what it made must not be read.

    ``after`` is another stream's stretch that the stream waits for at its beginning, if that is why it is one.
    """

    __slots__ = ("after", "cuts", "end", "flight", "lost")

    def __init__(self, flight: Flight, after: Stretch | None = None) -> None:
        self.flight, self.after, self.cuts = flight, after, flight.cuts
        self.lost = False
        self.end: Event | None = None  # None until the loop has been launched

    def passed(self) -> bool:
        """Whether its loop is over."""
        return self.flight.stream.idle() if self.end is None else self.end.passed()

    def launched(self) -> None:
        """To be called when the work that it begins with is in the stream's queue."""
        flight = self.flight
        self.end = flight.stream.mark()
        with flight.device.flying:
            if self not in deque(flight.stretches, 1) and self not in flight.stretches:
                flight.stretches.append(self)  # another thread took it for over, as nothing had been launched
            if self.cuts != flight.cuts:  # another thread has set the stop word
                self.lost = True


class Flight:
    """The stretches of a stream that may not be over, in order, and its stop word."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.device = stream, stream.device
        self.stretches: deque[Stretch] = deque()
        self.cuts = 0  # how often the stop word was set
        self._stopping = False  # the stop word is set, or about to be
        self._count, self._seen = 0, deque[Stretch]()  # launches since the last look; the last stretch then
        device, nbytes = stream.device, 8 * WORDS
        device.enter()
        host = device.allocate_pinned(_COPY + nbytes)
        self._word = ctypes.c_int64.from_address(host)
        self._word.value = 0
        first = (ctypes.c_int64 * WORDS).from_address(host + _COPY)
        first[:] = [0, 0, host]
        self.copy = device.allocate(nbytes)  # for ever, as the word: loops may read them as long as there are loops
        self._clear = self.copy, host + _COPY, nbytes, stream.handle
        self._clear_copy()
        device.flights.append(self)

    def _clear_copy(self) -> None:
        self.device.enter()
        self.device.check(self.device.api.cuMemcpyHtoDAsync(*self._clear))

    # -- launching -----------------------------------------------------------------------------------------------------

    def begin(self, loop: bool) -> Stretch | None:
        """The stretch of what is launched next: a new one for a loop; None where no loop is under way.

        To be asked before it is seen whether what the work reads is lost.
        """
        if self._count >= _MOST:
            self._look()
        self._count += 1
        while True:
            new = Stretch(self)
            if not self._stopping:
                break
            self._settle()
        if loop:
            self.stretches.append(new)
            return new
        try:
            return self.stretches[-1]
        except IndexError:
            return None

    def follow(self, other: Flight) -> None:
        """The stream has been told to wait for another's work: if that is lost, so is what comes now."""
        try:
            new = Stretch(self, other.stretches[-1])
        except IndexError:  # it is over
            return
        self.stretches.append(new)
        new.launched()

    def _look(self) -> None:
        """Wait for the loops that were there at the last look, and forget those that are over."""
        self._count = 0
        before, self._seen = self._seen, deque(self.stretches, 1)
        for x in before:
            self.until(x.passed)
        self._under_way()

    def _under_way(self) -> tuple[Stretch, ...]:
        """The stretches that are not over; the others are forgotten."""
        with self.device.flying:
            while self.stretches and self.stretches[0].passed():
                self.stretches.popleft()
            return tuple(self.stretches)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all the stream's work is done."""
        with self.device.flying:
            before = tuple(self.stretches)
        self.until(self.stream.idle)
        with self.device.flying:
            for x in before:
                if self.stretches and self.stretches[0] is x:
                    self.stretches.popleft()

    def rest(self) -> None:
        """Until no loop is under way that has been launched by now."""
        for x in deque(self.stretches, 1):
            self.until(x.passed)

    def until(self, passed: Callable[[], bool]) -> None:
        """Ask until the answer is yes. Where a handler raises meanwhile, loops that are under way for long end."""
        begun = time.perf_counter()
        try:
            while not passed():
                waited = time.perf_counter() - begun
                if waited > _SPIN:
                    time.sleep(min(waited / _SHARE, _LONGEST))
        except DeviceError:
            raise
        except BaseException:
            try:
                long = self._lasts()
            except BaseException:  # interrupted once more
                self.stop()
                raise
            if long:
                self.stop()
            raise

    def _lasts(self) -> bool:
        """Whether a loop lasts longer than the grace it is given."""
        begun = since = time.perf_counter()
        before = self._under_way()[:1]
        while before and (now := time.perf_counter()) < begun + _GRACES:
            if now > since + _GRACE:
                return True
            time.sleep(_LONGEST)
            first = self._under_way()[:1]
            if first != before:
                before, since = first, now
        return False

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loops that are under way, those of streams that this one waits for, and of those that wait for it."""
        with self.device.flying:
            if not self._under_way():
                return
            reached = [self]
            for flight in reached:
                flight._mark()
                reached += [f for f in self.device.flights if f not in reached and f._meets(flight)]
            for flight in reached:
                flight._word.value = 1

    def end(self) -> None:
        """End the loops at the end of the process, and give them some time for it."""
        end = time.perf_counter() + _PATIENCE
        try:
            self.stop()
            while self._under_way() and time.perf_counter() < end:
                time.sleep(_LONGEST)
        except DeviceError:  # the device is lost, and its loops with it
            pass

    def _mark(self) -> None:
        self._stopping = True
        self.cuts += 1
        for x in self._under_way():
            x.lost = True

    def _meets(self, other: Flight) -> bool:
        """Whether it waits for lost work of another stream, or the other for work of its own."""
        waits = any(x.after is not None and x.after.flight is other and x.after.lost for x in tuple(self.stretches))
        return waits or any(
            x.lost and x.after is not None and x.after.flight is self and not x.after.passed()
            for x in tuple(other.stretches)
        )

    def _settle(self) -> None:
        """Clear the stop word once the loops that were to end have ended."""
        self.stop()  # again, if an interrupt kept that from being done
        self.until(self.stream.idle)
        with self.device.flying:
            if self._stopping:
                self._word.value = 0
                self._clear_copy()
                self._stopping = False
