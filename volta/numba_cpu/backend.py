"""The CPU backend, as the runtime sees it."""

from __future__ import annotations

from volta.numba_cpu import elsewhere, host_plan, launch, lower, target
from volta.numba_cpu.library import compile_library as library
from volta.numba_cpu.schedule import HANDLERS, Schedule
from volta.xla_like.plan import ExecutionPlan

NAME = "cpu"

KERNEL_CLASSES = {name: handler.level for name, handler in HANDLERS.items() if name != "joined"}
"""Classes of kernels, each with the strongest level at which it is deterministic: joined calls have their parts'."""


def scheduler(general: bool = False) -> Schedule:
    """What decides how a plan's calls run."""
    return Schedule(target.vector_bits(), general)


def complete(plan: ExecutionPlan, device: None = None, general: bool = False) -> host_plan.HostPlan:
    """The plan with its launches."""
    return host_plan.host_plan(plan, scheduler(general))


def prepare(
    plan: host_plan.HostPlan, const_addresses: tuple[int, ...], keep: object, device: None = None
) -> launch.Executable:
    """Compile a plan and bind its constants; see :func:`volta.numba_cpu.lower.lower`."""
    return lower.lower(plan, const_addresses, keep)


__all__ = ["KERNEL_CLASSES", "NAME", "complete", "elsewhere", "library", "prepare", "scheduler"]
