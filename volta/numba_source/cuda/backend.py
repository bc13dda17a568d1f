"""The CUDA backend with generated kernels: the same launches, graphs and memory, other kernels. It needs numba-cuda."""

from __future__ import annotations

from volta.numba_cuda.backend import prepare
from volta.numba_cuda.codegen import modules
from volta.numba_cuda.device.driver import Device
from volta.numba_cuda.device_plan import DevicePlan
from volta.numba_source.cuda.compiling import ptx_of
from volta.numba_source.cuda.planning import KERNEL_CLASSES, NAME, scheduler, text_plan
from volta.xla_like.plan import ExecutionPlan


def complete(plan: ExecutionPlan, device: Device) -> DevicePlan:
    """The plan with its launches on a device."""
    return text_plan(plan, modules.capability_of(device), ptx_of)


__all__ = ["KERNEL_CLASSES", "NAME", "complete", "prepare", "scheduler"]
