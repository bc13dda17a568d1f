"""Copies between a device's memory and page-locked memory of the host, beside the kernels of a plan.

A kernel of few blocks does it: it reads and writes the host's memory over the link, and keeps as many bytes under way
as that takes. Its addresses are args like any others, so a plan's graph serves every call, and what runs beside it is
what does not touch its memory. (A copy engine's node in a graph has addresses that each call would have to set.)
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from volta.emit.loops import I64, for_range, if_then, load_args, offset
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import block_count, block_index, device_pointer, new_entry, thread_index
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.xla_like.kernels import KernelCall
from volta.xla_like.offload import Move

NAME = "volta_move"

THREADS, BLOCKS = 256, 8
"""A link of 64 GB/s has some 100 KB under way: a few multiprocessors' loads. (Seen on an H200: 52.5 GB/s there and 51.4
back, more blocks no more, half as many 41 back; the copy engine 55.)"""

_AT_ONCE = 4
"""Loads that a thread has under way, of 16 bytes each."""

_QUAD, _BYTE = ir.VectorType(ir.IntType(32), 4), ir.IntType(8)

_TILE = 16 * THREADS * _AT_ONCE


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launch of a copy."""
    move, (source, target) = call.kernel, call.accesses
    assert isinstance(move, Move)
    grid = max(1, min(BLOCKS, -(-move.nbytes // _TILE)))
    kernel = KernelSource(NAME, "move", build_move)
    yield ctx.launch(kernel, grid, THREADS, (source, target, move.nbytes), alone=True)


def build_move(module: ir.Module, name: str) -> ir.Function:
    """Args: from where, to where, and bytes. Both places are multiples of 16."""
    function, b = new_entry(module, name, THREADS)
    source, target, nbytes = load_args(b, function.args[0], 3)
    source, target = device_pointer(b, source), device_pointer(b, target)
    block, blocks, thread = block_index(b), block_count(b), thread_index(b)

    def copy(at: ir.Value, size: int, count: int) -> None:
        """Elements of a size, from an address on, each so many bytes behind the one before as all threads copy."""
        kind = _QUAD if size == 16 else _BYTE
        places = [b.add(at, I64(i * size * THREADS)) for i in range(count)]
        found = [b.load(offset(b, source, place), typ=kind, align=size) for place in places]
        for place, x in zip(places, found, strict=True):
            b.store(x, offset(b, target, place), align=size)

    tiles = b.udiv(nbytes, I64(_TILE))
    with for_range(b, block, tiles, blocks) as tile:
        copy(b.add(b.mul(tile, I64(_TILE)), b.mul(thread, I64(16))), 16, _AT_ONCE)
    place = b.add(b.mul(block, I64(THREADS)), thread)  # of the thread among all
    with for_range(
        b, b.add(b.mul(tiles, I64(_TILE // 16)), place), b.lshr(nbytes, I64(4)), b.mul(blocks, I64(THREADS))
    ) as i:
        copy(b.mul(i, I64(16)), 16, 1)
    last = b.add(b.and_(nbytes, I64(-16)), place)
    with if_then(b, b.icmp_signed("<", last, nbytes)):
        copy(last, 1, 1)
    b.ret_void()
    return function
