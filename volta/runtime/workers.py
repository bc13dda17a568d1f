"""The workers that run one program together, and the engine that moves bytes between them.

Workers are numbered, and have the names of their devices: ``cpu:0``, ``cpu:1``, … A process has one of them, or all of
them (`Simulated`: in lock-step, for tests and laptops). Engines only move bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import numpy as np

from volta.core.errors import DistributedError
from volta.core.source import at_user_line


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

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        """Send bytes to workers of other processes, and fill arrays with what they send; ``what`` is for errors."""

    def agree(self, text: str, what: str) -> None:
        """Compare a text with all other workers'; raises DistributedError where one has another."""

    def close(self) -> None: ...


@attrs.frozen
class Simulated:
    """All workers in this process, in lock-step. Nothing leaves the process, so nothing is ever sent."""

    size: int = 1
    name: str = "simulated"

    @property
    def here(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    def swap(self, outgoing: Mapping[int, np.ndarray], incoming: Mapping[int, np.ndarray], what: str) -> None:
        assert not outgoing and not incoming, "all workers are here"

    def agree(self, text: str, what: str) -> None:
        """There is one process, which agrees with itself."""

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


def stop() -> None:
    """Be alone again."""
    global _engine
    ending, _engine = _engine, _ALONE
    ending.close()


def names() -> list[str]:
    """The devices of all workers."""
    return [f"cpu:{i}" for i in range(_engine.size)]
