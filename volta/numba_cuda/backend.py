"""The CUDA backend, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Sequence

from volta.numba_cuda import device_plan, elsewhere
from volta.numba_cuda.codegen import modules
from volta.numba_cuda.device import boxes, driver, launch, pool, profile
from volta.numba_cuda.schedule import KERNEL_CLASSES, Schedule
from volta.xla_like.plan import ExecutionPlan

NAME = "cuda"


def scheduler() -> Schedule:
    """What decides how a plan's calls run."""
    return Schedule()


def complete(plan: ExecutionPlan, device: driver.Device | None) -> device_plan.DevicePlan:
    """The plan with its launches on a device, its workspace and its transfers; without one, on an H100 or H200."""
    return (
        device_plan.device_plan(plan)
        if device is None
        else device_plan.device_plan(plan, modules.capability_of(device))
    )


def prepare(
    plan: device_plan.DevicePlan, const_addresses: Sequence[int], keep: object, device: driver.Device
) -> launch.Executable:
    """Compile a plan and bind its constants, whose addresses are in the device's memory."""
    return launch.Executable(plan, const_addresses, device, keep)


__all__ = [
    "KERNEL_CLASSES", "NAME", "boxes", "complete", "driver", "elsewhere", "pool", "prepare", "profile", "scheduler",
]  # fmt: skip
