"""DOT with weights in blocks of few bits: a strip of `lanes` rows of them becomes float32 numbers, k-major.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and an element's integer is a mask of a vector away. For several rows of the left operand numbers are
kept until all have been multiplied with them; for one `dot_block_row` makes them links of its chains at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import FORMATS
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.loops import I32, I64, for_range, if_then, loop, minimum, offset
from volta.numba_cpu.dot_tile import LINE, new_internal, prefetch
from volta.numba_cpu.dot_turn import turn
from volta.xla_like.dot import CHUNK

_TILE_STRIPS = 2
"""Strips of a register tile: what lies so many behind is read next, and asked for now. No processor would see it
coming, as rows are far apart."""


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
