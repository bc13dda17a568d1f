"""Products of few rows with weights in blocks, and those that come before and after them.

Those of the same rows stand side by side, so they can be one launch (merging.py): each alone is a few microseconds'
work, and those of few columns leave most of a GPU idle. An order that is best for memory puts what reads a product
between it and the next, whose result then lies where the first one's was.

Between products stand kernels of a few blocks, during which memory would rest. So who has multiplied asks for the next
ones' weights to be brought into the second-level cache.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence

from volta.emit.args import Word
from volta.emit.dot_args import Arg
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.products.epilogues import moves_up
from volta.xla_like.dot import Dot
from volta.xla_like.kernels import Access, KernelCall

_AHEAD = 16 << 20
"""Bytes of a product's weights that are asked for at most, so that they are still near when it begins."""


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


class Ahead(enum.IntEnum):
    """Positions in the args block behind those of `Arg`: what is asked for, how many bytes of it, and how many blocks
    of threads the product has."""

    NEXT = len(Arg)
    NEXT_BYTES = len(Arg) + 1
    BLOCKS = len(Arg) + 2


def ahead_words(ctx: LaunchContext, blocks: int) -> list[Word]:
    """The words of `Ahead`."""
    if ctx.ahead is None or ctx.ahead.buffer is None:
        return [0, 0, blocks]
    return [ctx.ahead, min(_AHEAD, ctx.nbytes(ctx.ahead.buffer) - ctx.ahead.offset), blocks]


def _runs(calls: Sequence[KernelCall]) -> list[list[int]]:
    """The products of the same rows that follow each other, run by run."""
    out: list[list[int]] = []
    for i, call in enumerate(calls):
        if _in_blocks(call):
            if out and _alike(calls[out[-1][-1]], call):
                out[-1].append(i)
            else:
                out.append([i])
    return out


def weights_ahead(calls: Sequence[KernelCall]) -> list[Access | None]:
    """For each call the weights that it is to ask for: the first product of some rows for the first product of the next
    rows, the second for the second."""
    out: list[Access | None] = [None] * len(calls)
    for now, following in itertools.pairwise(_runs(calls)):
        for i, other in zip(now, following, strict=False):
            out[i] = calls[other].accesses[1]
    return out


def columns_beside(calls: Sequence[KernelCall]) -> list[int]:
    """For each call the columns of all products of its run; 0 for what is no such product."""
    out = [0] * len(calls)
    for run in _runs(calls):
        total = sum(kernel.n for i in run if isinstance(kernel := calls[i].kernel, Dot))
        for i in run:
            out[i] = total
    return out


def _in_blocks(call: KernelCall) -> bool:
    dot = call.kernel
    return isinstance(dot, Dot) and dot.name == "dot" and dot.spec.blocks is not None


def _alike(call: KernelCall, other: KernelCall) -> bool:
    a, b = call.kernel, other.kernel
    assert isinstance(a, Dot) and isinstance(b, Dot)
    return (a.spec, a.m, a.k) == (b.spec, b.m, b.k) and call.accesses[0].buffer == other.accesses[0].buffer
