"""Runs of a scatter with few columns: a block of threads has a window of sorted updates of one column."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Value
from volta.emit.loops import I32, I64, for_range, if_else, if_then, minimum, offset
from volta.emit.reducers import BLOCK, LANES, State
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    new_entry,
    shared_memory,
    shuffle_xor,
    thread_index,
)
from volta.numba_cuda.ordering.indexing import TILE_THREADS as THREADS
from volta.numba_cuda.ordering.indexing import divide
from volta.numba_cuda.ordering.long_runs import finish_block, own_lanes
from volta.numba_cuda.ordering.scattering import SHORT, Updates
from volta.xla_like.ordering import ScatterSpec

EACH = 4
"""Updates of a thread."""

WINDOW = EACH * THREADS
TOGETHER = 8
"""Lanes that sum a run of up to 64 updates together."""


def windows_of(count: int) -> int:
    """Windows of an item's updates, for a block of threads each."""
    return -(-count // WINDOW)


def build_narrow(module: ir.Module, name: str, spec: ScatterSpec, carried: bool) -> ir.Function:
    """All runs, where there are few columns: a block of threads has `WINDOW` sorted updates of one column.

    It copies their values, and some more, into shared memory. A thread whose update is alone combines it; runs of up to
    64 that begin in the window are listed, and groups of `TOGETHER` lanes sum them; so are the blocks of longer
    ones, which warps sum. What threads read of several updates is in flight at once.
    """
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, function.args[0], 1, carried)
    thread = thread_index(b)
    per_item = b.udiv(b.add(u.count, I64(WINDOW - 1)), I64(WINDOW))
    row, window = divide(b, block_index(b), per_item)
    batch, column = divide(b, row, u.width)
    u.item(batch, column)
    first, last = b.mul(window, I64(WINDOW)), b.sub(u.count, I64(1))
    own = [b.add(thread, I64(k * THREADS)) for k in range(EACH)]
    places = [b.add(first, x) for x in own]
    values = _Values(u, shared_memory(module, b, f"{name}_values", 8 * (WINDOW + LANES)))
    short, long = _Listed(b, f"{name}_short", WINDOW // 2), _Listed(b, f"{name}_long", 2 * WINDOW // LANES)
    values.load(own, [minimum(b, i, last) for i in places])
    with if_then(b, b.icmp_signed("<", thread, I64(LANES))):
        values.load([b.add(thread, I64(WINDOW))], [minimum(b, b.add(places[0], I64(WINDOW)), last)])
    slots = [u.record(minimum(b, i, last))[1] for i in places]
    there = [
        b.and_(b.icmp_signed("<", i, u.count), b.icmp_signed("<", slot, u.slots))
        for i, slot in zip(places, slots, strict=True)
    ]
    runs = [u.run(b.select(x, slot, I64(0))) for x, slot in zip(there, slots, strict=True)]
    barrier(b)  # the values are there, and the lists are empty
    single = []
    for i, x, (start, end) in zip(places, there, runs, strict=True):
        begins = b.and_(x, b.icmp_signed("==", b.and_(b.sub(i, start), I64(BLOCK - 1)), I64(0)))
        number = b.sub(end, start)
        alone, many = b.icmp_signed("==", number, I64(1)), b.icmp_signed(">", number, I64(LANES))
        single.append(b.and_(begins, alone))
        k = len(single) - 1
        short.add(b.and_(begins, b.not_(b.or_(alone, many))), own[k], number, slots[k])
        long.add(b.and_(begins, many), own[k], I64(0), slots[k])
    olds = [_old(u, x, slot) for x, slot in zip(single, slots, strict=True)]
    for x, old, slot, i in zip(single, olds, slots, own, strict=True):
        with if_then(b, x):
            u.combine(slot, (values.get(i),), old)
    barrier(b)
    _sum_short(u, short, values, thread)
    _sum_long(u, long, first, batch, column, thread)
    b.ret_void()
    return function


def _old(u: Updates, wanted: ir.Value, slot: ir.Value) -> Value:
    """The target that is to be combined with something; nothing that anybody uses if it is not ``wanted``."""
    with if_else(u.b, wanted) as branch:
        with branch.then():
            branch.give(u.read(slot).ir)
        with branch.otherwise():
            branch.give(u.identity().ir)
    return u.builder.value(branch.results[0], u.identity().dtype)


class _Values:
    """Values of a block's updates in shared memory."""

    def __init__(self, u: Updates, space: ir.Value) -> None:
        self.u, self.space = u, space

    def _place(self, index: ir.Value) -> ir.Value:
        return offset(self.u.b, self.space, self.u.b.shl(index, I64(3)))

    def load(self, indices: Sequence[ir.Value], updates: Sequence[ir.Value]) -> None:
        for index, x in zip(indices, [self.u.load(i) for i in updates], strict=True):
            self.u.builder.store(x, self._place(index))

    def get(self, index: ir.Value) -> Value:
        assert self.u.reducer is not None
        return self.u.builder.load(self._place(index), self.u.reducer.dtype)


class _Listed:
    """Runs of a block of threads to be summed, in any order: where they begin, how long they are, and their slots."""

    def __init__(self, b: ir.IRBuilder, name: str, most: int) -> None:
        self.b = b
        self.codes = shared_memory(b.module, b, f"{name}_codes", 4 * most)
        self.slots = shared_memory(b.module, b, f"{name}_slots", 4 * most)
        self.length = shared_memory(b.module, b, f"{name}_length", 4)
        with if_then(b, b.icmp_signed("==", thread_index(b), I64(0))):
            b.store(I32(0), self.length, align=4)

    def add(self, wanted: ir.Value, first: ir.Value, number: ir.Value, slot: ir.Value) -> None:
        """List a run, if it is wanted."""
        b = self.b
        with if_then(b, wanted):
            counter = b.addrspacecast(self.length, ir.PointerType(addrspace=3))
            at = b.shl(b.zext(b.atomic_rmw("add", counter, I32(1), "monotonic"), I64), I64(2))
            b.store(b.trunc(b.or_(first, b.shl(number, I64(16))), I32), offset(b, self.codes, at), align=4)
            b.store(b.trunc(slot, I32), offset(b, self.slots, at), align=4)

    def count(self) -> ir.Value:
        return self.b.zext(self.b.load(self.length, align=4, typ=I32), I64)

    def run(self, i: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """First update, number and slot of the i-th run."""
        b = self.b
        code, slot = (b.load(offset(b, x, b.shl(i, I64(2))), align=4, typ=I32) for x in (self.codes, self.slots))
        return b.zext(b.and_(code, I32(0xFFFF)), I64), b.zext(b.lshr(code, I32(16)), I64), b.zext(slot, I64)


def _sum_short(u: Updates, listed: _Listed, values: _Values, thread: ir.Value) -> None:
    """Sum the listed runs, of up to 64 updates each: a member of a group has every `TOGETHER`-th."""
    b, count = u.b, listed.count()
    assert u.reducer is not None
    member = b.and_(thread, I64(TOGETHER - 1))
    first = b.lshr(b.and_(thread, I64(-WARP)), I64(TOGETHER.bit_length() - 1))  # the same for all threads of a warp
    with for_range(b, first, count, THREADS // TOGETHER) as base:
        i = b.add(base, b.lshr(b.and_(thread, I64(WARP - 1)), I64(TOGETHER.bit_length() - 1)))
        there = b.icmp_signed("<", i, count)
        begin, number, slot = listed.run(b.select(there, i, base))
        writes = b.and_(there, b.icmp_signed("==", member, I64(0)))
        old = _old(u, writes, slot)

        def own(lanes: int, begin: ir.Value = begin, number: ir.Value = number) -> Value:
            places = [b.add(member, I64(k)) for k in range(0, lanes, TOGETHER)]
            return u.tree([u.among(b.icmp_signed("<", k, number), values.get(b.add(begin, k))) for k in places])[0]

        long = ptx_ops.ballot(b, b.icmp_signed(">", number, I64(SHORT)))
        with if_else(b, b.icmp_signed("==", long, I32(0))) as branch:
            with branch.then():
                branch.give(own(SHORT).ir)
            with branch.otherwise():
                branch.give(own(LANES).ir)
        state: State = (u.builder.value(branch.results[0], u.reducer.dtype),)
        for d in (4, 2, 1):
            state = u.reducer.combine(u.builder, state, tuple(shuffle_xor(b, x, d) for x in state))
        with if_then(b, writes):
            u.combine(slot, state, old)


def _sum_long(
    u: Updates, listed: _Listed, window: ir.Value, batch: ir.Value, column: ir.Value, thread: ir.Value
) -> None:
    """Sum the listed blocks of longer runs, a warp each; ``window`` is the first update of the window."""
    b = u.b
    assert u.reducer is not None
    lane, warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
    with for_range(b, warp, listed.count(), THREADS // WARP) as i:
        begin, _, slot = listed.run(i)
        first = b.add(window, begin)
        start, end = u.run(slot)
        state = own_lanes(u, first, end, lane, WARP, 4)
        for d in (16, 8, 4, 2, 1):
            state = u.reducer.combine(u.builder, state, tuple(shuffle_xor(b, x, d) for x in state))
        with if_then(b, b.icmp_signed("==", lane, I64(0))):
            finish_block(u, batch, column, (slot, start, end, first), state)
