"""What CUDA decides about a plan before its memory is planned."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.numba_cuda.products import epilogues
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import Buffer


@attrs.frozen
class Schedule:
    """CUDA's. Launches are chosen later, for a GPU's compute capability (kernels.py), and lay out scratch memory of
    their own behind the arena (`merging.place_scratch`), so a call needs none of the arena's."""

    tensor_cores = True

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Products with the loops that their kernels compute where they write tiles."""
        return epilogues.join(calls, buffers)

    def workspace(self, call: KernelCall) -> int:
        return 0
