"""Jacobi's rotations of small matrices, written once: for a CPU's thread, whose lanes are matrices, and a GPU's block.

Rows stay where they lie; who meets whom in a round is a formula (`_row`). Of each pair are noted its rows, cosine and
sine, whether it is rotated, whether it was in this sweep, and what becomes of its diagonal elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I64, for_range, loop, offset, while_loop
from volta.xla_like.panels import SWEEPS

NOTES = 6
"""Numbers that are noted of each pair."""

_COSINE, _SINE, _ROTATED, _MOVED, _FIRST, _SECOND = range(NOTES)


class Crew(Protocol):
    """Who rotates one matrix, or one for each lane."""

    b: ir.IRBuilder

    @property
    def lanes(self) -> Builder:
        """What values are of."""

    def grid(self, rows: ir.Value, columns: ir.Value, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """Share out pairs of numbers, one by one."""

    def pairs(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Share out numbers, each to as many members as sum together."""

    def sum(self, count: ir.Value, term: Callable[[ir.Value], Value]) -> Value:
        """SUM of at most 64 terms."""

    def once(self) -> AbstractContextManager[None]:
        """What one of those does who sum together."""

    def meet(self) -> None:
        """What any of them wrote, all see."""

    def any(self, x: Value) -> ir.Value:
        """Whether it holds in some lane."""

    def at(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """Where an element of an array of near memory lies."""


def angle_of(w: Builder, xx: Value, yy: Value, xy: Value, rotated: Value) -> tuple[Value, Value, Value]:
    """Of what makes a pair orthogonal, as the definition has it: tangent, cosine and sine."""
    far = 1 / float(np.finfo(xx.dtype).eps)
    z = ((yy - xx) * 0.5) / w.select(rotated, xy, 1.0)
    size = abs(z)
    bound = w.min(size, w.const(xx.dtype, far))
    steep = size > far  # of both quotients the one that counts, by one division
    t = w.select(steep, w.const(xx.dtype, 0.5), 1.0) / w.select(steep, size, size + w.sqrt(w.fma(bound, bound, 1.0)))
    t = w.select(z < 0.0, -t, t)
    c = w.const(xx.dtype, 1.0) / w.sqrt(w.fma(t, t, 1.0))
    return t, c, t * c


def row_in_seat(b: ir.IRBuilder, n: ir.Value, number: ir.Value, seat: ir.Value) -> ir.Value:
    """Who of ``n`` rows sits there in this round: the first one stays, the others move along a ring of seats.

    The ring is seat 1, those of the second half upwards, and those of the first half downwards.
    """
    half = b.lshr(n, I64(1))
    second = b.icmp_signed(">=", seat, half)
    place = b.select(second, b.add(b.sub(seat, half), I64(1)), b.sub(n, seat))
    place = b.select(b.icmp_signed("==", seat, I64(1)), I64(0), place)
    moved, ring = b.add(place, number), b.sub(n, I64(1))
    moved = b.select(b.icmp_signed(">=", moved, ring), b.sub(moved, ring), moved)
    found = b.sub(b.add(half, moved), I64(1))
    found = b.select(b.icmp_signed("<=", moved, half), found, b.sub(n, moved))
    found = b.select(b.icmp_signed("==", moved, I64(0)), I64(1), found)
    stays = b.or_(b.icmp_signed("==", seat, I64(0)), b.icmp_signed("==", n, I64(2)))
    return b.select(stays, seat, found)


class Rotations:
    """The sweeps of a matrix ``x`` of ``count`` rows (an even number) and ``columns``, and what they make of the unit
    matrix, ``v``. ``notes`` has room for `NOTES` numbers a pair, ``seats`` for two int64; all of it is near memory."""

    def __init__(
        self, crew: Crew, dtype: str, x: ir.Value, v: ir.Value, notes: ir.Value, seats: ir.Value, count: ir.Value,
        columns: ir.Value,
    ) -> None:  # fmt: skip
        self.crew, self.b, self.lanes, self.dtype = crew, crew.b, crew.lanes, dtype
        self.x, self.v, self.notes, self.seats, self.count, self.columns = x, v, notes, seats, count, columns
        self.half = crew.b.lshr(count, I64(1))
        self.round: ir.Value = I64(0)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _element(self, array: ir.Value, row: ir.Value, column: ir.Value, width: ir.Value) -> ir.Value:
        return self.crew.at(array, self.b.add(self.b.mul(row, width), column))

    def _read(self, place: ir.Value) -> Value:
        return self.lanes.load(place, self.dtype)

    def _note(self, pair: ir.Value, which: int) -> ir.Value:
        return self.crew.at(self.notes, self.b.add(self.b.mul(pair, I64(NOTES)), I64(which)))

    def _noted(self, pair: ir.Value, *which: int) -> list[Value]:
        return [self._read(self._note(pair, k)) for k in which]

    def _row(self, seat: ir.Value) -> ir.Value:
        return row_in_seat(self.b, self.count, self.round, seat)

    def _seat(self, pair: ir.Value, which: int) -> ir.Value:
        return offset(self.b, self.seats, self.b.add(self.b.shl(pair, I64(4)), I64(8 * which)))

    def _seated(self, pair: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The rows of a pair in this round, as they are noted."""
        b = self.b
        first, second = (b.load(self._seat(pair, k), align=8, typ=I64) for k in range(2))
        return first, second

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _rotated(self, c: Value, s: Value, on: Value, x: Value, y: Value) -> tuple[Value, Value]:
        w = self.lanes
        first, second = w.fma(c, x, -(s * y)), w.fma(c, y, s * x)
        return w.select(on, first, x), w.select(on, second, y)

    def _write_down(self, pair: ir.Value, rows: Sequence[ir.Value], c: Value, s: Value, rotated: Value) -> None:
        w = self.lanes
        for k, row in enumerate(rows):
            self.b.store(row, self._seat(pair, k), align=8)
        (moved,) = self._noted(pair, _MOVED)
        flag = w.select(rotated, w.const(self.dtype, 1), 0)
        for which, x in ((_COSINE, c), (_SINE, s), (_ROTATED, flag), (_MOVED, w.select(rotated, flag, moved))):
            w.store(x, self._note(pair, which))

    def _rows(self, array: ir.Value, width: ir.Value) -> None:
        """Rotate the pairs of rows."""

        def turn(pair: ir.Value, column: ir.Value) -> None:
            places = [self._element(array, row, column, width) for row in self._seated(pair)]
            c, s, on = self._noted(pair, _COSINE, _SINE, _ROTATED)
            pairs = zip(self._rotated(c, s, on != 0.0, *map(self._read, places)), places, strict=True)
            for x, place in pairs:
                self.lanes.store(x, place)

        self.crew.grid(self.half, width, turn)

    def symmetric_round(self, least: Value) -> None:
        """Pairs whose common element is above ``least`` are rotated, rows and columns."""
        b, w, n, half = self.b, self.lanes, self.count, self.half

        def angle(pair: ir.Value, _: ir.Value) -> None:
            p, q = (self._row(seat) for seat in (pair, b.add(pair, half)))
            xx, yy, xy = (self._read(self._element(self.x, i, j, n)) for i, j in ((p, p), (q, q), (p, q)))
            rotated = abs(xy) > least
            t, c, s = angle_of(self.lanes, xx, yy, xy, rotated)
            change = w.select(rotated, t * xy, 0.0)
            self._write_down(pair, (p, q), c, s, rotated)
            w.store(xx - change, self._note(pair, _FIRST))
            w.store(yy + change, self._note(pair, _SECOND))

        def turn(upper: ir.Value, left: ir.Value) -> None:
            (p, q), (r, t) = self._seated(upper), self._seated(left)
            places = [self._element(self.x, i, j, n) for i, j in ((p, r), (p, t), (q, r), (q, t))]
            first, second, third, last = map(self._read, places)
            c, s, on = self._noted(upper, _COSINE, _SINE, _ROTATED)
            on = on != 0.0
            first, third = self._rotated(c, s, on, first, third)
            second, last = self._rotated(c, s, on, second, last)
            c, s, across = self._noted(left, _COSINE, _SINE, _ROTATED)
            first, second = self._rotated(c, s, across != 0.0, first, second)
            third, last = self._rotated(c, s, across != 0.0, third, last)
            same = w.splat(Builder(b, 1).value(b.icmp_signed("==", upper, left), "bool"))
            one, other = self._noted(upper, _FIRST, _SECOND)
            first, last = w.select(same, one, first), w.select(same, other, last)
            second, third = (w.select(same & on, 0.0, x) for x in (second, third))
            for x, place in zip((first, second, third, last), places, strict=True):
                w.store(x, place)

        self.crew.grid(half, I64(1), angle)
        self.crew.meet()
        self.crew.grid(half, half, turn)
        self._rows(self.v, n)
        self.crew.meet()

    def row_round(self, least: Value) -> None:
        """Pairs whose product is above ``least`` of their lengths are rotated."""
        w, columns = self.lanes, self.columns

        def angle(pair: ir.Value) -> None:
            p, q = (self._row(seat) for seat in (pair, self.b.add(pair, self.half)))

            def total(one: ir.Value, other: ir.Value) -> Value:
                def term(k: ir.Value) -> Value:
                    return self._read(self._element(self.x, one, k, columns)) * self._read(
                        self._element(self.x, other, k, columns)
                    )

                return self.crew.sum(columns, term)

            xx, yy, xy = total(p, p), total(q, q), total(p, q)
            rotated = abs(xy) > w.sqrt(xx) * w.sqrt(yy) * least
            _, c, s = angle_of(self.lanes, xx, yy, xy, rotated)
            with self.crew.once():
                self._write_down(pair, (p, q), c, s, rotated)

        self.crew.pairs(self.half, angle)
        self.crew.meet()
        self._rows(self.x, columns)
        self._rows(self.v, self.count)
        self.crew.meet()

    def sweeps(self, symmetric: bool, least: Value) -> None:
        """Sweeps of n − 1 rounds until one has rotated no pair."""
        b, w = self.b, self.lanes
        with b.goto_entry_block():
            number, going = b.alloca(I64), b.alloca(ir.IntType(1))

        def unit(row: ir.Value, column: ir.Value) -> None:
            on = w.splat(Builder(b, 1).value(b.icmp_signed("==", row, column), "bool"))
            place = self._element(self.v, row, column, self.count)
            w.store(w.select(on, w.const(self.dtype, 1), 0), place)

        self.crew.grid(self.count, self.count, unit)
        b.store(I64(0), number)
        b.store(ir.IntType(1)(1), going)

        def sweep() -> None:
            self.crew.grid(self.half, I64(1), lambda pair, _: w.store(w.const(self.dtype, 0), self._note(pair, _MOVED)))
            self.crew.meet()
            with for_range(b, 0, b.sub(self.count, I64(1))) as i:
                self.round = i
                (self.symmetric_round if symmetric else self.row_round)(least)
            with loop(b, 0, self.half, 1, [ir.IntType(1)(0)]) as it:
                moved = self.crew.any(self._noted(it.index, _MOVED)[0] != 0.0)
                it.advance(b.or_(it.values[0], moved))
            b.store(it.results[0], going)
            b.store(b.add(b.load(number, typ=I64), I64(1)), number)
            self.crew.meet()

        def on() -> ir.Value:
            few = b.icmp_signed("<", b.load(number, typ=I64), I64(SWEEPS))
            return b.and_(few, b.load(going, typ=ir.IntType(1)))

        while_loop(b, on, sweep)
