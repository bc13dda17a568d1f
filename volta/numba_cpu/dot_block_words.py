"""DOT of one row with weights in blocks whose rows are interleaved in memory: vectors of words are read where they lie.

A tile is `ROW_STRIPS` strips, chunk by chunk, as in `dot_block_row`. Its words are neighbours in memory, chunk behind
chunk and tile behind tile; all that is done besides is to ask for those of a later chunk.
"""

from __future__ import annotations

from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.block_numbers import WORD, word_step
from volta.emit.dot_args import Args, ChunkAt, at, ceil_div
from volta.emit.loops import I1, I64, PTR, VOID, if_then, loop, minimum, offset
from volta.numba_cpu.dot_block_numbers import RUN, Factors, PhaseNumbers, period
from volta.numba_cpu.dot_block_row import Chains, Meanwhile, Small, add
from volta.numba_cpu.dot_blocks import strip_at
from volta.numba_cpu.dot_schedule import ROW_STRIPS, TileSpec, Tiling
from volta.numba_cpu.dot_tile import LINE, new_internal, prefetch
from volta.numba_cpu.dot_tree import join
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.dot import CHUNK

_AHEAD = 2
"""Chunks: with one, a large product in Q6_K took a quarter longer."""

_CHUNK_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I1])
"""``chunk(c, x, words, width, first)``"""


def build_dot_block_words(module: ir.Module, name: str, spec: TileSpec) -> None:
    """Add the kernel for products of one row with interleaved weights, whole tiles of them, with the CPU kernel ABI."""
    assert spec.blocks is not None and spec.blocks.rows > 1
    fmt, tile = spec.blocks, ROW_STRIPS * spec.lanes
    assert fmt.rows % tile == 0
    multiply, join_tree = _chunk(module, fmt, spec.lanes), join(module, spec)
    function, b = new_kernel(module, name)
    block, begin, end, scratch = function.args
    args, memory = Args(b, block, Tiling), b.inttoptr(scratch, PTR)
    lhs, rhs, out = (b.inttoptr(x, PTR) for x in (args.LHS, args.RHS, args.OUT))
    tree = [offset(b, memory, args.SCRATCH_TREE), I64(0), I64(tile * WORD)]
    chunks, last = ceil_div(b, args.K, CHUNK), minimum(b, args.N, b.mul(end, I64(tile)))
    with loop(b, b.mul(begin, I64(tile)), last, tile) as tiles:
        sums, words = at(b, out, (tiles.index, I64(WORD))), strip_at(b, fmt, rhs, tiles.index, args.RHS_N)
        with loop(b, 0, chunks, some=True) as it:
            here, x = ChunkAt(b, it.index, chunks), at(b, lhs, (it.index, I64(CHUNK * WORD)))
            b.call(multiply, [sums, x, at(b, words, (it.index, args.RHS_K)), I64(tile), here.begins])
            with if_then(b, here.joins):
                b.call(join_tree, [sums, I64(0), *tree, I64(1), I64(tile), here.block, here.last])
    b.ret_void()


def _chunk(module: ir.Module, fmt: BlockFormat, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) for one row x and a chunk of a tile, from its first word on.

    It sets ``c`` to the chains from +0.0 if `first`, else it adds these.
    """
    function, b = new_internal(module, f"volta_dot_blocks_words_{fmt.name}_{lanes}", _CHUNK_TYPE)
    c, x, words, width, first = function.args
    strips = [offset(b, words, strip * lanes * WORD) for strip in range(ROW_STRIPS)]
    asking = _Asking(b, fmt, lanes, words)
    if fmt.elements == CHUNK:
        totals = _Phases(b, fmt, lanes, strips, x).all(asking)
    else:
        blocks = Small(b, fmt, lanes, strips, x)
        with loop(b, 0, ROW_STRIPS, init=blocks.begin, some=True) as it:
            it.advance(*blocks.links(it.index, it.values, asking))
        totals = list(it.results)
    add(b, lanes, totals, c, width, first)
    b.ret_void()
    return function


class _Asking(Meanwhile):
    """The same words of a chunk further behind are asked for, which are those of the next tile behind the last chunk.
    They are neighbours in memory, but no processor follows a stream from page to page: without that a large product
    took twice as long."""

    def __init__(self, b: ir.IRBuilder, fmt: BlockFormat, lanes: int, words: ir.Value) -> None:
        self.b, self.step = b, word_step(fmt, lanes)
        self.across = -(-ROW_STRIPS * lanes * WORD // LINE)
        self.lines = -(-fmt.chunk_bytes // WORD * self.across // ROW_STRIPS)
        self.next = offset(b, words, _AHEAD * fmt.chunk_bytes * fmt.rows)

    def ask(self, number: ir.Value, count: int) -> None:
        b = self.b
        for i in range(count):
            line = b.add(b.mul(number, I64(count)), I64(i))
            word, inside = b.udiv(line, I64(self.across)), b.urem(line, I64(self.across))
            prefetch(b, at(b, self.next, (word, I64(self.step)), (inside, I64(LINE))))


class _Phases(Chains):
    """Of large blocks, each a whole chunk: the factors of groups are made first and kept, and a loop goes word by word
    through each group. Runs whose bits lie alike share such a loop: with all in one, as where strips are turned
    meanwhile, a token took 7% longer."""

    def all(self, asking: _Asking) -> list[ir.Value]:
        b, fmt = self.b, self.fmt
        tables = [Factors(b, fmt, strip, self.lanes) for strip in self.words]
        size, elements = fmt.elements // len(fmt.scale.groups), period(fmt) * RUN
        lines = -(-asking.lines * ROW_STRIPS // (CHUNK // size))
        with loop(b, 0, CHUNK // elements, init=self.begin, some=True) as it:
            sums = it.values
            for element in range(0, elements, size):
                group = b.add(b.mul(it.index, I64(elements // size)), I64(element // size))
                asking.ask(group, lines)
                sums = self._group(it.index, group, element, size, [t.of(group) for t in tables], sums)
            it.advance(*sums)
        return list(it.results)

    def _group(
        self, periods: ir.Value, group: ir.Value, element: int, size: int, factors: list[list[ir.Value]],
        sums: list[ir.Value],
    ) -> list[ir.Value]:  # fmt: skip
        """The group at `element` of a period, of so many elements."""
        b = self.b
        phase, inside = divmod(element, RUN)
        with loop(b, 0, size // WORD, init=sums, some=True) as it:
            word, pairs = b.add(it.index, I64(inside // WORD)), zip(self.words, factors, strict=True)
            numbers = [PhaseNumbers(b, self.fmt, w, periods, phase, word, self.lanes, own) for w, own in pairs]
            first = b.add(b.mul(group, I64(size)), b.mul(it.index, I64(WORD)))
            it.advance(*self._links(numbers, first, range(WORD), it.values))
        return list(it.results)
