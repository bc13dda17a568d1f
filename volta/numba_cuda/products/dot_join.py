"""The second launch of a product in parts: a thread adds the sums of one cell of a tile, chunk after chunk."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import is_float
from volta.emit.dot_args import ceil_div
from volta.emit.loops import I32, I64, loop, offset
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_place import Place
from volta.numba_cuda.products.dot_split import PER, WHOLE, slot_at
from volta.numba_cuda.target.threads import block_index
from volta.xla_like.dot_schedule import CHUNK

_AHEAD = 8  # slots that are read before they are added


def emit_join(nest: Nest) -> None:
    """A block has one cell of each thread of a tile; a cell is 16 bytes."""
    b, a, t = nest.b, nest.args, nest.tile
    cells = I32(nest.count // nest.cell)
    number = b.trunc(block_index(b), I32)
    split, cell = b.udiv(number, cells), b.urem(number, cells)
    chunks, per = b.trunc(ceil_div(b, a.K, CHUNK), I32), b.trunc(a.values[PER], I32)
    place = Place(b, nest.spec, nest.variant, a, b.add(b.trunc(a.values[WHOLE], I32), split))
    nest.threads()
    nbytes = t.rows * t.cols * nest.size
    here = slot_at(b, a, split, chunks, per, I32(0), nbytes)
    here = offset(b, here, b.zext(b.mul(b.add(b.mul(cell, I32(t.threads)), nest.thread), I32(16)), I64))
    kind = ir.VectorType(nest.kind, nest.cell)

    def read(slot: ir.Value) -> ir.Value:
        return b.load(offset(b, here, b.mul(b.zext(slot, I64), I64(nbytes))), typ=kind, align=16)

    add = b.fadd if is_float(nest.spec.accumulator) else b.add
    slots = b.add(b.sub(chunks, per), I32(1))
    many = b.add(b.and_(b.sub(slots, I32(1)), I32(-_AHEAD)), I32(1))
    total = read(I32(0))
    for start, stop, step in ((I32(1), many, _AHEAD), (many, slots, 1)):
        with loop(b, start, stop, I32(step), [total]) as it:
            (so_far,) = it.values
            for found in [read(b.add(it.index, I32(i))) for i in range(step)]:
                so_far = add(so_far, found)
            it.advance(so_far)
        (total,) = it.results
    place.writer().write(*place.at(*nest.cell_at(cell)), nest.values_of(total), nest.variant.wide)
