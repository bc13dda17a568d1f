"""What every attention kernel has: its args, places of operands, and the numbers that are exchanged and compared."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit import attention_merge
from volta.emit.attention_args import Arg
from volta.emit.builder import Builder, Value, item_size, scalar_type
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I8, I32, I64, fma, if_else, intrinsic, load_arg, minimum
from volta.numba_cuda.codegen.ptx_ops import shuffle
from volta.numba_cuda.codegen.threads import block_index, device_pointer
from volta.ops.scalar.exponential import exp, exp_moderate, exp_of_negative
from volta.xla_like.attention import AttentionSpec

_USUAL, _LARGEST_TOTAL = 69.0, 2.0**24
"""Arguments of exp up to this magnitude, and sums of weights from 1 to this, need no care: nothing is subnormal."""


class AttentionKernel:
    """A kernel being emitted at `b`, for one item of the batch and one head."""

    t: ir.Value  # sizes
    s: ir.Value
    item: ir.Value  # indices of the batch item and of the head
    head: ir.Value

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: AttentionSpec) -> None:
        self.b, self.spec = b, spec
        self.one = Builder(b, 1)
        self.dtype = spec.accumulator
        self.size = item_size(self.dtype)
        self.kind = scalar_type(self.dtype)
        self.bits = ir.IntType(8 * self.size)
        self.zero = ir.Constant(self.kind, 0.0)
        self.words = args
        self.t, self.s = self.arg(Arg.T), self.arg(Arg.S)
        scale = self.arg(Arg.SCALE)
        self.scale = b.bitcast(scale if self.size == 8 else b.trunc(scale, self.bits), self.kind)

    # -- args --------------------------------------------------------------------------------------------------------

    def find_head(self, number: ir.Value) -> ir.Value:
        """Of a number that counts heads of all batch items fastest: which head; returns the rest."""
        b = self.b
        heads = b.mul(self.arg(Arg.B), self.arg(Arg.N))
        self.set_head(b.urem(number, heads))
        return b.udiv(number, heads)

    def set_head(self, which: ir.Value) -> None:
        """The kernel's head, by its number among those of all batch items."""
        b = self.b
        self.item, self.head = b.udiv(which, self.arg(Arg.N)), b.urem(which, self.arg(Arg.N))

    def arg(self, which: Arg) -> ir.Value:
        return load_arg(self.b, self.words, int(which))

    def base(self, address: Arg, *steps: tuple[ir.Value, Arg]) -> ir.Value:
        """An operand's address moved by indices times their strides, as a pointer."""
        b, found = self.b, self.arg(address)
        for index, stride in steps:
            found = b.add(found, b.mul(index, self.arg(stride)))
        return device_pointer(b, found)

    def of_head(self, address: Arg, item: ir.Value, head: ir.Value) -> ir.Value:
        """A head's part of an operand; keys and values have a head for each group of the others."""
        if address in (Arg.K, Arg.V):
            head = self.b.udiv(head, self.arg(Arg.GROUP))
        return self.base(address, (item, Arg[f"{address.name}_B"]), (head, Arg[f"{address.name}_N"]))

    def stats(self, item: ir.Value, head: ir.Value) -> ir.Value:
        """Bytes from the start of M, L and DELTA to a head's part of them."""
        b = self.b
        rows = b.mul(b.add(b.mul(item, self.arg(Arg.N)), head), self.arg(Arg.T))
        return b.mul(rows, I64(self.size))

    def scaled(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        return [self.b.fmul(x, self.scale) for x in values]

    def start(self, item: ir.Value) -> ir.Value:
        """The position of the first query among the keys."""
        if not self.spec.started:
            return I64(0)
        return self.b.sext(self.b.load(self.base(Arg.START, (item, Arg.START_B)), typ=I32, align=4), I64)

    def tile_of_queries(self, rows: int, which: ir.Value | None = None) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Find a place in the order of tiles of so many queries x batch x heads (the block's, if it is not said which):
        the tile's first row, the position of that among the keys, and where the keys end that some row sees."""
        b = self.b
        which = block_index(b) if which is None else which
        tiles = ceil_div(b, self.t, rows)
        if self.spec.causal:  # tiles with most keys first, of all heads: so the last to finish are short
            number = b.sub(b.sub(tiles, I64(1)), self.find_head(which))
        else:  # all tiles of a head one after the other: its keys and values stay in the cache
            self.set_head(b.udiv(which, tiles))
            number = b.urem(which, tiles)
        first = b.mul(number, I64(rows))
        position = b.add(self.start(self.item), first)
        if not self.spec.causal:
            return first, position, self.s
        inside = minimum(b, I64(rows), b.sub(self.t, first))
        return first, position, minimum(b, self.s, b.add(position, inside))

    def in_mask(self, row: ir.Value, key: ir.Value) -> ir.Value:
        """Whether the mask shows a key to a row; beyond the edges, what it says of the last."""
        b = self.b
        row, key = minimum(b, row, b.sub(self.t, I64(1))), minimum(b, key, b.sub(self.s, I64(1)))
        place = self.base(
            Arg.MASK, (self.item, Arg.MASK_B), (self.head, Arg.MASK_N), (row, Arg.MASK_T), (key, Arg.MASK_S)
        )
        return b.icmp_unsigned("!=", b.load(place, typ=I8, align=1), I8(0))

    # -- numbers -----------------------------------------------------------------------------------------------------

    def maximum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """MAX of the contract: NaN wins, +0 is above -0."""
        name = f"llvm.maximum.f{8 * self.size}"
        return self.b.call(intrinsic(self.b.module, name, self.kind, [self.kind] * 2), [x, y])

    def exp(self, x: ir.Value) -> ir.Value:
        found: Value = exp(self.one, self.one.value(x, self.dtype))
        return found.ir

    def merge_factors(self, top: ir.Value, block_top: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """How a block's results join those before it: see `attention_merge.factors`."""
        both = self.maximum(top, block_top)
        x, y, z = (self.value(x) for x in (top, block_top, both))
        old, new = attention_merge.factors(self.one, x, y, z, lambda x: self.value(self.exp_down(x.ir)))
        return both, old.ir, new.ir

    def merged(self, before: ir.Value, old: ir.Value, own: ir.Value, new: ir.Value) -> ir.Value:
        """A sum before a block, and the block's own, by their factors."""
        return attention_merge.merged(self.one, *(self.value(x) for x in (before, old, own, new))).ir

    def value(self, x: ir.Value) -> Value:
        """A number of the accumulator's dtype, in the vocabulary."""
        return self.one.value(x, self.dtype)

    def exp_down(self, x: ir.Value) -> ir.Value:
        """exp of a number that is not above 0."""
        if self.size != 4:
            return self.exp(x)
        found: Value = exp_of_negative(self.one, self.one.value(x, self.dtype))
        return found.ir

    def weights(
        self, values: Sequence[ir.Value], totals: Sequence[ir.Value], ratios: Sequence[ir.Value] | None = None
    ) -> list[ir.Value]:
        """exp of each value, divided by its total; few instructions where no value is extreme.

        ``ratios``: the `ratio` of each total, if it is known (float32).
        """
        b = self.b

        def plain() -> list[ir.Value]:
            return [b.fdiv(self.exp(x), y) for x, y in zip(values, totals, strict=True)]

        if self.size != 4:
            return plain()
        if ratios is None:
            found = {total: self.ratio(total) for total in dict.fromkeys(totals)}
            ratios = [found[total] for total in totals]
        usual = b.fcmp_ordered("<=", self._largest([self.magnitude(x) for x in values]), self.constant(_USUAL))
        for ratio in dict.fromkeys(ratios):
            usual = b.and_(usual, b.fcmp_ordered("ord", ratio, ratio))
        with if_else(b, usual) as branch:
            with branch.then():
                powers = [exp_moderate(self.one, self.one.value(x, self.dtype)).ir for x in values]
                branch.give(*[self._quotient(*x) for x in zip(powers, totals, ratios, strict=True)])
            with branch.otherwise():
                branch.give(*plain())
        return branch.results

    def ratio(self, total: ir.Value) -> ir.Value:
        """1 / total, rounded once; NaN if the total is not a usual one."""
        b, one = self.b, self.constant(1.0)
        low = b.fcmp_ordered(">=", total, one)
        usual = b.and_(low, b.fcmp_ordered("<=", total, self.constant(_LARGEST_TOTAL)))
        return b.select(usual, b.fdiv(one, total), self.constant(float("nan")))

    def _quotient(self, x: ir.Value, y: ir.Value, ratio: ir.Value) -> ir.Value:
        """x / y correctly rounded, from RN(1 / y), where nothing overflows or is subnormal on the way.

        The first correction is within an ulp of the quotient; so the second rounds it correctly (Markstein's theorem).
        """
        b = self.b
        minus = b.fsub(self.constant(-0.0), y)
        near = b.fmul(x, ratio)
        for _ in range(2):
            near = fma(b, fma(b, near, minus, x), ratio, near)
        return near

    def _largest(self, values: list[ir.Value]) -> ir.Value:
        """The largest, NaN if any is one."""
        while len(values) > 1:
            half = len(values) // 2
            values = [self.maximum(values[i], values[i + half]) for i in range(half)] + values[2 * half :]
        return values[0]

    def magnitude(self, x: ir.Value) -> ir.Value:
        name = f"llvm.fabs.f{8 * self.size}"
        return self.b.call(intrinsic(self.b.module, name, self.kind, [self.kind]), [x])

    def constant(self, number: float) -> ir.Value:
        return self.one.const(self.dtype, number).ir

    def shuffled(self, mode: str, value: ir.Value, by: ir.Value) -> ir.Value:
        b = self.b
        if value.type == I32:
            return shuffle(b, mode, value, by)
        raw = b.bitcast(value, self.bits)
        if self.size == 4:
            return b.bitcast(shuffle(b, mode, raw, by), self.kind)
        low, high = shuffle(b, mode, b.trunc(raw, I32), by), shuffle(b, mode, b.trunc(b.lshr(raw, I64(32)), I32), by)
        return b.bitcast(b.or_(b.zext(low, I64), b.shl(b.zext(high, I64), I64(32))), self.kind)
