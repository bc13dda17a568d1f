"""The order of a scatter's updates: a stable counting sort of their targets, by one block of threads a batch item.

Counts are integers, so the atomic additions that gather them have one result. Updates are placed in runs of a block's
width, one run after the other; within a run an update's place follows from how many before it have its target.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I64, for_range, if_then, load_args, loop, minimum, offset
from volta.numba_cuda.threads import (
    barrier,
    block_index,
    device_pointer,
    new_entry,
    own_args,
    shared_memory,
    thread_index,
)

THREADS = 1024


def _word(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    return offset(b, base, b.shl(index, I64(3)))


def build_scatter_order(module: ir.Module, name: str) -> ir.Function:
    """Args and result as those of `volta.emit.scatter.build_scatter_order`."""
    function, b = new_entry(module, name, THREADS)
    targets0, order0, _, slots, count = load_args(b, own_args(b, function.args[0]), 5)
    item, thread = block_index(b), thread_index(b)
    targets = offset(b, device_pointer(b, targets0), b.shl(b.mul(item, count), I64(3)))
    ends = offset(b, device_pointer(b, order0), b.shl(b.mul(item, b.add(slots, count)), I64(3)))
    positions = _word(b, ends, slots)
    shared = shared_memory(module, b, f"{name}_shared", 8 * THREADS)
    with for_range(b, thread, slots, THREADS) as slot:
        b.store(I64(0), _word(b, ends, slot))
    barrier(b)
    with for_range(b, thread, count, THREADS) as i:
        slot = b.load(_word(b, targets, i), typ=I64)
        with if_then(b, b.icmp_signed(">=", slot, I64(0))):
            b.atomic_rmw("add", _word(b, ends, slot), I64(1), "monotonic")
    barrier(b)
    _starts(b, ends, slots, thread, shared)
    _place(b, targets, ends, positions, count, thread, shared)
    b.ret_void()
    return function


def _starts(b: ir.IRBuilder, ends: ir.Value, slots: ir.Value, thread: ir.Value, shared: ir.Value) -> None:
    """Turn counts into where each slot's run starts: every thread takes neighbouring slots."""
    share = b.udiv(b.add(slots, I64(THREADS - 1)), I64(THREADS))
    low = b.mul(thread, share)
    high = minimum(b, b.add(low, share), slots)
    with loop(b, low, high, init=[I64(0)]) as it:
        it.advance(b.add(it.values[0], b.load(_word(b, ends, it.index), typ=I64)))
    b.store(it.results[0], _word(b, shared, thread))
    barrier(b)
    with loop(b, 0, thread, init=[I64(0)]) as before:
        before.advance(b.add(before.values[0], b.load(_word(b, shared, before.index), typ=I64)))
    with loop(b, low, high, init=[before.results[0]]) as it:
        here = _word(b, ends, it.index)
        number = b.load(here, typ=I64)
        b.store(it.values[0], here)
        it.advance(b.add(it.values[0], number))
    barrier(b)


def _place(
    b: ir.IRBuilder, targets: ir.Value, ends: ir.Value, positions: ir.Value, count: ir.Value, thread: ir.Value,
    shared: ir.Value,
) -> None:  # fmt: skip
    """Write each update's position; a run's start becomes its end."""
    with for_range(b, 0, count, THREADS) as first:
        i = b.add(first, thread)
        last = b.sub(count, I64(1))
        inside = b.icmp_signed("<", i, count)
        target = b.load(_word(b, targets, minimum(b, i, last)), typ=I64)
        target = b.select(inside, target, I64(-1))
        b.store(target, _word(b, shared, thread))
        barrier(b)
        with loop(b, 0, THREADS, init=[I64(0), I64(0)]) as it:
            same = b.icmp_signed("==", b.load(_word(b, shared, it.index), typ=I64), target)
            earlier = b.and_(same, b.icmp_signed("<", it.index, thread))
            it.advance(b.add(it.values[0], b.zext(earlier, I64)), b.add(it.values[1], b.zext(same, I64)))
        rank, number = it.results
        wanted = b.icmp_signed(">=", target, I64(0))
        slot = b.select(wanted, target, I64(0))
        start = b.load(_word(b, ends, slot), typ=I64)
        barrier(b)
        with if_then(b, wanted):
            b.store(i, _word(b, positions, b.add(start, rank)))
            with if_then(b, b.icmp_signed("==", rank, b.sub(number, I64(1)))):
                b.store(b.add(start, number), _word(b, ends, slot))
        barrier(b)
