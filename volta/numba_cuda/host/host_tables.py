"""The memory behind the state that kernels have on the host: stacks of fibers, waits, records of faults."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable

import numpy as np

from volta.core.errors import DeviceError
from volta.numba_cuda.host import host_runtime

MOST_THREADS = 1024

_STACK = 1 << 17
_GUARD_WORDS, _GUARD = 64, 0x5AFE_57AC_0000_0000
"""The lowest words of each stack, and what they hold as long as it was deep enough."""


class Tables:
    """The memory behind the state of all modules, of which one runs at a time."""

    def __init__(self) -> None:
        n, warps = MOST_THREADS, MOST_THREADS // host_runtime.WARP + 1
        saved = host_runtime.SAVED_WORDS
        memory = mmap.mmap(-1, n * _STACK)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # little of a stack is used
        self.stacks_memory = np.frombuffer(memory, np.uint8)
        top, strides = _STACK - 16 - 8 * saved, (_STACK, 8)
        self._top = self.stacks_memory.ctypes.data + top + _STACK * np.arange(n, dtype=np.int64)
        self._frames = np.ndarray((n, saved + 1), np.int64, memory, top, strides)
        self._guards = np.ndarray((n, _GUARD_WORDS), np.int64, memory, 0, strides)
        self._guards[:] = _GUARD
        self._zeros = np.zeros((4, n), np.int64)
        self.waits, self.done, self.copy_counts, self.groups = self._zeros
        self.stacks, self.order, self.values = (np.zeros(n, np.int64) for _ in range(3))
        self._barriers = np.zeros((3, warps), np.int64)
        self.alive, self.arrived, self.passed = self._barriers
        self.records = np.zeros((host_runtime.MOST_RECORDS, host_runtime.RECORD_WORDS), np.int64)
        self.nothing, self.sink = (np.zeros(host_runtime.SINK_BYTES + 64, np.uint8) for _ in range(2))
        self.spoilt = np.full(host_runtime.SINK_BYTES + 64, 0xFF, np.uint8)
        self.lanes = np.empty(n * host_runtime.LANE_BYTES, np.uint8)
        self.copies = np.empty((n, host_runtime.MOST_COPIES, host_runtime.COPY_WORDS), np.int64)

    def by_name(self) -> dict[str, np.ndarray]:
        names = ("stacks", "order", "waits", "values", "done", "copy_counts", "groups", "alive", "arrived", "passed",
                 "records", "nothing", "sink", "spoilt", "lanes", "copies")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def starter(self, threads: int, fiber: int) -> Callable[[], None]:
        """A function that puts every thread of a block at the beginning of `fiber`."""
        warps = np.arange(len(self.alive) - 1) * host_runtime.WARP
        alive = np.concatenate(([threads], np.clip(threads - warps, 0, host_runtime.WARP)))
        frame = np.array([0] * host_runtime.SAVED_WORDS + [fiber], np.int64)
        stacks, frames, zeros = self.stacks[:threads], self._frames[:threads], self._zeros[:, :threads]
        top = self._top[:threads]

        def start() -> None:
            stacks[:], frames[:], zeros[:], self._barriers[:] = top, frame, 0, 0
            self.alive[:] = alive

        return start

    def check_stacks(self, threads: int, kernel: str) -> None:
        """Raise DeviceError if a thread's stack was not deep enough; what lay below it is lost."""
        if (self._guards[:threads] != _GUARD).any():
            self._guards[:] = _GUARD
            raise DeviceError(f"a thread of {kernel} needs more than {_STACK:,} bytes of stack on the host")


tables = functools.cache(Tables)
"""Those of this process."""
