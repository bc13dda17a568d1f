"""A plan on a device: args in tables, kept by the addresses in them, and all launches in one call or graph."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.numba_cuda import profile, ptx
from volta.numba_cuda.device_plan import KEPT, DevicePlan, table_of
from volta.numba_cuda.driver import Device, counters
from volta.numba_cuda.graph import Launches, Row, allow_shared
from volta.numba_cuda.modules import capability_of, functions_of
from volta.numba_cuda.pool import Block
from volta.numba_cuda.ptx import KernelSource
from volta.numba_cuda.staging import HOST
from volta.numba_cuda.streams import Stream

_MOST_GRAPHS = 2
"""Tables that a plan of many launches keeps: making its graph costs more than copying a table."""

_MANY = 64


class _Tables:
    """The tables of one plan on one stream, in one piece of memory, and what launches the kernels that read each."""

    def __init__(self, stream: Stream, nbytes: int) -> None:
        self.memory: Block = stream.device.pool.take(KEPT * nbytes, stream)
        self.spare = [self.memory.address + i * nbytes for i in range(KEPT)]
        self.kept: OrderedDict[tuple[int, ...], tuple[Launches, int]] = OrderedDict()

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self.memory.give_back()


class Executable:
    """A plan bound to a device. `call` takes the addresses of inputs, of new outputs, and of the arena with its
    workspace behind it. Safe to call from several threads and on several streams."""

    def __init__(self, plan: DevicePlan, const_addresses: Sequence[int], device: Device, keep: object) -> None:
        self._keep = keep
        self._plan, self._device = plan, device
        self._functions = functions_of(device, (x.source for x in plan.launches))
        for x in plan.launches:
            allow_shared(device, self._functions[x.source.name], x.shared)
        table = table_of(plan, list(const_addresses))
        self._words = np.array(table.words, np.int64)
        self._offsets = table.offsets
        self._patched, self._positions, self._distances = (
            np.array([getattr(p, field) for p in table.patches], np.int64) for field in ("word", "position", "distance")
        )
        self._kept = KEPT if len(plan.launches) <= _MANY else _MOST_GRAPHS
        self._tables: dict[Stream, _Tables] = {}
        self._lock = threading.Lock()

    def call(self, stream: Stream, addresses: tuple[int, ...]) -> None:
        """Run the plan, without waiting for it."""
        if not self._offsets:
            return
        with self._lock:  # held while work is queued, never while it is waited for
            try:
                launches = self._tables[stream].kept[addresses][0]
            except KeyError:
                launches = self._fill(stream, addresses)
            if profile.active:
                profile.active[-1].add(self._plan, launches.timed())
            else:
                launches.launch()
        counters.launches += 1

    def _fill(self, stream: Stream, addresses: tuple[int, ...]) -> Launches:
        """A table with these addresses in it: a new one, or one in place of the oldest."""
        device, nbytes = self._device, self._words.nbytes
        device.enter()
        tables = self._tables.get(stream)
        if tables is None:
            tables = self._tables[stream] = _Tables(stream, nbytes)
        pinned = device.pinned.take(nbytes, HOST)
        try:
            if len(tables.kept) < self._kept and tables.spare:
                place = tables.spare[-1]
                launches = self._bind(stream, place)
                tables.spare.pop()
            else:
                launches, place = tables.kept.popitem(last=False)[1]
            tables.kept[addresses] = launches, place
            memory: Any = (ctypes.c_int64 * len(self._words)).from_address(pinned.address)
            words = np.frombuffer(memory, np.int64)
            words[:] = self._words
            words[self._patched] = np.array(addresses, np.int64)[self._positions] + self._distances
            device.check(device.api.cuMemcpyHtoDAsync(place, pinned.address, nbytes, stream.handle))
        except BaseException:
            tables.kept.pop(addresses, None)  # nothing reads its table now; the place is not used again
            raise
        finally:
            pinned.others = {stream: None}  # the copy reads it: the host may write it again when that is done
            pinned.give_back()
        counters.args += nbytes
        counters.tables += 1
        return launches

    def _bind(self, stream: Stream, place: int) -> Launches:
        launches = zip(self._plan.launches, self._offsets, strict=True)
        rows = [Row(self._functions[x.source.name], x.grid, x.threads, place + at, x.shared) for x, at in launches]
        return Launches(stream, rows)

    def _source(self, symbol: str) -> KernelSource:
        return {x.source.name: x.source for x in self._plan.launches}[symbol]

    def llvm_ir(self, symbol: str) -> str:
        """The LLVM IR that is emitted for a kernel; ``KeyError`` for one that the plan has not."""
        return str(ptx.emit_module([self._source(symbol)], capability_of(self._device.info)))

    def ptx(self, symbol: str) -> str:
        """A kernel as PTX; ``KeyError`` for one that the plan has not."""
        return ptx.compile_ptx([self._source(symbol)], capability_of(self._device.info))

    def __del__(self) -> None:
        """Constants and args tables are given back in the order of their own stream: other streams must be done."""
        for stream in getattr(self, "_tables", ()):
            if stream is not self._device.main and not self._device.lost:
                stream.synchronize()
