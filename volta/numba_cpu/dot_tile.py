"""The register tile of DOT: a few rows times two vectors of columns, over one chunk of k, in registers."""

from llvmlite import ir

from volta.emit.builder import is_float, scalar_type
from volta.emit.loops import I1, I32, I64, PTR, VOID, fma, intrinsic, loop, offset, splat
from volta.xla_like.dot_schedule import DotSpec, item_size

TILE_TYPE = ir.FunctionType(VOID, [I64, PTR, I64, I64, PTR, I64, I64, PTR, I64, I64, I1])
"""``tile(depth, a, a_row, a_k, b, b_k, b_vector, c, c_row, columns, first)``; strides in bytes."""

_ROWS_PER_POINTER = 3  # x86 addresses base, base + stride and base + 2 * stride without further registers


def tile_heights(spec: DotSpec) -> list[int]:
    """Heights of the tiles that exist, from the tallest down; any number of rows is a sum of them."""
    return [spec.tile_rows, *(h for h in (8, 4, 2, 1) if h < spec.tile_rows)]


def lane_mask(b: ir.IRBuilder, lanes: int, count: ir.Value) -> ir.Value:
    """``<lanes x i1>``: true in the first `count` lanes (an i64, which may be negative or beyond `lanes`)."""
    vector = ir.VectorType(I32, lanes)
    return b.icmp_signed("<", ir.Constant(vector, list(range(lanes))), splat(b, b.trunc(count, I32), lanes))


def multiply_add(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """One link of the chain: a fused multiply-add, or wrap-around integer arithmetic."""
    if isinstance(x.type.element, ir.IntType):
        return b.add(z, b.mul(x, y))
    return fma(b, x, y, z)


def tile(module: ir.Module, spec: DotSpec, rows: int, vectors: int) -> ir.Function:
    """The function (internal to the module, added once) for a tile of `rows` times `vectors`.

    It sets ``c = sum`` if `first`, else ``c = c + sum``, where sum is the chain over `depth` from +0.0. All columns
    of b are read, only the first `columns` of c are touched.
    """
    name = f"volta_dot_tile_{spec.accumulator}_{spec.vector_bits}_{rows}x{vectors}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, TILE_TYPE, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    depth, a, a_row, a_k, b_pointer, b_k, b_vector, c, c_row, columns, first = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    element = scalar_type(spec.accumulator)
    lanes, size = spec.lanes, item_size(spec.accumulator)
    vector = ir.VectorType(element, lanes)
    a_rows = [None, a_row, b.shl(a_row, I64(1))]
    groups = [a]
    while len(groups) * _ROWS_PER_POINTER < rows:
        groups.append(b.gep(groups[-1], [b.mul(a_row, I64(_ROWS_PER_POINTER))], source_etype=ir.IntType(8)))

    zero = ir.Constant(vector, [0.0 if is_float(spec.accumulator) else 0] * lanes)
    with loop(b, 0, depth, init=[b_pointer, *groups, *[zero] * (rows * vectors)]) as it:
        b_now, a_now, sums = it.values[0], it.values[1 : 1 + len(groups)], list(it.values[1 + len(groups) :])
        columns_of_b = [
            b.load(b_now if v == 0 else offset(b, b_now, b_vector), align=size, typ=vector) for v in range(vectors)
        ]
        for row in range(rows):
            pointer = a_now[row // _ROWS_PER_POINTER]
            step = a_rows[row % _ROWS_PER_POINTER]
            scalar = b.load(pointer if step is None else offset(b, pointer, step), align=size, typ=element)
            x = splat(b, scalar, lanes)
            for v in range(vectors):
                at = row * vectors + v
                sums[at] = multiply_add(b, x, columns_of_b[v], sums[at])
        it.advance(offset(b, b_now, b_k), *(offset(b, pointer, a_k) for pointer in a_now), *sums)
    sums = it.results[1 + len(groups) :]

    masks = [lane_mask(b, lanes, b.sub(columns, I64(v * lanes))) for v in range(vectors)]
    suffix = f"{vector.count}{element.intrinsic_name}"
    mask_type = masks[0].type
    read = intrinsic(module, f"llvm.masked.load.v{suffix}.p0", vector, [PTR, I32, mask_type, vector])
    write = intrinsic(module, f"llvm.masked.store.v{suffix}.p0", VOID, [vector, PTR, I32, mask_type])
    add = b.fadd if is_float(spec.accumulator) else b.add
    setting, adding = b.append_basic_block("set"), b.append_basic_block("add")
    b.cbranch(first, setting, adding)
    for block in (setting, adding):
        b.position_at_end(block)
        line = c
        for row in range(rows):
            for v in range(vectors):
                pointer, total = offset(b, line, v * lanes * size), sums[row * vectors + v]
                if block is adding:
                    total = add(b.call(read, [pointer, I32(size), masks[v], zero]), total)
                b.call(write, [total, pointer, I32(size), masks[v]])
            line = offset(b, line, c_row)
        b.ret_void()
    return function
