"""The numbers of weights in blocks of few bits, as kernels of both backends unpack them: by masks of words.

Bits stay where they are in a word: as a float they are 2^p times the integer, and the scale, made smaller by as much,
gives the same product. That is exact, as are the products of scales and integers, which `exact` says of a format; so a
product with an offset added to it is one fused multiply-add.
"""

from __future__ import annotations

from llvmlite import ir

from volta.core.block_formats import WORD, BlockFormat, Halves, Pieces
from volta.emit.builder import Builder
from volta.emit.loops import I16, I32, fma, offset

_BITS = 24  # of a float32's significand


def exact(fmt: BlockFormat) -> bool:
    """Whether a scale, a float16 number times a group's integer, times an element's integer is a float32."""

    def width(pieces: Pieces) -> int:
        return max(p.left + p.width for p in pieces)

    halves = fmt.scale
    scale = 11 + max((width(p) - halves.signed for p in halves.groups), default=0)
    return scale + width(fmt.pieces(0)) - (fmt.signed or fmt.bias > 0) <= _BITS


def word_step(fmt: BlockFormat, lanes: int) -> int:
    """How far apart the words of a row are, where those of its neighbours lie between them: of so many lanes, or of all
    rows that a format interleaves."""
    return WORD * (lanes if fmt.rows == 1 else fmt.rows)


class BlockNumbers:
    """The elements of a block of weights, from its words: `words` holds the same word of each lane's bytes side by
    side, and the block begins at byte `start` of these."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, start: int, lanes: int) -> None:
        self.b, self.fmt, self.words, self.start = b, fmt, words, start
        self.lanes, self.builder = lanes, Builder(b, lanes)
        self.type = self.builder.widen(I32)
        self.step = word_step(fmt, lanes)
        self.loaded: dict[int, ir.Value] = {}
        self.halves: dict[int, ir.Value] = {}  # by their place in the block
        self.products: dict[tuple[int, int], ir.Value] = {}  # with a group's integer
        self.scales: dict[tuple[int, int], ir.Value] = {}  # of a group, for bits that far to the left

    def element(self, i: int) -> ir.Value:
        b, fmt = self.b, self.fmt
        assert exact(fmt)
        q, left = self._integer(fmt.pieces(i), fmt.bias, fmt.signed)
        scale = self._scale(i, left)
        if fmt.offset is None:
            return b.fmul(scale, q)
        far = self.factor(fmt.offset, i)
        return fma(b, scale, q, b.fneg(far) if fmt.subtracts else far)

    def _scale(self, i: int, left: int) -> ir.Value:
        """The scale of an element's group, divided by 2^left."""
        group = i * max(1, len(self.fmt.scale.groups)) // self.fmt.elements
        found = self.scales.get((group, left))
        if found is None:
            found = self.scales[group, left] = self._smaller(self.factor(self.fmt.scale, i), left)
        return found

    def _smaller(self, x: ir.Value, left: int) -> ir.Value:
        return self.b.fmul(x, self._float(2.0**-left)) if left else x

    def factor(self, halves: Halves, i: int) -> ir.Value:
        """A block's float16 number, times the integer of the element's group."""
        one = self.half(halves)
        if not halves.groups:
            return one
        group = i * len(halves.groups) // self.fmt.elements
        found = self.products.get((halves.at, group))
        if found is None:
            number = self._smaller(*self._integer(halves.groups[group], halves.bias, halves.signed))
            found = self.products[halves.at, group] = self.b.fmul(one, number)
        return found

    def half(self, halves: Halves) -> ir.Value:
        """A block's float16 number."""
        one = self.halves.get(halves.at)
        if one is None:
            bits = self.b.trunc(self._field(halves.at, 0, 16), self.builder.widen(I16))
            one = self.halves[halves.at] = self.builder.from_memory(bits, "float16").ir
        return one

    def _integer(self, pieces: Pieces, bias: int, signed: bool) -> tuple[ir.Value, int]:
        """2^p times the integer that some bits make, as a float, and p."""
        b, total, left = self.b, None, 0
        if signed:
            (piece,) = pieces
            word, shift = self._word(piece.byte, piece.shift)
            left = 32 - piece.width  # the highest bits, so that the first is the sign
            total = b.shl(word, self._same(left - shift)) if shift < left else word
            total = b.and_(total, self._same(-1 << left))
        elif len(pieces) == 1:
            (piece,) = pieces
            word, left = self._word(piece.byte, piece.shift)
            if left + piece.width < 32:
                total = b.and_(word, self._same(((1 << piece.width) - 1) << left))
            else:
                total, left = b.lshr(word, self._same(left)), 0
        else:
            for piece in pieces:
                bits = self._field(piece.byte, piece.shift, piece.width)
                bits = b.shl(bits, self._same(piece.left)) if piece.left else bits
                total = bits if total is None else b.or_(total, bits)
        assert total is not None
        if bias:
            total = b.sub(total, self._same(bias << left))
        return b.sitofp(total, self.builder.widen(ir.FloatType())), left

    def _field(self, byte: int, shift: int, width: int) -> ir.Value:
        """Bits of a byte, or of it and the one behind it."""
        word, shift = self._word(byte, shift)
        bits = self.b.lshr(word, self._same(shift)) if shift else word
        return self.b.and_(bits, self._same((1 << width) - 1)) if shift + width < 32 else bits

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index, inside = divmod(self.start + byte, WORD)
        word = self.loaded.get(index)
        if word is None:
            place = offset(self.b, self.words, index * self.step)
            word = self.loaded[index] = self.b.load(place, align=4, typ=self.type)
        return word, 8 * inside + shift

    def _same(self, number: int) -> ir.Constant:
        return ir.Constant(self.type, number if self.lanes == 1 else [number] * self.lanes)

    def _float(self, number: float) -> ir.Constant:
        kind = self.builder.widen(ir.FloatType())
        return ir.Constant(kind, number if self.lanes == 1 else [number] * self.lanes)
