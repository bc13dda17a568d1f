"""Which variant of a row kernel runs a call: how many threads share a row, and where rows wait between phases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import attrs

from volta.emit.builder import compute_dtype, item_size
from volta.emit.reducers import BLOCK, LANES, Reducer
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.loops.nests_body import division_words, is_narrow, widest
from volta.numba_cuda.loops.thread_groups import ThreadGroupShape
from volta.numba_cuda.processors import H200, filling
from volta.xla_like.kernels import KernelCall, Load, LoopKernel, Reduce
from volta.xla_like.phases import analyse, choose_spills, needed, targets_of
from volta.xla_like.views import prod

THREADS = 256
MOST_THREADS = 1024

KEPT = 48
"""Elements of a row that a thread keeps in registers at most: beyond, code grows and fewer rows are under way."""

SHORT = 8
"""Elements of a short row that a thread takes: the fewer threads share a row, the less they have to exchange."""

GUARDED = 2
"""Rows of 64 elements that a thread takes at once where a block is not whole; what is kept has places for them all."""

FEW = 2048
"""Blocks of a sum below which each is shared out to as many threads as can be."""

LONELY = 16
"""Rows up to which each has a block of threads for itself, and most multiprocessors have none."""

SPREAD = 512
"""Threads that share out such a row: a few elements each, so that there are few instructions to read."""

IN_REGISTERS = 2048
"""Elements of a row up to which it is kept in registers rather than in shared memory."""

EXCHANGED = 40 << 10
"""Bytes of shared memory through which states go between warps, at most."""


@attrs.frozen
class RowVariant:
    """How rows are shared out: a thread group's shape, groups in a block, and how rows are kept between phases.

    ``length``: that of rows which are kept in registers (0: rows of any length). ``single``: the blocks of 4096 side by
    side are all there are. ``slots``: values that are kept in shared memory, with their places; ``rows``: of 64
    elements that fit a place. ``careful``: threads beyond an edge read nothing, since what they would read in
    place of their own may be written by then. ``spread``: threads that share out the elements of a lonely row, of which
    each 64 then reduce all, over ``room`` bytes of shared memory.
    """

    shape: ThreadGroupShape
    groups: int
    length: int
    narrow: bool
    single: bool = True
    slots: tuple[Slot, ...] = ()
    rows: int = LANES
    careful: bool = False
    spread: int = 0
    room: int = 0

    @property
    def threads(self) -> int:
        return self.spread or self.shape.size * self.groups

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        places = 1 + max((s.place for s in self.slots), default=-1)
        return self.room + places * self.rows * self.threads * self.shape.lanes * width_of(self.slots)

    def suffix(self) -> str:
        kept = f"_{self.length}" if self.length else f"_kept{self.rows}" if self.slots else ""
        flags = f"{'n' * self.narrow}{'s' * self.single}{'c' * self.careful}{'l' * bool(self.spread)}"
        return f"{self.shape.suffix()}x{self.groups}{kept}{flags}"


def choose_row(call: KernelCall, capability: str) -> RowVariant:
    v = _lonely(call) or _shared_out(call, capability)
    if v.spread:
        return attrs.evolve(v, careful=call.sizes[-1] % v.spread > 0 and bool(call.inplace))
    edges = prod(call.sizes[:-1]) % v.groups > 0 or call.sizes[-1] % LANES > 0
    return attrs.evolve(v, careful=edges and bool(call.inplace))


def _lonely(call: KernelCall) -> RowVariant | None:
    """Rows that are so few that most multiprocessors have none: what counts is how often a thread waits, for memory
    and for instructions."""
    kernel, length = call.kernel, call.sizes[-1]
    assert isinstance(kernel, LoopKernel)
    rows, room = prod(call.sizes[:-1]), sum(aligned(length * item_size(d)) for d in states_of(kernel))
    if kernel.by_blocks or rows > filling(LONELY) or not 2 * SPREAD <= length <= BLOCK or room > EXCHANGED:
        return None
    shape = ThreadGroupShape(1, LANES, 1)
    return RowVariant(shape, 1, length, is_narrow(call), spread=SPREAD, room=room)


def _shared_out(call: KernelCall, capability: str) -> RowVariant:
    kernel, length = call.kernel, call.sizes[-1]
    assert isinstance(kernel, LoopKernel)
    rows = prod(call.sizes[:-1])
    narrow = is_narrow(call) and rows < 1 << 30
    lanes = widest(call, length, kernel.rank, 4)
    blocks = -(-length // BLOCK)
    state = state_bytes(kernel)
    if kernel.by_blocks:
        side = blocks_of_partial(rows, blocks)
        shape = ThreadGroupShape(lanes, 16, side) if lanes == 4 and side == 16 else ThreadGroupShape(1, 64, side)
        return RowVariant(_exchanging(shape, 1, state), 1, 0, narrow, False)
    if length <= (IN_REGISTERS if kept_slots(kernel) else 64 * KEPT):
        if length <= 256:
            most = 16 if lanes == 4 else WARP
            shape = ThreadGroupShape(lanes, min(most, 1 << (-(-length // SHORT) - 1).bit_length()), 1)
        elif lanes == 4 and length <= 512:
            shape = ThreadGroupShape(4, 16, 1)
        elif length <= 32 * KEPT:
            shape = ThreadGroupShape(min(2, lanes), 32, 1)
        else:
            shape = ThreadGroupShape(1, 64, 1)
        groups = _groups(shape, rows)
        return RowVariant(_exchanging(shape, groups, state), groups, length, narrow)
    for slots in (kept_slots(kernel), kept_slots(kernel, costly=False)):
        for width in (1, 2, 4) if slots else ():
            shape = ThreadGroupShape(width, LANES // width, _even(blocks, LANES // width))
            found = RowVariant(shape, 1, 0, narrow, True, slots, min(LANES, _multiple(-(-length // LANES), GUARDED)))
            exchanged = shape.size * state + 1024
            if (
                width <= lanes and shape.size <= MOST_THREADS and exchanged <= EXCHANGED
                and found.shared + exchanged <= ptx.shared_of(capability)
            ):  # fmt: skip
                return found
    if rows * blocks < filling(FEW):
        lanes = 1
    threads = LANES // lanes
    side = min(16, _even(blocks, threads))
    shape = ThreadGroupShape(lanes, threads, side)
    groups = _groups(shape, rows) if side == 1 else 1
    return RowVariant(_exchanging(shape, groups, state), groups, 0, narrow, blocks <= side)


def _exchanging(shape: ThreadGroupShape, groups: int, state: int) -> ThreadGroupShape:
    """A shape whose states fit the memory they are exchanged through: within a warp they need none."""
    fits = shape.threads <= WARP or shape.size * groups * state <= EXCHANGED
    return shape if fits else ThreadGroupShape(1, WARP, shape.blocks)


@lru_cache(1024)
def state_bytes(kernel: LoopKernel) -> int:
    """Bytes of the states of all of a kernel's reductions."""
    return sum(map(item_size, states_of(kernel)))


def states_of(kernel: LoopKernel) -> list[str]:
    """The dtypes of the states of all of a kernel's reductions."""
    reducers = [Reducer(x.kind, compute_dtype(x.dtype.name)) for x in kernel.body if isinstance(x, Reduce)]
    return [d for r in reducers for d in r.state_dtypes]


def aligned(nbytes: int) -> int:
    """Bytes that an array of numbers takes, so that any may follow it."""
    return -(-nbytes // 8) * 8


def _multiple(n: int, of: int) -> int:
    return -(-n // of) * of


def _even(blocks: int, threads: int) -> int:
    """Blocks side by side, such that their threads fill warps."""
    return _multiple(blocks, max(1, WARP // threads))


def _groups(shape: ThreadGroupShape, rows: int) -> int:
    """Thread groups in a block of threads: few where there are few rows."""
    groups = THREADS // shape.size
    while groups > max(1, WARP // shape.size) and rows < groups * filling(H200):
        groups //= 2
    return max(1, groups)


@attrs.frozen
class Slot:
    """A value kept in shared memory: from the pass that computes it to the last one that needs it, and its place."""

    value: int
    first: int
    last: int
    place: int
    dtype: str


def width_of(slots: Sequence[Slot]) -> int:
    """Bytes of an element in a place."""
    return max((item_size(s.dtype) for s in slots), default=4)


@lru_cache(1024)
def kept_slots(kernel: LoopKernel, costly: bool = True) -> tuple[Slot, ...]:
    """What is read, or computed dearly, and needed by more than one pass.

    A place is free again after its value's last pass. ``costly`` False: what is computed is computed again.
    """
    body, analysis = kernel.body, analyse(kernel.mode, kernel.body)
    stored = [s.value for s in kernel.stores if s.level == "elem"]
    spilled = choose_spills(kernel.mode, body, stored) if costly else ()
    spans: dict[int, list[int]] = {}
    for p in range(analysis.last + 1):
        there = [v for v in spilled if v in spans]
        for v in needed(body, targets_of(body, analysis, stored, p), there):
            if analysis.varies[v] and (isinstance(body[v], Load) or v in spilled):
                spans.setdefault(v, []).append(p)
    slots: list[Slot] = []
    for v, passes in sorted(spans.items(), key=lambda item: (item[1][0], item[0])):
        dtype = compute_dtype(body[v].dtype.name)
        if passes[0] == passes[-1] or item_size(dtype) < 4:
            continue
        busy = {s.place for s in slots if s.last > passes[0]}
        place = next(i for i in range(len(slots) + 1) if i not in busy)
        slots.append(Slot(v, passes[0], passes[-1], place, dtype))
    return tuple(slots)


def blocks_of_partial(rows: int, blocks: int) -> int:
    """Blocks of a sum that one partial result holds, in kernels by blocks: a power of two, so a subtree of the sum."""
    return 16 if rows * blocks >= filling(FEW) else 4


def grid_of_row(call: KernelCall, v: RowVariant) -> int:
    rows = prod(call.sizes[:-1])
    if call.kernel.by_blocks:  # type: ignore[union-attr]  # a loop kernel
        return rows * -(-call.sizes[-1] // (BLOCK * v.shape.blocks))
    return -(-rows // v.groups)


def extra_words(call: KernelCall, v: RowVariant) -> list[int]:
    """The number of rows, then how to divide by the kept sizes."""
    return [prod(call.sizes[:-1]), *(division_words(call.sizes[:-1]) if v.narrow else [])]
