"""From device memory to a matrix in shared memory: how a block's threads share the copies of an operand's rows."""

from __future__ import annotations

import attrs
from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, item_size
from volta.emit.loops import I32, I64, if_else, if_then, minimum, offset
from volta.numba_cuda.attention.attention_common import AttentionKernel
from volta.numba_cuda.attention.attention_layout import WIDE, AttentionTile, Matrix
from volta.numba_cuda.codegen.ptx_ops import commit_copies, copy_async, wait_copies
from volta.numba_cuda.codegen.threads import barrier, thread_index
from volta.xla_like.attention import AttentionSpec


@attrs.frozen
class Spread:
    """Copies of a thread that lie below each other: the first source, bytes from one to the next; the first target,
    bytes likewise; rows left below the first, and from one to the next; copies of a part; elements of a copy."""

    source: ir.Value
    step: ir.Value
    target: ir.Value
    line: int
    left: ir.Value
    rows: int
    count: int
    each: int


class Copies(AttentionKernel):
    """A block of threads with a tile, and the copies that it makes."""

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: AttentionSpec, tile: AttentionTile) -> None:
        super().__init__(b, args, spec)
        self.tile = tile
        self.group = WIDE // self.size
        self.thread = thread_index(b)

    def copy_rows(
        self, to: Matrix, rows: int, base: ir.Value, stride: ir.Value, first: ir.Value, size: ir.Value
    ) -> None:
        """Copy rows ``first ..`` of an operand; beyond its ``size`` rows come copies of the last."""
        b, tile, dtype = self.b, self.tile, self.spec.dtype
        item = item_size(dtype)
        each = WIDE // item if tile.whole else 1
        parts = to.width // each
        total, last = rows * parts, b.sub(size, I64(1))
        if total % tile.threads == 0 and tile.threads % parts == 0:
            self._bring_evenly(to, rows, base, stride, first, size, parts, each)
            if tile.copies:
                commit_copies(b)
            return
        iterations = -(-total // tile.threads)
        for iteration in range(iterations):
            number = b.add(self.thread, I64(iteration * tile.threads))

            def copy(number: ir.Value = number) -> None:
                row, part = b.udiv(number, I64(parts)), b.urem(number, I64(parts))
                line = offset(b, base, b.mul(minimum(b, b.add(first, row), last), stride))
                source = offset(b, line, b.mul(part, I64(each * item)))
                place = offset(b, to.pointer, b.mul(row, I64(to.line)))
                self.copy(source, offset(b, place, b.mul(part, I64(each * self.size))), each)

            if (iteration + 1) * tile.threads > total:
                with if_then(b, b.icmp_unsigned("<", number, I64(total))):
                    copy()
            else:
                copy()
        if tile.copies:
            commit_copies(b)

    def _bring_evenly(
        self, to: Matrix, rows: int, base: ir.Value, stride: ir.Value, first: ir.Value, size: ir.Value, parts: int,
        each: int,
    ) -> None:  # fmt: skip
        """The same where a thread's copies lie below each other: if all rows exist, by one addition each."""
        b, at_once, item = self.b, self.tile.threads // parts, item_size(self.spec.dtype)
        row, part = b.udiv(self.thread, I64(parts)), b.urem(self.thread, I64(parts))
        start, along = b.add(first, row), b.mul(part, I64(each * item))
        target = offset(b, offset(b, to.pointer, b.mul(row, I64(to.line))), b.mul(part, I64(each * self.size)))
        with if_else(b, b.icmp_signed("<=", b.add(first, I64(rows)), size)) as branch:
            with branch.then():
                source, step = offset(b, offset(b, base, b.mul(start, stride)), along), b.mul(stride, I64(at_once))
                for iteration in range(rows // at_once):
                    self.copy(source, offset(b, target, iteration * at_once * to.line), each)
                    source = offset(b, source, step)
                branch.give()
            with branch.otherwise():
                last = b.sub(size, I64(1))
                for iteration in range(rows // at_once):
                    row = minimum(b, b.add(start, I64(iteration * at_once)), last)
                    source = offset(b, offset(b, base, b.mul(row, stride)), along)
                    self.copy(source, offset(b, target, iteration * at_once * to.line), each)
                branch.give()

    def spread(
        self, to: Matrix, rows: int, base: ir.Value, stride: ir.Value, first: ir.Value, size: ir.Value, times: int
    ) -> Spread | None:
        """What `copy_rows` copies, but so many times a part of it, while something else is computed (None: it has no
        such parts). Beyond the operand's rows come copies of some row."""
        b, item = self.b, item_size(self.spec.dtype)
        each = WIDE // item
        parts = to.width // each
        at_once, rest = divmod(self.tile.threads, parts)
        if not self.tile.whole or rest or rows % (at_once * times):
            return None
        row, part = b.udiv(self.thread, I64(parts)), b.urem(self.thread, I64(parts))
        last = b.sub(size, I64(1))
        start = b.add(first, row)
        source = offset(b, base, b.mul(minimum(b, start, last), stride))
        target = offset(b, offset(b, to.pointer, b.mul(row, I64(to.line))), b.mul(part, I64(each * self.size)))
        left = self.distance(b.sub(last, start))
        return Spread(
            offset(b, source, b.mul(part, I64(each * item))), b.mul(stride, I64(at_once)), target,
            at_once * to.line, left, at_once, rows // at_once // times, each,
        )  # fmt: skip

    def copy_part(self, spread: Spread, time: ir.Value, source: ir.Value) -> ir.Value:
        """Copy the part of a time, from a source that the one before gave (at first the spread's own)."""
        b = self.b
        done = b.mul(time, I64(spread.count))
        target = offset(b, spread.target, b.mul(done, I64(spread.line)))
        row = b.mul(b.trunc(done, I32), I32(spread.rows))
        for i in range(spread.count):
            self.copy(source, offset(b, target, i * spread.line), spread.each)
            row = b.add(row, I32(spread.rows))
            source = b.select(b.icmp_signed("<=", row, spread.left), offset(b, source, spread.step), source)
        return source

    def copy(self, source: ir.Value, to: ir.Value, each: int) -> None:
        """Copy so many neighbouring elements into shared memory."""
        b, dtype = self.b, self.spec.dtype
        nbytes = each * item_size(dtype)
        if dtype not in HALF_DTYPES and self.tile.copies:
            copy_async(b, to, source, nbytes)
            return
        raw = ir.IntType(8 * item_size(dtype)) if dtype in HALF_DTYPES else self.kind
        if each == 1:
            b.store(self.one.from_memory(b.load(source, align=nbytes, typ=raw), dtype).ir, to, align=self.size)
            return
        found = b.load(source, align=WIDE, typ=ir.VectorType(raw, each))
        values = Builder(b, each).from_memory(found, dtype).ir
        for start in range(0, each, self.group):
            mask = ir.Constant(ir.VectorType(I32, self.group), list(range(start, start + self.group)))
            part = b.shuffle_vector(values, ir.Constant(values.type, ir.Undefined), mask)
            b.store(part, offset(b, to, start * self.size), align=WIDE)

    def arrived(self) -> None:
        """All threads meet, and see what each of them has copied."""
        if self.tile.copies:
            wait_copies(self.b, 0)
        barrier(self.b)

    def meet(self) -> None:
        barrier(self.b)

    def distance(self, x: ir.Value) -> ir.Value:
        """An i64 as an i32 that compares alike with all numbers within a tile."""
        b, most = self.b, I64(1 << 16)
        x = minimum(b, x, most)
        return b.trunc(b.select(b.icmp_signed("<", x, I64(-(1 << 16))), I64(-(1 << 16)), x), I32)
