"""Long runs of a scatter: the blocks of 4096 of SUM, several threads a column, and what combines a run's blocks."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Value, compute_dtype, item_size
from volta.emit.loops import I1, I32, I64, for_range, if_else, if_then, load_arg, loop, minimum, offset
from volta.emit.reducers import BLOCK, LANES, BlockTree, State
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    new_entry,
    shared_memory,
    shuffle_xor,
    thread_index,
)
from volta.numba_cuda.ordering.indexing import TILE_THREADS as THREADS
from volta.numba_cuda.ordering.indexing import divide
from volta.numba_cuda.ordering.scattering import SHORT, WORDS, Updates, short_rows
from volta.numba_cuda.processors import filling
from volta.xla_like.ordering import ScatterSpec

COLUMNS = 32
"""Columns of a block of threads, eight of which share one."""

NARROW = 16
"""Up to this many columns a warp, not a block of threads, has a long run to itself."""

WHOLE = 4
"""Blocks of a run that are not worth a launch that combines what others have summed."""

GROUPS = 2
"""Groups of columns that a thread combines at most, where runs may be long (scattering.GROUPS)."""

RESIDENT = 5
"""Blocks of threads that run at once on a multiprocessor: they wait for memory, so many have to wait at once."""

LONG_BLOCKS = 256
"""Blocks of threads with long runs: enough to share them out, few enough not to keep the others waiting."""

FINISH_COLUMNS = THREADS // WARP


def windows_at_once(windows: int, chunks: int) -> int:
    """Windows of a block of threads: as many as leave about `LONG_BLOCKS` blocks."""
    return max(1, min(THREADS, windows * chunks // filling(LONG_BLOCKS)))


class _Windows:
    """Windows of `SHORT` sorted updates, and the blocks of long runs that begin in them: two at most in each.

    With ``whole`` a run's blocks count as one, which begins where the run does.
    """

    def __init__(self, u: Updates, windows: ir.Value, whole: bool) -> None:
        self.u, self.windows, self.whole = u, windows, whole

    def block(self, number: ir.Value, of_last: ir.Value) -> tuple[ir.Value, ...]:
        """Of a window, and of the run of its first update or its last one's: whether one of the run's blocks begins in
        it, then batch item, slot, start and end of the run and start of the block."""
        u, b = self.u, self.u.b
        batch, window = divide(b, number, self.windows)
        u.item(batch, I64(0))
        low = b.mul(window, I64(SHORT))
        high = minimum(b, b.add(low, I64(SHORT - 1)), b.sub(u.count, I64(1)))
        slot = u.record(b.select(of_last, high, low))[1]
        there = b.icmp_signed("<", slot, u.slots)
        start, end = u.run(b.select(there, slot, I64(0)))
        behind = b.and_(b.add(b.sub(low, start), I64(BLOCK - 1)), I64(-BLOCK))
        first = start if self.whole else b.select(of_last, start, b.add(start, behind))
        there = b.and_(there, b.icmp_signed(">", b.sub(end, start), I64(SHORT)))
        there = b.and_(there, b.and_(b.icmp_signed("<=", first, high), b.icmp_signed("<", first, end)))
        there = b.and_(there, b.icmp_signed(">=", first, low))
        there = b.and_(there, b.or_(b.not_(of_last), b.icmp_signed(">", start, low)))
        return there, batch, slot, start, end, first


def build_wide(module: ir.Module, name: str, spec: ScatterSpec, lanes: int, each: int, whole: bool) -> ir.Function:
    """All runs, where there are many columns: the first blocks of threads have the long ones, the others the short.

    Words behind those of `Updates`: windows of a block of threads with long runs, and how many such blocks there are.
    """
    function, b = new_entry(module, name, THREADS, RESIDENT)
    args = function.args[0]
    block, windows, long = block_index(b), load_arg(b, args, WORDS), load_arg(b, args, WORDS + 1)
    with if_else(b, b.icmp_signed("<", block, long)) as branch:
        with branch.then():
            _long_rows(Updates(b, spec, args, 1), name, windows, whole)
        with branch.otherwise():
            short_rows(Updates(b, spec, args, lanes), each, b.sub(block, long))
    b.ret_void()
    return function


def _long_rows(u: Updates, name: str, each: ir.Value, whole: bool) -> None:
    """Blocks of runs longer than `SHORT`. A block of threads has ``each`` windows of updates, and `COLUMNS` columns.

    Its threads look for the blocks that begin in the windows and list them, then sum them all together, one after the
    other. The threads that share a column own lanes of the sum.
    """
    b, module, thread = u.b, u.b.module, thread_index(u.b)
    listed = shared_memory(module, b, f"{name}_listed", 4 * 2 * THREADS)
    length = shared_memory(module, b, f"{name}_length", 4)
    chunks = b.udiv(b.add(u.width, I64(COLUMNS - 1)), I64(COLUMNS))
    group, chunk = divide(b, block_index(b), chunks)
    per_item = b.lshr(b.add(u.count, I64(SHORT - 1)), I64(SHORT.bit_length() - 1))
    windows = _Windows(u, per_item, whole)
    base = b.mul(group, each)
    own = b.add(base, thread)
    with if_then(b, b.icmp_signed("==", thread, I64(0))):
        b.store(I32(0), length, align=4)
    barrier(b)
    wanted = b.and_(b.icmp_signed("<", thread, each), b.icmp_signed("<", own, b.mul(u.batches, per_item)))
    with if_then(b, wanted):
        for of_last in (0, 1):
            with if_then(b, windows.block(own, I1(of_last))[0]):
                counter = b.addrspacecast(length, ir.PointerType(addrspace=3))
                at = b.atomic_rmw("add", counter, I32(1), "monotonic")
                code = b.or_(b.shl(b.trunc(thread, I32), I32(1)), I32(of_last))
                b.store(code, offset(b, listed, b.shl(b.zext(at, I64), I64(2))), align=4)
    barrier(b)
    column = b.add(b.mul(chunk, I64(COLUMNS)), b.and_(thread, I64(COLUMNS - 1)))
    inside = b.icmp_signed("<", column, u.width)
    column = b.select(inside, column, I64(0))
    member = b.lshr(thread, I64(COLUMNS.bit_length() - 1))
    space = shared_memory(module, b, f"{name}_exchange", 8 * THREADS)
    with for_range(b, 0, b.zext(b.load(length, align=4, typ=I32), I64)) as i:
        code = b.load(offset(b, listed, b.shl(i, I64(2))), align=4, typ=I32)
        number = b.add(base, b.zext(b.lshr(code, I32(1)), I64))
        _, batch, slot, start, end, first = windows.block(number, b.trunc(code, I1))
        u.item(batch, column)
        if whole:
            total = _sum_run(u, start, end, member, thread, space)
        else:
            total = _sum_block(u, first, end, member, thread, space)
        with if_then(b, b.and_(inside, b.icmp_signed("==", member, I64(0)))):
            if whole:
                u.combine(slot, total)
            else:
                finish_block(u, batch, column, (slot, start, end, first), total)


def _sum_run(u: Updates, start: ir.Value, end: ir.Value, member: ir.Value, thread: ir.Value, space: ir.Value) -> State:
    """All blocks of a run, by the threads that share a column; the first member has the result."""
    b = u.b
    assert u.reducer is not None
    tree = BlockTree(b, u.reducer, 1)
    tree.start()
    with for_range(b, start, end, BLOCK) as first:
        total = _sum_block(u, first, end, member, thread, space)
        tree.push(total, b.lshr(b.sub(first, start), I64(BLOCK.bit_length() - 1)))
    return tree.finish()


def finish_block(u: Updates, batch: ir.Value, column: ir.Value, run: tuple[ir.Value, ...], total: State) -> None:
    """What a block of a run amounts to, into the target or, of several, as a partial result; ``run``: slot, start, end,
    start of the block."""
    slot, start, end, first = run
    with if_else(u.b, u.b.icmp_signed("<=", u.b.sub(end, start), I64(BLOCK))) as branch:
        with branch.then():
            u.combine(slot, total)
        with branch.otherwise():
            u.builder.store(total[0], _partial(u, batch, column, start, first))


def own_lanes(u: Updates, first: ir.Value, end: ir.Value, member: ir.Value, members: int, rounds: int) -> State:
    """A member's lanes of the block of a run that begins at ``first``, combined by halving.

    The members together read ``rounds`` times 64 updates at once.
    """
    b, one, reducer = u.b, u.builder, u.reducer
    assert reducer is not None
    share = LANES // members
    stop = minimum(b, b.add(first, I64(BLOCK)), end)
    step = LANES * rounds
    whole = b.add(first, b.and_(b.sub(stop, first), I64(-step)))

    def join(x: ir.Value, y: Value) -> ir.Value:
        return reducer.combine(one, (one.value(x, reducer.dtype),), (y,))[0].ir

    with loop(b, first, whole, step, [u.identity().ir] * share) as it:
        places = [b.add(it.index, b.add(member, I64(k * members))) for k in range(share * rounds)]
        found, sums = [u.load(at) for at in places], list(it.values)
        for k, x in enumerate(found):
            sums[k % share] = join(sums[k % share], x)
        it.advance(*sums)
    with loop(b, whole, stop, LANES, it.results) as rest:
        sums = []
        last = b.sub(stop, I64(1))
        for k, x in enumerate(rest.values):
            at = b.add(rest.index, b.add(member, I64(k * members)))
            sums.append(join(x, u.among(b.icmp_signed("<", at, stop), u.load(minimum(b, at, last)))))
        rest.advance(*sums)
    return u.tree([one.value(x, reducer.dtype) for x in rest.results])


def _sum_block(
    u: Updates, first: ir.Value, end: ir.Value, member: ir.Value, thread: ir.Value, space: ir.Value
) -> State:
    """The block of a run that begins at ``first``, in the order of SUM; the first member has the result."""
    b, one, reducer = u.b, u.builder, u.reducer
    assert reducer is not None
    members = THREADS // COLUMNS
    state = own_lanes(u, first, end, member, members, 2)
    distance = members // 2
    own = offset(b, space, b.shl(thread, I64(3)))
    while distance:
        barrier(b)
        one.store(state[0], own)
        barrier(b)
        other = b.and_(b.add(thread, I64(distance * COLUMNS)), I64(THREADS - 1))
        found_there = one.load(offset(b, space, b.shl(other, I64(3))), reducer.dtype)
        state = reducer.combine(one, state, (found_there,))
        distance //= 2
    return state


def _partial(u: Updates, batch: ir.Value, column: ir.Value, start: ir.Value, first: ir.Value) -> ir.Value:
    """Where the partial result of a run's block lies: two places for each 4096 updates, one for runs' first blocks."""
    b, shift = u.b, BLOCK.bit_length() - 1
    assert u.reducer is not None
    places = b.shl(b.lshr(b.add(u.count, I64(BLOCK - 1)), I64(shift)), I64(1))
    number = b.or_(b.shl(b.lshr(first, I64(shift)), I64(1)), b.zext(b.icmp_signed(">", first, start), I64))
    row = b.add(b.mul(batch, places), number)
    return offset(b, u.partials, b.mul(b.add(b.mul(row, u.width), column), I64(item_size(u.reducer.dtype))))


def are_whole(width: int, count: int) -> bool:
    """Whether runs of several blocks are left to the threads that have their first: those have a few at most."""
    return width > NARROW and count <= WHOLE * BLOCK


def partial_bytes(spec: ScatterSpec, batch: int, width: int, count: int) -> int:
    """Bytes of all partial results: none where no run can have two blocks, or its blocks are not shared out."""
    if spec.op == "set" or count <= BLOCK or are_whole(width, count):
        return 0
    return batch * 2 * -(-count // BLOCK) * width * item_size(compute_dtype(spec.dtype.name))


def build_finish(module: ir.Module, name: str, spec: ScatterSpec) -> ir.Function:
    """Runs of several blocks: a warp combines a column's partial results, subtrees by its threads, then pairs.

    A block of threads has one window of 4096 sorted updates, in which at most one such run begins: its last one's.
    """
    function, b = new_entry(module, name, THREADS)
    u = Updates(b, spec, function.args[0], 1)
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
