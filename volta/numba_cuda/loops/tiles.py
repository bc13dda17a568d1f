"""Loops that pass arrays on tile by tile: which may run as one kernel, and how its blocks of threads share them out.

A pass of a transform reads a few elements far apart and writes as many; the next pass reads what it wrote, again far
apart. But some passes in a row keep together what they work on: an element's place in what they pass on has a *digit*
(the column of a matrix, what is left of the place once these passes' radices are taken off) that every one of them
leaves alone. Whoever has a range of that digit in one needs nothing else in the next. So a block of threads takes the
elements of a range of digits, a tile, through all of these loops, and what they pass on stays in shared memory.

Each loop's elements are computed from the same operands by the same operations, so nothing about the bits changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import Access, IndexValue, Joined, KernelCall, Load, LoopKernel
from volta.xla_like.loops import unique
from volta.xla_like.plan import Buffer
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


@attrs.frozen
class Digit:
    """``(index of dimension dim // below) % count`` of a loop."""

    dim: int
    below: int
    count: int


@attrs.frozen
class CommonDigit:
    """A digit in all loops of a tile, and its weight in what they pass on: ``(byte // weight) % count``, by buffer."""

    each: tuple[Digit, ...]
    weights: dict[int, int]

    @property
    def count(self) -> int:
        return self.each[0].count


@attrs.frozen
class Tile:
    """How loops are shared out: digits, and of each how many values a block of threads takes."""

    places: tuple[CommonDigit, ...]
    chunks: Ints
    passed: dict[int, tuple[int, int]]
    """Of each buffer that lies in shared memory, the first loop that writes it and the last one that reads it."""

    def elements(self, call: KernelCall) -> int:
        """How many elements of a loop's space are in a tile."""
        return prod(call.sizes) // prod(p.count for p in self.places) * prod(self.chunks)

    def local(self, buffer: int, nbytes: int) -> int:
        """Bytes into a buffer, or a stride, as a tile has them: of each digit it has a few values only."""
        if nbytes < 0:
            return -self.local(buffer, -nbytes)
        pairs = zip(self.places, self.chunks, strict=True)
        for place, chunk in sorted(pairs, key=lambda x: -x[0].weights[buffer]):
            weight = place.weights[buffer]
            above, rest = divmod(nbytes, weight * place.count)
            nbytes = above * weight * chunk + rest
        return nbytes

    @property
    def blocks(self) -> Ints:
        """Of each digit, how many ranges there are."""
        return tuple(-(-p.count // chunk) for p, chunk in zip(self.places, self.chunks, strict=True))


# -- which loops -------------------------------------------------------------------------------------------------------


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Join loops that come one after the other and pass arrays on tile by tile: as few kernels as can be, of these the
    ones with the smallest tiles."""
    users: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        for b in unique((*call.reads, *call.writes)):
            users.setdefault(b, []).append(i)
    # of the first calls: kernels, passes that are left alone, the largest tile, and the last kernel
    best: list[tuple[int, int, int, KernelCall | None]] = [(0, 0, 0, None)]
    starts = [0]
    for end in range(1, len(calls) + 1):
        found = []
        for start in range(end - 1, max(-1, end - MAX_LOOPS - 1), -1):
            group = calls[start:end]
            if not _plain(group[0]) and len(group) > 1:
                break
            if len(group) == 1:
                call, size, alone = (
                    group[0],
                    0,
                    _plain(group[0]) and any(_parts(group[0], b) > 1 for b in group[0].writes),
                )
            elif not _receives(group):
                continue
            else:
                inside = _passed(group, range(start, end), buffers, users)
                tile = None if inside is None else tile_of(group, inside, lambda b: buffers[b].nbytes)
                if tile is None:
                    continue
                call, size, alone = _joined(group, inside or ()), max(map(tile.elements, group)), False
            kernels, lonely, largest, _ = best[start]
            found.append((kernels + 1, lonely + alone, max(largest, size), start, call))
        kernels, lonely, largest, start, call = min(found, key=lambda x: x[:3])
        best.append((kernels, lonely, largest, call))
        starts.append(start)
    out: list[KernelCall] = []
    end = len(calls)
    while end:
        last = best[end][3]
        assert last is not None
        out.append(last)
        end = starts[end]
    return out[::-1]


def _plain(call: KernelCall) -> bool:
    kernel = call.kernel
    return isinstance(kernel, LoopKernel) and kernel.mode == "map" and not any(s.terms for s in kernel.stores)


def _receives(group: Sequence[KernelCall]) -> bool:
    """Whether the last of some loops reads what one before has written."""
    return _plain(group[-1]) and any(b in call.writes for call in group[:-1] for b in group[-1].reads)


def _passed(
    group: Sequence[KernelCall], numbers: range, buffers: Sequence[Buffer], users: dict[int, list[int]]
) -> Ints | None:
    """What loops pass on to each other; None where others want it too, or no loop writes several parts of it: what
    others do, they do as well one after the other."""
    found = unique(b for i, call in enumerate(group) for b in call.writes if any(b in c.reads for c in group[i:]))
    alone = all(buffers[b].kind == "temp" and all(u in numbers for u in users[b]) for b in found)
    return found if alone and any(_parts(call, b) > 1 for call in group for b in found) else None


def _parts(call: KernelCall, buffer: int) -> int:
    """How many parts of an array a loop writes."""
    assert isinstance(call.kernel, LoopKernel)
    return sum(a.buffer == buffer for a in call.accesses[len(call.accesses) - len(call.kernel.stores) :])


def _joined(group: Sequence[KernelCall], inside: Ints) -> KernelCall:
    """Other blocks still read what a tile has read, so nothing is written over it."""
    return KernelCall(
        kernel=Joined(),
        sizes=(),
        accesses=(),
        reads=unique(b for call in group for b in call.reads if b not in inside),
        writes=unique(b for call in group for b in call.writes if b not in inside),
        label=group[0].label,
        parts=tuple(group),
    )


# -- how they are shared out -------------------------------------------------------------------------------------------


def tile_of(group: Sequence[KernelCall], inside: Ints, nbytes: Callable[[int], int]) -> Tile | None:
    """How loops that pass on what is ``inside`` run tile by tile; None where they cannot."""
    passed: dict[int, tuple[int, int]] = {}
    for b in inside:
        written = [i for i, call in enumerate(group) if b in call.writes]
        read = [i for i, call in enumerate(group) if b in call.reads]
        if not read or written[-1] >= read[0]:
            return None
        passed[b] = written[0], read[-1]
    if any(a.buffer in passed and a.terms for c in group for a in c.accesses):
        return None
    places: list[CommonDigit] = []
    for place in _places(group, passed):
        if all(_apart(place, other) for other in places):
            places.append(place)
    chunks = _chunks(group, places, passed, nbytes)
    return None if chunks is None else Tile(tuple(places), chunks, passed)


def _places(group: Sequence[KernelCall], passed: dict[int, tuple[int, int]]) -> Iterator[CommonDigit]:
    """Whole dimensions of the first loop, or of the last one, that are digits of all of them."""
    for start in (0, len(group) - 1):
        for dim, count in enumerate(group[start].sizes):
            if count > 1:
                found = _followed(group, passed, start, Digit(dim, 1, count))
                if found is not None:
                    yield found


def _followed(
    group: Sequence[KernelCall], passed: dict[int, tuple[int, int]], start: int, digit: Digit
) -> CommonDigit | None:
    """A digit of one loop as one of all of them."""
    each: dict[int, Digit] = {start: digit}
    weights: dict[int, int] = {}
    waiting = [start]
    while waiting:
        i = waiting.pop()
        for access in group[i].accesses:
            b = access.buffer
            if b in passed:
                assert b is not None
                weight = _weight(group[i], access, each[i])
                if weight is None or weights.setdefault(b, weight) != weight:
                    return None
        for j, call in enumerate(group):
            known = next((a for a in call.accesses if a.buffer in weights), None)
            if j not in each and known is not None:
                found = _digit_at(call, known, weights[known.buffer or 0], digit.count)
                if found is None:
                    return None
                each[j] = found
                waiting.append(j)
    return CommonDigit(tuple(each[i] for i in range(len(group))), weights) if len(each) == len(group) else None


def _digit_at(call: KernelCall, access: Access, weight: int, count: int) -> Digit | None:
    """The digit of a loop's index that has a weight in the place of an access."""
    for dim, (size, stride) in enumerate(zip(call.sizes, access.strides, strict=True)):
        if stride > 0 and not weight % stride and not size % (weight // stride * count):
            digit = Digit(dim, weight // stride, count)
            if _weight(call, access, digit) == weight:
                return digit
    return None


def _weight(call: KernelCall, access: Access, digit: Digit) -> int | None:
    """The weight of a digit in the place of an access; None where something else moves that digit of the place too."""
    weight, pairs = access.strides[digit.dim] * digit.below, list(zip(call.sizes, access.strides, strict=True))
    first = access.offset + sum(stride * (size - 1) for size, stride in pairs if stride < 0)
    if weight <= 0 or first // weight % digit.count:
        return None
    low = first % weight
    for dim, (size, stride) in enumerate(pairs):
        if dim == digit.dim:
            low += stride * (digit.below - 1)
        elif size > 1 and stride % (weight * digit.count):
            low += abs(stride) * (size - 1)
    return weight if low < weight else None


def _apart(place: CommonDigit, other: CommonDigit) -> bool:
    """Whether two digits are, in each buffer, one above the other."""
    for b, weight in place.weights.items():
        low, high = sorted([(weight, place.count), (other.weights[b], other.count)])
        if high[0] % (low[0] * low[1]):
            return False
    return True


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
    tiles = prod(p.count for p in places)
    if order and apart[order[0]] <= NEAR:
        wanted = LINE // apart[order[0]]
        while wanted > FEWEST and (wanted > room or tiles < wanted * filling(_FEW_BLOCKS)):
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


def item_sizes(group: Sequence[KernelCall]) -> dict[int, int]:
    """Bytes of an element of each buffer that loops read or write."""
    found: dict[int, int] = {}
    for call in group:
        kernel = call.kernel
        assert isinstance(kernel, LoopKernel)
        memory = [x for x in kernel.body if isinstance(x, (Load, IndexValue))]
        for x, access in zip((*memory, *kernel.stores), call.accesses, strict=True):
            if access.buffer is not None:
                found[access.buffer] = x.dtype.itemsize
    return found


def _steps(group: Sequence[KernelCall], place: CommonDigit, passed: dict[int, tuple[int, int]]) -> Iterator[int]:
    """How far apart in memory neighbouring values of a digit lie where the first loop reads and the last one writes."""
    for call, digit in ((group[0], place.each[0]), (group[-1], place.each[-1])):
        for access in call.accesses:
            if access.buffer is not None and access.buffer not in passed and access.strides[digit.dim]:
                yield abs(access.strides[digit.dim] * digit.below)
    yield 1 << 62
