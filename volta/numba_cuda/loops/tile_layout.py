"""How a kernel of loops that run tile by tile lies: its loops' indices, where their accesses are, shared memory.

Sizes and strides are written into the kernel, but for how many tiles there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

import attrs

from volta.emit.args import Word
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.loops.nests_body import accesses_of
from volta.numba_cuda.loops.scalars import WIDEST
from volta.numba_cuda.loops.tiles import Tile, item_sizes
from volta.xla_like.kernels import Access, GivenValue, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.views import Ints

THREADS = 1024
"""Threads of a block at most."""

PADDED = 8
"""Neighbouring elements of a tile, behind which one is left free: so threads that write eight apart, or any power of
two, do not all meet in one bank."""


@attrs.frozen
class Piece:
    """A part of a dimension's index: its values in a tile, the digit that it is (None: of no digit), and its step."""

    size: int
    digit: int | None
    step: int


@attrs.frozen
class Spot:
    """Where an access of a loop lies: a buffer as the kernel numbers them, bytes to the first element, and bytes from
    one value of each of the loop's pieces to the next. ``inside``: in the tile."""

    array: int
    first: int
    strides: Ints
    inside: bool

    @property
    def alignment(self) -> int:
        """What its addresses are multiples of at least; 1 in the tile, where neighbours do not stay together."""
        return 1 if self.inside else gcd(WIDEST, self.first, *self.strides)


@attrs.frozen
class Part:
    """A loop as a tile runs it: its body, how its index is put together, and its accesses (None: no memory)."""

    kernel: LoopKernel
    dims: tuple[tuple[Piece, ...], ...]
    spots: tuple[Spot | None, ...]
    count: int
    meets: bool
    """Whether it reads what others have written: the threads meet before it."""
    over: bool
    """Whether it writes where others have read: the threads meet between."""

    def text(self) -> str:
        return f"{self.kernel.text()}\n{self.dims} {self.spots}"


@attrs.frozen
class Tiled:
    """The loops of one kernel; where in shared memory each array of a tile begins."""

    parts: tuple[Part, ...]
    chunks: Ints
    starts: Ints
    even: tuple[bool, ...]
    """Of each digit, whether its tiles are all whole."""
    shared: int

    @property
    def threads(self) -> int:
        most = max(part.count for part in self.parts)
        rounds = -(-most // THREADS)
        return -(-most // (rounds * WARP)) * WARP

    def text(self) -> str:
        return "\n".join([*(p.text() for p in self.parts), f"{self.chunks} {self.starts} {self.even} {self.shared}"])


def padded(elements: int) -> int:
    return elements + elements // PADDED


def tiled(calls: Sequence[KernelCall], tile: Tile, nbytes: Callable[[int], int]) -> tuple[Tiled, list[int]]:
    """The kernel of loops, and the buffers that it is given; ``nbytes`` of each buffer."""
    items = item_sizes(calls)
    arrays: list[int] = []
    starts, shared = _placed(tile, {b: _room(tile.local(b, nbytes(b)) // items[b], items[b]) for b in tile.passed})
    inside = list(tile.passed)
    parts = []
    for i, call in enumerate(calls):
        dims = tuple(_pieces(tile, i, d, n) for d, n in enumerate(call.sizes))
        spots: list[Spot | None] = []
        for x, access in accesses_of(_loop(call), call.accesses):
            b = access.buffer
            if b is None or isinstance(x, IndexValue):
                spots.append(None)
                continue
            steps = [access.strides[d] * p.step for d, pieces in enumerate(dims) for p in pieces]
            if b in tile.passed:
                local = [tile.local(b, s) // x.dtype.itemsize for s in steps]
                first = tile.local(b, access.offset) // x.dtype.itemsize
                spots.append(Spot(inside.index(b), first, tuple(local), True))
            else:
                if b not in arrays:
                    arrays.append(b)
                spots.append(Spot(arrays.index(b), access.offset, tuple(steps), False))
        meets = any(first < i and b in call.reads for b, (first, _) in tile.passed.items())
        over = _overwrites(tile, starts, i)
        parts.append(Part(_loop(call), dims, tuple(spots), tile.elements(call), meets, over))
    even = tuple(p.count % c == 0 for p, c in zip(tile.places, tile.chunks, strict=True))
    return Tiled(tuple(parts), tile.chunks, tuple(starts[b][0] for b in inside), even, shared), arrays


def _room(elements: int, size: int) -> int:
    return -(-padded(elements) * size // 16) * 16


def _placed(tile: Tile, sizes: dict[int, int]) -> tuple[dict[int, tuple[int, int]], int]:
    """Where each array of a tile begins and ends in shared memory: one may lie where another is read for the last time
    by the loop that writes it."""
    found: dict[int, tuple[int, int]] = {}
    for b, (first, last) in tile.passed.items():
        start = 0
        for other, (low, high) in sorted(found.items(), key=lambda x: x[1]):
            if tile.passed[other][0] < last and first < tile.passed[other][1] and low < start + sizes[b]:
                start = max(start, high)
        found[b] = start, start + sizes[b]
    return found, max(high for _, high in found.values())


def _overwrites(tile: Tile, starts: dict[int, tuple[int, int]], loop: int) -> bool:
    """Whether a loop writes where it, or one that it has not met since, reads."""
    own = [starts[b] for b, (first, _) in tile.passed.items() if first == loop]
    return any(
        low < end and start < high
        for b, (first, _) in tile.passed.items() if first < loop
        for start, end in own
        for low, high in [starts[b]]
    )  # fmt: skip


def _loop(call: KernelCall) -> LoopKernel:
    assert isinstance(call.kernel, LoopKernel)
    return call.kernel


def _pieces(tile: Tile, part: int, dim: int, size: int) -> tuple[Piece, ...]:
    pieces, rest = [], size
    own = [(p.each[part], k) for k, p in enumerate(tile.places) if p.each[part].dim == dim]
    for digit, k in sorted(own, key=lambda x: -x[0].below):
        whole = digit.below * digit.count
        if rest > whole:
            pieces.append(Piece(rest // whole, None, whole))
        pieces.append(Piece(tile.chunks[k], k, digit.below))
        rest = digit.below
    if rest > 1:
        pieces.append(Piece(rest, None, 1))
    return tuple(pieces)


def words_of(calls: Sequence[KernelCall], tile: Tile, arrays: Sequence[int]) -> list[Word]:
    """Of each digit its values and its tiles; the arrays; of each loop the numbers of its body, and of terms."""
    words: list[Word] = [n for p, blocks in zip(tile.places, tile.blocks, strict=True) for n in (p.count, blocks)]
    words += [Access(b, 0, ()) for b in arrays]
    for call in calls:
        for x, access in accesses_of(_loop(call), call.accesses):
            if isinstance(x, IndexValue):
                words += [access, *(() if isinstance(x, GivenValue) else access.strides)]
            elif isinstance(x, Load):
                words += [n for term in access.terms for n in term]
    return words
