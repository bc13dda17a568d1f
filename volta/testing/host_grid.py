"""Programs run by their CUDA kernels on the host, without a GPU: an honest check of grids, index arithmetic and bits.

See `volta.numba_cuda.host` for what is checked. Import this module by itself: it needs what compiles for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.api.tracing import make_jaxpr
from volta.core import pytrees
from volta.core.ir import ClosedJaxpr
from volta.numba_cuda.host import HostKernels, Order, Report, run_plan
from volta.runtime import gateway
from volta.testing.bits import assert_bits_equal
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.plan import ExecutionPlan

ORDERS: tuple[Order, ...] = ("ascending", "descending", "shuffled")


def cuda_plan(program: ClosedJaxpr, donated: Sequence[int] = ()) -> tuple[ExecutionPlan, list[np.ndarray]]:
    """The plan that a program has on a GPU, and its constants."""

    def evaluate(constants: ClosedJaxpr) -> list[Any]:
        return [x.numpy() for x in gateway.compile(constants, name="constants")([])]

    plan, program = build_plan(program, donated=donated, options=CompileOptions(vector_bits=512), evaluate=evaluate)
    return plan, [np.asarray(c) for c in program.consts]


def run_on_host(
    f: Callable[..., Any], *args: Any, order: Order = "ascending", donated: Sequence[int] = (),
    kernels: HostKernels | None = None,
) -> Report:  # fmt: skip
    """Run a function by its CUDA kernels on the host: the leaves of its results, and what the kernels did wrong.

    ``donated`` are positions among the leaves of the arguments. ``kernels`` keeps what was compiled for the next call.
    """
    plan, consts = cuda_plan(make_jaxpr(f)(*args), donated)
    leaves = [np.asarray(x) for x in pytrees.leaves(args)]
    return run_plan(plan, leaves, consts, order=order, kernels=kernels)


def check_on_host(
    f: Callable[..., Any], *args: Any, orders: Sequence[Order] = ("ascending", "shuffled"), donated: Sequence[int] = (),
    kernels: HostKernels | None = None,
) -> None:  # fmt: skip
    """Assert that a function's CUDA kernels have the CPU's bits on the host, whatever the order of threads and blocks.

    Raises:
        AssertionError: other bits, or an access that a kernel must not make.
    """
    kernels = kernels or HostKernels()
    wanted = pytrees.leaves(jit(f)(*args))
    for order in orders:
        report = run_on_host(f, *args, order=order, donated=donated, kernels=kernels)
        if report.violations:
            raise AssertionError(f"threads in {order} order:\n" + "\n".join(map(str, report.violations[:8])))
        for got, want in zip(report.outputs, wanted, strict=True):
            assert_bits_equal(got, np.asarray(want))


__all__ = ["ORDERS", "HostKernels", "Report", "check_on_host", "cuda_plan", "run_on_host"]
