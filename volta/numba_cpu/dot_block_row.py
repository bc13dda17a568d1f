"""DOT of one row with weights in blocks of few bits: what decoding is made of, so the speed is to be that of memory.

A tile is `ROW_STRIPS` strips of rows of the weights: as many chains, so that a link need not wait for the one before
it. A chunk's factors of groups are made first and kept; then come runs of 32 elements, whose integers lie alike in all
runs of a block but for where they begin and how far to the left they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.core.block_formats import FORMATS, Bits, BlockFormat, Halves, Pieces
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import I1, I8, I32, I64, PTR, VOID, as_i64, fma, if_else, loop, minimum, offset, splat
from volta.numba_cpu.dot_blocks import turn
from volta.numba_cpu.dot_schedule import ROW_STRIPS
from volta.numba_cpu.dot_tile import LINE, lane_mask, masked_load, masked_store, new_internal, prefetch
from volta.xla_like.dot import CHUNK

RUN = 32
"""Elements whose bits have one place in their bytes; a small block."""

_TOP = 8 * (WORD - 1)
"""How far to the left a word's highest byte is: integers there have their sign."""

ROW_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64, I1, PTR])
"""``row(c, x, source, source_row, width, depth, first, ahead)``: x and c have neighbouring elements."""


def row(module: ir.Module, name: str, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) for one row x and a chunk of up to `ROW_STRIPS` strips.

    It sets ``c`` to the chains over `depth` from +0.0 if `first`, else it adds these. As many bytes as the tile's chunk
    has are asked for from ``ahead`` on, some neighbouring lines with each run: processors follow such, and begin to
    read what comes next by themselves. They follow neither the rows of a tile, which are far apart, nor single lines.
    """
    symbol = f"volta_dot_blocks_row_{name}_{lanes}"
    found = module.globals.get(symbol)
    if found is not None:
        return found
    turned = turn(module, lanes)
    function, b = new_internal(module, symbol, ROW_TYPE)
    c, x, source, source_row, width, depth, first, ahead = function.args
    fmt, strips = FORMATS[name], range(ROW_STRIPS)
    vector, chunk_bytes = ir.VectorType(ir.FloatType(), lanes), CHUNK // fmt.elements * fmt.nbytes
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    words = [b.alloca(ir.VectorType(I32, lanes), chunk_bytes // WORD + 1) for _ in strips]
    for strip in strips:
        start = minimum(b, b.sub(width, I64(1)), strip * lanes)  # where there is no such strip, something is read
        rows = offset(b, source, b.mul(source_row, start))
        b.call(turned, [words[strip], rows, source_row, minimum(b, b.sub(width, start), lanes), nbytes])
    chains = _Chains(b, fmt, lanes, words, x, ahead)
    zero = [ir.Constant(vector, None)] * ROW_STRIPS
    tables = [_Factors(b, fmt, at, lanes) for at in words] if fmt.elements == CHUNK else []
    each = 1 if tables else 2  # two small blocks begin at a word
    with loop(b, 0, b.sdiv(depth, I64(RUN)), each, zero) as it:
        if tables:
            it.advance(*chains.of_run(it.index, tables, it.values))
        else:
            it.advance(*chains.of_blocks(it.index, depth, it.values))
    for strip, total in enumerate(it.results):
        to = offset(b, c, strip * lanes * 4)
        mask = lane_mask(b, lanes, b.sub(width, I64(strip * lanes)))
        before = masked_load(b, vector, to, mask, 4)
        masked_store(b, b.select(first, total, b.fadd(before, total)), to, mask, 4)
    b.ret_void()
    return function


class _Chains:
    """The links of all strips' chains."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, lanes: int, words: list[ir.Value], x: ir.Value, ahead: ir.Value
    ) -> None:
        self.b, self.fmt, self.lanes, self.words, self.x, self.ahead = b, fmt, lanes, words, x, ahead

    def _ask(self, run: ir.Value, part: int, parts: int) -> None:
        """For one of so many parts of what a run is to ask for."""
        share = ROW_STRIPS * self.lanes * self.fmt.nbytes * RUN // self.fmt.elements
        lines = -(-share // LINE)
        for line in range(part * lines // parts, (part + 1) * lines // parts):
            prefetch(self.b, offset(self.b, self.ahead, self.b.add(self.b.mul(run, I64(share)), I64(line * LINE))))

    def of_run(self, run: ir.Value, tables: list[_Factors], sums: list[ir.Value]) -> list[ir.Value]:
        """One run of a large block, a word at a time: a processor sees as far ahead as that."""
        b, fmt = self.b, self.fmt
        places = [_place(b, bits, run, self.lanes) for bits, _ in fmt.parts]
        groups = len(fmt.scale.groups) * RUN // fmt.elements
        each = RUN // groups // WORD
        for group in range(groups):
            self._ask(run, group, groups)
            factors = [table.of(b.add(b.mul(run, I64(groups)), I64(group))) for table in tables]
            with loop(b, group * each, (group + 1) * each, init=sums) as it:
                pairs = zip(self.words, factors, strict=True)
                numbers = [WordNumbers(b, fmt, words, it.index, places, self.lanes, own) for words, own in pairs]
                first = b.add(b.mul(run, I64(RUN)), b.mul(it.index, I64(WORD)))
                it.advance(*self._links(numbers, first, WORD, it.values))
            sums = it.results
        return sums

    def of_blocks(self, run: ir.Value, depth: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Two small blocks, or the last one."""
        b, fmt = self.b, self.fmt
        places = [offset(b, words, b.mul(run, I64(fmt.nbytes * self.lanes))) for words in self.words]

        def block(second: bool, sums: list[ir.Value]) -> list[ir.Value]:
            own = b.add(run, I64(int(second)))
            self._ask(own, 0, 1)
            numbers = [ByteNumbers(b, fmt, place, fmt.nbytes * second, self.lanes) for place in places]
            return self._links(numbers, b.mul(own, I64(RUN)), RUN, sums)

        sums = block(False, sums)
        with if_else(b, b.icmp_signed("<", b.mul(b.add(run, I64(1)), I64(RUN)), depth)) as branch:
            with branch.then():
                branch.give(*block(True, sums))
            with branch.otherwise():
                branch.give(*sums)
        return list(branch.results)

    def _links(
        self, numbers: Sequence[BlockNumbers], first: ir.Value, count: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Those of the first elements, with those of x from element `first` on."""
        b = self.b
        for i in range(count):
            place = offset(b, self.x, b.mul(b.add(first, I64(i)), I64(4)))
            element = splat(b, b.load(place, align=4, typ=ir.FloatType()), self.lanes)
            sums = [fma(b, element, y.element(i), total) for y, total in zip(numbers, sums, strict=True)]
        return sums


class ByteNumbers(BlockNumbers):
    """As `BlockNumbers`, but the integers of a word's four elements are joined at once, each in its byte; a shuffle
    puts one where its lane's word is that integer, or 2^24 times as much if it may be negative."""

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
            found = self.joined[key] = self._bytes(pieces, bias)
        size, at, negative = found.type.count, places[0][1], bool(bias or signed)
        none = [size] * (WORD - 1)
        lanes = [[*none, first + at] if negative else [first + at, *none] for first in range(0, size, WORD)]
        indices = ir.Constant(ir.VectorType(I32, size), [i for lane in lanes for i in lane])
        moved = b.shuffle_vector(found, ir.Constant(found.type, None), indices)
        number = b.sitofp(b.bitcast(moved, self.type), self.builder.widen(ir.FloatType()))
        return number, _TOP * negative

    def group_factor(self, halves: Halves, group: int) -> ir.Value:
        """A factor of a group: a scale is for an element's integer where a shuffle has brought it. Powers of two are
        in the block's number, once for all groups."""
        integer, left = self._integer(halves.groups[group], halves.bias, halves.signed)
        left += _TOP if halves is self.fmt.scale and (self.fmt.bias or self.fmt.signed) else 0
        if (halves.at, left) not in self.smaller:
            self.smaller[halves.at, left] = self._smaller(self.half(halves), left)
        return self.b.fmul(self.smaller[halves.at, left], integer)

    def _bytes(self, pieces: Pieces, bias: int) -> ir.Value:
        b, total = self.b, None
        for p in pieces:
            word, inside = self._word(p.byte, 0)
            left = p.left - p.shift
            word = b.shl(word, self._same(left)) if left > 0 else b.lshr(word, self._same(-left)) if left else word
            mask = ((1 << p.width) - 1) << p.left
            word = word if p.width == 8 else b.and_(word, self._same(mask * 0x01010101))
            total = word if total is None else b.or_(total, word)
        kind = ir.VectorType(I8, WORD * self.lanes)
        found = b.bitcast(total, kind)
        return b.sub(found, ir.Constant(kind, [bias] * kind.count)) if bias else found


class _Factors:
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


def _place(b: ir.IRBuilder, bits: Bits, run: ir.Value, lanes: int) -> tuple[ir.Value, ir.Value]:
    """How many bytes a run's words of some bits are behind those of the first run, and how far to the left they are in
    these; see `Bits.place`."""
    element = b.mul(run, I64(RUN))
    runs = b.udiv(element, I64(bits.run))
    byte = b.add(b.mul(b.udiv(runs, I64(bits.shared)), I64(bits.run)), b.urem(element, I64(bits.run)))
    shift = b.mul(b.urem(runs, I64(bits.shared)), I64(bits.width))
    return byte, splat(b, b.trunc(shift, I32), lanes)


class WordNumbers(ByteNumbers):
    """The four elements of a word of a run of a large block: the same instructions serve for all."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, words: ir.Value, word: ir.Value,
        places: list[tuple[ir.Value, ir.Value]], lanes: int, factors: list[ir.Value],
    ) -> None:  # fmt: skip
        super().__init__(b, fmt, words, 0, lanes)
        self.places, self.factors = places, factors
        self.further = b.mul(word, I64(WORD))

    def _scale(self, i: int, left: int) -> ir.Value:
        return self.factors[0]

    def factor(self, halves: Halves, i: int) -> ir.Value:
        return self.factors[1]

    def _word(self, byte: int, shift: int) -> tuple[ir.Value, int]:
        index = byte // WORD
        if index not in self.loaded:
            b = self.b
            (part,) = (i for i, (bits, _) in enumerate(self.fmt.parts) if bits.offset <= byte < bits.offset + WORD)
            far, left = self.places[part]
            at = b.add(b.add(far, self.further), I64(index * WORD))
            word = b.load(offset(b, self.words, b.mul(at, I64(self.lanes))), align=4, typ=self.type)
            self.loaded[index] = b.lshr(word, left)
        return super()._word(byte, shift)
