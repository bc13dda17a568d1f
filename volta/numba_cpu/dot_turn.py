"""Bytes of rows become vectors of words: a vector holds the same word (four bytes) of each row, so a lane is a row.

Squares of four rows' four words are turned in registers, by shuffles that processors have.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from volta.emit.block_numbers import WORD
from volta.emit.loops import I32, I64, PTR, VOID, for_range, if_else, if_then, minimum, offset
from volta.numba_cpu.dot_tile import new_internal

_QUAD = 4  # words

_TURN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64])
"""``turn(words, source, source_row, width, nbytes)``: the words of `width` rows, whose bytes are an even number."""


def turn(module: ir.Module, lanes: int) -> ir.Function:
    """The function (internal to the module, added once) that turns words, four of each row at a time.

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
        with branch.then():
            rows = addresses(b, source, row, lanes)
            _turn(b, words, nbytes, lambda at: [offset(b, x, at) for x in rows], lanes)
            branch.give()
        with branch.otherwise():
            last = b.sub(width, I64(1))
            rows = [offset(b, source, b.mul(row, minimum(b, last, lane))) for lane in range(lanes)]
            _turn(b, words, nbytes, lambda at: [offset(b, x, at) for x in rows], lanes)
            branch.give()
    b.ret_void()
    return function


def addresses(b: ir.IRBuilder, source: ir.Value, row: ir.Value, lanes: int) -> list[ir.Value]:
    """Where so many rows begin, from few registers: each fourth row, and three distances."""
    far, starts = [b.mul(row, I64(i)) for i in range(_QUAD)], range(0, lanes, _QUAD)
    bases = [offset(b, source, b.mul(row, I64(lane))) for lane in starts]
    return [offset(b, x, i) for x in bases for i in far]


def _turn(
    b: ir.IRBuilder, words: ir.Value, nbytes: ir.Value, rows: Callable[[ir.Value], list[ir.Value]], lanes: int
) -> None:
    whole, quad = b.and_(nbytes, I64(-WORD)), I64(_QUAD * WORD)  # a block has more bytes than four words
    with for_range(b, 0, whole, _QUAD * WORD) as first:
        at = minimum(b, first, b.sub(whole, quad))
        for i, line in enumerate(turned(b, rows(at), _QUAD * WORD)):
            b.store(line, offset(b, words, b.mul(b.add(at, I64(i * WORD)), I64(lanes))), align=4)
    with if_then(b, b.icmp_signed("<", whole, nbytes)):
        b.store(last_half(b, rows(b.sub(nbytes, quad))), offset(b, words, b.mul(whole, I64(lanes))), align=4)


def last_half(b: ir.IRBuilder, rows: list[ir.Value]) -> ir.Value:
    """The last two bytes of rows as words, of whose last 16 these are the addresses: upper halves."""
    last = turned(b, rows, _QUAD * WORD)[-1]
    return b.lshr(last, ir.Constant(last.type, [16] * last.type.count))


def part_bytes(lanes: int) -> int:
    """Of each row, what is best turned at once: halves of vectors where these have 512 bits, as a shuffle is dearer for
    a quarter, and 128 bits otherwise."""
    return max(_QUAD * WORD, lanes * WORD // 2)


def turned(b: ir.IRBuilder, rows: list[ir.Value], nbytes: int) -> list[ir.Value]:
    """The words of so many bytes (16, or `part_bytes`) from each of the addresses on."""
    lanes, quads = len(rows), nbytes // (_QUAD * WORD)
    groups = []
    for first in range(0, lanes, lanes // quads):
        own = rows[first : first + lanes // quads]
        loads = [b.load(x, align=1, typ=ir.VectorType(I32, nbytes // WORD)) for x in own]
        groups.append(_turned_quads(b, [_joined(b, loads[i::_QUAD]) for i in range(_QUAD)]))
    if len(groups) == 1:
        return groups[0]
    return [_every_other(b, x, y, half) for half in range(2) for x, y in zip(*groups, strict=True)]


def _every_other(b: ir.IRBuilder, x: ir.Value, y: ir.Value, first: int) -> ir.Value:
    """The even quads of two vectors, or the odd ones."""
    lanes = [i for i in range(2 * x.type.count) if i // _QUAD % 2 == first]
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


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
