"""A block of threads' work: which tile of the output, which of its chunks of k, and where its blocks of k wait.

All of this follows from the block's number, or its ticket, and the args. So a product of several blocks of k asks for
it again where it needs it: what is held while chunks are multiplied takes registers away from them.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.dot_args import Args
from volta.emit.loops import I32
from volta.numba_cuda.codegen.threads import block_index
from volta.numba_cuda.products.dot_blocks import Levels, tile_levels
from volta.numba_cuda.products.dot_position import TilePosition
from volta.numba_cuda.products.dot_serial import SerialPart
from volta.numba_cuda.products.dot_split import Part
from volta.numba_cuda.products.dot_tile import DotVariant
from volta.xla_like.dot import DotSpec, item_size


class Work:
    """``ticket`` is that of serial split-K."""

    def __init__(
        self, b: ir.IRBuilder, spec: DotSpec, variant: DotVariant, args: Args, thread: ir.Value,
        ticket: ir.Value | None,
    ) -> None:  # fmt: skip
        v = variant
        self.args = args
        self.part = Part(b, self.args, v.long, v.apart) if v.split else None
        self.serial = SerialPart(b, self.args, thread, ticket, v.halves, v.tree_slots) if ticket is not None else None
        share = self.part or self.serial
        number = share.tile if share else b.trunc(block_index(b), I32)
        self.place = TilePosition(b, spec, v, self.args, number)
        self.levels: Levels | None = None
        if v.long:
            owner = self.serial.tree_slot if self.serial else number
            self.levels = tile_levels(b, self.args, v.tile, item_size(spec.accumulator), owner, thread, v.serial)
