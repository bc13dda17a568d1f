"""Programs run by their CUDA kernels on the host, without a GPU: an honest check of grids, index arithmetic and bits.

See `volta.numba_cuda.host.host` for what is checked. Import this module by itself: it needs what compiles for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.api.tracing import make_jaxpr
from volta.core import pytrees
from volta.numba_cuda.host.host import HostKernels, Order, Report, run_plan
from volta.offline import plan_on_cuda
from volta.testing.bits import assert_bits_equal, elements

ORDERS: tuple[Order, ...] = ("ascending", "descending", "shuffled")
OPPOSITE: tuple[Order, ...] = ("ascending", "descending")


def run_on_host(
    f: Callable[..., Any], *args: Any, order: Order = "ascending", donated: Sequence[int] = (),
    kernels: HostKernels | None = None, capability: str = "9.0",
) -> Report:  # fmt: skip
    """Run a function by its CUDA kernels on the host: the leaves of its results, and what the kernels did wrong.

    ``donated`` are positions among the leaves of the arguments. ``kernels`` keeps what was compiled for the next call.
    """
    plan, consts = plan_on_cuda(make_jaxpr(f)(*args), donated=donated)
    leaves = [elements(x) for x in pytrees.leaves(args)]  # of keys their words
    return run_plan(plan, leaves, [np.asarray(c) for c in consts], order=order, kernels=kernels, capability=capability)


def check_on_host(
    f: Callable[..., Any], *args: Any, orders: Sequence[Order] = OPPOSITE, donated: Sequence[int] = (),
    kernels: HostKernels | None = None, capability: str = "9.0",
) -> None:  # fmt: skip
    """Assert that a function's CUDA kernels have the CPU's bits on the host, whatever the order of threads and blocks.

    Raises:
        AssertionError: other bits, or an access that a kernel must not make.
    """
    kernels = kernels or HostKernels()
    wanted = pytrees.leaves(jit(f)(*args))
    for order in orders:
        report = run_on_host(f, *args, order=order, donated=donated, kernels=kernels, capability=capability)
        if report.violations:
            raise AssertionError(f"threads in {order} order:\n" + "\n".join(map(str, report.violations[:8])))
        for got, want in zip(report.outputs, wanted, strict=True):
            assert_bits_equal(got, elements(want))


__all__ = ["ORDERS", "HostKernels", "Report", "check_on_host", "run_on_host"]
