"""A plan's kernels for who reads them: one text for all, the text of one, and its function for Numba."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from volta.core.errors import ArgumentError
from volta.core.source import at_user_line
from volta.numba_cpu import backend as cpu
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.lower import kernel_calls
from volta.numba_source.compiling import dispatcher_of
from volta.numba_source.highlighted import PythonText
from volta.numba_source.numba_words import KERNEL
from volta.numba_source.text import Module
from volta.numba_source.texts import module_text, text_of_kernel
from volta.xla_like.kernels import CombineKernel, IndexValue, KernelCall, Load, LoopKernel, kernel_name
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import is_user

Named = TypeVar("Named")


def listing(plan: HostPlan) -> PythonText:
    """The plan as comments, then every kernel behind the calls that run it: a module of Python."""
    plan, module, kernels = _kernel_by_kernel(plan), Module(), []
    for name, call in kernel_calls(plan).items():
        function = (
            f"# {name}: {call.kernel.text()}, a function of your own"
            if is_user(call)
            else text_of_kernel(call, module).function
        )
        kernels.append("\n".join([*(f"# {line}" for line in _runs(plan, name)), function]))
    return listed(ExecutionPlan.as_text(plan), module, kernels)


def listed(plan: str, module: Module, kernels: Sequence[str]) -> PythonText:
    """A plan's text, what its kernels call, and these."""
    heading = "".join(f"# {line}\n" for line in plan.splitlines())
    functions = [*module.functions.values(), *kernels]
    return PythonText(heading + module_text(module.dialect, [*module.tables.values()], functions))


def source(plan: HostPlan, kernel: str) -> PythonText:
    """The text of one kernel, as a module of its own; of a kernel of the user's own, his function's."""
    call = _call(_kernel_by_kernel(plan), kernel)
    return PythonText(inspect.getsource(_own(call).py_func) if is_user(call) else text_of_kernel(call).source)


def dispatcher(plan: HostPlan, kernel: str) -> Any:
    """One kernel as Numba's dispatcher, compiled as a plan runs it; of a kernel of the user's own, his."""
    call = _call(_kernel_by_kernel(plan), kernel)
    if is_user(call):
        return _own(call)
    found = dispatcher_of(text_of_kernel(call))
    found.compile(KERNEL)
    return found


def _kernel_by_kernel(plan: HostPlan) -> HostPlan:
    """The plan as generated kernels run it: small loops too are the kernels of their bodies."""
    return cpu.complete(plan, small_loops=False)


def _own(call: KernelCall) -> Any:
    return call.kernel.spec.kernel.cpu  # type: ignore[union-attr]


def _call(plan: HostPlan, kernel: str) -> KernelCall:
    """The first call of a kernel that is named, or whose name alone has this part."""
    return named(plan, kernel, kernel_calls(plan))


def named(plan: ExecutionPlan, kernel: str, kernels: Mapping[str, Named]) -> Named:
    """That of a plan's kernels, by name, which has this name, or alone has this part in it.

    Raises:
        ArgumentError: none has, or several have.
    """
    found = [name for name in kernels if kernel == name] or [name for name in kernels if kernel in name]
    if len(found) != 1:
        problem = f"{len(found)} kernels whose names have {kernel!r} in them" if found else f"no kernel {kernel!r}"
        there = ", ".join(kernels) or "none"
        raise ArgumentError(at_user_line(f"plan {plan.name!r} has {problem}; there are {there}"))
    return kernels[found[0]]


def _runs(plan: HostPlan, name: str) -> list[str]:
    """What each call of a kernel gives it, for the lines above its function; of a nested plan the kernel alone."""
    lines = []
    for number, launches in enumerate(plan.launches):
        for x in (part for launch in launches for part in launch.each() if not part.functions):
            if kernel_name(x.kernel) == name:
                lines.append(described(f"call {number}", plan, x.call))
    return lines


def described(what: str, plan: ExecutionPlan, call: KernelCall) -> str:
    """What a call gives its kernel: its buffers under the names that the text has for them."""
    return f"{what}{f', {call.label}' if call.label else ''}: {_operands(plan, call)}"


def _operands(plan: ExecutionPlan, call: KernelCall) -> str:

    def buffer(number: int) -> str:
        b = plan.buffers[number]
        return f"b{number}{f' {b.label}' if b.kind == 'input' and b.label else ''} {b.aval.strip_weak()}"

    if not isinstance(call.kernel, LoopKernel):
        names = "part" if isinstance(call.kernel, CombineKernel) else "from"
        return f"{names} {', '.join(map(buffer, call.reads))}; into {', '.join(map(buffer, call.writes))}"
    count = sum(isinstance(x, (Load, IndexValue)) for x in call.kernel.body)
    inputs = [(f"in{i}", a) for i, a in enumerate(call.accesses[:count])]
    outputs = [(f"out{i}", a) for i, a in enumerate(call.accesses[count:])]
    return ", ".join(f"{name} = {buffer(a.buffer)}" for name, a in (*inputs, *outputs) if a.buffer is not None)
