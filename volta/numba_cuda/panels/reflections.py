"""QR's panels: a warp holds a column in registers, and what is left of a long one in shared memory.

What needs a whole column, its own warp computes; what is divided, all threads share: a division takes as long as some
thirty products. The vector of a reflection lies in shared memory for all warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, for_range, if_then, load_args, loop
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

_SIZE, _DIVISOR, _FACTOR, _NOTES = range(4)
"""What a column's warp says of it: its largest size, what the vector is divided by, and the factor."""


@attrs.frozen
class Shape:
    """What a kernel is written for: ``size`` columns, and how many elements of one a lane holds in registers."""

    size: int
    near: int

    @property
    def step(self) -> int:
        """Rows are passed over in multiples of this."""
        return WARP * min(self.near, _GROUP)


def shape_for(size: int, length: int, itemsize: int) -> Shape:
    most = 128 // itemsize
    return Shape(size, next(near for near in (2, _GROUP, most) if length <= near * WARP or near == most))


def shared_for(shape: Shape, length: int, itemsize: int) -> int:
    """Bytes of dynamic shared memory: two vectors, what is said of a column, and what of each is not in registers."""
    rows = -(-length // shape.step) * shape.step
    return (2 * rows + _NOTES + shape.size * max(0, rows - shape.near * WARP)) * itemsize


def build(module: ir.Module, name: str, spec: PanelSpec, shape: Shape) -> ir.Function:
    """A block has a panel. Args: the arrays, then width and length."""
    function, b = new_entry(module, name, WARP * shape.size)
    *addresses, width, length = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    arrays = [device_pointer(b, x) for x in addresses]
    _Panel(b, spec, shape, width, length).run(*arrays)
    b.ret_void()
    return function


@attrs.frozen(eq=False)
class _Element:
    """An element of a warp's column that a lane has: its row, less the lane's number, and how it is read and written.

    Rows that are not there hold +0, and the vector's -0: so their products are what changes no sum.
    """

    row: Value
    get: Callable[[], Value]
    set: Callable[[Value], None]


class _Panel:
    def __init__(self, b: ir.IRBuilder, spec: PanelSpec, shape: Shape, width: ir.Value, length: ir.Value) -> None:
        self.b, self.one, self.dtype, self.shape = b, Builder(b, 1), spec.dtype.name, shape
        self.width, self.length, thread = width, length, thread_index(b)
        self.lane, self.column = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
        self.near = Elements(b, self.dtype, shape.near)
        self.rows = b.and_(b.add(length, I64(shape.step - 1)), I64(-shape.step))
        self.vectors = dynamic_shared(b.module, b)
        self.notes = at(b, self.vectors, b.mul(self.rows, I64(2)), self.dtype)
        begin = b.add(b.mul(self.column, b.sub(self.rows, I64(shape.near * WARP))), I64(_NOTES - shape.near * WARP))
        self.far = at(b, self.notes, b.add(begin, self.lane), self.dtype)  # where the lane's row 0 would be

    def _in_registers(self, k: int) -> _Element:
        return _Element(
            self.one.const("int32", k * WARP), lambda: self.near[k], lambda x: self.near.__setitem__(k, x)
        )  # fmt: skip

    def _in_memory(self, row: ir.Value) -> _Element:
        place = at(self.b, self.far, row, self.dtype)
        return _Element(
            number(self.one, row), lambda: self.one.load(place, self.dtype), lambda x: self.one.store(x, place)
        )  # fmt: skip

    def each(
        self, body: Callable[..., Sequence[Value]], init: Sequence[Value] = (), dtypes: Sequence[str] = ()
    ) -> list[Value]:
        """``body(element of an even lane of SUM, of the odd one, *values)`` for all of a lane's, in ascending order."""
        b, one = self.b, self.one
        state = [Elements(b, d, 1) for d in dtypes]
        for x, value in zip(state, init, strict=True):
            x[0] = value

        def some(k: int) -> None:
            for i in range(k, min(k + _GROUP, self.shape.near), 2):
                found = body(self._in_registers(i), self._in_registers(i + 1), *(x[0] for x in state))
                for x, value in zip(state, found, strict=True):
                    x[0] = value

        for k in range(0, self.shape.near, _GROUP):
            with if_then(b, b.icmp_signed(">", self.rows, I64(k * WARP))):
                some(k)
        with loop(b, self.shape.near * WARP, self.rows, LANES, [x[0].ir for x in state]) as it:
            given = [one.value(x, d) for x, d in zip(it.values, dtypes, strict=True)]
            pair = self._in_memory(it.index), self._in_memory(b.add(it.index, I64(WARP)))
            it.advance(*(x.ir for x in body(*pair, *given)))
        return [one.value(x, d) for x, d in zip(it.results, dtypes, strict=True)]

    def all(self, body: Callable[[_Element], None]) -> None:
        """``body`` for each element of a lane."""

        def both(x: _Element, y: _Element) -> list[Value]:
            body(x)
            body(y)
            return []

        self.each(both)

    def sum(self, term: Callable[[_Element], Value]) -> Value:
        """SUM of a column's terms: a lane has two of the 64 lanes."""
        one, reducer = self.one, Reducer("sum", self.dtype)
        (nothing,) = reducer.identity(one)
        even, odd = self.each(
            lambda x, y, even, odd: [even + term(x), odd + term(y)], [nothing] * 2, [self.dtype] * 2
        )  # fmt: skip
        (found,) = over_warp(self.b, lambda x, y: reducer.combine(one, tuple(x), tuple(y)), [even + odd])
        return found

    def run(self, source: ir.Value, first: ir.Value, out: ir.Value, factors: ir.Value) -> None:
        b, one = self.b, self.one
        start, item = b.sext(b.load(first, align=4, typ=I32), I64), block_index(b)
        mine = b.icmp_signed("<", self.column, self.width)
        begin = b.add(b.mul(b.add(b.mul(item, self.width), self.column), self.length), self.lane)
        left = number(one, self.length) - number(one, self.lane)
        zero = one.const(self.dtype, 0)

        def read(x: _Element) -> None:
            there = b.and_(mine, (left > x.row).ir)
            index = b.select(there, b.add(begin, b.sext(x.row.ir, I64)), I64(0))
            x.set(one.select(one.value(there, "bool"), one.load(at(b, source, index, self.dtype), self.dtype), zero))

        self.all(read)
        with for_range(b, 0, self.width) as j:
            here = b.add(start, j)
            whole = at(b, self.vectors, b.mul(b.and_(j, I64(1)), self.rows), self.dtype)
            vector, owns = at(b, whole, self.lane, self.dtype), b.icmp_signed("==", self.column, j)
            self._reflect(whole, vector, here, owns, at(b, factors, b.add(b.mul(item, self.width), j), self.dtype))
            with if_then(b, b.and_(mine, b.icmp_signed(">", self.column, j))):
                self._behind(vector)

        def write(x: _Element) -> None:
            with if_then(b, (left > x.row).ir):
                one.store(x.get(), at(b, out, b.add(begin, b.sext(x.row.ir, I64)), self.dtype))

        with if_then(b, mine):
            self.all(write)

    def _place(self, vector: ir.Value, x: _Element) -> ir.Value:
        return at(self.b, vector, self.b.sext(x.row.ir, I64), self.dtype)

    def _behind(self, vector: ir.Value) -> None:
        """Reflect a column behind."""
        one = self.one

        def v(x: _Element) -> Value:
            return one.load(self._place(vector, x), self.dtype)

        share = -(self.sum(lambda x: x.get() * v(x)) * self._noted(_FACTOR))
        self.all(lambda x: x.set(one.fma(share, v(x), x.get())))

    def _noted(self, which: int) -> Value:
        return self.one.load(at(self.b, self.notes, I64(which), self.dtype), self.dtype)

    def _note(self, notes: dict[int, Value]) -> None:
        """One lane of a warp notes for all threads."""
        with if_then(self.b, self.b.icmp_signed("==", self.lane, I64(0))):
            for which, x in notes.items():
                self.one.store(x, at(self.b, self.notes, I64(which), self.dtype))

    def _shared(self, whole: ir.Value, body: Callable[[ir.Value, Value], Value]) -> None:
        """``body(row, element)`` in place of each element of a vector; threads meet before and after."""
        b, one = self.b, self.one
        barrier(b)
        with loop(b, thread_index(b), self.rows, WARP * self.shape.size) as it:
            place = at(b, whole, it.index, self.dtype)
            one.store(body(it.index, one.load(place, self.dtype)), place)
        barrier(b)

    def _reflect(
        self, whole: ir.Value, vector: ir.Value, at_row: ir.Value, owns: ir.Value, factor_at: ir.Value
    ) -> None:
        """Reflect a warp's column onto its element ``at_row``, and leave the vector and the factor for all."""
        b, one, dtype = self.b, self.one, self.dtype
        zero, unit = one.const(dtype, 0), one.const(dtype, 1)
        own, size, below = Elements(b, dtype, 1), Elements(b, dtype, 1), Elements(b, dtype, 1)
        here = number(one, at_row) - number(one, self.lane)
        with if_then(b, owns):
            size[0], below[0], own[0] = self._sizes(at_row, here)
            self._note({_SIZE: size[0]})
            self.all(lambda x: one.store(one.select(x.row >= here, x.get(), zero), self._place(vector, x)))
        self._shared(whole, lambda row, x: x / self._noted(_SIZE))
        becomes = Elements(b, dtype, 1)
        with if_then(b, owns):

            def square(x: _Element) -> Value:
                scaled = one.load(self._place(vector, x), dtype)
                return scaled * scaled

            long = one.sqrt(self.sum(square))
            first, done = own[0] / size[0], below[0] / size[0] == 0
            last = one.select(done, first, one.select(first < 0, long, -long))
            gap = first - last
            factor = one.select(done, 0, -gap / one.select(done, 1, last))
            self._note({_DIVISOR: one.select(done, 1, gap), _FACTOR: factor})
            becomes[0] = one.select(done, own[0], last * size[0])
            with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
                one.store(factor, factor_at)

        def element(row: ir.Value, x: Value) -> Value:
            i, k = number(one, row), number(one, at_row)
            v = one.select(i > k, x / self._noted(_DIVISOR), one.select(i == k, unit, zero))
            return one.select(i < number(one, self.length), v, -0.0)

        self._shared(whole, element)
        with if_then(b, owns):

            def written(x: _Element) -> None:
                v = one.load(self._place(vector, x), dtype)
                x.set(one.select(x.row > here, v, one.select(x.row == here, becomes[0], x.get())))

            self.all(written)

    def _sizes(self, at_row: ir.Value, here: Value) -> tuple[Value, Value, Value]:
        """Of a column's open elements the largest size, that of those behind the first, and the first."""
        b, one, dtype, kind = self.b, self.one, self.dtype, key_of(self.dtype)

        def joined(x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
            return [one.select(p > q, p, q) for p, q in zip(x, y, strict=True)]

        def larger(x: _Element, y: _Element, size: Value, below: Value, first: Value) -> list[Value]:
            for z in (x, y):
                own = size_key(one, z.get())
                both = [one.select(z.row >= here, own, 0), one.select(z.row > here, own, 0)]
                size, below = joined([size, below], both)
                first = one.select(z.row == here, z.get(), first)
            return [size, below, first]

        none = one.const(kind, 0)
        *sizes, first = self.each(larger, [none, none, one.const(dtype, 0)], [kind, kind, dtype])
        size, below = (one.bitcast(x, dtype) for x in over_warp(b, joined, sizes))
        first = shuffle(b, "idx", first, b.trunc(b.and_(at_row, I64(WARP - 1)), I32))
        return one.select(size == 0, 1, size), below, first
