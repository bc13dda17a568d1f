"""The register tile of DOT: a few rows times two vectors of columns, over one chunk of k, in registers."""

from collections.abc import Callable

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, is_float, scalar_type
from volta.emit.dot_args import at
from volta.emit.loops import I1, I32, I64, PTR, VOID, fma, for_range, if_then, intrinsic, loop, minimum, offset, splat
from volta.numba_cpu import dot_bytes
from volta.numba_cpu.dot_schedule import TileSpec
from volta.xla_like.dot import item_size

Link = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]

TILE_TYPE = ir.FunctionType(VOID, [I64, PTR, I64, I64, PTR, I64, I64, PTR, I64, I64])
"""``tile(depth, a, a_row, a_k, b, b_k, b_vector, c, c_row, columns)``; strides in bytes."""

ADD_TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, I64])
"""``add(c, c_row, sums, sums_row, rows, columns)``; strides in bytes."""

PANEL_TYPE = ir.FunctionType(VOID, [I64, PTR, I64, I64, PTR, I64, I64, PTR, I64, I64, I64, I1, PTR, PTR, I64, I64])
"""``panel(depth, a, a_row, a_k, b, b_k, b_vector, c, c_row, rows, columns, first, buffer, ahead, ahead_row, lines)``;
strides in bytes. With each tile of columns it asks for so many `lines` of each row of the left operand at `ahead`."""


def tile_shapes(spec: TileSpec) -> list[tuple[int, int]]:
    """Tiles that exist: a height, and the vectors of its narrow form; the wide form has two. Any height is a sum of
    these.

    Few are enough: two rows of two vectors already hide most of an FMA's latency. Where a tile of few rows has no
    narrow form, the wide one reads the same vector twice.
    """
    return [(spec.tile_rows, 1), (4, 1), (2, 2), (1, 2)]


def lane_mask(b: ir.IRBuilder, lanes: int, count: ir.Value) -> ir.Value:
    """``<lanes x i1>``: true in the first `count` lanes (an i64, which may be negative or beyond `lanes`)."""
    vector = ir.VectorType(I32, lanes)
    return b.icmp_signed("<", ir.Constant(vector, list(range(lanes))), splat(b, b.trunc(count, I32), lanes))


def masked_load(b: ir.IRBuilder, kind: ir.VectorType, pointer: ir.Value, mask: ir.Value, align: int) -> ir.Value:
    """The lanes in the mask; the others are not touched and read as zeros."""
    name = f"llvm.masked.load.v{kind.count}{kind.element.intrinsic_name}.p0"
    read = intrinsic(b.module, name, kind, [PTR, I32, mask.type, kind])
    return b.call(read, [pointer, I32(align), mask, ir.Constant(kind, None)])


def masked_store(b: ir.IRBuilder, value: ir.Value, pointer: ir.Value, mask: ir.Value, align: int) -> None:
    """Write the lanes in the mask; the memory of the others is not touched."""
    kind = value.type
    name = f"llvm.masked.store.v{kind.count}{kind.element.intrinsic_name}.p0"
    b.call(intrinsic(b.module, name, VOID, [kind, PTR, I32, mask.type]), [value, pointer, I32(align), mask])


LINE = 64
"""Bytes of a line of memory."""


def prefetch(b: ir.IRBuilder, pointer: ir.Value, near: int = 3) -> None:
    """Ask for the line of an address that will be read; it may lie beyond the end of the array. Into the nearest cache
    (3), or the next one (2)."""
    reading, keep_near, data = I32(0), I32(near), I32(1)
    prefetch = intrinsic(b.module, "llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
    b.call(prefetch, [pointer, reading, keep_near, data])


def multiply_add(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """One link of the chain: a fused multiply-add, or wrap-around integer arithmetic."""
    kind = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    if isinstance(kind, ir.IntType):
        return b.add(z, b.mul(x, y))
    return fma(b, x, y, z)


def link_of(spec: TileSpec) -> Link:
    """What goes on with a chain."""
    return dot_bytes.multiply_add_words if spec.quads else multiply_add


def tile(module: ir.Module, spec: TileSpec, rows: int, vectors: int) -> ir.Function:
    """The function (internal to the module, added once) for a tile of `rows` times `vectors`.

    It sets c to the chain over `depth` from +0.0. All columns of b are read, only the first `columns` of c are written.
    """
    name = f"volta_dot_tile_{dot_bytes.kind_of(spec)}_{spec.vector_bits}_{rows}x{vectors}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, TILE_TYPE)
    depth, a, a_row, a_k, b_pointer, b_k, b_vector, c, c_row, columns = function.args
    element = scalar_type(spec.accumulator)
    lanes, size = spec.lanes, item_size(spec.accumulator)
    vector = ir.VectorType(element, lanes)
    flipped = dot_bytes.flips(spec)
    link = dot_bytes.multiply_add_flipped if flipped else link_of(spec)
    with loop(b, 0, depth, init=[b_pointer, a, *[ir.Constant(vector, None)] * ((rows + flipped) * vectors)]) as it:
        b_now, a_now, *sums = it.values
        columns_of_b, pointer = [], b_now
        for v in range(vectors):
            pointer = pointer if v == 0 else offset(b, pointer, b_vector)
            columns_of_b.append(b.load(pointer, align=size, typ=vector))
        pointer = a_now
        for row in range(rows):
            pointer = pointer if row == 0 else offset(b, pointer, a_row)
            x = splat(b, b.load(pointer, align=size, typ=element), lanes)
            for v in range(vectors):
                at = row * vectors + v
                sums[at] = link(b, x, columns_of_b[v], sums[at])
        for v in range(vectors if flipped else 0):  # a row of zeros
            sums[rows * vectors + v] = link(
                b, dot_bytes.flipped_zeros(vector), columns_of_b[v], sums[rows * vectors + v]
            )
        it.advance(offset(b, b_now, b_k), offset(b, a_now, a_k), *sums)
    masks = [lane_mask(b, lanes, b.sub(columns, I64(v * lanes))) for v in range(vectors)]
    totals = it.results[2:]
    for row in range(rows):
        for v in range(vectors):
            total = totals[row * vectors + v]
            total = b.sub(total, totals[rows * vectors + v]) if flipped else total
            masked_store(b, total, offset(b, c, v * lanes * size), masks[v], size)
        c = offset(b, c, c_row)
    b.ret_void()
    return function


def add_sums(module: ir.Module, spec: TileSpec) -> ir.Function:
    """The function (internal to the module, added once) that adds the sums of a further chunk: ``c = c + sums``."""
    name = f"volta_dot_add_{spec.accumulator}_{spec.vector_bits}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, ADD_TYPE)
    c, c_row, sums, sums_row, rows, columns = function.args
    lanes, size = spec.lanes, item_size(spec.accumulator)
    vector = ir.VectorType(scalar_type(spec.accumulator), lanes)
    add = b.fadd if is_float(spec.accumulator) else b.add
    with for_range(b, 0, columns, lanes) as column:
        mask = lane_mask(b, lanes, b.sub(columns, column))
        start = b.mul(column, I64(size))
        with loop(b, 0, rows, init=[offset(b, c, start), offset(b, sums, start)]) as it:
            to, source = it.values
            before = masked_load(b, vector, to, mask, size)
            masked_store(b, add(before, b.load(source, align=size, typ=vector)), to, mask, size)
            it.advance(offset(b, to, c_row), offset(b, source, sums_row))
    b.ret_void()
    return function


def panel(module: ir.Module, spec: TileSpec) -> ir.Function:
    """The function (internal to the module, added once) for a few rows and all columns of a block, over one chunk.

    It sets ``c = sums`` if `first`, else ``c = c + sums``; the sums of a tile wait in `buffer` then.
    """
    name = f"volta_dot_panel_{dot_bytes.kind_of(spec)}_{spec.vector_bits}"
    found = module.globals.get(name)
    if found is not None:
        return found
    shapes = [
        (rows, tile(module, spec, rows, narrow), tile(module, spec, rows, 2)) for rows, narrow in tile_shapes(spec)
    ]
    add = add_sums(module, spec)
    function, b = new_internal(module, name, PANEL_TYPE)
    depth, a, a_row, a_k, b_pointer, b_k, b_vector, c, c_row, rows, columns, first, buffer, *further = function.args
    ahead, ahead_row, lines = further
    lanes, size = spec.lanes, item_size(spec.accumulator)
    with loop(b, 0, rows, init=[a, c]) as down:
        rest = b.sub(rows, down.index)
        chosen: list[ir.Value] = []  # for the tallest tile that fits: its height, narrow and wide form
        for height, *forms in reversed(shapes):
            this = [I64(height), *forms]
            fits = b.icmp_signed(">=", rest, I64(height))
            chosen = [b.select(fits, new, old) for new, old in zip(this, chosen, strict=True)] if chosen else this
        down.step, narrow, wide = chosen
        a_now, c_now = down.values
        with loop(b, 0, columns, spec.tile_cols, [b_pointer, c_now]) as across:
            b_now, to = across.values
            width = minimum(b, b.sub(columns, across.index), spec.tile_cols)
            asked = b.mul(b.udiv(across.index, I64(spec.tile_cols)), lines)
            with for_range(b, 0, lines) as line:
                place = at(b, ahead, (b.add(asked, line), I64(LINE)))
                with loop(b, 0, spec.tile_rows, init=[place], some=True) as row:
                    prefetch(b, row.values[0], near=2)
                    row.advance(offset(b, row.values[0], ahead_row))
            two = b.icmp_signed(">", width, I64(lanes))
            second = b.select(two, b_vector, I64(0))
            sums = b.select(first, to, buffer), b.select(first, c_row, I64(spec.tile_cols * size))
            b.call(b.select(two, wide, narrow), [depth, a_now, a_row, a_k, b_now, b_k, second, *sums, width])
            with if_then(b, b.not_(first)):
                b.call(add, [to, c_row, *sums, down.step, width])
            across.advance(offset(b, b_now, b.shl(b_vector, I64(1))), offset(b, to, spec.tile_cols * size))
        down.advance(offset(b, a_now, b.mul(down.step, a_row)), offset(b, c_now, b.mul(down.step, c_row)))
    b.ret_void()
    return function


def new_internal(module: ir.Module, name: str, kind: ir.FunctionType) -> tuple[ir.Function, ir.IRBuilder]:
    """Add a function that only other functions of the module call; with a builder at its entry block."""
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def store_sums(
    b: ir.IRBuilder,
    spec: TileSpec,
    sums: ir.Value,
    sums_row: ir.Value,
    out: ir.Value,
    out_row: ir.Value,
    rows: ir.Value,
    columns: ir.Value,
) -> None:
    """Round complete sums to the output's dtype (integers wrap around); strides of rows in bytes."""
    whole = b.and_(columns, I64(-spec.lanes))
    with for_range(b, 0, rows) as row:
        source, to = at(b, sums, (row, sums_row)), at(b, out, (row, out_row))
        for lanes, start, stop in ((spec.lanes, I64(0), whole), (1, whole, columns)):
            builder = Builder(b, lanes)
            with for_range(b, start, stop, lanes) as column:
                pointer = at(b, source, (column, I64(item_size(spec.accumulator))))
                value = builder.cast(builder.load(pointer, spec.accumulator), spec.out)
                to_column = at(b, to, (column, I64(item_size(spec.out))))
                builder.store(value, to_column, spec.out if spec.out in HALF_DTYPES else None)
