"""Panels on a GPU: which kernel a panel has, by how much of it a block of threads can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs
from llvmlite import ir

from volta.core.ir import Eqn
from volta.numba_cuda.codegen.ptx import KernelSource, shared_of
from volta.numba_cuda.codegen.ptx_semaphore import CLEAR_THREADS, build_clear
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.panels import crew, handed_on, pivots, reflections, rotations, squares
from volta.numba_cuda.panels.registers import size_for
from volta.xla_like.kernels import KernelCall
from volta.xla_like.panels import FACTOR, ROTATIONS, Panel

_STATIC = 4 << 10
"""Bytes of shared memory at most that kernels have beside what is dynamic."""

_SIDES = {8: 32, 16: 64, 32: 128}
"""Right sides of a block, by the rows of its triangle."""

REFLECTED = 2048
"""Elements of a column of QR at most: one block of threads reads longer ones more slowly than the loops of its program,
which have the whole GPU."""


@attrs.frozen
class _Choice:
    """How a panel runs: what names its kernel, who builds it, threads of a block, and its dynamic shared memory."""

    name: str
    build: Callable[[ir.Module, str], ir.Function]
    threads: int
    shared: int = 0


def handed_on_keeps(eqn: Eqn) -> bool:
    """Whether blocks of threads that hand results on have a kernel for an equation that means a program."""
    _, rows, columns = eqn.inputs[0].aval.shape
    return eqn.params["kind"] == FACTOR and not (rows % WARP or columns % WARP)


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """A block of threads a matrix, or as many right sides as it has threads."""
    op = call.kernel
    assert isinstance(op, Panel)
    spec = op.spec
    if spec.kind in ROTATIONS:
        yield from rotations.launches(call, ctx)
        return
    if spec.kind == FACTOR:
        yield from _handed_on(call, op, ctx)
        return
    x = choice(op, shared_of(ctx.capability) - _STATIC)
    each = -(-op.length // x.threads) if spec.kind == "substitute" else 1
    name = f"volta_panel_{spec.kind}_{spec.dtype.name}{'_unit' * spec.unit}_{x.name}"
    source = KernelSource(name, f"{spec} {x.name}", x.build)
    yield ctx.launch(source, op.batch * each, x.threads, (*call.accesses, op.width, op.length), x.shared)


def _handed_on(call: KernelCall, op: Panel, ctx: LaunchContext) -> Iterator[Launch]:
    """A block of threads for each 32 rows, behind a kernel that clears tickets and flags."""
    spec, item = op.spec, op.spec.dtype.itemsize
    count = 1 + op.batch * handed_on.flags_of_factor(op.width, op.length)
    words = ctx.scratch(4 * count)
    yield ctx.step(
        "volta_clear_semaphores", "clear", build_clear, -(-count // CLEAR_THREADS), CLEAR_THREADS, (words, count), (),
        (words,),
    )  # fmt: skip
    source = KernelSource(
        f"volta_panel_{spec.kind}_{spec.dtype.name}", f"{spec}", partial(handed_on.build_factor, spec=spec)
    )
    reads, writes = ctx.touched()
    ranges = ctx.ranges([words])
    yield ctx.launch(
        source, op.batch * (op.width // handed_on.ROWS), handed_on.THREADS, (*call.accesses, words, op.width, op.length),
        handed_on.shared_of_factor(op.length, item), alone=True, touched=((*reads, *ranges), (*writes, *ranges)),
    )  # fmt: skip


def choice(op: Panel, most: int) -> _Choice:
    """The kernel for a panel where a block may have so many bytes of dynamic shared memory."""
    spec, size, item = op.spec, size_for(op.width), op.spec.dtype.itemsize
    if spec.kind == "cholesky":
        return _Choice(f"{size}", partial(squares.build_cholesky, spec=spec, size=size), WARP)
    if spec.kind == "substitute":
        threads = _SIDES[size]
        return _Choice(f"{size}", partial(squares.build_substitute, spec=spec, size=size, threads=threads), threads)
    if spec.kind == "lu":
        held = pivots.shape_for(size, op.length, item)
        if held.shared(item) <= most:
            name = f"{size}_{held.threads}_{held.far}"
            return _Choice(name, partial(pivots.build, spec=spec, shape=held), held.threads, held.shared(item))
    else:
        columns = reflections.shape_for(size, op.length, item)
        shared = reflections.shared_for(columns, op.length, item)
        if shared <= most:
            build = partial(reflections.build, spec=spec, shape=columns)
            return _Choice(f"{size}_{columns.near}", build, size * WARP, shared)
    threads = crew.threads_for(op)
    return _Choice(f"{threads}", partial(crew.build_panel, spec=spec, threads=threads), threads)
