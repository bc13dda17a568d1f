"""Products on Hopper's tensor cores with weights in blocks of few bits, which producer warps unpack.

The left operand comes as in `dot_tensor_persistent`. Warps of the right one have the bytes of blocks copied ahead, a
block of each column, and make a tile of it after the other where the copy engine would put one: bfloat16, rounded from
the float32 numbers that the bytes stand for. So neither these nor those are ever in device memory, and the bits are
those of the product with the array that `dot_rounded` makes.
"""

from __future__ import annotations

from llvmlite import ir

from volta.core.block_formats import FORMATS
from volta.emit.dot_args import at
from volta.emit.loops import I32, I64, if_then, loop, minimum, offset
from volta.numba_cuda.codegen import ptx_mbarrier, ptx_ops, ptx_tensor_map, ptx_wgmma
from volta.numba_cuda.codegen.threads import WARP, device_pointer, warp_barrier
from volta.numba_cuda.products.dot_numbers import PERIOD
from volta.numba_cuda.products.dot_rounded import LINES, pieces
from volta.numba_cuda.products.dot_tensor_load import LINE, PIECE, PIECES, swizzled
from volta.numba_cuda.products.dot_tensor_persistent import PersistentProduct
from volta.numba_cuda.products.dot_tensor_variant import TensorVariant
from volta.xla_like.dot import CHUNK, DotSpec


class UnpackingProduct(PersistentProduct):
    """`TensorVariant.unpacking` threads make the tiles of the right operand, in groups with every so many-th tile of k
    each; the first thread of a group has the left one's copied."""

    def __init__(
        self, module: ir.Module, b: ir.IRBuilder, spec: DotSpec, variant: TensorVariant, function: ir.Function
    ) -> None:
        super().__init__(module, b, spec, variant, function)
        self.fmt, v = FORMATS[variant.rhs.dtype], variant
        thread = b.sub(self.thread, I64(v.multiplying))
        self.warp, self.lane = b.udiv(thread, I64(WARP)), b.urem(thread, I64(WARP))
        self.group = b.udiv(thread, I64(v.group))
        self.leads = b.icmp_signed("==", b.urem(thread, I64(v.group)), I64(0))
        self.own = v.cols // (v.group // WARP)  # columns of a warp, from `mine` on
        self.mine = b.mul(b.urem(self.warp, I64(v.group // WARP)), I64(self.own))

    def _filling(self) -> int:
        return 1 + self.v.group // WARP

    def _first_stage(self) -> ir.Value:
        return self.b.trunc(self.group, I32)

    def _produce(self, number: ir.Value, stage: ir.Value, parity: ir.Value) -> list[ir.Value]:
        """Unpack all of a tile's k; gives the stage and parity that come next."""
        b = self.b
        _, row, col = self._place(number)
        self._find_columns(col)
        chunks = b.udiv(self.args.K, I64(CHUNK))
        self._copy(I64(0))
        ptx_ops.commit_copies(b)
        with loop(b, 0, chunks, 1, [stage, parity], some=True) as it:
            following = b.add(it.index, I64(1))
            with if_then(b, b.icmp_signed("<", following, chunks)):
                self._copy(following)
            ptx_ops.commit_copies(b)
            ptx_ops.wait_copies(b, 1)
            warp_barrier(b)
            with loop(b, self.group, I64(LINES), I64(self.v.groups), list(it.values), some=True) as lines:
                ptx_ops.once(b)
                stage, parity = lines.values
                self._fill(stage, parity, row, it.index, lines.index)
                for _ in range(self.v.groups):
                    stage, parity = self._after(stage, parity)
                lines.advance(stage, parity)
            it.advance(*lines.results)
        return it.results

    def _fill(self, stage: ir.Value, parity: ir.Value, row: ir.Value, chunk: ir.Value, number: ir.Value) -> None:
        """Fill a stage, as soon as it is empty, with a line of a chunk of each of the warp's columns."""
        b, full = self.b, self._full(stage)
        ptx_mbarrier.wait(b, self._empty(stage), b.xor(parity, I32(1)))
        left, right = self._tiles(b.zext(stage, I64))
        with if_then(b, self.leads):
            k = b.add(b.mul(chunk, I64(CHUNK)), b.mul(number, self.depth))
            ptx_mbarrier.expect(b, full, self.v.rows * LINE)
            ptx_tensor_map.copy_box(b, left, self.maps[0], [b.trunc(k, I32), b.trunc(row, I32), I32(0), I32(0)], full)
        blocks = self._raw(chunk)
        for first in range(0, self.own, WARP):
            column = b.add(self.lane, I64(first))
            line, block = b.add(self.mine, column), at(b, blocks, (column, I64(self.fmt.nbytes)))
            values = pieces(b, self.fmt, block, number, range(0, PERIOD, PERIOD // PIECES))
            for piece, value in enumerate(values):
                b.store(value, offset(b, right, swizzled(b, line, I64(piece))), align=PIECE)
        ptx_wgmma.fence_tensor(b)
        warp_barrier(b)
        ptx_mbarrier.arrive(b, full, b.icmp_signed("==", self.lane, I64(0)))

    def _find_columns(self, col: ir.Value) -> None:
        """Where the bytes of the warp's columns are, of the tile that begins at a column: of its copies, how far each
        is from those of a chunk. The last column stands for those beyond it."""
        b, a, quads = self.b, self.args, self.fmt.nbytes // PIECE
        first = b.add(col, self.mine)
        last = b.sub(b.sub(a.N, I64(1)), first)
        self.source, self.far = at(b, device_pointer(b, a.RHS), (first, a.RHS_N)), []
        for i in range(self.own * quads // WARP):
            piece = b.add(self.lane, I64(i * WARP))
            inside = b.mul(b.urem(piece, I64(quads)), I64(PIECE))
            self.far.append(b.add(b.mul(minimum(b, b.udiv(piece, I64(quads)), last), a.RHS_N), inside))

    def _raw(self, chunk: ir.Value) -> ir.Value:
        """Where the warp's blocks of a chunk are: in one of two places."""
        b, size = self.b, self.own * self.fmt.nbytes
        every = offset(b, self._full(I32(self.v.stages)), b.mul(self.warp, I64(2 * size)))
        return offset(b, every, b.mul(b.and_(chunk, I64(1)), I64(size)))

    def _copy(self, chunk: ir.Value) -> None:
        """Begin to copy the warp's blocks of a chunk."""
        b = self.b
        source = offset(b, self.source, b.mul(chunk, I64(self.fmt.nbytes)))
        to = offset(b, self._raw(chunk), b.mul(self.lane, I64(PIECE)))
        for i, far in enumerate(self.far):
            ptx_ops.copy_async(b, offset(b, to, i * WARP * PIECE), offset(b, source, far), PIECE)
