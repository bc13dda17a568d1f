"""Scatter: each target combines its updates in their order.

Many updates are sorted by target first (`scatter_sorting`). No target is written by two tasks, so there are no atomics
and no dependence on threads.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loops import I64, PTR, for_range, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, StateArray, columns_block
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.scatter_rows import join_slot
from volta.numba_cpu.scatter_schedule import FEW_UPDATES, SCATTER_SLOTS, SortedUpdates
from volta.numba_cpu.scatter_sorting import Words
from volta.xla_like.ordering import SCATTERS, ScatterSpec


def _word(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    return offset(b, base, b.shl(index, I64(3)))


class Combiner:
    """Combines the updates of one slot, in order, and then with the slot; columns are vector lanes."""

    def __init__(self, b: ir.IRBuilder, spec: ScatterSpec, width: ir.Value, lanes: int) -> None:
        self.b, self.dtype, self.width = b, spec.dtype.name, width
        self.item = I64(spec.dtype.itemsize)
        self.wide = lanes
        self.reducer = None if spec.op == "set" else Reducer(SCATTERS[spec.op], compute_dtype(self.dtype))
        self.frames = {}
        if self.reducer is not None:
            for n in (self.wide, 1):
                self.frames[n] = (StateArray(b, self.reducer, LANES, n), BlockTree(b, self.reducer, n))

    def slot(self, here: ir.Value, updates: ir.Value, number: ir.Value, row_of: Callable[[ir.Value], ir.Value]) -> None:
        """Combine ``number`` updates (at least one) into the row at ``here``; ``row_of(i)`` is the i-th one's row."""
        b, whole = self.b, self.b.and_(self.width, I64(-self.wide))
        with for_range(b, 0, whole, self.wide) as index:
            self.column(here, updates, number, row_of, index, self.wide)
        with for_range(b, whole, self.width) as index:
            self.column(here, updates, number, row_of, index, 1)

    def column(
        self, here: ir.Value, updates: ir.Value, number: ir.Value, row_of: Callable[[ir.Value], ir.Value],
        index: ir.Value, lanes: int,
    ) -> None:  # fmt: skip
        """`lanes` columns of a slot, from ``index`` on."""
        b, dtype = self.b, self.dtype
        builder = Builder(b, lanes)

        def update(i: ir.Value) -> Value:
            at = b.add(b.mul(row_of(i), self.width), index)
            return builder.load(offset(b, updates, b.mul(at, self.item)), dtype)

        place = offset(b, here, b.mul(index, self.item))
        if self.reducer is None:
            builder.store(update(b.sub(number, I64(1))), place, dtype)
            return
        array, tree = self.frames[lanes]
        tree.start()
        with for_range(b, 0, number, BLOCK) as start:
            stop = minimum(b, b.add(start, I64(BLOCK)), number)
            (state,) = columns_block(b, [self.reducer], [array], lanes, start, stop, lambda i: [(update(i),)])
            tree.push(state, b.sdiv(start, I64(BLOCK)))
        join_slot(builder, self.reducer, tree.finish()[0], place, dtype)


def build_scatter(module: ir.Module, name: str, what: SortedUpdates, lanes: int) -> ir.Function:
    """``lanes`` columns at a time. A task is a bucket of a batch item, or a few slots. Args: those of `Words`."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    w = Words(b, what, args)
    rows = Combiner(b, what.scatter, w.width, lanes)
    row_bytes = b.mul(w.width, I64(what.scatter.dtype.itemsize))
    groups = w.buckets if what.coarse else b.sdiv(b.add(w.slots, I64(SCATTER_SLOTS - 1)), I64(SCATTER_SLOTS))
    with for_range(b, begin, end) as task:
        item, group = b.udiv(task, groups), b.urem(task, groups)
        ends, placed, out = w.counts(item, b.sub(w.chunks, I64(1))), w.sorted(item), w.out(item)

        def combine(slot: ir.Value, low: ir.Value, high: ir.Value) -> None:
            here = offset(b, out, b.mul(slot, row_bytes))  # noqa: B023  (called at once)
            with if_then(b, b.icmp_signed("<", low, high)):
                at = placed  # noqa: B023
                rows.slot(here, w.updates(item), b.sub(high, low), lambda i: w.number(at, b.add(low, i)))  # noqa: B023

        if what.coarse:
            low, high = w.run(ends, group, I64(0))
            with if_then(b, b.icmp_signed("<", low, high)):
                first = b.shl(group, w.shift)
                own = minimum(b, b.shl(I64(1), w.shift), b.sub(w.slots, first))
                local = b.inttoptr(scratch, PTR)
                _sort_bucket(w, item, local, first, own, low, high)
                with for_range(b, 0, own) as s:
                    combine(b.add(first, s), *w.run(local, s, low))
        else:
            first = b.mul(group, I64(SCATTER_SLOTS))
            with for_range(b, first, minimum(b, b.add(first, I64(SCATTER_SLOTS)), w.slots)) as slot:
                combine(slot, *w.run(ends, slot, I64(0)))
    b.ret_void()
    return function


def _sort_bucket(
    w: Words, item: ir.Value, ends: ir.Value, first: ir.Value, own: ir.Value, low: ir.Value, high: ir.Value
) -> None:
    """A bucket's positions, of ``own`` slots from ``first`` on, by slots, and where each slot ``ends``."""
    b, records, placed = w.b, w.records(item), w.sorted(item)
    with for_range(b, 0, own) as s:
        w.write_number(I64(0), ends, s)

    def slot_of(i: ir.Value) -> tuple[ir.Value, ir.Value]:
        at = w.record(records, i)
        return b.sub(w.number(at, I64(0)), first), w.number(at, I64(1))

    with for_range(b, low, high) as i:
        slot, _ = slot_of(i)
        w.write_number(b.add(w.number(ends, slot), I64(1)), ends, slot)
    with loop(b, 0, own, init=[low]) as it:
        number = w.number(ends, it.index)
        w.write_number(it.values[0], ends, it.index)
        it.advance(b.add(it.values[0], number))
    with for_range(b, low, high) as i:
        slot, value = slot_of(i)
        at = w.number(ends, slot)
        w.write_number(b.add(at, I64(1)), ends, slot)
        w.write_number(value, placed, at)


def build_scatter_few(module: ir.Module, name: str, spec: ScatterSpec, lanes: int) -> ir.Function:
    """For few updates; a task is a batch item. Args: updates [B, I, W], targets [B, I], out [B, S, W], B, S, W, I."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    updates0, targets0, out0, _, slots, width, count = load_args(b, args, 7)
    combiner = Combiner(b, spec, width, lanes)
    row_bytes = b.mul(width, combiner.item)
    with b.goto_entry_block():
        rows = b.inttoptr(b.ptrtoint(b.alloca(ir.ArrayType(I64, FEW_UPDATES)), I64), PTR)  # an untyped pointer
        found, seen = b.alloca(I64), b.alloca(I64)
    with for_range(b, begin, end) as batch:
        targets = offset(b, b.inttoptr(targets0, PTR), b.shl(b.mul(batch, count), I64(3)))
        updates = offset(b, b.inttoptr(updates0, PTR), b.mul(b.mul(batch, count), row_bytes))
        out = offset(b, b.inttoptr(out0, PTR), b.mul(b.mul(batch, slots), row_bytes))
        with for_range(b, 0, count) as i:
            slot = b.load(_word(b, targets, i), typ=I64)
            b.store(I64(0), seen)
            b.store(I64(0), found)
            with for_range(b, 0, i) as j:
                same = b.icmp_signed("==", b.load(_word(b, targets, j), typ=I64), slot)
                b.store(b.add(b.load(seen, typ=I64), b.zext(same, I64)), seen)
            first = b.icmp_signed("==", b.load(seen, typ=I64), I64(0))
            with if_then(b, b.and_(first, b.icmp_signed(">=", slot, I64(0)))):
                with for_range(b, i, count) as j:
                    at = b.load(found, typ=I64)
                    b.store(j, _word(b, rows, at))  # kept only where the target matches
                    same = b.icmp_signed("==", b.load(_word(b, targets, j), typ=I64), slot)
                    b.store(b.add(at, b.zext(same, I64)), found)
                here = offset(b, out, b.mul(slot, row_bytes))
                combiner.slot(here, updates, b.load(found, typ=I64), lambda k: b.load(_word(b, rows, k), typ=I64))
    b.ret_void()
    return function
