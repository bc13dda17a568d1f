"""Scatter: a stable counting sort of the targets, then each target combines its updates in their order.

No target is written by two tasks, so there are no atomics and no dependence on threads.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loops import I64, PTR, for_range, if_else, if_then, load_args, minimum, new_kernel, offset
from volta.numba_cpu import target
from volta.numba_cpu.reducers import BLOCK, LANES, BlockTree, Reducer, State, StateArray, columns_block
from volta.xla_like.opaque import SCATTER_SLOTS, ScatterSpec

_REDUCTION = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


def _word(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    return offset(b, base, b.shl(index, I64(3)))


def build_scatter_order(module: ir.Module, name: str, spec: object) -> ir.Function:
    """A task is one batch item. Args: targets [B, I], order [B, S + I + 1], B, S, I (all int64).

    Writes, for each slot, the end of its run, then the positions of the updates, slot by slot and in their order.
    A target of -1 is in no run.
    """
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    targets0, order0, _, slots, count = load_args(b, args, 5)
    with for_range(b, begin, end) as item:
        targets = offset(b, b.inttoptr(targets0, PTR), b.shl(b.mul(item, count), I64(3)))
        stride = b.add(b.add(slots, count), I64(1))
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


def build_scatter(module: ir.Module, name: str, spec: ScatterSpec) -> ir.Function:
    """A task is up to 256 slots of one batch item. Args: updates [B, I, W], order, out [B, S, W], B, S, W, I."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    updates0, order0, out0, _, slots, width, count = load_args(b, args, 7)
    dtype, item = spec.dtype.name, I64(spec.dtype.itemsize)
    wide = target.vector_bits() // 32
    reducer = None if spec.op == "set" else Reducer(_REDUCTION[spec.op], compute_dtype(dtype))
    frames = {n: (StateArray(b, reducer, LANES, n), BlockTree(b, reducer, n)) for n in (wide, 1)} if reducer else {}
    chunks = b.sdiv(b.add(slots, I64(SCATTER_SLOTS - 1)), I64(SCATTER_SLOTS))
    with for_range(b, begin, end) as task:
        batch, chunk = b.udiv(task, chunks), b.urem(task, chunks)
        stride = b.add(b.add(slots, count), I64(1))
        ends = offset(b, b.inttoptr(order0, PTR), b.shl(b.mul(batch, stride), I64(3)))
        positions = _word(b, ends, slots)
        row_bytes = b.mul(width, item)
        updates = offset(b, b.inttoptr(updates0, PTR), b.mul(b.mul(batch, count), row_bytes))
        out = offset(b, b.inttoptr(out0, PTR), b.mul(b.mul(batch, slots), row_bytes))
        first = b.mul(chunk, I64(SCATTER_SLOTS))
        with for_range(b, first, minimum(b, b.add(first, I64(SCATTER_SLOTS)), slots)) as slot:
            with if_else(b, b.icmp_signed(">", slot, I64(0))) as before:
                with before.then():
                    before.give(b.load(_word(b, ends, b.sub(slot, I64(1))), typ=I64))
                with before.otherwise():
                    before.give(I64(0))
            low, high = before.results[0], b.load(_word(b, ends, slot), typ=I64)
            with if_then(b, b.icmp_signed("<", low, high)):
                here = offset(b, out, b.mul(slot, row_bytes))

                def column(index: ir.Value, lanes: int) -> None:
                    builder = Builder(b, lanes)

                    def update(number: ir.Value) -> Value:
                        row = b.load(_word(b, positions, number), typ=I64)
                        return builder.load(offset(b, updates, b.mul(b.add(b.mul(row, width), index), item)), dtype)

                    place = offset(b, here, b.mul(index, item))
                    if reducer is None:
                        builder.store(update(b.sub(high, I64(1))), place, dtype)
                        return
                    array, tree = frames[lanes]

                    def elements(i: ir.Value) -> list[State]:
                        return [(update(b.add(low, i)),)]

                    number = b.sub(high, low)
                    tree.start()
                    with for_range(b, 0, number, BLOCK) as start:
                        stop = minimum(b, b.add(start, I64(BLOCK)), number)
                        (state,) = columns_block(b, [reducer], [array], lanes, start, stop, elements)
                        tree.push(state, b.sdiv(start, I64(BLOCK)))
                    total = tree.finish()
                    old = (builder.load(place, dtype),)
                    if dtype in ("float16", "bfloat16"):  # the sum is a value of the dtype before it is added
                        total = (builder.round_to_half(total[0], dtype),)
                    builder.store(reducer.combine(builder, old, total)[0], place, dtype)

                whole = b.mul(b.sdiv(width, I64(wide)), I64(wide))
                with for_range(b, 0, whole, wide) as index:
                    column(index, wide)
                with for_range(b, whole, width) as index:
                    column(index, 1)
    b.ret_void()
    return function


