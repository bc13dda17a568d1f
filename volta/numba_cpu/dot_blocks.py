"""DOT with weights in blocks of few bits: a strip of `lanes` rows of them becomes float32 numbers, k-major.

A chunk's bytes of all rows are first turned so that a vector holds the same word (four bytes) of each row; from then on
a lane is a row, and an element's integer is a mask of a vector away. For several rows of the left operand numbers are
kept until all have been multiplied with them; for one `dot_block_row` makes them links of its chains at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.core.block_formats import LAYOUTS, BlockFormat
from volta.emit.block_numbers import WORD, BlockNumbers, word_step
from volta.emit.dot_args import at
from volta.emit.loops import I32, I64, for_range, if_then, loop, minimum, offset
from volta.numba_cpu.dot_tile import LINE, new_internal, prefetch
from volta.numba_cpu.dot_turn import turn
from volta.xla_like.dot import CHUNK

_TILE_STRIPS = 2
"""Strips of a register tile: what lies so many behind is read next, and asked for now. No processor would see it
coming, as rows are far apart."""


def unpack(module: ir.Module, name: str, lanes: int, kind: ir.FunctionType) -> ir.Function:
    """The function (internal to the module, added once) for a format, of the type of `dot_pack.pack`: it reads the
    blocks of `width` rows from `source` on, of `depth` numbers each, and writes vectors of `lanes` numbers. Of
    interleaved rows `source` is where the chunk of all rows begins, and the stride of k the first row's number."""
    symbol = f"volta_dot_unpack_{name}_{lanes}"
    found = module.globals.get(symbol)
    if found is not None:
        return found
    function, b = new_internal(module, symbol, kind)
    to, to_k, to_strip, source, source_k, source_row, width, depth = function.args
    fmt = LAYOUTS[name]
    blocks = CHUNK // fmt.elements
    vector = ir.VectorType(I32, lanes)
    if fmt.rows == 1:
        turned, copy = turn(module, lanes), b.alloca(vector, blocks * fmt.nbytes // WORD + 1)
    nbytes = b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes))
    with loop(b, 0, width, lanes, [to]) as strips:
        (strip,) = strips.values
        if fmt.rows == 1:
            words, rows = copy, at(b, source, (strips.index, source_row))
            with for_range(b, 0, lanes) as lane:
                behind = offset(b, rows, b.mul(source_row, b.add(lane, I64(_TILE_STRIPS * lanes))))
                with for_range(b, 0, nbytes, LINE) as line:
                    prefetch(b, offset(b, behind, line))
            b.call(turned, [words, rows, source_row, minimum(b, b.sub(width, strips.index), lanes), nbytes])
        else:
            words, behind = (
                strip_at(b, fmt, source, b.add(source_k, b.add(strips.index, I64(more))), source_row)
                for more in (0, _TILE_STRIPS * lanes)
            )
            with for_range(b, 0, fmt.chunk_bytes // WORD) as word:
                prefetch(b, at(b, behind, (word, I64(word_step(fmt, lanes)))))
        for block in range(blocks):
            with _there(b, depth, block * fmt.elements, alone=blocks == 1):
                numbers = BlockNumbers(b, fmt, words, block * fmt.nbytes, lanes)
                for element in range(fmt.elements):
                    place = offset(b, strip, b.mul(to_k, I64(block * fmt.elements + element)))
                    b.store(numbers.element(element), place, align=4)
        strips.advance(offset(b, strip, to_strip))
    b.ret_void()
    return function


def strip_at(b: ir.IRBuilder, fmt: BlockFormat, chunk: ir.Value, row: ir.Value, nbytes: ir.Value) -> ir.Value:
    """Where the words of a vector of interleaved rows begin, in the chunk of all rows; a row takes so many bytes."""
    inside = b.and_(row, I64(fmt.rows - 1))
    return at(b, chunk, (b.sub(row, inside), nbytes), (inside, I64(WORD)))


@contextmanager
def _there(b: ir.IRBuilder, depth: ir.Value, first: int, alone: bool) -> Iterator[None]:
    """Where a block is among those that are there; one alone always is."""
    if alone:
        yield
    else:
        with if_then(b, b.icmp_signed(">", depth, I64(first))):
            yield
