"""Attention row by row: for few queries, as when a model writes word by word, and for sizes that fit no tile.

A warp scores one row against a block of 64 of the other side, two to a lane; then a lane has every 32nd element of a
head. Forward, the warps of a block of threads share out one row's key blocks and all merge what they found, in order;
backward a warp has a row of its own (attention_row_gradients.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.builder import Builder, item_size
from volta.emit.loops import I32, I64, fma, for_range, if_then, loop, minimum, offset
from volta.numba_cuda.attention.attention_common import AttentionKernel
from volta.numba_cuda.attention.attention_layout import WIDE
from volta.numba_cuda.codegen.ptx_following import await_earlier
from volta.numba_cuda.codegen.ptx_ops import ballot, prefetch
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    new_entry,
    read_args_first,
    shared_memory,
    thread_index,
)
from volta.xla_like.attention import BLOCK, AttentionSpec

WARPS = 8
THREADS = WARPS * WARP
EACH = BLOCK // WARP
_AT_ONCE = 8
"""Rows whose elements are in flight at once. What runs once reads its instructions from memory: of twice as many it
waits for those."""

_NEAR = 128  # bytes that are asked for at once


def build_forward(module: ir.Module, name: str, spec: AttentionSpec, whole: bool) -> ir.Function:
    """Add the kernel to a module; its grid is `row_blocks`. ``whole``: operands can be read 16 bytes at a time."""
    function, b = new_entry(module, name, THREADS, 1, waits=False)
    RowForward(b, function, spec, whole).emit()
    b.ret_void()
    read_args_first(function)
    return function


def row_blocks(kernel: str, heads: int, t: int, s: int) -> int:
    """Blocks of threads for so many heads of all batch items."""
    if kernel == "attention":
        return heads * t
    return heads * -(-(s if kernel == "attention_dkv" else t) // WARPS)


class Rows(AttentionKernel):
    """What the three kernels share: a warp's scores against a block, and its chains over one."""

    def __init__(self, b: ir.IRBuilder, function: ir.Function, spec: AttentionSpec, whole: bool) -> None:
        super().__init__(b, function.args[0], spec)
        self.whole = whole
        self.thread = thread_index(b)
        self.lane = b.and_(self.thread, I64(WARP - 1))
        self.warp = b.lshr(self.thread, I64(5))
        self.space = shared_memory(b.module, b, f"{function.name}_rows", self.shared_bytes())

    def shared_bytes(self) -> int:
        raise NotImplementedError

    def emit(self) -> None:
        raise NotImplementedError

    def element(self, base: ir.Value, index: ir.Value) -> ir.Value:
        """An element of an operand, as the accumulator's kind."""
        item = item_size(self.spec.dtype)
        return self.one.load(offset(self.b, base, self.b.mul(index, I64(item))), self.spec.dtype).ir

    def keep(self, to: ir.Value, base: ir.Value, width: int, first: ir.Value, threads: int) -> None:
        """Copy a row to shared memory, by threads ``first`` of so many."""
        b = self.b
        with for_range(b, first, width, threads) as i:
            b.store(self.element(base, i), offset(b, to, b.mul(i, I64(self.size))), align=self.size)

    def line(self, base: ir.Value, stride: ir.Value, row: ir.Value, size: ir.Value) -> ir.Value:
        """A row of an operand, the last one beyond its end."""
        b = self.b
        return offset(b, base, b.mul(minimum(b, row, b.sub(size, I64(1))), stride))

    def dots(self, own: ir.Value, lines: Sequence[ir.Value], width: int) -> list[ir.Value]:
        """DOT of the row in shared memory and each of some rows."""
        b, dtype = self.b, self.spec.dtype
        item = item_size(dtype)
        each = WIDE // item if self.whole else 1
        parts = next(n for n in (4, 2, 1) if width // each % n == 0) if self.whole else 1
        step, one = each * parts, Builder(b, each)
        with loop(b, 0, width, step, [self.zero] * len(lines)) as it:
            starts = [offset(b, line, b.mul(it.index, I64(item))) for line in lines]
            groups = [
                [one.load(offset(b, start, part * each * item), dtype, align=each * item) for start in starts]
                for part in range(parts)
            ]
            found = list(it.values)
            for k in range(step):
                here = offset(b, own, b.mul(b.add(it.index, I64(k)), I64(self.size)))
                x = b.load(here, typ=self.kind, align=self.size)
                found = [
                    fma(b, x, one.lane(group, k % each).ir, y)
                    for group, y in zip(groups[k // each], found, strict=True)
                ]
            it.advance(*found)
        return list(it.results)

    def others(self, block: ir.Value) -> list[ir.Value]:
        """The lane's rows of a block of the other side."""
        b = self.b
        return [b.add(block, b.add(self.lane, I64(e * WARP))) for e in range(EACH)]

    def columns(self, width: int) -> list[ir.Value]:
        """The lane's elements of a head; those beyond its end are its last."""
        b = self.b
        return [minimum(b, b.add(self.lane, I64(WARP * g)), I64(width - 1)) for g in range(-(-width // WARP))]

    def chains(
        self, weights: Sequence[ir.Value], seen: Sequence[ir.Value], base: ir.Value, stride: ir.Value,
        block: ir.Value, size: ir.Value, width: int,
    ) -> list[ir.Value]:  # fmt: skip
        """For the lane's elements: chains over the block's rows that are seen, of weight times element."""
        b, sums = self.b, [self.zero] * -(-width // WARP)
        columns = self.columns(width)
        for weight, bits in zip(weights, seen, strict=True):
            with loop(b, 0, WARP, _AT_ONCE, sums) as it:
                found = list(it.values)
                indices = [b.add(it.index, I64(k)) for k in range(_AT_ONCE)]
                lines = [self.line(base, stride, b.add(block, i), size) for i in indices]
                elements = [[self.element(line, c) for c in columns] for line in lines]
                for i, row in zip(indices, elements, strict=True):
                    index = b.trunc(i, I32)
                    w = self.shuffled("idx", weight, index)
                    here = b.icmp_unsigned("!=", b.and_(b.lshr(bits, index), I32(1)), I32(0))
                    found = [b.select(here, fma(b, w, y, x), x) for y, x in zip(row, found, strict=True)]
                it.advance(*found)
            sums = list(it.results)
            block = b.add(block, I64(WARP))
        return sums

    def lane_sum(self, parts: Sequence[ir.Value], combine: str) -> ir.Value:
        """A block's 64 numbers combined by halving: their sum, or the largest."""
        b = self.b
        join = b.fadd if combine == "sum" else self.maximum
        found = join(parts[0], parts[1])
        distance = WARP // 2
        while distance:
            found = join(found, self.shuffled("bfly", found, I32(distance)))
            distance //= 2
        return found

    def pair_seen(self, row: ir.Value, key: ir.Value, position: ir.Value) -> ir.Value:
        """Whether a row sees a key; both may lie beyond the end."""
        b = self.b
        seen = b.and_(b.icmp_signed("<", key, self.s), b.icmp_signed("<", row, self.t))
        if self.spec.causal:
            seen = b.and_(seen, b.icmp_signed("<=", key, b.add(position, row)))
        return b.and_(seen, self.in_mask(row, key)) if self.spec.masked else seen

    def write_columns(self, base: ir.Value, values: Sequence[ir.Value], width: int) -> None:
        b, dtype = self.b, self.spec.dtype
        for g, value in enumerate(values):
            column = b.add(self.lane, I64(WARP * g))
            with if_then(b, b.icmp_signed("<", column, I64(width))):
                place = offset(b, base, b.mul(column, I64(item_size(dtype))))
                self.one.store(self.one.value(value, self.dtype), place, dtype)


class RowForward(Rows):
    """A block of threads has a row; round by round its warps take one key block each, and all merge them in order.

    What counts is how often a warp waits for memory, so a key block's rows are asked for at once.
    """

    at_once = WARPS
    """Key blocks of a round."""

    ahead = True
    """Whether a key block's rows are asked for at once: they have to stay in the cache until they are read."""

    def shared_bytes(self) -> int:
        return self.size * (self.spec.head + self.at_once * (3 + self.spec.value_head))

    def emit(self) -> None:
        b, spec, width = self.b, self.spec, self.spec.value_head
        row = self.find_head(block_index(b))
        await_earlier(b)
        self.fetch(I64(0), self.s)
        stop = self.locate(row)
        facts = offset(b, self.space, self.size * spec.head)  # of each key block: m, l, whether any key is seen
        parts = offset(b, facts, self.size * 3 * self.at_once)
        with loop(b, 0, stop, self.at_once * BLOCK, self.begin()) as it:
            self.round(row, it.index, stop, I64(0), facts, parts)
            barrier(b)
            self.fetch(b.add(it.index, I64(self.at_once * BLOCK)), stop)
            blocks = b.lshr(b.add(b.sub(stop, it.index), I64(BLOCK - 1)), I64(6))
            with loop(b, 0, minimum(b, blocks, I64(self.at_once)), 1, list(it.values)) as merging:
                found = self.found(merging.index, facts, parts, width)
                merging.advance(*self.merge(list(merging.values), *found))
            barrier(b)
            it.advance(*merging.results)
        self.finish(row, *it.results)

    def fetch(self, first: ir.Value, stop: ir.Value) -> None:
        """Have keys and values from `first` on brought to shared memory, where a round needs them there."""

    def round(
        self, row: ir.Value, first: ir.Value, stop: ir.Value, number: ir.Value, facts: ir.Value, parts: ir.Value
    ) -> None:
        """Key blocks from `first` on, one a warp, left as those of `number` and on."""
        b = self.b
        block = b.add(first, b.mul(self.warp, I64(BLOCK)))
        with if_then(b, b.icmp_signed("<", block, stop)):
            self.score(row, block, b.add(number, self.warp), facts, parts)

    def locate(self, row: ir.Value) -> ir.Value:
        """Copy a row to shared memory; the keys that it sees end at the result."""
        b, a = self.b, self.arg
        q = self.of_head(Arg.Q, self.item, self.head)
        self.keep(self.space, offset(b, q, b.mul(row, a(Arg.Q_T))), self.spec.head, self.thread, THREADS)
        stop = self.keys_of(row)  # read while the row is
        barrier(b)
        return stop

    def keys_of(self, row: ir.Value) -> ir.Value:
        """Where the keys end that a row sees."""
        b = self.b
        self.position = self.start(self.item)
        if not self.spec.causal:
            return self.s
        return minimum(b, self.s, b.add(b.add(self.position, row), I64(1)))

    def begin(self) -> list[ir.Value]:
        """m, l and the thread's element of the result before the first block."""
        return [self.constant(float("-inf")), self.zero, self.zero]

    def column(self) -> ir.Value:
        """The element of the result that the thread merges."""
        return minimum(self.b, self.thread, I64(self.spec.value_head - 1))

    def finish(self, row: ir.Value, top: ir.Value, total: ir.Value, value: ir.Value) -> None:
        b, spec, a = self.b, self.spec, self.arg
        nothing = b.fcmp_ordered("==", total, self.zero)
        value = b.select(nothing, self.zero, b.fdiv(value, total))
        with if_then(b, b.icmp_signed("<", self.thread, I64(spec.value_head))):
            line = offset(b, self.of_head(Arg.OUT, self.item, self.head), b.mul(row, a(Arg.OUT_T)))
            place = offset(b, line, b.mul(self.thread, I64(item_size(spec.dtype))))
            self.one.store(self.one.value(value, self.dtype), place, spec.dtype)
        with if_then(b, b.icmp_signed("==", self.thread, I64(0))):
            at = b.add(self.stats(self.item, self.head), b.mul(row, I64(self.size)))
            b.store(top, offset(b, self.base(Arg.M), at), align=self.size)
            b.store(total, offset(b, self.base(Arg.L), at), align=self.size)

    def score(self, row: ir.Value, block: ir.Value, number: ir.Value, facts: ir.Value, parts: ir.Value) -> None:
        """A warp's key block: its m, l and weighted values, left as those of a number."""
        b, spec, a = self.b, self.spec, self.arg
        k, v = (self.of_head(x, self.item, self.head) for x in (Arg.K, Arg.V))
        keys = self.others(block)
        lines = [self.line(k, a(Arg.K_S), key, self.s) for key in keys]
        for width, rows in ((spec.head, lines), (spec.value_head, [self.line(v, a(Arg.V_S), x, self.s) for x in keys])):
            for line in rows if self.ahead else ():
                for byte in range(0, width * item_size(spec.dtype), _NEAR):
                    prefetch(b, offset(b, line, byte))
        scores = self.scaled(self.dots(self.space, lines, spec.head))
        seen = [self.pair_seen(row, key, self.position) for key in keys]
        bits = [ballot(b, x) for x in seen]
        weights = self.weighed(scores, seen, bits, number, facts)
        sums = self.chains(weights, bits, v, a(Arg.V_S), block, self.s, spec.value_head)
        width = spec.value_head
        own = offset(b, parts, b.mul(number, I64(width * self.size)))
        for g, x in enumerate(sums):
            column = b.add(self.lane, I64(WARP * g))
            with if_then(b, b.icmp_signed("<", column, I64(width))):
                b.store(x, offset(b, own, b.mul(column, I64(self.size))), align=self.size)

    def weighed(
        self, scores: Sequence[ir.Value], seen: Sequence[ir.Value], bits: Sequence[ir.Value], number: ir.Value,
        facts: ir.Value,
    ) -> list[ir.Value]:  # fmt: skip
        """The weights of a key block of which a lane has two scores; its m and l are left as those of a number."""
        b, low = self.b, self.constant(float("-inf"))
        some = b.icmp_unsigned("!=", b.or_(*bits), I32(0))
        top = self.lane_sum([b.select(x, y, low) for x, y in zip(seen, scores, strict=True)], "max")
        weights = [b.select(x, self.exp_down(b.fsub(y, top)), self.zero) for x, y in zip(seen, scores, strict=True)]
        total = self.lane_sum(weights, "sum")
        with if_then(b, b.icmp_signed("==", self.lane, I64(0))):
            there = b.select(some, self.constant(1.0), self.zero)
            for i, x in enumerate((top, total, there)):
                place = b.add(b.mul(number, I64(3)), I64(i))
                b.store(x, offset(b, facts, b.mul(place, I64(self.size))), align=self.size)
        return weights

    def found(self, number: ir.Value, facts: ir.Value, parts: ir.Value, width: int) -> list[ir.Value]:
        """What `score` left: m, l, 0 if no key is seen, and the thread's element."""
        b = self.b
        first = b.mul(number, I64(3))
        places = [offset(b, facts, b.mul(b.add(first, I64(i)), I64(self.size))) for i in range(3)]
        place = b.mul(b.add(b.mul(number, I64(width)), self.column()), I64(self.size))
        return [b.load(x, typ=self.kind, align=self.size) for x in (*places, offset(b, parts, place))]

    def merge(
        self, state: list[ir.Value], block_top: ir.Value, block_total: ir.Value, there: ir.Value, part: ir.Value
    ) -> list[ir.Value]:
        b = self.b
        top, total, value = state
        new_top, old, new = self.merge_factors(top, block_top)
        merged = [new_top, self.merged(total, old, block_total, new), self.merged(value, old, part, new)]
        some = b.fcmp_ordered("!=", there, self.zero)
        return [b.select(some, x, y) for x, y in zip(merged, state, strict=True)]
