"""Keys of sorts in vectors: signed integers that order as elements do, and a network that sorts a few vectors of them.

The elements of one array alone are sorted as such keys, which say all of an element but the sign of a zero and what is
in a NaN: -0 sorts as 0, every NaN alike and last.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from volta.core import dtypes
from volta.core.contract import INFINITY_BITS
from volta.emit.loops import I1, I32, I64, compressed, counted, for_range, intrinsic, offset, splat
from volta.numba_cpu.dot_tile import lane_mask, masked_load, masked_store
from volta.numba_cpu.ordering_schedule import REGISTER_BITS


class Keys:
    """Vectors of the keys of a dtype, as many as a register has room for."""

    def __init__(self, b: ir.IRBuilder, dtype: np.dtype) -> None:
        self.b, self.dtype, self.size = b, dtype, dtype.itemsize
        self.width, self.lanes = 8 * self.size, REGISTER_BITS // (8 * self.size)
        self.word = ir.IntType(self.width)
        self.vector, self.mask = ir.VectorType(self.word, self.lanes), ir.VectorType(I1, self.lanes)
        self.least, self.most = -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1

    # -- memory --------------------------------------------------------------------------------------------------------

    def at(self, base: ir.Value, index: ir.Value) -> ir.Value:
        return offset(self.b, base, self.b.mul(index, I64(self.size)))

    def load(self, base: ir.Value, index: ir.Value) -> ir.Value:
        return self.b.load(self.at(base, index), align=self.size, typ=self.vector)

    def store(self, x: ir.Value, base: ir.Value, index: ir.Value) -> None:
        self.b.store(x, self.at(base, index), align=self.size)

    def first(self, count: ir.Value) -> ir.Value:
        """The mask of the first so many lanes."""
        return lane_mask(self.b, self.lanes, count)

    def load_some(self, base: ir.Value, index: ir.Value, count: ir.Value) -> ir.Value:
        """So many keys, and the largest behind them."""
        mask = self.first(count)
        return self.b.select(mask, masked_load(self.b, self.vector, self.at(base, index), mask, self.size), self.last)

    def store_some(self, x: ir.Value, base: ir.Value, index: ir.Value, count: ir.Value) -> None:
        masked_store(self.b, x, self.at(base, index), self.first(count), self.size)

    def copy(self, source: ir.Value, to: ir.Value, count: ir.Value) -> None:
        whole = self.b.and_(count, I64(-self.lanes))
        with for_range(self.b, 0, whole, self.lanes) as i:
            self.store(self.load(source, i), to, i)
        rest = self.b.sub(count, whole)
        self.store_some(self.load_some(source, whole, rest), to, whole, rest)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def splat(self, x: ir.Value | int) -> ir.Value:
        if isinstance(x, int):
            return ir.Constant(self.vector, [x] * self.lanes)
        return splat(self.b, x, self.lanes)

    @property
    def last(self) -> ir.Value:
        return self.splat(self.most)

    def smaller(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._extreme("smin", x, y)

    def larger(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._extreme("smax", x, y)

    def _extreme(self, which: str, x: ir.Value, y: ir.Value) -> ir.Value:
        name = f"llvm.{which}.v{self.lanes}i{self.width}"
        return self.b.call(intrinsic(self.b.module, name, self.vector, [self.vector] * 2), [x, y])

    def compressed(self, x: ir.Value, mask: ir.Value) -> ir.Value:
        """The keys that a mask has, moved to the front."""
        return compressed(self.b, x, mask)

    def expanded(self, x: ir.Value, mask: ir.Value, others: ir.Value) -> ir.Value:
        """The first keys, moved to the lanes that a mask has, among ``others``."""
        name = f"llvm.x86.avx512.mask.expand.v{self.lanes}i{self.width}"
        kind = [self.vector, self.vector, self.mask]
        return self.b.call(intrinsic(self.b.module, name, self.vector, kind), [x, others, mask])

    def counted(self, mask: ir.Value) -> ir.Value:
        return counted(self.b, mask)

    def behind(self, count: ir.Value) -> ir.Value:
        """The mask of the lanes behind the first so many, of at most all."""
        bits = self.b.trunc(self.b.shl(I64(-1), count), ir.IntType(self.lanes))
        return self.b.bitcast(bits, self.mask)

    def _shuffled(self, x: ir.Value, y: ir.Value, lanes: list[int]) -> ir.Value:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    # -- what keys stand for -------------------------------------------------------------------------------------------

    def of(self, bits: ir.Value) -> ir.Value:
        """The keys of elements, by their bits."""
        b = self.b
        if not dtypes.is_float(self.dtype):
            return bits if self.dtype in dtypes.SIGNED else b.xor(bits, self.splat(self.least))
        return b.select(
            self.is_nan(bits), self.last, b.select(self.is_negative_zero(bits), self.splat(0), self._turned(bits))
        )

    def bits(self, keys: ir.Value) -> ir.Value:
        """And back, of zeros and NaNs one of each."""
        if not dtypes.is_float(self.dtype):
            return self.of(keys)
        return self._turned(keys)

    def _turned(self, x: ir.Value) -> ir.Value:
        """Signs and magnitudes as integers, or back."""
        b = self.b
        return b.xor(x, b.and_(b.ashr(x, self.splat(self.width - 1)), self.splat(self.most)))

    def is_nan(self, bits: ir.Value) -> ir.Value:
        infinity = INFINITY_BITS[self.dtype.name]
        return self.b.icmp_signed(">", self.b.and_(bits, self.splat(self.most)), self.splat(infinity))

    def is_negative_zero(self, bits: ir.Value) -> ir.Value:
        return self.b.icmp_signed("==", bits, self.splat(self.least))

    # -- a network -----------------------------------------------------------------------------------------------------

    def sorted(self, rows: list[ir.Value]) -> list[ir.Value]:
        """A power of two of vectors, sorted one behind the other.

        Batcher's bitonic network (1968), where neighbours stand in one lane of neighbouring vectors as far as there
        are: key i in lane i // len(rows) of vector i % len(rows), which only ``_lined_up`` changes.
        """
        count = len(rows)
        half = 1
        while half < count:  # sequences inside of lanes
            for first in range(0, count, 2 * half):
                for i in range(half):
                    self._order(rows, first + i, first + 2 * half - 1 - i)
            self._merge_in_lanes(rows, half // 2)
            half *= 2
        span = 2
        while span <= self.lanes:  # of so many lanes each, in pairs that mirror each other
            mirror = [x // span * span + span - 1 - x % span for x in range(self.lanes)]
            rows = self._order_lanes(rows, rows[::-1], mirror, span // 2)
            apart = span // 4
            while apart:
                rows = self._order_lanes(rows, rows, [x ^ apart for x in range(self.lanes)], apart)
                apart //= 2
            self._merge_in_lanes(rows, count // 2)
            span *= 2
        return self._lined_up(rows)

    def _order(self, rows: list[ir.Value], i: int, j: int) -> None:
        rows[i], rows[j] = self.smaller(rows[i], rows[j]), self.larger(rows[i], rows[j])

    def _merge_in_lanes(self, rows: list[ir.Value], apart: int) -> None:
        while apart:
            for i in range(len(rows)):
                if not i & apart:
                    self._order(rows, i, i | apart)
            apart //= 2

    def _order_lanes(
        self, rows: list[ir.Value], others: list[ir.Value], partners: list[int], apart: int
    ) -> list[ir.Value]:
        """Lanes beside their partners of other vectors: of two so far apart the first get the smaller."""
        upper = ir.Constant(self.mask, [int(bool(x & apart)) for x in range(self.lanes)])
        found = []
        for x, other in zip(rows, others, strict=True):
            y = self._shuffled(other, other, partners)
            found.append(self.b.select(upper, self.larger(x, y), self.smaller(x, y)))
        return found

    def _lined_up(self, rows: list[ir.Value]) -> list[ir.Value]:
        """Keys where memory has them: key i in lane i % lanes of vector i // lanes."""
        count = len(rows)
        held = [[lane * count + v for lane in range(self.lanes)] for v in range(count)]
        step = 1
        while step < count:  # vectors that differ in a bit exchange halves, by a bit of the number of the vector to be
            wanted = self.lanes * step
            for i in range(count):
                if i & step:
                    continue
                x, y, own, other = rows[i], rows[i | step], held[i], held[i | step]
                both = own + other
                low = [n for n in range(2 * self.lanes) if not both[n] & wanted]
                high = [n for n in range(2 * self.lanes) if both[n] & wanted]
                for at, lanes in ((i, low), (i | step, high)):
                    lanes.sort(key=both.__getitem__)
                    rows[at], held[at] = self._shuffled(x, y, lanes), [both[n] for n in lanes]
            step *= 2
        order = {own[0] // self.lanes: v for v, own in enumerate(held)}
        return [rows[order[v]] for v in range(count)]
