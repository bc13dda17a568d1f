"""Jacobi's rotations of at most 32 rows: a lane has a row of a matrix, and of what rotates it, in registers.

All rows but the first move along a ring of seats. Lanes are places of that ring at the start, the last lane has the row
that stays: so rows stay in their lanes, and whom a lane meets in a round is a difference. Both lanes of a pair know
what rotates them, and each turns its own row; the other one's elements it is given by shuffles. A warp has as many
matrices as it has room for, and rounds in which none of them rotates a pair end when that is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, for_range, if_then, load_args, minimum, offset, while_loop
from volta.emit.panels import at
from volta.emit.rotations import angle_of
from volta.numba_cuda.codegen.ptx_ops import ballot
from volta.numba_cuda.codegen.threads import (
    WARP,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    shuffle,
    thread_index,
    warp_barrier,
)
from volta.numba_cuda.panels.registers import Elements, lanes_for, number, read_row, summed, write_row
from volta.xla_like.panels import SWEEPS, PanelSpec


def build(module: ir.Module, name: str, spec: PanelSpec, rows: int, columns: int, piece: int) -> ir.Function:
    """A block is a warp, which reads and writes ``piece`` bytes of a row at once. Args: matrices, bounds, rotated
    matrices, rotations; then how many matrices there are."""
    function, b = new_entry(module, name, WARP)
    *addresses, batch = load_args(b, function.args[0], 5)
    arrays = [device_pointer(b, x) for x in addresses]
    kind = _Symmetric if spec.kind == "symmetric" else _Rows
    kind(b, name, spec.dtype.name, rows, columns).run(arrays, batch, piece)
    b.ret_void()
    return function


class _Lanes:
    """A warp's matrices: what lanes hold, and how they go through sweeps. A round is a subclass's."""

    def __init__(self, b: ir.IRBuilder, name: str, dtype: str, rows: int, columns: int) -> None:
        self.b, self.one, self.name, self.dtype = b, Builder(b, 1), name, dtype
        self.n, self.half, self.ring, self.group = rows, rows // 2, rows - 1, lanes_for(rows)
        thread = number(self.one, thread_index(b))
        self.lane, self.first_lane = thread & (self.group - 1), thread & -self.group
        self.stays, self.there = self.lane == self.ring, self.lane < rows
        self.x, self.v = Elements(b, dtype, columns), Elements(b, dtype, rows)

    def _row(self) -> Value:
        """The row of a lane; of those that have none, some row."""
        place, w = self.one.min(self.lane, self.one.const("int32", self.ring)), self.one
        found = w.select(place > self.half, self.n - place, place + (self.half - 1))
        return w.select(self.stays | ~self.there, 0, w.select(place == 0, 1, found))

    def run(self, arrays: Sequence[ir.Value], batch: ir.Value, piece: int) -> None:
        b, one, (source, bounds, out, vectors) = self.b, self.one, arrays
        warp_first = b.mul(block_index(b), I64(WARP // self.group))
        item = b.add(warp_first, b.zext((self.first_lane >> (self.group.bit_length() - 1)).ir, I64))
        own = b.and_(b.icmp_signed("<", item, batch), self.there.ir)
        item, row = minimum(b, item, b.sub(batch, I64(1))), self._row()
        whole = b.add(b.mul(item, I64(self.n)), b.zext(row.ir, I64))
        x, v = (b.mul(whole, I64(len(elements))) for elements in (self.x, self.v))
        seats = {column: k for k, column in enumerate(self._columns())}
        for column, element in read_row(one, at(b, source, x, self.dtype), self.dtype, 0, len(self.x), piece):
            self.x[seats[column]] = element
        self.begin(row)
        for k in range(self.n):
            self.v[k] = one.select(row == k, one.const(self.dtype, 1), 0)
        self._sweeps(one.load(at(b, bounds, item, self.dtype), self.dtype))
        with if_then(b, own):
            found = [self.last(seats[column], column, row) for column in range(len(self.x))]
            for array, elements in ((at(b, out, x, self.dtype), found), (at(b, vectors, v, self.dtype), list(self.v))):
                write_row(one, array, elements, 0, piece)

    def _sweeps(self, least: Value) -> None:
        """Until one has rotated no pair of the warp's matrices."""
        b, one = self.b, self.one
        number_, moved = (Elements(b, "int32", 1) for _ in range(2))
        number_[0], moved[0] = one.const("int32", 0), one.const("int32", 1)

        def sweep() -> None:
            moved[0] = one.const("int32", 0)
            with for_range(b, 0, I64(self.ring)) as i:
                moved[0] = moved[0] | self.round(number(one, i), least)
            number_[0] = number_[0] + 1

        while_loop(b, lambda: ((number_[0] < SWEEPS) & (moved[0] != 0)).ir, sweep)

    def met(self, i: Value) -> tuple[Value, Value, Value]:
        """In a round: the lane's place in the ring, whether it has the first row of its pair, and the other's lane."""
        w, ring = self.one, self.ring
        place = self.lane - i
        place = w.select(place < 0, place + ring, place)
        alone = w.select(i + 1 >= ring, i + 1 - ring, i + 1)  # who meets the row that stays
        other = alone * 2 - self.lane
        other = w.select(other >= ring, other - ring, w.select(other < 0, other + ring, other))
        other = w.select(self.lane == alone, ring, w.select(self.stays, alone, other))
        first = self.stays | (place > self.half)
        return place, first | (place == 0) if self.n > 2 else first, self.first_lane | other

    def given(self, x: Value, lane: Value) -> Value:
        return shuffle(self.b, "idx", x, lane.ir)

    def turned(self, on: Value, c: Value, s: Value, *which: tuple[Elements, Sequence[Value]]) -> None:
        """Turn the lane's rows, where ``on``; ``s`` has the sign that it has for this one of the pair."""
        with if_then(self.b, on.ir):
            for own, theirs in which:
                for k, y in enumerate(theirs):
                    own[k] = self.one.fma(c, own[k], s * y)

    def _columns(self) -> Sequence[int]:
        """The column of each element of a lane, at the start and after each sweep."""
        raise NotImplementedError

    def begin(self, row: Value) -> None:
        """Before the first sweep."""

    def last(self, k: int, column: int, row: Value) -> Value:
        """An element, after the last sweep."""
        return self.x[k]

    def round(self, i: Value, least: Value) -> Value:
        """The lanes of the warp that were turned."""
        raise NotImplementedError


class _Rows(_Lanes):
    """Rows that are made orthogonal. The SUM of a row's squares is that of the last time when something was turned."""

    def __init__(self, b: ir.IRBuilder, name: str, dtype: str, rows: int, columns: int) -> None:
        super().__init__(b, name, dtype, rows, columns)
        self.square = Elements(b, dtype, 1)

    def _columns(self) -> Sequence[int]:
        return range(len(self.x))

    def begin(self, row: Value) -> None:
        self.square[0] = summed([x * x for x in self.x])

    def round(self, i: Value, least: Value) -> Value:
        one = self.one
        _, first, other = self.met(i)
        theirs = [self.given(x, other) for x in self.x]
        xy = summed([x * y for x, y in zip(self.x, theirs, strict=True)])
        own = self.square[0]
        square = self.given(own, other)
        rotated = self.there & (abs(xy) > one.sqrt(own) * one.sqrt(square) * least)
        some = ballot(self.b, rotated.ir)
        with if_then(self.b, self.b.icmp_signed("!=", some, some.type(0))):
            also = [self.given(v, other) for v in self.v]
            _, c, s = angle_of(one, one.select(first, own, square), one.select(first, square, own), xy, rotated)
            self.turned(rotated, c, one.select(first, -s, s), (self.x, theirs), (self.v, also))
            self.square[0] = summed([x * x for x in self.x])
        return one.value(some, "int32")


class _Symmetric(_Lanes):
    """Rows and columns of symmetric matrices. A lane's elements are seats: columns move by one after each round. The
    diagonal elements go by themselves: nothing else reads what their places hold. Cosines and sines of all pairs lie in
    shared memory, double buffered: nobody writes what others still read. Where a pair is not turned the cosine is 0.
    """

    def __init__(self, b: ir.IRBuilder, name: str, dtype: str, rows: int, columns: int) -> None:
        super().__init__(b, name, dtype, rows, columns)
        self.diagonal, n = Elements(b, dtype, 1), rows
        self.pairs = [(n - 1, min(1, n - 2)), (0, 2), *((n - k, k + 1) for k in range(2, self.half))][: self.half]
        size = -(-2 * self.half * item_size(dtype) // 16) * 16
        self.turn = WARP // self.group * size
        space = shared_memory(b.module, b, f"{name}_turns", 2 * self.turn)
        group = b.zext((self.first_lane >> (self.group.bit_length() - 1)).ir, I64)
        self.notes = offset(b, space, b.mul(group, I64(size)))

    def _columns(self) -> Sequence[int]:
        n, half = self.n, self.half
        return [1, *(half + k - 1 if k <= half else n - k for k in range(1, n - 1)), 0][-n:]

    def begin(self, row: Value) -> None:
        self.diagonal[0] = self._chosen(row, [x for _, x in sorted(zip(self._columns(), self.x, strict=True))])

    def last(self, k: int, column: int, row: Value) -> Value:
        return self.one.select(row == column, self.diagonal[0], self.x[k])

    def _chosen(self, which: Value, among: Sequence[Value]) -> Value:
        """One of some values, by its number: bit after bit."""
        bit = 0
        while len(among) > 1:
            odd = (which & (1 << bit)) != 0
            low, high, rest = among[::2], among[1::2], among[len(among) - len(among) % 2 :]
            pairs = zip(low[: len(high)], high, strict=True)
            among, bit = [*(self.one.select(odd, y, x) for x, y in pairs), *rest], bit + 1
        return among[0]

    def round(self, i: Value, least: Value) -> Value:
        b, one, n, zero = self.b, self.one, self.n, self.one.const(self.dtype, 0)
        place, first, other = self.met(i)
        pair = one.select(place > self.half, n - place, place - 1)
        pair = one.select(place == 0, min(1, self.half - 1), pair)
        pair = one.select(self.stays | (place == 1), 0, pair)
        own = self._chosen(pair, [self.x[k] for _, k in self.pairs])
        theirs, diagonal = self.given(own, other), self.diagonal[0]
        xy = one.select(first, own, theirs)
        rotated = self.there & (abs(xy) > least)
        square = self.given(diagonal, other)
        some = ballot(b, rotated.ir)
        change = Elements(b, self.dtype, 1)
        change[0] = zero
        with if_then(b, b.icmp_signed("!=", some, some.type(0))):
            rows = [self.given(x, other) for x in self.x]
            also = [self.given(v, other) for v in self.v]
            xx, yy = one.select(first, diagonal, square), one.select(first, square, diagonal)
            t, c, s = angle_of(one, xx, yy, xy, rotated)
            change[0] = one.select(rotated, t * xy, zero)
            now = offset(b, self.notes, b.mul(b.zext((i & 1).ir, I64), I64(self.turn)))
            with if_then(b, (first & self.there).ir):
                to = at(b, now, b.mul(b.zext(pair.ir, I64), I64(2)), self.dtype)
                one.store(one.select(rotated, c, zero), to)
                one.store(s, at(b, to, I64(1), self.dtype))
            warp_barrier(b)
            self.turned(rotated, c, one.select(first, -s, s), (self.x, rows), (self.v, also))
            self._columns_turned(now, one.select(rotated, pair, -1))
        self.diagonal[0] = one.select(first, diagonal - change[0], diagonal + change[0])
        seats = [self.x[k] for k in range(self.ring)]
        for k, x in enumerate([*seats[1:], seats[0]]):
            self.x[k] = x
        return one.value(some, "int32")

    def _columns_turned(self, notes: ir.Value, own: Value) -> None:
        """Turn the columns of all pairs; ``own`` is the lane's pair, if that is turned."""
        one = self.one
        noted = read_row(one, notes, self.dtype, 0, 2 * self.half)
        for k, (i, j) in enumerate(self.pairs):
            x, y, (_, c), (_, s) = self.x[i], self.x[j], next(noted), next(noted)
            on, met = c != 0.0, own == k
            self.x[i] = one.select(met, 0, one.select(on, one.fma(c, x, -(s * y)), x))
            self.x[j] = one.select(met, 0, one.select(on, one.fma(c, y, s * x), y))
