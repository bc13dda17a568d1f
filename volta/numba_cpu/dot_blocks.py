"""DOT with weights in blocks of few bits: a strip of `lanes` rows of them becomes float32 numbers, k-major.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and an element's integer is a mask of a vector away. For several rows of the left operand numbers are
kept until all have been multiplied with them; for one `dot_block_row` makes them links of its chains at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import FORMATS
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import I32, I64, PTR, VOID, for_range, if_else, if_then, loop, minimum, offset
from volta.numba_cpu.dot_tile import LINE, new_internal, prefetch
from volta.xla_like.dot import CHUNK

_QUAD = 4  # words
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
    turned = turn(module, lanes)
    function, b = new_internal(module, symbol, kind)
    to, to_k, to_strip, source, _, source_row, width, depth = function.args
    fmt = FORMATS[name]
    blocks = CHUNK // fmt.elements
    vector = ir.VectorType(I32, lanes)
    words = b.alloca(vector, blocks * fmt.nbytes // WORD + 1)
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    with loop(b, 0, width, lanes, [to, source]) as strips:
        strip, rows = strips.values
        with for_range(b, 0, lanes) as lane:
            behind = offset(b, rows, b.mul(source_row, b.add(lane, I64(_TILE_STRIPS * lanes))))
            with for_range(b, 0, nbytes, LINE) as at:
                prefetch(b, offset(b, behind, at))
        b.call(turned, [words, rows, source_row, minimum(b, b.sub(width, strips.index), lanes), nbytes])
        for block in range(blocks):
            with _there(b, depth, block * fmt.elements, alone=blocks == 1):
                numbers = BlockNumbers(b, fmt, words, block * fmt.nbytes, lanes)
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


def turn(module: ir.Module, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) that turns words: four of each row at a time, by their rows
    four apart in one vector.

    The last four may overlap those before. Lanes without a row repeat the last one, so that no memory is touched that
    holds no weights.
    """
    name = f"volta_dot_turn_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, _TURN_TYPE)
    words, source, row, width, nbytes = function.args
    with if_else(b, b.icmp_signed(">=", width, I64(lanes))) as branch:
        with branch.then():  # addresses that take few registers
            far, starts = [b.mul(row, I64(i)) for i in range(_QUAD)], range(0, lanes, _QUAD)
            bases = [offset(b, source, b.mul(row, I64(lane))) for lane in starts]
            _turn(b, words, nbytes, lambda at: [offset(b, offset(b, x, at), i) for x in bases for i in far], lanes)
            branch.give()
        with branch.otherwise():
            last = b.sub(width, I64(1))
            rows = [offset(b, source, b.mul(row, minimum(b, last, lane))) for lane in range(lanes)]
            _turn(b, words, nbytes, lambda at: [offset(b, x, at) for x in rows], lanes)
            branch.give()
    b.ret_void()
    return function


def _turn(
    b: ir.IRBuilder, words: ir.Value, nbytes: ir.Value, rows: Callable[[ir.Value], list[ir.Value]], lanes: int
) -> None:
    whole, quad = b.and_(nbytes, I64(-WORD)), I64(_QUAD * WORD)  # a block has more bytes than four words

    def lines(at: ir.Value) -> list[ir.Value]:
        quads = [b.load(x, align=1, typ=ir.VectorType(I32, _QUAD)) for x in rows(at)]
        return _turned_quads(b, [_joined(b, quads[i::_QUAD]) for i in range(_QUAD)])

    with for_range(b, 0, whole, _QUAD * WORD) as first:
        at = minimum(b, first, b.sub(whole, quad))
        for i, line in enumerate(lines(at)):
            b.store(line, offset(b, words, b.mul(b.add(at, I64(i * WORD)), I64(lanes))), align=4)
    with if_then(b, b.icmp_signed("<", whole, nbytes)):  # two bytes: the upper ones of the last word
        last = lines(b.sub(nbytes, quad))[-1]
        b.store(b.lshr(last, ir.Constant(last.type, [16] * lanes)), offset(b, words, b.mul(whole, I64(lanes))), align=4)


def _joined(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Vectors one behind the other."""
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        indices = ir.Constant(ir.VectorType(I32, count), list(range(count)))
        parts = [b.shuffle_vector(x, y, indices) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _turned_quads(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of each square of four vectors' four neighbouring lanes; processors have these shuffles."""
    lanes = rows[0].type.count

    def mixed(x: ir.Value, y: ir.Value, own: tuple[int, ...]) -> ir.Value:
        indices = [
            lane - lane % _QUAD + i % _QUAD + lanes * (i >= _QUAD) for lane in range(0, lanes, _QUAD) for i in own
        ]
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, lanes), indices))

    low, high, even, odd = (0, 4, 1, 5), (2, 6, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7)
    pairs = [(mixed(rows[0], rows[1], own), mixed(rows[2], rows[3], own)) for own in (low, high)]
    return [mixed(x, y, own) for x, y in pairs for own in (even, odd)]
