"""Panels on a GPU: which kernel a panel has, by how much of it a block of threads can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs
from llvmlite import ir

from volta.core.ir import Eqn
from volta.emit.args import Word
from volta.numba_cuda.codegen.ptx import KernelSource, shared_of
from volta.numba_cuda.codegen.ptx_semaphore import CLEAR_THREADS, build_clear
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.panels import crew, handed_on, pivots, reflections, rotations, sides, squares, warp_reflections
from volta.numba_cuda.panels.registers import lanes_for, size_for
from volta.xla_like.kernels import Access, KernelCall
from volta.xla_like.panels import FACTOR, FORWARD, ROTATIONS, TRIANGLE, Panel

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


def keeps_composed(eqn: Eqn) -> bool:
    """Whether there is a kernel for an equation that means panels and products."""
    kind, (_, rows, columns) = eqn.params["kind"], eqn.outputs[0].aval.shape
    if kind == FACTOR:
        return not (rows % WARP or columns % WARP)
    return kind == TRIANGLE or (kind == FORWARD and columns <= sides.SIDES and rows <= sides.LONGEST)


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """A block of threads a matrix, or as many right sides as it has threads."""
    op = call.kernel
    assert isinstance(op, Panel)
    spec = op.spec
    if spec.kind in ROTATIONS:
        yield from rotations.launches(call, ctx)
        return
    if spec.kind in (FACTOR, FORWARD):
        yield from _handed_on(call, op, ctx)
        return
    if spec.kind == "qr" and max(op.width, op.length) <= WARP:
        yield _in_lanes(call, op, ctx)
        return
    x = choice(op, shared_of(ctx.capability) - _STATIC)
    each = -(-op.length // x.threads) if spec.kind == "substitute" else 1
    name = f"volta_panel_{spec.kind}_{spec.dtype.name}{'_unit' * spec.unit}_{x.name}"
    source = KernelSource(name, f"{spec} {x.name}", x.build)
    yield ctx.launch(source, op.batch * each, x.threads, (*call.accesses, op.width, op.length), x.shared)


def _in_lanes(call: KernelCall, op: Panel, ctx: LaunchContext) -> Launch:
    """Lanes of a warp have a panel."""
    spec, length, group = op.spec, op.length, lanes_for(max(op.width, op.length))
    source = KernelSource(
        f"volta_panel_{spec.kind}_{spec.dtype.name}_{length}_in_{group}", f"{spec} {length} in {group} lanes",
        partial(warp_reflections.build, spec=spec, length=length, group=group),
    )  # fmt: skip
    return ctx.launch(source, -(-op.batch * group // WARP), WARP, (*call.accesses, op.width, length, op.batch))


def _handed_on(call: KernelCall, op: Panel, ctx: LaunchContext) -> Iterator[Launch]:
    """Blocks of threads with 32 rows each, behind a kernel that clears tickets and flags."""
    spec, item, name = op.spec, op.spec.dtype.itemsize, f"volta_panel_{op.spec.kind}_{op.spec.dtype.name}"
    space = Access(None, 0, ())
    if spec.kind == FACTOR:
        blocks, flags = op.width // handed_on.ROWS, handed_on.flags_of_factor(op.width, op.length)
        threads, shared, own = handed_on.THREADS, handed_on.shared_of_factor(item), handed_on.own_bytes(op.length, item)
        far = shared + own > shared_of(ctx.capability)
        if far:
            space = ctx.scratch(op.batch * blocks * own)
        shared += 0 if far else own
        name = f"{name}{'_far' * far}"
        source = KernelSource(name, f"{spec} {far}", partial(handed_on.build_factor, spec=spec, far=far))
    else:
        blocks = flags = sides.blocks_for(op.width, op.length)
        warps = sides.warps_for(op.length)
        name = f"{name}{'_unit' * spec.unit}_{warps}"
        source = KernelSource(name, f"{spec} {warps}", partial(sides.build, spec=spec, warps=warps))
        threads, shared = WARP * warps, sides.shared_for(item)
    count = 1 + op.batch * flags
    words = ctx.scratch(4 * count)
    grid, held = -(-count // CLEAR_THREADS), ctx.ranges([words, space])
    yield ctx.step("volta_clear_semaphores", "clear", build_clear, grid, CLEAR_THREADS, (words, count), (), (words,))
    reads, writes = ctx.touched()
    args: tuple[Word, ...] = (*call.accesses, words, space, op.width, op.length)
    yield ctx.launch(
        source, op.batch * blocks, threads, args, shared, alone=True, touched=((*reads, *held), (*writes, *held))
    )


def choice(op: Panel, most: int) -> _Choice:
    """The kernel for a panel where a block may have so many bytes of dynamic shared memory."""
    spec, size, item = op.spec, size_for(op.width), op.spec.dtype.itemsize
    if spec.kind == "cholesky":
        return _Choice(f"{size}", partial(squares.build_cholesky, spec=spec, size=size), WARP)
    if spec.kind == "substitute":
        threads = _SIDES[size]
        return _Choice(f"{size}", partial(squares.build_substitute, spec=spec, size=size, threads=threads), threads)
    if spec.kind == TRIANGLE:
        threads = _SIDES[size]
        return _Choice(f"{size}", partial(squares.build_triangle, spec=spec, size=size, threads=threads), threads)
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
            return _Choice(f"{size}_{columns.near}", build, columns.warps * WARP, shared)
    threads = crew.threads_for(op)
    return _Choice(f"{threads}", partial(crew.build_panel, spec=spec, threads=threads), threads)
