"""Weights in blocks of few bits, as GGUF files hold them: where each number lies in a block's bytes. Pure data.

An element of a block is ``scale * q``, or that plus (or minus) an offset, every operation rounded to float32. q is a
small integer; scale and offset are float16 numbers of the block, in most formats times a small integer of a group of
elements. Which bits make which integer is all that tells the formats apart.
"""

from __future__ import annotations

import attrs

from volta.core.contract import DEFINITIONS

WORD = 4
"""Bytes that kernels read at once of a row."""

INTERLEAVED = 64
"""Rows of an interleaved format: four vectors of 512 bits, as many chains as hide the latency of a link."""


@attrs.frozen
class Bits:
    """An integer of `width` bits for each element of a block, from byte `offset` on.

    A run of `run` bytes holds the lowest bits for the first `run` elements, the next bits for the next, and so on.
    """

    offset: int
    width: int
    run: int

    @property
    def shared(self) -> int:
        """Elements that share a byte."""
        return 8 // self.width

    def nbytes(self, elements: int) -> int:
        return elements // self.shared

    def place(self, element: int) -> Piece:
        """Where the bits of one element lie."""
        runs, inside = divmod(element, self.run)
        byte = self.offset + runs // self.shared * self.run + inside
        return Piece(byte, runs % self.shared * self.width, self.width)


@attrs.frozen
class Piece:
    """Some bits of a byte: `width` of them from bit `shift` on, which count from bit `left` of the integer on."""

    byte: int
    shift: int
    width: int
    left: int = 0


Pieces = tuple[Piece, ...]


@attrs.frozen
class Halves:
    """A float16 number at byte `at` of a block; times the integer of each group of elements, where there are any.

    `groups` says of which pieces a group's integer is made, `bias` what is taken from it; `signed`: it is an int8.
    """

    at: int
    groups: tuple[Pieces, ...] = ()
    bias: int = 0
    signed: bool = False


@attrs.frozen
class BlockFormat:
    """How `elements` numbers lie in `nbytes` bytes; `name` and `code` are those of GGUF.

    q is the sum of its parts' bits, each moved to the left by the number beside it, minus `bias`; an int8 if `signed`.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    parts: tuple[tuple[Bits, int], ...]
    scale: Halves
    bias: int = 0
    signed: bool = False
    offset: Halves | None = None
    subtracts: bool = False  # the offset
    rows: int = 1
    """How many rows are interleaved, chunk by chunk of DOT: the first word (four bytes) of each of them, then the
    second of each, and so on. A chunk that ends inside of a word is filled up with zeros."""

    @property
    def chunk_bytes(self) -> int:
        """What a chunk of DOT takes of a row."""
        nbytes = DEFINITIONS.dot_chunk // self.elements * self.nbytes
        return nbytes if self.rows == 1 else -(-nbytes // WORD) * WORD

    @property
    def unit(self) -> tuple[int, int]:
        """The elements of a row, and the bytes of all rows that are interleaved, of which memory holds whole ones."""
        if self.rows == 1:
            return self.elements, self.nbytes
        return DEFINITIONS.dot_chunk, self.rows * self.chunk_bytes

    def interleaved(self) -> BlockFormat:
        """The same blocks, whose rows take turns."""
        return attrs.evolve(self, name=f"{self.name}_R{INTERLEAVED}", rows=INTERLEAVED)

    def pieces(self, element: int) -> Pieces:
        """Of which bits the integer of one element is made."""
        return tuple(attrs.evolve(bits.place(element), left=left) for bits, left in self.parts)


def _bytes(start: int, count: int) -> tuple[Pieces, ...]:
    return tuple((Piece(start + i, 0, 8),) for i in range(count))


def _six_bits(start: int, second: bool) -> tuple[Pieces, ...]:
    """The eight scales (or the `second` numbers, offsets) of 6 bits that Q4_K and Q5_K pack into 12 bytes."""
    low, high = start + 4 * second, 4 * second
    first = tuple((Piece(low + i, 0, 6),) for i in range(4))
    return first + tuple((Piece(start + 8 + i, high, 4), Piece(low + i, 6, 2, 4)) for i in range(4))


def _three_bit_scales(start: int) -> tuple[Pieces, ...]:
    """The sixteen scales of 6 bits that Q3_K packs into 12 bytes."""
    return tuple(
        (Piece(start + i % 8, 4 * (i // 8), 4), Piece(start + 8 + i % 4, 2 * (i // 4), 2, 4)) for i in range(16)
    )


def _nibbles(start: int, shift: int) -> tuple[Pieces, ...]:
    return tuple((Piece(start + i, shift, 4),) for i in range(16))


FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("Q4_0", 2, 32, 18, ((Bits(2, 4, 16), 0),), Halves(0), bias=8),
        BlockFormat("Q4_1", 3, 32, 20, ((Bits(4, 4, 16), 0),), Halves(0), offset=Halves(2)),
        BlockFormat("Q5_0", 6, 32, 22, ((Bits(6, 4, 16), 0), (Bits(2, 1, 1), 4)), Halves(0), bias=16),
        BlockFormat("Q5_1", 7, 32, 24, ((Bits(8, 4, 16), 0), (Bits(4, 1, 1), 4)), Halves(0), offset=Halves(2)),
        BlockFormat("Q8_0", 8, 32, 34, ((Bits(2, 8, 32), 0),), Halves(0), signed=True),
        BlockFormat(
            "Q2_K", 10, 256, 84, ((Bits(16, 2, 32), 0),), Halves(80, _nibbles(0, 0)),
            offset=Halves(82, _nibbles(0, 4)), subtracts=True,
        ),
        BlockFormat(
            "Q3_K", 11, 256, 110, ((Bits(32, 2, 32), 0), (Bits(0, 1, 32), 2)),
            Halves(108, _three_bit_scales(96), bias=32), bias=4,
        ),
        BlockFormat(
            "Q4_K", 12, 256, 144, ((Bits(16, 4, 32), 0),), Halves(0, _six_bits(4, False)),
            offset=Halves(2, _six_bits(4, True)), subtracts=True,
        ),
        BlockFormat(
            "Q5_K", 13, 256, 176, ((Bits(48, 4, 32), 0), (Bits(16, 1, 32), 4)), Halves(0, _six_bits(4, False)),
            offset=Halves(2, _six_bits(4, True)), subtracts=True,
        ),
        BlockFormat(
            "Q6_K", 14, 256, 210, ((Bits(0, 4, 64), 0), (Bits(128, 2, 32), 4)),
            Halves(208, _bytes(192, 16), signed=True), bias=32,
        ),
    )
}  # fmt: skip
"""By name."""

LAYOUTS = FORMATS | {f.name: f for f in (own.interleaved() for own in FORMATS.values())}
"""These, and the same interleaved: what bytes in memory may be, by name."""
