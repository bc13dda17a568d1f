"""Panels of matrices, column by column: written once, for vectors of a CPU's thread and for threads of a GPU's block.

Whoever works on one matrix is its *crew*. Elements of a column are shared out among it, and what all of it needs (a
pivot, a row's elements) each reads for itself. Columns lie one behind the other, so that neighbours are neighbours in
memory. The order of operations is the definition's: an element loses its products in ascending order, whoever has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I32, I64, for_range, if_then, loop, offset

TOGETHER = 4
"""Terms that are read at once, and groups of neighbours that one member works on at once."""


class Lanes(Protocol):
    """Neighbouring elements of a column, which one member of a crew has."""

    @property
    def builder(self) -> Builder: ...

    @property
    def number(self) -> Value:
        """Their places in the column, as int64."""

    def load(self, column: ir.Value, dtype: str) -> Value: ...

    def store(self, x: Value, column: ir.Value) -> None: ...


class KeptLanes(Lanes, Protocol):
    """Neighbouring right sides, which a member solves for."""

    def kept(self, k: ir.Value) -> ir.Value:
        """Memory of their own for the element of column ``k``, one of at most ``WIDTH``."""


class Crew(Protocol):
    """Who works on one matrix."""

    b: ir.IRBuilder

    def each(
        self, start: ir.Value | int, stop: ir.Value, body: Callable[[Sequence[Any]], None], together: int = 1
    ) -> None:
        """Share out places of a column: ``body`` gets up to ``together`` groups of neighbours, as `Lanes`."""

    def some(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Share out numbers, one by one."""

    def alone(self) -> AbstractContextManager[None]:
        """What one member does for all."""

    def meet(self) -> None:
        """What any of them wrote, all see."""

    def first_largest(self, start: ir.Value, stop: ir.Value, column: ir.Value, dtype: str) -> ir.Value:
        """The place of the first element of largest size, or of the first NaN; at least one is there."""


def at(b: ir.IRBuilder, array: ir.Value, index: ir.Value, dtype: str) -> ir.Value:
    return offset(b, array, b.mul(index, I64(item_size(dtype))))


def copied(crew: Crew, dtype: str, source: ir.Value, out: ir.Value, count: ir.Value) -> None:
    """Nothing is to be copied where the result lies in the operand's memory."""
    b = crew.b

    def some(group: Sequence[Lanes]) -> None:
        for lanes in group:
            lanes.store(lanes.load(source, dtype), out)

    with if_then(b, b.icmp_unsigned("!=", b.ptrtoint(source, I64), b.ptrtoint(out, I64))):
        crew.each(0, count, some)


def _grouped(
    b: ir.IRBuilder, start: ir.Value | int, stop: ir.Value, body: Callable[..., Sequence[ir.Value]],
    init: Sequence[ir.Value] = (), together: int = TOGETHER,
) -> list[ir.Value]:  # fmt: skip
    """``body(indices, *values)`` for some indices at once, then for the rest one by one; gives the next values."""
    first = I64(start) if isinstance(start, int) else start
    whole = b.add(first, b.and_(b.sub(stop, first), I64(-together)))
    values = list(init)
    for low, high, step in ((first, whole, together), (whole, stop, 1)):
        with loop(b, low, high, step, values) as it:
            it.advance(*body([b.add(it.index, I64(k)) for k in range(step)], *it.values))
        values = it.results
    return values


def _without_products(
    b: ir.IRBuilder, before: ir.Value, factor: Callable[[ir.Value], Value], other: Callable[[ir.Value, Any], Value],
    group: Sequence[Lanes], starts: Sequence[Value],
) -> list[Value]:  # fmt: skip
    """What is left of elements when the products of the columns ``before`` are taken away, in ascending order."""

    def taken(indices: Sequence[ir.Value], *totals: ir.Value) -> list[ir.Value]:
        factors = [-factor(k) for k in indices]
        others = [[other(k, lanes) for lanes in group] for k in indices]
        values = [lanes.builder.value(x, s.dtype) for lanes, x, s in zip(group, totals, starts, strict=True)]
        for f, row in zip(factors, others, strict=True):
            values = [
                lanes.builder.fma(lanes.builder.splat(f), y, x) for lanes, y, x in zip(group, row, values, strict=True)
            ]
        return [x.ir for x in values]

    found = _grouped(b, 0, before, taken, [x.ir for x in starts])
    return [lanes.builder.value(x, s.dtype) for lanes, x, s in zip(group, found, starts, strict=True)]


def cholesky(crew: Crew, dtype: str, source: ir.Value, out: ir.Value, width: ir.Value) -> None:
    """The columns of L, from those of a square matrix: zeros above the diagonal."""
    b, one = crew.b, Builder(crew.b, 1)
    with for_range(b, 0, width) as j:
        start = b.mul(j, width)
        column = at(b, out, start, dtype)

        def left(group: Sequence[Lanes], j: ir.Value = j, start: ir.Value = start, column: ir.Value = column) -> None:
            starts = [lanes.load(at(b, source, start, dtype), dtype) for lanes in group]

            def line(k: ir.Value) -> ir.Value:
                return at(b, out, b.mul(k, width), dtype)

            found = _without_products(
                b, j, lambda k: one.load(at(b, line(k), j, dtype), dtype),
                lambda k, lanes: lanes.load(line(k), dtype), group, starts,
            )  # fmt: skip
            for lanes, x in zip(group, found, strict=True):
                lanes.store(x, column)

        crew.each(0, width, left)
        crew.meet()
        root = one.sqrt(one.load(at(b, column, j, dtype), dtype))
        crew.meet()

        def divided(group: Sequence[Lanes], j: ir.Value = j, column: ir.Value = column, root: Value = root) -> None:
            for lanes in group:
                wide = lanes.builder
                here, top = wide.splat(one.value(j, "int64")), wide.splat(root)
                quotient = lanes.load(column, dtype) / top
                rest = wide.select(lanes.number == here, top, wide.const(dtype, 0))
                lanes.store(wide.select(lanes.number > here, quotient, rest), column)

        crew.each(0, width, divided)
        crew.meet()


def substitute(
    crew: Crew, dtype: str, unit: bool, triangle: ir.Value, source: ir.Value, out: ir.Value, width: ir.Value,
    length: ir.Value, start: ir.Value, stop: ir.Value,
) -> None:  # fmt: skip
    """The solutions in columns ``start`` to ``stop`` of right sides (width, length), by a lower triangle."""
    b, one = crew.b, Builder(crew.b, 1)

    def solved(group: Sequence[KeptLanes]) -> None:
        def read(indices: Sequence[ir.Value]) -> list[ir.Value]:
            found = [[lanes.load(at(b, source, b.mul(k, length), dtype), dtype) for lanes in group] for k in indices]
            for k, row in zip(indices, found, strict=True):
                for lanes, x in zip(group, row, strict=True):
                    lanes.builder.store(x, lanes.kept(k))
            return []

        _grouped(b, 0, width, read)
        with for_range(b, 0, width) as j:
            row, place = at(b, triangle, b.mul(j, width), dtype), b.mul(j, length)
            found = _without_products(
                b, j, lambda k: one.load(at(b, row, k, dtype), dtype),
                lambda k, lanes: lanes.builder.load(lanes.kept(k), dtype), group,
                [lanes.builder.load(lanes.kept(j), dtype) for lanes in group],
            )  # fmt: skip
            if not unit:
                divisor = one.load(at(b, row, j, dtype), dtype)
                found = [x / lanes.builder.splat(divisor) for lanes, x in zip(group, found, strict=True)]
            for lanes, x in zip(group, found, strict=True):
                lanes.builder.store(x, lanes.kept(j))
                lanes.store(x, at(b, out, place, dtype))

    crew.each(start, stop, solved, TOGETHER)


def lu(
    crew: Crew, dtype: str, source: ir.Value, start: ir.Value, out: ir.Value, moved: ir.Value, chosen: ir.Value,
    width: ir.Value, length: ir.Value,
) -> None:  # fmt: skip
    """Elimination with pivots of columns whose diagonal begins at row ``start``. What the rows were is in ``moved``,
    the pivots' rows in ``chosen``."""
    b, one = crew.b, Builder(crew.b, 1)

    def column(base: ir.Value, c: ir.Value) -> ir.Value:
        return at(b, base, b.mul(c, length), dtype)

    def copied(group: Sequence[Lanes]) -> None:
        for lanes in group:
            lanes.store(lanes.builder.cast(lanes.number, "int32"), moved)
        with for_range(b, 0, width) as c:
            for x, lanes in [(lanes.load(column(source, c), dtype), lanes) for lanes in group]:
                lanes.store(x, column(out, c))

    crew.each(0, length, copied)
    crew.meet()
    with for_range(b, 0, width) as j:
        own, here = column(out, j), b.add(start, j)
        best = crew.first_largest(here, length, own, dtype)

        def exchange(array: ir.Value, kind: str, here: ir.Value = here, best: ir.Value = best) -> None:
            places = [at(b, array, i, kind) for i in (here, best)]
            x, y = (one.load(p, kind) for p in places)
            one.store(y, places[0])
            one.store(x, places[1])

        crew.some(width, lambda c: exchange(column(out, c), dtype))
        with crew.alone():
            exchange(moved, "int32")
            b.store(b.trunc(best, I32), at(b, chosen, j, "int32"), align=4)
        crew.meet()
        pivot, below = one.load(at(b, own, here, dtype), dtype), b.add(here, I64(1))

        def divided(group: Sequence[Lanes], own: ir.Value = own, pivot: Value = pivot) -> None:
            for lanes in group:
                x, wide = lanes.load(own, dtype), lanes.builder
                lanes.store(wide.select(wide.splat(pivot != 0), x / wide.splat(pivot), x), own)

        def taken(indices: Sequence[ir.Value], own: ir.Value = own, here: ir.Value = here) -> list[ir.Value]:
            columns = [column(out, c) for c in indices]
            factors = [-one.load(at(b, c, here, dtype), dtype) for c in columns]

            def each(group: Sequence[Lanes]) -> None:
                for lanes in group:
                    x, wide = lanes.load(own, dtype), lanes.builder
                    others = [lanes.load(c, dtype) for c in columns]
                    for f, y, c in zip(factors, others, columns, strict=True):
                        lanes.store(wide.fma(wide.splat(f), x, y), c)

            crew.each(below, length, each)
            return []

        crew.each(below, length, divided)
        _grouped(b, b.add(j, I64(1)), width, taken)
        crew.meet()
