"""Few rows of many keys, as in decoding: their key blocks are shared out over the GPU, then merged in order.

One kernel leaves the m, l and weighted values of every key block in memory, the other merges those of a row.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import item_size
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I32, I64, fma, if_then, load_arg, loop, minimum, offset
from volta.numba_cuda.attention.attention_rows import THREADS, WARPS, RowForward
from volta.numba_cuda.codegen.ptx_following import await_earlier
from volta.numba_cuda.codegen.threads import WARP, barrier, block_index, device_pointer, new_entry, read_args_first
from volta.xla_like.attention import BLOCK, AttentionSpec

_AHEAD = 32
"""Blocks whose results are in flight while one is merged."""


def split_bytes(spec: AttentionSpec, rows: int, s: int) -> int:
    """Memory for the results of all key blocks of so many rows of all heads."""
    return rows * -(-s // BLOCK) * (3 + spec.value_head) * item_size(spec.accumulator)


def split_blocks(rows: int, s: int) -> int:
    """Blocks of threads of the first kernel; the second has one for each row."""
    return rows * -(-s // (BLOCK * WARPS))


def build_split(
    module: ir.Module, name: str, spec: AttentionSpec, whole: bool, merge: bool, ahead: bool = True
) -> ir.Function:  # fmt: skip
    """Add one of the two kernels to a module; their args end with where the results of key blocks are. ``ahead``: the
    first asks for a key block's rows at once."""
    function, b = new_entry(module, name, THREADS, 1, waits=False)
    kernel = (_Merging if merge else _Blocks)(b, function, spec, whole)
    kernel.ahead = ahead
    kernel.emit()
    b.ret_void()
    read_args_first(function)
    return function


class Split(RowForward):
    def results(self, row: ir.Value, blocks: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where a row's results are: m, l and whether any key is seen; and weighted values."""
        b, a = self.b, self.arg
        base = device_pointer(b, load_arg(b, self.words, len(Arg)))
        number = b.add(b.mul(b.add(b.mul(self.item, a(Arg.N)), self.head), self.t), row)
        rows = b.mul(b.mul(a(Arg.B), a(Arg.N)), self.t)
        before = b.mul(number, blocks)
        values = offset(b, base, b.mul(b.mul(rows, blocks), I64(3 * self.size)))
        return (
            offset(b, base, b.mul(before, I64(3 * self.size))),
            offset(b, values, b.mul(before, I64(self.spec.value_head * self.size))),
        )


class _Blocks(Split):
    """A warp has one key block of a row."""

    def shared_bytes(self) -> int:
        return self.size * self.spec.head

    def emit(self) -> None:
        b = self.b
        blocks = ceil_div(b, self.s, BLOCK)
        shares = ceil_div(b, blocks, WARPS)
        rest = self.find_head(block_index(b))
        row, share = b.udiv(rest, shares), b.urem(rest, shares)
        number = b.mul(share, I64(WARPS))
        first = b.mul(number, I64(BLOCK))
        await_earlier(b)
        stop = self.locate(row)
        self.round(row, first, stop, number, *self.results(row, blocks))


class _Merging(Split):
    """A block of threads has a row: a thread first one of its key blocks, then one of its elements.

    Of a key block it finds the factors that merging it takes: all largest scores before it are known at once.
    """

    def shared_bytes(self) -> int:
        return self.size * (3 * THREADS + WARPS)

    def emit(self) -> None:
        b = self.b
        blocks = ceil_div(b, self.s, BLOCK)
        row = self.find_head(block_index(b))
        await_earlier(b)
        facts, parts = self.results(row, blocks)
        count = b.ashr(b.add(self.keys_of(row), I64(BLOCK - 1)), I64(6))
        with loop(b, 0, count, THREADS, self.begin()) as it:
            top, total, value = it.values
            top = self._factors(it.index, count, facts, top)
            barrier(b)
            with loop(b, it.index, minimum(b, count, b.add(it.index, I64(THREADS))), _AHEAD, [total, value]) as merging:
                merging.advance(*self._merge(it.index, merging.index, count, parts, list(merging.values)))
            barrier(b)
            it.advance(top, *merging.results)
        self.finish(row, *it.results)

    def _place(self, which: int, number: ir.Value) -> ir.Value:
        """Where factors of a thread's key block are: of sums before it, of its own; and its sum of weights, scaled."""
        return offset(self.b, self.space, self.b.mul(self.b.add(number, I64(which * THREADS)), I64(self.size)))

    def _factors(self, first: ir.Value, count: ir.Value, facts: ir.Value, top: ir.Value) -> ir.Value:
        """Leave the factors of the thread's key block; the largest score of all so far."""
        b, low = self.b, self.constant(float("-inf"))
        number = b.add(first, self.thread)
        place = offset(b, facts, b.mul(minimum(b, number, b.sub(count, I64(1))), I64(3 * self.size)))
        block_top, block_total, there = (
            b.load(offset(b, place, i * self.size), typ=self.kind, align=self.size) for i in range(3)
        )
        some = b.and_(b.icmp_signed("<", number, count), b.fcmp_ordered("!=", there, self.zero))
        own = b.select(some, block_top, low)
        upto, distance = own, 1
        while distance < WARP:
            other = self.maximum(self.shuffled("up", upto, I32(distance)), upto)
            upto = b.select(b.icmp_signed(">=", self.lane, I64(distance)), other, upto)
            distance *= 2
        with if_then(b, b.icmp_signed("==", self.lane, I64(WARP - 1))):
            b.store(upto, self._place(3, self.warp), align=self.size)
        before = b.select(b.icmp_signed("==", self.lane, I64(0)), low, self.shuffled("up", upto, I32(1)))
        before, all_tops = self.maximum(top, before), top
        barrier(b)
        for warp in range(WARPS):
            warp_top = b.load(self._place(3, I64(warp)), typ=self.kind, align=self.size)
            before = b.select(b.icmp_signed("<", I64(warp), self.warp), self.maximum(before, warp_top), before)
            all_tops = self.maximum(all_tops, warp_top)
        _, old, new = self.merge_factors(before, own)
        # Without a visible key all stays as it is: its sums are +0, and fma(x, 1, -0) is x.
        absent = self.constant(-0.0)
        factors = (self.constant(1.0), old), (absent, new), (absent, b.fmul(block_total, new))
        for i, (without, factor) in enumerate(factors):
            b.store(b.select(some, factor, without), self._place(i, self.thread), align=self.size)
        return all_tops

    def _merge(
        self, first: ir.Value, number: ir.Value, count: ir.Value, parts: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Merge some key blocks: the sum of weights, and the thread's element."""
        b, (total, value) = self.b, sums
        numbers = [b.add(number, I64(i)) for i in range(_AHEAD)]
        width, last = I64(self.spec.value_head), b.sub(count, I64(1))
        places = [b.add(b.mul(minimum(b, n, last), width), self.column()) for n in numbers]
        found = [
            b.load(offset(b, parts, b.mul(place, I64(self.size))), typ=self.kind, align=self.size) for place in places
        ]
        for n, part in zip(numbers, found, strict=True):
            old, new, weight = (
                b.load(self._place(i, b.sub(n, first)), typ=self.kind, align=self.size) for i in range(3)
            )
            part = b.select(b.icmp_signed("<", n, count), part, self.zero)
            total, value = fma(b, total, old, weight), self.merged(value, old, part, new)
        return [total, value]
