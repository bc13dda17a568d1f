"""The numbers of weights in blocks of few bits as a GPU's thread unpacks them: without conversions.

An integer below 2^23 is made a float by the bits of 2^23 above it, which a subtraction then takes away; both are exact.
Conversions have a quarter of the rate of additions.

By itself it is a subnormal float, 2^-149 times as much, and GPUs multiply such as fast as others. A scale that makes
up for it would not always be a float; it is, if numbers are to be 2^-48 of what they are (`SMALLER`). That is exact for
all numbers that have an offset, and so are chains whose other operands are 2^48 times as large, unless those overflow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import attrs
from llvmlite import ir

from volta.core.block_formats import BlockFormat, Halves, Piece, Pieces
from volta.emit.block_numbers import WORD, BlockNumbers, exact
from volta.emit.loops import I32, I64, fma, offset
from volta.numba_cuda.codegen.ptx_ops import bits_over, permuted

_F32 = ir.FloatType()
_MANTISSA = 23
_ABOVE = struct.unpack("<I", struct.pack("<f", 2.0**_MANTISSA))[0]
_QUAD = 4  # words
_EACH_BYTE = 0x01010101
_SUBNORMAL = -149  # the power of two that the lowest bit of a float means
SMALLER = 48
_HALFWAY = 100  # of two powers of two whose product is no float


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

    def element(self, i: int) -> ir.Value:
        if not self.smaller:
            return super().element(i)
        b, fmt = self.b, self.fmt
        assert fmt.offset is not None and exact(fmt)
        pieces = fmt.pieces(i)
        bits, left = self._masked(pieces[0]) if len(pieces) == 1 else (self._joined(pieces, I32(0)), 0)
        return fma(b, self._scale(i, left), b.bitcast(bits, _F32), self.factor(fmt.offset, i))

    def half(self, halves: Halves) -> ir.Value:
        """A block's float16 number; where numbers are `smaller`, times what makes its groups' factors those of these
        numbers: of integers that are subnormal floats, and of offsets with their sign."""
        known = halves.at in self.halves
        found = super().half(halves)
        if self.smaller and not known:
            sign = -1 if self.fmt.subtracts else 1
            times = sign * 2.0**-SMALLER if halves is self.fmt.offset else 2.0 ** -(_SUBNORMAL + SMALLER)
            found = self.halves[halves.at] = self.b.fmul(found, ir.Constant(_F32, times))
        return found

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

    def packed(self) -> list[list[ir.Value]]:
        """The integers of groups, a byte each, four to a word: of scales, then of offsets."""
        halves = [h for h in (self.fmt.scale, self.fmt.offset) if h is not None]
        return [[self._packed(h.groups[i : i + WORD]) for i in range(0, len(h.groups), WORD)] for h in halves]

    def _packed(self, groups: Sequence[Pieces]) -> ir.Value:
        """Integers that are made of pieces of neighbouring bytes alike: of four at once."""
        b, total = self.b, I32(0)
        for pieces in zip(*groups, strict=True):
            first = pieces[0]
            assert all(attrs.evolve(x, byte=x.byte - i) == first for i, x in enumerate(pieces))
            word, shift = self._word(first.byte, first.shift)
            assert shift == first.shift
            by = first.left - shift
            moved = b.shl(word, I32(by)) if by > 0 else b.lshr(word, I32(-by)) if by else word
            total = b.or_(total, b.and_(moved, I32(_EACH_BYTE * (((1 << first.width) - 1) << first.left))))
        return total

    def group_factors(self, packed: Sequence[Sequence[ir.Value]], number: ir.Value, each: int) -> list[ir.Value]:
        """The factors of `each` of eight groups, from group ``number * each`` on: those of scales, then of offsets."""
        b, found = self.b, []
        halves = [h for h in (self.fmt.scale, self.fmt.offset) if h is not None]
        first, step = (sum(digit << 4 * i for i, digit in enumerate(digits)) for digits in (range(each), [each] * each))
        which = b.add(b.mul(b.trunc(number, I32), I32(step)), I32(first))  # bytes, a hexadecimal digit for each
        for h, words in zip(halves, packed, strict=True):
            low, high = words
            word = permuted(b, low, high, which)
            found += [self._factor(h, word, 8 * i) for i in range(each)]
        return found

    def _factor(self, halves: Halves, word: ir.Value, left: int) -> ir.Value:
        """A block's float16 number times the byte that begins at bit `left` of a word: an offset's smaller number lets
        it be a subnormal float."""
        b, one, mask = self.b, self.half(halves), 0xFF << left
        if self.smaller and halves is self.fmt.offset:
            for power in (_HALFWAY, -_SUBNORMAL - _HALFWAY - left):
                one = b.fmul(one, ir.Constant(_F32, 2.0**power))
            return b.fmul(one, b.bitcast(b.and_(word, I32(mask)), _F32))
        bits = b.bitcast(bits_over(b, word, mask, _ABOVE), _F32)
        return b.fmul(self._smaller(one, left), b.fsub(bits, ir.Constant(_F32, 2.0**_MANTISSA)))


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
    those of its groups. Where they are not read by `quads`, the block may begin some bytes later: so many elements."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, block: ir.Value, number: ir.Value, factors: list[ir.Value],
        smaller: bool, quads: bool = True,
    ) -> None:  # fmt: skip
        moves = periods(fmt)
        assert moves is not None and fmt.offset is not None
        super().__init__(b, fmt, offset(b, block, b.mul(number, I64(moves[0]))), 0, quads, smaller)
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
            b, count = self.b, _QUAD if self.quads else 1
            first = index - index % count
            words = b.load(offset(b, self.block, first * WORD), align=WORD * count, typ=ir.VectorType(I32, count))
            for i in range(count):
                self.loaded[first + i] = b.lshr(b.extract_element(words, I32(i)), self.turned)
        return super()._word(byte, shift)
