"""What a product's kernel is made for: its tile, and how its operands lie. Nothing here changes a bit of the result."""

from __future__ import annotations

from typing import Literal

import attrs

from volta.numba_cuda.products.dot_epilogue import Epilogue

Along = Literal["k", "line", ""]
"""Where an operand's neighbouring elements lie: along k, along its row or column of the product, or neither."""


@attrs.frozen
class Tile:
    """A block's tile of the output, a thread's part of it, and how k is staged through shared memory.

    ``depth`` is the k of one stage. ``lane_rows`` of a warp's threads lie below each other, the others beside
    each other. ``stages`` are in shared memory at once, ``blocks`` on a multiprocessor. ``mma`` is the k of one
    instruction of float64 tensor cores, for tiles that run on them (0: they do not).
    """

    rows: int
    cols: int
    depth: int
    thread_rows: int
    thread_cols: int
    lane_rows: int = 4
    stages: int = 4
    blocks: int = 2
    mma: int = 0

    @property
    def threads(self) -> int:
        return self.rows * self.cols // (self.thread_rows * self.thread_cols)

    @property
    def warp_rows(self) -> int:
        return self.lane_rows * self.thread_rows

    @property
    def warp_cols(self) -> int:
        return 32 // self.lane_rows * self.thread_cols


@attrs.frozen
class OperandLayout:
    """How an operand lies, and how it is staged.

    Where its neighbours are, how many of them are copied at once (up to 16 bytes), the dtype it has in memory and in a
    stage, whether it is copied asynchronously (then both are the same), and whether the elements of a tile's stage are
    less than 4 GiB apart.
    """

    along: Along
    width: int
    dtype: str
    staged: str
    direct: bool
    near: bool


@attrs.frozen
class DotVariant:
    """A kernel for products of one kind: tile, operands, and what is known of the sizes.

    ``whole``: k is whole stages. ``short``: k is at most one chunk; ``long``: it is more than one block. ``wide``:
    neighbours of a row of the output can be written at once. ``split``: some tiles are computed in parts of k (see
    dot_split.py), of which those behind first parts may be single chunks, ``apart``. ``serial``: blocks add to a tile
    one after the other, each one chunk, or (``halves``) with half of those that are left (see dot_serial.py).
    ``slices``: groups of a block's threads that compute chunks side by side (see dot_slices.py). ``least_shared`` is
    asked for as dynamic shared memory even where less is used: then a multiprocessor holds no more blocks at once than
    it should, and those of a launch are spread evenly. ``epilogue``: what becomes of the elements.
    """

    tile: Tile
    lhs: OperandLayout
    rhs: OperandLayout
    whole: bool = False
    short: bool = False
    long: bool = False
    wide: bool = False
    split: bool = False
    apart: bool = False
    serial: bool = False
    halves: bool = False
    slices: int = 1
    least_shared: int = 0
    epilogue: Epilogue | None = None

    @property
    def asks_again(self) -> bool:
        """Whether a block asks for its work again where blocks of k end, and does not hold it in registers meanwhile.
        It pays where the left operand lies along k: 4096² by k of 65,536 took 1.008 of strict-v1's time for 1.028, but
        768 x 65,536 x 2304 with the left one along its lines 1.042 for 0.996 (H200)."""
        return self.long and not self.split and self.lhs.along == "k"

    @property
    def one_chunk(self) -> bool:
        """Whether a block has no more than one chunk of k."""
        return self.short or (self.serial and not self.halves) or self.slices > 1

    @property
    def tree_slots(self) -> bool:
        """Whether tiles share the memory in which blocks of k wait (see dot_serial.py)."""
        return self.long and self.halves

    @property
    def waits(self) -> bool:
        """Whether totals wait in shared memory: those of long products, and those that an epilogue takes on."""
        return self.slices == 1 and (not self.short or self.epilogue is not None)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile.threads * self.slices
