"""Products of few rows with a matrix: each element of the matrix is read once, at the speed of memory.

A warp computes neighbouring columns over one chunk of k, a lane one or several of them; other warps of the block take
the chunks behind, and one of them adds the chunks' sums in ascending order, and joins blocks of k in pairs. Where the
matrix lies along k a warp copies pieces of its columns to shared memory first, so that neighbouring lanes read
neighbours of memory. Weights in blocks of few bits have a kernel of their own (dot_unpack.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype, is_float, scalar_type
from volta.emit.dot_args import Args, ChunkAt, at, ceil_div
from volta.emit.loops import I32, I64, fma, if_else, if_then, loop, minimum, offset
from volta.emit.pairs import join_block
from volta.numba_cuda.codegen.ptx_ops import commit_copies, copy_async, wait_copies
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    thread_index,
    warp_barrier,
)
from volta.numba_cuda.products.dot_epilogue import Epilogue, Writer
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.xla_like.dot import CHUNK, CHUNKS, DotSpec, item_size

_PIECE = 128  # bytes along k of each column in one piece
_PITCH = _PIECE + 16  # so that lanes read their columns' pieces from different banks


@attrs.frozen
class VectorVariant:
    """``rows`` of the left operand, warps of a block that share columns (``beside``), columns of a lane, how the matrix
    lies, pieces in shared memory at once (where it lies along k), levels of DOT's tree that have places (0: k is one
    block), what becomes of the elements, and whether a lane's columns are written at once (``together``)."""

    rows: int
    beside: int
    wide: int
    along: Literal["k", "line"]
    pieces: int = 0
    levels: int = 0
    epilogue: Epilogue | None = None
    together: bool = False

    @property
    def warps(self) -> int:
        """Of a block: fewer where each needs more shared memory."""
        return 16 if self.rows <= 2 else 8

    @property
    def threads(self) -> int:
        return self.warps * WARP

    def blocks(self, n: int, batches: int) -> int:
        """Blocks for a product of n columns."""
        groups = -(-n // (WARP * self.wide))
        return batches * -(-groups // (self.warps // self.beside))

    @property
    def sums(self) -> int:
        """Of a warp."""
        return self.rows * WARP * self.wide

    def shared_bytes(self, spec: DotSpec) -> int:
        """The warps' sums, rows and pieces; then the sums that wait, of each group of warps that share columns."""
        size, waiting = item_size(spec.accumulator), self.warps // self.beside * self.levels * self.sums
        return self.warps * ((self.sums + self.rows * CHUNK) * size + self.pieces * WARP * _PITCH) + waiting * size


def build_vector(module: ir.Module, name: str, spec: DotSpec, variant: VectorVariant) -> ir.Function:
    """Add the kernel; its args are those of `Arg` and `Sharing`."""
    function, b = new_entry(module, name, variant.threads)
    _Vector(b, spec, variant, function).emit()
    b.ret_void()
    return function


class _Vector:
    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: VectorVariant, function: ir.Function) -> None:
        self.b, self.spec, self.v = b, spec, variant
        self.args = Args(b, function.args[0], Sharing)
        self.one, self.lanes = Builder(b, 1), Builder(b, variant.wide)
        self.kind = scalar_type(spec.accumulator)
        self.size = item_size(spec.accumulator)
        self.zero = ir.Constant(self.kind, 0.0 if is_float(spec.accumulator) else 0)
        self.shared = dynamic_shared(b.module, b)

    def emit(self) -> None:
        b, a, v = self.b, self.args, self.v
        thread = thread_index(b)
        self.lane, self.warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(5))
        each = v.wide * WARP
        groups = ceil_div(b, ceil_div(b, a.N, each), v.warps // v.beside)
        item, group = b.udiv(block_index(b), groups), b.urem(block_index(b), groups)
        b0, b1 = b.udiv(item, a.BATCH1), b.urem(item, a.BATCH1)
        lhs = at(b, device_pointer(b, a.LHS), (b0, a.LHS_BATCH0), (b1, a.LHS_BATCH1))
        rhs = at(b, device_pointer(b, a.RHS), (b0, a.RHS_BATCH0), (b1, a.RHS_BATCH1))
        out = at(b, device_pointer(b, a.OUT), (b0, a.OUT_BATCH0), (b1, a.OUT_BATCH1))
        part = b.urem(self.warp, I64(v.beside))
        group = b.add(b.mul(group, I64(v.warps // v.beside)), b.udiv(self.warp, I64(v.beside)))
        self.first = b.mul(group, I64(each))
        column = b.add(self.first, b.mul(self.lane, I64(v.wide)))
        self.column = minimum(b, column, b.sub(a.N, I64(v.wide)))
        self.x = [at(b, lhs, (minimum(b, I64(r), b.sub(a.M, I64(1))), a.LHS_M)) for r in range(v.rows)]
        self.matrix = rhs
        chunks = ceil_div(b, a.K, CHUNK)
        totals = [self.zero] * (v.rows * v.wide)
        with loop(b, 0, chunks, v.beside, totals) as it:
            start = b.mul(b.add(it.index, part), I64(CHUNK))
            depth = minimum(b, b.sub(a.K, start), CHUNK)
            depth = b.select(b.icmp_signed(">", depth, I64(0)), depth, I64(0))  # warps may be more than chunks
            self._load_rows(start, depth)
            sums = self._WAYS[v.along](self, start, depth)
            totals = self._together(sums, list(it.values), it.index, chunks)
            it.advance(*(self._joined(totals, it.index, chunks, part) if v.levels else totals))
        with if_then(b, b.icmp_signed("==", part, I64(0))):
            writer = Writer(b, self.spec, a, v.epilogue, out, b.mul(item, a.M))
            for r in range(v.rows):
                writer.write(I64(r), column, it.results[r * v.wide : (r + 1) * v.wide], v.together)

    def _together(
        self, sums: list[ir.Value], totals: list[ir.Value], index: ir.Value, chunks: ir.Value
    ) -> list[ir.Value]:
        """The totals with the sums of this round's chunks, in order."""
        b, v = self.b, self.v
        base = b.and_(self.warp, I64(-v.beside))
        slot = b.mul(self.lane, I64(self.size))

        def place(warp: ir.Value, i: int) -> ir.Value:
            line = b.add(b.mul(warp, I64(len(sums))), I64(i))
            return offset(b, offset(b, self.shared, b.mul(line, I64(WARP * self.size))), slot)

        if v.beside > 1:
            for i, x in enumerate(sums):
                b.store(x, place(self.warp, i))
            barrier(b)
        for part in range(v.beside):
            chunk = b.add(index, I64(part))
            within = b.and_(chunk, I64(CHUNKS - 1)) if v.levels else chunk
            exists, first = b.icmp_signed("<", chunk, chunks), b.icmp_signed("==", within, I64(0))
            found = sums
            if v.beside > 1:
                found = [b.load(place(b.add(base, I64(part)), i), typ=self.kind) for i in range(len(sums))]
            new = [b.select(first, y, self._add(x, y)) for x, y in zip(totals, found, strict=True)]
            totals = [b.select(exists, y, x) for x, y in zip(totals, new, strict=True)]
        if v.beside > 1:
            barrier(b)
        return totals

    def _joined(self, totals: list[ir.Value], index: ir.Value, chunks: ir.Value, part: ir.Value) -> list[ir.Value]:
        """The totals behind a round: where it ends a block of k, the first warp joins them with those that wait."""
        b, v = self.b, self.v
        before = v.shared_bytes(self.spec) - v.warps // v.beside * v.levels * v.sums * self.size
        own = b.mul(b.udiv(self.warp, I64(v.beside)), I64(v.levels * v.sums * self.size))
        start = at(b, offset(b, offset(b, self.shared, before), own), (self.lane, I64(self.size)))
        here = ChunkAt(b, b.sub(minimum(b, b.add(index, I64(self.v.beside)), chunks), I64(1)), chunks)

        def places(level: ir.Value) -> list[ir.Value]:
            line = at(b, start, (level, I64(v.sums * self.size)))
            return [offset(b, line, i * WARP * self.size) for i in range(len(totals))]

        def read(level: ir.Value) -> list[ir.Value]:
            return [b.load(place, typ=self.kind, align=self.size) for place in places(level)]

        def leave(level: ir.Value, sums: Sequence[ir.Value]) -> None:
            for place, x in zip(places(level), sums, strict=True):
                b.store(x, place, align=self.size)

        with if_else(b, b.and_(here.ends, b.icmp_signed("==", part, I64(0)))) as branch:
            with branch.then():
                branch.give(*join_block(b, totals, here.block, here.last, read, leave, self._add))
            with branch.otherwise():
                branch.give(*totals)
        return branch.results

    def _add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fadd(x, y) if is_float(self.spec.accumulator) else self.b.add(x, y)

    def _link(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return fma(self.b, x, y, z) if is_float(self.spec.accumulator) else self.b.add(z, self.b.mul(x, y))

    def _load_rows(self, start: ir.Value, depth: ir.Value) -> None:
        """The rows' values of a chunk to shared memory, each warp its own."""
        b, v = self.b, self.v
        region = v.warps * v.rows * WARP * v.wide * self.size
        self.rows_at = offset(b, self.shared, b.add(I64(region), b.mul(self.warp, I64(v.rows * CHUNK * self.size))))
        warp_barrier(b)
        last = b.sub(depth, I64(1))
        with if_then(b, b.icmp_signed(">", depth, I64(0))):
            for i in range(0, CHUNK, WARP):
                k = b.add(self.lane, I64(i))
                for r, x in enumerate(self.x):
                    here = at(b, x, (b.add(start, minimum(b, k, last)), self.args.LHS_K))
                    value = self.one.cast(self.one.load(here, self.spec.lhs), self.spec.accumulator).ir
                    b.store(value, at(b, offset(b, self.rows_at, r * CHUNK * self.size), (k, I64(self.size))))
        warp_barrier(b)

    def _row_values(self, k: ir.Value, count: int) -> list[list[ir.Value]]:
        """The rows' values at each of `count` k of the chunk: the same for all lanes."""
        b, v = self.b, self.v
        per = min(count, 16 // self.size)
        out: list[list[ir.Value]] = [[] for _ in range(count)]
        for r in range(v.rows):
            here = at(b, offset(b, self.rows_at, r * CHUNK * self.size), (k, I64(self.size)))
            for first in range(0, count, per):
                kind = ir.VectorType(self.kind, per)
                found = b.load(offset(b, here, first * self.size), typ=kind, align=per * self.size)
                for i in range(per):
                    out[first + i].append(b.extract_element(found, I32(i)))
        return out

    def _products(self, xs: list[ir.Value], ys: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
        return [self._link(x, y, sums[r * len(ys) + i]) for r, x in enumerate(xs) for i, y in enumerate(ys)]

    def _lines(self, start: ir.Value, depth: ir.Value) -> list[ir.Value]:
        """The chains of a chunk, the matrix lying along its columns: several lines are in flight at once."""
        b, a, v, spec = self.b, self.args, self.v, self.spec
        here = at(b, self.matrix, (start, a.RHS_K), (self.column, a.RHS_N))
        sums = [self.zero] * (v.rows * v.wide)
        many = 32 // v.wide
        whole = b.and_(depth, I64(-many))

        def load(k: ir.Value, count: int) -> list[ir.Value]:
            line = at(b, here, (k, a.RHS_K))
            steps = [at(b, line, (I64(i), a.RHS_K)) for i in range(count)]
            return [self.lanes.load(x, spec.rhs, v.wide * item_size(spec.rhs)).ir for x in steps]

        def multiply(k: ir.Value, lines: list[ir.Value], now: list[ir.Value]) -> list[ir.Value]:
            for xs, raw in zip(self._row_values(k, len(lines)), lines, strict=True):
                now = self._products(xs, self._lanes_of(self.lanes.value(raw, compute_dtype(spec.rhs))), now)
            return now

        with if_else(b, b.icmp_signed(">", whole, I64(0))) as branch:
            with branch.then():
                with loop(b, I64(0), whole, many, [*sums, *load(I64(0), many)]) as it:
                    now, lines = list(it.values[: len(sums)]), list(it.values[len(sums) :])
                    following = minimum(b, b.add(it.index, I64(many)), b.sub(whole, I64(many)))
                    ahead = load(following, many)  # while these are multiplied
                    it.advance(*multiply(it.index, lines, now), *ahead)
                branch.give(*it.results[: len(sums)])
            with branch.otherwise():
                branch.give(*sums)
        with loop(b, whole, depth, 1, branch.results) as rest:
            rest.advance(*multiply(rest.index, load(rest.index, 1), list(rest.values)))
        return list(rest.results)

    def _lanes_of(self, x: Value) -> list[ir.Value]:
        lanes = x.builder.lanes
        y = Builder(self.b, lanes).cast(x, self.spec.accumulator)
        return [y.ir] if lanes == 1 else [self.b.extract_element(y.ir, I32(i)) for i in range(lanes)]

    def _along_k(self, start: ir.Value, depth: ir.Value) -> list[ir.Value]:
        """The chains of a chunk, the matrix lying along k: a piece of each column is copied to shared memory."""
        b, a, v, spec = self.b, self.args, self.v, self.spec
        size = item_size(spec.rhs)
        length, once = _PIECE // size, 16 // size
        region = v.warps * v.rows * (WARP + CHUNK) * self.size
        mine = offset(b, self.shared, b.add(I64(region), b.mul(self.warp, I64(v.pieces * WARP * _PITCH))))
        down, right = b.lshr(self.lane, I64(3)), b.and_(self.lane, I64(7))  # eight lanes load a column's piece
        source = at(b, self.matrix, (start, I64(size)))
        pieces = ceil_div(b, depth, length)

        def load(piece: ir.Value) -> None:
            k = b.add(b.mul(piece, I64(length)), b.mul(right, I64(once)))
            left = b.mul(minimum(b, b.sub(depth, k), once), I64(size))
            valid = b.trunc(b.select(b.icmp_signed(">", left, I64(0)), left, I64(0)), I32)
            stage = offset(b, mine, b.mul(b.urem(piece, I64(v.pieces)), I64(WARP * _PITCH)))
            for i in range(0, WARP, 4):
                line = b.add(down, I64(i))
                column = minimum(b, b.add(self.first, line), b.sub(a.N, I64(1)))
                to = offset(b, at(b, stage, (line, I64(_PITCH))), b.mul(right, I64(16)))
                copy_async(b, to, at(b, source, (column, a.RHS_N), (k, I64(size))), 16, valid)

        for i in range(v.pieces - 1):
            load(I64(i))
            commit_copies(b)
        sums = [self.zero] * v.rows
        lanes = Builder(b, once)
        with loop(b, 0, pieces, 1, sums) as it:
            wait_copies(b, v.pieces - 2)
            warp_barrier(b)
            load(b.add(it.index, I64(v.pieces - 1)))
            commit_copies(b)
            stage = offset(b, mine, b.mul(b.urem(it.index, I64(v.pieces)), I64(WARP * _PITCH)))
            column = at(b, stage, (self.lane, I64(_PITCH)))
            first = b.mul(it.index, I64(length))
            left = minimum(b, b.sub(depth, first), length)
            whole = b.and_(left, I64(-once))
            with loop(b, 0, whole, once, list(it.values)) as run:
                now = list(run.values)
                ys = self._lanes_of(lanes.load(at(b, column, (run.index, I64(size))), spec.rhs, 16))
                for y, x in zip(ys, self._row_values(b.add(first, run.index), once), strict=True):
                    now = self._products(x, [y], now)
                run.advance(*now)
            with loop(b, whole, left, 1, run.results) as rest:
                y = self._lanes_of(self.one.load(at(b, column, (rest.index, I64(size))), spec.rhs))
                (x,) = self._row_values(b.add(first, rest.index), 1)
                rest.advance(*self._products(x, y, list(rest.values)))
            it.advance(*rest.results)
        wait_copies(b, 0)
        warp_barrier(b)  # before the next chunk's pieces take the place of these
        return list(it.results)

    _WAYS = {"k": _along_k, "line": _lines}
