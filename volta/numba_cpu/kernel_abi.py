"""The ABI of the CPU's kernels: ``void kernel(int64* args, int64 begin, int64 end, int64 scratch)``.

``args`` are words of 64 bits (sizes, addresses, strides), ``begin`` to ``end`` are tasks, and ``scratch`` is the
address of memory of the thread's own.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.loops import I64, PTR, VOID

KERNEL_TYPE = ir.FunctionType(VOID, [PTR, I64, I64, I64])


def new_kernel(module: ir.Module, name: str) -> tuple[ir.Function, ir.IRBuilder]:
    """Add an empty function of the kernel ABI to `module`; returns it with a builder at its entry block.

    The function's arguments are named ``args, begin, end, scratch``.  The caller ends it with ``ret_void``.
    """
    function = ir.Function(module, KERNEL_TYPE, name)
    for argument, label in zip(function.args, ("args", "begin", "end", "scratch"), strict=True):
        argument.name = label
    return function, ir.IRBuilder(function.append_basic_block("entry"))
