"""Nodes of the binary tree of adjacent pairs that joins blocks, in SUM, in DOT and wherever else sums are shared.

A node ``(level, index)`` covers blocks ``index << level`` up to ``(index + 1) << level``, or to the last block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs

from volta.core.errors import VerificationError

V = TypeVar("V")
Node = tuple[int, int]


def nodes(lo: int, hi: int, n: int) -> list[Node]:
    """Blocks lo to hi - 1 of n as the fewest nodes.

    >>> nodes(1, 6, 6)
    [(0, 1), (2, 1)]
    >>> nodes(0, 6, 8)
    [(2, 0), (1, 2)]
    """
    found, at = [], lo
    while at < hi:
        level = 0
        while at % (2 << level) == 0 and (at + (2 << level) <= hi or (hi == n and at + (1 << level) < n)):
            level += 1
        found.append((level, at >> level))
        at = min(n, at + (1 << level))
    return found


def span(node: Node, n: int) -> tuple[int, int]:
    """The blocks that a node covers, of n."""
    level, index = node
    return index << level, min(n, (index + 1) << level)


def join(values: Mapping[Node, V], n: int, add: Callable[[V, V], V]) -> V:
    """The root over n blocks, from nodes that cover them: neighbours are added, one without a neighbour waits."""
    held, level = dict(values), 0
    while (1 << level) < n:
        width = -(-n // (1 << level))
        for i in range(0, width, 2):
            left, right = held.pop((level, i), None), held.pop((level, i + 1), None)
            if left is not None and i + 1 >= width:
                held[level + 1, i // 2] = left
            elif left is not None and right is not None:
                held[level + 1, i // 2] = add(left, right)
            elif left is not None or right is not None:
                raise ValueError(f"nodes {sorted(values)} do not cover {n} blocks: a neighbour is missing")
        level += 1
    if list(held) != [(level, 0)]:
        raise ValueError(f"nodes {sorted(values)} do not cover {n} blocks, or cover some twice")
    return held[level, 0]


@attrs.frozen
class Cover:
    """Which nodes of a tree each part of a cut axis computes, and from which of the axis's elements.

    ``edges`` are where the parts' elements begin and end; ``block`` is the length of a leaf, None where any way to
    combine has the same bits, so each part that has elements is a leaf of its own.
    """

    edges: tuple[int, ...]
    block: int | None

    @property
    def count(self) -> int:
        """How many leaves there are."""
        if self.block is None:
            return len(self._filled())
        return -(-self.edges[-1] // self.block)

    def _filled(self) -> list[int]:
        return [p for p in range(len(self.edges) - 1) if self.edges[p] < self.edges[p + 1]]

    def of(self, part: int) -> list[Node]:
        """The nodes of a part."""
        lo, hi = self.edges[part], self.edges[part + 1]
        if lo == hi:
            return []
        if self.block is None:
            return [(0, self._filled().index(part))]
        return nodes(lo // self.block, -(-hi // self.block), self.count)

    def elements(self, part: int, node: Node) -> tuple[int, int]:
        """The elements of a node of a part, in the whole axis."""
        if self.block is None:
            return self.edges[part], self.edges[part + 1]
        first, last = span(node, self.count)
        return first * self.block, min(self.edges[-1], last * self.block)

    def check(self, where: str) -> None:
        """Raises VerificationError where a leaf is cut."""
        if self.block is not None and any(e % self.block and e != self.edges[-1] for e in self.edges):
            raise VerificationError(f"{where}: cut at {self.edges}, which is not between blocks of {self.block}")


def aligned_bounds(bounds: Sequence[int], unit: int) -> tuple[int, ...]:
    """Where an axis is cut instead, so that each cut is at a multiple of ``unit``: the nearest ones."""
    n = bounds[-1]
    return tuple(b if b in (0, n) else min(n, (b + unit // 2) // unit * unit) for b in bounds)
