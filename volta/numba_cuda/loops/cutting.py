"""Reductions of few long rows, cut: partial results by blocks of 4096 in scratch memory, and what combines them.

The order of a sum is by blocks in any case, so the bits stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from volta.core import dtypes
from volta.numba_cuda.launches import Regions
from volta.numba_cuda.loops import nests
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import Access, CombineKernel, KernelCall, LoopKernel, Reduce, Store
from volta.xla_like.loops import BLOCK
from volta.xla_like.phases import analyse
from volta.xla_like.views import prod, row_major

_FEW_BLOCKS = 264
"""Below this many blocks of threads a long reduction is cut: a GPU runs about two for each multiprocessor."""


def cut(calls: Sequence[KernelCall], regions: Regions, capability: str) -> Iterator[KernelCall]:
    """The calls, those of few long rows cut, and what combines partial results sized by how many there are.

    A partial result may hold several blocks, whose tree is a part of the whole one.
    """
    parts: dict[tuple[int | None, int], int] = {}
    for whole in calls:
        for call in _cut(whole, regions, capability):
            if isinstance(call.kernel, LoopKernel) and call.kernel.by_blocks:
                for access in call.accesses[len(call.accesses) - len(call.kernel.stores) :]:
                    parts[access.buffer, access.offset] = nests.parts_of(call, capability)
            elif isinstance(call.kernel, CombineKernel):
                rows, blocks = call.sizes
                source = call.accesses[0]
                call = attrs.evolve(call, sizes=(rows, parts.get((source.buffer, source.offset), blocks)))
            yield call


def _cut(call: KernelCall, regions: Regions, capability: str) -> list[KernelCall]:
    """A reduction of few long rows as its partial results by blocks and what combines them; other calls as they are."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or kernel.mode == "map" or kernel.by_blocks:
        return [call]
    blocks = -(-call.sizes[-1] // BLOCK)
    values = [kernel.body[s.value] for s in kernel.stores]
    plain = all(isinstance(x, Reduce) and s.level == "row" for x, s in zip(values, kernel.stores, strict=True))
    if blocks < 4 or not plain or analyse(kernel.mode, kernel.body).last > 1:
        return [call]
    if nests.plan_loop(call, capability).grid >= filling(_FEW_BLOCKS):
        return [call]
    rows = prod(call.sizes[:-1])
    loads = call.accesses[: len(call.accesses) - len(kernel.stores)]
    stores, accesses, combines = [], list(loads), []
    for store, access, x in zip(kernel.stores, call.accesses[len(loads) :], values, strict=True):
        assert isinstance(x, Reduce)
        parts = []
        for part in range(2 if x.kind.startswith("arg") else 1):
            dtype = dtypes.compute_dtype(x.dtype) if part == 0 else dtypes.int64
            stores.append(Store(store.value, dtype, "1", "row", part))
            strides = (*row_major(call.sizes[:-1]), rows)
            region = regions.new(blocks * rows * dtype.itemsize)
            accesses.append(Access(region, 0, tuple(n * dtype.itemsize for n in strides)))
            parts.append(Access(region, 0, ()))
        out = attrs.evolve(access, strides=())
        combine = CombineKernel(x.kind, x.dtype, store.dtype)
        combines.append(KernelCall(combine, (rows, blocks), (*parts, out), (), call.writes, label=call.label))
    cut = attrs.evolve(kernel, stores=tuple(stores), by_blocks=True)
    first = attrs.evolve(call, kernel=cut, accesses=tuple(accesses), inplace=())
    return [first, *combines]
