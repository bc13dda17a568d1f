"""The numbers of weights in blocks of few bits as a GPU's thread unpacks them: without conversions.

An integer below 2^23 is made a float by the bits of 2^23 above it, which a subtraction then takes away; both are exact.
Conversions have a quarter of the rate of additions.

By itself it is a subnormal float, 2^-149 times as much, and GPUs multiply such as fast as others. A scale that makes
up for it would not always be a float; it is, if numbers are to be 2^-48 of what they are (`SMALLER`). That is exact for
all numbers that have an offset, and so are chains whose other operands are 2^48 times as large, unless those overflow.
"""

from __future__ import annotations

import struct

from llvmlite import ir

from volta.core.block_formats import BlockFormat, Piece, Pieces
from volta.emit.block_numbers import WORD, BlockNumbers, exact
from volta.emit.loops import I32, fma, offset
from volta.numba_cuda.codegen.ptx_ops import bits_over

_F32 = ir.FloatType()
_MANTISSA = 23
_ABOVE = struct.unpack("<I", struct.pack("<f", 2.0**_MANTISSA))[0]
_QUAD = 4  # words
_SUBNORMAL = -149  # the power of two that the lowest bit of a float means
SMALLER = 48


def has_smaller(fmt: BlockFormat) -> bool:
    """Whether a format's numbers have an offset, and integers that no bias is taken from."""
    return fmt.offset is not None and not fmt.bias and not fmt.signed


class ThreadNumbers(BlockNumbers):
    """As `BlockNumbers`, of one column; `quads`: words are read four at a time, the first at a multiple of 16 bytes;
    `smaller`: the numbers are divided by 2^`SMALLER`."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, start: int, quads: bool, smaller: bool = False
    ) -> None:
        super().__init__(b, fmt, words, start, 1)
        self.quads, self.smaller = quads, smaller
        self.halved: dict[int, ir.Value] = {}  # words moved to the right by 16 bits
        self.far: dict[int, ir.Value] = {}  # offsets of groups, smaller

    def element(self, i: int) -> ir.Value:
        if not self.smaller:
            return super().element(i)
        b, fmt = self.b, self.fmt
        assert fmt.offset is not None and exact(fmt)
        pieces = fmt.pieces(i)
        bits, left = self._masked(pieces[0]) if len(pieces) == 1 else (self._joined(pieces, I32(0)), 0)
        scale = self._scale(i, _SUBNORMAL + SMALLER + left)
        group = i * max(1, len(fmt.offset.groups)) // fmt.elements
        far = self.far.get(group)
        if far is None:
            far = self._smaller(self._factor(fmt.offset, i), SMALLER)
            far = self.far[group] = b.fneg(far) if fmt.subtracts else far
        return fma(b, scale, b.bitcast(bits, _F32), far)

    def _masked(self, piece: Piece) -> tuple[ir.Value, int]:
        word, left = self._within(piece)
        return self.b.and_(word, I32(((1 << piece.width) - 1) << left)), left

    def _joined(self, pieces: Pieces, bits: ir.Value) -> ir.Value:
        """The integer that several pieces make, with other bits."""
        b = self.b
        for piece in pieces:
            part = self._field(piece.byte, piece.shift, piece.width)
            bits = b.or_(bits, b.shl(part, I32(piece.left)) if piece.left else part)
        return bits

    def _integer(self, pieces: Pieces, bias: int, signed: bool) -> tuple[ir.Value, int]:
        b, top = self.b, 1 << (pieces[0].width - 1) if signed else 0  # that much is added by turning the sign over
        if len(pieces) == 1:
            word, left = self._within(pieces[0])
            bits = bits_over(b, word, ((1 << pieces[0].width) - 1) << left, _ABOVE | top << left)
        else:
            left, bits = 0, self._joined(pieces, I32(_ABOVE))
        away = 2.0**_MANTISSA + (top + bias) * 2.0**left
        return b.fsub(b.bitcast(bits, _F32), ir.Constant(_F32, away)), left

    def _within(self, piece: Piece) -> tuple[ir.Value, int]:
        """A word with the bits of a piece below bit 23, and where they begin."""
        word, shift = self._word(piece.byte, piece.shift)
        if shift + piece.width <= _MANTISSA:
            return word, shift
        index = (self.start + piece.byte) // WORD
        if index not in self.halved:
            self.halved[index] = self.b.lshr(word, I32(16))
        return self.halved[index], shift - 16

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index = (self.start + byte) // WORD
        if self.quads and index not in self.loaded:
            first = index - index % _QUAD
            place = offset(self.b, self.words, first * WORD)
            quad = self.b.load(place, align=WORD * _QUAD, typ=ir.VectorType(I32, _QUAD))
            for i in range(_QUAD):
                self.loaded[first + i] = self.b.extract_element(quad, I32(i))
        return super()._word(byte, shift)
