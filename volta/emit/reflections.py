"""A panel of QR: each column is reflected onto its diagonal element, with those behind it. See `volta.emit.panels`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llvmlite import ir

from volta.emit import panels
from volta.emit.builder import Builder, Value
from volta.emit.loops import I64, for_range
from volta.emit.panels import Lanes, at


class Crew(panels.Crew, Protocol):
    """Whoever works on one matrix, in groups that each have a column to themselves."""

    def columns(self, start: ir.Value | int, stop: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Share out columns among the groups."""

    def along(self, length: ir.Value, body: Callable[[Sequence[Lanes]], None]) -> None:
        """Share out a column in a group: ``body`` gets some elements, and reads before it writes."""

    def sum(self, length: ir.Value, term: Callable[[Lanes], Value], dtype: str) -> Value:
        """SUM of a column's terms, at most 4096; each group for itself."""

    def largest(self, length: ir.Value, values: Callable[[Lanes], Sequence[Value]], dtype: str) -> list[Value]:
        """The largest of each of some values of a column, NaN if one is; each group for itself."""


def reflect(
    crew: Crew, dtype: str, source: ir.Value, start: ir.Value, out: ir.Value, factors: ir.Value, width: ir.Value,
    length: ir.Value,
) -> None:  # fmt: skip
    """R's columns with the reflections' vectors below their diagonal, from row ``start`` on, and their factors."""
    b = crew.b

    def column(base: ir.Value, c: ir.Value) -> ir.Value:
        return at(b, base, b.mul(c, length), dtype)

    def copied(c: ir.Value) -> None:
        def some(group: Sequence[Lanes]) -> None:
            for x, lanes in [(lanes.load(column(source, c), dtype), lanes) for lanes in group]:
                lanes.store(x, column(out, c))

        crew.along(length, some)

    crew.columns(0, width, copied)
    crew.meet()
    with for_range(b, 0, width) as j:

        def behind(body: Callable[[ir.Value], None], j: ir.Value = j) -> None:
            crew.columns(b.add(j, I64(1)), width, lambda c: body(column(out, c)))

        _step(crew, dtype, column(out, j), b.add(start, j), at(b, factors, j, dtype), length, behind)


def _step(
    crew: Crew, dtype: str, own: ir.Value, here: ir.Value, factor_at: ir.Value, length: ir.Value,
    behind: Callable[[Callable[[ir.Value], None]], None],
) -> None:  # fmt: skip
    """Reflect one column onto its element ``here``, and those ``behind`` it."""
    b, one = crew.b, Builder(crew.b, 1)

    def place(lanes: Lanes) -> Value:
        return lanes.builder.splat(one.value(here, "int64"))

    def from_here(lanes: Lanes) -> Value:
        return lanes.builder.select(lanes.number >= place(lanes), lanes.load(own, dtype), lanes.builder.const(dtype, 0))

    def sizes(lanes: Lanes) -> list[Value]:
        x = from_here(lanes)
        return [abs(x), lanes.builder.select(lanes.number > place(lanes), abs(x), 0)]

    size, below = crew.largest(length, sizes, dtype)
    size = one.select(size == 0, 1, size)

    def square(lanes: Lanes) -> Value:
        scaled = from_here(lanes) / lanes.builder.splat(size)
        return scaled * scaled

    long = one.sqrt(crew.sum(length, square, dtype))
    element = one.load(at(b, own, here, dtype), dtype)
    first, done = element / size, below / size == 0
    last = one.select(done, first, one.select(first < 0, long, -long))
    gap = first - last
    factor = one.select(done, 0, -gap / one.select(done, 1, last))
    divisor, becomes = one.select(done, 1, gap), one.select(done, element, last * size)
    crew.meet()

    def written(group: Sequence[Lanes]) -> None:
        for lanes in group:
            w, x = lanes.builder, lanes.load(own, dtype)
            vector = x / w.splat(size) / w.splat(divisor)
            upper = w.select(lanes.number == place(lanes), w.splat(becomes), x)
            lanes.store(w.select(lanes.number > place(lanes), vector, upper), own)

    crew.each(0, length, written)
    with crew.alone():
        one.store(factor, factor_at)
    crew.meet()

    def vector(lanes: Lanes) -> Value:
        w = lanes.builder
        unit = w.select(lanes.number == place(lanes), w.const(dtype, 1), 0)
        return w.select(lanes.number > place(lanes), lanes.load(own, dtype), unit)

    def reflected(column: ir.Value) -> None:
        share = -(crew.sum(length, lambda lanes: lanes.load(column, dtype) * vector(lanes), dtype) * factor)

        def taken(group: Sequence[Lanes]) -> None:
            for lanes, v, x in [(lanes, vector(lanes), lanes.load(column, dtype)) for lanes in group]:
                lanes.store(lanes.builder.fma(lanes.builder.splat(share), v, x), column)

        crew.along(length, taken)

    behind(reflected)
    crew.meet()
