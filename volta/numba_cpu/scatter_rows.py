"""Slots whose updates are single numbers: each fills a row of its own, in their order, and full rows are joined.

So nothing is sorted, and nothing has to be known of how many updates a slot will have: where the next one belongs is
all that is kept of most slots. A row is a part of SUM's 64 lanes, or all of them: one that is full is added to its
block's lanes as a vector.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype, item_size
from volta.emit.loops import I32, I64, PTR, VOID, for_range, if_else, if_then, offset, while_loop
from volta.emit.reducers import BLOCK, LANES, Reducer, across_lanes
from volta.numba_cpu.scatter_schedule import Numbers
from volta.xla_like.ordering import SCATTERS

_LINE = 64  # bytes


def join_slot(builder: Builder, reducer: Reducer, total: Value, place: ir.Value, dtype: str) -> None:
    """Combine what the updates of a slot amount to with what is there."""
    if dtype in ("float16", "bfloat16"):  # the sum is a value of the dtype before it is added
        total = builder.round_to_half(total, dtype)
    builder.store(reducer.combine(builder, (builder.load(place, dtype),), (total,))[0], place, dtype)


def bits_at(b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
    """Where number ``index`` of 32 bits stands."""
    return offset(b, base, b.shl(index, I64(2)))


class Rows:
    """The rows of some slots, in a thread's scratch memory. ``out`` is where the first slot of all lies; of a 'set' the
    updates go there, the last one last.

    Memory: how many blocks are in use; of each slot where its next number belongs, how many rows were full, and which
    block it has if any was; the rows; the blocks, of 64 lanes and a level of a tree each.
    """

    def __init__(
        self, b: ir.IRBuilder, what: Numbers, scratch: ir.Value, sizes: tuple[ir.Value, ir.Value], helpers: Helpers
    ) -> None:
        self.b, self.what, self.helpers = b, what, helpers
        self.dtype, self.item = what.scatter.dtype.name, what.scatter.dtype.itemsize
        self.sets = what.scatter.op == "set"
        self.raw = ir.IntType(8 * self.item)
        self.scratch, self.sizes = scratch, sizes
        slots, levels = sizes
        start = b.and_(b.add(scratch, I64(_LINE - 1)), I64(-_LINE))
        base = b.inttoptr(start, PTR)
        numbers = b.shl(slots, I64(2))
        self.used = base
        self._next = offset(b, base, _LINE)
        self._full = offset(b, self._next, numbers)
        self._block = offset(b, self._full, numbers)
        self.rows = offset(b, self._block, numbers)  # slots are a multiple of 64: all begin on a line
        self._blocks = offset(b, self.rows, b.mul(slots, I64(what.row * self.item)))
        if not self.sets:
            self.reducer = Reducer(SCATTERS[what.scatter.op], compute_dtype(self.dtype))
            self.wide = item_size(self.reducer.dtype)
            self._block_bytes = b.mul(b.add(levels, I64(LANES)), I64(self.wide))

    # -- what a thread does with slots ---------------------------------------------------------------------------------

    def start(self, first: ir.Value, count: ir.Value) -> None:
        """``count`` slots from ``first`` on, without updates."""
        b = self.b
        self.first = first
        self.here = offset(b, self._next, b.mul(first, I64(-4)))
        if self.sets:
            return
        some = Builder(b, 16)
        b.store(I64(0), self.used, align=8)
        with for_range(b, 0, count, 16) as s:
            at = some.iota("int32") + some.splat(Builder(b, 1).value(b.trunc(s, I32), "int32"))
            some.store(at * self.what.row, bits_at(b, self._next, s))
            some.store(some.const("int32", 0), bits_at(b, self._full, s))

    def put(self, slot: ir.Value, value: ir.Value, out: ir.Value) -> None:
        """The next update of a slot, by its bits."""
        b = self.b
        if self.sets:
            b.store(value, offset(b, out, b.mul(slot, I64(self.item))), align=self.item)
            return
        place = bits_at(b, self.here, slot)
        at = b.load(place, align=4, typ=I32)
        b.store(value, self._number(b.zext(at, I64)), align=self.item)
        after = b.add(at, I32(1))
        b.store(after, place, align=4)
        full = b.icmp_unsigned("==", b.and_(after, I32(self.what.row - 1)), I32(0))
        with if_then(b, full, likely=False):
            b.store(b.sub(after, I32(self.what.row)), place, align=4)
            self.helpers.call(b, "join", self, b.sub(slot, self.first))

    def finish(self, slot: ir.Value, out: ir.Value) -> None:
        """Combine the updates of a slot, if it has any, with what is at ``out``; ``slot`` counts from the first one."""
        b, some, one = self.b, Builder(self.b, self.what.row), Builder(self.b, 1)
        rest = self.rest(slot)
        long = b.icmp_unsigned(">", b.load(bits_at(b, self._full, slot), align=4, typ=I32), I32(0))
        with if_else(b, long) as branch:
            with branch.then():
                self.helpers.call(b, "finish", self, slot, out)
            with branch.otherwise(), if_then(b, b.icmp_signed(">", rest, I64(0)), likely=True):
                total = across_lanes(b, self.reducer, (self._some(some, slot, rest),))
                join_slot(one, self.reducer, total[0], out, self.dtype)

    # -- rows and blocks -----------------------------------------------------------------------------------------------

    def _number(self, index: ir.Value) -> ir.Value:
        return offset(self.b, self.rows, self.b.mul(index, I64(self.item)))

    def row(self, slot: ir.Value) -> ir.Value:
        return self._number(self.b.mul(slot, I64(self.what.row)))

    def rest(self, slot: ir.Value) -> ir.Value:
        """How many numbers a slot's row has."""
        b = self.b
        after = b.zext(b.load(bits_at(b, self._next, slot), align=4, typ=I32), I64)
        return b.sub(after, b.mul(slot, I64(self.what.row)))

    def _some(self, some: Builder, slot: ir.Value, count: ir.Value) -> Value:
        """The first ``count`` numbers of a row; the others are what changes nothing."""
        number = Builder(self.b, 1).value(self.b.trunc(count, I32), "int32")
        there = some.iota("int32") < some.splat(number)
        return some.select(there, some.load(self.row(slot), self.dtype), self.reducer.identity(some)[0])

    def full(self, slot: ir.Value) -> ir.Value:
        """How many rows of a slot were full."""
        return self.b.zext(self.b.load(bits_at(self.b, self._full, slot), align=4, typ=I32), I64)

    def block(self, slot: ir.Value) -> ir.Value:
        b = self.b
        number = b.zext(b.load(bits_at(b, self._block, slot), align=4, typ=I32), I64)
        return offset(b, self._blocks, b.mul(number, self._block_bytes))

    def level(self, block: ir.Value, level: ir.Value) -> ir.Value:
        """Where a block's tree has a level."""
        return offset(self.b, block, self.b.mul(self.b.add(level, I64(LANES)), I64(self.wide)))

    def begin(self, slot: ir.Value) -> None:
        """A slot's first full row: it gets a block."""
        b = self.b
        number = b.load(self.used, align=8, typ=I64)
        b.store(b.add(number, I64(1)), self.used, align=8)
        b.store(b.trunc(number, I32), bits_at(b, self._block, slot), align=4)

    def join(self, slot: ir.Value, full: ir.Value, count: ir.Value | None = None) -> ir.Value:
        """A row, or the first ``count`` of its numbers, joins the lanes of the block; gives the block."""
        b, row = self.b, self.what.row
        some, kind = Builder(b, row), self.reducer.dtype
        block = self.block(slot)
        before = b.mul(b.and_(full, I64(BLOCK // row - 1)), I64(row))
        x = some.load(self.row(slot), self.dtype) if count is None else self._some(some, slot, count)
        place = offset(b, block, b.mul(b.and_(before, I64(LANES - 1)), I64(self.wide)))
        with if_else(b, b.icmp_unsigned("<", before, I64(LANES))) as branch:
            with branch.then():
                some.store(x, place, kind)
            with branch.otherwise():
                some.store(self.reducer.combine(some, (some.load(place, kind),), (x,))[0], place, kind)
        return block

    def lanes(self, block: ir.Value) -> Value:
        """What a block's lanes amount to."""
        x = Builder(self.b, LANES).load(block, self.reducer.dtype)
        return across_lanes(self.b, self.reducer, (x,))[0]


class Helpers:
    """What happens rarely, as functions of a module: they keep the loops over updates short."""

    def __init__(self, module: ir.Module, name: str, what: Numbers) -> None:
        self.what, self.functions = what, dict[str, ir.Function]()
        if what.scatter.op == "set":
            return
        for part, build, words in (("join", _build_join, 4), ("finish", _build_finish, 5)):
            kinds = [I64, I64, I64, I64, PTR][:words]
            function = ir.Function(module, ir.FunctionType(VOID, kinds), f"{name}_{part}")
            function.linkage = "internal"
            function.attributes.add("noinline")
            build(function, what, self)
            self.functions[part] = function

    def call(self, b: ir.IRBuilder, part: str, rows: Rows, *words: ir.Value) -> None:
        b.call(self.functions[part], [rows.scratch, *rows.sizes, *words])


def _build_join(function: ir.Function, what: Numbers, helpers: Helpers) -> None:
    """A slot's row is full: it joins the block; a whole block joins the tree."""
    b = ir.IRBuilder(function.append_basic_block("entry"))
    scratch, slots, levels, slot = function.args
    rows = Rows(b, what, scratch, (slots, levels), helpers)
    full = rows.full(slot)
    with if_then(b, b.icmp_unsigned("==", full, I64(0))):
        rows.begin(slot)
    block = rows.join(slot, full)
    after = b.add(full, I64(1))
    b.store(b.trunc(after, I32), bits_at(b, rows._full, slot), align=4)
    each = BLOCK // what.row
    with if_then(b, b.icmp_unsigned("==", b.and_(after, I64(each - 1)), I64(0)), likely=False):
        tree = _Tree(rows, block)
        tree.add(rows.lanes(block))
        number = b.sub(b.lshr(after, I64(each.bit_length() - 1)), I64(1))
        tree.fold(number, carries=True)
        tree.store()
    b.ret_void()


def _build_finish(function: ir.Function, what: Numbers, helpers: Helpers) -> None:
    """The blocks of a slot, the last of which may not be whole, are joined."""
    b = ir.IRBuilder(function.append_basic_block("entry"))
    scratch, slots, levels, slot, out = function.args
    rows = Rows(b, what, scratch, (slots, levels), helpers)
    row, each, kind = what.row, BLOCK // what.row, rows.reducer.dtype
    full, rest = rows.full(slot), rows.rest(slot)
    part, block = b.and_(full, I64(each - 1)), rows.block(slot)
    tree = _Tree(rows, block)
    with if_then(b, b.icmp_unsigned(">", b.add(part, rest), I64(0))):
        some = Builder(b, row)
        with for_range(b, b.mul(part, I64(row)), LANES, row) as lane:
            some.store(rows.reducer.identity(some)[0], offset(b, block, b.mul(lane, I64(rows.wide))), kind)
        with if_then(b, b.icmp_unsigned(">", rest, I64(0))):
            rows.join(slot, full, rest)
        tree.add(rows.lanes(block))
    tree.fold(b.lshr(full, I64(each.bit_length() - 1)), carries=False)
    join_slot(Builder(b, 1), rows.reducer, tree.total(), out, rows.dtype)
    b.ret_void()


class _Tree:
    """The tree of adjacent pairs over a slot's blocks: level k is there where bit k of their number is set."""

    def __init__(self, rows: Rows, block: ir.Value) -> None:
        self.rows, self.block, b = rows, block, rows.b
        self.b, self.one = b, Builder(b, 1)
        with b.goto_entry_block():
            self._total = b.alloca(self.one.memory_type(rows.reducer.dtype))
            self._some, self._level, self._bits = b.alloca(I64), b.alloca(I64), b.alloca(I64)
        b.store(I64(0), self._some)
        b.store(I64(0), self._level)

    def total(self) -> Value:
        return self.one.load(self._total, self.rows.reducer.dtype)

    def add(self, total: Value) -> None:
        """The last block."""
        self.one.store(total, self._total)
        self.b.store(I64(1), self._some)

    def fold(self, number: ir.Value, carries: bool) -> None:
        """Join the levels of ``number`` blocks before the last, from below; with ``carries`` until one is missing."""
        b, rows = self.b, self.rows
        b.store(number, self._bits)

        def more() -> ir.Value:
            bits = b.load(self._bits, typ=I64)
            return b.icmp_unsigned("!=", b.and_(bits, I64(1)) if carries else bits, I64(0))

        def join() -> None:
            level, bits = (b.load(x, typ=I64) for x in (self._level, self._bits))
            with if_then(b, b.trunc(bits, ir.IntType(1))):
                x = self.one.load(rows.level(self.block, level), rows.reducer.dtype)
                with if_else(b, b.icmp_unsigned("==", b.load(self._some, typ=I64), I64(0))) as branch:
                    with branch.then():
                        self.add(x)
                    with branch.otherwise():
                        self.add(rows.reducer.combine(self.one, (x,), (self.total(),))[0])
            b.store(b.add(level, I64(1)), self._level)
            b.store(b.lshr(bits, I64(1)), self._bits)

        while_loop(b, more, join)

    def store(self) -> None:
        """The total becomes the first level that was missing."""
        level = self.b.load(self._level, typ=I64)
        self.one.store(self.total(), self.rows.level(self.block, level))
