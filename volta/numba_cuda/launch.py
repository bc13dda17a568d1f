"""A plan on the device: args in one table, all launches in one graph."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import attrs

from volta.numba_cuda import driver
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import SCRATCH, Launch
from volta.numba_cuda.modules import capability, functions_of
from volta.xla_like.plan import ExecutionPlan

_KEPT = 8
"""Tables a plan keeps, by the addresses in them: memory is reused, so most calls find theirs and copy nothing."""

_FEW = 3
"""Plans of at most this many launches are launched kernel by kernel."""

_lock = threading.RLock()


@attrs.frozen
class _Patch:
    """A word of the table that holds ``addresses[position] + distance``."""

    word: int
    position: int
    distance: int


class Memory:
    """A range of device memory that lives as long as this object."""

    def __init__(self, nbytes: int) -> None:
        self.address = driver.allocate(max(64, nbytes))

    def __del__(self) -> None:
        if driver is not None:
            driver.free(self.address)


@attrs.frozen
class _Bound:
    """A table of args with addresses filled in, its copy in device memory, and the graph that reads that."""

    table: driver.PinnedTable
    memory: Memory
    graph: driver.Graph | driver.Direct


class Executable:
    """A plan bound to the device: `call` takes the addresses of inputs, of new outputs, and of the arena."""

    def __init__(self, plan: ExecutionPlan, const_addresses: Sequence[int], keep: object) -> None:
        self._keep = keep
        launches = launches_of(plan, capability())
        self._functions = functions_of(launch.source for launch in launches)
        for launch in launches:
            driver.allow_shared(self._functions[launch.source.name], launch.shared)
        self._launches = launches
        scratch = max((launch.scratch for launch in launches), default=0)
        self._scratch = Memory(scratch) if scratch else None
        self._words, self._offsets, self._patches = _table(plan, launches, const_addresses, self._scratch)
        self._bound: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()

    def _bind(self) -> _Bound:
        table = driver.PinnedTable(len(self._words))
        for i, word in enumerate(self._words):
            table.words[i] = word
        memory = Memory(table.nbytes)
        launches = zip(self._launches, self._offsets, strict=True)
        found = [
            (self._functions[x.source.name], x.grid, x.threads, memory.address + offset, x.shared)
            for x, offset in launches
        ]
        return _Bound(table, memory, driver.Direct(found) if len(found) <= _FEW else driver.Graph(found))

    def call(self, *addresses: int) -> None:
        """Run the plan, without waiting for it."""
        if not self._launches:
            return
        driver.enter()
        with _lock:
            bound = self._bound.get(addresses)
            if bound is None:
                bound = self._bind() if len(self._bound) < _KEPT else self._bound.popitem(last=False)[1]
                bound.table.wait()
                words = bound.table.words
                for patch in self._patches:
                    words[patch.word] = addresses[patch.position] + patch.distance
                bound.table.copy_to(bound.memory.address)
                self._bound[addresses] = bound
            else:
                self._bound.move_to_end(addresses)
            bound.graph.launch()


def _table(
    plan: ExecutionPlan, launches: Sequence[Launch], const_addresses: Sequence[int], scratch: Memory | None
) -> tuple[list[int], list[int], list[_Patch]]:
    """The args of all launches as one table of words, the byte offset of each, and what changes from call to call."""
    slots, _ = plan.address_slots()
    fixed = dict(zip(plan.consts, const_addresses, strict=True))
    words: list[int] = []
    offsets: list[int] = []
    patches: list[_Patch] = []
    for launch in launches:
        start = len(words)
        offsets.append(8 * start)
        words += launch.words
        for word, buffer, distance in launch.addresses:
            if buffer == SCRATCH:
                assert scratch is not None
                words[start + word] = scratch.address + distance
            elif buffer in fixed:
                words[start + word] = fixed[buffer] + distance
            else:
                position, base = slots[buffer]
                patches.append(_Patch(start + word, position, base + distance))
    return words, offsets, patches
