"""Few rows of many keys, as in decoding: their key blocks are shared out over the GPU, then merged in order.

One kernel leaves the m, l and weighted values of every key block in memory, the other merges those of a row.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import item_size
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I64, if_then, load_arg, loop, minimum, offset
from volta.numba_cuda.attention.attention_rows import THREADS, WARPS, RowForward
from volta.numba_cuda.target.threads import block_index, device_pointer, new_entry
from volta.xla_like.attention import BLOCK, Arg, AttentionSpec

_AHEAD = 8
"""Blocks whose results are on their way while one is merged."""


def split_bytes(spec: AttentionSpec, rows: int, s: int) -> int:
    """Memory for the results of all key blocks of so many rows of all heads."""
    return rows * -(-s // BLOCK) * (3 + spec.value_head) * item_size(spec.accumulator)


def split_blocks(rows: int, s: int) -> int:
    """Blocks of threads of the first kernel; the second has one for each row."""
    return rows * -(-s // (BLOCK * WARPS))


def build_split(module: ir.Module, name: str, spec: AttentionSpec, whole: bool, merge: bool) -> ir.Function:
    """Add one of the two kernels to a module; their args end with where the results of key blocks are."""
    function, b = new_entry(module, name, THREADS)
    (_Merging if merge else _Blocks)(b, function, spec, whole).emit()
    b.ret_void()
    return function


class _Split(RowForward):
    def shared_bytes(self) -> int:
        return self.size * self.spec.head

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


class _Blocks(_Split):
    """A warp has one key block of a row."""

    def emit(self) -> None:
        b = self.b
        blocks = ceil_div(b, self.s, BLOCK)
        shares = ceil_div(b, blocks, WARPS)
        rest = self.find_head(block_index(b))
        row, share = b.udiv(rest, shares), b.urem(rest, shares)
        stop = self.locate(row)
        facts, parts = self.results(row, blocks)
        number = b.add(b.mul(share, I64(WARPS)), self.warp)
        block = b.mul(number, I64(BLOCK))
        with if_then(b, b.icmp_signed("<", block, stop)):
            self.score(row, block, number, facts, parts)


class _Merging(_Split):
    """A block of threads has a row, a thread an element."""

    def emit(self) -> None:
        b, width = self.b, self.spec.value_head
        blocks = ceil_div(b, self.s, BLOCK)
        row = self.find_head(block_index(b))
        stop = self.locate(row)
        facts, parts = self.results(row, blocks)
        count = b.ashr(b.add(stop, I64(BLOCK - 1)), I64(6))
        with loop(b, 0, count, _AHEAD, self.begin()) as it:
            state = list(it.values)
            numbers = [b.add(it.index, I64(i)) for i in range(_AHEAD)]
            last = b.sub(count, I64(1))
            ahead = [self.found(minimum(b, n, last), facts, parts, width) for n in numbers]
            for n, (top, total, there, part) in zip(numbers, ahead, strict=True):
                there = b.select(b.icmp_signed("<", n, count), there, self.zero)
                state = self.merge(state, top, total, there, part)
            it.advance(*state)
        self.finish(row, *it.results)
