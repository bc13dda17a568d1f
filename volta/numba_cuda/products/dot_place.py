"""Which tile of the output is a block's, and how a thread writes its part of it."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, scalar_type
from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I32, I64, if_then, minimum, offset
from volta.numba_cuda.products.dot_tile import DotVariant
from volta.numba_cuda.target.threads import device_pointer
from volta.xla_like.dot_schedule import DotSpec, item_size

_BAND = 8  # tiles below each other that blocks of neighbouring numbers compute, so that they share what they read


class Place:
    """A tile by its number (i32): columns of `_BAND` tiles, band after band, item after item of the batch."""

    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: DotVariant, args: Args, number: ir.Value) -> None:
        self.b, self.spec, self.variant, self.args = b, spec, variant, args
        t = variant.tile
        row_tiles = b.trunc(ceil_div(b, args.M, t.rows), I32)
        col_tiles = b.trunc(ceil_div(b, args.N, t.cols), I32)
        each = b.mul(row_tiles, col_tiles)
        item, inside = b.udiv(number, each), b.urem(number, each)
        band_tiles = b.mul(col_tiles, I32(_BAND))
        band = b.udiv(inside, band_tiles)
        inside = b.sub(inside, b.mul(band, band_tiles))
        first = b.mul(band, I32(_BAND))
        height = minimum(b, b.sub(row_tiles, first), _BAND)
        self.row = b.mul(b.zext(b.add(first, b.urem(inside, height)), I64), I64(t.rows))
        self.col = b.mul(b.zext(b.udiv(inside, height), I64), I64(t.cols))
        item = b.zext(item, I64)
        self.batch = b.udiv(item, args.BATCH1), b.urem(item, args.BATCH1)
        self.out = self.item("OUT")

    def item(self, name: str) -> ir.Value:
        """Where the batch item of LHS, RHS or OUT begins."""
        b, a = self.b, self.args
        steps = zip(self.batch, (getattr(a, f"{name}_BATCH0"), getattr(a, f"{name}_BATCH1")), strict=True)
        return at(b, device_pointer(b, getattr(a, name)), *steps)

    def write(self, row: ir.Value, col: ir.Value, totals: Sequence[ir.Value]) -> None:
        """Round totals to the output's dtype and store them: neighbours from an element (i32s) of the tile on."""
        b, a, spec, one = self.b, self.args, self.spec, Builder(self.b, 1)
        size = item_size(spec.out)
        row, col = b.add(self.row, b.zext(row, I64)), b.add(self.col, b.zext(col, I64))
        to = at(b, self.out, (row, a.OUT_M), (col, I64(size)))
        inside = b.icmp_signed("<", row, a.M)
        results = [one.cast(one.value(x, spec.accumulator), spec.out) for x in totals]
        if self.variant.wide:
            vector: ir.Value = ir.Constant(ir.VectorType(scalar_type(spec.out), len(results)), ir.Undefined)
            for i, x in enumerate(results):
                vector = b.insert_element(vector, x.ir, I32(i))
            with if_then(b, b.and_(inside, b.icmp_signed("<", col, a.N))):
                b.store(vector, to, align=min(16, len(results) * size))
            return
        for i, x in enumerate(results):
            with if_then(b, b.and_(inside, b.icmp_signed("<", b.add(col, I64(i)), a.N))):
                one.store(x, offset(b, to, i * size), spec.out if spec.out in HALF_DTYPES else None)
