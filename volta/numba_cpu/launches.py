"""Launches on the CPU: rows of the table that the native loop walks."""

from __future__ import annotations

import attrs

from volta.emit.args import Address
from volta.xla_like.kernels import Kernel, KernelCall, describe, kernel_name

PIECES = 8
"""Of a thread's share of a launch. More would let threads end closer together, and cost more where each begins anew."""


@attrs.frozen
class Launch:
    """A kernel of a call, its args block, and its tasks, each of which any thread may run.

    ``scratch_bytes`` is the memory that each thread needs for itself. ``functions`` are words that are addresses of
    kernels which this one runs: (position, the launch that it would be by itself). A thread takes its share of
    the tasks in about so many ``pieces``, of which others may take some.
    """

    kernel: Kernel
    call: KernelCall
    words: tuple[int, ...]
    addresses: tuple[Address, ...]
    tasks: int
    scratch_bytes: int = 0
    functions: tuple[tuple[int, Launch], ...] = ()
    pieces: int = PIECES

    def each(self) -> tuple[Launch, ...]:
        """The launch, and those whose kernels it runs."""
        return (self, *(other for _, other in self.functions))

    def text(self) -> str:
        """The launch in a line, for reports."""
        behind = "".join(f" → {describe(other.kernel)}" for _, other in self.functions)
        scratch = f" scratch={self.scratch_bytes}" if self.scratch_bytes else ""
        return f"{describe(self.kernel)}{behind} tasks={self.tasks}{scratch} {kernel_name(self.kernel)}"
