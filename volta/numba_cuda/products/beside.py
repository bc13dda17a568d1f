"""Products of the same rows with weights in blocks, side by side: so they can be one launch (merging.py).

Each alone is a few microseconds' work, and those of few columns leave most of a GPU idle. An order that is best for
memory puts what reads a product between it and the next, whose result then lies where the first one's was.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta.numba_cuda.products.epilogues import moves_up
from volta.xla_like.dot import Dot
from volta.xla_like.kernels import KernelCall


def side_by_side(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """The calls, such products moved up behind the first that reads the same rows, where nothing between forbids it."""
    out: list[KernelCall] = []
    for call in calls:
        place = len(out)
        if _in_blocks(call):
            others = [i for i, other in enumerate(out) if _in_blocks(other) and _alike(other, call)]
            if others and moves_up(call, out[others[-1] + 1 :]):
                place = others[-1] + 1
        out.insert(place, call)
    return out


def _in_blocks(call: KernelCall) -> bool:
    return isinstance(call.kernel, Dot) and call.kernel.spec.blocks is not None


def _alike(call: KernelCall, other: KernelCall) -> bool:
    a, b = call.kernel, other.kernel
    assert isinstance(a, Dot) and isinstance(b, Dot)
    return (a.spec, a.m, a.k) == (b.spec, b.m, b.k) and call.accesses[0].buffer == other.accesses[0].buffer
