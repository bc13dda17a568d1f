"""The updates of a scatter sorted by target: a stable counting sort, of each chunk of updates by a task of its own.

Where there are many slots the updates are sorted by buckets of slots here, as records of a slot and a position; a
bucket is sorted by slots where it is combined (`scatter`), in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.loops import I64, PTR, for_range, if_else, if_then, load_args, loop, minimum, offset
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.scatter_schedule import CHUNK, SortedUpdates


class Words:
    """The args of a scatter whose updates are sorted, and what lies where.

    Words: updates, targets, out, batch items, slots, width, updates of an item, then what is counted, the records by
    bucket, what is sorted; log2 of a bucket's slots, buckets, chunks.
    """

    def __init__(self, b: ir.IRBuilder, what: SortedUpdates, args: ir.Value) -> None:
        self.b, self.what, self.index_type = b, what, ir.IntType(8 * what.index.itemsize)
        words = load_args(b, args, 13)
        (
            self._updates, self._targets, self._out, _, self.slots, self.width, self.count,
            self._counts, self._records, self._sorted, self.shift, self.buckets, self.chunks,
        ) = words  # fmt: skip

    def _at(self, base: ir.Value, index: ir.Value, size: int) -> ir.Value:
        return offset(self.b, self.b.inttoptr(base, PTR), self.b.mul(index, I64(size)))

    def updates(self, item: ir.Value) -> ir.Value:
        """Where the updates of a batch item begin; likewise below."""
        b, size = self.b, self.what.scatter.dtype.itemsize
        return self._at(self._updates, b.mul(item, b.mul(self.count, self.width)), size)

    def out(self, item: ir.Value) -> ir.Value:
        b, size = self.b, self.what.scatter.dtype.itemsize
        return self._at(self._out, b.mul(item, b.mul(self.slots, self.width)), size)

    def targets(self, item: ir.Value) -> ir.Value:
        return self._at(self._targets, self.b.mul(item, self.count), 8)

    def counts(self, item: ir.Value, chunk: ir.Value) -> ir.Value:
        """A number a bucket: how many updates of a chunk are in it, then where its next one belongs."""
        b = self.b
        row = b.add(b.mul(item, self.chunks), chunk)
        return self._at(self._counts, b.mul(row, self.buckets), self.what.index.itemsize)

    def records(self, item: ir.Value) -> ir.Value:
        return self._at(self._records, self.b.mul(item, self.count), 2 * self.what.index.itemsize)

    def sorted(self, item: ir.Value) -> ir.Value:
        return self._at(self._sorted, self.b.mul(item, self.count), self.what.index.itemsize)

    # -- elements ------------------------------------------------------------------------------------------------------

    def number(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """An element of an array of positions or counts, as int64."""
        b = self.b
        found = b.load(self._number(base, index), align=self.what.index.itemsize, typ=self.index_type)
        return b.sext(found, I64) if self.index_type.width < 64 else found

    def write_number(self, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
        self.b.store(self.narrow(value), self._number(base, index), align=self.what.index.itemsize)

    def _number(self, base: ir.Value, index: ir.Value) -> ir.Value:
        return offset(self.b, base, self.b.mul(index, I64(self.what.index.itemsize)))

    def narrow(self, value: ir.Value) -> ir.Value:
        """An int64 as memory has it."""
        return self.b.trunc(value, self.index_type) if self.index_type.width < 64 else value

    def record(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """Where a slot and a position stand."""
        return offset(self.b, base, self.b.mul(index, I64(2 * self.what.index.itemsize)))

    def run(self, ends: ir.Value, slot: ir.Value, before: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the run of a slot begins and ends, by where runs end; the first one begins ``before``."""
        b = self.b
        with if_else(b, b.icmp_signed(">", slot, I64(0))) as branch:
            with branch.then():
                branch.give(self.number(ends, b.sub(slot, I64(1))))
            with branch.otherwise():
                branch.give(before)
        return branch.results[0], self.number(ends, slot)

    def chunk(self, item: ir.Value, chunk: ir.Value, each: Callable[[ir.Value, ir.Value, ir.Value], None]) -> None:
        """``each(position, slot, bucket)`` of the updates of a chunk that have a target."""
        b, targets = self.b, self.targets(item)
        start = b.mul(chunk, I64(CHUNK))
        with for_range(b, start, minimum(b, b.add(start, I64(CHUNK)), self.count)) as i:
            slot = b.load(offset(b, targets, b.shl(i, I64(3))), align=8, typ=I64)
            with if_then(b, b.icmp_signed(">=", slot, I64(0)), likely=True):
                each(i, slot, b.lshr(slot, self.shift) if self.what.coarse else slot)


def build_count(module: ir.Module, name: str, what: SortedUpdates) -> ir.Function:
    """A task is a chunk of a batch item: how many of its updates each bucket has."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = Words(b, what, args)
    with for_range(b, begin, end) as task:
        item, chunk = b.udiv(task, w.chunks), b.urem(task, w.chunks)
        counts = w.counts(item, chunk)
        with for_range(b, 0, w.buckets) as bucket:
            w.write_number(I64(0), counts, bucket)

        def tally(i: ir.Value, slot: ir.Value, bucket: ir.Value, counts: ir.Value = counts) -> None:
            w.write_number(b.add(w.number(counts, bucket), I64(1)), counts, bucket)

        w.chunk(item, chunk, tally)
    b.ret_void()
    return function


def build_starts(module: ir.Module, name: str, what: SortedUpdates) -> ir.Function:
    """A task is a batch item: where the updates of each bucket belong, one chunk's behind another's."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = Words(b, what, args)
    with for_range(b, begin, end) as item:
        with loop(b, 0, w.buckets, init=[I64(0)]) as over:
            with loop(b, 0, w.chunks, init=[over.values[0]]) as it:
                counts = w.counts(item, it.index)
                number = w.number(counts, over.index)
                w.write_number(it.values[0], counts, over.index)
                it.advance(b.add(it.values[0], number))
            over.advance(it.results[0])
    b.ret_void()
    return function


def build_place(module: ir.Module, name: str, what: SortedUpdates) -> ir.Function:
    """A task is a chunk of a batch item, whose updates go where they belong. Then a chunk's counts are where its part
    of each bucket ends: the last chunk's, where buckets do."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = Words(b, what, args)
    with for_range(b, begin, end) as task:
        item, chunk = b.udiv(task, w.chunks), b.urem(task, w.chunks)
        counts, records, placed = w.counts(item, chunk), w.records(item), w.sorted(item)

        def place(i: ir.Value, slot: ir.Value, bucket: ir.Value) -> None:
            at = w.number(counts, bucket)  # noqa: B023  (called at once)
            w.write_number(b.add(at, I64(1)), counts, bucket)  # noqa: B023
            if what.coarse:
                record = w.record(records, at)  # noqa: B023
                w.write_number(slot, record, I64(0))
                w.write_number(i, record, I64(1))
            else:
                w.write_number(i, placed, at)  # noqa: B023

        w.chunk(item, chunk, place)
    b.ret_void()
    return function
