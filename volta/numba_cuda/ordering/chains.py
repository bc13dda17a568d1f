"""What comes before each block of a row that is scanned: the chain of the blocks' totals, each added to all before it.

Integers, maxima and minima may be combined in any order. Sums and products of floats are one chain, in which each
rounding depends on the one before. Where it is long, a warp traverses it from leaf to leaf of 32 totals, and finds
what comes before each leaf; what reads that traverses the leaves. Of sums it can skip most leaves, with the same bits
(jumps.py): other warps, which have the sums of leaves to go by, prepare that.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.builder import Builder, Value, is_float, item_size, scalar_type
from volta.emit.loops import I32, I64, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import Reducer
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    shuffle,
    thread_index,
    warp_barrier,
)
from volta.numba_cuda.ordering.jumps import LEAF, Jumper, Maker, record_bytes
from volta.xla_like.ordering import SCANS

THREADS = 128
WARPS = THREADS // WARP
EACH = 4  # totals that a lane reads at once
LONG = 512
"""Totals from which on a row's chain is a long one."""

PIECE = WARP * LEAF
"""Totals of a long chain that a warp has at once: a leaf for each lane."""

_ON_THE_WAY = 7
_SHARED = 48 << 10


def in_any_order(kind: str, dtype: str) -> bool:
    """Whether running values may be combined in any order: all but sums and products of floats."""
    return kind in ("cummax", "cummin") or not is_float(dtype)


def is_long(blocks: int, kind: str, dtype: str) -> bool:
    return blocks >= LONG and not in_any_order(kind, dtype)


def totals_of(blocks: int, kind: str, dtype: str) -> int:
    """Totals of a row with so many blocks: whole pieces, so that the chain needs no care at the end."""
    piece = PIECE if is_long(blocks, kind, dtype) else WARP * EACH
    return -(-blocks // piece) * piece


def build_chain(module: ir.Module, name: str, kind: str, dtype: str) -> ir.Function:
    """From the totals of a row's blocks, what comes before each; a warp a row. Words: totals, rows, totals a row.

    A piece of the totals lies in shared memory, four for each lane. Sums of floats are one chain; all lanes traverse it
    alike; otherwise each lane combines its own, and lanes combine what they have.
    """
    function, b = new_entry(module, name, THREADS)
    one, four, reducer = Builder(b, 1), Builder(b, EACH), Reducer(SCANS[kind], dtype)
    totals0, rows, pitch = load_args(b, function.args[0], 3)
    thread = thread_index(b)
    lane, warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
    row = b.add(b.mul(block_index(b), I64(WARPS)), warp)
    size = item_size(dtype)
    piece, align = WARP * EACH * size, min(16, EACH * size)
    space = offset(b, shared_memory(module, b, f"{name}_totals", WARPS * piece), b.mul(warp, I64(piece)))
    own = offset(b, space, b.mul(lane, I64(EACH * size)))

    def join(x: Value, y: Value) -> Value:
        return reducer.combine(one, (x,), (y,))[0]

    with if_then(b, b.icmp_signed("<", row, rows)):
        totals = offset(b, device_pointer(b, totals0), b.mul(b.mul(row, pitch), I64(size)))
        mine = offset(b, totals, b.mul(lane, I64(EACH * size)))
        last = b.sub(pitch, I64(WARP * EACH))

        def read(start: ir.Value) -> ir.Value:
            return four.load(offset(b, mine, b.mul(minimum(b, start, last), I64(size))), dtype, align).ir

        with loop(b, 0, pitch, WARP * EACH, [reducer.identity(one)[0].ir, read(I64(0))]) as it:
            carried, found = one.value(it.values[0], dtype), four.value(it.values[1], dtype)
            following = read(b.add(it.index, I64(WARP * EACH)))
            four.store(found, own, dtype, align)
            warp_barrier(b)
            if in_any_order(kind, dtype):
                each = [four.lane(found, k) for k in range(EACH)]
                before, carried = _lanes_combined(one, join, each, carried, reducer.identity(one)[0], lane)
            else:
                before, carried = _walked(one, join, dtype, space, carried, b.icmp_signed("==", it.index, I64(0)), lane)
            warp_barrier(b)
            four.store(_together(four, before), offset(b, mine, b.mul(it.index, I64(size))), dtype, align)
            it.advance(carried.ir, following)
    b.ret_void()
    return function


def build_jumps(module: ir.Module, name: str, dtype: str) -> ir.Function:
    """Prepare jumps along the totals of rows; a thread has a leaf.

    Words: totals, leaf sums, records, first piece, piece behind the last, pieces of a row. About what comes
    before a leaf is what the leaves' sums before it amount to, in any order.
    """
    function, b = new_entry(module, name, THREADS)
    totals, sums, records, begin, stop, pieces = load_args(b, function.args[0], 6)
    totals, sums, records = (device_pointer(b, x) for x in (totals, sums, records))
    thread, size, kind = thread_index(b), item_size(dtype), scalar_type(dtype)
    lane, warp = b.trunc(b.and_(thread, I64(WARP - 1)), I32), b.lshr(thread, I64(WARP.bit_length() - 1))
    blocks = b.udiv(b.add(b.sub(stop, begin), I64(WARPS - 1)), I64(WARPS))
    row, block = b.udiv(block_index(b), blocks), b.urem(block_index(b), blocks)
    base = b.mul(row, pieces)
    first = b.add(begin, b.mul(block, I64(WARPS)))
    piece = minimum(b, b.add(first, warp), b.sub(stop, I64(1)))
    sums = offset(b, sums, b.mul(base, I64(WARP * size)))

    def sum_of(leaf: ir.Value) -> ir.Value:
        return b.load(offset(b, sums, b.mul(leaf, I64(size))), align=size, typ=kind)

    leaf = b.add(b.mul(piece, I64(WARP)), b.zext(lane, I64))
    four = Builder(b, EACH)
    own = offset(b, totals, b.mul(b.add(b.mul(base, I64(WARP)), leaf), I64(LEAF * size)))
    found = [four.load(offset(b, own, k * size), dtype, min(16, EACH * size)) for k in range(0, LEAF, EACH)]
    numbers = [four.lane(x, i).ir for x in found for i in range(EACH)]
    with loop(b, thread, b.mul(first, I64(WARP)), THREADS, [kind(0)]) as it:
        it.advance(b.fadd(it.values[0], sum_of(it.index)))
    with loop(b, b.mul(first, I64(WARP)), b.mul(piece, I64(WARP)), WARP, [kind(0)]) as near:
        near.advance(b.fadd(near.values[0], sum_of(b.add(near.index, b.zext(lane, I64)))))
    before = _sum_of_lanes(b, dtype, it.results[0])
    space = shared_memory(module, b, f"{name}_sums", WARPS * size)
    with if_then(b, b.icmp_unsigned("==", lane, I32(0))):
        b.store(before, offset(b, space, b.mul(warp, I64(size))), align=size)
    barrier(b)
    guess = _sum_of_lanes(b, dtype, near.results[0])
    for w in range(WARPS):
        guess = b.fadd(guess, b.load(offset(b, space, w * size), align=size, typ=kind))
    upto = sum_of(leaf)
    for d in (1, 2, 4, 8, 16):
        other = shuffle(b, "up", Builder(b, 1).value(upto, dtype), I32(d)).ir
        upto = b.fadd(upto, b.select(b.icmp_unsigned(">=", lane, I32(d)), other, kind(0)))
    upto = shuffle(b, "up", Builder(b, 1).value(upto, dtype), I32(1)).ir
    guess = b.fadd(guess, b.select(b.icmp_unsigned("==", lane, I32(0)), kind(0), upto))
    record = offset(b, records, b.mul(b.add(base, piece), I64(record_bytes(dtype))))
    with if_then(b, b.icmp_signed("<", b.add(first, warp), stop)):
        Maker(b, dtype, lane, record).make(numbers, guess)
    b.ret_void()
    return function


def _sum_of_lanes(b: ir.IRBuilder, dtype: str, x: ir.Value) -> ir.Value:
    """About the sum of all lanes' numbers."""
    for d in (16, 8, 4, 2, 1):
        x = b.fadd(x, shuffle(b, "bfly", Builder(b, 1).value(x, dtype), I32(d)).ir)
    return x


class _LongChain:
    """The pieces of a row's chain, with the records of their jumps if there are any, on their way to shared memory."""

    def __init__(self, b: ir.IRBuilder, name: str, kind: str, dtype: str, args: ir.Value) -> None:
        self.b, self.dtype, self.size, self.one = b, dtype, item_size(dtype), Builder(b, 1)
        self.reducer, self.jumps = Reducer(SCANS[kind], dtype), kind == "cumsum"
        words = load_args(b, args, 7)
        totals, records, begins, ends = (device_pointer(b, x) for x in words[:4])
        self.first, self.stop, pieces = words[4:]
        self.last = b.sub(self.stop, I64(1))
        base = b.mul(block_index(b), pieces)
        self.parts = [(offset(b, totals, b.mul(base, I64(PIECE * self.size))), PIECE * self.size)]
        if self.jumps:
            self.parts.append((offset(b, records, b.mul(base, I64(record_bytes(dtype)))), record_bytes(dtype)))
        self.begins = offset(
            b, begins, b.mul(b.mul(block_index(b), b.sub(self.stop, self.first)), I64(WARP * self.size))
        )
        self.end = offset(b, ends, b.mul(block_index(b), I64(self.size)))
        self.lane = thread_index(b)
        self.stage = sum(nbytes for _, nbytes in self.parts)
        self.stages = min(_ON_THE_WAY, _SHARED // self.stage)
        self.space = shared_memory(b.module, b, f"{name}_pieces", self.stages * self.stage)

    def identity(self) -> ir.Value:
        return self.reducer.identity(self.one)[0].ir

    def following(self, place: ir.Value) -> ir.Value:
        """Where the next piece lies, as a distance from the start of shared memory."""
        b = self.b
        place = b.add(place, I64(self.stage))
        return b.select(b.icmp_signed("==", place, I64(self.stages * self.stage)), I64(0), place)

    def load(self, piece: ir.Value, place: ir.Value) -> None:
        """Send for a piece; beyond the end for the last one, in vain."""
        b = self.b
        to, piece = offset(b, self.space, place), minimum(b, piece, self.last)
        for base, nbytes in self.parts:
            source = offset(b, base, b.mul(piece, I64(nbytes)))
            for k in range(0, nbytes, 16 * WARP):
                own = b.add(b.shl(self.lane, I64(4)), I64(k))
                if nbytes - k >= 16 * WARP:
                    ptx_ops.copy_async(b, offset(b, to, own), offset(b, source, own), 16)
                else:
                    with if_then(b, b.icmp_signed("<", own, I64(nbytes))):
                        ptx_ops.copy_async(b, offset(b, to, own), offset(b, source, own), 16)
            to = offset(b, to, nbytes)
        ptx_ops.commit_copies(b)

    def traversed(self, piece: ir.Value, leaf: ir.Value, running: ir.Value) -> ir.Value:
        """What the totals of a leaf (i32) of a piece, one after the other, add up to behind a number."""
        four = Builder(self.b, EACH)
        own = offset(self.b, piece, self.b.mul(self.b.zext(leaf, I64), I64(LEAF * self.size)))
        found = [four.load(offset(self.b, own, k * self.size), self.dtype, 16) for k in range(0, LEAF, EACH)]
        here = self.one.value(running, self.dtype)
        for x in found:
            for i in range(EACH):
                here = self.reducer.combine(self.one, (here,), (four.lane(x, i),))[0]
        return here.ir

    def all_walked(self, piece: ir.Value, running: ir.Value) -> tuple[ir.Value, ir.Value]:
        """What comes before the lane's leaf, and behind the last, by traversing all."""
        b = self.b
        with loop(b, 0, WARP, 1, [running, running], some=True) as it:
            here, begin = it.values
            begin = b.select(b.icmp_signed("==", it.index, self.lane), here, begin)
            it.advance(self.traversed(piece, b.trunc(it.index, I32), here), begin)
        return it.results[1], it.results[0]


def _jumper(c: _LongChain, place: ir.Value) -> Jumper:
    """What jumps along the piece at a place in shared memory."""
    piece = offset(c.b, c.space, place)
    record = offset(c.b, piece, PIECE * c.size)
    return Jumper(c.b, c.dtype, c.b.trunc(c.lane, I32), record, lambda leaf, x: c.traversed(piece, leaf, x))


def build_long_chain(module: ir.Module, name: str, kind: str, dtype: str) -> ir.Function:
    """What comes before each leaf of 32 totals of rows; a warp has a row, and some pieces are in flight to it.

    Words: totals, records, begins [rows, leaves], ends [rows], first piece, piece behind the last, pieces of a row.
    What the row amounts to behind the last piece is left in ``ends``, where the next part of it is taken up.
    """
    function, b = new_entry(module, name, WARP)
    c = _LongChain(b, name, kind, dtype, function.args[0])
    with if_else(b, b.icmp_signed("==", c.first, I64(0))) as begun:
        with begun.then():
            begun.give(c.identity())
        with begun.otherwise():
            begun.give(c.one.load(c.end, dtype).ir)
    for k in range(c.stages - 1):
        c.load(b.add(c.first, I64(k)), I64(k * c.stage))
    ptx_ops.wait_copies(b, c.stages - 2)
    warp_barrier(b)
    known = _jumper(c, I64(0)).over_all() if c.jumps else []
    places = [I64(0), I64(c.stage), I64((c.stages - 1) * c.stage)]  # of this piece, the next, and the one to send for
    with loop(b, c.first, c.stop, 1, [*begun.results, *places, *known]) as it:
        here, after, free = it.values[1:4]
        ptx_ops.wait_copies(b, c.stages - 3)
        warp_barrier(b)  # the next piece is there, and the one before this is not needed any more
        c.load(b.add(it.index, I64(c.stages - 1)), free)
        if c.jumps:
            known = _jumper(c, after).over_all()
            begin, running = _jumper(c, here).traverse(it.values[0], it.values[4:])
        else:
            begin, running = c.all_walked(offset(b, c.space, here), it.values[0])
        leaf = b.add(b.mul(b.sub(it.index, c.first), I64(WARP)), c.lane)
        b.store(begin, offset(b, c.begins, b.mul(leaf, I64(c.size))), align=c.size)
        it.advance(running, after, c.following(after), here, *known)
    ptx_ops.wait_copies(b, 0)
    with if_then(b, b.icmp_signed("==", c.lane, I64(0))):
        b.store(it.results[0], c.end, align=c.size)
    b.ret_void()
    return function


def _together(many: Builder, values: list[Value]) -> Value:
    result = ir.Constant(many.type_of(values[0].dtype), ir.Undefined)
    for k, x in enumerate(values):
        result = many.irbuilder.insert_element(result, x.ir, I32(k))
    return many.value(result, values[0].dtype)


Join = Callable[[Value, Value], Value]


def _walked(
    one: Builder, join: Join, dtype: str, space: ir.Value, running: Value, start: ir.Value, lane: ir.Value
) -> tuple[list[Value], Value]:
    """What comes before each of the lane's totals, all of the piece being added one after the other; and their sum."""
    b, size = one.irbuilder, item_size(dtype)
    every = [one.load(offset(b, space, k * size), dtype) for k in range(WARP * EACH)]
    mine = [running] * EACH
    for k, x in enumerate(every):
        if k % EACH == 0:
            here = one.value(b.icmp_signed("==", lane, I64(k // EACH)), "bool")
        mine[k % EACH] = one.select(here, running, mine[k % EACH])
        joined = join(running, x)
        running = joined if k else one.select(one.value(start, "bool"), x, joined)
    return mine, running


def _lanes_combined(
    one: Builder, join: Join, found: list[Value], carried: Value, identity: Value, lane: ir.Value
) -> tuple[list[Value], Value]:
    """The same where the order does not matter."""
    b = one.irbuilder
    upto = found[0]
    for x in found[1:]:
        upto = join(upto, x)
    for d in (1, 2, 4, 8, 16):
        other = shuffle(b, "up", upto, I32(d))
        upto = one.select(one.value(b.icmp_signed(">=", lane, I64(d)), "bool"), join(other, upto), upto)
    whole = join(carried, shuffle(b, "idx", upto, I32(WARP - 1)))
    first = one.value(b.icmp_signed("==", lane, I64(0)), "bool")
    running = join(carried, one.select(first, identity, shuffle(b, "up", upto, I32(1))))
    mine = []
    for x in found:
        mine.append(running)
        running = join(running, x)
    return mine, whole
