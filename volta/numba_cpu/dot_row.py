"""DOT of one row with a matrix, for each batch item: the matrix is read once, so the speed is that of memory.

There is no reuse to block for, and a register tile would read the matrix in short pieces. A matrix with contiguous
rows is streamed eight rows at a time, the sums waiting in the scratch memory; one with contiguous columns is
transposed in registers, a square of vectors at a time.
"""

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.builder import Builder, Value, is_float, scalar_type
from volta.emit.dot_args import Args, ChunkAt, at, ceil_div
from volta.emit.loops import I64, PTR, VOID, for_range, if_else, if_then, loop, minimum, offset, splat
from volta.emit.pairs import join_block
from volta.numba_cpu.dot_bytes import kind_of
from volta.numba_cpu.dot_pack import pack, transpose
from volta.numba_cpu.dot_schedule import TileSpec, Tiling
from volta.numba_cpu.dot_tile import link_of, new_internal, prefetch, store_sums
from volta.numba_cpu.dot_tree import join
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.dot import CHUNK, item_size

_ROWS = 8
_AHEAD = 512  # bytes: hardware does not follow as many columns at once as there are lanes
ROW_TYPE = ir.FunctionType(VOID, [I64, PTR, I64, PTR, I64, I64, PTR, I64, PTR, PTR, I64])
"""``row(k, a, a_k, b, b_k, b_n, totals, columns, buffer, tree, tree_level)``: whole products, in the accumulator's
dtype. Sums of blocks wait in the tree, a level `tree_level` bytes behind the one below."""


def build_dot_row(module: ir.Module, name: str, spec: TileSpec) -> ir.Function:
    """Add the kernel for products with M = 1 to `module`, with the CPU kernel ABI.

    The right operand must be contiguous along n or along k.
    """
    function, b = new_kernel(module, name)
    begin, end, scratch = function.args[1:]
    args = Args(b, function.args[0], Tiling)
    size = item_size(spec.accumulator)
    by_rows, by_columns = _by_rows(module, spec), _by_columns(module, spec)
    totals = b.inttoptr(scratch, PTR)
    further = offset(b, totals, args.SCRATCH_LHS)
    col_tasks = ceil_div(b, args.N, args.TASK_COLS)
    with loop(b, begin, end) as it:
        item = b.sdiv(it.index, col_tasks)
        first_task = b.sub(it.index, b.mul(item, col_tasks))
        it.step = minimum(b, b.sub(col_tasks, first_task), b.sub(end, it.index))
        b0 = b.sdiv(item, args.BATCH1)
        b1 = b.sub(item, b.mul(b0, args.BATCH1))
        lhs = at(b, b.inttoptr(args.LHS, PTR), (b0, args.LHS_BATCH0), (b1, args.LHS_BATCH1))
        rhs = at(b, b.inttoptr(args.RHS, PTR), (b0, args.RHS_BATCH0), (b1, args.RHS_BATCH1))
        out = at(b, b.inttoptr(args.OUT, PTR), (b0, args.OUT_BATCH0), (b1, args.OUT_BATCH1))
        column = b.mul(first_task, args.TASK_COLS)
        last = minimum(b, args.N, b.mul(b.add(first_task, it.step), args.TASK_COLS))
        with for_range(b, column, last, args.BLOCK_COLS) as j:
            columns = minimum(b, b.sub(last, j), args.BLOCK_COLS)
            matrix = at(b, rhs, (j, args.RHS_N))
            tree = [offset(b, totals, args.SCRATCH_TREE), b.mul(args.BLOCK_COLS, I64(size))]
            common = [args.K, lhs, args.LHS_K, matrix, args.RHS_K, args.RHS_N, totals, columns, further, *tree]
            with if_else(b, b.icmp_signed("==", args.RHS_N, I64(item_size(spec.right)))) as branch:
                with branch.then():
                    b.call(by_rows, common)
                with branch.otherwise():
                    b.call(by_columns, common)
            to = at(b, out, (j, I64(item_size(spec.out))))
            store_sums(b, spec, totals, I64(size), to, I64(0), I64(1), columns)
    b.ret_void()
    return function


def _as_accumulator(builder: Builder, value: Value, spec: TileSpec) -> ir.Value:
    return builder.cast(value, spec.accumulator).ir


def _by_rows(module: ir.Module, spec: TileSpec) -> ir.Function:
    """The matrix is contiguous along n."""
    name = f"volta_dot_by_rows_{spec.lhs}_{spec.rhs}_{kind_of(spec)}_{spec.vector_bits}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, ROW_TYPE)
    count, a, a_k, matrix, b_k, _, totals, columns, buffer, tree, tree_level = function.args
    size = item_size(spec.accumulator)
    vector = ir.VectorType(scalar_type(spec.accumulator), spec.lanes)
    whole = b.and_(columns, I64(-spec.lanes))
    scalars, vectors = Builder(b), Builder(b, spec.lanes)
    join_tree, chunks, link = join(module, spec), ceil_div(b, count, CHUNK), link_of(spec)
    with for_range(b, 0, count, CHUNK) as start:
        place = ChunkAt(b, b.udiv(start, I64(CHUNK)), chunks)
        first = place.begins
        sums = b.select(first, totals, buffer)
        with for_range(b, 0, columns, spec.lanes) as column:
            b.store(ir.Constant(vector, None), at(b, sums, (column, I64(size))), align=size)
        depth = minimum(b, b.sub(count, start), CHUNK)
        rounds = b.add(start, b.and_(depth, I64(-_ROWS)))
        for begin, end, rows in ((start, rounds, _ROWS), (rounds, b.add(start, depth), 1)):
            with for_range(b, begin, end, rows) as k:
                factors, lines = [], []
                for row in range(rows):
                    index = b.add(k, I64(row))
                    factors.append(_as_accumulator(scalars, scalars.load(at(b, a, (index, a_k)), spec.left), spec))
                    lines.append(at(b, matrix, (index, b_k)))
                for builder, low, high in ((vectors, I64(0), whole), (scalars, whole, columns)):
                    wide = [x if builder is scalars else splat(b, x, spec.lanes) for x in factors]
                    with for_range(b, low, high, builder.lanes) as column:
                        to = at(b, sums, (column, I64(size)))
                        total = builder.load(to, spec.accumulator).ir
                        for x, line in zip(wide, lines, strict=True):
                            y = builder.load(at(b, line, (column, I64(item_size(spec.right)))), spec.right)
                            total = link(b, x, _as_accumulator(builder, y, spec), total)
                        builder.store(builder.value(total, spec.accumulator), to)
        with if_then(b, b.not_(first)), for_range(b, 0, columns, spec.lanes) as column:
            here = b.mul(column, I64(size))
            total, more = (vectors.load(offset(b, x, here), spec.accumulator) for x in (totals, sums))
            vectors.store(vectors.add(total, more), offset(b, totals, here))
        with if_then(b, place.joins):
            waiting = [tree, I64(0), tree_level]
            b.call(join_tree, [totals, I64(0), *waiting, I64(1), columns, place.block, place.last])
    b.ret_void()
    return function


def _by_columns(module: ir.Module, spec: TileSpec) -> ir.Function:
    """The matrix is contiguous along k."""
    name = f"volta_dot_by_columns_{spec.lhs}_{spec.rhs}_{kind_of(spec)}_{spec.vector_bits}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, ROW_TYPE)
    count, a, a_k, matrix, b_k, b_n, totals, columns, buffer, tree, _ = function.args
    lanes, size = spec.lanes, item_size(spec.accumulator)
    builder, scalars = Builder(b, lanes), Builder(b)
    pack_strip = pack(module, spec.right, spec.accumulator, lanes, parts=spec.parts)
    zero = ir.Constant(ir.VectorType(scalar_type(spec.accumulator), lanes), None)
    add = b.fadd if is_float(spec.accumulator) else b.add

    chunks, link = ceil_div(b, count, CHUNK), link_of(spec)

    def waiting(level: ir.Value) -> list[ir.Value]:
        return [b.load(at(b, tree, (level, I64(lanes * size))), typ=zero.type, align=size)]

    def leave(level: ir.Value, sums: Sequence[ir.Value]) -> None:
        b.store(sums[0], at(b, tree, (level, I64(lanes * size))), align=size)

    def factor(k: ir.Value) -> ir.Value:
        return splat(b, _as_accumulator(scalars, scalars.load(at(b, a, (k, a_k)), spec.left), spec), lanes)

    with for_range(b, 0, columns, lanes) as column:
        strip = at(b, matrix, (column, b_n))
        width = minimum(b, b.sub(columns, column), lanes)
        full = b.icmp_signed("==", width, I64(lanes))
        with loop(b, 0, count, CHUNK, [zero]) as chunk:
            start = chunk.index
            depth = minimum(b, b.sub(count, start), CHUNK)
            squares = b.add(start, b.select(full, b.and_(depth, I64(-lanes)), I64(0)))
            with loop(b, start, squares, lanes, [zero]) as it:
                total, line, square = it.values[0], at(b, strip, (it.index, b_k)), []
                for _ in range(lanes):
                    prefetch(b, offset(b, line, _AHEAD))
                    square.append(_as_accumulator(builder, builder.load(line, spec.right), spec))
                    line = offset(b, line, b_n)
                for i, row in enumerate(transpose(b, square)):
                    total = link(b, factor(b.add(it.index, I64(i))), row, total)
                it.advance(total)
            rest = b.sub(b.add(start, depth), squares)
            with if_then(b, b.icmp_signed(">", rest, I64(0))):
                to = [buffer, I64(lanes * size), I64(0)]
                b.call(pack_strip, [*to, at(b, strip, (squares, b_k)), b_k, b_n, width, rest])
            with loop(b, 0, rest, init=[it.results[0]]) as tail:
                row = builder.load(at(b, buffer, (tail.index, I64(lanes * size))), spec.accumulator).ir
                tail.advance(link(b, factor(b.add(squares, tail.index)), row, tail.values[0]))
            total = tail.results[0]
            place = ChunkAt(b, b.udiv(start, I64(CHUNK)), chunks)
            total = b.select(place.begins, total, add(chunk.values[0], total))
            with if_else(b, place.joins) as branch:
                with branch.then():
                    branch.give(*join_block(b, [total], place.block, place.last, waiting, leave, add))
                with branch.otherwise():
                    branch.give(total)
            chunk.advance(*branch.results)
        builder.store(builder.value(chunk.results[0], spec.accumulator), at(b, totals, (column, I64(size))))
    b.ret_void()
    return function
