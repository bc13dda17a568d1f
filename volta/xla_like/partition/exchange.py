"""An exchange: an array that lies on the ranks in one way comes to lie in another. Bytes move, nothing is computed.

All that ranks do together is one of these: an all-gather is a cut that goes, an all-to-all a cut that moves to another
dimension or other places, and partial sums are an array of nodes, cut along them before and along the result after.
"""

from __future__ import annotations

import attrs

from volta.core.avals import ShapedArray
from volta.core.sharding import Box, Layout, Mesh, Shape, box_of, index_boxes
from volta.core.source import Source


@attrs.frozen(slots=True)
class Transfer:
    """A piece that goes from one rank to another, or stays: a box of what the first has and of what the second gets."""

    source: int
    target: int
    taken: Box
    put: Box

    def nbytes(self, itemsize: int) -> int:
        size = itemsize
        for a, b in self.taken:
            size *= b - a
        return size


@attrs.frozen(eq=False)
class Exchange:
    """One array's change of layout, the same record for every rank.

    ``number`` counts the exchanges of a program. ``kind`` is for readers: "all-gather", "all-to-all" or "nodes".
    """

    number: int
    kind: str
    aval: ShapedArray
    before: Layout
    after: Layout
    transfers: tuple[Transfer, ...]
    user: Source | None = None

    def local(self, mesh: Mesh, rank: int, before: bool) -> Shape:
        """The shape that a rank has before or after."""
        return tuple(b - a for a, b in box_of(mesh, self.before if before else self.after, self.aval.shape, rank))

    def sent(self, rank: int) -> int:
        """Bytes that a rank sends to others."""
        item = self.aval.dtype.itemsize
        return sum(t.nbytes(item) for t in self.transfers if t.source == rank != t.target)

    def received(self, rank: int) -> int:
        """Bytes that a rank gets from others."""
        item = self.aval.dtype.itemsize
        return sum(t.nbytes(item) for t in self.transfers if t.target == rank != t.source)


def transfers(mesh: Mesh, shape: Shape, before: Layout, after: Layout) -> tuple[Transfer, ...]:
    """What moves, by target, then in the order of the whole array.

    A piece that several ranks have comes from the target itself, or else from the one nearest to it in the mesh.
    """
    holders = index_boxes(mesh, before, shape)
    places = [mesh.place(rank) for rank in range(mesh.size)]
    found = []
    for target in range(mesh.size):
        wanted = box_of(mesh, after, shape, target)
        for box, ranks in holders.items():
            both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
            if any(a >= b for a, b in both):
                continue
            here = places[target]
            source = min(ranks, key=lambda r: (r != target, sum(places[r][k] != here[k] for k in here), r))
            found.append(Transfer(source, target, _within(both, box), _within(both, wanted)))
    return tuple(found)


def _within(box: Box, outer: Box) -> Box:
    return tuple((a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def is_local(mesh: Mesh, shape: Shape, before: Layout, after: Layout) -> bool:
    """Whether each rank has all that it needs already."""
    for rank in range(mesh.size):
        have, want = box_of(mesh, before, shape, rank), box_of(mesh, after, shape, rank)
        inside = all(a <= c and d <= b for (a, b), (c, d) in zip(have, want, strict=True))
        if not inside and all(c < d for c, d in want):
            return False
    return True
