"""What the launches of a call that takes several kernels are made with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.core.errors import UnsupportedOperationError
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import HEADER
from volta.numba_cuda.launches import Launch, Range, Regions
from volta.xla_like.kernels import Access, KernelCall

MOST = (1 << 31) - 1


@attrs.frozen
class Steps:
    """Makes the launches of one call, and asks for their scratch memory."""

    call: KernelCall
    regions: Regions
    nbytes: Callable[[int], int]

    def launch(
        self, name: str, text: str, build: Callable[[ir.Module, str], object], grid: int, threads: int,
        words: Sequence[Access | int], reads: Sequence[Access | Range], writes: Sequence[Access | Range],
    ) -> Launch:  # fmt: skip
        """A launch whose own words are ``words``. It touches whole buffers, or ranges of them."""
        numbers = [x if isinstance(x, int) else 0 for x in words]
        addresses = [(i + HEADER, x.buffer, x.offset) for i, x in enumerate(words) if isinstance(x, Access)]
        if grid > MOST:
            raise UnsupportedOperationError(
                f"{self.call.describe()} on backend 'cuda' needs {grid:,} blocks, more than a grid has"
            )
        return Launch(
            KernelSource(name, text, build), grid, threads, (grid, 0, 0, 0, *numbers),
            tuple((i, b, n) for i, b, n in addresses if b is not None), 0, self.call.describe(), 0,
            self._ranges(reads), self._ranges(writes),
        )  # fmt: skip

    def _ranges(self, touched: Sequence[Access | Range]) -> tuple[Range, ...]:
        found = []
        for x in touched:
            if not isinstance(x, Access):
                found.append(x)
            elif x.buffer is not None:
                found.append((x.buffer, 0, self.nbytes(x.buffer)))
        return tuple(found)

    def scratch(self, nbytes: int) -> Access:
        return Access(self.regions.new(nbytes), 0, ())
