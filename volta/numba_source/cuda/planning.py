"""A plan as generated kernels run it on a GPU. Asking needs neither a GPU nor numba-cuda."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from volta.numba_cuda.device_plan import DevicePlan, device_plan
from volta.numba_source.cuda.launches import Compile, TextSource, launches_of
from volta.numba_source.cuda.schedule import KERNEL_CLASSES, Schedule
from volta.xla_like.plan import ExecutionPlan

__all__ = ["KERNEL_CLASSES", "NAME", "scheduler", "text_plan"]

NAME = "cuda"

scheduler: Callable[[], Schedule] = Schedule


def _unread(source: TextSource, capability: str) -> str:
    raise AssertionError(f"{source.name} is there to be read")


def text_plan(plan: ExecutionPlan, capability: str = "9.0", compile_text: Compile = _unread) -> DevicePlan:
    """The plan with launches of generated kernels; without ``compile_text`` they can be read, and not loaded."""
    return device_plan(plan, capability, partial(launches_of, compile_text=compile_text))
