"""Which tile of the output is a block's."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.dot_args import Args, at, ceil_div
from volta.emit.loops import I32, I64, minimum
from volta.numba_cuda.codegen.threads import device_pointer
from volta.numba_cuda.products.dot_epilogue import Writer
from volta.numba_cuda.products.dot_tile import DotVariant
from volta.xla_like.dot import DotSpec

_BAND = 8  # tiles below each other that blocks of neighbouring numbers compute, so that they share what they read


class TilePosition:
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
        self.above = b.mul(item, args.M)
        self.batch = b.udiv(item, args.BATCH1), b.urem(item, args.BATCH1)
        self.out = self.item("OUT")

    def item(self, name: str) -> ir.Value:
        """Where the batch item of LHS, RHS or OUT begins."""
        b, a = self.b, self.args
        steps = zip(self.batch, (getattr(a, f"{name}_BATCH0"), getattr(a, f"{name}_BATCH1")), strict=True)
        return at(b, device_pointer(b, getattr(a, name)), *steps)

    def writer(self) -> Writer:
        """What writes the tile, to be made where its totals are complete."""
        return Writer(self.b, self.spec, self.args, self.variant.epilogue, self.out, self.above)

    def at(self, row: ir.Value, col: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The row and column of the output that an element (i32s) of the tile has."""
        b = self.b
        return b.add(self.row, b.zext(row, I64)), b.add(self.col, b.zext(col, I64))

    def whole(self) -> ir.Value:
        """Whether all of the tile lies in the output."""
        b, a, t = self.b, self.args, self.variant.tile
        below, beside = b.add(self.row, I64(t.rows)), b.add(self.col, I64(t.cols))
        return b.and_(b.icmp_signed("<=", below, a.M), b.icmp_signed("<=", beside, a.N))
