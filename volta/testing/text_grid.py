"""Programs run by generated kernels for a GPU, on the host: the texts that numba-cuda would compile, thread by thread.

Import this module by itself: it needs what compiles for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.api.tracing import make_jaxpr
from volta.core import pytrees
from volta.numba_cuda.device_plan import DevicePlan
from volta.numba_cuda.host.host import Order, run_plan
from volta.numba_source.cuda.host import TextKernels
from volta.numba_source.cuda.planning import text_plan
from volta.runtime import gateway
from volta.testing.bits import assert_bits_equal


def plan_of_texts(
    f: Callable[..., Any], *args: Any, donated: Sequence[int] = ()
) -> tuple[DevicePlan, list[np.ndarray]]:
    """The plan that ``f(*args)`` has on a GPU with generated kernels, and its constants."""
    plan, program = gateway.plan_on_cuda(make_jaxpr(f)(*args), "main", donated, texts=True)
    return text_plan(plan), [np.asarray(c) for c in program.consts]


def check_texts(
    f: Callable[..., Any], *args: Any, orders: Sequence[Order] = ("shuffled",), donated: Sequence[int] = (),
    kernels: TextKernels | None = None,
) -> None:  # fmt: skip
    """Assert that a function's texts for a GPU have the CPU's bits on the host, in these orders of threads.

    Raises:
        AssertionError: other bits, or an access that a thread must not make.
    """
    plan, consts = plan_of_texts(f, *args, donated=donated)
    wanted = [np.asarray(x) for x in pytrees.leaves(jit(f)(*args))]
    leaves = [np.asarray(x) for x in pytrees.leaves(args)]
    for order in orders:
        report = run_plan(
            plan, leaves, consts, order=order, launches=plan.launches, races=False,
            kernels=TextKernels() if kernels is None else kernels,
        )  # fmt: skip
        if report.violations:
            raise AssertionError(f"threads in {order} order:\n" + "\n".join(map(str, report.violations[:8])))
        for got, want in zip(report.outputs, wanted, strict=True):
            assert_bits_equal(got, want)


__all__ = ["TextKernels", "check_texts", "plan_of_texts"]
