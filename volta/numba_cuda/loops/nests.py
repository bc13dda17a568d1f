"""Loop kernels on a GPU: which variant runs a call, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.args import loop_words
from volta.emit.reducers import BLOCK
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import read_args_first
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.loops import nests_col, nests_map, nests_row, nests_transposed, row_variants, walking
from volta.xla_like.kernels import KernelCall, LoopKernel, kernel_name


@attrs.frozen
class LoopLaunch:
    """How a call of a loop kernel runs: what to compile, the grid, words behind the call's own, and shared memory."""

    source: KernelSource
    grid: int
    threads: int
    words: tuple[int, ...]
    shared: int


def plan_loop(call: KernelCall, capability: str) -> LoopLaunch:
    """How a call of a loop kernel runs on a GPU of a compute capability."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    shared, once = 0, False
    transposed = nests_transposed.choose_transposed(call) if kernel.mode == "map" else None
    if transposed is not None:
        build, suffix = partial(nests_transposed.build_transposed, kernel=kernel, v=transposed), transposed.suffix()
        grid, threads = nests_transposed.grid_of_transposed(call, transposed), nests_transposed.THREADS
        words = nests_transposed.extra_words(call, transposed)
    elif kernel.mode == "map" and (walk := walking.choose_walk(call, nests_map.is_costly(kernel))) is not None:
        build, suffix = partial(walking.build_walk, kernel=kernel, v=walk), walk.suffix()
        grid, threads, words = walking.grid_of_walk(call, walk), walking.THREADS, walking.extra_words(call, walk)
    elif kernel.mode == "map":
        m = nests_map.choose_map(call)
        build, suffix = partial(nests_map.build_map, kernel=kernel, v=m), m.suffix()
        grid, threads, words = nests_map.grid_of_map(call, m), m.threads, nests_map.extra_words(call, m)
        once = m.groups == 1
    elif kernel.mode == "row":
        r = row_variants.choose_row(call, capability)
        build, suffix = partial(nests_row.build_row, kernel=kernel, v=r), r.suffix()
        grid, threads, words = row_variants.grid_of_row(call, r), r.threads, row_variants.extra_words(call, r)
        shared, once = r.shared, r.spread > 0
    else:
        c = nests_col.choose_col(call)
        build, suffix = partial(nests_col.build_col, kernel=kernel, v=c), c.suffix()
        grid, threads, words = nests_col.grid_of_col(call, c), c.threads, nests_col.extra_words(call, c)
    build = partial(_args_first, build=build) if once else build
    source = KernelSource(f"{kernel_name(kernel)}_{suffix}", f"{kernel.text()}\n{suffix}", build)
    return LoopLaunch(source, grid, threads, tuple(words), shared)


def _args_first(module: ir.Module, name: str, build: Callable[[ir.Module, str], ir.Function]) -> ir.Function:
    """A kernel whose threads go through its body once: between others it does little but wait for memory."""
    function = build(module, name)
    read_args_first(function)
    return function


def parts_of(call: KernelCall, capability: str) -> int:
    """Partial results for each row that a call of a kernel by blocks gives."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    if kernel.mode == "row":
        return -(-call.sizes[-1] // (BLOCK * row_variants.choose_row(call, capability).shape.blocks))
    return nests_col.parts_of_col(call, nests_col.choose_col(call))


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launch of a loop."""
    x = plan_loop(call, ctx.capability)
    yield ctx.launch(x.source, x.grid, x.threads, [*loop_words(call), *x.words], x.shared)
