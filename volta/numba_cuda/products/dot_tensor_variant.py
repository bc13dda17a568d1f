"""How a product on tensor cores runs."""

from __future__ import annotations

from typing import Literal

import attrs

from volta.core.block_formats import FORMATS
from volta.emit.dot_args import Arg
from volta.numba_cuda.codegen.ptx_mbarrier import BARRIER_BYTES
from volta.numba_cuda.codegen.ptx_tensor_map import MAP_WORDS
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.loops.nests_body import words_of
from volta.numba_cuda.products.dot_epilogue import Epilogue
from volta.numba_cuda.products.dot_sharing import Sharing
from volta.numba_cuda.products.dot_tensor_load import LINE, OperandLayout
from volta.numba_cuda.products.dot_tensor_tile import TILES

GROUP = 4 * WARP
"""Threads that multiply together, and that can be given other registers than those a kernel begins with."""

ALIGN = 1024
"""The swizzle goes by the bits of an address: tiles begin at multiples of this."""


@attrs.frozen
class TensorVariant:
    """How a product runs: the instruction, what it multiplies, a block's tile, tiles of k in shared memory, loads.

    ``epilogue``: what becomes of the elements, of so many neighbours ``together``; where a block computes one tile
    after another, threads of their own have it.
    """

    instruction: Literal["mma", "wgmma"]
    kind: str
    rows: int
    cols: int
    stages: int
    lhs: OperandLayout
    rhs: OperandLayout
    store: Literal["pieces", "pairs", "single"]  # the output takes 16 bytes, two columns, or one at once
    resident: int = 1  # blocks that a multiprocessor must have staging for: bounds the registers
    epilogue: Epilogue | None = None
    together: int = 1
    unpacking: int = 0  # threads that unpack the right operand, where it lies in blocks of few bits

    @property
    def asynchronous(self) -> bool:
        return self.lhs.load == self.rhs.load == "async"

    @property
    def mapped(self) -> bool:
        """Whether the kernel is persistent and warp-specialized: a producer warp loads operands by tensor maps
        (TMA), or others unpack the right one."""
        return self.lhs.load == "map"

    @property
    def multiplying(self) -> int:
        """Threads that multiply."""
        return TILES[self.instruction].threads(self.rows, self.cols)

    @property
    def writing(self) -> int:
        """Threads that have the epilogue of a tile while others multiply the next one: as many as multiply."""
        return self.multiplying if self.mapped and self.epilogue else 0

    @property
    def sharing(self) -> bool:
        """Whether registers are shared out: writers need more than producers, and so do who hold a left operand."""
        return self.mapped and (self.writing > 0 or self.kind == "tf32")

    @property
    def group(self) -> int:
        """Threads that unpack a tile of k: a thread one column of it or more."""
        return min(self.unpacking, self.cols)

    @property
    def groups(self) -> int:
        """Of which each unpacks one tile of k in so many."""
        return self.unpacking // self.group

    @property
    def producing(self) -> int:
        """Threads of the producer warp, or the four that share registers out together."""
        return self.unpacking or self.mapped * (GROUP if self.sharing else WARP)

    @property
    def threads(self) -> int:
        return self.multiplying + self.writing + self.producing

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.cols) * LINE

    def shared_bytes(self, out: int) -> int:
        """Dynamic shared memory of a block, where an element of the output has so many bytes.

        Behind the stages and their barriers comes staging for a tile with an epilogue, with two barriers more, or
        places for two blocks of few bits of each column. Where blocks have one tile alone, it takes the place of the
        stages.
        """
        packed = 2 * self.groups * self.cols * FORMATS[self.rhs.dtype].nbytes if self.unpacking else 0
        stages = self.stages * (self.stage_bytes + 2 * BARRIER_BYTES * self.mapped)
        staging = self.rows * self.cols * out + 2 * BARRIER_BYTES if self.writing else 0
        return stages + staging + packed + ALIGN

    @property
    def maps(self) -> int:
        """The word of the args block where the operands' tensor maps begin: a multiple of their own
        size, behind the args of the product and of its epilogue."""
        loops = self.epilogue.loops if self.epilogue else ()
        return -(-(len(Arg) + len(Sharing) + sum(words_of(x) for x in loops)) // MAP_WORDS) * MAP_WORDS

    def suffix(self) -> str:
        shape = f"{self.instruction}_{self.kind}_{self.rows}x{self.cols}x{self.stages}x{self.resident}"
        unpacked = f"_{self.rhs.dtype}_{self.unpacking}" if self.unpacking else ""
        return f"{shape}_{self.lhs.suffix()}_{self.rhs.suffix()}_{self.store}{unpacked}"
