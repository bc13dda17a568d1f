"""The kernel that finishes a reduction by blocks."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, compute_dtype, item_size
from volta.emit.loops import I64, for_range, load_arg, load_pointer, offset
from volta.emit.reducers import BlockTree, Reducer
from volta.numba_cpu.kernel_abi import new_kernel
from volta.xla_like.kernels import CombineKernel


def build_combine(module: ir.Module, name: str, kernel: CombineKernel) -> ir.Function:
    """Add the function that finishes a reduction. Args: rows, blocks, partial results [blocks, rows]…, out."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    reducer = Reducer(kernel.kind, compute_dtype(kernel.dtype.name))
    rows, blocks = load_arg(b, args, 0), load_arg(b, args, 1)
    partials = [load_pointer(b, args, 2 + p) for p in range(len(reducer.state_dtypes))]
    out = load_pointer(b, args, 2 + len(partials))
    tree, one = BlockTree(b, reducer, 1), Builder(b, 1)
    with for_range(b, begin, end) as row:
        tree.start()
        with for_range(b, 0, blocks) as block:
            at = b.add(b.mul(block, rows), row)
            state = tuple(
                one.load(offset(b, pointer, b.mul(at, I64(item_size(d)))), d)
                for pointer, d in zip(partials, reducer.state_dtypes, strict=True)
            )
            tree.push(state, block)
        result = reducer.result(tree.finish())
        dtype = kernel.out_dtype.name
        if result.dtype != compute_dtype(dtype):
            result = one.cast(result, dtype)
        one.store(result, offset(b, out, b.mul(row, I64(kernel.out_dtype.itemsize))), dtype)
    b.ret_void()
    return function
