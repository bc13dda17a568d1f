"""The ranks' equations while a program is cut: level by level, with the exchanges between two levels.

A level holds what can be computed after so many rounds of exchanges. All exchanges of a level are one round, so the
ranks meet as seldom as their values allow, and in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import VerificationError
from volta.core.ir import Atom, Eqn, Literal, Var
from volta.core.sharding import Layout, Mesh, box_of, local_shape, whole
from volta.core.source import Source
from volta.ops.primitive import REGISTRY, Primitive
from volta.xla_like.partition.exchange import Exchange, is_local, transfers


@attrs.frozen(eq=False)
class Value:
    """A value of the program, as it lies on the ranks: what each has of it, and at which level all have it."""

    aval: ShapedArray
    layout: Layout
    parts: tuple[Atom, ...]
    level: int


@attrs.frozen(eq=False)
class Meeting:
    """An exchange, with what each rank gives and gets."""

    exchange: Exchange
    given: tuple[Atom, ...]
    got: tuple[Var, ...]


@attrs.define(eq=False)
class Level:
    eqns: list[list[Eqn]]
    meetings: list[Meeting] = attrs.field(factory=list)


class Building:
    """Collects the equations of every rank."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.levels: list[Level] = []
        self.values: list[Value] = []
        self.source: Source | None = None
        self._recut: dict[tuple[int, Layout], Value] = {}

    def input(self, aval: ShapedArray, layout: Layout) -> Value:
        parts = tuple(Var(aval.update(shape=self.shape(aval, layout, rank))) for rank in range(self.mesh.size))
        return self._keep(Value(aval, layout, parts, 0))

    def literal(self, atom: Literal) -> Value:
        return Value(atom.aval, (), (atom,) * self.mesh.size, 0)

    def shape(self, aval: ShapedArray, layout: Layout, rank: int) -> tuple[int, ...]:
        """What a rank has of an array that lies so."""
        return local_shape(self.mesh, layout, aval.shape, rank)

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def level(self, number: int) -> Level:
        while len(self.levels) <= number:
            self.levels.append(Level([[] for _ in range(self.mesh.size)]))
        return self.levels[number]

    # -- equations -----------------------------------------------------------------------------------------------------

    def one(self, rank: int, level: int, primitive: Primitive | str, *inputs: Atom, **params: Any) -> list[Var]:
        """An equation of one rank."""
        if isinstance(primitive, str):
            primitive = REGISTRY[primitive]
        found = primitive.abstract(*(a.aval for a in inputs), **params)
        outs = tuple(Var(aval) for aval in (found if primitive.multiple_results else [found]))
        self.level(level).eqns[rank].append(Eqn(primitive, inputs, outs, params, self.source))
        return list(outs)

    def every(
        self, primitive: Primitive | str, inputs: Sequence[Value], outs: Sequence[tuple[ShapedArray, Layout]],
        params: Callable[[int], dict[str, Any]],
    ) -> list[Value]:  # fmt: skip
        """The same equation on every rank, over its parts."""
        level = max((v.level for v in inputs), default=0)
        found = [
            self.one(rank, level, primitive, *(v.parts[rank] for v in inputs), **params(rank))
            for rank in range(self.mesh.size)
        ]
        return [self.made(aval, layout, parts, level) for (aval, layout), *parts in zip(outs, *found, strict=True)]

    def made(self, aval: ShapedArray, layout: Layout, parts: Sequence[Atom], level: int) -> Value:
        """A value of parts that were computed; each must have the shape that the layout says."""
        for rank, part in enumerate(parts):
            want = self.shape(aval, layout, rank)
            if part.aval.shape != want or part.aval.dtype != aval.dtype:
                text = f"rank {rank} has {part.aval.short()} of {aval.short()}, and its part should be {want}"
                raise VerificationError(text if self.source is None else f"{text} ({self.source})")
        return self._keep(Value(aval, layout, tuple(parts), level))

    # -- other layouts -------------------------------------------------------------------------------------------------

    def recut(self, value: Value, layout: Layout, kind: str | None = None) -> Value:
        """The value in another layout: a part of what each rank has, or an exchange."""
        if layout == value.layout:
            return value
        key = (id(value), layout)
        if key not in self._recut:
            narrow = is_local(self.mesh, value.aval.shape, value.layout, layout)
            self._recut[key] = self._narrowed(value, layout) if narrow else self._exchanged(value, layout, kind)
        return self._recut[key]

    def gathered(self, value: Value) -> Value:
        return self.recut(value, whole(value.aval.ndim))

    def _narrowed(self, value: Value, layout: Layout) -> Value:
        shape, parts = value.aval.shape, []
        for rank, part in enumerate(value.parts):
            have, want = box_of(self.mesh, value.layout, shape, rank), box_of(self.mesh, layout, shape, rank)
            size = tuple(b - a for a, b in want)
            if have == want:
                parts.append(part)
            elif 0 in size:
                parts.append(self.empty(rank, value.level, value.aval.update(shape=size)))
            else:
                starts = tuple(c - a for (a, _), (c, _) in zip(have, want, strict=True))
                limits = tuple(d - a for (a, _), (_, d) in zip(have, want, strict=True))
                params = {"start_indices": starts, "limit_indices": limits, "strides": None}
                parts += self.one(rank, value.level, "slice", part, **params)
        return self.made(value.aval, layout, parts, value.level)

    def empty(self, rank: int, level: int, aval: ShapedArray) -> Var:
        """An array without elements."""
        zero = Literal(np.zeros((), aval.dtype)[()], ShapedArray((), aval.dtype, aval.weak_type))
        return self.one(rank, level, "broadcast_in_dim", zero, shape=aval.shape, broadcast_dimensions=())[0]

    def _exchanged(self, value: Value, layout: Layout, kind: str | None) -> Value:
        aval, before = value.aval, value.layout
        if kind is None:
            gone = [c for c, new in zip(before, layout, strict=True) if c is not None and c != new]
            kind = "all-gather" if gone and all(c is None for c in layout) else "all-to-all"
        moved = transfers(self.mesh, aval.shape, before, layout)
        number = sum(len(level.meetings) for level in self.levels)
        exchange = Exchange(number, kind, aval, before, layout, moved, self.source)
        got = tuple(Var(aval.update(shape=self.shape(aval, layout, rank))) for rank in range(self.mesh.size))
        self.level(value.level).meetings.append(Meeting(exchange, value.parts, got))
        return self.made(aval, layout, got, value.level + 1)
