"""Sorting by digits: the pieces of a stable radix sort that a block of threads does with one tile of elements.

A tile lies in the registers of its threads, warp by warp and then round by round, so that warp, round and lane give the
order of elements. A pass ranks them by a digit of 8 bits: lanes with one digit find each other by the bits they leave
in a word of shared memory, counters carry on from round to round, and sums over warps and digits give every element its
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from llvmlite import ir

from volta.core.contract import INFINITY_BITS
from volta.emit.builder import item_size
from volta.emit.loops import I32, I64, for_range, if_then, offset
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import WARP, barrier, shared_memory, thread_index, warp_barrier

THREADS = 256
WARPS = THREADS // WARP
RESIDENT = 2
"""Blocks of the kernels with the most registers that run at once on a multiprocessor."""

BITS = 8
DIGITS = 1 << BITS  # as many as threads: each thread has the sums of one digit, or of neighbours where there are more


def passes_of(bits: int, each: int = BITS) -> int:
    return -(-bits // each)


def raw_type(dtype: str) -> ir.IntType:
    """What an element is moved as."""
    return ir.IntType(8 * item_size(dtype))


def ordered(b: ir.IRBuilder, raw: ir.Value, dtype: str) -> ir.Value:
    """An unsigned number that orders as the element of these bits: -0 as +0, all NaNs as one, above every number."""
    kind = raw.type
    sign, everything = 1 << (kind.width - 1), (1 << kind.width) - 1
    if dtype == "bool":
        return b.zext(b.icmp_unsigned("!=", raw, kind(0)), kind)
    if dtype.startswith("uint"):
        return raw
    if dtype.startswith("int"):
        return b.xor(raw, kind(sign))
    size = b.and_(raw, kind(everything ^ sign))
    negative = b.icmp_unsigned("!=", size, raw)
    number = b.select(negative, b.xor(raw, kind(everything)), b.or_(raw, kind(sign)))
    number = b.select(b.icmp_unsigned("==", size, kind(0)), kind(sign), number)
    return b.select(b.icmp_unsigned(">", size, kind(INFINITY_BITS[dtype])), kind(everything), number)


def digit_of(b: ir.IRBuilder, key: ir.Value, shift: ir.Value, digits: int = DIGITS) -> ir.Value:
    """The digit of an ordered key that begins at bit ``shift`` (an i32), as an i32."""
    width = key.type.width
    if width > 32:
        shift = b.zext(shift, key.type)
    elif width < 32:
        key = b.zext(key, I32)
    found = b.lshr(key, shift)
    return b.and_(b.trunc(found, I32) if width > 32 else found, I32(digits - 1))


class Staging:
    """A tile's threads: which elements are whose, and the shared memory in which they are ranked and exchanged."""

    def __init__(self, b: ir.IRBuilder, name: str, items: int, nbytes: int, digits: int = DIGITS) -> None:
        """``items`` elements a thread; ``nbytes`` of the largest that is exchanged; ``digits`` there are."""
        module = b.module
        self.b, self.items, self.digits = b, items, digits
        self.thread = b.trunc(thread_index(b), I32)
        self.lane, self.warp = b.and_(self.thread, I32(WARP - 1)), b.lshr(self.thread, I32(WARP.bit_length() - 1))
        self.below = b.sub(b.shl(I32(1), self.lane), I32(1))
        self.counters = shared_memory(module, b, f"{name}_counters", 4 * digits * WARPS)
        self.starts = shared_memory(module, b, f"{name}_starts", 4 * digits)
        self.sums = shared_memory(module, b, f"{name}_sums", 4 * WARP)
        self.space = shared_memory(module, b, f"{name}_exchange", max(nbytes * items * THREADS, 4 * digits * WARPS))
        self.masks = self.space  # nothing is exchanged while elements are ranked

    def index(self, r: int) -> ir.Value:
        """Where the thread's r-th element lies in the tile, in the order of elements (an i32)."""
        base = self.b.mul(self.warp, I32(WARP * self.items))
        return self.b.add(self.b.add(base, self.lane), I32(r * WARP))

    def at(self, base: ir.Value, index: ir.Value, nbytes: int = 4) -> ir.Value:
        return offset(self.b, base, self.b.mul(self.b.zext(index, I64), I64(nbytes)))

    def _of_warp(self, words: ir.Value, digit: ir.Value) -> ir.Value:
        return self.at(words, self.b.add(self.b.mul(self.warp, I32(self.digits)), digit))

    def rank(self, digits: Sequence[ir.Value], inside: Sequence[ir.Value]) -> list[ir.Value]:
        """Each element's place in the tile sorted by digit; ``starts`` are then the places of the digits' firsts.

        Elements that are not ``inside`` have no place: theirs means nothing.
        """
        b = self.b
        barrier(b)
        for k in range(self.digits // WARP):
            for of in (self.counters, self.masks):
                b.store(I32(0), self._of_warp(of, b.add(self.lane, I32(WARP * k))), align=4)
        warp_barrier(b)
        own, ranks = b.shl(I32(1), self.lane), []
        for digit, valid in zip(digits, inside, strict=True):
            mask, counter = self._of_warp(self.masks, digit), self._of_warp(self.counters, digit)
            with if_then(b, valid):
                b.atomic_rmw("or", b.addrspacecast(mask, ir.PointerType(addrspace=3)), own, "monotonic")
            warp_barrier(b)
            same, before = b.load(mask, align=4, typ=I32), b.load(counter, align=4, typ=I32)
            earlier = b.ctpop(b.and_(same, self.below))
            warp_barrier(b)
            with if_then(b, b.and_(valid, b.icmp_unsigned("==", earlier, I32(0)))):
                b.store(b.add(before, b.ctpop(same)), counter, align=4)
                b.store(I32(0), mask, align=4)
            warp_barrier(b)
            ranks.append(
                b.or_(b.shl(digit, I32(16)), b.add(before, earlier))
            )  # in one register until the sums are known
        barrier(b)
        self._sum_digits()
        barrier(b)
        places = []
        for x in ranks:
            start = b.load(self._of_warp(self.counters, b.lshr(x, I32(16))), align=4, typ=I32)
            places.append(b.add(start, b.and_(x, I32(0xFFFF))))
        return places

    def own_digits(self) -> list[ir.Value]:
        """The digits that a thread has the sums of (i32): neighbours."""
        each = self.digits // THREADS
        first = self.b.mul(self.thread, I32(each)) if each > 1 else self.thread
        return [first, *(self.b.add(first, I32(k)) for k in range(1, each))]

    def before_digits(self, counts: Sequence[ir.Value]) -> list[ir.Value]:
        """For the thread's digits, of which there are so many elements each, how many have smaller ones."""
        *upto, whole = accumulate(counts, self.b.add)
        first = self.exclusive_sum(whole)
        return [first, *(self.b.add(first, x) for x in upto)]

    def _sum_digits(self) -> None:
        """From the warps' counts, where each warp's elements of each digit begin."""
        b, counts = self.b, [self._counts_of(digit) for digit in self.own_digits()]
        starts = self.before_digits([total for _, total in counts])
        for digit, start, (before, _) in zip(self.own_digits(), starts, counts, strict=True):
            b.store(start, self.at(self.starts, digit), align=4)
            for place, count in before:
                b.store(b.add(start, count), place, align=4)

    def _counts_of(self, digit: ir.Value) -> tuple[list[tuple[ir.Value, ir.Value]], ir.Value]:
        """Where each warp's count of a digit lies, with those before it together; and all of them together."""
        b, running, before = self.b, I32(0), []
        for w in range(WARPS):
            place = self.at(self.counters, b.add(digit, I32(w * self.digits)))
            before.append((place, running))
            running = b.add(running, b.load(place, align=4, typ=I32))
        return before, running

    def exclusive_sum(self, value: ir.Value) -> ir.Value:
        """What the values (i32) of the threads before amount to; all threads of the block take part."""
        b = self.b
        within = inclusive_sum(b, value, self.lane)
        with if_then(b, b.icmp_unsigned("==", self.lane, I32(WARP - 1))):
            b.store(within, self.at(self.sums, self.warp), align=4)
        barrier(b)
        before: ir.Value = I32(0)
        for w in range(WARPS - 1):
            found = b.load(self.at(self.sums, I32(w)), align=4, typ=I32)
            before = b.add(before, b.select(b.icmp_unsigned("<", I32(w), self.warp), found, I32(0)))
        return b.add(before, b.sub(within, value))

    def exchange(
        self, values: Sequence[ir.Value], places: Sequence[ir.Value], inside: Sequence[ir.Value],
        indices: Sequence[ir.Value],
    ) -> list[ir.Value]:  # fmt: skip
        """Values of elements put at places in the tile; returns those that then lie at ``indices``."""
        b, kind = self.b, values[0].type
        size = kind.width // 8
        barrier(b)
        for value, place, valid in zip(values, places, inside, strict=True):
            with if_then(b, valid):
                b.store(value, self.at(self.space, place, size), align=size)
        barrier(b)
        return [b.load(self.at(self.space, i, size), align=size, typ=kind) for i in indices]


def inclusive_sum(b: ir.IRBuilder, value: ir.Value, lane: ir.Value) -> ir.Value:
    """What the values (i32) of the lanes up to this one amount to."""
    for d in (1, 2, 4, 8, 16):
        other = ptx_ops.shuffle(b, "up", value, I32(d))
        value = b.add(value, b.select(b.icmp_unsigned(">=", lane, I32(d)), other, I32(0)))
    return value


def zero_shared(b: ir.IRBuilder, base: ir.Value, words: int, thread: ir.Value) -> None:
    with for_range(b, thread, words, THREADS) as i:
        b.store(I32(0), offset(b, base, b.shl(i, I64(2))), align=4)
