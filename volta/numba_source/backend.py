"""The CPU backend with generated kernels: the plans, launch tables and threads of `volta.numba_cpu`, other kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from volta.numba_cpu import backend as cpu
from volta.numba_cpu import lower
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.schedule import Schedule
from volta.numba_source.compiling import Addresses
from volta.numba_source.stepping import Stepped
from volta.numba_source.texts import KernelText, text_of_kernel
from volta.xla_like.kernels import KernelCall
from volta.xla_like.user import is_user


@attrs.frozen
class Native:
    """What runs a plan: ``call`` takes what a launch table's own does."""

    call: Callable[..., Any]
    keep: object


def _made(calls: Mapping[str, KernelCall]) -> tuple[list[KernelText], Mapping[str, int]]:
    """The texts of kernels; and the addresses of those of the user's own, which are Numba functions already."""
    own = {name: call for name, call in calls.items() if is_user(call)}
    return [text_of_kernel(call) for name, call in calls.items() if name not in own], lower.compiled(own)


def _njit(plan: HostPlan, const_addresses: tuple[int, ...], keep: object, device: None = None) -> Any:
    """Kernels compiled by Numba; see :func:`volta.numba_cpu.lower.lower`."""
    return lower.lower(plan, const_addresses, keep, lambda calls: Addresses(*_made(calls)))


def _python(plan: HostPlan, const_addresses: tuple[int, ...], keep: object, device: None = None) -> Native:
    """Kernels that Python runs, on the calling thread."""
    made: list[Stepped] = []

    def stepped(calls: Mapping[str, KernelCall]) -> Stepped:
        made.append(Stepped(*_made(calls)))
        return made[0]

    executable = lower.lower(plan, const_addresses, keep, stepped)
    made[0].table = executable.table
    return Native(made[0].around(executable.call), (executable, made[0]))


@attrs.frozen
class Backend:
    """The CPU backend with other kernels, as the runtime sees it."""

    prepare: Callable[..., Any]
    NAME: str = cpu.NAME
    scheduler: Callable[[], Schedule] = functools.partial(cpu.scheduler, general=True)
    complete: Callable[..., HostPlan] = functools.partial(cpu.complete, general=True)


KERNELS = {"njit": Backend(_njit), "python": Backend(_python)}
"""By what an execution context calls its ``kernels``."""
