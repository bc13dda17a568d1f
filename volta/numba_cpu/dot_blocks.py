"""Packing for DOT of weights in blocks of few bits: a strip of `lanes` rows of them, k-major, as float32 numbers.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and the bits of an element are a shift and a mask of a vector away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import FORMATS, BlockFormat, Halves, Piece, Pieces
from volta.emit.builder import Builder
from volta.emit.loops import I16, I32, I64, PTR, VOID, for_range, if_else, if_then, loop, minimum, offset
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.dot_tile import prefetch
from volta.xla_like.dot import CHUNK

_WORD, _LINE = 4, 64  # bytes
_TILE_STRIPS = 2
"""Strips of a register tile: what lies so many behind is read next, and asked for now. No processor would see it
coming, as rows are far apart."""

_TURN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64])
"""``turn(words, source, source_row, width, nbytes)``: the words of `width` rows, whose bytes are an even number."""


def unpack(module: ir.Module, name: str, lanes: int, kind: ir.FunctionType) -> ir.Function:
    """The function (internal to the module, added once) for a format, of the type of `dot_pack.pack`: it reads the
    blocks of `width` rows from `source` on, of `depth` numbers each, and writes vectors of `lanes` numbers."""
    symbol = f"volta_dot_unpack_{name}_{lanes}"
    found = module.globals.get(symbol)
    if found is not None:
        return found
    turn = _turn(module, lanes)
    function = ir.Function(module, kind, symbol)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    to, to_k, to_strip, source, _, source_row, width, depth = function.args
    fmt = FORMATS[name]
    blocks = CHUNK // fmt.elements
    vector = ir.VectorType(I32, lanes)
    words = b.alloca(vector, blocks * fmt.nbytes // _WORD + 1)
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    with loop(b, 0, width, lanes, [to, source]) as strips:
        strip, rows = strips.values
        b.call(turn, [words, rows, source_row, minimum(b, b.sub(width, strips.index), lanes), nbytes])
        for block in range(blocks):
            with _there(b, depth, block * fmt.elements, alone=blocks == 1):
                numbers = _Numbers(b, fmt, words, block * fmt.nbytes, lanes)
                for element in range(fmt.elements):
                    place = offset(b, strip, b.mul(to_k, I64(block * fmt.elements + element)))
                    b.store(numbers.element(element), place, align=4)
        strips.advance(offset(b, strip, to_strip), offset(b, rows, b.mul(source_row, I64(lanes))))
    b.ret_void()
    return function


@contextmanager
def _there(b: ir.IRBuilder, depth: ir.Value, first: int, alone: bool) -> Iterator[None]:
    """Where a block is among those that are there; one alone always is."""
    if alone:
        yield
    else:
        with if_then(b, b.icmp_signed(">", depth, I64(first))):
            yield


class _Numbers:
    """The elements of one block of each row, from its words: a lane is a row."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, start: int, lanes: int) -> None:
        self.b, self.fmt, self.words, self.start = b, fmt, words, start
        self.builder, self.type = Builder(b, lanes), ir.VectorType(I32, lanes)
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
            bits = self.b.trunc(self._field(halves.at, 0, 16), ir.VectorType(I16, self.type.count))
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
        return b.sitofp(total, ir.VectorType(ir.FloatType(), self.type.count))

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
        index, inside = divmod(self.start + byte, _WORD)
        word = self.loaded.get(index)
        if word is None:
            place = offset(self.b, self.words, index * _WORD * self.type.count)
            word = self.loaded[index] = self.b.load(place, align=4, typ=self.type)
        return word, 8 * inside + shift

    def _same(self, number: int) -> ir.Constant:
        return ir.Constant(self.type, [number] * self.type.count)


def _turn(module: ir.Module, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) that turns words: squares of vectors at a time.

    The last square may overlap the one before. Lanes without a row repeat the last one, so that no memory is touched
    that holds no weights.
    """
    name = f"volta_dot_turn_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, _TURN_TYPE, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    words, source, row, width, nbytes = function.args
    vector, square = ir.VectorType(I32, lanes), lanes * _WORD
    last = b.sub(width, I64(1))
    rows = [offset(b, source, b.mul(row, minimum(b, last, lane))) for lane in range(lanes)]
    ahead = b.mul(row, I64(_TILE_STRIPS * lanes))
    with for_range(b, 0, nbytes, _LINE) as at:
        for x in rows:
            prefetch(b, offset(b, offset(b, x, ahead), at))
    whole = b.and_(nbytes, I64(-_WORD))
    with if_else(b, b.icmp_signed(">=", whole, I64(square))) as branch:
        with branch.then():
            with for_range(b, 0, whole, square) as first:
                at = minimum(b, first, b.sub(whole, I64(square)))
                turned = transpose(b, [b.load(offset(b, x, at), align=1, typ=vector) for x in rows])
                for i, value in enumerate(turned):
                    b.store(value, offset(b, words, b.mul(b.add(at, I64(i * _WORD)), I64(lanes))), align=4)
        with branch.otherwise():
            with for_range(b, 0, whole, _WORD) as at:
                _each(b, rows, at, words, I32)
    with if_then(b, b.icmp_signed("<", whole, nbytes)):  # two bytes, not four, are left
        _each(b, rows, whole, words, I16)
    b.ret_void()
    return function


def _each(b: ir.IRBuilder, rows: list[ir.Value], at: ir.Value, words: ir.Value, kind: ir.IntType) -> None:
    """One word, or the half of one, row by row."""
    lanes = len(rows)
    to = offset(b, words, b.mul(at, I64(lanes)))
    for lane, x in enumerate(rows):
        value = b.load(offset(b, x, at), align=1, typ=kind)
        b.store(value if kind == I32 else b.zext(value, I32), offset(b, to, lane * _WORD), align=4)
