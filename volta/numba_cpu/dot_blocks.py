"""Packing for DOT of weights in blocks of few bits: a strip of `lanes` rows of them, k-major, as float32 numbers.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and the bits of an element are a shift and a mask of a vector away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import FORMATS
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import I16, I32, I64, PTR, VOID, for_range, if_else, if_then, loop, minimum, offset
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.dot_tile import prefetch
from volta.xla_like.dot import CHUNK

_LINE = 64  # bytes
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
    words = b.alloca(vector, blocks * fmt.nbytes // WORD + 1)
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    with loop(b, 0, width, lanes, [to, source]) as strips:
        strip, rows = strips.values
        b.call(turn, [words, rows, source_row, minimum(b, b.sub(width, strips.index), lanes), nbytes])
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
    vector, square = ir.VectorType(I32, lanes), lanes * WORD
    last = b.sub(width, I64(1))
    rows = [offset(b, source, b.mul(row, minimum(b, last, lane))) for lane in range(lanes)]
    ahead = b.mul(row, I64(_TILE_STRIPS * lanes))
    with for_range(b, 0, nbytes, _LINE) as at:
        for x in rows:
            prefetch(b, offset(b, offset(b, x, ahead), at))
    whole = b.and_(nbytes, I64(-WORD))
    with if_else(b, b.icmp_signed(">=", whole, I64(square))) as branch:
        with branch.then():
            with for_range(b, 0, whole, square) as first:
                at = minimum(b, first, b.sub(whole, I64(square)))
                turned = transpose(b, [b.load(offset(b, x, at), align=1, typ=vector) for x in rows])
                for i, value in enumerate(turned):
                    b.store(value, offset(b, words, b.mul(b.add(at, I64(i * WORD)), I64(lanes))), align=4)
        with branch.otherwise():
            with for_range(b, 0, whole, WORD) as at:
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
        b.store(value if kind == I32 else b.zext(value, I32), offset(b, to, lane * WORD), align=4)
