"""Running sums, products, maxima and minima: blocks of 256 elements, each by one lane, 32 of them by a warp.

The order of a scan is fixed: within a block from its first element on, and block after block. So a lane walks along a
block of its own, through shared memory, where a warp puts 32 pieces of 32 elements, read and written by whole lines.
Rows of up to 32 blocks take one kernel. Longer ones take three: the blocks' totals, what the blocks before each amount
to, one warp a row, and the results.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.core.contract import DEFINITIONS
from volta.emit.builder import Builder, Value, compute_dtype, is_float, item_size
from volta.emit.loops import I1, I32, I64, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import Reducer
from volta.numba_cuda.target import ptx_ops
from volta.numba_cuda.target.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    own_args,
    shared_memory,
    shuffle,
    thread_index,
    warp_barrier,
)
from volta.xla_like.opaque import ScanSpec

THREADS = 128
WARPS = THREADS // WARP
BLOCK = DEFINITIONS.scan_block
TRUE = I1(1)
EACH = 4  # totals of blocks that a lane reads at once
PIECE = THREADS * EACH  # of a long chain
PITCH = WARP + 1  # of a piece's lines in shared memory: lanes that walk along lines hit different banks

REDUCTION = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


class _Scan:
    """A warp's blocks. Words: from, to, totals, rows, length, blocks a row, blocks a warp, totals a row."""

    def __init__(self, b: ir.IRBuilder, name: str, spec: ScanSpec, args: ir.Value) -> None:
        self.b, self.spec, self.one = b, spec, Builder(b, 1)
        self.dtype, self.kind = spec.dtype.name, compute_dtype(spec.dtype.name)
        self.reducer = Reducer(REDUCTION[spec.kind], self.kind)
        source, to, totals, rows, length, blocks, each, pitch = load_args(b, own_args(b, args), 8)
        self.source, self.to, self.totals = (device_pointer(b, x) for x in (source, to, totals))
        thread = thread_index(b)
        self.lane = b.and_(thread, I64(WARP - 1))
        warp = b.lshr(thread, I64(WARP.bit_length() - 1))
        number = b.add(b.mul(b.add(b.mul(block_index(b), I64(WARPS)), warp), each), self.lane)
        self.valid = b.and_(b.icmp_signed("<", self.lane, each), b.icmp_signed("<", number, b.mul(rows, blocks)))
        self.number = b.select(self.valid, number, I64(0))
        row, self.block = b.udiv(self.number, blocks), b.urem(self.number, blocks)
        self.place = b.add(b.mul(row, pitch), self.block)
        start = b.mul(self.block, I64(BLOCK))
        self.count = b.select(self.valid, minimum(b, b.sub(length, start), I64(BLOCK)), I64(0))
        place = b.sub(b.sub(length, I64(1)), start) if spec.reverse else start
        self.origin = b.add(b.mul(row, length), place)
        self.first = b.icmp_signed("==", self.block, I64(0))
        self.several = b.icmp_signed(">", blocks, I64(1))
        space = shared_memory(b.module, b, f"{name}_pieces", WARPS * WARP * PITCH * item_size(self.kind))
        self.space = offset(b, space, b.mul(warp, I64(WARP * PITCH * item_size(self.kind))))

    def join(self, x: Value, y: Value) -> Value:
        return self.reducer.combine(self.one, (x,), (y,))[0]

    def identity(self) -> Value:
        return self.reducer.identity(self.one)[0]

    def _piece(self, line: ir.Value | int, column: ir.Value | int) -> ir.Value:
        b = self.b
        line, column = (I64(x) if isinstance(x, int) else x for x in (line, column))
        return offset(b, self.space, b.mul(b.add(b.mul(line, I64(PITCH)), column), I64(item_size(self.kind))))

    def _line(self, line: int, start: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The lane's element of a line of the piece from ``start`` on: where it lies, and whether it is one."""
        b = self.b
        origin = shuffle(b, "idx", Builder(b, 1).value(self.origin, "int64"), I32(line)).ir
        count = b.zext(ptx_ops.shuffle(b, "idx", b.trunc(self.count, I32), I32(line)), I64)
        i = b.add(start, self.lane)
        inside = b.icmp_signed("<", i, count)
        at = b.sub(origin, i) if self.spec.reverse else b.add(origin, i)
        return b.mul(b.select(inside, at, I64(0)), I64(self.spec.dtype.itemsize)), inside

    def walk(self, result: Callable[[Value], Value] | None, writes: ir.Value = TRUE) -> Value:
        """Walk along all blocks, and write each element's ``result``, if ``writes``; returns the totals."""
        b, one, n = self.b, self.one, self.spec.dtype.itemsize
        with loop(b, 0, BLOCK, WARP, [self.identity().ir]) as it:
            lines = [self._line(line, it.index) for line in range(WARP)]
            found = [one.load(offset(b, self.source, at), self.dtype, n) for at, _ in lines]
            for line, x in enumerate(found):
                one.store(x, self._piece(line, self.lane))
            warp_barrier(b)
            running = one.value(it.values[0], self.kind)
            own = [one.load(self._piece(self.lane, k), self.kind) for k in range(WARP)]
            results = []
            for k, x in enumerate(own):
                inside = one.value(b.icmp_signed("<", b.add(it.index, I64(k)), self.count), "bool")
                running = one.select(inside, self.join(running, x), running)
                results.append(running if result is None else result(running))
            warp_barrier(b)
            if result is not None:
                with if_then(b, writes):
                    self._write(results, it.index)
            it.advance(running.ir)
        return one.value(it.results[0], self.kind)

    def _write(self, results: list[Value], start: ir.Value) -> None:
        """Write what the lanes have for their lines of a piece."""
        b, one = self.b, self.one
        for k, x in enumerate(results):
            one.store(x, self._piece(self.lane, k))
        warp_barrier(b)
        for line in range(WARP):
            at, inside = self._line(line, start)
            with if_then(b, inside):
                one.store(one.load(self._piece(line, self.lane), self.kind), offset(b, self.to, at), self.dtype)
        warp_barrier(b)

    def after(self, before: Value) -> Callable[[Value], Value]:
        """The result of a running value: what comes before the block, if anything does, and the value."""
        first = self.one.value(self.first, "bool")
        return lambda running: self.one.select(first, running, self.join(before, running))

    def total_place(self) -> ir.Value:
        return offset(self.b, self.totals, self.b.mul(self.place, I64(item_size(self.kind))))


def build_scan(module: ir.Module, name: str, spec: ScanSpec) -> ir.Function:
    """Rows of up to 32 blocks: a warp has all blocks of its rows. It walks twice, the first time for the totals; where
    rows are one block, once."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    with loop(b, b.select(s.several, I64(0), I64(1)), 2, 1, [s.identity().ir]) as turn:
        before = s.one.value(turn.values[0], s.kind)
        writes = b.icmp_signed("==", turn.index, I64(1))
        total = s.walk(s.after(before), writes)
        with if_else(b, writes) as branch:
            with branch.then():
                branch.give(before.ir)
            with branch.otherwise():
                branch.give(_before(s, total).ir)
        turn.advance(branch.results[0])
    b.ret_void()
    return function


def _before(s: _Scan, total: Value) -> Value:
    """What the lanes before amount to, as far as they have blocks of the same row."""
    b, one = s.b, s.one
    firsts = ptx_ops.ballot(b, s.first)
    before, running = s.identity(), s.identity()
    for k in range(WARP):
        mine = one.value(b.icmp_signed("==", s.lane, I64(k)), "bool")
        before = one.select(mine, running, before)
        x = shuffle(b, "idx", total, I32(k))
        begins = one.value(b.trunc(b.lshr(firsts, I32(k)), I1), "bool")
        running = one.select(begins, x, s.join(running, x))
    return before


def build_totals(module: ir.Module, name: str, spec: ScanSpec) -> ir.Function:
    """The total of each block."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    total = s.walk(None)
    with if_then(b, s.valid):
        s.one.store(total, s.total_place())
    b.ret_void()
    return function


def build_apply(module: ir.Module, name: str, spec: ScanSpec) -> ir.Function:
    """The results, where ``totals`` are what comes before each block."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    s.walk(s.after(s.one.load(s.total_place(), s.kind)))
    b.ret_void()
    return function


def in_any_order(kind: str, dtype: str) -> bool:
    """Whether running values may be combined in any order: all but sums and products of floats."""
    return kind in ("cummax", "cummin") or not is_float(dtype)


def totals_of(blocks: int) -> int:
    """Totals of a row with so many blocks: whole pieces, so that the chain needs no care at the end."""
    piece = PIECE if blocks >= PIECE else WARP * EACH
    return -(-blocks // piece) * piece


def build_chain(module: ir.Module, name: str, kind: str, dtype: str) -> ir.Function:
    """Turn the totals of a row's blocks into what comes before each; a warp a row. Words: totals, rows, totals a row.

    A piece of the totals lies in shared memory, four for each lane. Sums of floats are one chain, which all lanes walk
    alike; otherwise each lane combines its own, and lanes combine what they have.
    """
    function, b = new_entry(module, name, THREADS)
    one, four, reducer = Builder(b, 1), Builder(b, EACH), Reducer(REDUCTION[kind], dtype)
    totals0, rows, pitch = load_args(b, own_args(b, function.args[0]), 3)
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


def build_long_chain(module: ir.Module, name: str, kind: str, dtype: str) -> ir.Function:
    """As `build_chain`, of floats that are added one after the other in rows of many blocks: a block of threads a row.

    Its threads bring a piece of the totals into shared memory; the first walks along it and leaves in the place of each
    what comes before, and does nothing else; all take that away, while the next piece is on its way.
    """
    function, b = new_entry(module, name, THREADS)
    one, four, reducer = Builder(b, 1), Builder(b, EACH), Reducer(REDUCTION[kind], dtype)
    totals0, _, pitch = load_args(b, own_args(b, function.args[0]), 3)
    thread, size = thread_index(b), item_size(dtype)
    align = min(16, EACH * size)
    space = shared_memory(module, b, f"{name}_totals", PIECE * size)
    place = b.mul(thread, I64(EACH * size))
    own = offset(b, space, place)
    totals = offset(b, device_pointer(b, totals0), b.mul(b.mul(block_index(b), pitch), I64(size)))
    mine, last = offset(b, totals, place), b.sub(pitch, I64(PIECE))

    def read(start: ir.Value) -> ir.Value:
        return four.load(offset(b, mine, b.mul(minimum(b, start, last), I64(size))), dtype, align).ir

    with loop(b, 0, pitch, PIECE, [reducer.identity(one)[0].ir, read(I64(0))]) as it:
        four.store(four.value(it.values[1], dtype), own, dtype, align)
        following = read(b.add(it.index, I64(PIECE)))
        barrier(b)
        with if_else(b, b.icmp_signed("==", thread, I64(0))) as branch:
            with branch.then():
                running = one.value(it.values[0], dtype)
                for k in range(0, PIECE, EACH):
                    at = offset(b, space, k * size)
                    found, before = four.load(at, dtype, align), []
                    for i in range(EACH):
                        before.append(running)
                        running = reducer.combine(one, (running,), (four.lane(found, i),))[0]
                    four.store(_together(four, before), at, dtype, align)
                branch.give(running.ir)
            with branch.otherwise():
                branch.give(it.values[0])
        barrier(b)
        four.store(four.load(own, dtype, align), offset(b, mine, b.mul(it.index, I64(size))), dtype, align)
        it.advance(branch.results[0], following)
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
