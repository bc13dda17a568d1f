"""Loop kernels on a GPU: a thread for each element of a map; a team of threads for each reduction.

A team owns the 64 lanes of a sum, some for each member. Members add their lanes' elements in order, then lanes combine
by halving, first those of one member, then those of neighbours: the order of SUM, as on the CPU. A row's team is a
warp; a column's are the threads of one block that share a column of its tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value
from volta.emit.loops import I64, for_range, if_else, if_then, load_arg, loop, minimum, offset
from volta.emit.passes import Pass, passes_of, result_of
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, State
from volta.numba_cuda.threads import (
    CONSTANT_SPACE,
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    own_args,
    product,
    shared_memory,
    shuffle_xor,
    thread_index,
    warp_barrier,
)
from volta.xla_like.kernels import Compute, LoopKernel, Reduce
from volta.xla_like.loops import COLUMNS

MAP_THREADS = 256
MAP_EACH = 4
"""Elements of a map that one thread computes, a block's width apart."""

MAP_LIGHT = 16
"""Bodies of at most this many operations are emitted for all elements of a thread at once."""

ROW_THREADS = 256
COL_MEMBERS = 16


class ThreadEmitter(BodyEmitter):
    """A body whose accesses lie in device memory."""

    def __init__(self, b: ir.IRBuilder, args: ir.Value, kernel: LoopKernel) -> None:
        super().__init__(b, own_args(b, args), kernel, CONSTANT_SPACE)

    def pointer(self, at: int) -> ir.Value:
        return device_pointer(self.b, load_arg(self.b, self.args, at))


def build_map(module: ir.Module, name: str, kernel: LoopKernel) -> ir.Function:
    """A thread computes `MAP_EACH` elements of a 'map' kernel."""
    function, b = new_entry(module, name, MAP_THREADS)
    e = ThreadEmitter(b, function.args[0], kernel)
    dims = e.sizes[: kernel.rank]
    total = product(b, dims)
    start = b.add(b.mul(block_index(b), I64(MAP_THREADS * MAP_EACH)), thread_index(b))
    stop = minimum(b, b.add(start, I64(MAP_THREADS * MAP_EACH)), total)
    which = e.pass_values(0, [s.value for s in kernel.stores])

    def element(linear: ir.Value) -> Callable[[], None]:
        """Compute an element; what is returned writes it."""
        *outer, index = e.unravel(linear, dims)
        row, stores = e.row_bases(outer)
        values: dict[int, Value] = {}
        e.evaluate(e.invariant(), values, 1, row, None)
        e.evaluate(which, values, 1, row, index)

        def write() -> None:
            for k, s in enumerate(kernel.stores):
                e.store(k, s, values[s.value], 1, stores[k], index, values)

        return write

    if sum(isinstance(x, Compute) for x in kernel.body) > MAP_LIGHT:
        with for_range(b, start, stop, MAP_THREADS) as linear:
            element(linear)()
    else:  # loads of several elements are on their way at once; stores come last, since they may be in place
        ends = b.add(start, I64(MAP_THREADS * (MAP_EACH - 1)))
        with if_else(b, b.icmp_signed("<", ends, total)) as branch:
            with branch.then():
                for write in [element(b.add(start, I64(i * MAP_THREADS))) for i in range(MAP_EACH)]:
                    write()
            with branch.otherwise(), for_range(b, start, stop, MAP_THREADS) as linear:
                element(linear)()
    b.ret_void()
    return function


class Team:
    """The threads that reduce one row or column together: a member's number, and how states are exchanged."""

    size: int
    member: ir.Value
    active: ir.Value  # whether what the team computes is asked for

    def exchange(self, state: State, distance: int) -> State:
        """The state of the member whose number differs by ``xor distance``."""
        raise NotImplementedError

    def meet(self) -> None:
        raise NotImplementedError


class WarpTeam(Team):
    size = WARP

    def __init__(self, b: ir.IRBuilder, thread: ir.Value) -> None:
        self.b, self.active = b, ir.Constant(ir.IntType(1), 1)
        self.member = b.and_(thread, I64(WARP - 1))

    def exchange(self, state: State, distance: int) -> State:
        return tuple(shuffle_xor(self.b, x, distance) for x in state)

    def meet(self) -> None:
        warp_barrier(self.b)


class ColumnTeam(Team):
    size = COL_MEMBERS

    def __init__(self, b: ir.IRBuilder, thread: ir.Value, active: ir.Value) -> None:
        self.b, self.active = b, active
        self.member = b.udiv(thread, I64(COLUMNS))
        self.thread = thread
        self.space = shared_memory(b.module, b, f"{b.function.name}_exchange", COL_MEMBERS * COLUMNS * 16)

    def _slot(self, thread: ir.Value, part: int) -> ir.Value:
        return offset(self.b, self.space, b_mul(self.b, thread, 8, part * COL_MEMBERS * COLUMNS * 8))

    def exchange(self, state: State, distance: int) -> State:
        b, one = self.b, Builder(self.b, 1)
        for p, x in enumerate(state):
            one.store(x, self._slot(self.thread, p))
        barrier(b)
        other = b.xor(self.thread, I64(distance * COLUMNS))
        found = tuple(one.load(self._slot(other, p), x.dtype) for p, x in enumerate(state))
        barrier(b)
        return found

    def meet(self) -> None:
        barrier(self.b)


def b_mul(b: ir.IRBuilder, x: ir.Value, factor: int, addend: int) -> ir.Value:
    return b.add(b.mul(x, I64(factor)), I64(addend))


class TeamNest:
    """A kernel with reductions, as one team runs it for one row or column (or one block of it)."""

    def __init__(self, e: ThreadEmitter, team: Team, outer: Sequence[ir.Value], column: ir.Value | None,
                 block: ir.Value | None, one_block: bool) -> None:  # fmt: skip
        self.e, self.b, self.team, self.column, self.block = e, e.b, team, column, block
        self.one_block = one_block
        self.length = e.sizes[-1]
        self.passes = passes_of(e)
        self.row, self.stores = e.row_bases(outer)

    def emit(self) -> None:
        e, b = self.e, self.b
        self.once: dict[int, Value] = {}
        states: dict[int, State] = {}
        self._once(0)
        for phase, p in enumerate(self.passes):
            if p.reduces:
                states.update(self.reduce(p))
                for i in p.reduces:
                    self.once[i] = result_of(e, p, i, states[i])
            elif p.stores:
                with for_range(b, self.team.member, self.length, self.team.size) as walk:
                    self._store_elements(p, self._values(p, walk), walk, None)
            self.team.meet()
            self._once(phase + 1)
        with if_then(b, b.and_(self.team.active, b.icmp_signed("==", self.team.member, I64(0)))):
            for k, s in enumerate(e.kernel.stores):
                if s.level == "row":
                    base, value = self.stores[k], self.once[s.value]
                    if self.block is not None:
                        base = offset(b, base, b.mul(self.block, e.places[len(e.memory) + k].strides[-1]))
                        value = states[s.value][s.part]
                    e.store(k, s, value, 1, base, self.column, self.once)

    def _once(self, phase: int) -> None:
        self.e.evaluate(self.e.invariant(phase), self.once, 1, self.row, self.column)

    def _values(self, p: Pass, walk: ir.Value) -> dict[int, Value]:
        values = dict(self.once)
        if self.column is None:
            self.e.evaluate(p.which, values, 1, self.row, walk)
        else:
            self.e.evaluate(p.which, values, 1, self.row, self.column, walk)
        return values

    def _store_elements(self, p: Pass, values: dict[int, Value], walk: ir.Value, inside: ir.Value | None) -> None:
        """Write a pass's stores at one element; ``inside`` says whether it is one (None: it is)."""
        e, b = self.e, self.b
        if not p.stores:
            return
        wanted = self.team.active if inside is None else b.and_(inside, self.team.active)
        with if_then(b, wanted):
            for k in p.stores:
                s = e.kernel.stores[k]
                if self.column is None:
                    e.store(k, s, values[s.value], 1, self.stores[k], walk, values)
                else:
                    e.store(k, s, values[s.value], 1, self.stores[k], self.column, values, walk)

    def reduce(self, p: Pass) -> dict[int, State]:
        b = self.b
        if self.block is not None:
            start = b.mul(self.block, I64(BLOCK))
            return self.one(p, start, minimum(b, b.add(start, I64(BLOCK)), self.length))
        if self.one_block:
            return self.one(p, I64(0), self.length)
        trees = {i: BlockTree(b, p.reducers[i], 1) for i in p.reduces}
        for tree in trees.values():
            tree.start()
        with for_range(b, 0, self.length, BLOCK) as start:
            found = self.one(p, start, minimum(b, b.add(start, I64(BLOCK)), self.length))
            for i, tree in trees.items():
                tree.push(found[i], b.lshr(start, I64(BLOCK.bit_length() - 1)))
        return {i: tree.finish() for i, tree in trees.items()}

    def one(self, p: Pass, start: ir.Value, stop: ir.Value) -> dict[int, State]:
        """The states of elements start..stop, which lie in one block and are at least one."""
        b, team, one = self.b, self.team, Builder(self.b, 1)
        share = LANES // team.size
        reducers = [p.reducers[i] for i in p.reduces]
        identity = [v.ir for reducer in reducers for v in reducer.identity(one)]
        last = b.sub(stop, I64(1))
        with loop(b, start, stop, LANES, identity * share) as it:
            carried = _unflatten(one, reducers, it.values, share)
            following = []
            for turn in range(share):
                place = b.add(it.index, b.add(team.member, I64(team.size * turn)))
                inside = b.icmp_signed("<", place, stop)
                walk = b.select(inside, place, last)  # beyond the end: compute the last element, and forget it
                values = self._values(p, walk)
                self._store_elements(p, values, walk, inside)
                keep = one.value(inside, "bool")
                for n, i in enumerate(p.reduces):
                    x = self.e.kernel.body[i]
                    assert isinstance(x, Reduce)
                    element = reducers[n].element(one, values[x.arg], partial(one.value, walk, "int64"))
                    old = carried[turn][n]
                    new = reducers[n].combine(one, old, element)
                    following += [one.select(keep, y, z).ir for y, z in zip(new, old, strict=True)]
            it.advance(*following)
        lanes = _unflatten(one, reducers, it.results, share)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self._combine(reducers, lanes[i], lanes[i + half]) for i in range(half)]
        states, distance = lanes[0], team.size // 2
        while distance:
            states = self._combine(reducers, states, [team.exchange(s, distance) for s in states])
            distance //= 2
        return dict(zip(p.reduces, states, strict=True))

    def _combine(self, reducers: Sequence[Reducer], x: Sequence[State], y: Sequence[State]) -> list[State]:
        one = Builder(self.b, 1)
        return [r.combine(one, s, t) for r, s, t in zip(reducers, x, y, strict=True)]


def _unflatten(one: Builder, reducers: Sequence[Reducer], flat: Sequence[ir.Value], share: int) -> list[list[State]]:
    values = iter(flat)
    return [[tuple(one.value(next(values), d) for d in r.state_dtypes) for r in reducers] for _ in range(share)]


def build_row(module: ir.Module, name: str, kernel: LoopKernel, one_block: bool) -> ir.Function:
    """A warp reduces a row of a 'row' kernel, or a block of one."""
    function, b = new_entry(module, name, ROW_THREADS)
    e = ThreadEmitter(b, function.args[0], kernel)
    thread = thread_index(b)
    warps = ROW_THREADS // WARP
    task = b.add(b.mul(block_index(b), I64(warps)), b.udiv(thread, I64(WARP)))
    tasks = load_arg(b, function.args[0], 0)
    with if_then(b, b.icmp_signed("<", task, tasks)):
        number, block = _block_of(b, e, task)
        TeamNest(e, WarpTeam(b, thread), e.unravel(number, e.sizes[:-1]), None, block, one_block).emit()
    b.ret_void()
    return function


def build_col(module: ir.Module, name: str, kernel: LoopKernel, one_block: bool) -> ir.Function:
    """A block of threads reduces `COLUMNS` columns of a 'col' kernel, or a block of their rows."""
    function, b = new_entry(module, name, COLUMNS * COL_MEMBERS)
    e = ThreadEmitter(b, function.args[0], kernel)
    thread, columns = thread_index(b), e.sizes[-2]
    number, block = _block_of(b, e, block_index(b))
    chunks = b.udiv(b.add(columns, I64(COLUMNS - 1)), I64(COLUMNS))
    column = b.add(b.mul(b.urem(number, chunks), I64(COLUMNS)), b.urem(thread, I64(COLUMNS)))
    active = b.icmp_signed("<", column, columns)
    column = b.select(active, column, b.sub(columns, I64(1)))
    outer = e.unravel(b.udiv(number, chunks), e.sizes[:-2])
    TeamNest(e, ColumnTeam(b, thread, active), outer, column, block, one_block).emit()
    b.ret_void()
    return function


def _block_of(b: ir.IRBuilder, e: ThreadEmitter, task: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """A task as (row or columns, block of them)."""
    if not e.kernel.by_blocks:
        return task, None
    blocks = b.udiv(b.add(e.sizes[-1], I64(BLOCK - 1)), I64(BLOCK))
    return b.udiv(task, blocks), b.urem(task, blocks)


def build_loop(module: ir.Module, name: str, kernel: LoopKernel, one_block: bool) -> ir.Function:
    """Add a loop kernel to a module; ``one_block``: its reduced dimension fits one block of a sum."""
    if kernel.mode == "map":
        return build_map(module, name, kernel)
    build = build_row if kernel.mode == "row" else build_col
    return build(module, name, kernel, one_block)


def grid_of_loop(kernel: LoopKernel, sizes: Sequence[int], tasks: int) -> tuple[int, int]:
    """Blocks, and threads in one, for a call."""
    if kernel.mode == "map":
        total = 1
        for n in sizes[: kernel.rank]:
            total *= n
        return -(-total // (MAP_THREADS * MAP_EACH)), MAP_THREADS
    if kernel.mode == "row":
        return -(-tasks // (ROW_THREADS // WARP)), ROW_THREADS
    return tasks, COLUMNS * COL_MEMBERS
