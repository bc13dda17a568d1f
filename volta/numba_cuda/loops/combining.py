"""What finishes a reduction by blocks: partial results combined as a binary tree of adjacent pairs.

A thread takes some neighbouring partial results, a power of two, so that they are a subtree; then threads that are
neighbours join, in their warp and after that between warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.args import loop_words
from volta.emit.builder import compute_dtype, item_size
from volta.emit.loops import I64, for_range, if_then, load_arg, load_args, offset
from volta.emit.reducers import BlockTree, Reducer, State
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    shuffle_xor,
    thread_index,
)
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.numba_cuda.loops.thread_groups import pairs_tree
from volta.xla_like.kernels import CombineKernel, KernelCall, kernel_name

THREADS = 128
MOST_THREADS = 1024
MOST_SHARE = 32


@attrs.frozen
class CombineVariant:
    """How a row's partial results are shared out: how many a thread takes, and threads; ``rounds``: more than once."""

    share: int
    across: int
    rounds: bool

    @property
    def threads(self) -> int:
        return THREADS if self.across <= WARP else self.across

    @property
    def rows(self) -> int:
        """Rows that a block of threads finishes."""
        return self.threads // self.across

    def suffix(self) -> str:
        return f"{self.share}x{self.across}{'r' * self.rounds}"


def choose_combine(parts: int) -> CombineVariant:
    """The variant for a number of partial results in a row."""
    if parts <= MOST_SHARE:
        return CombineVariant(_power(parts), 1, False)
    across = min(MOST_THREADS, max(WARP, _power(parts) // 2))
    share = min(MOST_SHARE, _power(-(-parts // across)))
    return CombineVariant(share, across, parts > share * across)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launch of what finishes a reduction by blocks."""
    kernel, (rows, parts) = call.kernel, call.sizes
    assert isinstance(kernel, CombineKernel)
    v = choose_combine(parts)
    build = partial(build_combine, kernel=kernel, v=v)
    source = KernelSource(f"{kernel_name(kernel)}_{v.suffix()}", f"{kernel.text()}\n{v.suffix()}", build)
    yield ctx.launch(source, -(-rows // v.rows), v.threads, loop_words(call))


def build_combine(module: ir.Module, name: str, kernel: CombineKernel, v: CombineVariant) -> ir.Function:
    """Args: rows, partial results in each, the address of [parts, rows] for each part of a state, and the results'."""
    function, b = new_entry(module, name, v.threads)
    own = function.args[0]
    reducer, one = Reducer(kernel.kind, compute_dtype(kernel.dtype.name)), ThreadBuilder(b, 1)
    rows, parts = load_args(b, own, 2)
    sources = [device_pointer(b, load_arg(b, own, 2 + p)) for p in range(len(reducer.state_dtypes))]
    thread = thread_index(b)
    slot = b.lshr(thread, I64(v.across.bit_length() - 1))
    member = b.and_(thread, I64(v.across - 1))
    row = b.add(b.mul(block_index(b), I64(v.rows)), slot)
    active = b.icmp_signed("<", row, rows)
    row = b.select(active, row, I64(0))

    def state_of(part: ir.Value) -> State:
        part = b.select(b.icmp_signed("<", part, parts), part, I64(0))
        at = b.add(b.mul(part, rows), row)
        return tuple(
            one.load(offset(b, source, b.mul(at, I64(item_size(d)))), d)
            for source, d in zip(sources, reducer.state_dtypes, strict=True)
        )

    def subtree(start: ir.Value) -> State:
        """The tree of the partial results from one on that all threads take."""
        left = b.sub(parts, start)
        mine = b.mul(member, I64(v.share))
        first = b.add(start, mine)
        states = [state_of(b.add(first, I64(i))) for i in range(v.share)]
        state = pairs_tree(b, reducer, states, b.sub(left, mine))
        return _across(b, reducer, state, member, left, v)

    if v.rounds:
        tree = BlockTree(b, reducer, 1)
        tree.start()
        span = v.share * v.across
        with for_range(b, 0, parts, span) as start:
            tree.push(subtree(start), b.lshr(start, I64(span.bit_length() - 1)))
            barrier(b)  # what was exchanged is read before the next round writes
        state = tree.finish()
    else:
        state = subtree(I64(0))
    with if_then(b, b.and_(active, b.icmp_signed("==", member, I64(0)))):
        result, dtype = reducer.result(state), kernel.out_dtype.name
        if result.dtype != compute_dtype(dtype):
            result = one.cast(result, dtype)
        out = device_pointer(b, load_arg(b, own, 2 + len(sources)))
        one.store(result, offset(b, out, b.mul(row, I64(kernel.out_dtype.itemsize))), dtype)
    b.ret_void()
    return function


def _across(
    b: ir.IRBuilder, reducer: Reducer, state: State, member: ir.Value, left: ir.Value, v: CombineVariant
) -> State:
    """The states of neighbouring threads joined, those of a warp first; ``left`` partial results are there."""
    one, distance = ThreadBuilder(b, 1), 1
    while distance < min(v.across, WARP):
        partner = b.and_(b.xor(member, I64(distance)), I64(-distance))  # the first of the threads it stands for
        there = one.value(b.icmp_signed("<", b.mul(partner, I64(v.share)), left), "bool")
        found = tuple(shuffle_xor(b, x, distance) for x in state)
        joined = reducer.combine(one, state, found)
        state = tuple(one.select(there, x, y) for x, y in zip(joined, state, strict=True))
        distance *= 2
    if v.across <= WARP:
        return state
    warps = v.across // WARP
    areas = [shared_memory(b.module, b, f"{b.function.name}_warps{p}", warps * 8) for p in range(len(state))]
    with if_then(b, b.icmp_signed("==", b.and_(member, I64(WARP - 1)), I64(0))):
        for x, area in zip(state, areas, strict=True):
            one.store(x, offset(b, area, b.mul(b.lshr(member, I64(5)), I64(8))))
    barrier(b)
    states = [
        tuple(one.load(offset(b, area, 8 * i), x.dtype) for x, area in zip(state, areas, strict=True))
        for i in range(warps)
    ]
    span = WARP * v.share
    count = b.lshr(b.add(left, I64(span - 1)), I64(span.bit_length() - 1))
    return pairs_tree(b, reducer, states, count)
