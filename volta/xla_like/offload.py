"""Values that wait in the host's memory while nobody reads them: when a copy may run, and what it costs.

A plan that runs in a GPU's memory may send a temporary to the host's and have it back before it is read again. Copies
run beside kernels: a value leaves while the calls behind its last reader run, and returns while those in front of its
next one do. So its memory is free from when it has left to when it begins to return, and the link carries what these
calls leave time for. A plan that runs in the host's memory has nowhere to send a value to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from volta.xla_like.kernels import Operation

BESIDE = 1000
"""Floating-point operations, or what takes as long, that a GPU does while one byte crosses the link."""

HIDDEN = 16
"""What a byte costs, there and back, that crosses beside kernels: these share the GPU's memory with the copy."""

LEAST = 4096
"""Smaller values stay: two more launches would cost more."""

HOST, DEVICE = "host", "device"


@attrs.frozen
class Move(Operation):
    """A copy of a value ``to`` the memory of the host, or back to the device's."""

    to: str
    nbytes: int

    @property
    def name(self) -> str:
        return "move"

    @property
    def shown(self) -> str:
        return f"move to {self.to}"

    def details(self) -> str:
        return f"bytes={self.nbytes}"


@attrs.frozen
class Stay:
    """A value's stay in the host's memory: it has left behind call ``left``, and begins to return in front of ``back``;
    ``work`` is what the copies cost."""

    left: int
    back: int
    work: float


class Link:
    """What the link between a GPU and its host carries beside the calls of a plan, each way."""

    def __init__(self, works: Sequence[float]) -> None:
        """``works``: of each call."""
        self._out = np.asarray(works, np.float64) / BESIDE
        self._back = self._out.copy()

    def least(self, nbytes: int) -> float:
        """What a value's way there and back costs at least."""
        return HIDDEN * nbytes

    def stays(self, early: int, first: int, nbytes: int) -> Iterator[Stay]:
        """How a value that is touched by two calls, and by none between, may wait elsewhere: beside the calls that the
        link has room for, and as long as can be while others wait for the copies."""
        if nbytes < LEAST:
            return
        out, back = np.cumsum(self._out[early + 1 : first]), np.cumsum(self._back[early + 1 : first][::-1])
        left, begun = (int(np.searchsorted(x, nbytes)) for x in (out, back))
        if left + begun + 3 < first - early:
            yield Stay(early + 1 + left, first - 1 - begun, HIDDEN * nbytes)
        yield Stay(early, first, 2 * BESIDE * nbytes)

    def carry(self, early: int, first: int, nbytes: int) -> None:
        """Take the room for a value's way there and back."""
        for room in (self._out[early + 1 : first], self._back[early + 1 : first][::-1]):
            before = np.minimum(np.cumsum(room), nbytes)
            room -= np.diff(before, prepend=0.0)
