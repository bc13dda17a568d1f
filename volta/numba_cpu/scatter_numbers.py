"""Scatters of single numbers: updates go to the rows of their slots (`scatter_rows`), in their order.

Few slots are shared out among threads, each of which reads all targets and keeps the updates of its own. Of many slots,
updates go to buckets first (`scatter_buckets`); then the slots of a bucket have their rows in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.loops import (
    I32,
    I64,
    any_of,
    compressed,
    counted,
    for_range,
    if_else,
    loop,
    minimum,
    offset,
)
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.scatter_buckets import from_chunks
from volta.numba_cpu.scatter_rows import Helpers, Rows, bits_at
from volta.numba_cpu.scatter_schedule import SCATTER_SLOTS, Numbers
from volta.numba_cpu.scatter_words import STAGE, Words, put_all, room


def build_numbers(module: ir.Module, name: str, what: Numbers) -> ir.Function:
    """A task is a bucket of a batch item; or a few slots, of which neighbours are one piece of work."""
    helpers = Helpers(module, name, what)
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    w = Words(b, what, args)
    rows = Rows(b, what, scratch, (w.most, w.levels), helpers)

    def combined(item: ir.Value, first: ir.Value, count: ir.Value, fill: Callable[[], None]) -> None:
        rows.start(first, count)
        fill()
        if not rows.sets:
            out = offset(b, w.out(item), b.mul(first, I64(w.item)))
            with for_range(b, 0, count) as slot:
                rows.finish(slot, offset(b, out, b.mul(slot, I64(w.item))))

    if what.split:
        with for_range(b, begin, end) as task:
            item, bucket = b.udiv(task, w.buckets), b.urem(task, w.buckets)
            first = b.shl(bucket, w.shift)
            count = minimum(b, b.shl(I64(1), w.shift), b.sub(w.slots, first))
            combined(item, first, count, lambda: from_chunks(w, rows, item, bucket, first, count))  # noqa: B023
    else:
        groups = b.sdiv(b.add(w.slots, I64(SCATTER_SLOTS - 1)), I64(SCATTER_SLOTS))
        keys, values = (room(b, (STAGE + 16) * size) for size in (4, what.word))
        with for_range(b, b.udiv(begin, groups), b.add(b.udiv(b.sub(end, I64(1)), groups), I64(1))) as item:
            before = b.mul(item, groups)
            low = b.mul(_least(b, b.sub(begin, before), 0), I64(SCATTER_SLOTS))
            high = minimum(b, b.mul(b.sub(end, before), I64(SCATTER_SLOTS)), w.slots)
            combined(item, low, b.sub(high, low), lambda: _own(w, rows, item, (low, high), keys, values))  # noqa: B023
    b.ret_void()
    return function


def _least(b: ir.IRBuilder, x: ir.Value, least: int) -> ir.Value:
    return b.select(b.icmp_signed(">", x, I64(least)), x, I64(least))


def _own(
    w: Words, rows: Rows, item: ir.Value, slots: tuple[ir.Value, ir.Value], keys: ir.Value, values: ir.Value
) -> None:
    """The updates of a range of slots, out of all those of an item: some are looked at, and kept ones are put. Where
    all are (one thread works on all slots), they are put from where they lie."""
    b, out = w.b, w.out(item)
    low, size = slots[0], b.sub(slots[1], slots[0])
    every = b.icmp_unsigned("==", size, w.slots)
    with for_range(b, 0, w.count, STAGE) as start:
        number = minimum(b, b.sub(w.count, start), I64(STAGE))
        targets, updates = w.targets(item, start), w.updates(item, start)
        with if_else(b, b.and_(every, _inside(w, targets, number))) as branch:
            with branch.then():
                put_all(w, rows, out, (targets, w.what.target), (updates, w.item), I64(0), number)
            with branch.otherwise():
                kept = _kept(w, (targets, updates), number, (low, size), (keys, values))
                put_all(w, rows, out, (keys, 4), (values, w.what.word), I64(0), kept)


def _inside(w: Words, targets: ir.Value, number: ir.Value) -> ir.Value:
    """Whether some targets, whole vectors of them, are slots."""
    b = w.b
    whole, slots = b.and_(number, I64(-w.lanes)), w.splat(w.slots)
    kind = ir.VectorType(ir.IntType(1), w.lanes)
    with loop(b, 0, whole, w.lanes, [ir.Constant(kind, [0] * w.lanes)]) as it:
        it.advance(b.or_(it.values[0], b.icmp_unsigned(">=", w.some(targets, it.index), slots)))
    outside = any_of(b, it.results[0])
    return b.and_(b.icmp_unsigned("==", whole, number), b.not_(outside))


def _kept(
    w: Words, given: tuple[ir.Value, ir.Value], number: ir.Value, slots: tuple[ir.Value, ir.Value],
    places: tuple[ir.Value, ir.Value],
) -> ir.Value:  # fmt: skip
    """Those of some updates whose targets are ``slots`` (the first, and how many), moved to ``places``; gives their
    number."""
    b, (targets, updates), (keys, values) = w.b, given, places
    lowest, sizes = (w.splat(x) for x in slots)
    whole = b.and_(number, I64(-w.lanes))
    with loop(b, 0, whole, w.lanes, [I64(0)]) as it:
        (kept,) = it.values
        found = w.some(targets, it.index)
        own = b.icmp_unsigned("<", b.sub(found, lowest), sizes)
        for x, place, each in ((w.narrow(found), keys, 4), (w.values(updates, it.index), values, w.what.word)):
            b.store(compressed(b, x, own), offset(b, place, b.mul(kept, I64(each))), align=each)
        it.advance(b.add(kept, counted(b, own)))
    with loop(b, whole, number, 1, [it.results[0]]) as rest:
        (kept,) = rest.values
        found = w.target(targets, rest.index)
        b.store(b.trunc(found, I32), bits_at(b, keys, kept), align=4)
        b.store(w.value(updates, rest.index), offset(b, values, b.mul(kept, I64(w.what.word))), align=w.what.word)
        own = b.icmp_unsigned("<", b.sub(found, slots[0]), slots[1])
        rest.advance(b.add(kept, b.zext(own, I64)))
    return rest.results[0]
