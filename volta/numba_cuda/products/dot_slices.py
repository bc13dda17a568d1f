"""Products of few tiles: groups of a block's threads compute chunks of one tile side by side, and add them in order.

A group is what a block is elsewhere: it has stages of its own in shared memory and computes one chunk. When all of them
are done, every thread adds the groups' sums of some cells to the totals, in ascending order: the order of DOT. Then the
block goes on with as many chunks. All chunks are whole, so the groups meet at the same barriers. Rounds are parts of a
block of k, where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.dot_args import at
from volta.emit.loops import I1, I32, I64, if_else, if_then, loop, offset
from volta.emit.pairs import join_block
from volta.numba_cuda.codegen.ptx_ops import wait_copies
from volta.numba_cuda.codegen.threads import barrier, block_index, dynamic_shared
from volta.numba_cuda.products.dot_blocks import tile_levels
from volta.numba_cuda.products.dot_nest import Nest
from volta.numba_cuda.products.dot_position import TilePosition
from volta.numba_cuda.products.dot_tile import Tile
from volta.xla_like.dot import CHUNK, CHUNKS


@attrs.frozen
class Slice:
    """What of a tile a group computes, like a `Part`: one chunk."""

    first: ir.Value
    last: ir.Value
    later: ir.Value = I1(0)


def group_bytes(tile: Tile, stage: int, size: int) -> int:
    """Shared memory of a group: its stages, and then its sums, of `size` bytes each, in their place."""
    return max(tile.stages * stage, tile.rows * tile.cols * size)


def emit_slices(nest: Nest) -> None:
    """The kernel of a product whose blocks have `slices` groups of threads."""
    b, a, t, v = nest.b, nest.args, nest.tile, nest.variant
    shared = dynamic_shared(b.module, b)
    group, nest.thread = b.udiv(nest.thread, I32(t.threads)), b.urem(nest.thread, I32(t.threads))
    nest.place = place = TilePosition(b, nest.spec, v, a, b.trunc(block_index(b), I32))
    own = group_bytes(t, sum(layout.bytes for layout in nest.layouts()), nest.size)
    nest.shared = at(b, shared, (b.zext(group, I64), I64(own)))
    rounds = b.trunc(b.udiv(a.K, I64(CHUNK * v.slices)), I32)
    kind, vectors = ir.VectorType(nest.kind, nest.cell), nest.count // nest.cell
    mine = -(-vectors // v.slices)
    numbers = [b.add(group, I32(i * v.slices)) for i in range(mine)]  # of the cells that this thread adds
    start = offset(b, shared, b.zext(b.mul(nest.thread, I32(16)), I64))

    def sums_of(other: int, number: ir.Value) -> ir.Value:
        here = offset(b, start, b.zext(b.mul(number, I32(16 * t.threads)), I64))
        return b.load(offset(b, here, other * own), typ=kind, align=16)

    each = CHUNKS // v.slices  # rounds of a block of k
    levels = tile_levels(b, a, t, nest.size, b.trunc(block_index(b), I32), nest.thread) if v.long else None

    def begins(iteration: ir.Value) -> ir.Value:
        return b.icmp_signed("==", b.urem(iteration, I32(each)) if v.long else iteration, I32(0))

    def joined(iteration: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """The totals behind a round: where it ends a block of k, joined with those that wait."""
        assert levels is not None
        exist = [b.icmp_unsigned("<", n, I32(vectors)) for n in numbers]

        def read(level: ir.Value) -> list[ir.Value]:
            safe = [b.select(x, n, I32(0)) for x, n in zip(exist, numbers, strict=True)]
            return [levels.read(place, kind) for place in levels.places(level, safe)]

        def leave(level: ir.Value, sums: Sequence[ir.Value]) -> None:
            for x, place, vector in zip(exist, levels.places(level, numbers), sums, strict=True):
                with if_then(b, x):
                    levels.write(place, vector)

        last = b.icmp_signed("==", iteration, b.sub(rounds, I32(1)))
        ends = b.or_(last, b.icmp_signed("==", b.urem(iteration, I32(each)), I32(each - 1)))
        with if_else(b, ends) as branch:
            with branch.then():
                branch.give(*join_block(b, totals, b.udiv(iteration, I32(each)), last, read, leave, nest.add))
            with branch.otherwise():
                branch.give(*totals)
        return branch.results

    with loop(b, I32(0), rounds, I32(1), [ir.Constant(kind, None)] * mine) as it:
        chunk = b.add(b.mul(it.index, I32(v.slices)), group)
        nest.chunks_of(Slice(chunk, b.add(chunk, I32(1))))
        if nest.direct:
            wait_copies(b, 0)  # what is copied behind the last stage is zeros
        barrier(b)  # the sums take the place of the stages
        to = offset(b, nest.shared, b.zext(b.mul(nest.thread, I32(16)), I64))
        for i, vector in enumerate(nest.vectors_of(nest.sums)):
            b.store(vector, offset(b, to, i * t.threads * 16), align=16)
        barrier(b)
        totals = []
        for total, number in zip(it.values, numbers, strict=True):
            safe = b.select(b.icmp_unsigned("<", number, I32(vectors)), number, I32(0))
            found = [sums_of(other, safe) for other in range(v.slices)]
            total = b.select(begins(it.index), found[0], nest.add(total, found[0]))
            for more in found[1:]:
                total = nest.add(total, more)
            totals.append(total)
        barrier(b)
        if v.long:
            totals = joined(it.index, totals)
        it.advance(*totals)
    nest.threads()
    writer = place.writer()
    for total, number in zip(it.results, numbers, strict=True):
        with if_then(b, b.icmp_unsigned("<", number, I32(vectors))):
            writer.write(*place.at(*nest.cell_at(number)), nest.values_of(total), v.wide)
