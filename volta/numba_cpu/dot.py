"""The matrix-product kernels of the CPU backend: blocking around the register tile of `dot_tile`.

Both kernels have the CPU kernel ABI and read the args block of `emit.dot_args.Arg` and `dot_schedule.Tiling`. What an
element's bits are is said there; nothing in this file changes them.
"""

from llvmlite import ir

from volta.emit.dot_args import Args, ChunkAt, at, ceil_div, round_up
from volta.emit.loops import I64, PTR, for_range, if_else, if_then, loop, minimum, offset
from volta.numba_cpu.dot_blocks import unpack
from volta.numba_cpu.dot_bytes import flips
from volta.numba_cpu.dot_pack import PACK_TYPE, pack
from volta.numba_cpu.dot_schedule import PACK_PANELS, Mode, TileSpec, Tiling
from volta.numba_cpu.dot_tile import LINE, panel, store_sums
from volta.numba_cpu.dot_tree import join
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.dot import CHUNK, item_size

FEW_PANELS = 4
"""Tiles of columns from which on the left operand's next tile is asked for while they are computed. Its rows lie pages
apart, and nothing else sees them coming (seen, 1,024 cubed on one thread: 6% shorter)."""


def build_dot(module: ir.Module, name: str, spec: TileSpec) -> ir.Function:
    """Add the main kernel for `spec` to `module`, with the CPU kernel ABI; several specs may share a module."""
    function, b = new_kernel(module, name)
    _DotKernel(module, b, spec, function).emit()
    b.ret_void()
    return function


def build_dot_pack(module: ir.Module, name: str, spec: TileSpec) -> ir.Function:
    """Add the kernel that packs the right operand for `spec`; a task is `PACK_PANELS` tiles of columns of a chunk."""
    function, b = new_kernel(module, name)
    args = Args(b, function.args[0], Tiling)
    pack_strips = pack(module, spec.right, spec.accumulator, spec.lanes, parts=spec.parts)
    vector_bytes = spec.vector_bits // 8
    width = PACK_PANELS * spec.tile_cols
    row_bytes = b.mul(ceil_div(b, args.N, spec.tile_cols), I64(spec.tile_cols * item_size(spec.accumulator)))
    groups, chunks = ceil_div(b, args.N, width), ceil_div(b, args.K, CHUNK)
    with for_range(b, function.args[1], function.args[2]) as task:
        rows = b.sdiv(task, groups)
        column = b.mul(b.sub(task, b.mul(rows, groups)), I64(width))
        item = b.sdiv(rows, chunks)
        k = b.mul(b.sub(rows, b.mul(item, chunks)), I64(CHUNK))
        b0 = b.sdiv(item, args.BATCH1)
        b1 = b.sub(item, b.mul(b0, args.BATCH1))
        rhs = at(b, b.inttoptr(args.RHS, PTR), (b0, args.RHS_BATCH0), (b1, args.RHS_BATCH1))
        source = at(b, rhs, (column, args.RHS_N), (k, args.RHS_K))
        to = at(b, b.inttoptr(args.WORKSPACE, PTR), (b0, args.PACKED_BATCH0), (b1, args.PACKED_BATCH1))
        columns, depth = minimum(b, b.sub(args.N, column), width), minimum(b, b.sub(args.K, k), CHUNK)
        strip_bytes = b.mul(round_up(b, depth, spec.lanes), I64(vector_bytes))
        chunk = offset(b, at(b, to, (k, row_bytes)), b.mul(b.sdiv(column, I64(spec.lanes)), strip_bytes))
        step = I64(vector_bytes)
        b.call(pack_strips, [chunk, step, strip_bytes, source, args.RHS_K, args.RHS_N, columns, depth])
    b.ret_void()
    return function


class _DotKernel:
    """The loop nest: runs of tasks, column blocks, row blocks, chunks of k, row tiles, column tiles."""

    def __init__(self, module: ir.Module, b: ir.IRBuilder, spec: TileSpec, function: ir.Function):
        self.b, self.spec = b, spec
        block, self.begin, self.end, scratch = function.args
        self.args = Args(b, block, Tiling)
        self.scratch = b.inttoptr(scratch, PTR)
        self.size = item_size(spec.accumulator)
        self.vector_bytes = spec.vector_bits // 8
        self.lhs_k_bytes = -(-spec.tile_rows // spec.lanes) * self.vector_bytes  # one k of the packed left tile
        self.pack_lhs = pack(module, spec.left, spec.accumulator, spec.lanes, flips(spec), spec.parts)
        if spec.blocks is None:
            self.pack_rhs = pack(module, spec.right, spec.accumulator, spec.lanes, parts=spec.parts)
        else:
            self.pack_rhs = unpack(module, spec.rhs, spec.lanes, PACK_TYPE)
        self.panel = panel(module, spec)
        self.join = join(module, spec)

    def emit(self) -> None:
        """A run of tasks that share batch item and column band is one band of rows."""
        b, args = self.b, self.args
        row_tasks, col_tasks = ceil_div(b, args.M, args.TASK_ROWS), ceil_div(b, args.N, args.TASK_COLS)
        with loop(b, self.begin, self.end) as it:
            band = b.sdiv(it.index, row_tasks)
            first = b.sub(it.index, b.mul(band, row_tasks))
            it.step = minimum(b, b.sub(row_tasks, first), b.sub(self.end, it.index))
            item = b.sdiv(band, col_tasks)
            b0 = b.sdiv(item, args.BATCH1)
            b1 = b.sub(item, b.mul(b0, args.BATCH1))
            self.lhs = at(b, b.inttoptr(args.LHS, PTR), (b0, args.LHS_BATCH0), (b1, args.LHS_BATCH1))
            self.rhs = at(b, b.inttoptr(args.RHS, PTR), (b0, args.RHS_BATCH0), (b1, args.RHS_BATCH1))
            self.out = at(b, b.inttoptr(args.OUT, PTR), (b0, args.OUT_BATCH0), (b1, args.OUT_BATCH1))
            self.packed = at(b, b.inttoptr(args.WORKSPACE, PTR), (b0, args.PACKED_BATCH0), (b1, args.PACKED_BATCH1))
            row = b.mul(first, args.TASK_ROWS)
            last_row = minimum(b, args.M, b.mul(b.add(first, it.step), args.TASK_ROWS))
            column = b.mul(b.sub(band, b.mul(item, col_tasks)), args.TASK_COLS)
            last_column = minimum(b, args.N, b.add(column, args.TASK_COLS))
            with for_range(b, column, last_column, args.BLOCK_COLS) as j:
                columns = minimum(b, b.sub(last_column, j), args.BLOCK_COLS)
                with for_range(b, row, last_row, args.BLOCK_ROWS) as i:
                    self._block(i, minimum(b, b.sub(last_row, i), args.BLOCK_ROWS), j, columns)

    def _block(self, i: ir.Value, rows: ir.Value, j: ir.Value, columns: ir.Value) -> None:
        """Finish `rows` x `columns` of the output, from element (i, j) on."""
        b, args, spec = self.b, self.args, self.spec
        out = at(b, self.out, (i, args.OUT_M), (j, I64(item_size(spec.out))))
        if spec.converts_out:
            sums, sums_row = offset(b, self.scratch, args.SCRATCH_OUT), b.mul(args.BLOCK_COLS, I64(self.size))
        else:
            sums, sums_row = out, args.OUT_M
        chunks = b.add(b.ashr(b.sub(args.K, I64(1)), I64(CHUNK.bit_length() - 1)), I64(1))
        chunks = b.select(b.icmp_signed("<", chunks, I64(1)), I64(1), chunks)  # K = 0 is one empty chain
        row_bytes = b.mul(args.BLOCK_COLS, I64(self.size))
        tree = [offset(b, self.scratch, args.SCRATCH_TREE), row_bytes, b.mul(args.BLOCK_ROWS, row_bytes)]
        with for_range(b, 0, chunks) as chunk:
            here = ChunkAt(b, chunk, chunks)
            k = b.mul(chunk, I64(CHUNK))
            depth = minimum(b, b.sub(args.K, k), CHUNK)
            lhs_from = at(b, self.lhs, (i, args.LHS_M), (k, args.LHS_K))
            if spec.blocks is None:
                following = b.select(
                    b.icmp_signed("<", b.add(chunk, I64(1)), chunks),
                    at(b, lhs_from, (I64(CHUNK), args.LHS_K)),
                    at(b, self.lhs, (b.add(i, rows), args.LHS_M)),
                )
                self._panels(lhs_from, sums, sums_row, rows, k, depth, j, columns, here.begins, following)
            else:
                self._panels(lhs_from, sums, sums_row, rows, k, depth, j, columns, here.begins, lhs_from)
            with if_then(b, here.joins):
                b.call(self.join, [sums, sums_row, *tree, rows, columns, here.block, here.last])
        if spec.converts_out:
            store_sums(b, spec, sums, sums_row, out, args.OUT_M, rows, columns)

    def _panels(
        self, lhs_from: ir.Value, sums: ir.Value, sums_row: ir.Value, rows: ir.Value, k: ir.Value, depth: ir.Value,
        j: ir.Value, columns: ir.Value, begins: ir.Value, following: ir.Value,
    ) -> None:  # fmt: skip
        """One chunk of a block, some rows at a time. What comes behind it reads the left operand at `following`."""
        b, args = self.b, self.args
        rhs = self._rhs(k, depth, j, columns)
        across = ceil_div(b, columns, self.spec.tile_cols)
        copied = b.icmp_signed("==", args.LHS_MODE, I64(Mode.SCRATCH))
        along_k = b.icmp_signed("==", args.LHS_K, I64(item_size(self.spec.left)))
        asks = b.and_(b.and_(copied, along_k), b.icmp_signed(">=", across, I64(FEW_PANELS)))
        lines = ceil_div(b, ceil_div(b, b.mul(depth, args.LHS_K), LINE), across)
        lines = b.select(asks, lines, I64(0))
        with for_range(b, 0, rows, self.spec.tile_rows) as row:
            height = minimum(b, b.sub(rows, row), self.spec.tile_rows)
            lhs = self._lhs(at(b, lhs_from, (row, args.LHS_M)), height, depth)
            line = at(b, sums, (row, sums_row))
            below = b.add(row, I64(self.spec.tile_rows))
            inside = b.icmp_signed("<", below, rows)
            ahead = [b.select(inside, at(b, lhs_from, (below, args.LHS_M)), following), args.LHS_M, lines]
            b.call(self.panel, [depth, *lhs, *rhs, line, sums_row, height, columns, begins, self.scratch, *ahead])

    def _rhs(self, k: ir.Value, depth: ir.Value, j: ir.Value, columns: ir.Value) -> list[ir.Value]:
        """Where the tile reads the right operand: pointer, stride of k, stride of vectors."""
        b, args, spec = self.b, self.args, self.spec
        step = k if spec.blocks is None else b.sdiv(k, I64(CHUNK))
        source, source_k = at(b, self.rhs, (step, args.RHS_K)), args.RHS_K
        if spec.blocks is None or spec.blocks.rows == 1:
            source = at(b, source, (j, args.RHS_N))
        else:  # `unpack` finds a column's rows
            source_k = j
        strip_bytes = b.mul(round_up(b, depth, spec.lanes), I64(self.vector_bytes))
        local = offset(b, self.scratch, args.SCRATCH_RHS)
        with if_then(b, b.icmp_signed("==", args.RHS_MODE, I64(Mode.SCRATCH))):
            to = [local, I64(self.vector_bytes), strip_bytes]
            b.call(self.pack_rhs, [*to, source, source_k, args.RHS_N, columns, depth])
        padded = b.mul(ceil_div(b, args.N, spec.tile_cols), I64(spec.tile_cols * self.size))
        shared = offset(b, at(b, self.packed, (k, padded)), b.mul(b.sdiv(j, I64(spec.lanes)), strip_bytes))
        direct = b.icmp_signed("==", args.RHS_MODE, I64(Mode.DIRECT))
        copy = b.select(b.icmp_signed("==", args.RHS_MODE, I64(Mode.WORKSPACE)), shared, local)
        vector_bytes = I64(self.vector_bytes)
        return [
            b.select(direct, source, copy),
            b.select(direct, args.RHS_K, vector_bytes),
            b.select(direct, vector_bytes, strip_bytes),
        ]

    def _lhs(self, source: ir.Value, height: ir.Value, depth: ir.Value) -> list[ir.Value]:
        """Where the tile reads the left operand: pointer, stride of rows, stride of k."""
        b, args = self.b, self.args
        packed = offset(b, self.scratch, args.SCRATCH_LHS)
        with if_else(b, b.icmp_signed("==", args.LHS_MODE, I64(Mode.SCRATCH))) as branch:
            with branch.then():
                to = [packed, I64(self.lhs_k_bytes), I64(self.vector_bytes)]
                b.call(self.pack_lhs, [*to, source, args.LHS_K, args.LHS_M, height, depth])
                branch.give(packed, I64(self.size), I64(self.lhs_k_bytes))
            with branch.otherwise():
                branch.give(source, args.LHS_M, args.LHS_K)
        return branch.results
