"""Loops on the CPU: where vectors are long, and what a row keeps between its passes."""

from __future__ import annotations

import attrs

from volta.numba_cpu.launches import Launch, loop_words
from volta.xla_like.kernels import KernelCall, LoopKernel
from volta.xla_like.phases import choose_spills
from volta.xla_like.views import prod

MAX_SPILL_ROW = 1 << 15
"""Elements of the longest row of which values are kept: they should still be in the nearest cache."""

LARGE = 1 << 18
"""Elements from which a 'map' kernel is worth the longer code of its wide form."""


@attrs.frozen(slots=True, cache_hash=True)
class VectorLoop(LoopKernel):
    """A loop as the CPU runs it.

    ``wide``, for large arrays: longer vectors and a loop for the rest, at the price of more code. ``spills`` are values
    of each element that scratch memory keeps between the passes over a row, instead of computing them again.
    """

    wide: bool = False
    spills: tuple[int, ...] = ()

    @classmethod
    def of(cls, kernel: LoopKernel, wide: bool = False, spills: tuple[int, ...] = ()) -> VectorLoop:
        return cls(kernel.mode, kernel.rank, kernel.body, kernel.stores, kernel.by_blocks, wide, spills)

    def text(self) -> str:
        keep = "".join(f" %{v}" for v in self.spills)
        wide, keeping = "\n  in wide vectors" * self.wide, f"\n  keep{keep}" if keep else ""
        return LoopKernel.text(self) + wide + keeping


def launch(call: KernelCall) -> Launch:
    """The launch of a call of a loop."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    length = call.sizes[-1]
    spills: tuple[int, ...] = ()
    if kernel.mode == "row" and not kernel.by_blocks and length <= MAX_SPILL_ROW:
        spills = choose_spills(kernel.mode, kernel.body, [s.value for s in kernel.stores if s.level == "elem"])
    wide = kernel.mode == "map" and prod(call.sizes[: kernel.rank]) >= LARGE
    scratch = len(spills) * 8 * length + 64 if spills else 0
    return Launch(VectorLoop.of(kernel, wide, spills), call, *loop_words(call), call.tasks, scratch)
