"""Matrix products: a block computes a tile of the output, a thread a small tile of that, through shared memory.

Each output element is one thread's: chains of 256 FMAs in ascending k from +0.0, whose sums are added in ascending
order. The tile never changes a bit. Elements beyond the edges are computed from the last row or column and not stored;
k is never padded, since even adding +0 can change a result (-0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs
from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, is_float, scalar_type
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I32, I64, fma, if_else, if_then, loop, minimum, offset
from volta.numba_cuda.threads import (
    barrier,
    block_index,
    device_pointer,
    new_entry,
    own_args,
    shared_memory,
    thread_index,
)
from volta.xla_like.dot_schedule import CHUNK, DotSpec, item_size

_GROUP = 4  # neighbouring elements that a thread reads from shared memory at once


@attrs.frozen
class Tile:
    """Rows, columns and depth of a block's tile, and the rows and columns of it that are one thread's."""

    rows: int
    cols: int
    depth: int
    thread_rows: int
    thread_cols: int

    @property
    def threads(self) -> int:
        return (self.rows // self.thread_rows) * (self.cols // self.thread_cols)


LARGE = Tile(64, 128, 16, 8, 8)
LARGE_WIDE = Tile(64, 64, 8, 4, 4)  # for accumulators of 8 bytes
SMALL = Tile(32, 32, 16, 2, 4)


@attrs.frozen
class DotVariant:
    """How a product runs: its tile, and along which dimension neighbouring threads read each operand."""

    tile: Tile
    lhs_along: Literal["k", "m"]
    rhs_along: Literal["k", "n"]
    whole: bool = False  # operands lie in groups of four aligned float32 values, and k in whole tiles

    def suffix(self) -> str:
        return f"{self.tile.rows}x{self.tile.cols}{self.lhs_along}{self.rhs_along}{'_whole' * self.whole}"


def build_dot(module: ir.Module, name: str, spec: DotSpec, variant: DotVariant) -> ir.Function:
    """Add a product kernel; its args are those of the CPU's (`volta.xla_like.dot_schedule.Arg`)."""
    function, b = new_entry(module, name, variant.tile.threads)
    _Product(module, b, spec, variant, function).emit()
    b.ret_void()
    return function


def blocks_of(tile: Tile, m: int, n: int, batches: int) -> int:
    return batches * -(-m // tile.rows) * -(-n // tile.cols)


def choose(
    spec: DotSpec, m: int, n: int, k: int, batches: int, lhs_along: str, rhs_along: str, aligned: bool
) -> DotVariant:
    """The largest tile that still gives every multiprocessor work."""
    large = LARGE if item_size(spec.accumulator) == 4 else LARGE_WIDE
    tile = large if blocks_of(large, m, n, batches) >= 100 and m >= 32 and n >= 32 else SMALL
    whole = aligned and spec.accumulator == "float32" and k > 0 and k % tile.depth == 0
    return DotVariant(tile, lhs_along, rhs_along, whole)  # type: ignore[arg-type]


Part = tuple[ir.Value, ir.Value, ir.Value]


class _Product:
    def __init__(
        self, module: ir.Module, b: ir.IRBuilder, spec: DotSpec, variant: DotVariant, function: ir.Function
    ) -> None:
        self.b, self.spec, self.tile, self.variant = b, spec, variant.tile, variant
        self.args = Args(b, own_args(b, function.args[0]))
        self.one = Builder(b, 1)
        self.size = item_size(spec.accumulator)
        self.kind = scalar_type(spec.accumulator)
        self.zero = ir.Constant(self.kind, 0.0 if is_float(spec.accumulator) else 0)
        self.thread = thread_index(b)
        t = self.tile
        self.lhs_line, self.rhs_line = (t.rows + _GROUP) * self.size, (t.cols + _GROUP) * self.size
        lhs_bytes, rhs_bytes = t.depth * self.lhs_line, t.depth * self.rhs_line
        total_bytes = t.rows * t.cols * self.size
        self.lhs_shared = shared_memory(module, b, f"{function.name}_tiles", lhs_bytes + rhs_bytes + total_bytes)
        self.rhs_shared = offset(b, self.lhs_shared, lhs_bytes)
        self.totals = offset(b, self.rhs_shared, rhs_bytes)

    def emit(self) -> None:
        b, a, t = self.b, self.args, self.tile
        row_tiles, col_tiles = ceil_div(b, a.M, t.rows), ceil_div(b, a.N, t.cols)
        number = block_index(b)
        band = b.udiv(number, row_tiles)
        row = b.mul(b.urem(number, row_tiles), I64(t.rows))
        item, col = b.udiv(band, col_tiles), b.mul(b.urem(band, col_tiles), I64(t.cols))
        b0, b1 = b.udiv(item, a.BATCH1), b.urem(item, a.BATCH1)
        lhs = at(b, device_pointer(b, a.LHS), (b0, a.LHS_BATCH0), (b1, a.LHS_BATCH1))
        rhs = at(b, device_pointer(b, a.RHS), (b0, a.RHS_BATCH0), (b1, a.RHS_BATCH1))
        out = at(b, device_pointer(b, a.OUT), (b0, a.OUT_BATCH0), (b1, a.OUT_BATCH1))
        lhs_parts = self._parts(self.variant.lhs_along == "k", t.rows, row, a.M, lhs, a.LHS_M, a.LHS_K)
        rhs_parts = self._parts(self.variant.rhs_along == "k", t.cols, col, a.N, rhs, a.RHS_N, a.RHS_K)
        across = t.cols // t.thread_cols
        self.down, self.right = b.udiv(self.thread, I64(across)), b.urem(self.thread, I64(across))
        self._run(lhs_parts, rhs_parts)
        self._write(out, row, col)

    def _run(self, lhs_parts: list[Part], rhs_parts: list[Part]) -> None:
        """All tiles of k: while one is multiplied, the next is on its way from memory."""
        b, a, t, spec = self.b, self.args, self.tile, self.spec
        last = b.sub(a.K, I64(1))
        zeros = [self.zero] * (t.thread_rows * t.thread_cols)
        self._each_total(lambda slot, _: b.store(self.zero, slot), zeros)

        def bring(k: ir.Value) -> list[ir.Value]:
            if self.variant.whole:
                k = minimum(b, k, b.sub(a.K, I64(t.depth)))
                return [
                    b.load(at(b, pointer, (k, stride)), typ=ir.VectorType(self.kind, _GROUP), align=_GROUP * self.size)
                    for parts, stride in ((lhs_parts, a.LHS_K), (rhs_parts, a.RHS_K))
                    for pointer, _, _ in parts
                ]
            return [self._read(p, k, last, a.LHS_K, spec.lhs) for p in lhs_parts] + [
                self._read(p, k, last, a.RHS_K, spec.rhs) for p in rhs_parts
            ]

        with if_then(b, b.icmp_signed(">", a.K, I64(0))):
            ahead = bring(I64(0))
            with loop(b, 0, a.K, t.depth, [*zeros, *ahead]) as it:
                sums, brought = list(it.values[: len(zeros)]), it.values[len(zeros) :]
                barrier(b)
                places: list[tuple[Part, ir.Value, int, str]] = []
                places += [(p, self.lhs_shared, self.lhs_line, self.variant.lhs_along) for p in lhs_parts]
                places += [(p, self.rhs_shared, self.rhs_line, self.variant.rhs_along) for p in rhs_parts]
                for ((_, depth, place), space, line, along), value in zip(places, brought, strict=True):
                    here = at(b, space, (depth, I64(line)), (place, I64(self.size)))
                    if self.variant.whole and along == "k":
                        for i in range(_GROUP):
                            b.store(b.extract_element(value, I32(i)), offset(b, here, i * line))
                    else:
                        b.store(value, here, align=_GROUP * self.size if self.variant.whole else self.size)
                barrier(b)
                following = b.add(it.index, I64(t.depth))
                ahead = bring(following)
                depth = I64(t.depth) if self.variant.whole else minimum(b, b.sub(a.K, it.index), t.depth)
                sums = self._multiply(depth, sums)
                chain_ends = b.or_(
                    b.icmp_signed("==", b.and_(following, I64(CHUNK - 1)), I64(0)), b.icmp_signed(">=", following, a.K)
                )
                with if_else(b, chain_ends) as branch:
                    with branch.then():
                        first = b.icmp_signed("<=", following, I64(CHUNK))
                        self._each_total(lambda slot, x: self._absorb(slot, x, first), sums)
                        branch.give(*zeros)
                    with branch.otherwise():
                        branch.give(*sums)
                it.advance(*branch.results, *ahead)

    def _absorb(self, slot: ir.Value, chain: ir.Value, first: ir.Value) -> None:
        """Add a chain's sum to the total at a slot; the first is the total."""
        b = self.b
        b.store(b.select(first, chain, self._add(b.load(slot, typ=self.kind), chain)), slot)

    def _each_total(self, act: Callable[[ir.Value, ir.Value], object], values: list[ir.Value]) -> None:
        """Call ``act(slot, value)`` for each output element of the thread; totals wait in shared memory."""
        for i, value in enumerate(values):
            place = self.b.add(self.thread, I64(i * self.tile.threads))
            act(at(self.b, self.totals, (place, I64(self.size))), value)

    def _parts(
        self, along_k: bool, length: int, start: ir.Value, size: ir.Value, base: ir.Value, stride: ir.Value,
        stride_k: ir.Value,
    ) -> list[Part]:  # fmt: skip
        """What a thread brings of an operand's tile: (pointer to its line, depth in the tile, place in the line)."""
        b, t = self.b, self.tile
        if self.variant.whole:
            return self._groups_of(along_k, length, start, size, base, stride, stride_k)
        parts = []
        for turn in range(length * t.depth // t.threads):
            number = b.add(self.thread, I64(turn * t.threads))
            if along_k:
                place, depth = b.udiv(number, I64(t.depth)), b.urem(number, I64(t.depth))
            else:
                place, depth = b.urem(number, I64(length)), b.udiv(number, I64(length))
            line = minimum(b, b.add(start, place), b.sub(size, I64(1)))
            parts.append((at(b, base, (line, stride)), depth, place))
        return parts

    def _groups_of(
        self, along_k: bool, length: int, start: ir.Value, size: ir.Value, base: ir.Value, stride: ir.Value,
        stride_k: ir.Value,
    ) -> list[Part]:  # fmt: skip
        """The same in groups of four neighbours, along the dimension in which the operand lies."""
        b, t = self.b, self.tile
        parts = []
        for turn in range(length * t.depth // t.threads // _GROUP):
            number = b.add(self.thread, I64(turn * t.threads))
            if along_k:
                place, group = b.udiv(number, I64(t.depth // _GROUP)), b.urem(number, I64(t.depth // _GROUP))
                depth = b.mul(group, I64(_GROUP))
                line = minimum(b, b.add(start, place), b.sub(size, I64(1)))
            else:
                group, depth = b.urem(number, I64(length // _GROUP)), b.udiv(number, I64(length // _GROUP))
                place = b.mul(group, I64(_GROUP))
                line = minimum(b, b.add(start, place), b.sub(size, I64(_GROUP)))
            parts.append((at(b, base, (line, stride), (depth, stride_k)), depth, place))
        return parts

    def _read(self, part: Part, k: ir.Value, last: ir.Value, stride: ir.Value, dtype: str) -> ir.Value:
        """One element as the accumulator's kind; beyond the last k it is one that is not used."""
        line, depth, _ = part
        here = at(self.b, line, (minimum(self.b, self.b.add(k, depth), last), stride))
        return self.one.cast(self.one.load(here, dtype), self.spec.accumulator).ir

    def _groups(self, number: ir.Value, each: int, length: int) -> list[ir.Value]:
        """The places in a line of a thread's `each` rows or columns: runs of neighbours, far apart."""
        b, group = self.b, min(_GROUP, each)
        runs = each // group
        first = b.mul(number, I64(group))
        return [b.add(first, I64(run * (length // runs) + i)) for run in range(runs) for i in range(group)]

    def _fetch(self, line: ir.Value, number: ir.Value, each: int, length: int) -> list[ir.Value]:
        """A thread's `each` values of a line in shared memory, up to 16 bytes at a time."""
        b, group = self.b, min(_GROUP, each)
        wide = min(group, 16 // self.size)
        kind, found = ir.VectorType(self.kind, wide), []
        start = at(b, line, (number, I64(group * self.size)))
        for run in range(each // group):
            for first in range(0, group, wide):
                here = offset(b, start, (run * (length // (each // group)) + first) * self.size)
                vector = b.load(here, typ=kind, align=wide * self.size)
                found += [b.extract_element(vector, I32(i)) for i in range(wide)]
        return found

    def _multiply(self, depth: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with the chains over the tile's first `depth` products."""
        b, t = self.b, self.tile
        unroll = 4
        whole = b.and_(depth, I64(-unroll))
        for start, stop, step in ((I64(0), whole, unroll), (whole, depth, 1)):
            with loop(b, start, stop, step, sums) as it:
                now = list(it.values)
                for i in range(step):
                    k = b.add(it.index, I64(i))
                    left_line = at(b, self.lhs_shared, (k, I64(self.lhs_line)))
                    right_line = at(b, self.rhs_shared, (k, I64(self.rhs_line)))
                    xs = self._fetch(left_line, self.down, t.thread_rows, t.rows)
                    ys = self._fetch(right_line, self.right, t.thread_cols, t.cols)
                    now = [self._link(x, y, now[n]) for n, (x, y) in enumerate((x, y) for x in xs for y in ys)]
                it.advance(*now)
            sums = list(it.results)
        return sums

    def _link(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return fma(self.b, x, y, z) if is_float(self.spec.accumulator) else self.b.add(z, self.b.mul(x, y))

    def _add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fadd(x, y) if is_float(self.spec.accumulator) else self.b.add(x, y)

    def _write(self, out: ir.Value, row: ir.Value, col: ir.Value) -> None:
        b, a, t, spec = self.b, self.args, self.tile, self.spec
        lefts = [b.add(row, p) for p in self._groups(self.down, t.thread_rows, t.rows)]
        rights = [b.add(col, p) for p in self._groups(self.right, t.thread_cols, t.cols)]
        totals: list[ir.Value] = []
        self._each_total(
            lambda slot, _: totals.append(b.load(slot, typ=self.kind)), [self.zero] * len(lefts) * len(rights)
        )
        values = iter(totals)
        for r in lefts:
            line = at(b, out, (r, a.OUT_M))
            inside = b.icmp_signed("<", r, a.M)
            for c in rights:
                value = self.one.cast(self.one.value(next(values), spec.accumulator), spec.out)
                with if_then(b, b.and_(inside, b.icmp_signed("<", c, a.N))):
                    to = at(b, line, (c, I64(item_size(spec.out))))
                    self.one.store(value, to, spec.out if spec.out in HALF_DTYPES else None)
