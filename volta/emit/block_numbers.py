"""The numbers of weights in blocks of few bits, as kernels of both backends unpack them: shifts and masks of words."""

from __future__ import annotations

from llvmlite import ir

from volta.core.block_formats import BlockFormat, Halves, Piece, Pieces
from volta.emit.builder import Builder
from volta.emit.loops import I16, I32, offset

WORD = 4  # bytes


class BlockNumbers:
    """The elements of a block of weights, from its words: `words` holds the same word of each lane's bytes side by
    side, and the block begins at byte `start` of these."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, start: int, lanes: int) -> None:
        self.b, self.fmt, self.words, self.start = b, fmt, words, start
        self.lanes, self.builder = lanes, Builder(b, lanes)
        self.type = self.builder.widen(I32)
        self.loaded: dict[int, ir.Value] = {}
        self.halves: dict[int, ir.Value] = {}  # by their place in the block
        self.products: dict[tuple[int, int], ir.Value] = {}  # with a group's integer

    def element(self, i: int) -> ir.Value:
        b, fmt = self.b, self.fmt
        y = b.fmul(self._factor(fmt.scale, i), self._number(fmt.pieces(i), fmt.bias, fmt.signed))
        if fmt.offset is None:
            return y
        return (b.fsub if fmt.subtracts else b.fadd)(y, self._factor(fmt.offset, i))

    def _factor(self, halves: Halves, i: int) -> ir.Value:
        """A block's float16 number, times the integer of the element's group."""
        one = self.halves.get(halves.at)
        if one is None:
            bits = self.b.trunc(self._field(halves.at, 0, 16), self.builder.widen(I16))
            one = self.halves[halves.at] = self.builder.from_memory(bits, "float16").ir
        if not halves.groups:
            return one
        group = i * len(halves.groups) // self.fmt.elements
        found = self.products.get((halves.at, group))
        if found is None:
            number = self._number(halves.groups[group], halves.bias, halves.signed)
            found = self.products[halves.at, group] = self.b.fmul(one, number)
        return found

    def _number(self, pieces: Pieces, bias: int, signed: bool) -> ir.Value:
        """The integer that some bits make, as a float."""
        b, total = self.b, None
        for piece in pieces:
            bits = self._signed(piece) if signed else self._field(piece.byte, piece.shift, piece.width)
            bits = b.shl(bits, self._same(piece.left)) if piece.left else bits
            total = bits if total is None else b.or_(total, bits)
        assert total is not None
        if bias:
            total = b.sub(total, self._same(bias))
        return b.sitofp(total, self.builder.widen(ir.FloatType()))

    def _field(self, byte: int, shift: int, width: int) -> ir.Value:
        """Bits of a byte, or of it and the one behind it."""
        word, shift = self._word(byte, shift)
        bits = self.b.lshr(word, self._same(shift)) if shift else word
        return self.b.and_(bits, self._same((1 << width) - 1)) if shift + width < 32 else bits

    def _signed(self, piece: Piece) -> ir.Value:
        word, shift = self._word(piece.byte, piece.shift)
        top = self.b.shl(word, self._same(24 - shift)) if shift < 24 else word
        return self.b.ashr(top, self._same(24))

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index, inside = divmod(self.start + byte, WORD)
        word = self.loaded.get(index)
        if word is None:
            place = offset(self.b, self.words, index * WORD * self.lanes)
            word = self.loaded[index] = self.b.load(place, align=4, typ=self.type)
        return word, 8 * inside + shift

    def _same(self, number: int) -> ir.Constant:
        return ir.Constant(self.type, number if self.lanes == 1 else [number] * self.lanes)
