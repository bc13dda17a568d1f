"""Which factors of an equation are cut, given how its operands lie: the largest operand decides, and moves least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from volta.core.ir import Eqn
from volta.core.sharding import Cut, Layout, Mesh, even_bounds
from volta.xla_like.partition.factors import Factor
from volta.xla_like.partition.trees import aligned_bounds

SMALL = 1 << 16
"""Bytes below which an array is not worth cutting anew: it is gathered, and every rank does the same work."""


@attrs.frozen
class Choice:
    """The cut of each factor, in the factor's elements (None: not cut)."""

    factors: tuple[Factor, ...]
    cuts: tuple[Cut | None, ...]

    def operand(self, number: int, ndim: int) -> Layout:
        return self._layout([f.operands[number] for f in self.factors], ndim)

    def result(self, number: int, ndim: int) -> Layout:
        return self._layout([f.results[number] for f in self.factors], ndim)

    def _layout(self, places: Sequence[tuple[int, int] | None], ndim: int) -> Layout:
        layout: list[Cut | None] = [None] * ndim
        for cut, place in zip(self.cuts, places, strict=True):
            if cut is not None and place is not None:
                dim, scale = place
                layout[dim] = Cut(cut.axes, tuple(b * scale for b in cut.bounds))
        return tuple(layout)

    def reduced(self) -> tuple[Factor, Cut] | None:
        """The factor that goes, where it is cut."""
        return next(((f, c) for f, c in zip(self.factors, self.cuts, strict=True) if f.reduces and c is not None), None)


Moves = dict[tuple[Cut, Cut], int]
"""Cuts that had to be moved to fit a factor, where they were moved, and the bytes of the operands."""


def choose(
    mesh: Mesh, eqn: Eqn, factors: Sequence[Factor], layouts: Sequence[Layout], units: Sequence[int], moves: Moves
) -> Choice:
    """Cuts for the factors from those of the operands.

    ``units``: of each factor, between how many elements it may be cut (0: nowhere). ``moves`` is added to.
    """
    wanted: dict[tuple[int, Cut], int] = {}
    homeless: list[tuple[int, int, Cut]] = []
    for i, (atom, layout) in enumerate(zip(eqn.inputs, layouts, strict=True)):
        for d, cut in enumerate(layout):
            if cut is None:
                continue
            weight = atom.aval.nbytes
            k = next((k for k, f in enumerate(factors) if f.operands[i] is not None and f.operands[i][0] == d), None)  # type: ignore[index]
            bounds = None if k is None else _bounds(cut, factors[k].operands[i][1], units[k])  # type: ignore[index]
            if k is None or bounds is None:
                homeless.append((weight, i, cut))
            else:
                key = (k, Cut(cut.axes, bounds))
                wanted[key] = wanted.get(key, 0) + weight
                moved = Cut(cut.axes, tuple(b * factors[k].operands[i][1] for b in bounds))  # type: ignore[index]
                if moved != cut:
                    moves[cut, moved] = moves.get((cut, moved), 0) + weight
    chosen: list[Cut | None] = [None] * len(factors)
    used: set[str] = set()
    for (k, cut), _ in sorted(wanted.items(), key=lambda item: -item[1]):
        if chosen[k] is None and used.isdisjoint(cut.axes):
            chosen[k] = cut
            used.update(cut.axes)
    for weight, i, cut in sorted(homeless, key=lambda item: -item[0]):
        if weight >= SMALL and used.isdisjoint(cut.axes):
            _move(mesh, factors, chosen, used, i, cut)
    return Choice(tuple(factors), tuple(chosen))


def better_cuts(moves: Moves) -> dict[Cut, Cut]:
    """Where cuts are better from the start: as they were moved most, if no part grows by more than half."""
    found: dict[Cut, Cut] = {}
    for (cut, moved), _ in sorted(moves.items(), key=lambda item: -item[1]):
        if cut not in found and 2 * _longest(moved) <= 3 * _longest(cut):
            found[cut] = moved
    return found


def _longest(cut: Cut) -> int:
    return max(b - a for a, b in pairwise(cut.bounds))


def _bounds(cut: Cut, scale: int, unit: int) -> tuple[int, ...] | None:
    """A dimension's cut in the elements of its factor; None where that would leave all of it to one rank."""
    if not unit:
        return None
    bounds = tuple(b // scale for b in aligned_bounds(cut.bounds, scale * unit))
    crowded = sum(a < b for a, b in pairwise(bounds)) < 2
    return None if crowded and bounds != tuple(b / scale for b in cut.bounds) else bounds


def _move(
    mesh: Mesh, factors: Sequence[Factor], chosen: list[Cut | None], used: set[str], operand: int, cut: Cut
) -> None:
    """Cut another factor of an operand, the longest, whose own cut cannot stay."""
    free = [
        k for k, f in enumerate(factors)
        if chosen[k] is None and not f.reduces and f.operands[operand] is not None and f.size >= cut.parts
    ]  # fmt: skip
    if free:
        k = max(free, key=lambda k: (factors[k].size, -k))
        chosen[k] = Cut(cut.axes, even_bounds(factors[k].size, mesh.parts(cut.axes)))
        used.update(cut.axes)
