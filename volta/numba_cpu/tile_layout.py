"""How a kernel of loops that run tile by tile lies on the CPU: what is in lanes, in scratch memory, and in arrays.

Loops' sizes and places in scratch memory are written into the kernel; strides of arrays, and how many values a digit
has, are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from volta.emit.args import Word
from volta.xla_like.kernels import Access, GivenValue, IndexValue, KernelCall, Load, LoopKernel, Store
from volta.xla_like.tiles import Digit, Tile, beside, item_sizes
from volta.xla_like.views import Ints

LINE = 64
"""Bytes of a cache line."""

SHORTEST = 4
"""Elements that lie side by side, of lanes that do not, at least."""

WOVEN = 16
"""Of how many accesses lanes are exchanged in registers at most."""


@attrs.frozen
class _Piece:
    """A loop of a part's nest: of a dimension the index's ``(… // step) % size``."""

    dim: int
    step: int
    size: int


@attrs.frozen
class Spot:
    """Where an access of a loop lies, and how its lanes do.

    ``tile``: in scratch memory, lanes side by side, ``first`` bytes from its beginning, with ``strides`` for each
    piece. Else with a walk of the part's (a number of `Part.walks`): all lanes the ``same``, or side by side
    (``beside``), ``woven`` with others, ``rows`` whose elements lie side by side, or ``apart``; in arrays, or ``near``,
    from the ``first`` byte of scratch memory on. A ``number`` lies in no memory.
    """

    kind: str
    first: int = 0
    strides: Ints = ()
    walk: int = 0
    near: bool = False


@attrs.frozen
class Together:
    """Accesses that are read or written together, in the order of memory; ``back``: neighbours come before. An element
    has ``size`` bytes."""

    kind: str
    members: Ints
    size: int
    back: bool = False


@attrs.frozen
class Part:
    """A loop as a tile runs it: its pieces, loops of some ``sizes`` in each other. ``walks``: for each of them, then
    for the digits, whether an access moves at all."""

    kernel: LoopKernel
    sizes: Ints
    walks: tuple[tuple[bool, ...], ...]
    spots: tuple[Spot, ...]
    groups: tuple[Together, ...]
    block: int
    """Elements of the last piece that rows have side by side (0: nothing is in rows)."""

    def staging(self, lanes: int) -> int:
        """Bytes for what is in rows."""
        return sum(self.staged(group, lanes) for group in self.groups if group.kind == "rows")

    def staged(self, group: Together, lanes: int) -> int:
        return self.block * len(group.members) * lanes * group.size

    def text(self) -> str:
        return f"{self.kernel.text()}\n{self.sizes} {self.walks} {self.spots} {self.groups} {self.block}"


@attrs.frozen
class Tiled:
    """The loops of one kernel, for vectors of some lanes; ``digits`` of them, of which one is in the lanes."""

    lanes: int
    digits: int
    lane: int
    parts: tuple[Part, ...]
    passed: int
    """Bytes of scratch memory for what is passed on; what is in rows lies behind."""
    near: bool
    """Whether it is a step of a row, of which the first digit is the number."""

    shown = "tile"

    @property
    def scratch(self) -> int:
        return self.passed + max(part.staging(self.lanes) for part in self.parts)

    def __str__(self) -> str:
        head = f"lanes={self.lanes} digits={self.digits} lane={self.lane} passed={self.passed} near={self.near}"
        return "\n".join([head, *(part.text() for part in self.parts)])


@attrs.frozen
class Near:
    """What the steps of a row pass on to each other: where each array begins in scratch memory, and bytes in all. The
    ``tile`` is a row: one value of a digit, which is the first of each step's kernel."""

    tile: Tile
    starts: dict[int, int]
    nbytes: int


def tiled(
    group: Sequence[KernelCall], tile: Tile, lane: int, lanes: int, nbytes: Callable[[int], int],
    near: Near | None = None,
) -> Tiled:  # fmt: skip
    """The kernel of loops, with a value of digit number ``lane`` in each lane; ``nbytes`` of each buffer."""
    single = attrs.evolve(tile, chunks=(1,) * len(tile.places))
    items = item_sizes(group)
    pairs = {pair[0]: pair for pair in beside(single, nbytes, items)}

    def room(b: int) -> int:
        return single.local(b, nbytes(b)) * lanes * len(pairs[b])

    starts, end = placed({b: tile.passed[b] for b in pairs}, room, 0 if near is None else near.nbytes)
    found = {
        b: (starts[first] + k * items[b] * lanes, lanes * len(pair))
        for first, pair in pairs.items()
        for k, b in enumerate(pair)
    }
    parts = tuple(_part(call, i, single, lane, lanes, found, near) for i, call in enumerate(group))
    return Tiled(lanes, len(tile.places), lane, parts, end, near is not None)


def placed(
    passed: dict[int, tuple[int, int]], room: Callable[[int], int], start: int = 0
) -> tuple[dict[int, int], int]:
    """Where arrays that live from a first to a last moment begin in scratch memory, then bytes in all."""
    taken: list[tuple[int, int, int, int]] = []  # first byte, byte behind the last, first moment, last moment
    found: dict[int, int] = {}
    for b, (first, last) in passed.items():
        size, at = -(-room(b) // LINE) * LINE, start
        for low, high, since, until in sorted(taken):
            if since <= last and first <= until and low < at + size:
                at = max(at, high)
        taken.append((at, at + size, first, last))
        found[b] = at
    return found, max((high for _, high, *_ in taken), default=start)


def _pieces(sizes: Ints, digits: Sequence[Digit]) -> tuple[_Piece, ...]:
    """What is left of a loop's dimensions without the digits."""
    found = []
    for dim, size in enumerate(sizes):
        rest = size
        for digit in sorted((d for d in digits if d.dim == dim), key=lambda d: -d.below):
            whole = digit.below * digit.count
            found.append(_Piece(dim, whole, rest // whole))
            rest = digit.below
        found.append(_Piece(dim, 1, rest))
    return tuple(p for p in found if p.size > 1)


def _part(
    call: KernelCall,
    number: int,
    tile: Tile,
    lane: int,
    lanes: int,
    found: dict[int, tuple[int, int]],
    near: Near | None,
) -> Part:
    kernel = loop_of(call)
    digits = [p.each[number] for p in tile.places]
    pieces = _pieces(call.sizes, digits)
    steps: dict[Ints, int] = {}  # the number of each walk
    spots: list[Spot] = []
    for x, access in zip(memory_of(kernel), call.accesses, strict=True):
        b = access.buffer
        if b in found and not isinstance(x, IndexValue):
            assert b is not None
            start, apart = found[b]
            strides = tuple(tile.local(b, access.strides[p.dim] * p.step) * apart for p in pieces)
            spots.append(Spot("tile", start + tile.local(b, access.offset) * apart, strides))
            continue
        own = walk_of(x, access, pieces, digits, near)
        walk = steps.setdefault(own, len(steps))
        if near is not None and b in near.starts:
            first, close = near.starts[b] + near.tile.local(b, access.offset), True
        else:
            first, close = 0, False
        spots.append(Spot(_kind(x, own[len(pieces) + lane]), first, walk=walk, near=close))
    walks = list(steps)
    groups, rest = _together(kernel, call.accesses, spots, [w[len(pieces) + lane] for w in walks], "woven", WOVEN)
    block = 0
    if pieces and pieces[-1].size >= SHORTEST:
        rows, _ = _together(kernel, call.accesses, spots, [w[len(pieces) - 1] for w in walks], "rows", 2, rest)
        groups += rows
        if rows:
            block = min(lanes // max(len(g.members) for g in rows), 1 << pieces[-1].size.bit_length() - 1)
    for group in groups:
        for k in group.members:
            spots[k] = attrs.evolve(spots[k], kind=group.kind)
    moves = tuple(tuple(s != 0 for s in w) for w in walks)
    return Part(kernel, tuple(p.size for p in pieces), moves, tuple(spots), tuple(groups), block)


def _kind(x: Load | IndexValue | Store, apart: int) -> str:
    if isinstance(x, IndexValue):
        return "number"
    if apart == 0 and isinstance(x, Load):
        return "same"
    return "beside" if apart == x.dtype.itemsize else "apart"


def _together(
    kernel: LoopKernel, accesses: Sequence[Access], spots: Sequence[Spot], along: Sequence[int], kind: str, most: int,
    among: Sequence[int] | None = None,
) -> tuple[list[Together], list[int]]:  # fmt: skip
    """Of accesses whose lanes lie apart those that together touch all that lies in one direction, in which each walk
    has a stride; and the others."""
    rest = [k for k, spot in enumerate(spots) if spot.kind == "apart"] if among is None else list(among)
    memory = memory_of(kernel)
    alike: dict[tuple[int | None, int, bool, int], dict[int, int]] = {}
    for k in rest:
        x = memory[k]
        key = accesses[k].buffer, spots[k].walk, isinstance(x, Store), x.dtype.itemsize
        alike.setdefault(key, {}).setdefault(accesses[k].offset, k)
    found = []
    for (_, walk, _, size), at in alike.items():
        count, odd = divmod(abs(along[walk]), size)
        back = along[walk] < 0
        if odd or not 1 <= count <= most or (back and kind == "woven"):
            continue
        left = dict(sorted(at.items()))
        while left:
            first = next(iter(left))
            members = [left.pop(first + n * size, None) for n in range(count)]
            whole = tuple(k for k in members if k is not None)
            if len(whole) == count:
                found.append(Together(kind, whole, size, back))
    taken = {k for group in found for k in group.members}
    return sorted(found, key=lambda g: g.members), [k for k in rest if k not in taken]


def walk_of(
    x: Load | IndexValue | Store, access: Access, pieces: Sequence[_Piece], digits: Sequence[Digit], near: Near | None
) -> Ints:
    """How far an access moves with each piece and each digit, in bytes; what is near does not move with its tile."""
    if isinstance(x, GivenValue):
        return (0,) * (len(pieces) + len(digits))
    of_pieces = [access.strides[p.dim] * p.step for p in pieces]
    of_digits = [access.strides[d.dim] * d.below for d in digits]
    if near is not None and access.buffer in near.starts:
        b = access.buffer
        of_pieces = [near.tile.local(b, s) for s in of_pieces]
        of_digits = [0 if k == 0 else near.tile.local(b, s) for k, s in enumerate(of_digits)]
    return (*of_pieces, *of_digits)


def memory_of(kernel: LoopKernel) -> list[Load | IndexValue | Store]:
    """The loads and indices of a loop's body, then its stores, in the order of its accesses."""
    return [*(x for x in kernel.body if isinstance(x, (Load, IndexValue))), *kernel.stores]


def loop_of(call: KernelCall) -> LoopKernel:
    assert isinstance(call.kernel, LoopKernel)
    return call.kernel


def words_of(group: Sequence[KernelCall], tile: Tile, kernel: Tiled, near: Near | None) -> Iterator[Word]:
    """Of each digit how many values it has; of each loop the strides of its walks that are not 0, then where each
    access begins that is not in scratch memory."""
    yield from (p.count for p in tile.places)
    for number, (call, part) in enumerate(zip(group, kernel.parts, strict=True)):
        outside = [k for k, spot in enumerate(part.spots) if spot.kind != "tile"]
        memory, digits = memory_of(part.kernel), [p.each[number] for p in tile.places]
        pieces = _pieces(call.sizes, digits)
        known: set[int] = set()
        for k in outside:
            if part.spots[k].walk not in known:
                yield from (s for s in walk_of(memory[k], call.accesses[k], pieces, digits, near) if s)
            known.add(part.spots[k].walk)
        yield from (call.accesses[k] for k in outside if not part.spots[k].near)
