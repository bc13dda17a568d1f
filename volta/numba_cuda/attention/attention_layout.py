"""Tiles of the attention kernels, and how matrices lie in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.loops import offset
from volta.numba_cuda.codegen.threads import WARP
from volta.xla_like.attention import BLOCK

WIDE = 16
"""Bytes that a thread reads or copies at once."""


@attrs.frozen
class AttentionTile:
    """How a kernel runs: rows of a thread, lanes across, warps of a warp group; how operands are copied.

    ``whole``: every operand can be copied in groups of 16 bytes; ``copies``: copies may run on by themselves (8.0 and
    up). In the kernels for gradients ``places`` is how many blocks of the operand that is needed last lie there at once
    (pipeline stages), and ``parked`` says that weights wait in shared memory for their cotangents, not in registers. A
    block has as many ``warp_groups``, each with warps for all the tile's rows; they compute different products of them
    at one time. ``ahead``: what a step of a product needs is read in the step before it, which takes registers.
    ``both``: cotangents of scores lie in either order, so that queries' gradients find neighbouring queries too.
    """

    rows_each: int
    across: int
    warps: int
    whole: bool
    copies: bool
    places: int = 1
    parked: bool = False
    warp_groups: int = 1
    ahead: bool = False
    both: bool = False

    @property
    def threads(self) -> int:
        return self.warp_groups * self.warps * WARP

    @property
    def warp_rows(self) -> int:
        return self.rows_each * (WARP // self.across)

    @property
    def rows(self) -> int:
        return self.warps * self.warp_rows

    def suffix(self) -> str:
        flags = f"{'w' * self.whole}{'c' * self.copies}{'p' * self.parked}"
        flags += f"{'a' * self.ahead}{'b' * self.both}"
        return f"{self.rows_each}x{self.across}x{self.warps}{flags}{self.places}{self.warp_groups}"


@attrs.frozen
class Matrix:
    """A matrix in shared memory: pointer to its first element, columns, and bytes from a row to the next."""

    pointer: ir.Value
    width: int
    line: int


def line_of(width: int, size: int) -> int:
    """Bytes of a row in shared memory: an odd number of groups, so that neighbouring rows lie in different banks."""
    return WIDE * (-(-width * size // WIDE) | 1)


def matrix_bytes(rows: int, width: int, size: int) -> int:
    """Bytes of a matrix, with what the last row's reader of whole groups may touch beyond it."""
    return rows * line_of(width, size) + 256


Shapes = Sequence[tuple[int, int]]
"""Rows and columns of the matrices that lie one behind the other in shared memory."""


def shared_bytes(shapes: Shapes, tile: AttentionTile, size: int) -> int:
    """Bytes of what `shared_matrices` lays out."""
    return sum(matrix_bytes(rows, width, size) for rows, width in shapes) + pairs_bytes(tile, size)


def shared_matrices(
    b: ir.IRBuilder, space: ir.Value, shapes: Shapes, tile: AttentionTile, size: int
) -> tuple[list[Matrix], Matrix]:
    """Matrices from the start of shared memory on, and one of pairs behind them."""
    found = []
    for rows, width in shapes:
        found.append(Matrix(space, width, line_of(width, size)))
        space = offset(b, space, matrix_bytes(rows, width, size))
    return found, Matrix(space, tile.rows, pairs_line(tile, size))


def pairs_bytes(tile: AttentionTile, size: int) -> int:
    """Bytes of a matrix of pairs."""
    return BLOCK * pairs_line(tile, size)


def pairs_line(tile: AttentionTile, size: int) -> int:
    """Bytes from a streamed row's pairs to the next one's: what eight lanes write at once lies in different banks."""
    return tile.rows * size + 2 * WIDE
