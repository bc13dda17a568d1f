"""Tiles of loops on a GPU: what a block of threads takes through loops that pass arrays on (`xla_like/tiles.py`).

What they pass on stays in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from volta.numba_cuda.processors import filling
from volta.xla_like import tiles
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import Buffer
from volta.xla_like.tiles import CommonDigit, Tile, item_sizes
from volta.xla_like.views import Ints, prod

MAX_LOOPS = 8

TILE = 8192
"""Elements of a tile at most, in each of the arrays that loops pass on."""

WHOLE, LEAST = 2048, 1024
"""Elements up to which a tile takes more values of its digits than coalesced accesses need: where there are more blocks
of threads than a GPU runs at once, and where there are not. Small blocks wait less for each other."""

_BLOCKS, _FEW_BLOCKS = 264, 96

NEAR = 8
"""Bytes up to which elements lie side by side."""

LINE, FEWEST = 64, 4
"""Of the digit along which elements lie side by side, a tile takes so many bytes, if it has room; and so many values at
least, or all: fewer would waste most of each sector of memory."""

SHARED = 64 << 10
"""Bytes of all that loops pass on that a tile has at one time, at most."""


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Loops that pass arrays on tile by tile are one kernel."""
    nbytes = [b.nbytes for b in buffers]
    return tiles.join(calls, buffers, lambda group, inside, _: tile_of(group, inside, nbytes.__getitem__), MAX_LOOPS)


def tile_of(group: Sequence[KernelCall], inside: Ints, nbytes: Callable[[int], int]) -> Tile | None:
    """How loops that pass on what is ``inside`` run tile by tile; None where they cannot."""
    passed = tiles.passed_on(group, inside)
    if passed is None:
        return None
    places = tiles.common_digits(group, passed)
    chunks = _chunks(group, places, passed, nbytes)
    return None if chunks is None else Tile(tuple(places), chunks, passed)


def _chunks(
    group: Sequence[KernelCall], places: Sequence[CommonDigit], passed: dict[int, tuple[int, int]],
    nbytes: Callable[[int], int],
) -> Ints | None:  # fmt: skip
    """As many values of each digit as make accesses coalesced and a block busy; None where that is too large a tile."""
    items = item_sizes(group)
    whole = max(nbytes(b) // items[b] for b in passed) // prod(p.count for p in places)
    each = max(sum(items[b] for b, (first, last) in passed.items() if first <= i < last) for i in range(len(group)))
    apart = [min(_steps(group, place, passed)) for place in places]
    order = sorted(range(len(places)), key=lambda k: apart[k])
    chunks = [1] * len(places)
    room = min(TILE, SHARED // each) // whole
    count = prod(p.count for p in places)
    if order and apart[order[0]] <= NEAR:
        wanted = LINE // apart[order[0]]
        while wanted > FEWEST and (wanted > room or count < wanted * filling(_FEW_BLOCKS)):
            wanted //= 2
        chunks[order[0]] = min(wanted, places[order[0]].count)
    if prod(chunks) > room:
        return None

    def fits(k: int, chunk: int) -> bool:
        elements = whole * prod(chunks) // chunks[k] * chunk
        blocks = prod(-(-p.count // n) for p, n in zip(places, chunks, strict=True))
        return elements <= (WHOLE if blocks > filling(_BLOCKS) else LEAST) and elements * each <= SHARED

    for k in order:
        while 2 * chunks[k] <= places[k].count and fits(k, 2 * chunks[k]):
            chunks[k] *= 2
        if fits(k, places[k].count):
            chunks[k] = places[k].count
    return tuple(chunks)


def _steps(group: Sequence[KernelCall], place: CommonDigit, passed: dict[int, tuple[int, int]]) -> Iterator[int]:
    """How far apart in memory neighbouring values of a digit lie where the first loop reads and the last one writes."""
    for call, digit in ((group[0], place.each[0]), (group[-1], place.each[-1])):
        for access in call.accesses:
            if access.buffer is not None and access.buffer not in passed and access.strides[digit.dim]:
                yield abs(access.strides[digit.dim] * digit.below)
    yield 1 << 62
