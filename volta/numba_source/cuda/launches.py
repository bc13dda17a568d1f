"""From a plan's calls to launches of generated kernels on a GPU: a grid of threads, each with every so many-th task.

They go the road of Volta's own kernels: the order that memory asks for, one graph, loops and choices on the device
(whether a loop goes on is decided by the same kernel, which is LLVM's: it calls a function of the driver's).
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterator
from functools import partial

import attrs

from volta.emit import cache
from volta.numba_cpu.launches import Launch as Row
from volta.numba_cuda import conditional_nodes, user
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Range, Regions, touched
from volta.numba_cuda.merging import merge
from volta.numba_source.cuda.schedule import launches_of as rows_of
from volta.numba_source.dialects import Dialect, cuda_jit
from volta.numba_source.text import Module
from volta.numba_source.texts import KernelText, text_of_kernel
from volta.xla_like.kernels import KernelCall, describe, kernel_name
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import is_user

THREADS = 64
"""Of a block."""

_MOST_BLOCKS = 1 << 20
_MOST_SCRATCH = 1 << 28
"""Bytes of scratch memory that the threads of a launch have together, at most, where one does with less."""

_WRITING = ("core", "ops", "emit", "xla_like", "numba_cpu", "numba_source")


@attrs.frozen
class TextSource(KernelSource):
    """A kernel to compile that is a text: all of it is PTX that it is linked with."""

    call: KernelCall = attrs.field(kw_only=True, eq=False, repr=False)
    dialect: Dialect = attrs.field(kw_only=True, eq=False, repr=False)

    def kernel(self, module: Module | None = None) -> KernelText:
        """Its text; ``module`` collects what it calls."""
        module = Module() if module is None else module
        return text_of_kernel(self.call, attrs.evolve(module, dialect=self.dialect))


Compile = Callable[[TextSource, str], str]
"""``compile(source, capability)``: a kernel as PTX, under the source's name."""


def launches_of(plan: ExecutionPlan, capability: str, compile_text: Compile) -> list[Launch]:
    """A plan's launches in order, their scratch memory laid out; kernels are compiled where they are loaded."""
    regions = Regions()
    sizes = {b.id: b.nbytes for b in plan.buffers}

    def nbytes(buffer: int) -> int:
        return regions.size(buffer) if buffer < 0 else sizes[buffer]

    nested = partial(launches_of, capability=capability, compile_text=compile_text)

    def of(call: KernelCall) -> Iterator[Launch]:
        ctx = LaunchContext(call, regions, nbytes, capability, nested)
        if call.plans:
            yield from conditional_nodes.launches(call, ctx)
        elif is_user(call):
            yield from user.launches(call, ctx)
        elif not call.elided:
            for row in rows_of(call):
                yield _launch(row, regions, nbytes, lambda s: compile_text(s, capability))

    return merge(plan, [found for call in plan.calls for found in of(call)], regions)


def _launch(row: Row, regions: Regions, nbytes: Callable[[int], int], compiled: Callable[[TextSource], str]) -> Launch:
    call, words, addresses = row.call, [*row.words, row.tasks], list(row.addresses)
    grid, threads = _shape(row.tasks, row.scratch_bytes)
    reads, writes = touched(call, nbytes)
    if call.workspace is not None:  # what the launches of one call leave for each other
        writes += (Range(call.workspace, 0, nbytes(call.workspace)),)
    if row.scratch_bytes:
        region = regions.new(grid * threads * row.scratch_bytes)
        addresses.append((len(words), region, 0))
        words += [0, row.scratch_bytes]
        writes += (Range(region, 0, nbytes(region)),)
    source = TextSource(
        f"{kernel_name(row.kernel)}_jit", f"{row.kernel.text()}\n{_compiler()}", None,
        lambda: (compiled(source),), call=attrs.evolve(call, kernel=row.kernel), dialect=cuda_jit(len(row.words)),
    )  # fmt: skip
    return Launch(
        source, grid, threads, tuple(words), tuple(addresses), 0, describe(row.kernel), 0, reads, writes, alone=True
    )


def _shape(tasks: int, scratch: int) -> tuple[int, int]:
    """Blocks, and threads of each: fewer than tasks where a thread's scratch memory is large."""
    together = min(tasks, max(1, _MOST_SCRATCH // scratch)) if scratch else tasks
    threads = min(THREADS, together)
    blocks = together // threads if scratch else -(-together // threads)
    return min(blocks, _MOST_BLOCKS), threads


@functools.cache
def _compiler() -> str:
    """What makes PTX of a kernel, for the disk cache."""
    try:
        version = importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    return f"by texts {cache.source_version(_WRITING)[:16]}, numba-cuda {version}"
