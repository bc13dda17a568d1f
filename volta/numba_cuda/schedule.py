"""What CUDA decides about a plan before its memory is planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.numba_cuda.ordering import steps
from volta.numba_cuda.products import epilogues
from volta.xla_like.kernels import KernelCall, Operation
from volta.xla_like.plan import Buffer

_WORKSPACES: dict[str, Callable[[KernelCall], int]] = {"scatter": steps.order_bytes}


@attrs.frozen
class Schedule:
    """CUDA's. Launches are chosen later, for a GPU's compute capability (kernels.py). What scratch memory they need for
    themselves depends on it, and lies behind the arena (`merging.place_scratch`)."""

    tensor_cores = True

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Products with the loops that their kernels compute where they write tiles."""
        return epilogues.join(calls, buffers)

    def workspace(self, call: KernelCall) -> int:
        """Bytes that a call's launches share, and that lie in the arena."""
        workspace = _WORKSPACES.get(call.kernel.name) if isinstance(call.kernel, Operation) else None
        return 0 if workspace is None else workspace(call)
