"""What a backend decides about a plan before its memory is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from volta.core.ir import Eqn
from volta.xla_like.kernels import KernelCall
from volta.xla_like.ordering import Scatter
from volta.xla_like.plan import Buffer


class Scheduler(Protocol):
    """A backend's. Calls say what is computed; how they run is decided here, and changes no strict bit."""

    @property
    def tensor_cores(self) -> bool:
        """Whether there are kernels for precisions below float32."""

    @property
    def moves(self) -> bool:
        """Whether a plan runs in a memory of its own, and values may wait in the host's (see offload.py)."""

    def keeps(self, eqn: Eqn) -> bool:
        """Whether there is a kernel for an equation that means a program, which is then not put in its place."""

    def bare(self, op: Scatter) -> bool:
        """Whether kernels read a scatter's targets as they come, of 32 bits, and leave out those out of range."""

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """The calls, in an order that is as good, with those that run as one in a call of `Joined`."""

    def moments(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> Sequence[int]:
        """For each call a number: neighbours of the same number may run at one time, so that none is to write where
        another one's values were."""

    def workspace(self, call: KernelCall) -> int:
        """Bytes of the arena that a call needs besides what it reads and writes."""


@attrs.frozen
class Unscheduled:
    """Of no backend: every call runs by itself, and nobody says what memory it takes."""

    tensor_cores: bool = False
    moves: bool = False

    def keeps(self, eqn: Eqn) -> bool:
        return False

    def bare(self, op: Scatter) -> bool:
        return False

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        return list(calls)

    def moments(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> Sequence[int]:
        return range(len(calls))

    def workspace(self, call: KernelCall) -> int:
        return 0
