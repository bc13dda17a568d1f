"""How warps multiply rows that lie in shared memory: by ``mma`` (a warp), or by ``wgmma`` (four warps; Hopper).

Both have the same places: of a warp's 16 rows and 8 columns a thread has the sums at (g, 2t), (g, 2t + 1), (g + 8, 2t)
and (g + 8, 2t + 1), with g = lane / 4 and t = lane % 4, and what one product gives lies as the next one takes its left
operand. Rows lie in lines of 128 bytes, 64 columns of each row together; piece c (16 bytes) of line l is at place c xor
l % 8, so that neither copies nor reads meet in one bank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs
from llvmlite import ir

from volta.emit.loops import I32, I64, offset
from volta.numba_cuda.codegen import ptx_mma, ptx_ops, ptx_round, ptx_wgmma, ptx_wgmma_held
from volta.numba_cuda.codegen.threads import WARP
from volta.xla_like.attention import BLOCK

BAND = 16
"""Rows of one ``mma``."""

LINE = 128
"""Bytes of a line: 64 columns."""

ALIGN = 1024
"""The swizzle of ``wgmma`` goes by the bits of an address: rows begin at multiples of this."""


@attrs.frozen
class TensorTile:
    """How a kernel runs: the instruction, its warps, the bands of 16 rows of each.

    ``kept``: the resident operands stay in registers, instead of being read again for each block (by ``wgmma`` queries
    alone, whose place is free then for the next tile's). A block of streamed rows is computed in so many ``parts``. A
    multiprocessor is to hold ``resident`` blocks of threads. ``whole``: every operand can be copied 16 bytes at a time.
    Streamed rows may have ``producers``, warps of their own that copy them, and so many pipeline ``stages``, of a block
    each. ``skips``: where no row's largest score changes, sums are not multiplied by 1.
    """

    instruction: Literal["mma", "wgmma"]
    warps: int
    bands: int
    parts: int
    resident: int
    kept: bool = False
    producers: int = 0
    stages: int = 2
    skips: bool = False
    whole: bool = True

    @property
    def multiplying(self) -> int:
        """Threads that have rows."""
        return self.warps * WARP

    @property
    def threads(self) -> int:
        return self.multiplying + self.producers * WARP

    @property
    def warp_rows(self) -> int:
        return self.bands * BAND

    @property
    def rows(self) -> int:
        return self.warps * self.warp_rows

    @property
    def together(self) -> int:
        """Warps that multiply together."""
        return 4 if self.instruction == "wgmma" else 1

    def suffix(self) -> str:
        shape = f"{self.instruction}_{self.warps}x{self.bands}x{self.parts}x{self.resident}"
        return (
            f"{shape}{'k' * self.kept}{f'f{self.producers}x{self.stages}' if self.producers else ''}{'w' * self.whole}"
            f"{'s' * self.skips}"
        )


@attrs.frozen
class Rows:
    """Rows in shared memory: pointer to the first, the elements of each, and how many there are."""

    pointer: ir.Value
    width: int
    count: int


def rows_bytes(rows: int, width: int) -> int:
    """What they take."""
    return rows * 2 * width


Left = Callable[[int, int], Sequence[ir.Value]]
"""The registers of a left operand: of a band, at one of its steps of 16."""


def rounded(b: ir.IRBuilder, pairs: Sequence[ir.Value], first: int) -> list[ir.Value]:
    """Sums of 16 rows and 16 columns as a left operand in bfloat16."""
    return [ptx_round.round_pair(b, pairs[i], pairs[i + 1], "bfloat16") for i in range(first, first + 8, 2)]


class WarpProducts:
    """``mma``: each warp has bands of 16 of the tile's rows."""

    def __init__(self, b: ir.IRBuilder, tile: TensorTile, thread: ir.Value) -> None:
        self.b, self.tile = b, tile
        self.group = b.lshr(thread, I64(5))
        self.first = b.mul(self.group, I64(tile.warp_rows))
        lane = b.and_(thread, I64(WARP - 1))
        self.places = {swapped: self._places(lane, swapped) for swapped in (False, True)}

    def _places(self, lane: ir.Value, swapped: bool) -> list[ir.Value]:
        """Where this lane's rows of four 8 x 8 matrices begin: 16 rows by 32 bytes, for each 32 bytes of a line.

        The second matrix lies below the first, and the third beside it; ``swapped``: the other way round.
        """
        b = self.b
        i, second, third = b.and_(lane, I64(7)), b.and_(b.lshr(lane, I64(3)), I64(1)), b.lshr(lane, I64(4))
        below, beside = (third, second) if swapped else (second, third)
        row = b.mul(b.add(i, b.mul(below, I64(8))), I64(LINE))
        return [b.add(row, b.mul(b.xor(b.add(I64(2 * n), beside), i), I64(16))) for n in range(4)]

    def _matrices(
        self, rows: Rows, group: int, pair: int, swapped: bool = False, transposed: bool = False
    ) -> list[ir.Value]:  # fmt: skip
        """The `group`-th 16 rows, columns ``16 * pair ..``, as four words."""
        b = self.b
        place = offset(b, rows.pointer, self.places[swapped][pair % 4])
        return ptx_mma.load_matrices(b, offset(b, place, (group * BAND + pair // 4 * rows.count) * LINE), 4, transposed)

    def left(self, rows: Rows) -> Left:
        """The warp's rows of a resident operand."""
        b, bands = self.b, range(self.tile.bands)
        own = attrs.evolve(rows, pointer=offset(b, rows.pointer, b.mul(self.first, I64(LINE))))
        if not self.tile.kept:
            return lambda band, step: self._matrices(own, band, step)
        found = [[self._matrices(own, band, step) for step in range(rows.width // BAND)] for band in bands]
        return lambda band, step: found[band][step]

    def _multiply(self, left: Sequence[ir.Value], rights: Sequence[ir.Value], sums: list[ir.Value], first: int) -> None:
        """Go on with the sums of 16 rows and 16 columns."""
        for half in range(2):
            place = slice(first + 4 * half, first + 4 * half + 4)
            sums[place] = ptx_mma.mma(self.b, ptx_mma.MMA_BF16, left, rights[2 * half : 2 * half + 2], sums[place])

    def scores(self, left: Left, right: Rows, part: int) -> list[ir.Value]:
        """The warp's rows times a part of the streamed rows."""
        groups = BLOCK // BAND // self.tile.parts
        sums: list[ir.Value] = [ir.FloatType()(0.0)] * (8 * groups * self.tile.bands)
        for step in range(right.width // BAND):
            lefts = [left(band, step) for band in range(self.tile.bands)]
            for group in range(groups):
                rights = self._matrices(right, part * groups + group, step, swapped=True)
                for band, words in enumerate(lefts):
                    self._multiply(words, rights, sums, 8 * (band * groups + group))
        return sums

    def apply(self, pairs: Sequence[ir.Value], right: Rows, part: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with sums of pairs, rounded to bfloat16, times a part of the streamed rows."""
        groups, across, sums = BLOCK // BAND // self.tile.parts, right.width // BAND, list(sums)
        for group in range(groups):
            lefts = [rounded(self.b, pairs, 8 * (band * groups + group)) for band in range(self.tile.bands)]
            for pair in range(across):
                rights = self._matrices(right, part * groups + group, pair, transposed=True)
                for band, words in enumerate(lefts):
                    self._multiply(words, rights, sums, 8 * (band * across + pair))
        return sums


class GroupProducts:
    """``wgmma``: each group of four warps has 64 of the tile's rows."""

    def __init__(self, b: ir.IRBuilder, tile: TensorTile, thread: ir.Value) -> None:
        self.b, self.tile = b, tile
        # one lane's number for all, so that the assembler knows that descriptors are the warp's
        self.group = b.zext(ptx_ops.shuffle(b, "idx", b.trunc(b.lshr(thread, I64(7)), I32), I32(0)), I64)
        self.first_byte = b.mul(self.group, I64(4 * BAND * LINE))

    def left(self, rows: Rows) -> Rows:
        """The group's rows of a resident operand."""
        return attrs.evolve(rows, pointer=offset(self.b, rows.pointer, self.first_byte))

    def scores(self, left: Rows, right: Rows, part: int) -> list[ir.Value]:
        """The group's rows times a part of the streamed rows."""
        # awaited before others begin: else the assembler waits for each step
        return ptx_wgmma.multiply_group_wait(self.b, self.begin_scores(left, right, part))

    def begin_scores(self, left: Rows, right: Rows, part: int) -> list[ir.Value]:
        """Begin to multiply them."""
        b, columns = self.b, BLOCK // self.tile.parts
        sums: list[ir.Value] = []
        for x, y in self.sides(left, right):
            y = offset(b, y, part * columns * LINE)
            if not sums:
                sums = ptx_wgmma.multiply_group_first(b, x, y, columns)
            else:
                sums = ptx_wgmma.multiply_group(b, "bfloat16", x, y, ("k", "k"), sums)
        return sums

    def sides(self, left: Rows, right: Rows) -> list[tuple[ir.Value, ir.Value]]:
        """Where the rows of both begin, for each 64 of their columns."""
        steps = range(right.width // 64)
        x, y = ([offset(self.b, rows.pointer, step * rows.count * LINE) for step in steps] for rows in (left, right))
        return list(zip(x, y, strict=True))

    def apply(self, pairs: Sequence[ir.Value], right: Rows, part: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Go on with sums of pairs, rounded to bfloat16, times a part of the streamed rows."""
        b, first = self.b, part * BLOCK // self.tile.parts * LINE
        words = [x for at in range(0, len(pairs), 8) for x in rounded(b, pairs, at)]
        return ptx_wgmma_held.multiply_group_held(b, "bfloat16", words, offset(b, right.pointer, first), sums)


PRODUCTS: dict[str, type[WarpProducts] | type[GroupProducts]] = {"mma": WarpProducts, "wgmma": GroupProducts}
"""How the rows are multiplied."""
