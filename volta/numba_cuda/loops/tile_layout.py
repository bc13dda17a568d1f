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
from volta.xla_like.kernels import Access, GivenValue, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.tiles import Tile, beside, item_sizes
from volta.xla_like.views import Ints

THREADS = 1024
"""Threads of a block at most."""

PADDED = 16
"""Neighbouring elements of a tile, behind which one is left free: so threads that write eight apart, or any power of
two, do not all meet in one bank. (Pairs of float32 have 16 places in the banks. Seen on an H200: with 8 most transforms
take 5% longer.)"""


@attrs.frozen
class Piece:
    """A part of a dimension's index: its values in a tile, the digit that it is (None: of no digit), and its step."""

    size: int
    digit: int | None
    step: int


@attrs.frozen
class Spot:
    """Where an access of a loop lies: the array, as the kernel numbers them; the first element, and how far it is from
    one value of each of the loop's pieces to the next, in bytes.

    Of one ``inside``, in the tile: where its array begins in shared memory, and elements, each ``size`` bytes away from
    its neighbour. ``terms`` are strides of what is added to the place.
    """

    array: int
    first: int
    strides: Ints
    terms: Ints = ()
    size: int = 1
    inside: bool = False

    @property
    def alignment(self) -> int:
        """What its addresses are multiples of at least."""
        steps = (self.array, self.size) if self.inside else (self.first, *self.strides, *self.terms)
        return gcd(WIDEST, *steps)


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
    """The loops of one kernel, and its bytes of shared memory."""

    parts: tuple[Part, ...]
    chunks: Ints
    even: tuple[bool, ...]
    """Of each digit, whether its tiles are all whole."""
    shared: int

    @property
    def threads(self) -> int:
        most = max(part.count for part in self.parts)
        rounds = -(-most // THREADS)
        return -(-most // (rounds * WARP)) * WARP

    def text(self) -> str:
        return "\n".join([*(p.text() for p in self.parts), f"{self.chunks} {self.even} {self.threads} {PADDED}"])


def padded(elements: int) -> int:
    return elements + elements // PADDED


def tiled(calls: Sequence[KernelCall], tile: Tile, nbytes: Callable[[int], int]) -> tuple[Tiled, list[int]]:
    """The kernel of loops, and the buffers that it is given; ``nbytes`` of each buffer."""
    items = item_sizes(calls)
    arrays: list[int] = []
    found, shared = _placed(tile, beside(tile, nbytes, items), nbytes, items)
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
                start, size = found[b]
                spots.append(Spot(start, first, tuple(local), size=size, inside=True))
            else:
                if b not in arrays:
                    arrays.append(b)
                terms = tuple(stride for stride, _ in access.terms)
                spots.append(Spot(arrays.index(b), access.offset, tuple(steps), terms))
        meets = any(first < i and b in call.reads for b, (first, _) in tile.passed.items())
        over = i > 0 and any(b in tile.passed for b in call.writes)
        parts.append(Part(_loop(call), dims, tuple(spots), tile.elements(call), meets, over))
    even = tuple(p.count % c == 0 for p, c in zip(tile.places, tile.chunks, strict=True))
    return Tiled(tuple(parts), tile.chunks, even, shared), arrays


def _placed(
    tile: Tile, groups: Sequence[Sequence[int]], nbytes: Callable[[int], int], items: dict[int, int]
) -> tuple[dict[int, tuple[int, int]], int]:
    """Where each array of a tile begins in shared memory, and how far apart its elements lie; then bytes in all. An
    array may lie where another is read for the last time by the loop that writes it."""
    taken: list[tuple[int, int, int, int]] = []  # first byte, byte behind the last, first loop, last loop
    found: dict[int, tuple[int, int]] = {}
    for group in groups:
        (first, last), size = tile.passed[group[0]], items[group[0]] * len(group)
        room = -(-padded(tile.local(group[0], nbytes(group[0])) // items[group[0]]) * size // WIDEST) * WIDEST
        start = 0
        for low, high, since, until in sorted(taken):
            if since < last and first < until and low < start + room:
                start = max(start, high)
        taken.append((start, start + room, first, last))
        found.update({b: (start + k * items[b], size) for k, b in enumerate(group)})
    return found, max(high for _, high, *_ in taken)


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
