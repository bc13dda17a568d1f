"""Running sums, products, maxima and minima: blocks of 256 elements, each by one lane, 32 of them by a warp.

The order of a scan is fixed: within a block from its first element on, and block after block. So a lane traverses a
block of its own, through shared memory, where a warp puts 32 pieces of 32 elements, read and written by whole lines.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.core.contract import DEFINITIONS
from volta.emit.builder import Builder, Value, compute_dtype, item_size
from volta.emit.loops import I1, I32, I64, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import Reducer
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import (
    WARP,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    shuffle,
    thread_index,
    warp_barrier,
)
from volta.xla_like.ordering import SCANS, ScanSpec

THREADS = 128
WARPS = THREADS // WARP
BLOCK = DEFINITIONS.scan_block
TRUE = I1(1)
AHEAD = 1
"""Pieces of neighbouring blocks that are in flight while one is traversed."""

PITCH = WARP + 1  # of a piece's lines in shared memory: lanes that traverse lines hit different banks


class _Scan:
    """A warp's blocks. Words: from, to, totals, leaves, rows, length, first block, numbers and blocks of a row, blocks
    of a warp, totals a row.

    Of each row so many blocks are scanned, from the first one on. They have numbers, of which some may go unused, so
    that rows begin with a new warp. Of long chains the warps' blocks are the leaves: sums of all, or what comes before
    those that are scanned.
    """

    def __init__(self, b: ir.IRBuilder, name: str, spec: ScanSpec, args: ir.Value) -> None:
        self.b, self.spec, self.one = b, spec, Builder(b, 1)
        self.dtype, self.kind = spec.dtype.name, compute_dtype(spec.dtype.name)
        self.reducer = Reducer(SCANS[spec.kind], self.kind)
        words = load_args(b, args, 11)
        rows, length, first, span, blocks, each, pitch = words[4:]
        self.source, self.to, self.totals, self.leaves = (device_pointer(b, x) for x in words[:4])
        thread = thread_index(b)
        self.lane = b.and_(thread, I64(WARP - 1))
        warp = b.lshr(thread, I64(WARP.bit_length() - 1))
        self.number = b.add(b.mul(block_index(b), I64(WARPS)), warp)  # of the warp
        number = b.add(b.mul(self.number, each), self.lane)
        row, block = b.udiv(number, span), b.add(first, b.urem(number, span))
        valid = b.and_(b.icmp_signed("<", self.lane, each), b.icmp_signed("<", row, rows))
        self.valid = b.and_(valid, b.icmp_signed("<", block, blocks))
        row, block = (b.select(self.valid, x, I64(0)) for x in (row, block))
        self.place = b.add(b.mul(row, pitch), block)
        start = b.mul(block, I64(BLOCK))
        self.count = b.select(self.valid, minimum(b, b.sub(length, start), I64(BLOCK)), I64(0))
        place = b.sub(b.sub(length, I64(1)), start) if spec.reverse else start
        self.origin = b.add(b.mul(row, length), place)
        self.first = b.icmp_signed("==", block, I64(0))
        self.first_origin = shuffle(b, "idx", self.one.value(self.origin, "int64"), I32(0)).ir
        step = b.mul(self.lane, I64(-BLOCK if spec.reverse else BLOCK))
        behind = b.icmp_signed("==", self.origin, b.add(self.first_origin, step))
        whole = b.and_(b.and_(self.valid, b.icmp_signed("==", self.count, I64(BLOCK))), behind)
        self.neighbours = b.icmp_signed("==", ptx_ops.ballot(b, whole), I32(-1))
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

    def traverse(self, result: Callable[[Value], Value] | None, writes: ir.Value = TRUE) -> Value:
        """Traverse all blocks, and write each element's ``result``, if ``writes``; returns the totals."""
        with if_else(self.b, self.neighbours) as branch:
            with branch.then():
                branch.give(self._walk_neighbours(result, writes).ir)
            with branch.otherwise():
                branch.give(self._walk(result, writes).ir)
        return self.one.value(branch.results[0], self.kind)

    def _walk(self, result: Callable[[Value], Value] | None, writes: ir.Value) -> Value:
        """Along any blocks."""
        b, n = self.b, self.spec.dtype.itemsize
        with loop(b, 0, BLOCK, WARP, [self.identity().ir]) as it:
            lines = [self._line(line, it.index) for line in range(WARP)]
            found = [self.one.load(offset(b, self.source, at), self.dtype, n) for at, _ in lines]

            def inside(k: int, start: ir.Value = it.index) -> ir.Value:
                return b.icmp_signed("<", b.add(start, I64(k)), self.count)

            running, results = self._walk_piece(found, it.values[0], result, inside)
            if result is not None:
                with if_then(b, writes):
                    self._put(results)
                    for line in range(WARP):
                        at, there = self._line(line, it.index)
                        with if_then(b, there):
                            self._write(line, offset(b, self.to, at))
                    warp_barrier(b)
            it.advance(running.ir)
        return self.one.value(it.results[0], self.kind)

    def _walk_neighbours(self, result: Callable[[Value], Value] | None, writes: ir.Value) -> Value:
        """Along 32 whole blocks that lie one behind the other: a piece is in flight while the last is traversed."""
        b, n = self.b, self.spec.dtype.itemsize
        sign = -n if self.spec.reverse else n
        first = b.add(b.mul(self.first_origin, I64(n)), b.mul(self.lane, I64(sign)))

        def places(base: ir.Value, start: ir.Value) -> list[ir.Value]:
            piece = offset(b, base, b.add(first, b.mul(start, I64(sign))))
            return [offset(b, piece, sign * BLOCK * line) for line in range(WARP)]

        def read(start: ir.Value) -> list[ir.Value]:
            return [self.one.load(at, self.dtype, n).ir for at in places(self.source, start)]

        first_ones = [x for k in range(AHEAD) for x in read(I64(k * WARP))]
        with loop(b, 0, BLOCK, WARP, [self.identity().ir, *first_ones], some=True) as it:
            following = read(minimum(b, b.add(it.index, I64(AHEAD * WARP)), I64(BLOCK - WARP)))
            found = [self.one.value(x, self.kind) for x in it.values[1 : WARP + 1]]
            running, results = self._walk_piece(found, it.values[0], result)
            if result is not None:
                with if_then(b, writes):
                    self._put(results)
                    for line, at in enumerate(places(self.to, it.index)):
                        self._write(line, at)
                    warp_barrier(b)
            it.advance(running.ir, *it.values[WARP + 1 :], *following)
        return self.one.value(it.results[0], self.kind)

    def _walk_piece(
        self, found: list[Value], start: ir.Value, result: Callable[[Value], Value] | None,
        inside: Callable[[int], ir.Value] | None = None,
    ) -> tuple[Value, list[Value]]:  # fmt: skip
        """The running value behind a piece and, if wanted, the results for the lane's line of it."""
        one = self.one
        for line, x in enumerate(found):
            one.store(x, self._piece(line, self.lane))
        warp_barrier(self.b)
        running = one.value(start, self.kind)
        own = [one.load(self._piece(self.lane, k), self.kind) for k in range(WARP)]
        results = []
        for k, x in enumerate(own):
            joined = self.join(running, x)
            running = joined if inside is None else one.select(one.value(inside(k), "bool"), joined, running)
            results.append(running if result is None else result(running))
        warp_barrier(self.b)
        return running, results

    def _put(self, results: list[Value]) -> None:
        """What the lanes have for their lines of a piece, into the piece."""
        for k, x in enumerate(results):
            self.one.store(x, self._piece(self.lane, k))
        warp_barrier(self.b)

    def _write(self, line: int, place: ir.Value) -> None:
        self.one.store(self.one.load(self._piece(line, self.lane), self.kind), place, self.dtype)

    def after(self, before: Value) -> Callable[[Value], Value]:
        """The result of a running value: what comes before the block, or what changes nothing, and the value."""
        before = self.one.select(self.one.value(self.first, "bool"), self.identity(), before)
        return lambda running: self.join(before, running)

    def leaf_place(self, leaf: ir.Value) -> ir.Value:
        return offset(self.b, self.leaves, self.b.mul(leaf, I64(item_size(self.kind))))

    def total_place(self) -> ir.Value:
        return offset(self.b, self.totals, self.b.mul(self.place, I64(item_size(self.kind))))


def build_scan(module: ir.Module, name: str, spec: ScanSpec) -> ir.Function:
    """Rows of up to 32 blocks: a warp has all blocks of its rows. It traverses them twice, first for totals; where
    rows are one block, once."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    with loop(b, b.select(s.several, I64(0), I64(1)), 2, 1, [s.identity().ir]) as it:
        before = s.one.value(it.values[0], s.kind)
        writes = b.icmp_signed("==", it.index, I64(1))
        total = s.traverse(s.after(before), writes)
        with if_else(b, writes) as branch:
            with branch.then():
                branch.give(before.ir)
            with branch.otherwise():
                branch.give(_before(s, total).ir)
        it.advance(branch.results[0])
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


def build_totals(module: ir.Module, name: str, spec: ScanSpec, long: bool) -> ir.Function:
    """The total of each block and, of a long chain, about the sum of each leaf's."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    total = s.traverse(None)
    with if_then(b, s.valid):
        s.one.store(total, s.total_place())
    if long:
        for d in (16, 8, 4, 2, 1):
            total = s.join(total, shuffle(b, "bfly", total, I32(d)))
        with if_then(b, b.and_(s.valid, b.icmp_signed("==", s.lane, I64(0)))):
            s.one.store(total, s.leaf_place(b.lshr(s.place, I64(WARP.bit_length() - 1))))
    b.ret_void()
    return function


def build_apply(module: ir.Module, name: str, spec: ScanSpec, long: bool) -> ir.Function:
    """The results, where ``totals`` are what comes before each block; of a long chain, they are still the totals, and
    what comes before the first of each leaf is known."""
    function, b = new_entry(module, name, THREADS)
    s = _Scan(b, name, spec, function.args[0])
    before = s.one.load(s.total_place(), s.kind)
    if long:
        leaf = b.select(s.valid, s.number, I64(0))
        running = shuffle(b, "idx", s.one.load(s.leaf_place(leaf), s.kind), I32(0))  # the first lane is there if any is
        before = _along_leaf(s, before, running)
    s.traverse(s.after(before))
    b.ret_void()
    return function


def _along_leaf(s: _Scan, total: Value, running: Value) -> Value:
    """What comes before the lane's total, of which the warp has a leaf."""
    before = running
    for k in range(WARP):
        here = s.one.value(s.b.icmp_signed("==", s.lane, I64(k)), "bool")
        before = s.one.select(here, running, before)
        running = s.join(running, shuffle(s.b, "idx", total, I32(k)))
    return before
