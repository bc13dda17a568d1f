"""Scatter: sorted updates are combined run by run, in parallel over runs, over columns, and over the blocks of a sum.

A run is the updates of one target in their order (`ordering` sorts them). Runs of up to `SHORT` updates are combined by
one thread a column. Longer ones are cut into the blocks of 4096 that SUM has anyway, and several threads share a column
of a block, each with some of its 64 lanes: those of a block of threads where there are many columns, those of a warp
where there are few (and there one thread takes runs of up to 64). Where a run has several blocks, partial results are
kept and a last kernel combines them by pairs of neighbours (long_runs.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loops import I32, I64, for_range, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import Reducer, State
from volta.numba_cuda.codegen.threads import device_pointer, new_entry, read_args_first
from volta.numba_cuda.ordering.indexing import TILE_THREADS as THREADS
from volta.numba_cuda.ordering.indexing import Tile, divide, halves, word
from volta.xla_like.ordering import SCATTERS, ScatterSpec

SHORT = 16

GROUPS = 4
"""Groups of columns that a thread combines at most: what it finds out about a run serves them all."""

WORDS = 9
"""Of an `Updates`."""


FEW_UPDATES = 32
"""Up to this many updates a batch item are matched by comparing targets, without sorting them."""


def columns_at_once(spec: ScatterSpec, width: int, offsets: Sequence[int]) -> int:
    """Neighbouring columns that one thread can read as one aligned piece of up to 16 bytes."""
    lanes = min(4, 16 // spec.dtype.itemsize)
    aligned = width % lanes == 0 and not any(n % (lanes * spec.dtype.itemsize) for n in offsets)
    return lanes if aligned else 1


class Updates:
    """The args of a scatter, and what a thread reads and writes of one batch item.

    Words: updates, order, out, batch items, slots, width, updates of an item, layout, partial results. The layout is
    log2 of the threads of a block along the columns. Updates that are ``carried`` stand in the records of the order,
    where positions do otherwise.
    """

    def __init__(self, b: ir.IRBuilder, spec: ScatterSpec, args: ir.Value, lanes: int, carried: bool = False) -> None:
        self.b, self.spec, self.lanes, self.carried = b, spec, lanes, carried
        self.dtype, self.builder = spec.dtype.name, Builder(b, lanes)
        self.reducer = None if spec.op == "set" else Reducer(SCATTERS[spec.op], compute_dtype(spec.dtype.name))
        updates, order, out, self.batches, self.slots, self.width, self.count, self.layout, partials = load_args(
            b, args, WORDS
        )
        self.updates, self.order, self.out, self.partials = (
            device_pointer(b, p) for p in (updates, order, out, partials)
        )

    def item(self, batch: ir.Value, column: ir.Value) -> None:
        """Go to a batch item and a column."""
        b, size = self.b, I64(self.spec.dtype.itemsize)
        self.runs = offset(b, self.order, b.shl(b.mul(batch, b.add(self.slots, self.count)), I64(3)))
        self.records = offset(b, self.runs, b.shl(self.slots, I64(3)))
        self.pitch = b.mul(self.width, size)
        here = b.mul(column, size)
        self.source = offset(b, self.updates, b.add(b.mul(b.mul(batch, self.count), self.pitch), here))
        self.target = offset(b, self.out, b.add(b.mul(b.mul(batch, self.slots), self.pitch), here))

    def record(self, i: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Position and slot of the i-th update in the order of slots."""
        return halves(self.b, word(self.b, self.records, i))

    def run(self, slot: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where the run of a slot begins and ends."""
        return halves(self.b, word(self.b, self.runs, slot))

    def load(self, i: ir.Value) -> Value:
        """The i-th update in the order of slots."""
        if self.carried:
            return self.builder.load(offset(self.b, self.records, self.b.shl(i, I64(3))), self.dtype)
        return self.load_row(self.record(i)[0])

    def load_row(self, position: ir.Value) -> Value:
        place = offset(self.b, self.source, self.b.mul(position, self.pitch))
        return self.builder.load(place, self.dtype, self.lanes * self.spec.dtype.itemsize)

    def write(self, slot: ir.Value, value: Value) -> None:
        place = offset(self.b, self.target, self.b.mul(slot, self.pitch))
        self.builder.store(value, place, self.dtype, self.lanes * self.spec.dtype.itemsize)

    def read(self, slot: ir.Value) -> Value:
        place = offset(self.b, self.target, self.b.mul(slot, self.pitch))
        return self.builder.load(place, self.dtype, self.lanes * self.spec.dtype.itemsize)

    def combine(self, slot: ir.Value, total: State, old: Value | None = None) -> None:
        """Combine what a run amounts to with its target, which may have been read already."""
        assert self.reducer is not None
        if self.dtype in ("float16", "bfloat16"):  # the sum is a value of the dtype before it is added
            total = (self.builder.round_to_half(total[0], self.dtype),)
        old = self.read(slot) if old is None else old
        self.write(slot, self.reducer.combine(self.builder, (old,), total)[0])

    def tree(self, values: list[Value]) -> State:
        """The lanes of a block of a sum combined by halving; there is a power of two of them."""
        assert self.reducer is not None
        while len(values) > 1:
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            values = [self.reducer.combine(self.builder, (x,), (y,))[0] for x, y in pairs]
        return (values[0],)

    def identity(self) -> Value:
        assert self.reducer is not None
        return self.reducer.identity(self.builder)[0]

    def among(self, inside: ir.Value, x: Value) -> Value:
        """A value, or what changes nothing."""
        where = self.builder.splat(Builder(self.b, 1).value(inside, "bool"))
        return self.builder.select(where, x, self.identity())


def build_few(module: ir.Module, name: str, spec: ScatterSpec, lanes: int) -> ir.Function:
    """For few updates, whose targets lie unsorted where the order would be: rows of the tiles are updates."""
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, function.args[0], lanes)
    tile = Tile(b, u.layout, u.width, lanes)
    column, inside = tile.group(0)
    with if_then(b, b.and_(inside, b.icmp_signed("<", tile.row, b.mul(u.batches, u.count)))):
        batch, i = divide(b, tile.row, u.count)
        u.item(batch, column)
        targets = offset(b, u.order, b.shl(b.mul(batch, u.count), I64(3)))
        slot = word(b, targets, i)
        with loop(b, 0, u.count, init=[I32(0)]) as it:
            same = b.zext(b.icmp_signed("==", word(b, targets, it.index), slot), I32)
            it.advance(b.or_(it.values[0], b.shl(same, b.trunc(it.index, I32))))
        mask = it.results[0]  # the updates of this slot
        before = b.and_(mask, b.sub(b.shl(I32(1), b.trunc(i, I32)), I32(1)))
        first = b.and_(b.icmp_signed("==", before, I32(0)), b.icmp_signed(">=", slot, I64(0)))
        with if_then(b, first):
            if u.reducer is None:
                last = b.sub(I32(31), b.ctlz(mask, ir.IntType(1)(0)))
                u.write(slot, u.load_row(b.zext(last, I64)))
            else:
                with if_else(b, b.icmp_unsigned("==", mask, b.and_(mask, b.neg(mask)))) as alone:
                    with alone.then():
                        u.combine(slot, (u.load_row(i),))
                    with alone.otherwise():
                        u.combine(slot, u.tree(_of_mask(u, mask)))
    b.ret_void()
    read_args_first(function)
    return function


def _of_mask(u: Updates, mask: ir.Value) -> list[Value]:
    """The updates whose bits are set, in order, and then what changes nothing."""
    b, values = u.b, []
    for _ in range(FEW_UPDATES):
        some = b.icmp_unsigned("!=", mask, I32(0))
        position = b.select(some, b.cttz(mask, ir.IntType(1)(0)), I32(0))
        with if_else(b, some) as branch:
            with branch.then():
                branch.give(u.load_row(b.zext(position, I64)).ir)
            with branch.otherwise():
                branch.give(u.identity().ir)
        values.append(u.builder.value(branch.results[0], compute_dtype(u.dtype)))
        mask = b.and_(mask, b.sub(mask, I32(1)))
    return values


def build_short(module: ir.Module, name: str, spec: ScatterSpec, lanes: int, each: int) -> ir.Function:
    """Runs of which the last update wins, of any length."""
    function, b = new_entry(module, name, THREADS)
    short_rows(Updates(b, spec, function.args[0], lanes), each)
    b.ret_void()
    return function


def short_rows(u: Updates, each: int, block: ir.Value | None = None) -> None:
    """Runs of up to `SHORT` updates (of any length, if the last one wins): rows of the tiles are sorted updates.

    An update's neighbours tell whether a run begins or ends with it: most are alone, and need not look up where.
    """
    b = u.b
    tile = Tile(b, u.layout, u.width, u.lanes, each, block)
    column, inside = tile.group(0)
    with if_then(b, b.and_(inside, b.icmp_signed("<", tile.row, b.mul(u.batches, u.count)))):
        batch, i = divide(b, tile.row, u.count)
        u.item(batch, column)
        zero, last = b.icmp_signed("==", i, I64(0)), b.sub(u.count, I64(1))
        position, slot = u.record(i)
        before, after = (
            u.record(b.sub(i, b.select(zero, I64(0), I64(1))))[1],
            u.record(minimum(b, b.add(i, I64(1)), last))[1],
        )
        begins = b.or_(zero, b.icmp_signed("!=", before, slot))
        ends = b.or_(b.icmp_signed("==", i, last), b.icmp_signed("!=", after, slot))
        there = b.icmp_signed("<", slot, u.slots)
        wanted = ends if u.reducer is None else b.and_(begins, ends)
        with if_then(b, b.and_(there, wanted)):
            _alone(u, tile, batch, position, slot, each)
        if u.reducer is not None:
            with if_then(b, b.and_(there, b.and_(begins, b.not_(ends)))):
                u.item(batch, column)
                start, end = u.run(slot)
                stop = b.select(b.icmp_signed("<=", b.sub(end, start), I64(SHORT)), I64(each), I64(0))
                with for_range(b, 0, stop) as k:
                    column, inside = tile.group(k)
                    with if_then(b, inside):
                        u.item(batch, column)
                        u.combine(slot, short_run(u, start, end))


def _alone(u: Updates, tile: Tile, batch: ir.Value, position: ir.Value, slot: ir.Value, each: int) -> None:
    """The only update of a slot (or the one that wins), in all of the thread's columns at once."""
    b, groups = u.b, [tile.group(k) for k in range(each)]
    found = []
    for column, inside in groups:
        u.item(batch, b.select(inside, column, groups[0][0]))
        found.append((u.load_row(position), None if u.reducer is None else u.read(slot)))
    for (column, inside), (new, old) in zip(groups, found, strict=True):
        with if_then(b, inside):
            u.item(batch, column)
            if u.reducer is None:
                u.write(slot, new)
            else:
                u.combine(slot, (new,), old)


def short_run(u: Updates, start: ir.Value, end: ir.Value) -> State:
    """The sum of up to `SHORT` updates, from the start-th on in the order of slots: the even ones, then the odd ones,
    as halving leaves them, in a loop, so that fewer lie in registers at once."""
    b, last = u.b, u.b.sub(end, I64(1))
    assert u.reducer is not None
    iterations = minimum(b, b.sub(end, start), I64(2))  # two, which LLVM does not know
    with loop(b, 0, iterations, 1, [u.identity().ir]) as it:
        first = b.add(start, it.index)
        places = [b.add(first, I64(k)) for k in range(0, SHORT, 2)]
        total = u.tree([u.among(b.icmp_signed("<", at, end), u.load(minimum(b, at, last))) for at in places])
        even = u.builder.value(it.values[0], u.reducer.dtype)
        both = u.reducer.combine(u.builder, (even,), total)[0]
        odd = u.builder.splat(Builder(b, 1).value(b.icmp_signed("==", it.index, I64(1)), "bool"))
        it.advance(u.builder.select(odd, both, total[0]).ir)
    return (u.builder.value(it.results[0], u.reducer.dtype),)
