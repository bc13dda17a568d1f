"""The CPU backend, as the runtime sees it."""

from __future__ import annotations

from volta.numba_cpu import launch, lower, target
from volta.xla_like import control_calls
from volta.xla_like.plan import ExecutionPlan

NAME = "cpu"

KERNEL_CLASSES = ("loop", "combine", *lower.LIBRARY, *control_calls.KINDS)
"""Every one of them is strict on the CPU."""

TILES = False
"""Epilogues of products run behind them, band by band."""


def vector_bits() -> int:
    """Width of the vector registers that kernels use."""
    return target.vector_bits()


def complete(plan: ExecutionPlan, device: None = None) -> ExecutionPlan:
    """The plan with what the backend adds to it: nothing on the CPU."""
    return plan


def prepare(
    plan: ExecutionPlan, const_addresses: tuple[int, ...], keep: object, device: None = None
) -> launch.Executable:
    """Compile a plan and bind its constants; see :func:`volta.numba_cpu.lower.lower`."""
    return lower.lower(plan, const_addresses, keep)
