"""LU's panels: a thread holds a row in registers, and one more in shared memory where there are more rows than threads.

Rows stay with their threads. What changes places is the number that each has in the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I32, I64, if_then, load_args
from volta.emit.panel_tasks import ARRAYS
from volta.emit.panels import at
from volta.numba_cuda.codegen.threads import (
    WARP,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    shared_memory,
    thread_index,
)
from volta.numba_cuda.panels.registers import Elements, Most, meet, number, read_row, write_row
from volta.xla_like.panels import PanelSpec

_THREADS = {4: (32, 128, 512, 1024), 8: (32, 128, 512)}
"""Threads of a block, by the size of an element: each has registers for a row of 32. Few numbers of them, as each is a
kernel to compile; a block of twice as many threads takes a tenth longer."""


@attrs.frozen
class Shape:
    """What a kernel is written for: ``size`` columns, threads, and how many rows a thread has in shared memory."""

    size: int
    threads: int
    far: int

    def shared(self, itemsize: int) -> int:
        """Bytes of dynamic shared memory."""
        return self.far * self.size * self.threads * itemsize


def shape_for(size: int, length: int, itemsize: int) -> Shape:
    most = _THREADS[itemsize][-1]
    threads = next(count for count in _THREADS[itemsize] if length <= count or count == most)
    return Shape(size, threads, -(-length // threads) - 1)


@attrs.frozen(eq=False)
class _Row:
    """A row that a thread has: which of the panel's it was, and where its elements are."""

    index: ir.Value
    exists: Value
    get: Callable[[int], Value]
    set: Callable[[int, Value], None]
    place: Elements
    """Its number in the order of rows; -1 of a row that is not there."""


def build(module: ir.Module, name: str, spec: PanelSpec, shape: Shape) -> ir.Function:
    """A block has a panel. Args: the arrays, then width and length."""
    function, b = new_entry(module, name, shape.threads)
    *addresses, width, length = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    arrays = [device_pointer(b, x) for x in addresses]
    _Panel(b, name, spec, shape, width, length).run(*arrays)
    b.ret_void()
    return function


class _Panel:
    def __init__(
        self, b: ir.IRBuilder, name: str, spec: PanelSpec, shape: Shape, width: ir.Value, length: ir.Value
    ) -> None:
        self.b, self.one, self.dtype, self.shape = b, Builder(b, 1), spec.dtype.name, shape
        self.width, self.length, self.thread = width, length, thread_index(b)
        self.most = Most(b, f"{name}_most", shape.threads, self.dtype)
        self.pivots = shared_memory(b.module, b, f"{name}_pivots", shape.size * item_size(self.dtype))
        self.rows = [self._row(k) for k in range(1 + shape.far)]

    def _row(self, k: int) -> _Row:
        b, one, dtype = self.b, self.one, self.dtype
        index = b.add(self.thread, I64(k * self.shape.threads))
        place, exists = Elements(b, "int32", 1), number(one, index) < number(one, self.length)
        place[0] = one.select(exists, number(one, index), -1)
        if not k:
            near = Elements(b, dtype, self.shape.size)
            return _Row(index, exists, near.__getitem__, near.__setitem__, place)
        space = dynamic_shared(b.module, b)

        def far(c: int) -> ir.Value:
            first = ((k - 1) * self.shape.size + c) * self.shape.threads
            return at(b, space, b.add(self.thread, I64(first)), dtype)

        return _Row(index, exists, lambda c: one.load(far(c), dtype), lambda c, x: one.store(x, far(c)), place)

    def run(self, source: ir.Value, first: ir.Value, out: ir.Value, moved: ir.Value, chosen: ir.Value) -> None:
        b, one, item = self.b, self.one, block_index(self.b)
        start = b.sext(b.load(first, align=4, typ=I32), I64)
        panel = b.mul(item, b.mul(self.width, self.length))
        for row in self.rows:
            with if_then(b, row.exists.ir):
                for c in range(self.shape.size):
                    there = b.select(b.icmp_signed("<", I64(c), self.width), I64(c), I64(0))
                    index = b.add(panel, b.add(b.mul(there, self.length), row.index))
                    row.set(c, one.load(at(b, source, index, self.dtype), self.dtype))
        picked = b.mul(item, self.width)
        for j in range(self.shape.size):
            with if_then(b, b.icmp_signed("<", I64(j), self.width)):
                best = self._step(j, number(one, b.add(start, I64(j))))
                with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
                    one.store(best, at(b, chosen, b.add(picked, I64(j)), "int32"))
        order = b.mul(item, self.length)
        for row in self.rows:
            with if_then(b, row.exists.ir):
                place = b.sext(row.place[0].ir, I64)
                one.store(number(one, row.index), at(b, moved, b.add(order, place), "int32"))
                for c in range(self.shape.size):
                    with if_then(b, b.icmp_signed("<", I64(c), self.width)):
                        index = b.add(panel, b.add(b.mul(I64(c), self.length), place))
                        one.store(row.get(c), at(b, out, index, self.dtype))

    def _step(self, j: int, here: Value) -> Value:
        """Eliminate a column; returns the row that its pivot was in."""
        b, one, size = self.b, self.one, self.shape.size
        lane, warp = b.and_(self.thread, I64(WARP - 1)), b.lshr(self.thread, I64(WARP.bit_length() - 1))
        own = [self.most.candidate(row.get(j), row.place[0], row.place[0] >= here) for row in self.rows]
        found = own[0]
        for other in own[1:]:
            found = self.most.better(found, other)
        best = self.most.of_block(found, lane, warp)
        for row in self.rows:
            place = row.place[0]
            with if_then(b, (place == best).ir):
                write_row(one, self.pivots, [row.get(c) for c in range(size)], j)
            row.place[0] = one.select(place == best, here, one.select(place == here, best, place))
        meet(b, self.shape.threads)
        pivot = one.load(at(b, self.pivots, I64(j), self.dtype), self.dtype)
        for row in self.rows:
            with if_then(b, (row.place[0] > here).ir):
                x = row.get(j)
                x = one.select(pivot != 0, x / pivot, x)
                row.set(j, x)
                for c, factor in read_row(one, self.pivots, self.dtype, j + 1, size):
                    row.set(c, one.fma(-factor, x, row.get(c)))
        return best
