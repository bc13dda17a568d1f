"""Panels of many rows whose blocks of threads hand results on: each has 32 rows, and waits for those above it.

Blocks of threads take tickets, so that whoever waits does so for blocks that have begun. A flag says that what the
others need of a block's rows is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, for_range, if_then, load_args, minimum, offset
from volta.emit.panels import at
from volta.numba_cuda.codegen.ptx_semaphore import (
    QUAD,
    await_semaphore,
    read_serial,
    release_semaphore,
    take_ticket,
    write_serial,
)
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    device_pointer,
    dynamic_shared,
    new_entry,
    thread_index,
    warp_barrier,
)
from volta.numba_cuda.panels.registers import Elements, factored, number, read_row
from volta.xla_like.panels import PanelSpec

ROWS = WARP
"""Rows of a block of threads."""

THREADS = 128
_EACH = ROWS * WARP // THREADS
"""Columns of a tile that a thread has in its row."""


class Flags:
    """The block's ticket, and the flags of all blocks: words of 4 bytes that are 0 at the start."""

    def __init__(self, b: ir.IRBuilder, words: ir.Value, shared: ir.Value) -> None:
        self.b, self.words = b, device_pointer(b, words)
        self.leads = b.icmp_signed("==", thread_index(b), I64(0))
        with if_then(b, self.leads):
            b.store(take_ticket(b, self.words), shared, align=4)
        barrier(b)
        self.ticket = b.zext(b.load(shared, typ=I32, align=4), I64)

    def _place(self, flag: ir.Value) -> ir.Value:
        return offset(self.b, self.words, self.b.mul(self.b.add(flag, I64(1)), I64(4)))

    def wait(self, flag: ir.Value) -> None:
        """What was written before a flag was raised, all threads of the block see."""
        with if_then(self.b, self.leads):
            await_semaphore(self.b, self._place(flag), I32(1))
        barrier(self.b)

    def raised(self, flag: ir.Value) -> None:
        barrier(self.b)
        self.raised_by(self.leads, flag)

    def raised_by(self, one: ir.Value, flag: ir.Value) -> None:
        """After what makes the others' writes known to the ``one`` thread; it alone waits until all can see them."""
        with if_then(self.b, one):
            release_semaphore(self.b, self._place(flag), I32(1))


def flags_of_factor(rows: int, columns: int) -> int:
    """Of a matrix: one for each tile on or below the diagonal of the first rows, which all others need."""
    return (columns // ROWS) ** 2


def own_bytes(columns: int, itemsize: int) -> int:
    """Of a block's own rows, which it keeps near."""
    return columns * ROWS * itemsize


def shared_of_factor(itemsize: int) -> int:
    """Bytes of dynamic shared memory besides."""
    return 2 * ROWS * (WARP + 4) * itemsize + 16


def build_factor(module: ir.Module, name: str, spec: PanelSpec, far: bool) -> ir.Function:
    """Args: columns of a matrix, those of L, words for tickets and flags, memory for what blocks keep of their rows
    where that is not shared memory (``far``); then rows and columns."""
    function, b = new_entry(module, name, THREADS)
    source, out, words, space, rows, columns = load_args(b, function.args[0], 6)
    arrays = device_pointer(b, source), device_pointer(b, out)
    _Factor(b, spec, *arrays, words, device_pointer(b, space) if far else None, rows, columns).run()
    b.ret_void()
    return function


class _Factor:
    """Cholesky's columns of a group. Warp w has columns 8 w to 8 w + 7 of a tile, a lane a row of them."""

    def __init__(
        self, b: ir.IRBuilder, spec: PanelSpec, source: ir.Value, out: ir.Value, words: ir.Value, far: ir.Value | None,
        rows: ir.Value, columns: ir.Value,
    ) -> None:  # fmt: skip
        self.b, self.one, self.dtype, self.item = b, Builder(b, 1), spec.dtype.name, spec.dtype.itemsize
        self.few, self.columns, thread = 16 // self.item, columns, thread_index(b)
        self.pitch = WARP + 4
        self.lane, self.warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
        self.thread, self.mine = thread, b.mul(self.warp, I64(_EACH))
        space = dynamic_shared(b.module, b)
        self.tile = offset(b, space, 16)
        self.rest = at(b, self.tile, I64(ROWS * self.pitch), self.dtype)
        self.own = at(b, self.rest, I64(ROWS * self.pitch), self.dtype)
        self.flags = Flags(b, words, space)
        if far is not None:
            self.own = at(b, far, b.mul(self.flags.ticket, b.mul(columns, I64(ROWS))), self.dtype)
        blocks = b.sdiv(rows, I64(ROWS))
        self.matrix, self.block = b.sdiv(self.flags.ticket, blocks), b.srem(self.flags.ticket, blocks)
        self.tiles = b.sdiv(columns, I64(WARP))
        begin = b.mul(b.mul(self.matrix, rows), columns)
        self.source, self.out = at(b, source, begin, self.dtype), at(b, out, begin, self.dtype)

    def run(self) -> None:
        """What the next block waits for comes first: a diagonal tile is in registers from the start on, another warp
        than the one that factors it raises the flag of the tile before, and it is written from registers."""
        b, one, diagonal = self.b, self.one, Elements(self.b, self.dtype, _EACH)
        zero, on_diagonal = one.const(self.dtype, 0), b.icmp_signed("<", self.block, self.tiles)
        start = self._source(minimum(b, self.block, b.sub(self.tiles, I64(1))))
        last, second = b.sub(self.block, I64(1)), b.icmp_signed("==", self.thread, I64(WARP))
        for c in range(_EACH):
            diagonal[c] = zero
        with for_range(b, 0, minimum(b, self.block, self.tiles)) as k:
            self._left_of_diagonal(k)
            self._write(k)
            self._add(diagonal, self._own(b.mul(k, I64(WARP))), self._own(b.mul(k, I64(WARP))), ROWS)
            with if_then(b, b.and_(on_diagonal, b.icmp_signed("<", k, last))):
                self.flags.raised(self._flag(self.block, k))
        with if_then(b, on_diagonal):
            self._subtract(start, diagonal)
            barrier(b)
            self.flags.raised_by(b.and_(second, b.icmp_signed(">=", last, I64(0))), self._flag(self.block, last))
            with if_then(b, b.icmp_signed("==", self.warp, I64(0))):
                x = factored(one, [one.load(self._rest(c), self.dtype) for c in range(WARP)])
                here = number(one, self.lane)
                row = [one.select(here >= c, x[c], zero) for c in range(WARP)]
                for c in range(0, WARP, self.few):
                    write_serial(b, self._out_at(self.block, I64(c)), self._quad(row[c : c + self.few]))
                warp_barrier(b)
                self.flags.raised_by(self.flags.leads, self._flag(self.block, self.block))
            with for_range(b, b.add(self.block, I64(1)), self.tiles) as k:
                for q in range(0, _EACH, self.few):
                    write_serial(b, self._out_at(k, b.add(self.mine, I64(q))), ir.Constant(QUAD, [0.0] * 4))

    def _left_of_diagonal(self, k: ir.Value) -> None:
        """A tile whose columns are the rows of block ``k``."""
        b, one, before = self.b, self.one, Elements(self.b, self.dtype, _EACH)
        start = self._source(k)
        for c in range(_EACH):
            before[c] = one.const(self.dtype, 0)
        with for_range(b, 0, k) as j:
            self._fetch(k, j)
            self._add(before, self._own(b.mul(j, I64(WARP))), self.tile, self.pitch)
        self._subtract(start, before)
        self._fetch(k, k)
        with if_then(b, b.icmp_signed("==", self.warp, I64(0))):
            x = [one.load(self._rest(c), self.dtype) for c in range(WARP)]
            for j in range(WARP):
                for i, factor in read_row(one, at(b, self.tile, I64(j * self.pitch), self.dtype), self.dtype, j, WARP):
                    x[i] = x[i] / factor if i == j else one.fma(-factor, x[j], x[i])
                one.store(x[j], self._own_at(k, j))
        barrier(b)

    def _flag(self, row: ir.Value, column: ir.Value) -> ir.Value:
        b, all_ = self.b, self.tiles
        return b.add(b.mul(b.add(b.mul(self.matrix, all_), row), all_), column)

    def _own(self, column: ir.Value) -> ir.Value:
        """Where a column of the block's own rows begins."""
        return at(self.b, self.own, self.b.mul(column, I64(ROWS)), self.dtype)

    def _own_at(self, tile: ir.Value, column: int) -> ir.Value:
        return at(self.b, self._own(self.b.add(self.b.mul(tile, I64(WARP)), I64(column))), self.lane, self.dtype)

    def _rest(self, column: int) -> ir.Value:
        return at(self.b, self.rest, self.b.add(self.lane, I64(column * self.pitch)), self.dtype)

    def _element(self, row: ir.Value, tile: ir.Value, column: ir.Value) -> ir.Value:
        b = self.b
        return b.add(b.mul(row, self.columns), b.add(b.mul(tile, I64(WARP)), column))

    def _out_at(self, tile: ir.Value, column: ir.Value) -> ir.Value:
        b = self.b
        row = b.add(b.mul(self.block, I64(ROWS)), self.lane)
        return at(b, self.out, self._element(row, tile, column), self.dtype)

    def _add(self, totals: Elements, own: ir.Value, other: ir.Value, pitch: int) -> None:
        """Add the products of 32 columns, in ascending order."""
        b, one = self.b, self.one
        with for_range(b, 0, WARP) as k:
            x = one.load(at(b, own, b.add(b.mul(k, I64(ROWS)), self.lane), self.dtype), self.dtype)
            row = at(b, other, b.add(b.mul(k, I64(pitch)), self.mine), self.dtype)
            for c, y in read_row(one, row, self.dtype, 0, _EACH):
                totals[c] = one.fma(x, y, totals[c])

    def _source(self, tile: ir.Value) -> list[Value]:
        """A thread's elements of a tile, as they are given."""
        b = self.b
        row = b.add(b.mul(self.block, I64(ROWS)), self.lane)
        start = at(b, self.source, self._element(row, tile, self.mine), self.dtype)
        return [x for _, x in read_row(self.one, start, self.dtype, 0, _EACH)]

    def _subtract(self, start: Sequence[Value], totals: Elements) -> None:
        """What is left of a tile, column by column."""
        b = self.b
        for c, x in enumerate(start):
            place = b.add(b.mul(b.add(self.mine, I64(c)), I64(self.pitch)), self.lane)
            self.one.store(x - totals[c], at(b, self.rest, place, self.dtype))

    def _fetch(self, row: ir.Value, column: ir.Value) -> None:
        """Load another block's tile into shared memory, transposed, once it is there."""
        b = self.b
        self.flags.wait(self._flag(row, column))
        kind, each = ir.VectorType(self.one.type_of(self.dtype), self.few), WARP // self.few
        for q in range(0, ROWS * each, THREADS):
            place = b.add(self.thread, I64(q))
            r, c = b.udiv(place, I64(each)), b.mul(b.urem(place, I64(each)), I64(self.few))
            index = self._element(b.add(b.mul(row, I64(ROWS)), r), column, c)
            found = b.bitcast(read_serial(b, at(b, self.out, index, self.dtype)), kind)
            for i in range(self.few):
                to = b.add(b.mul(b.add(c, I64(i)), I64(self.pitch)), r)
                x = self.one.value(b.extract_element(found, I32(i)), self.dtype)
                self.one.store(x, at(b, self.tile, to, self.dtype))
        barrier(b)

    def _write(self, tile: ir.Value) -> None:
        b = self.b
        for q in range(0, _EACH, self.few):
            columns = [b.add(self.mine, I64(q + i)) for i in range(self.few)]
            places = [at(b, self._own(b.add(b.mul(tile, I64(WARP)), c)), self.lane, self.dtype) for c in columns]
            found = [self.one.load(place, self.dtype) for place in places]
            write_serial(b, self._out_at(tile, columns[0]), self._quad(found))

    def _quad(self, xs: Sequence[Value]) -> ir.Value:
        """Neighbours, as they are written at once."""
        x: ir.Value = ir.Constant(ir.VectorType(self.one.type_of(self.dtype), self.few), ir.Undefined)
        for i, y in enumerate(xs):
            x = self.b.insert_element(x, y.ir, I32(i))
        return self.b.bitcast(x, QUAD)
