"""Column kernels on a GPU: a block of threads reduces the columns of a tile; short columns are a thread's own.

A thread owns one of the 64 lanes of a sum in a few neighbouring columns. Lanes combine by halving and blocks of 4096 as
a tree of adjacent pairs, through shared memory: the order of SUM, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, for_range, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.passes import Pass, passes_of, result_of
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, State
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    new_entry,
    product,
    shared_memory,
    shuffle_xor,
    thread_index,
)
from volta.numba_cuda.loops.nests_body import ThreadEmitter, division_words, is_narrow, unravel, widest, words_of
from volta.numba_cuda.loops.row_variants import state_bytes
from volta.numba_cuda.loops.scalars import ThreadBuilder, builder_of
from volta.numba_cuda.loops.thread_groups import pairs_tree
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import KernelCall, Load, LoopKernel, Reduce
from volta.xla_like.phases import operands
from volta.xla_like.views import prod

THREADS = 256
FEW = 16
"""Columns of at most this many elements are reduced by one thread each."""

ENOUGH = 96
"""Blocks of threads that keep a GPU's memory busy: with fewer, tiles are made narrower."""

AHEAD = 8
"""Rows of one operand that a thread reads before it adds them."""

_SHARED = 40 << 10


@attrs.frozen
class ColVariant:
    """How columns are shared out: neighbours of a thread, threads across a tile, blocks of 4096 rows side by side.

    ``length``: that of columns which are a thread's own (0: of any length, reduced by many threads). ``single``: the
    blocks side by side are all there are. ``careful``: as for rows.
    """

    lanes: int
    across: int
    blocks: int
    length: int
    narrow: bool
    single: bool = True
    careful: bool = False

    @property
    def threads(self) -> int:
        return THREADS if self.length else self.across * LANES * self.blocks

    @property
    def columns(self) -> int:
        return self.lanes * self.across

    def suffix(self) -> str:
        own = f"_{self.length}" if self.length else f"x{self.across}x{self.blocks}"
        return f"{self.lanes}{own}{'n' * self.narrow}{'s' * self.single}{'c' * self.careful}"


def choose_col(call: KernelCall) -> ColVariant:
    kernel, length, columns = call.kernel, call.sizes[-1], call.sizes[-2]
    assert isinstance(kernel, LoopKernel)
    rows = prod(call.sizes[:-1])
    narrow = is_narrow(call) and rows < 1 << 30
    lanes = widest(call, columns, kernel.rank - 1, 4)
    if length <= FEW and not kernel.by_blocks:
        return ColVariant(lanes if length * lanes <= 32 else min(2, lanes), 1, 1, length, narrow)
    state = state_bytes(kernel)
    blocks = -(-length // BLOCK)
    most = 1 << min(3, (blocks - 1).bit_length())
    while lanes > 1 and 8 * LANES * lanes * state > _SHARED:
        lanes //= 2

    def shaped(across: int) -> ColVariant:
        side = most
        while side > 1 and (across * LANES * side > 1024 or across * LANES * side * lanes * state > _SHARED):
            side //= 2
        edges = columns % (across * lanes) > 0 or length % LANES > 0
        return ColVariant(lanes, across, side, 0, narrow, blocks <= side, edges and bool(call.inplace))

    def grid(v: ColVariant) -> int:
        return rows // columns * -(-columns // v.columns) * (-(-blocks // v.blocks) if kernel.by_blocks else 1)

    # What is cut into parts has blocks enough, so that its tiles can be wide: 256 bytes of a row are read together.
    across = 16 if kernel.by_blocks else min(16, 32 // lanes)
    while across > 1 and across * LANES * lanes * state > _SHARED:
        across //= 2
    while across * lanes > 8 and grid(shaped(across)) < filling(ENOUGH):
        across //= 2
    return shaped(across)


def _tiles(call: KernelCall, v: ColVariant) -> int:
    return -(-call.sizes[-2] // v.columns)


def grid_of_col(call: KernelCall, v: ColVariant) -> int:
    if v.length:
        return -(-(prod(call.sizes[:-1]) // v.lanes) // THREADS)
    parts = parts_of_col(call, v) if call.kernel.by_blocks else 1  # type: ignore[union-attr]  # a loop kernel
    return prod(call.sizes[:-2]) * _tiles(call, v) * parts


def parts_of_col(call: KernelCall, v: ColVariant) -> int:
    return -(-call.sizes[-1] // (BLOCK * v.blocks))


def extra_words(call: KernelCall, v: ColVariant) -> list[int]:
    """The numbers of parts and of tiles (or groups of columns), then how to divide by sizes and by these."""
    last = call.sizes[-2] // v.lanes if v.length else _tiles(call, v)
    parts = parts_of_col(call, v) if call.kernel.by_blocks else 1  # type: ignore[union-attr]  # a loop kernel
    return [parts, last, *division_words((*call.sizes[:-2], parts, last))] if v.narrow else [parts, last]


def build_col(module: ir.Module, name: str, kernel: LoopKernel, v: ColVariant) -> ir.Function:
    """A block of threads reduces the columns of a tile (or some blocks of their rows); a thread, if they are short."""
    function, b = new_entry(module, name, v.threads)
    e = ThreadEmitter(b, function.args[0], kernel, v.narrow)
    words = words_of(kernel)
    thread = thread_index(b)
    parts, last = load_args(b, e.args, 2, words)
    dims = [*e.sizes[:-2], parts, last]  # blocks that run at one time read neighbouring tiles of the same rows
    linear = b.add(b.mul(block_index(b), I64(THREADS)), thread) if v.length else block_index(b)
    *outer, part, tile = unravel(b, e.args, words + 2, linear, dims) if v.narrow else e.unravel(linear, dims)
    if v.length:
        total = product(b, e.sizes[:-1])
        column = b.shl(tile, I64(v.lanes.bit_length() - 1))
        inside = b.icmp_signed("<", b.shl(linear, I64(v.lanes.bit_length() - 1)), total)
        with if_then(b, inside):
            ShortColumns(e, outer, column, v).emit()
    else:
        TiledColumns(e, outer, tile, part if kernel.by_blocks else None, thread, v).emit()
    b.ret_void()
    return function


class ColumnNest:
    """A kernel with reductions, as one thread runs it for its columns."""

    def __init__(self, e: ThreadEmitter, outer: Sequence[ir.Value], column: ir.Value, v: ColVariant) -> None:
        self.e, self.b, self.column, self.v = e, e.b, column, v
        self.passes = passes_of(e)
        self.row, self.stores = e.row_bases(outer)
        self.writes: ir.Value = ir.Constant(ir.IntType(1), 1)  # whether this thread stores what is stored once a column
        self.part: ir.Value | None = None

    def emit(self) -> None:
        e, b = self.e, self.b
        self.once: dict[int, Value] = {}
        states: dict[int, State] = {}
        self._once(0)
        for phase, p in enumerate(self.passes):
            found = self.run(p) if p.reduces or p.stores else []
            for i, state in zip(p.reduces, found, strict=True):
                states[i] = state
                self.once[i] = result_of(e, p, i, state)
            self._once(phase + 1)
        with if_then(b, self.writes):
            for k, s in enumerate(e.kernel.stores):
                if s.level == "row":
                    base, value = self.stores[k], self.once[s.value]
                    if self.part is not None:
                        base = offset(b, base, b.mul(self.part, e.places[len(e.memory) + k].strides[-1]))
                        value = states[s.value][s.part]
                    e.store(k, s, value, self.v.lanes, base, self.column, self.once)

    def run(self, p: Pass) -> list[State]:
        raise NotImplementedError

    def _once(self, phase: int) -> None:
        self.e.evaluate(self.e.invariant(phase), self.once, self.v.lanes, self.row, self.column)

    def _values(self, p: Pass, values: dict[int, Value], reduced: ir.Value) -> dict[int, Value]:
        values.update(self.once)
        self.e.evaluate(p.which, values, self.v.lanes, self.row, self.column, reduced)
        return values

    def _elements(
        self, p: Pass, reducers: Sequence[Reducer], values: dict[int, Value], reduced: ir.Value
    ) -> list[State]:
        many, out = ThreadBuilder(self.b, self.v.lanes), []
        for r, i in zip(reducers, p.reduces, strict=True):
            x = self.e.kernel.body[i]
            assert isinstance(x, Reduce)
            place = partial(self._position, reduced)
            out.append(r.element(many, self.e._widened(values[x.arg], many), place))
        return out

    def _position(self, reduced: ir.Value) -> Value:
        return ThreadBuilder(self.b, self.v.lanes).splat(Builder(self.b, 1).value(reduced, "int64"))

    def _store_elements(self, p: Pass, values: dict[int, Value], reduced: ir.Value, wanted: ir.Value | None) -> None:
        if not p.stores:
            return
        with if_then(self.b, ir.Constant(ir.IntType(1), 1) if wanted is None else wanted):
            for k in p.stores:
                s = self.e.kernel.stores[k]
                self.e.store(k, s, values[s.value], self.v.lanes, self.stores[k], self.column, values, reduced)


class ShortColumns(ColumnNest):
    """Columns of a few elements, all of them in one thread's registers."""

    def __init__(self, e: ThreadEmitter, outer: Sequence[ir.Value], column: ir.Value, v: ColVariant) -> None:
        super().__init__(e, outer, column, v)
        self.kept: list[dict[int, Value]] = [{} for _ in range(v.length)]

    def run(self, p: Pass) -> list[State]:
        reducers = [p.reducers[i] for i in p.reduces]
        lanes = [self._elements(p, reducers, self._values(p, x, I64(i)), I64(i)) for i, x in enumerate(self.kept)]
        for i, values in enumerate(self.kept):
            self._store_elements(p, values, I64(i), None)
        many, half = ThreadBuilder(self.b, self.v.lanes), LANES // 2
        while half:
            for i in range(max(0, min(half, len(lanes) - half))):
                lanes[i] = [r.combine(many, x, y) for r, x, y in zip(reducers, lanes[i], lanes[i + half], strict=True)]
            lanes = lanes[:half]
            half //= 2
        return lanes[0]


class TiledColumns(ColumnNest):
    """Columns of any length: the block of threads takes its blocks of rows side by side, then the next ones."""

    def __init__(self, e: ThreadEmitter, outer: Sequence[ir.Value], tile: ir.Value, part: ir.Value | None,
                 thread: ir.Value, v: ColVariant) -> None:  # fmt: skip
        b = e.b
        self.thread = thread
        self.place = b.and_(thread, I64(v.across - 1))  # among the threads across the tile
        self.owner = b.lshr(thread, I64(v.across.bit_length() - 1))  # which lane of which block
        self.member = b.and_(self.owner, I64(LANES - 1))
        self.block = b.lshr(self.owner, I64(LANES.bit_length() - 1))
        column = b.mul(b.add(b.mul(tile, I64(v.across)), self.place), I64(v.lanes))
        self.active = b.icmp_signed("<", column, e.sizes[-2])
        column = b.select(self.active, column, I64(0))
        super().__init__(e, outer, column, v)
        self.part = part
        self.writes = b.and_(self.active, b.icmp_signed("==", self.owner, I64(0)))

    def run(self, p: Pass) -> list[State]:
        b, length, span = self.b, self.e.sizes[-1], BLOCK * self.v.blocks
        reducers = [p.reducers[i] for i in p.reduces]
        if self.part is not None:
            return self._blocks(p, reducers, b.mul(self.part, I64(span)), length)
        if self.v.single:
            return self._blocks(p, reducers, I64(0), length)
        trees = [BlockTree(b, r, self.v.lanes) for r in reducers]
        for tree in trees:
            tree.start()
        with for_range(b, 0, length, span) as start:
            for tree, state in zip(trees, self._blocks(p, reducers, start, length), strict=True):
                tree.push(state, b.lshr(start, I64(span.bit_length() - 1)))
        return [tree.finish() for tree in trees]

    def _blocks(self, p: Pass, reducers: Sequence[Reducer], start: ir.Value, length: ir.Value) -> list[State]:
        """The states of up to `blocks` blocks of rows from one on."""
        b = self.b
        many = ThreadBuilder(b, self.v.lanes)
        first = b.add(start, b.mul(self.block, I64(BLOCK)))
        stop = minimum(b, b.add(first, I64(BLOCK)), length)
        identity = [v.ir for r in reducers for v in r.identity(many)]
        whole = b.icmp_signed("==", b.sub(stop, first), I64(BLOCK))
        with if_else(b, whole) as branch:
            with branch.then():
                branch.give(*self._walk(p, reducers, first, stop, identity, self._ahead(p), False))
            with branch.otherwise():
                branch.give(*self._walk(p, reducers, first, stop, identity, 2, True))
        if not reducers:
            return []
        count = b.lshr(b.add(b.sub(length, start), I64(BLOCK - 1)), I64(BLOCK.bit_length() - 1))
        return self._combine(reducers, _states(many, reducers, branch.results), count)

    def _ahead(self, p: Pass) -> int:
        """Rows that a thread reads before it adds them: as many as its registers hold of all that it reads of a row."""
        body = self.e.kernel.body
        wide = sum(isinstance(x, Load) and x.pattern[0] == "1" for x in (body[i] for i in p.which))
        return max(1, AHEAD >> max(0, wide - 1).bit_length())

    def _walk(self, p: Pass, reducers: Sequence[Reducer], first: ir.Value, stop: ir.Value,
              identity: Sequence[ir.Value], ahead: int, guarded: bool) -> list[ir.Value]:  # fmt: skip
        b, many = self.b, ThreadBuilder(self.b, self.v.lanes)
        with loop(b, first, stop, LANES * ahead, identity) as it:
            totals = _states(many, reducers, it.values)
            steps = []
            for group in range(ahead):
                reduced, inside = b.add(it.index, b.add(self.member, I64(LANES * group))), None
                if guarded:
                    inside = b.icmp_signed("<", reduced, stop)
                    reduced = b.select(inside, reduced, b.sub(stop, I64(1)))
                steps.append((reduced, inside, self._values(p, self._read(p, reduced, inside), reduced)))
            for reduced, inside, values in steps:
                for n, element in enumerate(self._elements(p, reducers, values, reduced)):
                    new = reducers[n].combine(many, totals[n], element)
                    if inside is not None:
                        keep = many.splat(Builder(b, 1).value(inside, "bool"))
                        new = tuple(many.select(keep, y, z) for y, z in zip(new, totals[n], strict=True))
                    totals[n] = new
            for reduced, inside, values in steps:
                self._store_elements(p, values, reduced, self.active if inside is None else b.and_(inside, self.active))
            it.advance(*[x.ir for state in totals for x in state])
        return it.results

    def _read(self, p: Pass, reduced: ir.Value, inside: ir.Value | None) -> dict[int, Value]:
        """What a careful thread reads ahead of computing: nothing beyond an edge."""
        values, e = dict(self.once), self.e
        if self.v.careful:
            loads = [i for i in p.which if isinstance(e.kernel.body[i], Load) and not operands(e.kernel.body[i])]
            wanted = self.active if inside is None else self.b.and_(inside, self.active)
            e.read_if(wanted, loads, values, self.v.lanes, self.row, self.column, reduced)
        return values

    # -- through shared memory -----------------------------------------------------------------------------------------

    def _area(self, what: str, number: int, count: int, dtype: str) -> ir.Value:
        name = f"{self.b.function.name}_{what}{number}_{dtype}"
        return shared_memory(self.b.module, self.b, name, count * item_size(dtype))

    def _combine(self, reducers: Sequence[Reducer], totals: Sequence[State], count: ir.Value) -> list[State]:
        """Lanes by halving, a warp for a column of a block, then blocks in pairs; every thread gets its columns'."""
        b, v = self.b, self.v
        pitch = v.columns + 1 if v.columns % 2 == 0 else v.columns
        dtypes = [d for r in reducers for d in r.state_dtypes]
        owners = LANES * v.blocks
        lanes = [self._area("lanes", i, owners * pitch, d) for i, d in enumerate(dtypes)]
        blocks = [self._area("blocks", i, v.blocks * v.columns, d) for i, d in enumerate(dtypes)]
        mine = b.add(b.mul(self.owner, I64(pitch)), b.mul(self.place, I64(v.lanes)))
        one = ThreadBuilder(b, 1)
        flat = [x for state in totals for x in state]
        for x, area in zip(flat, lanes, strict=True):
            for lane in range(v.lanes):
                at = b.mul(b.add(mine, I64(lane)), I64(item_size(x.dtype)))
                one.store(builder_of(x).lane(x, lane), offset(b, area, at))
        barrier(b)
        warp, lane_of = b.lshr(self.thread, I64(5)), b.and_(self.thread, I64(WARP - 1))
        warps, columns = v.threads // WARP, v.columns * v.blocks
        with for_range(b, warp, columns, warps) as number:
            block, column = b.udiv(number, I64(v.columns)), b.urem(number, I64(v.columns))
            low = b.add(b.mul(b.add(b.mul(block, I64(LANES)), lane_of), I64(pitch)), column)
            high = b.add(low, I64(WARP * pitch))
            halves = [_states(one, reducers, [self._shared(one, x, at, d) for x, d in zip(lanes, dtypes, strict=True)])
                      for at in (low, high)]  # fmt: skip
            states = [r.combine(one, x, y) for r, x, y in zip(reducers, *halves, strict=True)]
            distance = WARP // 2
            while distance:
                other = [tuple(shuffle_xor(b, x, distance) for x in s) for s in states]
                states = [r.combine(one, x, y) for r, x, y in zip(reducers, states, other, strict=True)]
                distance //= 2
            with if_then(b, b.icmp_signed("==", lane_of, I64(0))):
                for x, area in zip([x for s in states for x in s], blocks, strict=True):
                    one.store(x, offset(b, area, b.mul(number, I64(item_size(x.dtype)))))
        barrier(b)
        many = ThreadBuilder(b, v.lanes)
        start = b.mul(self.place, I64(v.lanes))
        found = [
            [self._shared(many, x, b.add(start, I64(k * v.columns)), d) for x, d in zip(blocks, dtypes, strict=True)]
            for k in range(v.blocks)
        ]
        by_block = [_states(many, reducers, values) for values in found]
        return [
            pairs_tree(b, r, [states[n] for states in by_block], count if v.blocks > 1 else None)
            for n, r in enumerate(reducers)
        ]

    def _shared(self, many: ThreadBuilder, area: ir.Value, at: ir.Value, dtype: str) -> ir.Value:
        return many.load(offset(self.b, area, self.b.mul(at, I64(item_size(dtype)))), dtype).ir


def _states(many: ThreadBuilder, reducers: Sequence[Reducer], flat: Sequence[ir.Value]) -> list[State]:
    values = iter(flat)
    return [tuple(many.value(next(values), d) for d in r.state_dtypes) for r in reducers]
