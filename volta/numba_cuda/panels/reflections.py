"""QR's panels: a warp holds some columns in registers, and what is left of long ones in shared memory.

What needs a whole column, its own warp computes; what is divided, all threads share: a division takes as long as some
thirty products. The vector of a reflection lies in shared memory; a warp reads an element of it for all its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, for_range, if_then, load_args, loop, minimum
from volta.emit.panel_tasks import ARRAYS
from volta.emit.panels import at
from volta.emit.reducers import LANES, Reducer
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    shuffle,
    thread_index,
)
from volta.numba_cuda.panels.registers import Elements, key_of, number, over_warp, size_key
from volta.xla_like.panels import PanelSpec

_GROUP = 8
"""Elements that a lane passes over where the column is shorter."""

_WARPS = 16
"""Of a block at most. With 32 each reads the vector for one column, with 8 fewer threads share divisions (seen on an
H200, 512, 1,024 and 2,048 rows: 1.72, 4.66 and 15.1 ms with 32, 1.54, 4.00 and 11.8 with 16, 1.67 and 4.38 with 8)."""

_NEAR = {4: (2, 8, 40), 8: (2, 8, 24)}
"""Elements of a column that a lane holds, by their size: as many as there are registers for."""

_SIZE, _DIVISOR, _FACTOR, _NOTES = range(4)
"""What a column's warp says of it: its largest size, what the vector is divided by, and the factor."""


@attrs.frozen
class Shape:
    """What a kernel is written for: ``size`` columns, and how many elements of one a lane holds in registers."""

    size: int
    near: int

    @property
    def warps(self) -> int:
        return min(self.size, _WARPS)

    @property
    def slots(self) -> int:
        """Columns of a warp: a slot's are neighbours, so that all warps have some as long as there are any."""
        return self.size // self.warps

    @property
    def step(self) -> int:
        """Rows are passed over in multiples of this."""
        return WARP * min(self.near, _GROUP)


def shape_for(size: int, length: int, itemsize: int) -> Shape:
    most = _NEAR[itemsize][-1]
    return Shape(size, next(near for near in _NEAR[itemsize] if length <= near * WARP or near == most))


def shared_for(shape: Shape, length: int, itemsize: int) -> int:
    """Bytes of dynamic shared memory: two vectors, what is said of a column, and what of each is not in registers."""
    rows = -(-length // shape.step) * shape.step
    return (2 * rows + _NOTES + shape.size * max(0, rows - shape.near * WARP)) * itemsize


def build(module: ir.Module, name: str, spec: PanelSpec, shape: Shape) -> ir.Function:
    """A block has a panel. Args: the arrays, then width and length."""
    function, b = new_entry(module, name, WARP * shape.warps)
    *addresses, width, length = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    arrays = [device_pointer(b, x) for x in addresses]
    _Panel(b, spec, shape, width, length).run(*arrays)
    b.ret_void()
    return function


@attrs.frozen(eq=False)
class _Row:
    """A row that a lane has of its warp's columns: its number, less the lane's, and the element of each slot.

    Rows that are not there hold +0, and the vector's -0: so their products are what changes no sum.
    """

    number: Value
    get: Callable[[int], Value]
    set: Callable[[int, Value], None]


class _Panel:
    def __init__(self, b: ir.IRBuilder, spec: PanelSpec, shape: Shape, width: ir.Value, length: ir.Value) -> None:
        self.b, self.one, self.dtype, self.shape = b, Builder(b, 1), spec.dtype.name, shape
        self.width, self.length, self.thread = width, length, thread_index(b)
        self.lane, self.warp = b.and_(self.thread, I64(WARP - 1)), b.lshr(self.thread, I64(WARP.bit_length() - 1))
        self.near = [Elements(b, self.dtype, shape.near) for _ in range(shape.slots)]
        self.rows = b.and_(b.add(length, I64(shape.step - 1)), I64(-shape.step))
        self.vectors = dynamic_shared(b.module, b)
        self.notes = at(b, self.vectors, b.mul(self.rows, I64(2)), self.dtype)
        far, each = at(b, self.notes, I64(_NOTES), self.dtype), b.sub(self.rows, I64(shape.near * WARP))
        self.far = [  # where the lane's row 0 would be
            at(b, far, b.add(b.mul(self._column(k), each), b.sub(self.lane, I64(shape.near * WARP))), self.dtype)
            for k in range(shape.slots)
        ]

    def _column(self, slot: int) -> ir.Value:
        return self.b.add(self.warp, I64(slot * self.shape.warps))

    def _in_registers(self, k: int) -> _Row:
        number_ = self.one.const("int32", k * WARP)
        return _Row(number_, lambda slot: self.near[slot][k], lambda slot, x: self.near[slot].__setitem__(k, x))

    def _in_memory(self, row: ir.Value) -> _Row:
        places = [at(self.b, far, row, self.dtype) for far in self.far]
        return _Row(
            number(self.one, row), lambda slot: self.one.load(places[slot], self.dtype),
            lambda slot, x: self.one.store(x, places[slot]),
        )  # fmt: skip

    def each(
        self, body: Callable[..., Sequence[Value]], init: Sequence[Value] = (), dtypes: Sequence[str] = ()
    ) -> list[Value]:
        """``body(row of an even lane of SUM, of the odd one, *values)`` for all of a lane's, in ascending order."""
        b, one = self.b, self.one
        state = [Elements(b, d, 1) for d in dtypes]
        for x, value in zip(state, init, strict=True):
            x[0] = value
        for k in range(0, self.shape.near, _GROUP):
            with if_then(b, b.icmp_signed(">", self.rows, I64(k * WARP))):
                for i in range(k, min(k + _GROUP, self.shape.near), 2):
                    found = body(self._in_registers(i), self._in_registers(i + 1), *(x[0] for x in state))
                    for x, value in zip(state, found, strict=True):
                        x[0] = value
        with loop(b, self.shape.near * WARP, self.rows, LANES, [x[0].ir for x in state]) as it:
            given = [one.value(x, d) for x, d in zip(it.values, dtypes, strict=True)]
            pair = self._in_memory(it.index), self._in_memory(b.add(it.index, I64(WARP)))
            it.advance(*(x.ir for x in body(*pair, *given)))
        return [one.value(x, d) for x, d in zip(it.results, dtypes, strict=True)]

    def all(self, body: Callable[[_Row], None]) -> None:
        """``body`` for each row of a lane."""

        def both(x: _Row, y: _Row) -> list[Value]:
            body(x)
            body(y)
            return []

        self.each(both)

    def sums(self, count: int, terms: Callable[[_Row], Sequence[Value]]) -> list[Value]:
        """SUM of each of so many terms of a row: a lane has two of the 64 lanes."""
        one, reducer = self.one, Reducer("sum", self.dtype)
        (nothing,) = reducer.identity(one)

        def added(x: _Row, y: _Row, *totals: Value) -> list[Value]:
            return [total + term for total, term in zip(totals, (*terms(x), *terms(y)), strict=True)]

        found = self.each(added, [nothing] * 2 * count, [self.dtype] * 2 * count)
        both = [even + odd for even, odd in zip(found[:count], found[count:], strict=True)]
        return list(over_warp(self.b, lambda x, y: [p + q for p, q in zip(x, y, strict=True)], both))

    def run(self, source: ir.Value, first: ir.Value, out: ir.Value, factors: ir.Value) -> None:
        b, one, zero = self.b, self.one, self.one.const(self.dtype, 0)
        start, item = b.sext(b.load(first, align=4, typ=I32), I64), block_index(b)
        left = number(one, self.length) - number(one, self.lane)
        own = [b.icmp_signed("<", self._column(k), self.width) for k in range(self.shape.slots)]
        panel = b.mul(item, self.width)
        begins = [
            b.add(b.mul(b.add(panel, self._column(k)), self.length), self.lane) for k in range(self.shape.slots)
        ]  # fmt: skip

        def read(x: _Row) -> None:
            for k, begin in enumerate(begins):
                there = b.and_(own[k], (left > x.number).ir)
                index = b.select(there, b.add(begin, b.sext(x.number.ir, I64)), I64(0))
                found = one.load(at(b, source, index, self.dtype), self.dtype)
                x.set(k, one.select(one.value(there, "bool"), found, zero))

        def write(x: _Row) -> None:
            for k, begin in enumerate(begins):
                with if_then(b, b.and_(own[k], (left > x.number).ir)):
                    one.store(x.get(k), at(b, out, b.add(begin, b.sext(x.number.ir, I64)), self.dtype))

        self.all(read)
        for slot in range(self.shape.slots):
            before = slot * self.shape.warps
            with for_range(b, 0, minimum(b, b.sub(self.width, I64(before)), self.shape.warps)) as w:
                j = b.add(w, I64(before))
                whole = at(b, self.vectors, b.mul(b.and_(w, I64(1)), self.rows), self.dtype)
                factor_at = at(b, factors, b.add(panel, j), self.dtype)
                self._reflect(slot, whole, b.add(start, j), b.icmp_signed("==", self.warp, w), factor_at)
                with if_then(b, b.icmp_signed("<", b.add(j, I64(1)), self.width)):
                    self._behind(slot, whole, b.icmp_signed(">", self.warp, w))
        self.all(write)

    def _element(self, whole: ir.Value, x: _Row) -> ir.Value:
        """Where the vector's element of a row is."""
        return at(self.b, at(self.b, whole, self.lane, self.dtype), self.b.sext(x.number.ir, I64), self.dtype)

    def _behind(self, slot: int, whole: ir.Value, takes_part: ir.Value) -> None:
        """Reflect the columns behind: those of later slots, and of this one where the warp ``takes_part``."""
        one, slots = self.one, range(slot, self.shape.slots)

        def products(x: _Row) -> list[Value]:
            v = one.load(self._element(whole, x), self.dtype)
            return [x.get(k) * v for k in slots]

        factor, later = self._noted(_FACTOR), one.value(takes_part, "bool")
        shares = [-(total * factor) for total in self.sums(len(slots), products)]

        def taken(x: _Row) -> None:
            v = one.load(self._element(whole, x), self.dtype)
            for k, share in zip(slots, shares, strict=True):
                left = one.fma(share, v, x.get(k))
                x.set(k, one.select(later, left, x.get(k)) if k == slot else left)

        self.all(taken)

    def _noted(self, which: int) -> Value:
        return self.one.load(at(self.b, self.notes, I64(which), self.dtype), self.dtype)

    def _note(self, notes: dict[int, Value]) -> None:
        """One lane of a warp notes for all threads."""
        with if_then(self.b, self.b.icmp_signed("==", self.lane, I64(0))):
            for which, x in notes.items():
                self.one.store(x, at(self.b, self.notes, I64(which), self.dtype))

    def _divided(
        self, whole: ir.Value, divisor: int, is_divided: Callable[[Value], Value], other: Callable[[Value], Value]
    ) -> None:
        """Divide a vector's elements by what is noted, all threads together, which meet before and after; in place of
        those that are not divided is something else. (These are divided too, but not 0, which takes longer.)"""
        b, one = self.b, self.one
        barrier(b)
        by = self._noted(divisor)
        with loop(b, self.thread, self.rows, WARP * self.shape.warps) as it:
            place, row = at(b, whole, it.index, self.dtype), number(one, it.index)
            quotient = one.select(is_divided(row), one.load(place, self.dtype), by) / by
            one.store(one.select(is_divided(row), quotient, other(row)), place)
        barrier(b)

    def _reflect(self, slot: int, whole: ir.Value, at_row: ir.Value, owns: ir.Value, factor_at: ir.Value) -> None:
        """Reflect a warp's column onto its element ``at_row``, and leave the vector and the factor for all."""
        b, one, dtype = self.b, self.one, self.dtype
        zero, unit, diagonal = one.const(dtype, 0), one.const(dtype, 1), number(one, at_row)
        here, length = diagonal - number(one, self.lane), number(one, self.length)
        element, size, below, becomes = (Elements(b, dtype, 1) for _ in range(4))
        with if_then(b, owns):
            size[0], below[0], element[0] = self._sizes(slot, at_row, here)
            self._note({_SIZE: size[0]})
            self.all(lambda x: one.store(x.get(slot), self._element(whole, x)))
        self._divided(whole, _SIZE, lambda row: (row >= diagonal) & (row < length), lambda row: zero)
        with if_then(b, owns):

            def square(x: _Row) -> list[Value]:
                scaled = one.load(self._element(whole, x), dtype)
                return [scaled * scaled]

            long = one.sqrt(self.sums(1, square)[0])
            first, done = element[0] / size[0], below[0] / size[0] == 0
            last = one.select(done, first, one.select(first < 0, long, -long))
            gap = first - last
            factor = one.select(done, 0, -gap / one.select(done, 1, last))
            self._note({_DIVISOR: one.select(done, 1, gap), _FACTOR: factor})
            becomes[0] = one.select(done, element[0], last * size[0])
            with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
                one.store(factor, factor_at)

        def undivided(row: Value) -> Value:
            return one.select(row < length, one.select(row == diagonal, unit, zero), -0.0)

        self._divided(whole, _DIVISOR, lambda row: (row > diagonal) & (row < length), undivided)
        with if_then(b, owns):

            def written(x: _Row) -> None:
                v = one.load(self._element(whole, x), dtype)
                own = one.select(x.number == here, becomes[0], x.get(slot))
                x.set(slot, one.select(x.number > here, v, own))

            self.all(written)

    def _sizes(self, slot: int, at_row: ir.Value, here: Value) -> tuple[Value, Value, Value]:
        """Of a column's open elements the largest size, that of those behind the first, and the first."""
        b, one, dtype, kind = self.b, self.one, self.dtype, key_of(self.dtype)

        def joined(x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
            return [one.select(p > q, p, q) for p, q in zip(x, y, strict=True)]

        def larger(x: _Row, y: _Row, size: Value, below: Value, first: Value) -> list[Value]:
            for z in (x, y):
                own = size_key(one, z.get(slot))
                both = [one.select(z.number >= here, own, 0), one.select(z.number > here, own, 0)]
                size, below = joined([size, below], both)
                first = one.select(z.number == here, z.get(slot), first)
            return [size, below, first]

        none = one.const(kind, 0)
        *sizes, first = self.each(larger, [none, none, one.const(dtype, 0)], [kind, kind, dtype])
        size, below = (one.bitcast(x, dtype) for x in over_warp(b, joined, sizes))
        first = shuffle(b, "idx", first, b.trunc(b.and_(at_row, I64(WARP - 1)), I32))
        return one.select(size == 0, 1, size), below, first
