"""Quicksort of keys in vectors, with a network for what fits into registers.

A split writes what is not larger than the pivot from the front of the other buffer on, and the rest from its end on.
(B. Bramas, "A Novel Hybrid Quicksort Algorithm Vectorized using AVX-512 on Intel Skylake", 2017; K. E. Batcher,
"Sorting networks and their applications", 1968.)
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from volta.emit.loops import I1, I64, PTR, VOID, for_range, if_else, if_then, intrinsic, loop, while_loop
from volta.numba_cpu.dot_tile import new_internal
from volta.numba_cpu.vector_keys import Keys

_NETWORKS = (1, 4, 8, 16)
"""Vectors that networks sort, padded; more keys than the last has are split."""

_PATIENCE = 2
"""After so many times the splits that halves would take, pivots are the middles of what keys may be: one split a bit is
the most that there can be then, whatever the keys."""


class Quicksort:
    """``call(here, there, out, count)`` sorts keys to elements. `here` and `there` have room for the keys, `out` for
    the elements; it may be either of them. Memory behind their ends is not touched."""

    def __init__(self, module: ir.Module, name: str, dtype: np.dtype) -> None:
        self._module, self._name, self._dtype = module, name, dtype
        self.split = self._build_split()
        """``split(here, there, count, pivot)``: how many are not larger than the pivot."""

    def call(self, b: ir.IRBuilder, here: ir.Value, there: ir.Value, out: ir.Value, count: ir.Value) -> None:
        zeros = b.call(intrinsic(self._module, "llvm.ctlz.i64", I64, [I64, I1]), [count, I1(0)])
        patience = b.mul(b.sub(I64(64), zeros), I64(_PATIENCE))
        k = Keys(b, self._dtype)
        b.call(self._sort(), [here, there, out, count, patience, k.word(k.least), k.word(k.most)])

    def _new(self, label: str, result: ir.Type, *kinds: ir.Type) -> tuple[Keys, tuple[ir.Value, ...]]:
        function, b = new_internal(self._module, f"{self._name}.{label}", ir.FunctionType(result, kinds))
        return Keys(b, self._dtype), function.args

    def _build_small(self) -> ir.Function:
        """``small(here, out, count)``, of as many as the largest network sorts."""
        k, (here, out, count) = self._new("small", VOID, PTR, PTR, I64)
        b = k.b
        for size in sorted({min(k.lanes, x) for x in _NETWORKS}):
            with if_then(b, b.icmp_signed("<=", count, I64(size * k.lanes))):
                places = [I64(i * k.lanes) for i in range(size)]
                rows = k.sorted([k.load_some(here, x, b.sub(count, x)) for x in places])
                for x, place in zip(rows, places, strict=True):
                    k.store_some(k.bits(x), out, place, b.sub(count, place))
                b.ret_void()
                b.position_at_end(b.append_basic_block("larger"))
                b.unreachable()
        b.ret_void()
        return b.function

    def _build_split(self) -> ir.Function:
        kind = ir.IntType(8 * self._dtype.itemsize)
        k, (here, there, count, pivot) = self._new("split", I64, PTR, PTR, I64, kind)
        b = k.b
        pivots, rest = k.splat(pivot), b.and_(count, I64(k.lanes - 1))
        whole = b.sub(count, rest)
        x, some = k.load_some(here, whole, rest), k.first(rest)  # first, while there is room for a vector that is cut
        low = b.and_(b.icmp_signed("<=", x, pivots), some)
        high = b.and_(b.icmp_signed(">", x, pivots), some)
        left = k.counted(low)
        right = b.sub(count, b.sub(rest, left))
        k.store_some(k.compressed(x, low), there, I64(0), left)
        k.store_some(k.compressed(x, high), there, right, b.sub(rest, left))
        with loop(b, 0, whole, k.lanes, [left, right]) as it:
            left, right = it.values
            x = k.load(here, it.index)
            low = b.icmp_signed("<=", x, pivots)
            number = k.counted(low)
            both = k.expanded(k.compressed(x, b.not_(low)), k.behind(number), k.compressed(x, low))
            k.store(both, there, left)  # between both ends is room for all that is still to come: what is not theirs
            k.store(both, there, b.sub(right, I64(k.lanes)))  # is written over later, or is the other's
            it.advance(b.add(left, number), b.add(b.sub(right, I64(k.lanes)), number))
        b.ret(it.results[0])
        return b.function

    def _build_fill(self) -> ir.Function:
        """``fill(out, begin, end, key)``."""
        k, (out, begin, end, key) = self._new("fill", VOID, PTR, I64, I64, ir.IntType(8 * self._dtype.itemsize))
        bits = k.bits(k.splat(key))
        with for_range(k.b, begin, end, k.lanes) as i:
            k.store_some(bits, out, i, k.b.sub(end, i))
        k.b.ret_void()
        return k.b.function

    def _build_pivot(self) -> ir.Function:
        """``pivot(here, count)``: the median of a vector's medians of three."""
        k, (here, count) = self._new("pivot", ir.IntType(8 * self._dtype.itemsize), PTR, I64)
        b = k.b
        quarter = b.lshr(count, I64(2))
        x, y, z = (k.load(here, b.mul(quarter, I64(i))) for i in (1, 2, 3))
        medians = k.larger(k.smaller(x, y), k.smaller(k.larger(x, y), z))
        b.ret(b.extract_element(k.sorted([medians])[0], I64(k.lanes // 2 - 1)))
        return b.function

    def _sort(self) -> ir.Function:
        """``sort(here, there, out, count, patience, least, most)``, of keys between the last two: the smaller part of a
        split by a call, the larger one in a loop."""
        pivot_of, fill, small = self._build_pivot(), self._build_fill(), self._build_small()
        word = ir.IntType(8 * self._dtype.itemsize)
        kinds = [PTR, PTR, PTR, I64, I64, word, word]
        k, given = self._new("sort", VOID, *kinds)
        b, largest = k.b, k.lanes * min(k.lanes, _NETWORKS[-1])
        slots = [b.alloca(kind) for kind in kinds]

        def become(*values: ir.Value) -> None:
            for x, slot in zip(values, slots, strict=True):
                b.store(x, slot)

        def now() -> list[ir.Value]:
            return [b.load(slot, typ=kind) for slot, kind in zip(slots, kinds, strict=True)]

        def divide() -> None:
            here, there, out, count, patience, least, most = now()
            with if_else(b, b.icmp_signed(">", patience, I64(0))) as branch:
                with branch.then():
                    branch.give(b.call(pivot_of, [here, count]))
                with branch.otherwise():
                    branch.give(b.add(least, b.lshr(b.sub(most, least), word(1))))
            (pivot,) = branch.results
            left = b.call(self.split, [here, there, count, pivot])
            with b.if_else(b.icmp_signed("==", left, count)) as (same, apart):
                with same:  # nothing is larger, so what equals the pivot comes last
                    below = b.sub(pivot, word(1))
                    with if_else(b, b.icmp_signed("==", pivot, least)) as only:
                        with only.then():
                            only.give(I64(0))
                        with only.otherwise():
                            only.give(b.call(self.split, [there, here, count, below]))
                    b.call(fill, [out, only.results[0], count, pivot])
                    become(here, there, out, only.results[0], patience, least, below)
                with apart:
                    right, patience = b.sub(count, left), b.sub(patience, I64(1))
                    ends = [k.at(x, left) for x in (there, here, out)]
                    first = [there, here, out, left, patience, least, pivot]
                    second = [*ends, right, patience, b.add(pivot, word(1)), most]
                    is_first = b.icmp_signed("<", left, right)
                    b.call(b.function, [b.select(is_first, x, y) for x, y in zip(first, second, strict=True)])
                    become(*(b.select(is_first, y, x) for x, y in zip(first, second, strict=True)))

        become(*given)
        while_loop(b, lambda: b.icmp_signed(">", b.load(slots[3], typ=I64), I64(largest)), divide)
        here, _, out, count, *_ = now()
        b.call(small, [here, out, count])
        b.ret_void()
        return b.function
