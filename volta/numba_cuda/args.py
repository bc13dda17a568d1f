"""Where a plan's kernels find their args when it is called: in the launch itself, or in tables in device memory."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

import attrs
import numpy as np

from volta.numba_cuda.device.driver import counters
from volta.numba_cuda.device.graph import Launches, Row
from volta.numba_cuda.device.pool import Block
from volta.numba_cuda.device.staging import HOST
from volta.numba_cuda.device.streams import Stream
from volta.numba_cuda.device_plan import DevicePlan, Table

Addresses = tuple[int, ...]


class Template:
    """A plan's args with all but what changes from call to call, and its kernels."""

    def __init__(self, plan: DevicePlan, table: Table, functions: dict[str, int]) -> None:
        self.plan, self.functions = plan, functions
        self.offsets, self.patches = table.offsets, [attrs.astuple(p) for p in table.patches]
        self.words = np.array(table.words, np.int64)
        self._patched, self._positions, self._distances = np.array(self.patches, np.int64).reshape(-1, 3).T

    def launches(self, stream: Stream, start: int) -> Launches:
        """The plan's launches, their args in one piece from an address on."""
        plan = self.plan
        rows = [
            Row(self.functions[x.source.name], x.grid, x.threads, start + at, x.shared, x.after)
            for x, at in zip(plan.launches, self.offsets, strict=True)
        ]
        return Launches(stream, rows, plan.by_value)

    def fill(self, words: np.ndarray, addresses: Addresses) -> None:
        """Write the args of a call."""
        words[:] = self.words
        words[self._patched] = np.array(addresses, np.int64)[self._positions] + self._distances


class Values:
    """Args that go with the launch: nothing is copied, and nothing is in device memory."""

    def __init__(self, template: Template, stream: Stream) -> None:
        self._memory = (ctypes.c_int64 * len(template.words))(*template.words.tolist())
        self._patches = template.patches
        self._addresses: Addresses = ()
        self._launches = template.launches(stream, ctypes.addressof(self._memory))

    def launches(self, addresses: Addresses) -> Launches:
        """What launches the plan with these addresses; until the next call of this."""
        if addresses != self._addresses:
            words = self._memory
            for word, position, distance in self._patches:
                words[word] = addresses[position] + distance
            self._addresses = addresses
        return self._launches


class Tables:
    """Tables in one piece of device memory, kept by the addresses in them: memory is reused, so most calls find theirs
    and copy nothing. The kernels that read a table are launched as one graph."""

    def __init__(self, template: Template, stream: Stream) -> None:
        self._template, self._stream = template, stream
        nbytes, kept = template.words.nbytes, template.plan.kept_tables
        self._memory: Block = stream.device.pool.take(kept * nbytes, stream)
        self._spare = [self._memory.address + i * nbytes for i in range(kept)]
        self._kept: OrderedDict[Addresses, tuple[Launches, int]] = OrderedDict()

    def launches(self, addresses: Addresses) -> Launches:
        """What launches the plan with these addresses."""
        found = self._kept.get(addresses)
        return found[0] if found is not None else self._fill(addresses)

    def _fill(self, addresses: Addresses) -> Launches:
        """A table with these addresses in it: a new one, or one in place of the oldest."""
        stream, device, template = self._stream, self._stream.device, self._template
        nbytes = template.words.nbytes
        device.enter()
        pinned = device.pinned.take(nbytes, HOST)
        try:
            if self._spare:
                launches, place = template.launches(stream, self._spare[-1]), self._spare.pop()
            else:
                launches, place = self._kept.popitem(last=False)[1]
            self._kept[addresses] = launches, place
            memory: Any = (ctypes.c_int64 * len(template.words)).from_address(pinned.address)
            template.fill(np.frombuffer(memory, np.int64), addresses)
            device.check(device.api.cuMemcpyHtoDAsync(place, pinned.address, nbytes, stream.handle))
        except BaseException:
            if addresses in self._kept:  # nothing reads its table now
                self._spare.append(self._kept.pop(addresses)[1])
            raise
        finally:
            pinned.others = {stream: None}  # the copy reads it: the host may write it again when that is done
            pinned.give_back()
        counters.args += nbytes
        counters.tables += 1
        return launches

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self._memory.give_back()
