"""Kernels whose tasks are independent and sequential: each runs on one thread, as it runs on one of the CPU's.

Right first: a long row that one thread sorts or scans is slow, and a later kernel may share it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from volta.emit.builder import Builder, compute_dtype, item_size
from volta.emit.loops import I64, for_range, if_then, load_arg, load_args, minimum, offset
from volta.emit.passes import build_combine
from volta.emit.reducers import BlockTree, Reducer
from volta.numba_cuda.threads import (
    barrier,
    block_index,
    device_pointer,
    new_entry,
    own_args,
    shared_memory,
    thread_index,
)
from volta.xla_like.kernels import CombineKernel

TASK_THREADS = 64

WIDE_BLOCKS, WIDE_THREADS = 32, 256
"""From this many blocks on a block of threads combines a row's partial results together."""

TASKS: dict[str, Callable[[ir.Module, str, Any], ir.Function]] = {
    "combine": build_combine,
}
"""Builders of kernels of the CPU's ABI that use no vectors, by class."""


def _linear(b: ir.IRBuilder, threads: int) -> ir.Value:
    return b.add(b.mul(block_index(b), I64(threads)), thread_index(b))


def build_task(module: ir.Module, name: str, kind: str, spec: object) -> ir.Function:
    """A thread runs one task of a kernel of the CPU's ABI."""
    inner = TASKS[kind](module, f"{name}_task", spec)
    inner.linkage = "internal"
    inner.attributes.add("alwaysinline")
    function, b = new_entry(module, name, TASK_THREADS)
    args = function.args[0]
    task = _linear(b, TASK_THREADS)
    with if_then(b, b.icmp_signed("<", task, load_arg(b, args, 0))):
        scratch = b.add(load_arg(b, args, 1), b.mul(task, load_arg(b, args, 2)))
        b.call(inner, [own_args(b, args), task, b.add(task, I64(1)), scratch])
    b.ret_void()
    return function


def share_of(blocks: int) -> int:
    """Blocks that each thread of a wide combine takes: a power of two, so that its part is a subtree."""
    return 1 << max(0, -(-blocks // WIDE_THREADS) - 1).bit_length()


def build_combine_wide(module: ir.Module, name: str, kernel: CombineKernel) -> ir.Function:
    """A block of threads finishes one row's reduction: subtrees by its threads, then pairs of neighbours."""
    function, b = new_entry(module, name, WIDE_THREADS)
    header, own = function.args[0], own_args(b, function.args[0])
    reducer, one = Reducer(kernel.kind, compute_dtype(kernel.dtype.name)), Builder(b, 1)
    rows, blocks = load_args(b, own, 2)
    partials = [device_pointer(b, load_arg(b, own, 2 + p)) for p in range(len(reducer.state_dtypes))]
    row, thread, share = block_index(b), thread_index(b), load_arg(b, header, 3)
    start = b.mul(thread, share)
    start = b.select(b.icmp_signed("<", start, blocks), start, I64(0))  # beyond the end: a subtree that is not used
    tree = BlockTree(b, reducer, 1)
    tree.start()
    with for_range(b, start, minimum(b, b.add(start, share), blocks)) as block:
        at = b.add(b.mul(block, rows), row)
        state = tuple(
            one.load(offset(b, pointer, b.mul(at, I64(item_size(d)))), d)
            for pointer, d in zip(partials, reducer.state_dtypes, strict=True)
        )
        tree.push(state, b.sub(block, start))
    state = tree.finish()
    space = shared_memory(module, b, f"{name}_exchange", WIDE_THREADS * 16)
    distance = 1
    while distance < WIDE_THREADS:
        other = b.add(thread, I64(distance))
        places = [
            [offset(b, space, b.add(b.shl(t, I64(3)), I64(p * WIDE_THREADS * 8))) for p in range(len(state))]
            for t in (thread, b.and_(other, I64(WIDE_THREADS - 1)))
        ]
        for value, place in zip(state, places[0], strict=True):
            one.store(value, place)
        barrier(b)
        found = tuple(one.load(place, v.dtype) for v, place in zip(state, places[1], strict=True))
        barrier(b)
        there = one.value(b.icmp_signed("<", b.mul(other, share), blocks), "bool")
        joined = reducer.combine(one, state, found)
        state = tuple(one.select(there, new, old) for new, old in zip(joined, state, strict=True))
        distance *= 2
    with if_then(b, b.icmp_signed("==", thread, I64(0))):
        result, dtype = reducer.result(state), kernel.out_dtype.name
        if result.dtype != compute_dtype(dtype):
            result = one.cast(result, dtype)
        out = device_pointer(b, load_arg(b, own, 2 + len(partials)))
        one.store(result, offset(b, out, b.mul(row, I64(kernel.out_dtype.itemsize))), dtype)
    b.ret_void()
    return function
