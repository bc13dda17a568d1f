"""Products of few rows with weights in blocks of few bits: a warp copies its columns' bytes of a chunk to shared
memory, and each lane then unpacks the numbers of a column one after the other, as links of its chain.

Words in shared memory lie an odd number apart from column to column, so that lanes read them from different banks.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.core.block_formats import BlockFormat
from volta.emit.block_numbers import WORD, BlockNumbers
from volta.emit.dot_args import Args, at
from volta.emit.loops import I16, I32, I64, if_else, if_then, minimum, offset
from volta.numba_cuda.codegen.threads import WARP, warp_barrier
from volta.xla_like.dot import CHUNK

UNPACKED_ROWS = 8
"""Rows up to which weights are unpacked by each product that reads them."""

_AT_ONCE = 16  # loads of a lane that are under way before the first is stored
_VALUES = 4  # of a row, read at once

Row = Callable[[ir.Value, int], list[list[ir.Value]]]
"""The rows' values at so many k from a given one on."""

Products = Callable[[list[ir.Value], list[ir.Value], list[ir.Value]], list[ir.Value]]
"""The chains with one more link."""


def chunk_bytes(fmt: BlockFormat) -> int:
    """What a chunk of one column takes."""
    return CHUNK // fmt.elements * fmt.nbytes


def pitch(fmt: BlockFormat) -> int:
    """Bytes from column to column in shared memory."""
    return (-(-chunk_bytes(fmt) // WORD) | 1) * WORD


def copy_chunk(
    b: ir.IRBuilder, fmt: BlockFormat, args: Args, matrix: ir.Value, to: ir.Value, lane: ir.Value, first: ir.Value,
    chunk: ir.Value, depth: ir.Value,
) -> None:  # fmt: skip
    """The bytes of a chunk of the warp's columns, from `first` on, neighbouring lanes reading neighbours."""
    kind = I32 if fmt.nbytes % WORD == 0 else I16
    size = kind.width // 8
    units = chunk_bytes(fmt) // size
    last = b.sub(b.mul(b.sdiv(depth, I64(fmt.elements)), I64(fmt.nbytes)), I64(size))
    source = at(b, matrix, (chunk, args.RHS_K))
    for begin in range(0, WARP * units, _AT_ONCE * WARP):
        found = []
        for place in range(begin, min(begin + _AT_ONCE * WARP, WARP * units), WARP):
            number = b.add(lane, I64(place))
            column = b.udiv(number, I64(units))
            byte = b.mul(b.sub(number, b.mul(column, I64(units))), I64(size))
            line = at(b, source, (minimum(b, b.add(first, column), b.sub(args.N, I64(1))), args.RHS_N))
            # of a chunk that is not full the rest is not looked at
            value = b.load(offset(b, line, minimum(b, byte, last)), typ=kind, align=size)
            found.append((value, offset(b, at(b, to, (column, I64(pitch(fmt)))), byte)))
        for value, place in found:
            b.store(value, place, align=size)


def chains(
    b: ir.IRBuilder, fmt: BlockFormat, column: ir.Value, depth: ir.Value, sums: list[ir.Value], rows: Row,
    products: Products,
) -> list[ir.Value]:  # fmt: skip
    """The chains of a chunk; a lane's column lies at `column` in shared memory."""
    for block in range(CHUNK // fmt.elements):
        first = block * fmt.elements

        def links(now: list[ir.Value], block: int = block, first: int = first) -> list[ir.Value]:
            numbers = BlockNumbers(b, fmt, column, block * fmt.nbytes, 1)
            for i in range(0, fmt.elements, _VALUES):
                for j, xs in enumerate(rows(I64(first + i), _VALUES)):
                    now = products(xs, [numbers.element(i + j)], now)
            return now

        if fmt.elements == CHUNK:
            return links(sums)
        with if_else(b, b.icmp_signed(">", depth, I64(first))) as branch:
            with branch.then():
                branch.give(*links(sums))
            with branch.otherwise():
                branch.give(*sums)
        sums = list(branch.results)
    return sums


def unpacked(
    b: ir.IRBuilder, fmt: BlockFormat, args: Args, matrix: ir.Value, mine: ir.Value, lane: ir.Value, first: ir.Value,
    start: ir.Value, depth: ir.Value, zeros: list[ir.Value], rows: Row, products: Products,
) -> list[ir.Value]:  # fmt: skip
    """The chains of the warp's columns over the chunk that begins at `start`; `mine` is its shared memory."""
    there = b.icmp_signed(">", depth, I64(0))  # a warp may have no chunk
    with if_then(b, there):
        copy_chunk(b, fmt, args, matrix, mine, lane, first, b.sdiv(start, I64(CHUNK)), depth)
    warp_barrier(b)
    with if_else(b, there) as branch:
        with branch.then():
            branch.give(*chains(b, fmt, at(b, mine, (lane, I64(pitch(fmt)))), depth, zeros, rows, products))
        with branch.otherwise():
            branch.give(*zeros)
    warp_barrier(b)  # before the next chunk's bytes take the place of these
    return list(branch.results)
