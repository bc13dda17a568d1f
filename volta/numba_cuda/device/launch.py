"""A plan on a device: bound to its constants, and launched."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

from volta.emit.arrays import REFUSED
from volta.numba_cuda.args import Tables, Template, WithLaunch
from volta.numba_cuda.codegen import modules, ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device import profile
from volta.numba_cuda.device.driver import Device, counters
from volta.numba_cuda.device.graph import allow_shared
from volta.numba_cuda.device.launcher import Taking, taker
from volta.numba_cuda.device.streams import Stream
from volta.numba_cuda.device_plan import DevicePlan, table_of
from volta.numba_cuda.launches import every


class Executable:
    """A plan bound to a device. `call` takes the addresses of inputs, of new outputs, and of the arena with its
    workspace behind it. Safe to call from several threads and on several streams."""

    def __init__(self, plan: DevicePlan, const_addresses: Sequence[int], device: Device, keep: object) -> None:
        self._keep = keep
        self._plan, self._device = plan, device
        self.loops = any(x.repeats for x in every(plan.launches))
        functions = modules.functions_of(device, (x.source for x in every(plan.launches)))
        for x in every(plan.launches):
            allow_shared(device, functions[x.source.name], x.shared)
        self._template = Template(plan, table_of(plan, list(const_addresses)), functions)
        self._bound: dict[Stream, Tables | WithLaunch] = {}
        self._lock = threading.Lock()

    def call(self, stream: Stream, addresses: list[int], taking: Taking = None) -> int:
        """Run the plan, without waiting for it; in the same step, take memory away from arrays that are donated.

        Returns `REFUSED` where that cannot be: nothing has changed then.
        """
        bound = self._bound.get(stream)
        if bound is None:
            if not self._plan.launches:
                return taker()(taking)
            bound = self._bind(stream)
        if profile.active:
            if taker()(taking):
                return REFUSED
            profile.active[-1].add(self._plan, bound.timed(addresses))
        else:
            status = bound.launch(addresses, taking)
            if status:
                if status == REFUSED:
                    return status
                self._device.check(status)
        counters.launches += 1
        return 0

    def _bind(self, stream: Stream) -> Tables | WithLaunch:
        with self._lock:
            bound = self._bound.get(stream)
            if bound is None:
                kind = WithLaunch if self._plan.by_value else Tables
                bound = self._bound[stream] = kind(self._template, stream)
            return bound

    def _source(self, symbol: str) -> KernelSource:
        return {x.source.name: x.source for x in every(self._plan.launches)}[symbol]

    def llvm_ir(self, symbol: str) -> str:
        """The LLVM IR that is emitted for a kernel: nothing where all of it is PTX. ``KeyError`` for one that the plan
        has not."""
        return str(ptx.emit_module([self._source(symbol)], modules.capability_of(self._device)))

    def ptx(self, symbol: str) -> str:
        """A kernel as PTX; ``KeyError`` for one that the plan has not."""
        source = self._source(symbol)
        own = () if source.build is None else (ptx.compile_ptx([source], modules.capability_of(self._device)),)
        return "\n".join([*own, *source.linked_texts()])

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Constants and args tables are given back in the order of their own stream: other streams must be done."""
        if ending():  # modules may be gone already, and the process gives everything back
            return
        for stream in getattr(self, "_bound", ()):
            if stream.handle and stream is not self._device.main and not self._device.lost:
                stream.synchronize()
