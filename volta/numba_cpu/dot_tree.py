"""The tree of DOT in memory: sums of blocks of k wait, a level of the tree behind the other, for their neighbours."""

from llvmlite import ir

from volta.emit.builder import is_float, scalar_type
from volta.emit.dot_args import at
from volta.emit.loops import I1, I64, PTR, VOID, for_range, if_then
from volta.emit.pairs import joined_levels, level_of
from volta.numba_cpu.dot_schedule import TileSpec
from volta.numba_cpu.dot_tile import lane_mask, masked_load, masked_store, new_internal
from volta.xla_like.dot import item_size

JOIN_TYPE = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, I64, I64, I64, I1])
"""``join(c, c_row, tree, tree_row, tree_level, rows, columns, number, last)``; strides in bytes."""


def join(module: ir.Module, spec: TileSpec) -> ir.Function:
    """The function (internal to the module, added once) that joins the sums of block `number` of k with others.

    It adds to `c` the sums that are the block's left neighbours, level by level, and leaves what that gives in the
    tree; behind the `last` block, in `c`. Row by row, so that a row stays in the nearest cache from level to level.
    """
    name = f"volta_dot_join_{spec.accumulator}_{spec.vector_bits}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, b = new_internal(module, name, JOIN_TYPE)
    c, c_row, tree, tree_row, tree_level, rows, columns, number, last = function.args
    lanes, size = spec.lanes, item_size(spec.accumulator)
    vector = ir.VectorType(scalar_type(spec.accumulator), lanes)
    add = b.fadd if is_float(spec.accumulator) else b.add
    with for_range(b, 0, rows) as row:
        sums = at(b, c, (row, c_row))
        with joined_levels(b, number, last) as level:
            waiting = at(b, tree, (level, tree_level), (row, tree_row))
            with for_range(b, 0, columns, lanes) as column:
                mask, here = lane_mask(b, lanes, b.sub(columns, column)), (column, I64(size))
                left = b.load(at(b, waiting, here), typ=vector, align=size)
                right = masked_load(b, vector, at(b, sums, here), mask, size)
                masked_store(b, add(left, right), at(b, sums, here), mask, size)
        with if_then(b, b.not_(last)):
            to = at(b, tree, (level_of(b, number), tree_level), (row, tree_row))
            with for_range(b, 0, columns, lanes) as column:
                mask, here = lane_mask(b, lanes, b.sub(columns, column)), (column, I64(size))
                b.store(masked_load(b, vector, at(b, sums, here), mask, size), at(b, to, here), align=size)
    b.ret_void()
    return function
