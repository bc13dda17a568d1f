"""The second launch of a product in parts: a thread adds the sums of one cell of a tile, chunk after chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.builder import is_float
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I32, I64, if_else, loop, minimum, offset
from volta.emit.pairs import join_block
from volta.numba_cuda.codegen.threads import block_index
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_position import TilePosition
from volta.numba_cuda.products.dot_split import block_slots, slot_at
from volta.xla_like.dot import CHUNK, CHUNKS

_AHEAD = 8  # slots that are read before they are added


def emit_join(nest: Nest) -> None:
    """A block has one cell of each thread of a tile; a cell is 16 bytes."""
    b, a, t = nest.b, nest.args, nest.tile
    cells = I32(nest.count // nest.cell)
    number = b.trunc(block_index(b), I32)
    split, cell = b.udiv(number, cells), b.urem(number, cells)
    chunks, per = b.trunc(ceil_div(b, a.K, CHUNK), I32), b.trunc(a.PER, I32)
    place = TilePosition(b, nest.spec, nest.variant, a, b.add(b.trunc(a.WHOLE, I32), split))
    nest.threads()
    nbytes = t.rows * t.cols * nest.size
    here = slot_at(b, a, split, chunks, per, I32(0), nbytes, nest.variant.long)
    here = offset(b, here, b.zext(b.mul(b.add(b.mul(cell, I32(t.threads)), nest.thread), I32(16)), I64))
    kind = ir.VectorType(nest.kind, nest.cell)
    add = b.fadd if is_float(nest.spec.accumulator) else b.add

    def at_slot(slot: ir.Value) -> ir.Value:
        return offset(b, here, b.mul(b.zext(slot, I64), I64(nbytes)))

    def read(slot: ir.Value) -> ir.Value:
        return b.load(at_slot(slot), typ=kind, align=16)

    def chain(total: ir.Value, first: ir.Value, slots: ir.Value) -> ir.Value:
        """A total with the slots behind its own, one after the other."""
        behind = b.add(first, I32(1))
        many = b.add(b.and_(b.sub(slots, behind), I32(-_AHEAD)), behind)
        for start, stop, step in ((behind, many, _AHEAD), (many, slots, 1)):
            with loop(b, start, stop, I32(step), [total]) as it:
                (so_far,) = it.values
                for found in [read(b.add(it.index, I32(i))) for i in range(step)]:
                    so_far = add(so_far, found)
                it.advance(so_far)
            (total,) = it.results
        return total

    if nest.variant.long:
        total = _blocks(nest, chunks, minimum(b, per, CHUNKS), at_slot, kind, chain)
    else:
        total = chain(read(I32(0)), I32(0), b.add(b.sub(chunks, per), I32(1)))
    place.writer().write(*place.at(*nest.cell_at(cell)), nest.values_of(total), nest.variant.wide)


def _blocks(
    nest: Nest, chunks: ir.Value, within: ir.Value, at_slot: Callable[[ir.Value], ir.Value], kind: ir.Type,
    chain: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
) -> ir.Value:  # fmt: skip
    """The totals of blocks of k, each the chain of its slots, joined in pairs. Some are read at once; those that wait
    for others do so in the first slots, which have been read by then."""
    b = nest.b
    blocks, each = b.udiv(b.add(chunks, I32(CHUNKS - 1)), I32(CHUNKS)), block_slots(b, within)
    rest = b.sub(b.sub(chunks, b.mul(b.sub(blocks, I32(1)), I32(CHUNKS))), within)
    rest = b.select(b.icmp_signed("<", rest, I32(0)), I32(0), rest)
    end = b.add(b.add(b.mul(b.sub(blocks, I32(1)), each), rest), I32(1))
    last = b.sub(blocks, I32(1))

    def waiting(level: ir.Value) -> list[ir.Value]:
        return [b.load(at_slot(level), typ=kind, align=16)]

    def leave(level: ir.Value, totals: Sequence[ir.Value]) -> None:
        b.store(totals[0], at_slot(level), align=16)

    with loop(b, I32(0), blocks, I32(_AHEAD), [ir.Constant(kind, None)]) as it:
        numbers = [b.add(it.index, I32(i)) for i in range(_AHEAD)]
        firsts = [b.mul(minimum(b, n, last), each) for n in numbers]
        totals = [b.load(at_slot(first), typ=kind, align=16) for first in firsts]
        (result,) = it.values
        for number, first, total in zip(numbers, firsts, totals, strict=True):
            with if_else(b, b.icmp_signed("<=", number, last)) as branch:
                with branch.then():
                    total = chain(total, first, minimum(b, b.add(first, each), end))
                    is_last = b.icmp_signed("==", number, last)
                    branch.give(*join_block(b, [total], number, is_last, waiting, leave, nest.add))
                with branch.otherwise():
                    branch.give(result)
            (result,) = branch.results
        it.advance(result)
    return it.results[0]
