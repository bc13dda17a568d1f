"""The engine of CPU processes: MPI moves bytes between them. Loaded where it is asked for: importing it starts MPI.

Nothing collective is used. Each pair of workers that have something for each other exchange messages, and a worker that
waits too long says for whom.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from volta.core.errors import DistributedError
from volta.core.source import at_user_line
from volta.runtime.devices import HOST

_MOST = 1 << 30
"""Bytes of one message: counts of older libraries end at 2^31."""

_PATIENCE = 1e-3
"""Seconds between two looks, once it takes a while."""


class Mpi:
    """One worker a process, of those that an MPI launcher has started."""

    name, kind = "mpi", "cpu"

    def __init__(self, timeout: float):
        self._world = MPI.COMM_WORLD.Dup()  # messages of the program's own do not meet these
        self.size: int = self._world.Get_size()
        self.here: tuple[int, ...] = (self._world.Get_rank(),)
        self._timeout = timeout

    def device(self, worker: int) -> str:
        return HOST

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        """Send and receive; raises DistributedError where a worker stays silent."""
        waits: list[tuple[str, Any]] = []
        for worker, data in incoming.items():
            waits += [(f"for worker {worker}", r) for r in self._pieces(self._world.Irecv, data, worker)]
        for worker, data in outgoing.items():
            waits += [(f"for worker {worker}", r) for r in self._pieces(self._world.Isend, data, worker)]
        self._wait(waits, what)

    @staticmethod
    def _pieces(start: Any, data: np.ndarray, worker: int) -> list[Any]:
        return [start([data[at : at + _MOST], MPI.BYTE], worker) for at in range(0, len(data), _MOST)]

    def _wait(self, waits: list[tuple[str, Any]], what: str) -> None:
        requests = [request for _, request in waits]
        begun, looks = time.monotonic(), 0
        while not MPI.Request.Testall(requests):
            if time.monotonic() - begun > self._timeout:
                silent = dict.fromkeys(text for text, request in waits if not request.Test())
                text = f"worker {self.here[0]} has waited {self._timeout:g} s {', '.join(silent)}, in {what}"
                way = "it has ended, hangs or runs something else; initialize(timeout=...) sets how long is too long"
                raise DistributedError(at_user_line(f"{text}: {way}"))
            looks += 1
            time.sleep(0 if looks < 1000 else _PATIENCE)

    def close(self) -> None:
        self._world.Free()
