"""The CUDA backend, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Sequence

from volta.numba_cuda import driver, kernels, launch
from volta.xla_like.plan import ExecutionPlan

NAME = "cuda"

KERNEL_CLASSES = kernels.KERNEL_CLASSES


def vector_bits() -> int:
    """Shapes the CPU's tiles of products; CUDA chooses its own."""
    return 512


def prepare(plan: ExecutionPlan, const_addresses: Sequence[int], keep: object) -> launch.Executable:
    """Compile a plan and bind its constants, whose addresses are in device memory."""
    return launch.Executable(plan, const_addresses, keep)


__all__ = ["KERNEL_CLASSES", "NAME", "driver", "prepare", "vector_bits"]
