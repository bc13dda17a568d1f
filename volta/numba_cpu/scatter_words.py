"""What the kernels that scatter single numbers have in common: their args, and targets and updates in vectors."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder
from volta.emit.loops import (
    I32,
    I64,
    PTR,
    for_range,
    load_args,
    offset,
)
from volta.numba_cpu.scatter_rows import Rows
from volta.numba_cpu.scatter_schedule import Numbers

STAGE = 512
"""Updates that are looked at before they are put where they belong."""


class Words:
    """The args: arrays and sizes; with buckets what chunks are put into, and how large these are."""

    def __init__(self, b: ir.IRBuilder, what: Numbers, args: ir.Value) -> None:
        self.b, self.what = b, what
        self.item, self.lanes = what.scatter.dtype.itemsize, 64 // max(4, what.scatter.dtype.itemsize)
        self._updates, self._targets, self._out, self.slots, self.count, self.most, _, self.levels = load_args(
            b, args, 8
        )
        if what.split:
            self._heads, self._records, self._head, self._list, self.shift, self.buckets, self.chunk, self.chunks = (
                load_args(b, args, 8, 8)
            )
        self.number, self.raw = ir.IntType(8 * what.target), ir.IntType(8 * self.item)
        self.word = ir.IntType(8 * what.word)

    def _at(self, base: ir.Value, index: ir.Value, size: ir.Value | int) -> ir.Value:
        b = self.b
        return offset(b, b.inttoptr(base, PTR), b.mul(index, I64(size) if isinstance(size, int) else size))

    def updates(self, item: ir.Value, start: ir.Value) -> ir.Value:
        """Where the updates of a batch item from ``start`` on lie; likewise below."""
        return self._at(self._updates, self.b.add(self.b.mul(item, self.count), start), self.item)

    def targets(self, item: ir.Value, start: ir.Value) -> ir.Value:
        return self._at(self._targets, self.b.add(self.b.mul(item, self.count), start), self.what.target)

    def out(self, item: ir.Value) -> ir.Value:
        return self._at(self._out, self.b.mul(item, self.slots), self.item)

    def target(self, targets: ir.Value, index: ir.Value) -> ir.Value:
        """One of them, as int64."""
        place = offset(self.b, targets, self.b.mul(index, I64(self.what.target)))
        found = self.b.load(place, align=self.what.target, typ=self.number)
        return found if self.what.target == 8 else self.b.sext(found, I64)

    def some(self, targets: ir.Value, index: ir.Value) -> ir.Value:
        """A vector of them."""
        place = offset(self.b, targets, self.b.mul(index, I64(self.what.target)))
        return self.b.load(place, align=self.what.target, typ=ir.VectorType(self.number, self.lanes))

    def splat(self, x: ir.Value) -> ir.Value:
        """An int64 as a vector of targets."""
        wide, one = Builder(self.b, self.lanes), Builder(self.b, 1)
        kind = "int64" if self.what.target == 8 else "int32"
        return wide.splat(one.value(x if kind == "int64" else self.b.trunc(x, I32), kind)).ir

    def narrow(self, targets: ir.Value) -> ir.Value:
        """A vector of targets that are slots, in 32 bits."""
        return targets if self.what.target == 4 else self.b.trunc(targets, ir.VectorType(I32, self.lanes))

    def values(self, updates: ir.Value, index: ir.Value) -> ir.Value:
        """A vector of updates, as words."""
        place = offset(self.b, updates, self.b.mul(index, I64(self.item)))
        found = self.b.load(place, align=self.item, typ=ir.VectorType(self.raw, self.lanes))
        return found if self.raw == self.word else self.b.zext(found, ir.VectorType(self.word, self.lanes))

    def value(self, updates: ir.Value, index: ir.Value) -> ir.Value:
        place = offset(self.b, updates, self.b.mul(index, I64(self.item)))
        found = self.b.load(place, align=self.item, typ=self.raw)
        return found if self.raw == self.word else self.b.zext(found, self.word)


def room(b: ir.IRBuilder, nbytes: int) -> ir.Value:
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(ir.IntType(8), nbytes))
        place.align = 64
        return b.inttoptr(b.ptrtoint(place, I64), PTR)  # an untyped pointer


def put_all(
    w: Words, rows: Rows, out: ir.Value, keys: tuple[ir.Value, int], values: tuple[ir.Value, int], start: ir.Value,
    stop: ir.Value,
) -> None:  # fmt: skip
    """Updates from ``start`` to ``stop``: slots of 32 bits and numbers, each so many bytes behind the one before."""
    b = w.b
    with for_range(b, start, stop) as i:
        slot = b.load(offset(b, keys[0], b.mul(i, I64(keys[1]))), align=4, typ=I32)
        value = b.load(offset(b, values[0], b.mul(i, I64(values[1]))), align=w.item, typ=w.raw)
        rows.put(b.zext(slot, I64), value, out)
