"""Tiles of loops on the CPU: a few neighbours of a digit, one in each lane of a vector (`xla_like/tiles.py`).

A tile has so many values of a digit as a register has lanes, rows of a matrix or columns of it, and runs through all
loops: vectors are whole whatever the loops' own dimensions are, and nothing changes lanes between them. What they pass
on stays in a thread's scratch memory, in its core's cache. Where neighbours of the digit lie apart in memory a few
elements of each are read as vectors, and turned into lanes in registers; so are results.

A task is a tile. Of long rows that would be too much for the cache: there a task is one row, which goes through groups
of loops one after the other, each in tiles of another digit of the row, and what these pass on is near as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.emit.args import laid_out
from volta.numba_cpu.epilogues import together
from volta.numba_cpu.launches import PIECES, Launch
from volta.numba_cpu.tile_layout import Near, Tiled, placed, tiled, words_of
from volta.xla_like import tiles
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.loops import unique
from volta.xla_like.plan import Buffer
from volta.xla_like.tiles import CommonDigit, Digit, Tile, item_sizes
from volta.xla_like.views import Ints, prod

LEAST = 1 << 20
"""Bytes that loops pass on at least: fewer are in the cache anyway."""

SCRATCH = 3 << 18
"""Bytes of scratch memory at most: they should be in the second-level cache of a core."""

NEAREST = 1 << 18
"""Bytes of scratch memory beyond which a task is rather one row that goes through several steps."""

STEP = 1 << 16
"""Bytes of scratch memory of such a step at most, besides what is near."""

MAX_LOOPS = 16

FEW = 128
"""What reads or writes lane by lane is at most one in so many accesses."""


@attrs.frozen
class _Step:
    """Loops that run tile by tile."""

    group: tuple[KernelCall, ...]
    tile: Tile
    kernel: Tiled
    cost: int
    """Elements that change lanes."""


@attrs.frozen
class _Sharing:
    """How loops are shared out: steps that run one after the other for each value of the tile's digits, or one step
    with its tiles. What steps pass on to each other is near."""

    tile: Tile
    steps: tuple[_Step, ...]
    near: Near | None = None


# -- which loops -------------------------------------------------------------------------------------------------------


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer], vector_bits: int) -> list[KernelCall]:
    """Loops that pass arrays on tile by tile are one launch."""
    search = _Search(buffers, vector_bits)

    def tile_of(group: Sequence[KernelCall], inner: Ints, buffers: Sequence[Buffer]) -> Tile | None:
        found = search.sharing(group, inner)
        return None if found is None else found.tile

    joined = tiles.join(calls, buffers, tile_of, MAX_LOOPS)
    return [attrs.evolve(call, inplace=search.inplace(call)) if inside(call) else call for call in joined]


def inside(call: KernelCall) -> Ints:
    """What the parts of a joined call pass on to each other alone."""
    return unique(b for part in call.parts for b in part.writes if b not in call.writes)


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """One launch, a task a tile, or a row that goes through steps."""
    found = _Search(buffers, vector_bits).sharing(call.parts, inside(call))
    assert found is not None
    parts = []
    for step in found.steps:
        words = laid_out(words_of(step.group, step.tile, step.kernel, found.near))
        tasks = prod(step.tile.blocks)
        parts.append(Launch(LibraryKernel("tiled", step.kernel), call, *words, tasks, step.kernel.scratch))
    return parts if found.near is None else [together(call, parts, prod(found.tile.blocks), 1, PIECES)]


# -- how they are shared out -------------------------------------------------------------------------------------------


@attrs.define
class _Search:
    """Looks for how loops are shared out, in registers of so many bits."""

    buffers: Sequence[Buffer]
    vector_bits: int
    known: dict[object, _Step | None] = attrs.field(factory=dict)
    """Steps of a row, by their loops and what is near."""
    digits: dict[object, list[CommonDigit]] = attrs.field(factory=dict)
    """By loops and what they pass on."""

    def common_digits(self, group: Sequence[KernelCall], passed: dict[int, tuple[int, int]]) -> list[CommonDigit]:
        key = tuple(map(id, group)), tuple(passed)
        if key not in self.digits:
            self.digits[key] = tiles.common_digits(group, passed)
        return self.digits[key]

    def nbytes(self, b: int) -> int:
        return self.buffers[b].nbytes

    def sharing(self, group: Sequence[KernelCall], inner: Ints) -> _Sharing | None:
        """How loops that pass on what is ``inner`` are shared out; None where they are not."""
        passed = tiles.passed_on(group, inner)
        if passed is None or sum(map(self.nbytes, inner)) < LEAST:
            return None
        if any(a.terms for call in group for a in call.accesses):
            return None
        digits = self.common_digits(group, passed)
        whole = self._step(group, passed, digits)
        if whole is None or whole.kernel.scratch > NEAREST:
            found = (self._by_rows(group, passed, digit) for digit in digits)
            if (rows := next((x for x in found if x is not None), None)) is not None:
                return rows
        return None if whole is None or whole.kernel.scratch > SCRATCH else _Sharing(whole.tile, (whole,))

    def inplace(self, call: KernelCall) -> tuple[tuple[int, int], ...]:
        """Of what is read and what is written, where the one may lie over the other: a task has read its part of one
        before it writes the other, of which it has the same part, and no other task wants that."""
        found = self.sharing(call.parts, inside(call))
        assert found is not None
        tile = found.tile
        if any(p.count % chunk for p, chunk in zip(tile.places, tile.chunks, strict=True)):
            return ()  # the last tile begins with elements of the one before
        moments = [n for n, step in enumerate(found.steps) for _ in step.group]
        moments = moments if found.near is not None else list(range(len(moments)))
        read = {b: max(n for n, c in zip(moments, call.parts, strict=True) if b in c.reads) for b in call.reads}
        written = {b: min(n for n, c in zip(moments, call.parts, strict=True) if b in c.writes) for b in call.writes}

        def share(b: int) -> set[tuple[int | None, ...]]:
            """What part of a buffer a task has, as the weights of the digits in it."""
            return {
                tuple(tiles.weight_of(c, a, p.each[i]) for p in tile.places)
                for i, c in enumerate(call.parts)
                for a in c.accesses
                if a.buffer == b
            }

        shares = {b: share(b) for b in (*read, *written)}
        alone = {b for b, found in shares.items() if len(found) == 1 and not any(None in x for x in found)}
        return tuple(
            (a, b) for a in read if a not in written for b in written
            if b in alone and shares[a] == shares[b] and self.nbytes(a) == self.nbytes(b) and read[a] < written[b]
        )  # fmt: skip

    def _step(
        self, group: Sequence[KernelCall], passed: dict[int, tuple[int, int]], digits: Sequence[CommonDigit],
        near: Near | None = None,
    ) -> _Step | None:  # fmt: skip
        """Loops as tiles of the digit of which the fewest elements change lanes; None where lanes would lie apart."""
        lanes = self.vector_bits // (8 * max(4, *item_sizes(group).values()))
        best = None
        for k, digit in enumerate(digits):
            if digit.count >= lanes and (near is None or k > 0):
                tile = Tile(tuple(digits), tuple(lanes if j == k else 1 for j in range(len(digits))), passed)
                kernel = tiled(group, tile, k, lanes, self.nbytes, near)
                cost = _cost(kernel)
                if cost is not None and (best is None or cost < best.cost):
                    best = _Step(tuple(group), tile, kernel, cost)
        return best

    def _by_rows(
        self, group: Sequence[KernelCall], passed: dict[int, tuple[int, int]], row: CommonDigit
    ) -> _Sharing | None:
        """Loops that take one value of a digit through several steps, each in tiles of another digit."""
        tile = Tile((row,), (1,), passed)
        nothing = Near(tile, {}, 0)

        def known(loops: Sequence[KernelCall], inner: Ints, buffers: Sequence[Buffer]) -> Tile | None:
            found = self._step_of_row(row, group, loops, inner, nothing)
            return None if found is None or found.kernel.scratch > STEP else found.tile

        parts = [call.parts or (call,) for call in tiles.join(group, self.buffers, known, MAX_LOOPS)]
        if len(parts) == 1:
            return None
        users = {b: [n for n, loops in enumerate(parts) if any(_touches(c, b) for c in loops)] for b in passed}
        between = {b: (of[0], of[-1]) for b, of in users.items() if len(of) > 1}
        near = Near(tile, *placed(between, lambda b: tile.local(b, self.nbytes(b))))
        steps = []
        for n, loops in enumerate(parts):
            found = self._step_of_row(row, group, loops, tuple(b for b, of in users.items() if of == [n]), near)
            if found is None or found.kernel.scratch > NEAREST:
                return None
            steps.append(found)
        return _Sharing(tile, tuple(steps), near)

    def _step_of_row(
        self, row: CommonDigit, group: Sequence[KernelCall], loops: Sequence[KernelCall], inner: Ints, near: Near
    ) -> _Step | None:
        each = _each(row, group, loops)
        key = tuple(map(id, loops)), inner, each, tuple(near.starts.items()), near.nbytes
        if key not in self.known:
            self.known[key] = None
            if (passed := tiles.passed_on(loops, inner)) is not None:
                found = sorted(self.common_digits(loops, passed), key=lambda d: d.each != each)  # the row's comes first
                if found and found[0].each == each:
                    self.known[key] = self._step(loops, passed, found, near)
        return self.known[key]


def _each(row: CommonDigit, group: Sequence[KernelCall], loops: Sequence[KernelCall]) -> tuple[Digit, ...]:
    """A digit of a group as one of some loops of it, which follow each other."""
    first = next(i for i, call in enumerate(group) if call is loops[0])
    return row.each[first : first + len(loops)]


def _touches(call: KernelCall, b: int) -> bool:
    return b in call.reads or b in call.writes


def _cost(kernel: Tiled) -> int | None:
    """Elements that change lanes; None where too many lie apart."""
    apart = turned = every = 0
    for part in kernel.parts:
        count = prod(part.sizes)
        kinds = [spot.kind for spot in part.spots]
        every += count * len(kinds)
        apart += count * kinds.count("apart")
        turned += count * (kinds.count("rows") + kinds.count("woven"))
    return turned if apart * FEW <= every else None
