"""DOT of one row with weights in blocks of few bits: what decoding is made of, so the speed is to be that of memory.

A tile is `ROW_STRIPS` strips of rows of the weights: as many chains, so that a link need not wait for the one before
it. It goes chunk by chunk. While one is multiplied, the next one's bytes are turned, a few between the links, and those
of the next tile are asked for: so loads, shuffles and arithmetic are under way together. Where rows are interleaved in
memory nothing has to be turned: `dot_block_words`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.block_numbers import WORD, BlockNumbers, word_step
from volta.emit.dot_args import Args, ChunkAt, at, ceil_div
from volta.emit.loops import I1, I64, PTR, VOID, fma, for_range, if_else, if_then, loop, minimum, offset, splat
from volta.numba_cpu.dot_block_numbers import RUN, ByteNumbers, Factors, Run, WordNumbers
from volta.numba_cpu.dot_schedule import ROW_STRIPS, TileSpec, Tiling, strip_bytes
from volta.numba_cpu.dot_tile import LINE, lane_mask, masked_load, masked_store, new_internal, prefetch
from volta.numba_cpu.dot_tree import join
from volta.numba_cpu.dot_turn import addresses, last_half, part_bytes, turn, turned
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.dot import CHUNK

ROUND = CHUNK // ROW_STRIPS
"""Elements of k that are multiplied while one strip is turned."""

_GROUP = 16
"""Elements of the smallest group of a large block."""

ROW_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, PTR, PTR, I64, I64, I64, I1, PTR])
"""``row(c, x, words, spare, source, source_row, width, depth, first, ahead)``: x and c have neighbouring elements."""

FILL_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64])
"""``fill(words, source, source_row, width, depth)``"""


def build_dot_block_row(module: ir.Module, name: str, spec: TileSpec) -> None:
    """Add the kernel for products of one row with weights in blocks, K > 0, with the CPU kernel ABI. Its scratch memory
    has room for the words of two chunks of a tile: the one that is multiplied, and the next."""
    assert spec.blocks is not None and not spec.converts_out
    fmt, tile = spec.blocks, ROW_STRIPS * spec.lanes
    multiply, fill, join_tree = _row(module, fmt, spec.lanes), _fill(module, fmt, spec.lanes), join(module, spec)
    function, b = new_kernel(module, name)
    block, begin, end, scratch = function.args
    args, memory = Args(b, block, Tiling), b.inttoptr(scratch, PTR)
    lhs, rhs, out = (b.inttoptr(x, PTR) for x in (args.LHS, args.RHS, args.OUT))
    tree = [offset(b, memory, args.SCRATCH_TREE), I64(0), I64(tile * WORD)]
    chunks, last = ceil_div(b, args.K, CHUNK), minimum(b, args.N, b.mul(end, I64(tile)))

    def weights(j: ir.Value, chunk: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """A chunk of the tile from column j on: where it lies, its columns and its depth."""
        depth = minimum(b, b.sub(args.K, b.mul(chunk, I64(CHUNK))), CHUNK)
        return at(b, rhs, (chunk, args.RHS_K), (j, args.RHS_N)), minimum(b, b.sub(last, j), tile), depth

    first = b.mul(begin, I64(tile))
    with if_then(b, b.icmp_signed("<", first, last)):
        source, width, depth = weights(first, I64(0))
        with for_range(b, 0, b.mul(args.RHS_N, width), LINE) as line:  # nobody has asked for the first tile
            prefetch(b, offset(b, source, line))
        b.call(fill, [memory, source, args.RHS_N, width, depth])
        other = offset(b, memory, ROW_STRIPS * strip_bytes(fmt, spec.lanes))
        with loop(b, first, last, tile, [memory, other], some=True) as tiles:
            with loop(b, 0, chunks, init=tiles.values, some=True) as it:
                (words, spare), j, here = it.values, tiles.index, ChunkAt(b, it.index, chunks)
                behind, further = b.add(j, I64(tile)), b.add(it.index, I64(1))
                next_j, next_chunk = b.select(here.last, behind, j), b.select(here.last, I64(0), further)
                there = b.icmp_signed("<", next_j, last)
                source, columns, depth = weights(next_j, next_chunk)
                whole = b.and_(there, b.icmp_signed("==", b.mul(columns, depth), I64(tile * CHUNK)))
                # Where it is not whole, what is turned are some bytes that may be read, and nobody looks at that.
                turning = b.select(whole, source, words), b.select(whole, args.RHS_N, I64(0))
                _, own_columns, own_depth = weights(j, it.index)
                sums, x = at(b, out, (j, I64(WORD))), at(b, lhs, (it.index, I64(CHUNK * WORD)))
                ahead = at(b, rhs, (behind, args.RHS_N), (b.mul(further, I64(tile)), args.RHS_K))
                b.call(multiply, [sums, x, words, spare, *turning, own_columns, own_depth, here.begins, ahead])
                with if_then(b, b.and_(there, b.not_(whole))):
                    b.call(fill, [spare, source, args.RHS_N, columns, depth])
                with if_then(b, here.joins):
                    b.call(join_tree, [sums, I64(0), *tree, I64(1), own_columns, here.block, here.last])
                it.advance(spare, words)
            tiles.advance(*it.results)
    b.ret_void()


def _fill(module: ir.Module, fmt: BlockFormat, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) that turns a chunk of up to `ROW_STRIPS` strips."""
    turn_strip = turn(module, lanes)
    function, b = new_internal(module, f"volta_dot_blocks_fill_{fmt.name}_{lanes}", FILL_TYPE)
    words, source, row, width, depth = function.args
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    for strip in range(ROW_STRIPS):
        start = minimum(b, b.sub(width, I64(1)), strip * lanes)  # where there is no such strip, something is read
        to, source_strip = offset(b, words, strip * strip_bytes(fmt, lanes)), offset(b, source, b.mul(row, start))
        b.call(turn_strip, [to, source_strip, row, minimum(b, b.sub(width, start), lanes), nbytes])
    b.ret_void()
    return function


def _row(module: ir.Module, fmt: BlockFormat, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) for one row x and a chunk of up to `ROW_STRIPS` strips, whose
    words are there.

    It sets ``c`` to the chains over `depth` from +0.0 if `first`, else it adds these. Meanwhile `_Turning` is done.
    """
    function, b = new_internal(module, f"volta_dot_blocks_row_{fmt.name}_{lanes}", ROW_TYPE)
    c, x, words, spare, source, source_row, width, depth, first, ahead = function.args
    strips = [offset(b, words, strip * strip_bytes(fmt, lanes)) for strip in range(ROW_STRIPS)]
    meanwhile = _Turning(b, fmt, lanes, spare, source, source_row, ahead)
    chains = (_Large if fmt.elements == CHUNK else Small)(b, fmt, lanes, strips, x)
    rounds = b.udiv(depth, I64(ROUND))
    with loop(b, 0, rounds, init=chains.begin) as it:
        it.advance(*chains.links(it.index, it.values, meanwhile))
    with for_range(b, rounds, ROW_STRIPS) as strip:
        meanwhile.turn(strip, range(meanwhile.parts))
    add(b, lanes, chains.tail(rounds, depth, it.results), c, width, first)
    b.ret_void()
    return function


def add(b: ir.IRBuilder, lanes: int, totals: list[ir.Value], c: ir.Value, width: ir.Value, first: ir.Value) -> None:
    """Set ``c`` to the sums of strips if `first`, else add these; of `width` columns."""
    for strip, total in enumerate(totals):
        to = offset(b, c, strip * lanes * WORD)
        mask = lane_mask(b, lanes, b.sub(width, I64(strip * lanes)))
        before = masked_load(b, total.type, to, mask, WORD)
        masked_store(b, b.select(first, total, b.fadd(before, total)), to, mask, WORD)


class Meanwhile:
    """What is done between the links of a chunk: `lines` are asked for in each round, `parts` of a strip turned."""

    lines = parts = 0

    def turn(self, strip: ir.Value, parts: range, begin: ir.Value | None = None) -> None:
        """Some parts of a strip, behind part ``begin``; with the first one what is less than a word."""

    def ask(self, number: ir.Value, count: int) -> None:
        """For so many lines behind ``number`` times as many."""


class _Turning(Meanwhile):
    """What is done between the links of a chunk: a whole chunk of a whole tile, whose first byte is at `source`, is
    turned to `spare`, a strip in each round. As many bytes are asked for from `ahead` on, in neighbouring lines:
    processors follow such, and begin to read what comes next by themselves. They follow neither the rows of a tile,
    which are far apart, nor single lines. What they are asked for while they wait for others they forget: of a large
    block's rows a line is asked for once more, a chunk before it is turned."""

    def __init__(
        self, b: ir.IRBuilder, fmt: BlockFormat, lanes: int, spare: ir.Value, source: ir.Value, row: ir.Value,
        ahead: ir.Value,
    ) -> None:  # fmt: skip
        self.b, self.lanes, self.spare, self.source, self.row, self.ahead = b, lanes, spare, source, row, ahead
        self.strip_bytes, self.part = strip_bytes(fmt, lanes), part_bytes(lanes)
        self.nbytes = CHUNK // fmt.elements * fmt.nbytes
        self.whole = self.nbytes - self.nbytes % WORD
        self.parts = -(-self.whole // self.part)
        self.lines = -(-lanes * self.nbytes // LINE)

    def turn(self, strip: ir.Value, parts: range, begin: ir.Value | None = None) -> None:
        b = self.b
        for part in parts:
            first = I64(part * self.part) if begin is None else b.mul(b.add(begin, I64(part)), I64(self.part))
            first = minimum(b, first, self.whole - self.part)
            for i, word in enumerate(turned(b, self._rows(strip, first), self.part)):
                b.store(word, offset(b, self._to(strip, first), i * WORD * self.lanes), align=4)
        if begin is None and self.whole < self.nbytes:
            word = last_half(b, self._rows(strip, I64(self.nbytes - 4 * WORD)))
            b.store(word, self._to(strip, I64(self.whole)), align=4)

    def ask(self, number: ir.Value, count: int) -> None:
        b = self.b
        for i in range(count):
            line = b.add(b.mul(number, I64(count)), I64(i))
            prefetch(b, at(b, self.ahead, (line, I64(LINE))))

    def ask_again(self, number: ir.Value, count: int) -> None:
        """For a line of the next chunk but one of so many rows."""
        b = self.b
        for i in range(count):
            row = b.add(b.mul(number, I64(count)), I64(i))
            prefetch(b, offset(b, at(b, self.source, (row, self.row)), self.nbytes))

    def _rows(self, strip: ir.Value, first: ir.Value) -> list[ir.Value]:
        b = self.b
        source = at(b, offset(b, self.source, first), (strip, b.mul(self.row, I64(self.lanes))))
        return addresses(b, source, self.row, self.lanes)

    def _to(self, strip: ir.Value, first: ir.Value) -> ir.Value:
        return at(self.b, self.spare, (strip, I64(self.strip_bytes)), (first, I64(self.lanes)))


class Chains:
    """The links of all strips' chains, round by round."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, lanes: int, words: list[ir.Value], x: ir.Value) -> None:
        self.b, self.fmt, self.lanes, self.words, self.x = b, fmt, lanes, words, x
        self.begin = [ir.Constant(ir.VectorType(ir.FloatType(), lanes), None)] * len(words)

    def links(self, number: ir.Value, sums: list[ir.Value], meanwhile: Meanwhile) -> list[ir.Value]:
        """A round's, with what is done besides."""
        raise NotImplementedError

    def tail(self, rounds: ir.Value, depth: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Those that so many rounds leave."""
        return sums

    def _links(
        self, numbers: Sequence[BlockNumbers], first: ir.Value, which: range, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Those of some elements, where `first` is x's for element 0."""
        b = self.b
        for i in which:
            place = offset(b, self.x, b.mul(b.add(first, I64(i)), I64(4)))
            element = splat(b, b.load(place, align=4, typ=ir.FloatType()), self.lanes)
            sums = [fma(b, element, y.element(i), total) for y, total in zip(numbers, sums, strict=True)]
        return sums


class _Large(Chains):
    """Of large blocks: the factors of groups are made first and kept, and a loop goes word by word, as a processor sees
    as far ahead as that."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, lanes: int, words: list[ir.Value], x: ir.Value) -> None:
        super().__init__(b, fmt, lanes, words, x)
        self.tables = [Factors(b, fmt, strip, lanes) for strip in words]

    def links(self, number: ir.Value, sums: list[ir.Value], meanwhile: _Turning) -> list[ir.Value]:  # type: ignore[override]
        """Group by group of the smallest size: what parts of a strip they cannot share out comes first."""
        b, fmt, groups = self.b, self.fmt, ROUND // _GROUP
        each, lines = round(meanwhile.parts / groups), -(-meanwhile.lines // groups)
        left = max(0, meanwhile.parts - each * groups)
        meanwhile.turn(number, range(left))
        first = I64(left)
        with loop(b, 0, groups, init=sums, some=True) as it:
            here = b.add(b.mul(number, I64(groups)), it.index)
            meanwhile.ask(here, lines)
            meanwhile.ask_again(here, self.lanes // groups)
            meanwhile.turn(number, range(each), b.add(first, b.mul(it.index, I64(each))))
            element = b.mul(here, I64(_GROUP))
            run = Run(b, fmt, b.udiv(element, I64(RUN)), self.lanes)
            group = b.udiv(element, I64(fmt.elements // len(fmt.scale.groups)))
            factors = [table.of(group) for table in self.tables]
            it.advance(*self._group(element, run, factors, it.values))
        return it.results

    def _group(
        self, element: ir.Value, run: Run, factors: list[list[ir.Value]], sums: list[ir.Value]
    ) -> list[ir.Value]:
        b = self.b
        word = b.udiv(b.urem(element, I64(RUN)), I64(WORD))
        with loop(b, 0, _GROUP // WORD, init=sums, some=True) as it:
            pairs, here = zip(self.words, factors, strict=True), b.add(word, it.index)
            numbers = [WordNumbers(b, self.fmt, words, here, run, self.lanes, own) for words, own in pairs]
            first = b.add(element, b.mul(it.index, I64(WORD)))
            it.advance(*self._links(numbers, first, range(WORD), it.values))
        return it.results


class Small(Chains):
    """Of small blocks: a round is two of them, as these begin at a word."""

    def links(self, number: ir.Value, sums: list[ir.Value], meanwhile: Meanwhile) -> list[ir.Value]:
        for second in range(2):
            sums = self._block(number, second, sums, meanwhile)
        return sums

    def tail(self, rounds: ir.Value, depth: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        b = self.b
        with if_else(b, b.icmp_signed("<", b.mul(rounds, I64(ROUND)), depth)) as branch:
            with branch.then():
                branch.give(*self._block(rounds, 0, sums))
            with branch.otherwise():
                branch.give(*sums)
        return list(branch.results)

    def _block(
        self, number: ir.Value, second: int, sums: list[ir.Value], meanwhile: Meanwhile | None = None
    ) -> list[ir.Value]:
        b, fmt, words, step = self.b, self.fmt, RUN // WORD, word_step(self.fmt, self.lanes)
        places = [offset(b, strip, b.mul(number, I64(2 * fmt.nbytes // WORD * step))) for strip in self.words]
        numbers = [ByteNumbers(b, fmt, place, fmt.nbytes * second, self.lanes) for place in places]
        first = b.add(b.mul(number, I64(ROUND)), I64(second * RUN))
        for word in range(words):
            if meanwhile is not None:
                done, parts = second * words + word, meanwhile.parts
                meanwhile.turn(number, range(done * parts // (2 * words), (done + 1) * parts // (2 * words)))
                meanwhile.ask(b.add(b.mul(number, I64(2 * words)), I64(done)), -(-meanwhile.lines // (2 * words)))
            sums = self._links(numbers, first, range(word * WORD, (word + 1) * WORD), sums)
        return sums
