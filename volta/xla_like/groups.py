"""Groups: the nodes that run in one kernel, over one linear space of elements."""

from __future__ import annotations

import attrs

from volta.xla_like.nodes import Const, Node, Ref, Val
from volta.xla_like.views import Ints, prod, remembered, row_major, walked

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
    size: int = attrs.field(init=False, default=attrs.Factory(lambda self: prod(self.dims), takes_self=True))

    def trial(self, dims: Ints, reduced: int, inner: int, levels: dict[Val, str] | None = None) -> Group:
        """What the group would be with these."""
        return Group(self.index, self.nodes, dims, reduced, inner, True, self.levels if levels is None else levels)

    @property
    def rows(self) -> int:
        return self.size // self.reduced

    @property
    def by_blocks(self) -> bool:
        """Whether reductions are cut into blocks that different tasks sum (few long rows)."""
        return self.reduced > LONG_ROW and self.rows < FEW_ROWS

    def mask(self) -> tuple[bool, ...]:
        """For each of ``dims``, whether it is reduced."""
        return _mask(self.dims, self.reduced, self.inner)

    def kept_dims(self) -> Ints:
        return _kept_dims(self.dims, self.reduced, self.inner)

    def row_strides(self) -> Ints:
        """Strides over ``dims`` of a stored 'row' value."""
        return _row_strides(self.dims, self.reduced, self.inner)


@remembered
def _mask(dims: Ints, reduced: int, inner: int) -> tuple[bool, ...]:
    out, n = [], 1
    for d in reversed(dims):
        out.append(inner <= n < inner * reduced)
        n *= d
    return tuple(reversed(out))


@remembered
def _kept_dims(dims: Ints, reduced: int, inner: int) -> Ints:
    return tuple(d for d, m in zip(dims, _mask(dims, reduced, inner), strict=True) if not m)


@remembered
def _row_strides(dims: Ints, reduced: int, inner: int) -> Ints:
    kept = iter(row_major(_kept_dims(dims, reduced, inner)))
    return tuple(0 if m else next(kept) for m in _mask(dims, reduced, inner))


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
        if not walked(x.view.shape, x.view.strides, dims, mask):
            return False
    return True


def reads(group: Group) -> set[Val]:
    """What a group reads of others."""
    return {x.val for n in group.nodes for x in n.operands if isinstance(x, Ref) and x.val not in group.levels}
