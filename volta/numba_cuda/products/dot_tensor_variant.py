"""How a product on tensor cores runs."""

from __future__ import annotations

from typing import Literal

import attrs

from volta.numba_cuda.products.dot_tensor_load import LINE, Operand
from volta.numba_cuda.products.dot_tensor_tile import TILES
from volta.numba_cuda.target.ptx_mbarrier import BARRIER_BYTES
from volta.numba_cuda.target.threads import WARP

ALIGN = 1024
"""The swizzle goes by the bits of an address: tiles begin at multiples of this."""

MAPS = 48
"""The word of the args block, header included, where the operands' tensor maps begin: a multiple of their own size."""


@attrs.frozen
class TensorVariant:
    """How a product runs: the instruction, what it multiplies, a block's tile, tiles of k in shared memory, loads."""

    instruction: Literal["mma", "wgmma"]
    kind: str
    rows: int
    cols: int
    stages: int
    lhs: Operand
    rhs: Operand
    store: Literal["pieces", "pairs", "single"]  # the output takes 16 bytes, two columns, or one at once
    resident: int = 1  # blocks that a multiprocessor must have room for: bounds the registers

    @property
    def asynchronous(self) -> bool:
        return self.lhs.load == self.rhs.load == "async"

    @property
    def mapped(self) -> bool:
        """Whether a warp of its own has the operands brought, by tensor maps."""
        return self.lhs.load == self.rhs.load == "map"

    @property
    def multiplying(self) -> int:
        """Threads that multiply."""
        return TILES[self.instruction].threads(self.rows, self.cols)

    @property
    def threads(self) -> int:
        return self.multiplying + WARP * self.mapped

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.cols) * LINE

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * (self.stage_bytes + 2 * BARRIER_BYTES * self.mapped) + ALIGN

    def suffix(self) -> str:
        shape = f"{self.instruction}_{self.kind}_{self.rows}x{self.cols}x{self.stages}x{self.resident}"
        return f"{shape}_{self.lhs.suffix()}_{self.rhs.suffix()}_{self.store}"
