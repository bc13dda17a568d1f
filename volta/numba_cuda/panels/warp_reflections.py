"""QR's panels of at most 32 rows: a lane has a column in registers, and an element of the column that is reflected.

So what a reflection does to the columns behind it needs nothing of other lanes but its vector, and what is divided
each lane divides for all. A warp has as many matrices as it has room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I32, I64, for_range, if_then, load_args, minimum, offset
from volta.emit.panel_tasks import ARRAYS
from volta.emit.panels import at
from volta.numba_cuda.codegen.ptx_redux import redux
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
from volta.numba_cuda.panels.registers import (
    Elements,
    number,
    over_warp,
    read_row,
    size_key,
    summed,
    write_row,
)
from volta.xla_like.panels import PanelSpec


def build(module: ir.Module, name: str, spec: PanelSpec, length: int, group: int) -> ir.Function:
    """A block is a warp, ``group`` lanes of it have a panel. Args: the arrays, then width, length and batch."""
    function, b = new_entry(module, name, WARP)
    *addresses, width, _, batch = load_args(b, function.args[0], ARRAYS[spec.kind] + 3)
    arrays = [device_pointer(b, x) for x in addresses]
    _Lanes(b, name, spec.dtype.name, length, group).run(arrays, width, batch)
    b.ret_void()
    return function


class _Lanes:
    def __init__(self, b: ir.IRBuilder, name: str, dtype: str, length: int, group: int) -> None:
        self.b, self.one, self.dtype, self.length, self.group = b, Builder(b, 1), dtype, length, group
        thread = number(self.one, thread_index(b))
        self.lane, self.first_lane = thread & (group - 1), thread & -group
        self.place = self.one.value(b.zext(self.lane.ir, I64), "int64").ir
        self.number = b.zext((self.first_lane >> (group.bit_length() - 1)).ir, I64)
        row = -(-length * item_size(dtype) // 16) * 16
        space = shared_memory(b.module, b, f"{name}_vectors", 2 * row * (WARP // group))
        self.column = offset(b, space, b.mul(self.number, I64(2 * row)))
        self.vector = offset(b, self.column, row)
        self.x = Elements(b, dtype, length)

    def run(self, arrays: Sequence[ir.Value], width: ir.Value, batch: ir.Value) -> None:
        b, one, (source, first, out, factors) = self.b, self.one, arrays
        item = b.add(b.mul(block_index(b), I64(WARP // self.group)), self.number)
        there = b.icmp_signed("<", item, batch)
        panel = b.mul(minimum(b, item, b.sub(batch, I64(1))), width)
        own = b.add(panel, minimum(b, self.place, b.sub(width, I64(1))))
        for k in range(self.length):
            index = b.add(b.mul(own, I64(self.length)), I64(k))
            self.x[k] = one.load(at(b, source, index, self.dtype), self.dtype)
        start = one.value(b.load(first, align=4, typ=I32), "int32")
        within = b.and_(there, (self.lane < self.length).ir)
        with for_range(b, 0, width) as j:
            column = number(one, j)
            becomes, v, factor = self._reflection(column, start + column)
            index = b.add(panel, j)
            with if_then(b, within):
                to = b.add(b.mul(index, I64(self.length)), self.place)
                one.store(becomes, at(b, out, to, self.dtype))
            with if_then(b, b.and_(there, (self.lane == 0).ir)):
                one.store(factor, at(b, factors, index, self.dtype))
            self._behind(column, v, factor)

    def _reflection(self, column: Value, at_row: Value) -> tuple[Value, Value, Value]:
        """A lane's element of the column when it is reflected onto ``at_row``, and of the vector; and the factor."""
        b, one, dtype, row = self.b, self.one, self.dtype, self.lane
        zero, unit = one.const(dtype, 0), one.const(dtype, 1)
        with if_then(b, (self.lane == column).ir):
            write_row(one, self.column, [*self.x, *[zero] * (-self.length % (16 // item_size(dtype)))], 0)
        warp_barrier(b)
        inside = row < self.length
        nearest = b.zext(one.min(row, one.const("int32", self.length - 1)).ir, I64)
        x = one.load(at(b, self.column, nearest, dtype), dtype)
        open_, later = inside & (row >= at_row), inside & (row > at_row)
        key = size_key(one, x)
        size, below = (one.bitcast(y, dtype) for y in self._largest([one.select(y, key, 0) for y in (open_, later)]))
        size = one.select(size == 0, 1, size)
        element = shuffle(b, "idx", x, (self.first_lane | at_row).ir)
        scaled = one.select(open_, one.select(open_, x, size) / size, zero)
        (total,) = over_warp(b, lambda p, q: [p[0] + q[0]], [scaled * scaled], self.group)
        long = one.sqrt(total)
        first, done = element / size, below / size == 0
        last = one.select(done, first, one.select(first < 0, long, -long))
        gap = first - last
        factor = one.select(done, 0, -gap / one.select(done, 1, last))
        divisor = one.select(done, 1, gap)
        v = one.select(later, one.select(later, scaled, divisor) / divisor, one.select(row == at_row, unit, zero))
        kept = one.select(row == at_row, one.select(done, element, last * size), x)
        return one.select(later, v, kept), v, factor

    def _largest(self, keys: Sequence[Value]) -> Sequence[Value]:
        if self.group == WARP and keys[0].dtype == "int32":
            return [self.one.value(redux(self.b, "max", x.ir), x.dtype) for x in keys]
        return over_warp(self.b, lambda p, q: [self.one.max(x, y) for x, y in zip(p, q, strict=True)], keys, self.group)

    def _behind(self, column: Value, v: Value, factor: Value) -> None:
        """Reflect the columns behind."""
        b, one = self.b, self.one
        with if_then(b, (self.lane < self.length).ir):
            one.store(v, at(b, self.vector, self.place, self.dtype))
        warp_barrier(b)
        with if_then(b, (self.lane > column).ir):
            whole = [y for _, y in read_row(one, self.vector, self.dtype, 0, self.length)][: self.length]
            share = -(summed([x * y for x, y in zip(self.x, whole, strict=True)]) * factor)
            for k, y in enumerate(whole):
                self.x[k] = one.fma(share, y, self.x[k])
