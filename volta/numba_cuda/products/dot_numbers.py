"""The numbers of weights in blocks of few bits as a GPU's thread unpacks them: without conversions.

An integer below 2^23 is made a float by the bits of 2^23 above it, which a subtraction then takes away; both are exact.
Conversions have a quarter of the rate of additions.

By itself it is a subnormal float, 2^-149 times as much, and GPUs multiply such as fast as others. A scale that makes
up for it would not always be a float; it is, if numbers are to be 2^-48 of what they are (`SMALLER`). That is exact for
all numbers that have an offset, and so are chains whose other operands are 2^48 times as large, unless those overflow.
"""

from __future__ import annotations

import copy
import struct
from functools import lru_cache

from llvmlite import ir

from volta.core.block_formats import BlockFormat, Piece, Pieces
from volta.emit.block_numbers import WORD, BlockNumbers, exact
from volta.emit.loops import I32, I64, fma, if_else, offset
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
            far = self._smaller(self.factor(fmt.offset, i), SMALLER)
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

    def group_factors(self, number: ir.Value, each: int) -> list[ir.Value]:
        """The factors of `each` groups from group ``number * each`` on: those of scales, then of offsets.

        Integers of groups are packed each in its own way, so this is a choice between as many ways.
        """
        halves = [h for h in (self.fmt.scale, self.fmt.offset) if h is not None]
        count, size = len(halves[0].groups), self.fmt.elements // len(halves[0].groups)
        for h in halves:
            self.factor(h, 0)
            for piece in (piece for group in h.groups for piece in group):
                self._word(piece.byte, piece.shift)

        def way(first: int, last: int) -> list[ir.Value]:
            if last - first == each:
                own = copy.copy(self)
                own.products, own.loaded = {}, dict(self.loaded)
                return [own.factor(h, size * group) for h in halves for group in range(first, last)]
            middle = (first + last) // 2
            with if_else(self.b, self.b.icmp_unsigned("<", number, number.type(middle // each))) as branch:
                with branch.then():
                    branch.give(*way(first, middle))
                with branch.otherwise():
                    branch.give(*way(middle, last))
            return list(branch.results)

        return way(0, count)


PERIOD = 64
"""Elements after which a block of 256 is as before, but for where bits lie and for the groups' factors."""


@lru_cache
def periods(fmt: BlockFormat) -> tuple[int, int] | None:
    """How far the bytes of a format's elements move from period to period, and the bits of those whose bytes stay; None
    where they do not all do so."""

    def moves(i: int) -> set[tuple[int, int]]:
        pairs = zip(fmt.pieces(i), fmt.pieces(i + PERIOD), strict=True)
        return {(y.byte - x.byte, y.shift - x.shift) for x, y in pairs}

    found = set().union(*(moves(i) for i in range(fmt.elements - PERIOD)))
    steps, turns = {by for by, _ in found if by}, {by for _, by in found if by}
    plain = all(not far or not turn for far, turn in found) and len(steps) == 1 and len(turns) <= 1
    groups = len(fmt.scale.groups) * PERIOD % fmt.elements == 0 and fmt.offset is not None
    return (min(steps), min(turns, default=0)) if plain and groups and fmt.scale.groups else None


class PeriodNumbers(ThreadNumbers):
    """The elements of one period of a block, by its `number`; so the same instructions serve for all. `factors` are
    those of its groups."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, block: ir.Value, number: ir.Value, factors: list[ir.Value],
        smaller: bool,
    ) -> None:  # fmt: skip
        moves = periods(fmt)
        assert moves is not None and fmt.offset is not None
        super().__init__(b, fmt, offset(b, block, b.mul(number, I64(moves[0]))), 0, True, smaller)
        self.block, self.turned = block, b.trunc(b.mul(number, I64(moves[1])), I32)
        still = [bits for bits, _ in fmt.parts if bits.place(0).byte == bits.place(PERIOD).byte]
        self.still = {byte // WORD for bits in still for byte in range(bits.offset, bits.offset + bits.run)}
        half = len(factors) // 2
        for halves, own in ((fmt.scale, factors[:half]), (fmt.offset, factors[half:])):
            self.products.update({(halves.at, group): x for group, x in enumerate(own)})
            self.halves[halves.at] = own[0]

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index = byte // WORD
        if index in self.still and index not in self.loaded:
            b, first = self.b, index - index % _QUAD
            quad = b.load(offset(b, self.block, first * WORD), align=WORD * _QUAD, typ=ir.VectorType(I32, _QUAD))
            for i in range(_QUAD):
                self.loaded[first + i] = b.lshr(b.extract_element(quad, I32(i)), self.turned)
        return super()._word(byte, shift)
