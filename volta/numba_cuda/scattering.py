"""Scatter: sorted updates are combined run by run, in parallel over runs, over columns, and over the blocks of a sum.

A run is the updates of one target in their order (`ordering` sorts them). Runs of up to `SHORT` updates are combined by
one thread a column, in registers. Longer ones are cut into the blocks of 4096 that SUM has anyway: a thread sums a
column of a block in 64 registers, the lanes of the block; where a run has several blocks, partial results are kept and
a last kernel combines them by pairs of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype, item_size
from volta.emit.loops import I32, I64, for_range, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, State
from volta.numba_cuda.indexing import TILE_THREADS as THREADS
from volta.numba_cuda.indexing import Tile, divide, halves, word
from volta.numba_cuda.threads import WARP, block_index, device_pointer, new_entry, own_args, shuffle_xor, thread_index
from volta.xla_like.opaque import FEW_UPDATES, ScatterSpec

SHORT = 16
FINISH_COLUMNS = THREADS // WARP

_REDUCTION = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


def columns_at_once(spec: ScatterSpec, width: int, offsets: Sequence[int]) -> int:
    """Neighbouring columns that one thread can read as one aligned piece of up to 16 bytes."""
    lanes = min(4, 16 // spec.dtype.itemsize)
    aligned = width % lanes == 0 and not any(n % (lanes * spec.dtype.itemsize) for n in offsets)
    return lanes if aligned else 1


class Updates:
    """The args of a scatter, and what a thread reads and writes of one batch item."""

    def __init__(self, b: ir.IRBuilder, spec: ScatterSpec, args: ir.Value, lanes: int) -> None:
        self.b, self.spec, self.lanes = b, spec, lanes
        self.dtype, self.builder = spec.dtype.name, Builder(b, lanes)
        self.reducer = None if spec.op == "set" else Reducer(_REDUCTION[spec.op], compute_dtype(spec.dtype.name))
        updates, order, out, self.batches, self.slots, self.width, self.count, self.shift, partials = load_args(
            b, args, 9
        )
        self.updates, self.order, self.out, self.partials = (
            device_pointer(b, p) for p in (updates, order, out, partials)
        )

    def item(self, batch: ir.Value, column: ir.Value) -> None:
        """Turn to a batch item and a column."""
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
        return self.load_row(self.record(i)[0])

    def load_row(self, position: ir.Value) -> Value:
        place = offset(self.b, self.source, self.b.mul(position, self.pitch))
        return self.builder.load(place, self.dtype, self.lanes * self.spec.dtype.itemsize)

    def write(self, slot: ir.Value, value: Value) -> None:
        place = offset(self.b, self.target, self.b.mul(slot, self.pitch))
        self.builder.store(value, place, self.dtype, self.lanes * self.spec.dtype.itemsize)

    def combine(self, slot: ir.Value, total: State) -> None:
        """Combine what a run amounts to with its target."""
        assert self.reducer is not None
        if self.dtype in ("float16", "bfloat16"):  # the sum is a value of the dtype before it is added
            total = (self.builder.round_to_half(total[0], self.dtype),)
        place = offset(self.b, self.target, self.b.mul(slot, self.pitch))
        old = self.builder.load(place, self.dtype, self.lanes * self.spec.dtype.itemsize)
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
    u = Updates(b, spec, own_args(b, function.args[0]), lanes)
    tile = Tile(b, u.shift, u.width, lanes)
    with if_then(b, b.and_(tile.inside, b.icmp_signed("<", tile.row, b.mul(u.batches, u.count)))):
        batch, i = divide(b, tile.row, u.count)
        u.item(batch, tile.column)
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


def build_short(module: ir.Module, name: str, spec: ScatterSpec, lanes: int) -> ir.Function:
    """Runs of up to `SHORT` updates (of any length, if the last one wins): rows of the tiles are sorted updates."""
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, own_args(b, function.args[0]), lanes)
    tile = Tile(b, u.shift, u.width, lanes)
    with if_then(b, b.and_(tile.inside, b.icmp_signed("<", tile.row, b.mul(u.batches, u.count)))):
        batch, i = divide(b, tile.row, u.count)
        u.item(batch, tile.column)
        position, slot = u.record(i)
        with if_then(b, b.icmp_signed("<", slot, u.slots)):
            start, end = u.run(slot)
            number = b.sub(end, start)
            wanted = b.icmp_signed("==", i, start)
            if u.reducer is not None:
                wanted = b.and_(wanted, b.icmp_signed("<=", number, I64(SHORT)))
            with if_then(b, wanted):
                if u.reducer is None:
                    u.write(slot, u.load(b.sub(end, I64(1))))
                else:
                    with if_else(b, b.icmp_signed("==", number, I64(1))) as alone:
                        with alone.then():
                            u.combine(slot, (u.load_row(position),))
                        with alone.otherwise():
                            u.combine(slot, u.tree(_elements(u, start, end, SHORT)))
    b.ret_void()
    return function


def _elements(u: Updates, start: ir.Value, end: ir.Value, number: int) -> list[Value]:
    """``number`` updates from the start-th on in the order of slots, those from ``end`` on what changes nothing."""
    b, values, last = u.b, [], u.b.sub(end, I64(1))
    for k in range(number):
        at = b.add(start, I64(k))
        values.append(u.among(b.icmp_signed("<", at, end), u.load(minimum(b, at, last))))
    return values


def build_long(module: ir.Module, name: str, spec: ScatterSpec) -> ir.Function:
    """Blocks of runs longer than `SHORT`: rows of the tiles are windows of `SHORT` sorted updates.

    A block that begins in a window is one of the run of the window's first update, or the first of its last one's.
    """
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, own_args(b, function.args[0]), 1)
    tile = Tile(b, u.shift, u.width, 1)
    windows = b.lshr(b.add(u.count, I64(SHORT - 1)), I64(SHORT.bit_length() - 1))
    with if_then(b, b.and_(tile.inside, b.icmp_signed("<", tile.row, b.mul(u.batches, windows)))):
        batch, window = divide(b, tile.row, windows)
        u.item(batch, tile.column)
        low = b.mul(window, I64(SHORT))
        high = minimum(b, b.add(low, I64(SHORT - 1)), b.sub(u.count, I64(1)))
        with for_range(b, 0, 2) as which:
            at_low = b.icmp_signed("==", which, I64(0))
            slot = u.record(b.select(at_low, low, high))[1]
            with if_then(b, b.icmp_signed("<", slot, u.slots)):
                start, end = u.run(slot)
                behind = b.and_(b.add(b.sub(low, start), I64(BLOCK - 1)), I64(-BLOCK))
                first = b.select(at_low, b.add(start, behind), start)
                here = b.and_(b.icmp_signed("<=", first, high), b.icmp_signed("<", first, end))
                here = b.and_(here, b.or_(at_low, b.icmp_signed(">", start, low)))
                here = b.and_(here, b.icmp_signed(">", b.sub(end, start), I64(SHORT)))
                with if_then(b, here):
                    _block(u, batch, tile.column, slot, start, end, first)
    b.ret_void()
    return function


def _block(
    u: Updates, batch: ir.Value, column: ir.Value, slot: ir.Value, start: ir.Value, end: ir.Value, first: ir.Value
) -> None:
    """Sum the block of a run that begins at ``first``: into the target, or as a partial result."""
    b, one = u.b, u.builder
    reducer = u.reducer
    assert reducer is not None
    stop = minimum(b, b.add(first, I64(BLOCK)), end)
    whole = b.add(first, b.and_(b.sub(stop, first), I64(-LANES)))
    with loop(b, first, whole, LANES, [u.identity().ir] * LANES) as it:
        sums = [one.value(x, reducer.dtype) for x in it.values]
        found = [u.load(b.add(it.index, I64(k))) for k in range(LANES)]
        it.advance(*(reducer.combine(one, (x,), (y,))[0].ir for x, y in zip(sums, found, strict=True)))
    with if_else(b, b.icmp_signed("<", whole, stop)) as rest:
        with rest.then():
            sums = [one.value(x, reducer.dtype) for x in it.results]
            found = _elements(u, whole, stop, LANES)
            rest.give(*(reducer.combine(one, (x,), (y,))[0].ir for x, y in zip(sums, found, strict=True)))
        with rest.otherwise():
            rest.give(*it.results)
    total = u.tree([one.value(x, reducer.dtype) for x in rest.results])
    with if_else(b, b.icmp_signed("<=", b.sub(end, start), I64(BLOCK))) as branch:
        with branch.then():
            u.combine(slot, total)
        with branch.otherwise():
            one.store(total[0], _partial(u, batch, column, start, first))


def _partial(u: Updates, batch: ir.Value, column: ir.Value, start: ir.Value, first: ir.Value) -> ir.Value:
    """Where the partial result of a run's block lies: two places for each 4096 updates, one for runs' first blocks."""
    b, shift = u.b, BLOCK.bit_length() - 1
    assert u.reducer is not None
    places = b.shl(b.lshr(b.add(u.count, I64(BLOCK - 1)), I64(shift)), I64(1))
    number = b.or_(b.shl(b.lshr(first, I64(shift)), I64(1)), b.zext(b.icmp_signed(">", first, start), I64))
    row = b.add(b.mul(batch, places), number)
    return offset(b, u.partials, b.mul(b.add(b.mul(row, u.width), column), I64(item_size(u.reducer.dtype))))


def partial_bytes(spec: ScatterSpec, batch: int, width: int, count: int) -> int:
    """Bytes of all partial results: none where no run can have two blocks."""
    if spec.op == "set" or count <= BLOCK:
        return 0
    return batch * 2 * -(-count // BLOCK) * width * item_size(compute_dtype(spec.dtype.name))


def build_finish(module: ir.Module, name: str, spec: ScatterSpec) -> ir.Function:
    """Runs of several blocks: a warp combines a column's partial results, subtrees by its threads, then pairs.

    A block of threads has one window of 4096 sorted updates, in which at most one such run begins: its last one's.
    """
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, own_args(b, function.args[0]), 1)
    reducer, one = u.reducer, u.builder
    assert reducer is not None
    shift = BLOCK.bit_length() - 1
    chunks = b.udiv(b.add(u.width, I64(FINISH_COLUMNS - 1)), I64(FINISH_COLUMNS))
    windows = b.lshr(b.add(u.count, I64(BLOCK - 1)), I64(shift))
    row, chunk = divide(b, block_index(b), chunks)
    batch, window = divide(b, row, windows)
    thread = thread_index(b)
    member = b.and_(thread, I64(WARP - 1))
    column = b.add(b.mul(chunk, I64(FINISH_COLUMNS)), b.lshr(thread, I64(WARP.bit_length() - 1)))
    with if_then(b, b.icmp_signed("<", column, u.width)):  # the same for all threads of a warp, as what follows
        u.item(batch, column)
        low = b.shl(window, I64(shift))
        high = minimum(b, b.add(low, I64(BLOCK - 1)), b.sub(u.count, I64(1)))
        slot = u.record(high)[1]
        with if_then(b, b.icmp_signed("<", slot, u.slots)):
            start, end = u.run(slot)
            several = b.icmp_signed(">", b.sub(end, start), I64(BLOCK))
            with if_then(b, b.and_(several, b.icmp_signed(">=", start, low))):
                blocks = b.lshr(b.add(b.sub(end, start), I64(BLOCK - 1)), I64(shift))
                state, share = _subtree(u, batch, column, start, blocks, member)
                for d in (1, 2, 4, 8, 16):
                    other = tuple(shuffle_xor(b, x, d) for x in state)
                    there = one.value(b.icmp_signed("<", b.mul(b.add(member, I64(d)), share), blocks), "bool")
                    joined = reducer.combine(one, state, other)
                    state = tuple(one.select(there, x, y) for x, y in zip(joined, state, strict=True))
                with if_then(b, b.icmp_signed("==", member, I64(0))):
                    u.combine(slot, state)
    b.ret_void()
    return function


def _subtree(
    u: Updates, batch: ir.Value, column: ir.Value, start: ir.Value, blocks: ir.Value, member: ir.Value
) -> tuple[State, ir.Value]:
    """A thread's part of the tree over a run's blocks, and how many blocks each part has: a power of two."""
    b, one = u.b, u.builder
    assert u.reducer is not None
    parts = b.lshr(b.sub(blocks, I64(1)), I64(WARP.bit_length() - 1))
    share = b.shl(I64(1), b.sub(I64(64), b.ctlz(parts, ir.IntType(1)(0))))
    begin = b.mul(member, share)
    begin = b.select(b.icmp_signed("<", begin, blocks), begin, I64(0))  # beyond the end: a part that is not used
    tree = BlockTree(b, u.reducer, 1)
    tree.start()
    with for_range(b, begin, minimum(b, b.add(begin, share), blocks)) as block:
        first = b.add(start, b.shl(block, I64(BLOCK.bit_length() - 1)))
        value = one.load(_partial(u, batch, column, start, first), u.reducer.dtype)
        tree.push((value,), b.sub(block, begin))
    return tree.finish(), share
