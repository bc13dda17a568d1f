"""Loops on the CPU: how they are cut into tasks, where vectors are long, and what a row keeps between its passes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.emit.args import laid_out, loop_words
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import CombineKernel, KernelCall, LoopKernel
from volta.xla_like.loops import BLOCK
from volta.xla_like.phases import choose_spills
from volta.xla_like.plan import Buffer
from volta.xla_like.views import prod

MAP_CHUNK = 8192
"""Elements of the vector dimension in one task of a 'map' kernel."""

COLUMNS = 32
"""Kept elements in one task of a 'col' kernel."""

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


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """The launch of a call of a loop."""
    return [launch(call)]


def launch(call: KernelCall, chunk: int = MAP_CHUNK) -> Launch:
    """The launch of a call of a loop; of a 'map', a task is a ``chunk`` of the innermost dimension."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    length = call.sizes[-1]
    spills: tuple[int, ...] = ()
    if kernel.mode == "row" and not kernel.by_blocks and length <= MAX_SPILL_ROW:
        spills = choose_spills(kernel.mode, kernel.body, [s.value for s in kernel.stores if s.level == "elem"])
    wide = kernel.mode == "map" and prod(call.sizes) >= LARGE
    scratch = len(spills) * 8 * length + 64 if spills else 0
    words = laid_out((*loop_words(call), *([chunk] if kernel.mode == "map" else [])))
    return Launch(VectorLoop.of(kernel, wide, spills), call, *words, _tasks(call, kernel, chunk), scratch)


def _tasks(call: KernelCall, kernel: LoopKernel, chunk: int) -> int:
    """Chunks of a 'map', rows, or groups of columns; by blocks, the blocks of these."""
    if kernel.mode == "map":
        return prod(call.sizes[:-1]) * -(-call.sizes[-1] // chunk)
    *kept, length = call.sizes
    blocks = -(-length // BLOCK) if kernel.by_blocks else 1
    rows = prod(kept) if kernel.mode == "row" else prod(kept[:-1]) * -(-kept[-1] // COLUMNS)
    return rows * blocks


def combine(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """What finishes a reduction by blocks: a task is a row."""
    assert isinstance(call.kernel, CombineKernel)
    rows, _ = call.sizes
    return [Launch(call.kernel, call, *laid_out(loop_words(call)), rows)]
