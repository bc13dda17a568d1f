"""The order of a scatter's updates: stable, by target.

For each batch item a record for each update, in that order: its position, and in the upper half its slot (2**32 - 1:
dropped, these come last); and for each slot that has updates where its run of records begins and, in the upper half,
ends. An update's rank is the number of updates that come before it, which its thread counts: quadratic, but without
passes, and for thousands of updates faster than any that sorts.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I32, I64, if_then, load_args, loop, minimum, offset
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    thread_index,
)
from volta.numba_cuda.ordering.indexing import divide, halves, word

THREADS = 256
"""A warp's worth of updates is ranked by the warps of a block, each comparing it with a share of all."""

WARPS = THREADS // WARP
TILE = 4096
"""Targets that lie in shared memory at once."""

DROPPED = 0xFFFFFFFF

_AT_ONCE = 4


def blocks_of(batch: int, count: int) -> int:
    return batch * -(-count // WARP)


def build_rank(module: ir.Module, name: str) -> ir.Function:
    """Args: targets [B, I], order [B, S + I], B, S, I (all int64)."""
    function, b = new_entry(module, name, THREADS)
    targets0, order0, _, slots, count = load_args(b, function.args[0], 5)
    thread = thread_index(b)
    lane, warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
    batch, group = divide(b, block_index(b), b.udiv(b.add(count, I64(WARP - 1)), I64(WARP)))
    targets = offset(b, device_pointer(b, targets0), b.shl(b.mul(batch, count), I64(3)))
    order = offset(b, device_pointer(b, order0), b.shl(b.mul(batch, b.add(slots, count)), I64(3)))
    keys = shared_memory(module, b, f"{name}_keys", 4 * TILE)
    counts = shared_memory(module, b, f"{name}_counts", 3 * 4 * THREADS)

    def target(i: ir.Value) -> ir.Value:
        """The i-th target, as 32 bits."""
        last = b.sub(count, I64(1))
        found = b.trunc(b.load(offset(b, targets, b.shl(minimum(b, i, last), I64(3))), align=8, typ=I64), I32)
        return b.select(b.icmp_signed("<", i, count), found, I32(DROPPED))

    base = b.mul(group, I64(WARP))
    own = b.add(base, lane)
    key = target(own)
    with loop(b, 0, count, TILE, [I32(0)] * 3) as it:
        size = minimum(b, b.sub(count, it.index), I64(TILE))
        share = b.and_(b.add(b.lshr(size, I64(WARPS.bit_length() - 1)), I64(_AT_ONCE)), I64(-_AT_ONCE))
        barrier(b)
        with loop(b, thread, minimum(b, b.mul(share, I64(WARPS)), I64(TILE)), THREADS) as fill:
            b.store(target(b.add(it.index, fill.index)), offset(b, keys, b.shl(fill.index, I64(2))), align=4)
        barrier(b)
        low = minimum(b, b.mul(warp, share), I64(TILE))
        high = minimum(b, b.add(low, share), I64(TILE))
        middle = b.sub(base, it.index)  # what lies before counts, among equals
        middle = b.select(b.icmp_signed("<", middle, low), low, minimum(b, middle, high))
        less, upto, rank = it.values
        less, upto, rank = _count(b, keys, low, middle, key, (less, upto, rank), before=True)
        less, upto, rank = _count(b, keys, middle, high, key, (less, upto, rank), before=False)
        it.advance(less, upto, rank)
    for part, value in enumerate(it.results):
        b.store(value, offset(b, counts, b.shl(b.add(thread, I64(part * THREADS)), I64(2))), align=4)
    barrier(b)
    with if_then(b, b.icmp_signed("==", warp, I64(0))):
        totals = []
        for part in range(3):
            found = [
                b.load(offset(b, counts, b.shl(b.add(lane, I64(part * THREADS + w * WARP)), I64(2))), align=4, typ=I32)
                for w in range(WARPS)
            ]
            totals.append(sum_of(b, found))
        less, upto, rank = totals
        equal = ptx_ops.match(b, b.zext(key, I64))  # among the block's own updates
        below = b.sub(b.shl(I32(1), b.trunc(lane, I32)), I32(1))
        rank = b.add(rank, b.ctpop(b.and_(equal, below)))
        with if_then(b, b.icmp_signed("<", own, count)):
            record = b.or_(own, b.shl(b.zext(key, I64), I64(32)))
            place = b.shl(b.add(slots, b.zext(rank, I64)), I64(3))
            b.store(record, offset(b, order, place), align=8)
            first = b.and_(b.icmp_unsigned("==", rank, less), b.icmp_unsigned("!=", key, I32(DROPPED)))
            with if_then(b, first):
                run = b.or_(b.zext(less, I64), b.shl(b.zext(upto, I64), I64(32)))
                b.store(run, offset(b, order, b.shl(b.zext(key, I64), I64(3))), align=8)
    b.ret_void()
    return function


def sum_of(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    total = values[0]
    for x in values[1:]:
        total = b.add(total, x)
    return total


def _count(
    b: ir.IRBuilder, keys: ir.Value, low: ir.Value, high: ir.Value, key: ir.Value, counts: tuple[ir.Value, ...],
    before: bool,
) -> tuple[ir.Value, ...]:  # fmt: skip
    """Add how many keys low..high (multiples of 4) are less than one's own, are at most it, and come before it."""
    kind = ir.VectorType(I32, _AT_ONCE)
    with loop(b, low, high, _AT_ONCE, counts) as it:
        less, upto, rank = it.values
        found = b.load(offset(b, keys, b.shl(it.index, I64(2))), align=4 * _AT_ONCE, typ=kind)
        for k in range(_AT_ONCE):
            other = b.extract_element(found, I32(k))
            is_less = b.zext(b.icmp_unsigned("<", other, key), I32)
            is_upto = b.zext(b.icmp_unsigned("<=", other, key), I32)
            less, upto = b.add(less, is_less), b.add(upto, is_upto)
            rank = b.add(rank, is_upto if before else is_less)
        it.advance(less, upto, rank)
    return tuple(it.results)


def build_edges(module: ir.Module, name: str) -> ir.Function:
    """Where runs begin and end, from sorted records. Args: order [B, S + I], B, S, I."""
    function, b = new_entry(module, name, THREADS)
    order0, batches, slots, count = load_args(b, function.args[0], 4)
    linear = b.add(b.mul(block_index(b), I64(THREADS)), thread_index(b))
    with if_then(b, b.icmp_signed("<", linear, b.mul(batches, count))):
        batch, i = divide(b, linear, count)
        runs = offset(b, device_pointer(b, order0), b.shl(b.mul(batch, b.add(slots, count)), I64(3)))
        records = offset(b, runs, b.shl(slots, I64(3)))
        last = b.sub(count, I64(1))
        slot = halves(b, word(b, records, i))[1]
        zero = b.icmp_signed("==", i, I64(0))
        previous = halves(b, word(b, records, b.select(zero, i, b.sub(i, I64(1)))))[1]
        following = halves(b, word(b, records, minimum(b, b.add(i, I64(1)), last)))[1]
        with if_then(b, b.icmp_signed("<", slot, slots)):
            here = offset(b, runs, b.shl(slot, I64(3)))
            with if_then(b, b.or_(zero, b.icmp_signed("!=", previous, slot))):
                b.store(b.trunc(i, I32), here, align=4)
            with if_then(b, b.or_(b.icmp_signed("==", i, last), b.icmp_signed("!=", following, slot))):
                b.store(b.trunc(b.add(i, I64(1)), I32), offset(b, here, 4), align=4)
    b.ret_void()
    return function
