"""Loops that pass arrays on tile by tile: which may run as one kernel, and how a backend may share them out.

A pass of a transform reads a few elements far apart and writes as many; the next pass reads what it wrote, again far
apart. But some passes in a row keep together what they work on: an element's place in what they pass on has a *digit*
(the column of a matrix, what is left of the place once these passes' radices are taken off) that every one of them
leaves alone. Whoever has a range of that digit in one needs nothing else in the next. So whoever runs such loops takes
the elements of a range of digits, a tile, through all of them, and what they pass on stays near: in the shared memory
of a block of threads, or in a core's cache.

Each loop's elements are computed from the same operands by the same operations, so nothing about the bits changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from volta.xla_like.kernels import Access, IndexValue, Joined, KernelCall, Load, LoopKernel
from volta.xla_like.loops import unique
from volta.xla_like.plan import Buffer
from volta.xla_like.views import Ints, prod


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
    """How loops are shared out: digits, and of each how many values a tile has."""

    places: tuple[CommonDigit, ...]
    chunks: Ints
    passed: dict[int, tuple[int, int]]
    """Of each buffer that loops pass on, the first loop that writes it and the last one that reads it."""

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


TileOf = Callable[[Sequence[KernelCall], Ints, Sequence[Buffer]], Tile | None]
"""A backend's: how loops that pass on some buffers run tile by tile; None where they cannot, or should not."""


# -- which loops -------------------------------------------------------------------------------------------------------


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer], tile_of: TileOf, most: int) -> list[KernelCall]:
    """Join loops, so many at ``most``, that come one after the other and pass arrays on tile by tile: as few kernels as
    can be, of these the ones with the smallest tiles."""
    users: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        for b in unique((*call.reads, *call.writes)):
            users.setdefault(b, []).append(i)
    # of the first calls: kernels, passes that are left alone, the largest tile, and the last kernel
    best: list[tuple[int, int, int, KernelCall | None]] = [(0, 0, 0, None)]
    starts = [0]
    for end in range(1, len(calls) + 1):
        found = []
        for start in range(end - 1, max(-1, end - most - 1), -1):
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
                tile = None if inside is None else tile_of(group, inside, buffers)
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
    alone = all(buffers[b].kind in ("temp", "unstored") and all(u in numbers for u in users[b]) for b in found)
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


# -- what they keep together -------------------------------------------------------------------------------------------


def passed_on(group: Sequence[KernelCall], inside: Ints) -> dict[int, tuple[int, int]] | None:
    """Of each buffer that is ``inside``, the first loop that writes it and the last one that reads it; None where one
    is read before it is whole, or by index."""
    passed: dict[int, tuple[int, int]] = {}
    for b in inside:
        written = [i for i, call in enumerate(group) if b in call.writes]
        read = [i for i, call in enumerate(group) if b in call.reads]
        if not read or written[-1] >= read[0]:
            return None
        passed[b] = written[0], read[-1]
    return None if any(a.buffer in passed and a.terms for c in group for a in c.accesses) else passed


def common_digits(group: Sequence[KernelCall], passed: dict[int, tuple[int, int]]) -> list[CommonDigit]:
    """Digits that all of some loops leave alone, of which any may be shared out independently of the others."""
    places: list[CommonDigit] = []
    for place in _places(group, passed):
        if place not in places and all(_apart(place, other) for other in places):
            places.append(place)
    return places


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
                weight = weight_of(group[i], access, each[i])
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
            if weight_of(call, access, digit) == weight:
                return digit
    return None


def weight_of(call: KernelCall, access: Access, digit: Digit) -> int | None:
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


def beside(tile: Tile, nbytes: Callable[[int], int], items: dict[int, int]) -> list[list[int]]:
    """Arrays of a tile, those in pairs whose elements lie side by side, as real and imaginary parts do: such pairs are
    read and written together."""
    out: list[list[int]] = []
    waiting: dict[object, list[int]] = {}
    for b, lives in tile.passed.items():
        alike = (lives, nbytes(b), items[b], *(p.weights[b] for p in tile.places))
        pair = waiting.pop(alike, None)
        if pair is None:
            pair = waiting[alike] = []
            out.append(pair)
        pair.append(b)
    return out
