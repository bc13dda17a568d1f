"""The numbers of weights in blocks as links of one row's chains need them: four elements of each lane's word at once.

What `BlockNumbers` takes from a word by a shift and a mask, shuffles of bytes do here, which also leave an integer
where its sign is a word's. Of large blocks the factors of groups are made first, and words are those of a run: 32
elements, whose integers lie alike in all runs of a block but for where they begin and how far to the left they are.
"""

from __future__ import annotations

from llvmlite import ir

from volta.core.block_formats import BlockFormat, Halves, Piece, Pieces
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import I8, I32, I64, as_i64, intrinsic, offset, splat

RUN = 32
"""Elements whose bits have one place in their bytes; a small block."""

_TABLE = 16
"""Lanes that are a table for others, by one instruction of AVX-512."""

_TOP = 8 * (WORD - 1)
"""How far to the left a word's highest byte is: integers there have their sign."""


def _up(pieces: Pieces, bias: int) -> int:
    """How far up in its byte an integer is that may be negative: by its highest bit, which a bias is, being half of the
    range. Turned over, that is the sign of the integer less the bias."""
    width = max(p.left + p.width for p in pieces)
    assert bias in (0, 1 << (width - 1))
    return 8 - width if bias else 0


class ByteNumbers(BlockNumbers):
    """As `BlockNumbers`, but the integers of a word's four elements are joined at once, each in its byte; a shuffle
    puts one where its lane's word is that integer, or its highest byte if it may be negative."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, start: int, lanes: int) -> None:
        super().__init__(b, fmt, words, start, lanes)
        self.joined: dict[tuple[tuple[int, int], ...], ir.Value] = {}
        self.smaller: dict[tuple[int, int], ir.Value] = {}

    def _integer(self, pieces: Pieces, bias: int, signed: bool) -> tuple[ir.Value, int]:
        b = self.b
        places = [divmod(self.start + p.byte, WORD) for p in pieces]
        if len({inside for _, inside in places}) > 1 or any(p.left + p.width > 8 or p.width == 1 for p in pieces[:1]):
            return super()._integer(pieces, bias, signed)
        key = tuple((word, p.shift) for (word, _), p in zip(places, pieces, strict=True))
        found = self.joined.get(key)
        if found is None:
            found = self.joined[key] = b.bitcast(self._bytes(pieces, bias), ir.VectorType(I8, WORD * self.lanes))
        size, at, negative = found.type.count, places[0][1], bool(bias or signed)
        none = [size] * (WORD - 1)
        lanes = [[*none, first + at] if negative else [first + at, *none] for first in range(0, size, WORD)]
        indices = ir.Constant(ir.VectorType(I32, size), [i for lane in lanes for i in lane])
        moved = b.shuffle_vector(found, ir.Constant(found.type, None), indices)
        number = b.sitofp(b.bitcast(moved, self.type), self.builder.widen(ir.FloatType()))
        return number, self._left(pieces, bias, signed)

    @staticmethod
    def _left(pieces: Pieces, bias: int, signed: bool) -> int:
        return _TOP + _up(pieces, bias) if bias or signed else 0

    def group_factor(self, halves: Halves, group: int) -> ir.Value:
        """A factor of a group: a scale is for an element's integer where a shuffle has brought it. Powers of two are
        in the block's number, once for all groups."""
        integer, left = self._integer(halves.groups[group], halves.bias, halves.signed)
        if halves is self.fmt.scale:
            left += self._left(self.fmt.pieces(0), self.fmt.bias, self.fmt.signed)
        if (halves.at, left) not in self.smaller:
            self.smaller[halves.at, left] = self._smaller(self.half(halves), left)
        return self.b.fmul(self.smaller[halves.at, left], integer)

    def _bytes(self, pieces: Pieces, bias: int) -> ir.Value:
        b, total, up = self.b, None, _up(pieces, bias)
        for p in pieces:
            mask = ((1 << p.width) - 1) << (p.left + up)
            word = self._moved(p, p.left + up)
            word = word if p.width == 8 else b.and_(word, self._same(mask * 0x01010101))
            total = word if total is None else b.or_(total, word)
        return b.xor(total, self._same(0x80808080 - (1 << 32))) if bias else total

    def _moved(self, p: Piece, to: int) -> ir.Value:
        """A word whose bytes have their piece's bits from bit `to` on, among others."""
        b, left = self.b, to - p.shift
        word, _ = self._word(p.byte, 0)
        return b.shl(word, self._same(left)) if left > 0 else b.lshr(word, self._same(-left)) if left else word


class Factors:
    """The factors of a large block's groups, in memory: a scale for each, and an offset where there is one."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, lanes: int) -> None:
        self.b, self.type = b, ir.VectorType(ir.FloatType(), lanes)
        self.tables = []
        numbers = ByteNumbers(b, fmt, words, 0, lanes)
        for halves in (fmt.scale, fmt.offset):
            if halves is not None:
                table = b.alloca(self.type, len(halves.groups))
                for group in range(len(halves.groups)):
                    b.store(numbers.group_factor(halves, group), self._at(table, group))
                self.tables.append(table)

    def of(self, group: ir.Value) -> list[ir.Value]:
        return [self.b.load(self._at(table, group), typ=self.type) for table in self.tables]

    def _at(self, table: ir.Value, group: ir.Value | int) -> ir.Value:
        return self.b.gep(table, [as_i64(group)], source_etype=self.type)


class Run:
    """Where the words of one run of a large block lie, and how far their bits are moved: alike for all of its words."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, run: ir.Value, lanes: int) -> None:
        self.fmt, self.wide, same = fmt, lanes == _TABLE, lambda x: splat(b, x, lanes)
        self.bytes: list[ir.Value] = []
        """Of each part, how far its words are behind those of the first run."""
        self.lefts: list[ir.Value] = []
        """How far to the left the bits are there; see `Bits.place`."""
        element = b.mul(run, I64(RUN))
        for bits, _ in fmt.parts:
            runs = b.udiv(element, I64(bits.run))
            inside = b.urem(element, I64(bits.run))
            self.bytes.append(b.add(b.mul(b.udiv(runs, I64(bits.shared)), I64(bits.run)), inside))
            self.lefts.append(b.trunc(b.mul(b.urem(runs, I64(bits.shared)), I64(bits.width)), I32))
        up = _up(fmt.pieces(0), fmt.bias)
        self.places = [same(left) for left in self.lefts]
        self.turns = [same(b.sub(I32(p.left + up), left)) for p, left in zip(fmt.pieces(0), self.lefts, strict=True)]
        """By how much a word is turned so that its bits lie in their bytes as those of an integer do."""
        self.shifts = [same(b.add(self.lefts[0], I32(8 * i))) for i in range(WORD)]
        """By how much a word is shifted so that an element's bits are its lowest."""

    def part(self, byte: int) -> int:
        """Whose bits a byte of the first run has."""
        (part,) = (i for i, (bits, _) in enumerate(self.fmt.parts) if bits.offset <= byte < bits.offset + WORD)
        return part


class _GroupNumbers(ByteNumbers):
    """The four elements of a word of a group of a large block, whose factors are there."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, lanes: int, factors: list[ir.Value]) -> None:
        super().__init__(b, fmt, words, 0, lanes)
        self.factors = factors

    def _scale(self, i: int, left: int) -> ir.Value:
        return self.factors[0]

    def factor(self, halves: Halves, i: int) -> ir.Value:
        return self.factors[1]

    def _integer(self, pieces: Pieces, bias: int, signed: bool) -> tuple[ir.Value, int]:
        if self.lanes != _TABLE or len(pieces) > 1 or signed or bias or pieces[0].width > 4:
            return super()._integer(pieces, bias, signed)
        return self._looked_up(pieces[0]), 0

    def _looked_up(self, piece: Piece) -> ir.Value:
        """A vector's lanes are a table for the lowest four bits of others: so bits above an integer need no mask, and
        it no conversion."""
        b, kind = self.b, self.builder.widen(ir.FloatType())
        table = ir.Constant(kind, [float(i & ((1 << piece.width) - 1)) for i in range(_TABLE)])
        look_up = intrinsic(b.module, "llvm.x86.avx512.permvar.sf.512", kind, [kind, self.type])
        return b.call(look_up, [table, self._lowest(piece)])

    def _lowest(self, piece: Piece) -> ir.Value:
        """A word with a piece's bits as its lowest ones."""
        raise NotImplementedError


class WordNumbers(_GroupNumbers):
    """The four elements of a word of a run of a large block: the same instructions serve for all."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, word: ir.Value, run: Run, lanes: int,
        factors: list[ir.Value],
    ) -> None:  # fmt: skip
        super().__init__(b, fmt, words, lanes, factors)
        self.run = run
        self.further = b.mul(word, I64(WORD))
        self.raw: dict[int, ir.Value] = {}

    def _lowest(self, piece: Piece) -> ir.Value:
        return self.b.lshr(self._raw(piece.byte), self.run.shifts[piece.byte % WORD])

    def _moved(self, p: Piece, to: int) -> ir.Value:
        if not self.run.wide:
            return super()._moved(p, to)
        word, by = self._raw(p.byte), self.run.turns[self.run.part(p.byte - p.byte % WORD)]
        turn = intrinsic(self.b.module, f"llvm.fshl.v{self.lanes}i32", self.type, [self.type] * 3)
        return self.b.call(turn, [word, word, by])

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index = byte // WORD
        if index not in self.loaded:
            self.loaded[index] = self.b.lshr(self._raw(byte), self.run.places[self.run.part(index * WORD)])
        return super()._word(byte, shift)

    def _raw(self, byte: int) -> ir.Value:
        """The word of a byte as it lies in memory."""
        index = byte // WORD
        if index not in self.raw:
            b = self.b
            at = b.add(b.add(self.run.bytes[self.run.part(index * WORD)], self.further), I64(index * WORD))
            self.raw[index] = b.load(offset(b, self.words, b.mul(at, I64(self.lanes))), align=4, typ=self.type)
        return self.raw[index]


def period(fmt: BlockFormat) -> int:
    """The runs of a large block after which bits lie as they did in its first ones."""
    return max(bits.run * bits.shared for bits, _ in fmt.parts) // RUN


class PhaseNumbers(_GroupNumbers):
    """The four elements of a word of a run, of one phase in all periods: bits are moved by numbers that the kernel
    knows, or lie as they should."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, periods: ir.Value, phase: int, word: ir.Value,
        lanes: int, factors: list[ir.Value],
    ) -> None:  # fmt: skip
        super().__init__(b, fmt, words, lanes, factors)
        self.periods, self.phase, self.word = periods, phase, word

    def element(self, i: int) -> ir.Value:
        return super().element(self.phase * RUN + i)

    def _lowest(self, piece: Piece) -> ir.Value:
        word, shift = self._word(piece.byte, piece.shift)
        return self.b.lshr(word, self._same(shift)) if shift else word

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index, inside = divmod(byte, WORD)
        if index not in self.loaded:
            b = self.b
            (bits,) = (x for x, _ in self.fmt.parts if 0 <= byte - x.offset < x.nbytes(self.fmt.elements))
            further = b.mul(self.periods, I64(bits.nbytes(period(self.fmt) * RUN) // WORD))
            at = b.add(b.add(further, self.word), I64(index))
            self.loaded[index] = b.load(offset(b, self.words, b.mul(at, I64(self.step))), align=4, typ=self.type)
        return self.loaded[index], 8 * inside + shift
