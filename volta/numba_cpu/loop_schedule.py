"""Loops on the CPU: how they are cut into tasks, where vectors are long, and what a row keeps between its passes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.core import dtypes
from volta.emit.args import laid_out, loop_words
from volta.numba_cpu.launches import PIECES, Launch
from volta.numba_cpu.weaving import PLAIN, Weave, weave_of
from volta.xla_like.kernels import CombineKernel, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.loops import BLOCK
from volta.xla_like.phases import analyse, choose_spills
from volta.xla_like.plan import Buffer
from volta.xla_like.views import prod

MAP_CHUNK = 8192
"""Elements of the vector dimension in one task of a 'map' kernel."""

COLUMNS, WIDE_COLUMNS = 32, 64
"""Kept elements in one task of a 'col' kernel, and of a wide one. Neighbouring tasks that a thread takes together are
one range of columns, visited in vectors as long as it has room for."""

WIDE_PIECES = 2
"""Of a thread's share of a wide 'col' kernel: the columns of a piece should fill long vectors."""

MAX_SPILL_ROW = 1 << 15
"""Elements of the longest row of which values are kept: they should still be in the nearest cache."""

LARGE = 1 << 18
"""Elements from which a kernel is worth the longer code of its wide form."""

SHORTEST = 4
"""Registers in a vector of a wide kernel, at least."""

LIGHT = 4
"""Operations up to which the vectors of a wide 'col' kernel may be very long: it has registers for little else."""

BACKWARDS = "-"
"""The pattern of a load whose lanes are neighbours from the last to the first, as in what is flipped."""

SHIFTED, SHIFTED_BACKWARDS = ">", "<"
"""The patterns of loads whose lanes are neighbours by an index of which some may be out of range: of parts of what is
put together, such as what is rolled or padded."""


@attrs.frozen(slots=True, cache_hash=True)
class VectorLoop(LoopKernel):
    """A loop as the CPU runs it.

    ``wide`` is for large arrays: so many registers in a vector, and a loop for the rest, at the price of more code (0:
    vectors as usual). A 'col' kernel then reads more of a row before it moves on to the next, which usually lies in
    another page, and has its sums in registers. ``spills`` are values
    of each element that scratch memory keeps between the passes over a row, instead of computing them again.
    ``weave``: accesses that are interleaved.
    """

    wide: int = 0
    spills: tuple[int, ...] = ()
    weave: Weave = PLAIN

    @classmethod
    def of(cls, kernel: LoopKernel, wide: int = 0, spills: tuple[int, ...] = (), weave: Weave = PLAIN) -> VectorLoop:
        return cls(kernel.mode, kernel.rank, kernel.body, kernel.stores, kernel.by_blocks, wide, spills, weave)

    def text(self) -> str:
        keep = "".join(f" %{v}" for v in self.spills)
        wide = f"\n  in vectors of {self.wide} registers" if self.wide else ""
        keeping = f"\n  keep{keep}" if keep else ""
        return LoopKernel.text(self) + wide + keeping + self.weave.text()


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
    wide = _registers(call, kernel) if prod(call.sizes) >= LARGE else 0
    scratch = len(spills) * 8 * length + 64 if spills else 0
    words = laid_out((*loop_words(call), *([chunk] if kernel.mode == "map" else [])))
    chosen = VectorLoop.of(_told_apart(kernel, call), wide, spills, weave_of(call))
    pieces = WIDE_PIECES if wide and kernel.mode == "col" else PIECES
    return Launch(chosen, call, *words, _tasks(call, chosen, chunk), scratch, pieces=pieces)


def _told_apart(kernel: LoopKernel, call: KernelCall) -> LoopKernel:
    """The kernel with loads that go `BACKWARDS` or are `SHIFTED` marked as such: in the plan their stride, or that of
    their index, is like any other."""
    vector_dim = kernel.rank - (kernel.mode != "row")
    body = list(kernel.body)
    memory = [i for i, x in enumerate(body) if isinstance(x, (Load, IndexValue))]
    accesses = dict(zip(memory, call.accesses, strict=False))  # behind them come those of stores
    spread = analyse(kernel.mode, body).spread
    for i, access in accesses.items():
        x = body[i]
        if not isinstance(x, Load):
            continue
        if x.pattern[0] == "?" and access.strides[vector_dim] == -x.dtype.itemsize:
            body[i] = attrs.evolve(x, pattern=BACKWARDS + x.pattern[1:])
        elif x.pattern[0] == "0" and (x.fill or x.other is not None):
            moving = [(t, stride) for t, (stride, _) in zip(x.terms, access.terms, strict=True) if spread[t]]
            if len(moving) == 1 and isinstance(body[moving[0][0]], IndexValue):
                t, stride = moving[0]
                found = _SHIFTS.get(accesses[t].strides[vector_dim] * stride // x.dtype.itemsize)
                if found is not None and abs(stride) == x.dtype.itemsize and body[t].dtype == dtypes.int64:
                    body[i] = attrs.evolve(x, pattern=found + x.pattern[1:])
    return attrs.evolve(kernel, body=tuple(body))


_SHIFTS = {1: SHIFTED, -1: SHIFTED_BACKWARDS}


def columns_of(kernel: LoopKernel) -> int:
    """Kept elements in one task of a 'col' kernel."""
    return WIDE_COLUMNS if isinstance(kernel, VectorLoop) and kernel.wide else COLUMNS


def _registers(call: KernelCall, kernel: LoopKernel) -> int:
    """Registers in a vector of a kernel's wide form; 0 where it has none."""
    if kernel.mode != "col":
        return SHORTEST if kernel.mode == "map" else 0
    loads = [x for x in kernel.body if isinstance(x, Load)]
    if any(x.terms or x.pattern[0] not in "01" for x in loads):
        return 0  # lanes that lie apart are loaded one by one
    light = len(kernel.body) - len(loads) <= LIGHT
    for registers in (16, 8, SHORTEST) if light else (SHORTEST,):
        least = 4 if registers > 8 else 1  # tasks: for so many threads at least there should be some
        if call.sizes[-2] >= least * COLUMNS // 2 * registers:
            return registers
    return 0


def _tasks(call: KernelCall, kernel: VectorLoop, chunk: int) -> int:
    """Chunks of a 'map', rows, or groups of columns; by blocks, the blocks of these."""
    if kernel.mode == "map":
        return prod(call.sizes[:-1]) * -(-call.sizes[-1] // chunk)
    *kept, length = call.sizes
    blocks = -(-length // BLOCK) if kernel.by_blocks else 1
    rows = prod(kept) if kernel.mode == "row" else prod(kept[:-1]) * -(-kept[-1] // columns_of(kernel))
    return rows * blocks


def combine(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """What finishes a reduction by blocks: a task is a row."""
    assert isinstance(call.kernel, CombineKernel)
    rows, _ = call.sizes
    return [Launch(call.kernel, call, *laid_out(loop_words(call)), rows)]
