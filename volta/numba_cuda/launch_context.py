"""What the launches of one call are made with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.emit.args import Word, laid_out
from volta.numba_cuda.codegen import ptx_following
from volta.numba_cuda.codegen.ptx import KernelSource, level_of
from volta.numba_cuda.launches import Launch, Range, Regions, touched
from volta.xla_like.kernels import Access, KernelCall
from volta.xla_like.plan import ExecutionPlan

MOST = (1 << 31) - 1


@attrs.frozen
class LaunchContext:
    """Makes the launches of one call for a GPU of a compute capability, and asks for their scratch memory.

    ``nbytes`` is the size of a buffer, ``fixed`` are those that no kernel of the plan writes; ``nested`` gives the
    launches of a plan that the call runs; ``ahead`` is what a later call reads, where this one is to have it brought
    near; ``beside`` the columns of all products that run with this one.
    """

    call: KernelCall
    regions: Regions
    nbytes: Callable[[int], int]
    capability: str
    nested: Callable[[ExecutionPlan], list[Launch]]
    ahead: Access | None = None
    beside: int = 0
    fixed: Collection[int] = ()

    def of(self, call: KernelCall) -> LaunchContext:
        """The same for another call: a part of this one, or this one as the GPU runs it."""
        return attrs.evolve(self, call=call)

    def scratch(self, nbytes: int) -> Access:
        return Access(self.regions.new(nbytes), 0, ())

    def step(
        self, name: str, text: str, build: Callable[[ir.Module, str], object], grid: int, threads: int,
        words: Sequence[Word], reads: Sequence[Access | Range], writes: Sequence[Access | Range],
    ) -> Launch:  # fmt: skip
        """One of several launches. It touches whole buffers, or ranges of them."""
        ranges = self.ranges(reads), self.ranges(writes)
        return self.launch(KernelSource(name, text, build), grid, threads, words, touched=ranges)

    def launch(
        self, source: KernelSource, grid: int, threads: int, words: Sequence[Word], shared: int = 0, *,
        label: str | None = None, alone: bool = False, mapped: bool = False,
        touched: tuple[tuple[Range, ...], tuple[Range, ...]] | None = None,
    ) -> Launch:  # fmt: skip
        """A launch whose own words are ``words``; without ``touched`` it touches what the call does."""
        label = self.call.describe() if label is None else label
        if grid > MOST:
            raise UnsupportedOperationError(f"{label} on backend 'cuda' needs {grid:,} blocks, more than a grid has")
        numbers, addresses = laid_out(words)
        reads, writes = self.touched() if touched is None else touched
        early = source.linked is None and level_of(self.capability) >= ptx_following.OLDEST
        return Launch(
            source, grid, threads, numbers, addresses, 0, label, shared, reads, writes, alone=alone, mapped=mapped,
            early=early,
        )  # fmt: skip

    def touched(self) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
        """What the call reads and what it writes."""
        return touched(self.call, self.nbytes)

    def ranges(self, accesses: Sequence[Access | Range]) -> tuple[Range, ...]:
        """What whole buffers, or ranges of them, are as ranges."""
        found = []
        for x in accesses:
            if isinstance(x, Range):
                found.append(x)
            elif x.buffer is not None:
                found.append(Range(x.buffer, 0, self.nbytes(x.buffer)))
        return tuple(found)
