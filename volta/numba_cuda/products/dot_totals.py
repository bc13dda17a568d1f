"""A thread's totals where they wait: in its own places in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import is_float
from volta.emit.loops import I1, I32, I64, if_else, loop, offset
from volta.numba_cuda.products.dot_position import TilePosition
from volta.numba_cuda.products.dot_tile import DotVariant, Tile
from volta.xla_like.dot import DotSpec


class Totals:
    """What a `Nest` has besides the product; slots are vectors of 16 bytes, behind the stages."""

    b: ir.IRBuilder
    spec: DotSpec
    tile: Tile
    variant: DotVariant
    size: int
    kind: ir.Type
    shared: ir.Value
    thread: ir.Value
    stage: int
    place: TilePosition

    count: int
    """A thread's sums."""

    cell: int
    """Neighbours in a row among them."""

    def cell_at(self, number: int | ir.Value) -> tuple[ir.Value, ir.Value]:
        """The place (row, column) in the tile of a thread's cell: its next `cell` sums, neighbours in a row."""
        raise NotImplementedError

    def slots(self) -> list[ir.Value]:
        b, t = self.b, self.tile
        start = offset(b, self.shared, b.zext(b.mul(self.thread, I32(16)), I64))
        first = self.stage * t.stages
        return [offset(b, start, first + i * t.threads * 16) for i in range(self.count * self.size // 16)]

    def vectors_of(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Values as vectors of 16 bytes, whose elements `values_of` puts in order again."""
        b, wide, out = self.b, 16 // self.size, []
        for first in range(0, len(values), wide):
            vector: ir.Value = ir.Constant(ir.VectorType(self.kind, wide), ir.Undefined)
            for i in range(wide):
                vector = b.insert_element(vector, values[first + i], I32(self._lane(i)))
            out.append(vector)
        return out

    def values_of(self, vector: ir.Value) -> list[ir.Value]:
        """The values in a vector of sums."""
        return [self.b.extract_element(vector, I32(self._lane(i))) for i in range(16 // self.size)]

    def _lane(self, i: int) -> int:
        """Where value `i` of a vector lies in it: in the place of its neighbour.

        A vector is stored from registers in a row, so that is where the sums are, and the even ones are in odd
        registers. The right operand's values, loaded as vectors too, are in order. So a sum and what is added to it
        come from different banks of registers, which give one operand at a time (seen: products up to 10% faster).
        """
        return i ^ 1 if self.size == 4 else i

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fadd(x, y) if is_float(self.spec.accumulator) else self.b.add(x, y)

    def absorb(self, sums: Sequence[ir.Value], first: ir.Value) -> None:
        """Add a chunk's sums to the totals; the first chunk's are the totals."""
        b = self.b
        kind = ir.VectorType(self.kind, 16 // self.size)
        with b.if_else(first) as (then, otherwise):
            with then:
                for slot, vector in zip(self.slots(), self.vectors_of(sums), strict=True):
                    b.store(vector, slot, align=16)
            with otherwise:
                for slot, vector in zip(self.slots(), self.vectors_of(sums), strict=True):
                    b.store(self.add(b.load(slot, typ=kind, align=16), vector), slot, align=16)

    def store(self, vectors: Sequence[ir.Value]) -> None:
        for slot, vector in zip(self.slots(), vectors, strict=True):
            self.b.store(vector, slot, align=16)

    def write_waiting(self) -> None:
        """Write the totals that wait in shared memory."""
        b, place, v = self.b, self.place, self.variant
        writer, cells = place.writer(), self.count // self.cell
        some = min(cells, (v.epilogue.together if v.epilogue else 16) // self.cell)
        with if_else(b, place.whole() if v.wide else I1(0)) as branch:
            with branch.then(), loop(b, I32(0), I32(cells), I32(some)) as it:
                numbers = [b.add(it.index, I32(i)) for i in range(some)]
                writer.write_all([(*place.at(*self.cell_at(n)), writer.rounded(self._waiting(n))) for n in numbers])
            with branch.otherwise(), loop(b, I32(0), I32(cells), I32(1)) as it:
                writer.write(*place.at(*self.cell_at(it.index)), self._waiting(it.index), v.wide)

    def _waiting(self, number: ir.Value) -> list[ir.Value]:
        """The totals of a cell, by its number, that wait in shared memory."""
        b, each = self.b, self.cell * self.size // 16
        first, kind = self.slots()[0], ir.VectorType(self.kind, 16 // self.size)
        found = []
        for i in range(each):
            place = b.mul(b.add(b.mul(number, I32(each)), I32(i)), I32(16 * self.tile.threads))
            found += self.values_of(b.load(offset(b, first, b.zext(place, I64)), typ=kind, align=16))
        return found
