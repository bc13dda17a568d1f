"""Kernels of the user's own on a GPU: ``@cuda.jit`` functions, launched with the grids that users give.

The function is PTX that numba-cuda writes (`target.user_ptx`); an entry of Volta's calls it, and both are linked. A
thread runs it for each element of the batch, one after the other. Results are zeros first, by a launch before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np
from llvmlite import ir

from volta.core.avals import ShapedArray
from volta.core.errors import KernelError, UnsupportedOperationError
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.emit.loops import I64
from volta.emit.user_args import UserSpec, user_words
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.ptx_semaphore import CLEAR_THREADS, build_clear
from volta.numba_cuda.codegen.threads import new_entry
from volta.numba_cuda.codegen.user_functions import called_in
from volta.numba_cuda.codegen.user_ptx import user_ptx
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Range
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import User

_MOST_THREADS = 1024


def check(plan: ExecutionPlan, capability: str) -> None:
    """Refuse what a strict plan may not run.

    Raises:
        UnsupportedOperationError: a kernel has no function for GPUs, or its PTX breaks the rules of strict kernels.
    """
    for call in plan.all_calls():
        if isinstance(call.kernel, User):
            spec = UserSpec.of(call.kernel)
            wrong = ptx.violations(_ptx_of(spec, capability)[0])
            if wrong and plan.level is DeterminismLevel.STRICT:
                raise UnsupportedOperationError(
                    at_user_line(
                        f"kernel `{spec.kernel.name}` has operations that level 'strict' has not on GPUs: "
                        f"{'; '.join(wrong[:3])}. Functions such as math.exp are approximate there. Run it in "
                        '`with volta.execution_context(level="device")`.'
                    )
                )


def _ptx_of(spec: UserSpec, capability: str) -> tuple[str, str]:
    gpu = spec.kernel.gpu.get("cuda")
    if gpu is None:
        name = spec.kernel.name
        raise UnsupportedOperationError(
            at_user_line(
                f"kernel `{name}` has no function for GPUs: give it one with @{name}.cuda(grid=, block=), "
                "above @numba.cuda.jit, or run it on the CPU"
            )
        )
    return user_ptx(gpu.function, spec, capability)


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """Launches that clear the results, and the kernel's own."""
    op, capability, nbytes = call.kernel, ctx.capability, ctx.nbytes
    assert isinstance(op, User)
    spec = UserSpec.of(op)
    for buffer in call.writes:
        words = -(-nbytes(buffer) // 4)
        if words:
            source = KernelSource("volta_clear_semaphores", "clear", build_clear)
            grid, place, region = -(-words // CLEAR_THREADS), ((0, buffer, 0),), (Range(buffer, 0, nbytes(buffer)),)
            yield Launch(source, grid, CLEAR_THREADS, (0, words), place, 0, "clear", writes=region)
    text, symbol = _ptx_of(spec, capability)
    grid, block = _shape_of_launch(op)
    source = KernelSource(
        f"{symbol}_{block}", text, partial(_build, symbol=symbol, block=block),
        lambda: (text, *called_in(text, capability)),
    )  # fmt: skip
    yield ctx.launch(source, grid, block, [*call.accesses, *user_words(call)], alone=True)


def _build(module: ir.Module, name: str, symbol: str, block: int) -> ir.Function:
    """The entry: it calls the user's function with the address of its args."""
    function, b = new_entry(module, name, block)
    user = ir.Function(module, ir.FunctionType(I64, [I64]), symbol)  # Numba's None is a word
    b.call(user, [b.ptrtoint(function.args[0], I64)])
    b.ret_void()
    return function


def _shape_of_launch(op: User) -> tuple[int, int]:
    """Blocks of the grid and threads of a block, as the user says for the operands of one element."""
    gpu = op.kernel.gpu["cuda"]
    avals = [ShapedArray(shape, np.dtype(dtype)) for dtype, shape in op.arrays[: op.reads]]
    grid, block = gpu.grid(avals), gpu.block(avals)
    if not (0 < prod(grid) < 1 << 31 and 0 < prod(block) <= _MOST_THREADS) or len(grid) != 1 or len(block) != 1:
        raise KernelError(
            at_user_line(
                f"kernel `{op.kernel.name}`: grid={grid} and block={block}: a block has 1 to {_MOST_THREADS} threads "
                "and a grid at least a block, each along one dimension (cuda.grid(1))"
            )
        )
    return grid[0], block[0]
