"""Plans of functions, without a machine that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta
from volta.core.ir import ClosedJaxpr
from volta.numba_cpu.schedule import Schedule
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.kernels import LoopKernel
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.scheduler import Scheduler

OPTIONS = CompileOptions()
CPU = Schedule(vector_bits=512)


def struct(*shape: int, dtype: Any = np.float32) -> volta.ShapeDtypeStruct:
    return volta.ShapeDtypeStruct(shape, np.dtype(dtype))


def program_of(f: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    return volta.make_jaxpr(f)(*args)


def plan_of(
    f: Callable[..., Any], *args: Any, options: CompileOptions = OPTIONS, donated: tuple = (),
    scheduler: Scheduler = CPU,
) -> ExecutionPlan:  # fmt: skip
    """The plan of a function for a CPU with 512-bit registers, whatever this machine has."""
    return build_plan(program_of(f, *args), options=options, donated=donated, scheduler=scheduler)[0]


def kernels(f: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """What kind of kernel each of a plan's calls runs: map, row, col, combine, or a library kernel's name."""
    found = [c.kernel for call in plan_of(f, *args, **options).calls for c in call.each()]
    return [k.mode if isinstance(k, LoopKernel) else k.text().split()[0] for k in found]
