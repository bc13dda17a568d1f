"""Attention on tensor cores, for levels below strict: what its kernels share.

A block of threads owns *resident* rows (queries, or keys in the kernel for their gradients), each warp bands of 16 of
them, and traverses the other side in blocks of 64 *streamed* rows, copied while the block before is computed.
Products are of bfloat16 with sums in float32; matrices of pairs are in registers only.

Every sum goes over its streamed rows in ascending order, 16 at a time from row 0 on, and warps leave out blocks of
which their rows see nothing. So neither the batch nor the number of warps, nor how operands are copied, changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from llvmlite import ir

from volta.emit.attention_args import Arg
from volta.emit.loops import I16, I32, I64, fma, minimum, offset
from volta.numba_cuda.attention.attention_common import AttentionKernel
from volta.numba_cuda.attention.attention_layout import WIDE
from volta.numba_cuda.attention.attention_tensor_tile import ALIGN, BAND, LINE, PRODUCTS, Rows, TensorTile, rows_bytes
from volta.numba_cuda.codegen import ptx_mma, ptx_ops, ptx_round, ptx_wgmma
from volta.numba_cuda.codegen.ptx_approx import near_logarithm
from volta.numba_cuda.codegen.threads import WARP, barrier, thread_index
from volta.xla_like.attention import TensorSpec

LOG2E = 1.4426950408889634


def aligned(b: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The pointer at the next multiple of `ALIGN` (at most `ALIGN` further)."""
    beyond = b.and_(b.sub(I32(0), ptx_ops.shared_address(b, pointer)), I32(ALIGN - 1))
    return offset(b, pointer, b.zext(beyond, I64))


def shared_bytes(tile: TensorTile, *arrays: tuple[int, int]) -> int:
    """Shared memory for so many rows of so many elements each."""
    return sum(rows_bytes(rows, width) for rows, width in arrays) + (ALIGN if tile.together > 1 else 0)


class TensorAttention(AttentionKernel):
    """Emits what one block of threads does; see the module's first lines."""

    STATS = (Arg.M, Arg.L, Arg.DELTA)

    spec: TensorSpec
    first: ir.Value  # the tile's first row

    def __init__(
        self, b: ir.IRBuilder, args: ir.Value, spec: TensorSpec, tile: TensorTile, space: ir.Value
    ) -> None:  # fmt: skip
        super().__init__(b, args, spec)
        self.tile, self.space = tile, aligned(b, space) if tile.together > 1 else space
        self.thread = thread_index(b)
        lane = b.and_(self.thread, I64(WARP - 1))
        self.lane = b.trunc(lane, I32)
        self.warp = b.lshr(self.thread, I64(5))
        self.warp_first = b.mul(self.warp, I64(tile.warp_rows))
        self.copier, self.copying = self.thread, tile.multiplying  # which of how many threads copies
        self.down, self.right = b.lshr(lane, I64(2)), b.shl(b.and_(lane, I64(3)), I64(1))  # of a result's first pair
        self.products: Any = PRODUCTS[tile.instruction](b, tile, self.thread)
        # the first row of the warps that multiply together: blocks of which these see nothing are left out
        self.together_first = b.mul(self.products.group, I64(tile.together * tile.warp_rows))

    # -- shared memory -----------------------------------------------------------------------------------------------

    def allot(self, rows: int, width: int) -> Rows:
        """Shared memory for so many rows."""
        found = Rows(self.space, width, rows)
        self.space = offset(self.b, self.space, rows_bytes(rows, width))
        return found

    def stage(self, pair: Sequence[Rows], iteration: ir.Value) -> Rows:
        """Of the buffers of two blocks (double buffering), that of an iteration."""
        first, second = pair
        odd = self.b.icmp_signed("!=", self.b.and_(iteration, I64(1)), I64(0))
        return attrs.evolve(first, pointer=self.b.select(odd, second.pointer, first.pointer))

    def copy_rows(self, to: Rows, base: ir.Value, stride: ir.Value, first: ir.Value, size: ir.Value) -> None:
        """Copy rows ``first ..`` of an operand; beyond its ``size`` rows come zeros."""
        b, pieces = self.b, to.width * 2 // WIDE
        line, number = b.udiv(self.copier, I64(pieces)), b.urem(self.copier, I64(pieces))
        block, piece = b.lshr(number, I64(3)), b.and_(number, I64(7))
        step = self.copying // pieces
        here = b.add(b.mul(line, stride), b.mul(number, I64(WIDE)))
        start = offset(b, base, b.mul(first, stride))
        for iteration in range(to.count // step):
            row = b.add(line, I64(iteration * step))
            inside = b.icmp_signed("<", b.add(first, row), size)
            source = offset(b, start, b.add(here, b.mul(stride, I64(iteration * step))))
            below = b.mul(b.add(row, b.mul(block, I64(to.count))), I64(LINE))
            swizzled = b.mul(b.xor(piece, b.and_(row, I64(7))), I64(WIDE))
            place = offset(b, to.pointer, b.add(below, swizzled))
            if self.tile.whole:
                ptx_ops.copy_async(b, place, source, WIDE, b.select(inside, I32(WIDE), I32(0)))
            else:
                self._copy_elements(place, source, base, inside)

    def _copy_elements(self, place: ir.Value, source: ir.Value, base: ir.Value, inside: ir.Value) -> None:
        """A piece that does not lie in 16 bytes of its own."""
        b = self.b
        source = b.select(inside, source, base)
        piece = ir.Constant(ir.VectorType(I16, WIDE // 2), ir.Undefined)
        for i in range(WIDE // 2):
            value = b.select(inside, b.load(offset(b, source, 2 * i), typ=I16, align=2), I16(0))
            piece = b.insert_element(piece, value, I32(i))
        b.store(piece, place, align=WIDE)

    # -- products ----------------------------------------------------------------------------------------------------

    def zeros(self, columns: int) -> list[ir.Value]:
        """Sums for the warp's rows and so many columns: of each band, four for every 8 columns."""
        return [self.zero] * (self.tile.bands * columns // 8 * 4)

    def arrived(self) -> None:
        """What was copied is there, for all threads, and all are done with the block before."""
        ptx_ops.wait_copies(self.b, 0)
        if self.tile.instruction == "wgmma":
            ptx_wgmma.fence_tensor(self.b)
        barrier(self.b)

    # -- numbers -----------------------------------------------------------------------------------------------------

    def row_of(self, number: int, columns: int) -> int:
        """Of the `number`-th sum of so many columns, which of the thread's rows it is in: two of each band."""
        return number // (columns // 2) * 2 + number % 4 // 2

    def rows_below(self, r: int) -> int:
        """How far the thread's r-th row is below its first."""
        return r // 2 * BAND + r % 2 * 8

    def columns_beside(self, number: int, columns: int) -> int:
        """How far a sum's column is beside that of the thread's first."""
        return number % (columns // 2) // 4 * 8 + number % 2

    def prepared(self, stats: Sequence[ir.Value]) -> list[ir.Value]:
        """Of a query's statistics m, l and delta, what its gradients take: a weight is 2 ** (score * exponent + the
        first), 0 for a query that sees no key; times (cotangent + the second) it is the cotangent of a score."""
        b, (top, total, delta) = self.b, stats
        nothing = b.fcmp_ordered("==", total, self.zero)
        shift = fma(b, top, self.constant(-LOG2E), b.fsub(self.constant(-0.0), near_logarithm(b, total)))
        return [b.select(nothing, self.constant(float("-inf")), shift), b.fsub(self.constant(-0.0), delta)]

    def over_lanes(self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """A row's values of its four lanes, combined."""
        for distance in (1, 2):
            value = combine(value, self.shuffled("bfly", value, I32(distance)))
        return value

    def distance(self, x: ir.Value) -> ir.Value:
        """An i64 as an i32 that compares alike with all numbers within a tile."""
        b, most = self.b, I64(1 << 16)
        x = minimum(b, x, most)
        return b.trunc(b.select(b.icmp_signed("<", x, I64(-(1 << 16))), I64(-(1 << 16)), x), I32)

    # -- results -----------------------------------------------------------------------------------------------------

    def write(
        self, address: Arg, sums: Sequence[ir.Value], width: int, size: ir.Value, factors: Sequence[ir.Value]
    ) -> None:  # fmt: skip
        """Write the warp's rows of a result, each times its factor; ``size``: how many rows there are."""
        b = self.b
        base = self.of_head(address, self.item, self.head)
        stride = self.arg(Arg[f"{address.name}_{'S' if address in (Arg.DK, Arg.DV) else 'T'}"])
        each = width // 2
        piece = b.mul(b.and_(b.zext(self.lane, I64), I64(3)), I64(WIDE))
        for r, factor in enumerate(factors):
            row = b.add(b.add(self.first, self.warp_first), b.add(self.down, I64(self.rows_below(r))))
            own, inside = sums[r // 2 * each :], b.icmp_signed("<", row, size)
            if self.spec.out == "float32":
                self._write_pairs(offset(b, base, b.mul(row, stride)), own, r, width, factor, inside)
                continue
            for part in range(0, width, 32):
                words = []
                for column in range(part, part + 32, 8):
                    at = column // 2 + r % 2 * 2
                    low, high = (b.fmul(x, factor) for x in own[at : at + 2])
                    words.append(ptx_round.round_pair(b, low, high, self.spec.dtype))
                found = ptx_mma.gather_piece(b, self.lane, words)
                place = offset(b, base, b.add(b.add(b.mul(row, stride), piece), I64(2 * part)))
                with b.if_then(inside):
                    b.store(found, place, align=WIDE)

    def _write_pairs(
        self, line: ir.Value, sums: Sequence[ir.Value], r: int, width: int, factor: ir.Value, inside: ir.Value
    ) -> None:  # fmt: skip
        """Write a row of a float32 result, two neighbours at a time."""
        b = self.b
        start = offset(b, line, b.mul(self.right, I64(4)))
        with b.if_then(inside):
            for column in range(0, width, 8):
                at = column // 2 + r % 2 * 2
                pair: ir.Value = ir.Constant(ir.VectorType(self.kind, 2), ir.Undefined)
                for i, x in enumerate(sums[at : at + 2]):
                    pair = b.insert_element(pair, b.fmul(x, factor), I32(i))
                b.store(pair, offset(b, start, 4 * column), align=8)
