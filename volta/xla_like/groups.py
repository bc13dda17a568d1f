"""Groups: the nodes that run in one kernel, over one linear space of elements."""

from __future__ import annotations

import attrs

from volta.xla_like.nodes import Const, Node, Ref, Val
from volta.xla_like.views import Ints, merge, prod, row_major, strides_over

LONG_ROW = 1 << 14
"""Rows longer than this, where there are few of them, are reduced block by block by many tasks."""

FEW_ROWS = 32


@attrs.define(eq=False, slots=True)
class Group:
    """Nodes of one kernel.

    ``dims`` factor the space; ``reduced`` elements are reduced, and ``inner`` ones lie inside them.
    """

    index: int
    nodes: list[Node]
    dims: Ints
    reduced: int = 1
    inner: int = 1
    fusible: bool = True
    levels: dict[Val, str] = attrs.field(factory=dict)

    @property
    def size(self) -> int:
        return prod(self.dims)

    @property
    def rows(self) -> int:
        return self.size // self.reduced

    @property
    def by_blocks(self) -> bool:
        """Whether reductions are cut into blocks that different tasks sum (few long rows)."""
        return self.reduced > LONG_ROW and self.rows < FEW_ROWS

    def mask(self) -> tuple[bool, ...]:
        """For each of ``dims``, whether it is reduced."""
        out, n = [], 1
        for d in reversed(self.dims):
            out.append(self.inner <= n < self.inner * self.reduced)
            n *= d
        return tuple(reversed(out))

    def kept_dims(self) -> Ints:
        return tuple(d for d, m in zip(self.dims, self.mask(), strict=True) if not m)

    def row_strides(self) -> Ints:
        """Strides over ``dims`` of a stored 'row' value."""
        kept = iter(row_major(self.kept_dims()))
        return tuple(0 if m else next(kept) for m in self.mask())


def with_kept(group: Group, kept: Ints) -> Ints:
    """Full dims from refined kept dims."""
    out: list[int] = []
    n, placed = 1, group.reduced == 1
    for d in reversed(kept):
        if not placed and n == group.inner:
            out.extend(d2 for d2, m in zip(reversed(group.dims), reversed(group.mask()), strict=True) if m)
            placed = True
        out.append(d)
        n *= d
    if not placed:
        out.extend(d2 for d2, m in zip(reversed(group.dims), reversed(group.mask()), strict=True) if m)
    return tuple(reversed(out))


def squeezed(shape: Ints) -> Ints:
    return tuple(d for d in shape if d != 1)


def walks(node: Node, group: Group, dims: Ints, mask: tuple[bool, ...]) -> bool:
    """Whether one stride walks the reduced elements of each operand from outside the group."""
    for x in node.operands:
        if isinstance(x, Const) or (isinstance(x, Ref) and x.val in group.levels):
            continue
        strides = strides_over(x.view, dims)
        reduced = tuple(d for d, m in zip(dims, mask, strict=True) if m)
        if len(merge(reduced, [tuple(s for s, m in zip(strides, mask, strict=True) if m)])[0]) > 1:
            return False
    return True


def reads(group: Group) -> set[Val]:
    """What a group reads of others."""
    return {x.val for n in group.nodes for x in n.operands if isinstance(x, Ref) and x.val not in group.levels}
