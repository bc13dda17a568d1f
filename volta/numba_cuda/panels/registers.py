"""What kernels share whose threads hold a panel's elements in registers: the elements, and what warps agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I32, I64, if_then, offset
from volta.emit.panels import at
from volta.emit.reducers import LANES
from volta.numba_cuda.codegen.ptx_redux import redux
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    shared_memory,
    shuffle,
    shuffle_xor,
    thread_index,
    warp_barrier,
)


def size_for(width: int) -> int:
    """The columns that a kernel for so many is written for: each has code of its own."""
    return next(size for size in (8, 16, WARP) if width <= size)


def lanes_for(rows: int) -> int:
    """Lanes of a warp that have a matrix of so many rows between them: a power of two."""
    return 1 << (rows - 1).bit_length()


class Elements:
    """Elements of a thread, each at a place that is known when the kernel is compiled: LLVM keeps them in registers."""

    def __init__(self, b: ir.IRBuilder, dtype: str, count: int) -> None:
        self.one, self.dtype = Builder(b, 1), dtype
        with b.goto_entry_block():
            self._slots = [b.alloca(self.one.type_of(dtype)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Value]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> Value:
        b = self.one.irbuilder
        return self.one.value(b.load(self._slots[k], typ=self.one.type_of(self.dtype)), self.dtype)

    def __setitem__(self, k: int, x: Value) -> None:
        self.one.irbuilder.store(x.ir, self._slots[k])


def number(one: Builder, x: ir.Value) -> Value:
    """An index as int32: what a block works on is small, and a thread has few registers."""
    return one.value(one.irbuilder.trunc(x, I32), "int32")


def read_row(
    one: Builder, row: ir.Value, dtype: str, first: int, stop: int, piece: int = 16
) -> Iterator[tuple[int, Value]]:
    """Elements ``first`` to ``stop`` of a row that begins at a multiple of ``piece`` bytes, with their places: as many
    are read at once as these bytes are, when they are asked for."""
    few = piece // item_size(dtype)
    wide = Builder(one.irbuilder, few)
    for k in range(first - first % few, stop, few):
        x = wide.load(offset(one.irbuilder, row, k * item_size(dtype)), dtype, piece)
        yield from ((k + i, one.value(wide.lane(x, i).ir, dtype)) for i in range(max(0, first - k), few))


def write_row(one: Builder, row: ir.Value, xs: Sequence[Value], first: int, piece: int = 16) -> None:
    """Write a row that begins at a multiple of ``piece`` bytes, from ``first`` on or a few before it."""
    b, dtype = one.irbuilder, xs[0].dtype
    few = piece // item_size(dtype)
    for k in range(first - first % few, len(xs), few):
        x: ir.Value = ir.Constant(ir.VectorType(xs[k].ir.type, few), ir.Undefined)
        for i in range(few):
            x = b.insert_element(x, xs[k + i].ir, ir.IntType(32)(i))
        b.store(x, offset(b, row, k * item_size(dtype)), align=piece)


def summed(terms: Sequence[Value]) -> Value:
    """SUM of at most 64 terms, by one thread."""
    terms, half = list(terms), LANES // 2
    while half:
        terms[:half] = [x + terms[k + half] if k + half < len(terms) else x for k, x in enumerate(terms[:half])]
        del terms[half:]
        half //= 2
    return terms[0]


def factored(one: Builder, x: Sequence[Value]) -> list[Value]:
    """The rows of L from those of a square, of which each lane of a block's first warp has one. A lane also has what is
    left of its diagonal element by itself: so the next root waits for no product that goes from lane to lane."""
    b, x, here = one.irbuilder, list(x), number(one, thread_index(one.irbuilder))
    left = x[0]
    for c in range(1, len(x)):
        left = one.select(here == c, x[c], left)
    for j in range(len(x)):
        root = one.sqrt(shuffle(b, "idx", left, I32(j)))
        quotient = x[j] / root
        left = one.fma(-quotient, quotient, left)
        x[j] = one.select(here == j, root, quotient)
        for c in range(j + 1, len(x)):
            x[c] = one.fma(-shuffle(b, "idx", x[j], I32(c)), x[j], x[c])
    return x


def meet(b: ir.IRBuilder, threads: int) -> None:
    """What any thread of the block wrote, all see."""
    (warp_barrier if threads == WARP else barrier)(b)


Join = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]


def over_warp(b: ir.IRBuilder, join: Join, own: Sequence[Value], lanes: int = WARP) -> Sequence[Value]:
    """What the lanes of a warp have, joined by halves, for all of them; ``lanes`` neighbours by themselves."""
    distance = lanes // 2
    while distance:
        own, distance = join(own, [shuffle_xor(b, x, distance) for x in own]), distance // 2
    return own


def key_of(dtype: str) -> str:
    return f"int{8 * item_size(dtype)}"


def size_key(one: Builder, x: Value) -> Value:
    """An integer that orders elements by their size, NaN above infinity: its bits are those of the size."""
    nan = (1 << (8 * item_size(x.dtype) - 1)) - 1
    return one.select(one.isnan(x), nan, one.bitcast(abs(x), key_of(x.dtype)))


class Most:
    """The place (int32) of the first element of largest size among the threads' candidates, or of the first NaN."""

    def __init__(self, b: ir.IRBuilder, name: str, threads: int, dtype: str) -> None:
        self.b, self.one, self.name, self.threads = b, Builder(b, 1), name, threads
        self.key = key_of(dtype)

    def candidate(self, x: Value, place: Value, counts: Value) -> list[Value]:
        return [self.one.select(counts, size_key(self.one, x), -1), place]

    def better(self, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
        take = (y[0] > x[0]) | ((y[0] == x[0]) & (y[1] < x[1]))
        return [self.one.select(take, q, p) for p, q in zip(x, y, strict=True)]

    def _of_warp(self, own: Sequence[Value], lanes: int) -> Sequence[Value]:
        """The best of the lanes of a warp, of which so many neighbours have what all have."""
        b, one, (size, place) = self.b, self.one, own
        if self.key != "int32":
            return over_warp(b, self.better, own, lanes)
        most = one.value(redux(b, "max", size.ir), "int32")
        return most, one.value(redux(b, "min", one.select(size == most, place, (1 << 31) - 1).ir), "int32")

    def of_block(self, own: Sequence[Value], lane: ir.Value, warp: ir.Value) -> Value:
        """The place, as every thread is told it. Threads meet in between."""
        b, one, warps = self.b, self.one, self.threads // WARP
        found = self._of_warp(own, WARP)
        if warps > 1:
            kinds = (self.key, "int32")
            spaces = [shared_memory(b.module, b, f"{self.name}_{k}", warps * item_size(d)) for k, d in enumerate(kinds)]
            with if_then(b, b.icmp_signed("==", lane, I64(0))):
                for x, space in zip(found, spaces, strict=True):
                    one.store(x, at(b, space, warp, x.dtype))
            barrier(b)
            there = b.and_(lane, I64(warps - 1))
            pairs = zip(spaces, kinds, strict=True)
            found = self._of_warp([one.load(at(b, space, there, d), d) for space, d in pairs], warps)
        return found[1]
