"""Scatter: a stable counting sort of the targets, then each target combines its updates in their order.

No target is written by two tasks, so there are no atomics and no dependence on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loops import I64, PTR, for_range, if_else, if_then, load_args, minimum, new_kernel, offset
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, StateArray, columns_block
from volta.numba_cpu.ordering_schedule import FEW_UPDATES, SCATTER_SLOTS
from volta.xla_like.ordering import SCATTERS, ScatterSpec


def _word(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    return offset(b, base, b.shl(index, I64(3)))


def build_scatter_order(module: ir.Module, name: str, spec: object) -> ir.Function:
    """A task is one batch item. Args: targets [B, I], order [B, S + I], B, S, I (all int64).

    Writes, for each slot, the end of its run, then the positions of the updates, slot by slot and in their order.
    A target of -1 is in no run.
    """
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    targets0, order0, _, slots, count = load_args(b, args, 5)
    with for_range(b, begin, end) as item:
        targets = offset(b, b.inttoptr(targets0, PTR), b.shl(b.mul(item, count), I64(3)))
        stride = b.add(slots, count)
        ends = offset(b, b.inttoptr(order0, PTR), b.shl(b.mul(item, stride), I64(3)))
        positions = _word(b, ends, slots)
        with for_range(b, 0, slots) as s:
            b.store(I64(0), _word(b, ends, s))

        def each_target(act: object) -> None:
            with for_range(b, 0, count) as i:
                slot = b.load(_word(b, targets, i), typ=I64)
                with if_then(b, b.icmp_signed(">=", slot, I64(0))):
                    act(i, _word(b, ends, slot))  # type: ignore[operator]

        def tally(i: ir.Value, where: ir.Value) -> None:
            b.store(b.add(b.load(where, typ=I64), I64(1)), where)

        def place(i: ir.Value, where: ir.Value) -> None:
            at = b.load(where, typ=I64)
            b.store(i, _word(b, positions, at))
            b.store(b.add(at, I64(1)), where)

        each_target(tally)
        with b.goto_entry_block():
            running = b.alloca(I64)
        b.store(I64(0), running)
        with for_range(b, 0, slots) as s:
            number, before = b.load(_word(b, ends, s), typ=I64), b.load(running, typ=I64)
            b.store(before, _word(b, ends, s))
            b.store(b.add(before, number), running)
        each_target(place)
    b.ret_void()
    return function


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
        total = tree.finish()
        if dtype in ("float16", "bfloat16"):  # the sum is a value of the dtype before it is added
            total = (builder.round_to_half(total[0], dtype),)
        builder.store(self.reducer.combine(builder, (builder.load(place, dtype),), total)[0], place, dtype)


def run_of(b: ir.IRBuilder, ends: ir.Value, slot: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Where the run of a slot begins and ends among the positions."""
    with if_else(b, b.icmp_signed(">", slot, I64(0))) as before:
        with before.then():
            before.give(b.load(_word(b, ends, b.sub(slot, I64(1))), typ=I64))
        with before.otherwise():
            before.give(I64(0))
    return before.results[0], b.load(_word(b, ends, slot), typ=I64)


def _position(b: ir.IRBuilder, positions: ir.Value, low: ir.Value, i: ir.Value) -> ir.Value:
    return b.load(_word(b, positions, b.add(low, i)), typ=I64)


def build_scatter(module: ir.Module, name: str, spec: ScatterSpec, lanes: int) -> ir.Function:
    """``lanes`` columns at a time. A task is up to 256 slots of one batch item.

    Args: updates [B, I, W], order, out [B, S, W], B, S, W, I.
    """
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    updates0, order0, out0, _, slots, width, count = load_args(b, args, 7)
    combiner = Combiner(b, spec, width, lanes)
    chunks = b.sdiv(b.add(slots, I64(SCATTER_SLOTS - 1)), I64(SCATTER_SLOTS))
    row_bytes = b.mul(width, combiner.item)
    with for_range(b, begin, end) as task:
        batch, chunk = b.udiv(task, chunks), b.urem(task, chunks)
        ends = offset(b, b.inttoptr(order0, PTR), b.shl(b.mul(batch, b.add(slots, count)), I64(3)))
        positions = _word(b, ends, slots)
        updates = offset(b, b.inttoptr(updates0, PTR), b.mul(b.mul(batch, count), row_bytes))
        out = offset(b, b.inttoptr(out0, PTR), b.mul(b.mul(batch, slots), row_bytes))
        first = b.mul(chunk, I64(SCATTER_SLOTS))
        with for_range(b, first, minimum(b, b.add(first, I64(SCATTER_SLOTS)), slots)) as slot:
            low, high = run_of(b, ends, slot)
            row_of = partial(_position, b, positions, low)
            with if_then(b, b.icmp_signed("<", low, high)):
                combiner.slot(offset(b, out, b.mul(slot, row_bytes)), updates, b.sub(high, low), row_of)
    b.ret_void()
    return function


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
