"""DOT with weights in blocks of few bits: a strip of `lanes` rows of them becomes float32 numbers, k-major.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and an element's integer is a mask of a vector away. For several rows of the left operand numbers are
kept until all have been multiplied with them; for one they are links of its chains as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import FORMATS
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import (
    I1,
    I16,
    I32,
    I64,
    PTR,
    VOID,
    fma,
    for_range,
    if_else,
    if_then,
    loop,
    minimum,
    offset,
    splat,
)
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.dot_tile import lane_mask, masked_load, masked_store, new_internal, prefetch
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
    function, b = new_internal(module, symbol, kind)
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


ROW_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64, I1])
"""``row(c, x, source, source_row, width, depth, first)``: x and c have neighbouring elements."""


def row(module: ir.Module, name: str, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) for one row x and a chunk of up to two strips of a format.

    It sets ``c`` to the chains over `depth` from +0.0 if `first`, else it adds these. Two strips go at once, so that a
    link need not wait for the one before it.
    """
    symbol = f"volta_dot_blocks_row_{name}_{lanes}"
    found = module.globals.get(symbol)
    if found is not None:
        return found
    turn = _turn(module, lanes)
    function, b = new_internal(module, symbol, ROW_TYPE)
    c, x, source, source_row, width, depth, first = function.args
    fmt, strips = FORMATS[name], range(_TILE_STRIPS)
    blocks = CHUNK // fmt.elements
    words, vector = ir.VectorType(I32, lanes), ir.VectorType(ir.FloatType(), lanes)
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    turned = [b.alloca(words, blocks * fmt.nbytes // WORD + 1) for _ in strips]
    for strip in strips:
        start = minimum(b, b.sub(width, I64(1)), strip * lanes)  # where there is no second one, something is read
        rows = offset(b, source, b.mul(source_row, start))
        b.call(turn, [turned[strip], rows, source_row, minimum(b, b.sub(width, start), lanes), nbytes])
    sums = [ir.Constant(vector, None)] * len(strips)
    for block in range(blocks):
        with if_else(b, b.icmp_signed(">", depth, I64(block * fmt.elements))) as branch:
            with branch.then():
                numbers = [BlockNumbers(b, fmt, at, block * fmt.nbytes, lanes) for at in turned]
                now = sums
                for i in range(fmt.elements):
                    place = offset(b, x, 4 * (block * fmt.elements + i))
                    element = splat(b, b.load(place, align=4, typ=ir.FloatType()), lanes)
                    now = [fma(b, element, y.element(i), total) for y, total in zip(numbers, now, strict=True)]
                branch.give(*now)
            with branch.otherwise():
                branch.give(*sums)
        sums = list(branch.results)
    for strip, total in enumerate(sums):
        to = offset(b, c, strip * lanes * 4)
        mask = lane_mask(b, lanes, b.sub(width, I64(strip * lanes)))
        before = masked_load(b, vector, to, mask, 4)
        masked_store(b, b.select(first, total, b.fadd(before, total)), to, mask, 4)
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
    function, b = new_internal(module, name, _TURN_TYPE)
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
