"""Single numbers for many slots, by buckets of slots: a chunk of updates becomes lists of records, one a bucket, of a
slot and a number. A chunk whose targets ascend stays as it is: there a bucket's part is found.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import (
    I32,
    I64,
    PTR,
    any_of,
    for_range,
    if_else,
    if_then,
    intrinsic,
    loop,
    minimum,
    offset,
    while_loop,
)
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.scatter_rows import Rows, bits_at
from volta.numba_cpu.scatter_schedule import RECORDS, Numbers
from volta.numba_cpu.scatter_words import STAGE, Words, put_all, room

_AHEAD = 4
"""Blocks of records that memory is asked for before they are written."""


class Head:
    """What is known of a chunk: whether its targets ascend, from which slot and to which; or where each bucket's list
    ends, and which block of records follows another."""

    def __init__(self, w: Words, item: ir.Value, chunk: ir.Value) -> None:
        self.b, self.w = w.b, w
        which = w.b.add(w.b.mul(item, w.chunks), chunk)
        self.base = w._at(w._heads, which, w._head)
        self.records = w._at(w._records, which, w._list)
        self.ends = offset(self.b, self.base, 64)
        self._after = bits_at(self.b, self.ends, self.b.add(w.buckets, I64(1)))

    def read(self, base: ir.Value, index: ir.Value) -> ir.Value:
        return self.b.zext(self.b.load(bits_at(self.b, base, index), align=4, typ=I32), I64)

    def write(self, x: ir.Value, base: ir.Value, index: ir.Value) -> None:
        self.b.store(self.b.trunc(x, I32), bits_at(self.b, base, index), align=4)

    def after(self, block: ir.Value) -> ir.Value:
        return self.read(self._after, block)

    def follow(self, block: ir.Value, following: ir.Value) -> None:
        self.write(following, self._after, block)

    def record(self, index: ir.Value) -> ir.Value:
        return offset(self.b, self.records, self.b.mul(index, I64(2 * self.w.what.word)))

    def start(self, bucket: ir.Value) -> ir.Value:
        """A list's first record: lists begin at various places of their first blocks."""
        b = self.b
        return b.add(b.mul(bucket, I64(RECORDS)), b.and_(bucket, I64(RECORDS - 8)))

    def fetch(self, block: ir.Value, write: bool) -> None:
        """Ask memory for a block of records."""
        b, lines = self.b, RECORDS * 2 * self.w.what.word // 64
        function = intrinsic(b.module, "llvm.prefetch.p0", ir.VoidType(), [PTR, I32, I32, I32])
        place = self.record(b.mul(block, I64(RECORDS)))
        for line in range(lines):
            b.call(function, [offset(b, place, 64 * line), I32(int(write)), I32(3), I32(1)])


def build_split(module: ir.Module, name: str, what: Numbers) -> ir.Function:
    """A task is a chunk of a batch item: if its targets do not ascend, its updates go to the lists of their buckets."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = Words(b, what, args)
    staged = room(b, STAGE * 2 * what.word)
    with for_range(b, begin, end) as task:
        item, chunk = b.udiv(task, w.chunks), b.urem(task, w.chunks)
        start = b.mul(chunk, w.chunk)
        number = minimum(b, b.sub(w.count, start), w.chunk)
        targets = w.targets(item, start)
        head = Head(w, item, chunk)
        ends = [w.target(targets, I64(0)), w.target(targets, b.sub(number, I64(1)))]
        for i, x in enumerate(ends):
            head.write(x, head.base, I64(1 + i))
        known = b.and_(b.icmp_signed(">=", ends[0], I64(0)), b.icmp_signed("<", ends[1], w.slots))
        ascends = b.and_(known, _ascends(w, targets, number))
        b.store(b.zext(ascends, I32), head.base, align=4)
        with if_then(b, b.not_(ascends)):
            with for_range(b, 0, b.add(w.buckets, I64(1))) as bucket:
                head.write(head.start(bucket), head.ends, bucket)
            with loop(b, 0, number, STAGE, [b.add(w.buckets, I64(1))]) as it:
                stop = minimum(b, b.sub(number, it.index), I64(STAGE))
                _stage(
                    w, w.targets(item, b.add(start, it.index)), w.updates(item, b.add(start, it.index)), stop, staged
                )
                it.advance(_to_lists(w, head, staged, stop, it.values[0]))
    b.ret_void()
    return function


def _ascends(w: Words, targets: ir.Value, number: ir.Value) -> ir.Value:
    """Whether no target is below the one before it; mostly one of the first is."""
    b = w.b
    with b.goto_entry_block():
        at, good = b.alloca(I64), b.alloca(ir.IntType(1))
    b.store(I64(0), at)
    b.store(ir.IntType(1)(1), good)

    def more(step: int) -> ir.Value:
        fits = b.icmp_signed("<", b.add(b.load(at, typ=I64), I64(step)), number)
        return b.and_(b.load(good, typ=ir.IntType(1)), fits)

    def look() -> None:
        i = b.load(at, typ=I64)
        falls = b.icmp_signed(">", w.some(targets, i), w.some(targets, b.add(i, I64(1))))
        b.store(b.not_(any_of(b, falls)), good)
        b.store(b.add(i, I64(w.lanes)), at)

    def look_at_one() -> None:
        i = b.load(at, typ=I64)
        after = b.add(i, I64(1))
        b.store(b.icmp_signed("<=", w.target(targets, i), w.target(targets, after)), good)
        b.store(after, at)

    while_loop(b, lambda: more(w.lanes), look)
    while_loop(b, lambda: more(1), look_at_one)
    return b.load(good, typ=ir.IntType(1))


def _stage(w: Words, targets: ir.Value, updates: ir.Value, number: ir.Value, staged: ir.Value) -> None:
    """Records of updates; one without a slot has that behind the last bucket's."""
    b, nowhere = w.b, w.b.shl(w.buckets, w.shift)
    slots, outside = w.splat(w.slots), w.splat(nowhere)
    whole = b.and_(number, I64(-w.lanes))
    order = [k // 2 + w.lanes * (k % 2) for k in range(2 * w.lanes)]
    mask = ir.Constant(ir.VectorType(I32, 2 * w.lanes), order)
    with for_range(b, 0, whole, w.lanes) as i:
        found = w.some(targets, i)
        known = w.narrow(b.select(b.icmp_unsigned("<", found, slots), found, outside))
        first = known if w.what.word == 4 else b.zext(known, ir.VectorType(w.word, w.lanes))
        b.store(b.shuffle_vector(first, w.values(updates, i), mask), _record(w, staged, i), align=w.what.word)
    with for_range(b, whole, number) as i:
        found = w.target(targets, i)
        known = b.select(b.icmp_unsigned("<", found, w.slots), found, nowhere)
        b.store(b.trunc(known, w.word) if w.what.word == 4 else known, _record(w, staged, i), align=w.what.word)
        b.store(w.value(updates, i), offset(b, _record(w, staged, i), w.what.word), align=w.what.word)


def _record(w: Words, records: ir.Value, index: ir.Value) -> ir.Value:
    return offset(w.b, records, w.b.mul(index, I64(2 * w.what.word)))


def _to_lists(w: Words, head: Head, staged: ir.Value, number: ir.Value, free: ir.Value) -> ir.Value:
    """Records go behind the last ones of their lists; gives the first block that is still free."""
    b, pair = w.b, ir.VectorType(w.word, 2)
    with b.goto_entry_block():
        place = b.alloca(I64)
    b.store(free, place)
    with for_range(b, 0, number) as i:
        source = _record(w, staged, i)
        slot = b.zext(b.load(source, align=4, typ=I32), I64)
        bucket = b.lshr(slot, w.shift)
        at = head.read(head.ends, bucket)
        b.store(b.load(source, align=w.what.word, typ=pair), head.record(at), align=w.what.word)
        after = b.add(at, I64(1))
        head.write(after, head.ends, bucket)
        full = b.icmp_unsigned("==", b.and_(after, I64(RECORDS - 1)), I64(0))
        with if_then(b, full, likely=False):
            block = b.load(place, typ=I64)
            head.follow(b.lshr(at, I64(RECORDS.bit_length() - 1)), block)
            head.write(b.mul(block, I64(RECORDS)), head.ends, bucket)
            b.store(b.add(block, I64(1)), place)
            head.fetch(b.add(block, I64(_AHEAD)), True)
    return b.load(place, typ=I64)


def from_chunks(w: Words, rows: Rows, item: ir.Value, bucket: ir.Value, first: ir.Value, count: ir.Value) -> None:
    """A bucket's updates, of one chunk after the other."""
    b, out = w.b, w.out(item)
    with for_range(b, 0, w.chunks) as chunk:
        head = Head(w, item, chunk)
        ascends = b.icmp_unsigned("!=", b.load(head.base, align=4, typ=I32), I32(0))
        with if_else(b, ascends) as branch:
            with branch.then():
                low, high = head.read(head.base, I64(1)), head.read(head.base, I64(2))
                stop = b.add(first, count)
                with if_then(b, b.and_(b.icmp_signed("<", low, stop), b.icmp_signed(">=", high, first))):
                    begin = b.mul(chunk, w.chunk)
                    number = minimum(b, b.sub(w.count, begin), w.chunk)
                    targets, updates = w.targets(item, begin), w.updates(item, begin)
                    ends = [_lower_bound(w, targets, number, x) for x in (first, stop)]
                    put_all(w, rows, out, (targets, w.what.target), (updates, w.item), *ends)
            with branch.otherwise():
                _from_list(w, rows, head, bucket, out)


def _from_list(w: Words, rows: Rows, head: Head, bucket: ir.Value, out: ir.Value) -> None:
    b, size = w.b, 2 * w.what.word
    with b.goto_entry_block():
        at, block = b.alloca(I64), b.alloca(I64)
    end = head.read(head.ends, bucket)
    last = b.lshr(end, I64(RECORDS.bit_length() - 1))
    b.store(head.start(bucket), at)
    b.store(bucket, block)

    def put(stop: ir.Value) -> None:
        keys, values = head.records, offset(b, head.records, w.what.word)
        put_all(w, rows, out, (keys, size), (values, size), b.load(at, typ=I64), stop)

    def one_block() -> None:
        here = b.load(block, typ=I64)
        following = head.after(here)
        head.fetch(following, False)
        put(b.mul(b.add(here, I64(1)), I64(RECORDS)))
        b.store(following, block)
        b.store(b.mul(following, I64(RECORDS)), at)

    while_loop(b, lambda: b.icmp_unsigned("!=", b.load(block, typ=I64), last), one_block)
    put(end)


def _lower_bound(w: Words, targets: ir.Value, number: ir.Value, slot: ir.Value) -> ir.Value:
    """How many of some targets that ascend are below a slot."""
    b = w.b
    with b.goto_entry_block():
        low, high = b.alloca(I64), b.alloca(I64)
    b.store(I64(0), low)
    b.store(number, high)

    def halve() -> None:
        lower, upper = (b.load(x, typ=I64) for x in (low, high))
        middle = b.lshr(b.add(lower, upper), I64(1))
        below = b.icmp_signed("<", w.target(targets, middle), slot)
        b.store(b.select(below, b.add(middle, I64(1)), lower), low)
        b.store(b.select(below, upper, middle), high)

    while_loop(b, lambda: b.icmp_signed("<", b.load(low, typ=I64), b.load(high, typ=I64)), halve)
    return b.load(low, typ=I64)
