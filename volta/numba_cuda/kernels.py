"""From a plan's calls to launches: which kernel, its grid, and its args block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Regions
from volta.numba_cuda.loops import cutting
from volta.numba_cuda.merging import merge
from volta.numba_cuda.processors import shared_out_for
from volta.numba_cuda.products.beside import columns_beside, weights_ahead
from volta.numba_cuda.schedule import HANDLERS
from volta.xla_like.kernels import kernel_class
from volta.xla_like.plan import ExecutionPlan


def launches_of(plan: ExecutionPlan, capability: str = "9.0") -> list[Launch]:
    """A plan's launches in order: those that may run together merged, their scratch memory laid out.

    Which kernel a call runs may depend on the GPU's compute capability; in strict mode its bits do not.
    """
    regions = Regions()
    return merge(plan, unmerged(plan, regions, capability), regions)


def unmerged(plan: ExecutionPlan, regions: Regions, capability: str = "9.0") -> list[Launch]:
    """The launches of a plan's calls, epilogues with their products; nothing is packed."""
    sizes = {b.id: b.nbytes for b in plan.buffers}

    def nbytes(buffer: int) -> int:
        return regions.size(buffer) if buffer < 0 else sizes[buffer]

    nested = partial(launches_of, capability=capability)
    with shared_out_for(plan.processors):
        calls = list(cutting.cut([call for call in plan.calls if not call.elided], regions, capability))
        written = {b for call in calls for b in call.writes}
        fixed = {b.id for b in plan.buffers if b.kind in ("input", "const")} - written
        make = partial(
            LaunchContext, regions=regions, nbytes=nbytes, capability=capability, nested=nested, fixed=fixed
        )  # fmt: skip
        near = zip(calls, weights_ahead(calls), columns_beside(calls), strict=True)
        each = [make(call, ahead=weights, beside=columns) for call, weights, columns in near]
        return [found for ctx in each for found in _launches(ctx)]


def _launches(ctx: LaunchContext) -> Iterator[Launch]:
    call = ctx.call
    handler = HANDLERS.get(kernel_class(call.kernel))
    if handler is None:
        raise UnsupportedOperationError(
            f"operation {kernel_class(call.kernel)!r} has no kernel on backend 'cuda' at determinism level 'strict'"
            f"{' (from ' + call.label + ')' if call.label else ''}"
        )
    return handler.launches(call, ctx)
