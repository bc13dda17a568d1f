"""Where a plan's kernels find their args when it is called: in the launch itself, or in tables in device memory."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from volta.numba_cuda.device import graph
from volta.numba_cuda.device.blocks import Block
from volta.numba_cuda.device.driver import counters
from volta.numba_cuda.device.graph import Launches, Row
from volta.numba_cuda.device.launcher import Taking
from volta.numba_cuda.device.staging import HOST
from volta.numba_cuda.device.streams import Stream
from volta.numba_cuda.device_plan import DevicePlan, Table
from volta.numba_cuda.launches import Launch

Addresses = Sequence[int]


class Template:
    """A plan's args with all but what changes from call to call, and its kernels."""

    def __init__(self, plan: DevicePlan, table: Table, functions: dict[str, int]) -> None:
        self.plan, self.functions = plan, functions
        self.offsets = table.offsets
        self.words = np.array(table.words, np.int64)
        self.patches = np.array([attrs.astuple(p) for p in table.patches], np.int64).reshape(-1, 3)

    def rows(self, start: int) -> list[Row]:
        """The plan's launches, their args in one piece from an address on."""
        places = iter(self.offsets)

        def row(x: Launch) -> Row:
            args = start + next(places)
            inside = tuple(row(y) for y in x.inside)
            return Row(
                self.functions[x.source.name], x.grid, x.threads, args, x.shared, x.after, inside, x.repeats,
                x.early and not inside,
            )  # fmt: skip

        return [row(x) for x in self.plan.launches]

    def fill(self, words: np.ndarray, addresses: Addresses) -> None:
        """Write the args of a call."""
        words[:] = self.words
        word, position, distance = self.patches.T
        words[word] = np.array(addresses, np.int64)[position] + distance


_GRAPHS, _PAUSE, _SEEN = 8, 512, 64
"""Graphs of one plan, each with other addresses; when all are there, the next waits for so many calls that find none.
So many addresses are counted at one time."""


class WithLaunch:
    """Args that go with the launch: nothing is copied to the device, and nothing is in its memory.

    Kernels are launched one by one, or, with addresses that come again, as a graph that has them among its params.
    """

    def __init__(self, template: Template, stream: Stream) -> None:
        self._template, self._words, self._lock = template, template.words.copy(), threading.Lock()
        self._launches = Launches(stream, template.rows(self._words.ctypes.data), self._words)
        self._each = self._launches.kernel_by_kernel(template.patches)
        self._graphs: dict[tuple[int, ...], Callable[[Taking], int]] = {}
        self._seen: dict[tuple[int, ...], int] = {}
        self._rest = 0  # calls that still find no graph before the next is made

    def launch(self, addresses: list[int], taking: Taking) -> int:
        """Launch the plan with these addresses; returns the driver's status, or `REFUSED`."""
        key = tuple(addresses)
        known = self._graphs.get(key)
        if known is not None:
            return known(taking)
        status = self._each(addresses, taking)
        self._count(key)  # beside the kernels
        return status

    def _count(self, key: tuple[int, ...]) -> None:
        """Make a graph for these addresses if they have come often."""
        with self._lock:
            self._rest -= 1
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] < graph.OFTEN or self._rest > 0 or key in self._graphs:
                return
            del self._seen[key]
            self._template.fill(self._words, key)
            made = self._launches.graph_if_room()
            if made is None or len(self._graphs) == _GRAPHS:
                self._rest = _PAUSE
            if made is not None:
                if len(self._graphs) == _GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
                self._graphs[key] = made

    def timed(self, addresses: list[int]) -> list[float]:
        """Launch the plan kernel by kernel, and wait; microseconds that each took."""
        with self._lock:
            self._template.fill(self._words, addresses)
            return self._launches.timed()


@attrs.frozen(eq=False)
class _Kept:
    """A table: where it lies, and the kernels that read it."""

    place: int
    launches: Launches


class Tables:
    """Tables in one piece of device memory, kept by the addresses in them: memory is reused, so most calls find theirs
    and copy nothing. The kernels that read a table become a graph."""

    __slots__ = ("__del__", "_kept", "_lock", "_spare", "_stream", "_template")
    __del__: Callable[[], None]

    def __init__(self, template: Template, stream: Stream) -> None:
        self._template, self._stream = template, stream
        nbytes, kept = template.words.nbytes, template.plan.kept_tables
        memory: Block = stream.device.pool.take(kept * nbytes, stream)
        self.__del__ = memory.give_back
        self._spare = [memory.address + i * nbytes for i in range(kept)]
        self._kept: OrderedDict[tuple[int, ...], _Kept] = OrderedDict()
        self._lock = threading.Lock()  # held while work is queued, never while it is waited for

    def launch(self, addresses: list[int], taking: Taking) -> int:
        """Launch the plan with these addresses; returns the driver's status, or `REFUSED`."""
        with self._lock:
            return self._table(tuple(addresses)).launches.launch(taking)

    def timed(self, addresses: list[int]) -> list[float]:
        """Launch the plan kernel by kernel, and wait; microseconds that each took."""
        with self._lock:
            return self._table(tuple(addresses)).launches.timed()

    def _table(self, addresses: tuple[int, ...]) -> _Kept:
        found = self._kept.get(addresses)
        return self._fill(addresses) if found is None else found

    def _fill(self, addresses: tuple[int, ...]) -> _Kept:
        """A table with these addresses in it: a new one, or one in place of the oldest."""
        stream, device, template = self._stream, self._stream.device, self._template
        nbytes = template.words.nbytes
        device.enter()
        pinned = device.pinned.take(nbytes, HOST)
        try:
            if self._spare:
                kept = _Kept(self._spare[-1], Launches(stream, template.rows(self._spare[-1])))
                self._spare.pop()
            else:
                kept = self._kept.popitem(last=False)[1]
            self._kept[addresses] = kept
            memory: Any = (ctypes.c_int64 * len(template.words)).from_address(pinned.address)
            template.fill(np.frombuffer(memory, np.int64), addresses)
            device.check(device.api.cuMemcpyHtoDAsync(kept.place, pinned.address, nbytes, stream.handle))
        except BaseException:
            if addresses in self._kept:  # nothing reads its table now
                self._spare.append(self._kept.pop(addresses).place)
            raise
        finally:
            pinned.others = {stream: None}  # the copy reads it: the host may write it again when that is done
            pinned.give_back()
        counters.args += nbytes
        counters.tables += 1
        return kept
