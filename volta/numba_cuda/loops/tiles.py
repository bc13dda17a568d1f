"""Loops that pass arrays on tile by tile: which may run as one kernel, and how its blocks of threads share them out.

A pass of a transform reads a few elements far apart and writes as many; the next pass reads what it wrote, again far
apart. But some passes in a row keep together what they work on: an element's place in what they pass on has a *digit*
(the column of a matrix, what is left of the place once these passes' radices are taken off) that every one of them
leaves alone. Whoever has a range of that digit in one needs nothing else in the next. So a block of threads takes the
elements of a range of digits, a tile, through all of these loops, and what they pass on stays in shared memory.

Each loop's elements are computed from the same operands by the same operations, so nothing about the bits changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs

from volta.xla_like.kernels import Access, IndexValue, Joined, KernelCall, Load, LoopKernel
from volta.xla_like.loops import unique
from volta.xla_like.plan import Buffer
from volta.xla_like.views import Ints, prod

MAX_LOOPS = 8

TILE = 8192
"""Elements of a tile at most, in each of the arrays that loops pass on."""

WHOLE = 4096
"""Elements up to which a tile takes more of its digits than coalesced accesses need."""

NEIGHBOURS = 4
"""Of the digit along which elements lie side by side, a tile takes at least as many values, or all: fewer would read
and write less than a sector of memory at a time."""

PASSED = 64 << 10
"""Bytes of what a tile passes on at most, before it is padded."""


@attrs.frozen
class Digit:
    """``(index of dimension dim // below) % count`` of a loop; the same number in all loops of a tile."""

    dim: int
    below: int
    count: int


@attrs.frozen
class Place:
    """Where a digit stands in what loops pass on: ``(byte // weight) % count``, by buffer."""

    weights: tuple[tuple[int, int], ...]
    each: tuple[Digit, ...]
    """By loop."""

    @property
    def count(self) -> int:
        return self.each[0].count


@attrs.frozen
class Tile:
    """How loops are shared out: digits, and of each how many values a block of threads takes."""

    places: tuple[Place, ...]
    chunks: Ints
    passed: tuple[tuple[int, ...], ...]
    """Of each loop but the last one, the buffers that it passes on to the next."""

    def elements(self, call: KernelCall) -> int:
        """How many elements of a loop's space are in a tile."""
        return prod(call.sizes) // prod(p.count for p in self.places) * prod(self.chunks)

    def local(self, buffer: int, nbytes: int) -> int:
        """Bytes into a buffer, or a stride, as a tile has them: of each digit it has a few values only."""
        for place, chunk in self._by_weight(buffer):
            weight = dict(place.weights)[buffer]
            above, rest = divmod(nbytes, weight * place.count)
            nbytes = above * weight * chunk + rest
        return nbytes

    def _by_weight(self, buffer: int) -> list[tuple[Place, int]]:
        pairs = zip(self.places, self.chunks, strict=True)
        return sorted(pairs, key=lambda x: -dict(x[0].weights)[buffer])

    @property
    def blocks(self) -> Ints:
        return tuple(-(-p.count // chunk) for p, chunk in zip(self.places, self.chunks, strict=True))


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Join loops that come one after the other and pass arrays on tile by tile: as few kernels as can be, of these the
    ones with the smallest tiles."""
    users = Counter(b for call in calls for b in dict.fromkeys((*call.reads, *call.writes)))
    out: list[KernelCall] = []
    i = 0
    while i < len(calls):
        end = i + 1
        while end < len(calls) and _passes(calls[end - 1], calls[end], buffers, users):
            end += 1
        out += _grouped(calls[i:end], buffers)
        i = end
    return out


def _grouped(chain: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    best: list[tuple[int, int, list[KernelCall]]] = [(0, 0, [])]  # of the first loops: kernels, largest tile, calls
    for end in range(1, len(chain) + 1):
        found = []
        for start in range(max(0, end - MAX_LOOPS), end):
            group = chain[start:end]
            tile = tile_of(group, lambda b: buffers[b].nbytes) if len(group) > 1 else None
            if len(group) > 1 and tile is None:
                continue
            size = 0 if tile is None else max(tile.elements(call) * _radix(call) for call in group)
            kernels, largest, before = best[start]
            call = group[0] if tile is None else _joined(group)
            found.append((kernels + 1, max(largest, size), [*before, call]))
        best.append(min(found, key=lambda x: x[:2]))
    return best[-1][2]


def _radix(call: KernelCall) -> int:
    assert isinstance(call.kernel, LoopKernel)
    return len(call.kernel.stores)


def _passes(call: KernelCall, following: KernelCall, buffers: Sequence[Buffer], users: Counter[int]) -> bool:
    """Whether all that a loop writes is read by the next one alone."""
    if not (_plain(call) and _plain(following)):
        return False
    return all(buffers[b].kind == "temp" and users[b] == 2 and b in following.reads for b in call.writes)


def _plain(call: KernelCall) -> bool:
    kernel = call.kernel
    return isinstance(kernel, LoopKernel) and kernel.mode == "map" and not any(s.terms for s in kernel.stores)


def _joined(group: Sequence[KernelCall]) -> KernelCall:
    """Other blocks still read what a tile has read, so nothing is written over it."""
    passed = {b for call in group[:-1] for b in call.writes}
    return KernelCall(
        kernel=Joined(),
        sizes=(),
        accesses=(),
        reads=unique(b for call in group for b in call.reads if b not in passed),
        writes=group[-1].writes,
        label=group[0].label,
        parts=tuple(group),
    )


def tile_of(group: Sequence[KernelCall], nbytes: Callable[[int], int]) -> Tile | None:
    """How loops that pass arrays on run tile by tile; None where they cannot. ``nbytes`` is the size of a buffer."""
    passed = tuple(call.writes for call in group[:-1])
    if any(not b for b in passed) or not all(_in_reach(call, passed) for call in group):
        return None
    places: list[Place] = []
    for place in _places(group, passed):
        if all(_apart(place, other) for other in places):
            places.append(place)
    return _chunked(group, nbytes, tuple(places), passed)


def _in_reach(call: KernelCall, passed: tuple[Ints, ...]) -> bool:
    """Whether what is passed on is read and written at known places."""
    inside = {b for each in passed for b in each}
    return not any(a.buffer in inside and (a.terms or min(a.strides, default=0) < 0) for a in call.accesses)


def _places(group: Sequence[KernelCall], passed: tuple[Ints, ...]) -> Iterator[Place]:
    """Whole dimensions of the first loop, or of the last one, that are digits of all of them."""
    for call, start in ((group[0], 0), (group[-1], len(group) - 1)):
        for dim, count in enumerate(call.sizes):
            if count > 1:
                found = _followed(group, passed, start, Digit(dim, 1, count))
                if found is not None:
                    yield found


def _followed(group: Sequence[KernelCall], passed: tuple[Ints, ...], start: int, digit: Digit) -> Place | None:
    """A digit of one loop as one of all of them."""
    each: dict[int, Digit] = {start: digit}
    weights: dict[int, int] = {}
    order = range(len(group)) if start == 0 else range(len(group) - 1, -1, -1)
    for i in order:
        near = [b for j in (i - 1, i) if 0 <= j < len(passed) for b in passed[j]]
        if i not in each:
            known = next((b for b in near if b in weights), None)
            found = None if known is None else _digit_at(group[i], known, weights[known], digit.count)
            if found is None:
                return None
            each[i] = found
        for b in near:
            for access in group[i].accesses:
                if access.buffer == b:
                    weight = _weight(group[i], access, each[i])
                    if weight is None or weights.setdefault(b, weight) != weight:
                        return None
    return Place(tuple(weights.items()), tuple(each[i] for i in range(len(group))))


def _digit_at(call: KernelCall, buffer: int, weight: int, count: int) -> Digit | None:
    """The digit of a loop's index that has a weight in a buffer."""
    access = next(a for a in call.accesses if a.buffer == buffer)
    for dim, (size, stride) in enumerate(zip(call.sizes, access.strides, strict=True)):
        if stride and not weight % stride and not size % (weight // stride * count):
            digit = Digit(dim, weight // stride, count)
            if _weight(call, access, digit) == weight:
                return digit
    return None


def _weight(call: KernelCall, access: Access, digit: Digit) -> int | None:
    """The weight of a digit in the place of an access; None where something else moves that digit of the place too."""
    weight = access.strides[digit.dim] * digit.below
    if weight <= 0 or access.offset // weight % digit.count:
        return None
    whole, low = weight * digit.count, access.offset % weight
    for dim, (size, stride) in enumerate(zip(call.sizes, access.strides, strict=True)):
        if dim == digit.dim:
            low += stride * (digit.below - 1)
        elif size > 1 and stride % whole:
            low += stride * (size - 1)
    return weight if low < weight else None


def _apart(place: Place, other: Place) -> bool:
    """Whether two digits are, in each buffer, one above the other."""
    theirs = dict(other.weights)
    return all(
        low * n <= high and high % (low * n) == 0
        for b, weight in place.weights
        for high, low, n in [
            (weight, theirs[b], other.count) if weight > theirs[b] else (theirs[b], weight, place.count)
        ]
    )


def _chunked(
    group: Sequence[KernelCall], nbytes: Callable[[int], int], places: tuple[Place, ...], passed: tuple[Ints, ...]
) -> Tile | None:
    """As many values of each digit as make accesses coalesced and a block busy; None where a tile would be too large."""
    inside, items = {b for each in passed for b in each}, item_sizes(group)
    order = sorted(range(len(places)), key=lambda k: min(_steps(group, places[k], inside)))
    chunks = [1] * len(places)

    def size() -> int:
        return max(nbytes(b) // items[b] for b in inside) // prod(p.count for p in places) * prod(chunks)

    def widened(k: int, most: int) -> None:
        while 2 * chunks[k] <= places[k].count and 2 * size() <= most:
            chunks[k] *= 2
        if places[k].count < 2 * chunks[k] and size() // chunks[k] * places[k].count <= most:
            chunks[k] = places[k].count

    if size() > TILE:
        return None
    first = order[0] if order else None
    if first is not None and min(_steps(group, places[first], inside)) <= 8:  # its neighbours are neighbours in memory
        while chunks[first] < min(NEIGHBOURS, places[first].count):
            chunks[first] = min(2 * chunks[first], places[first].count)
    for k in order:
        widened(k, WHOLE)
    if size() > TILE or size() * max(sum(items[b] for b in each) for each in passed) > PASSED:
        return None
    return Tile(places, tuple(chunks), passed)


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


def _steps(group: Sequence[KernelCall], place: Place, inside: set[int]) -> Iterator[int]:
    """How far apart in memory neighbouring values of a digit lie, where the first loop reads and the last one writes."""
    for call, digit in ((group[0], place.each[0]), (group[-1], place.each[-1])):
        kernel = call.kernel
        assert isinstance(kernel, LoopKernel)
        for access in call.accesses:
            if access.buffer is not None and access.buffer not in inside and access.strides[digit.dim]:
                yield abs(access.strides[digit.dim] * digit.below)
    yield 1 << 62
