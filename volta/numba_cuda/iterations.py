"""What stands between two tests of a loop: the launches of an iteration, of several, or a kernel that runs many.

A test is a launch that waits for all others, and behind it the graph begins again, which takes as long as three
launches. Where it is known how many iterations there are, several stand between two tests, and a launch waits only for
what it needs of the iteration before. So that what an iteration keeps for itself keeps the next one from nothing, the
temporaries of every other one lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Range, every
from volta.numba_cuda.loops import small_loops
from volta.numba_cuda.merging import Apart, needed, predecessors
from volta.xla_like.control_calls import Around, While
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import ExecutionPlan

MOST = 64
"""Launches between two tests, where there are several iterations."""

TWICE = 1 << 24
"""Bytes up to which temporaries of two iterations have memory of their own."""


def between_tests(
    call: KernelCall, plan: ExecutionPlan, around: Around, ctx: LaunchContext
) -> tuple[Sequence[Launch], bool]:
    """The launches of one of the plans that a call runs, in terms of the buffers around it; and whether they are all
    iterations of a loop, so that no test is needed."""
    found, loop = ctx.nested(plan), call.kernel
    if not isinstance(loop, While):
        return _placed(found, around, ctx), False
    small = list(small_loops.launches(call, ctx, len(found)))
    if small:
        return small, loop.turns is not None and loop.turns <= small_loops.ITERATIONS
    return _several(found, loop, around, ctx), False


def _several(once: Sequence[Launch], loop: While, around: Around, ctx: LaunchContext) -> Sequence[Launch]:
    """The launches of as many iterations as there is room for, if they are known to divide all."""
    here = there = _placed(once, around, ctx)
    room = MOST // max(1, sum(1 for _ in every(once)))
    together = max((k for k in range(1, room + 1) if loop.turns is not None and loop.turns % k == 0), default=1)
    if together == 1:
        return here
    arena = loop.arena
    if arena is not None and ctx.nbytes(arena) <= TWICE:
        twin = ctx.regions.new(ctx.nbytes(arena))

        def beside(buffer: int) -> tuple[int, int]:
            outer, at = around(buffer)
            return (twin, at) if outer == arena else (outer, at)

        there = _placed(once, beside, ctx)
    found = [x for number in range(together) for x in (there if number % 2 else here)]
    before = needed(predecessors(found, Apart(found)))
    return [attrs.evolve(x, after=after) for x, after in zip(found, before, strict=True)]


def _placed(launches: Sequence[Launch], around: Around, ctx: LaunchContext) -> list[Launch]:
    """A nested plan's launches in terms of the buffers around it; their scratch memory is a region of its own."""
    scratch = max((x.scratch for x in launches), default=0)
    region = ctx.regions.new(scratch) if scratch else 0
    return [_moved(x, around, region) for x in launches]


def _moved(launch: Launch, around: Around, region: int) -> Launch:
    """A launch of a nested plan in terms of the buffers around it."""

    def place(buffer: int) -> tuple[int, int]:
        return (region, 0) if buffer < 0 else around(buffer)

    def ranges(found: Sequence[Range]) -> tuple[Range, ...]:
        return tuple(r.moved(*place(r.buffer)) for r in found)

    addresses = []
    for word, buffer, distance in launch.addresses:
        outer, at = place(buffer)
        addresses.append((word, outer, at + distance))
    inside = tuple(_moved(x, around, region) for x in launch.inside)
    return attrs.evolve(
        launch, addresses=tuple(addresses), reads=ranges(launch.reads), writes=ranges(launch.writes), inside=inside
    )
