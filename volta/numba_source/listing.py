"""A plan's kernels for who reads them: one text for all, the text of one, and its function for Numba."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from volta.core.errors import ArgumentError
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.lower import kernel_calls
from volta.numba_source.backend import KERNELS
from volta.numba_source.compiling import dispatcher_of
from volta.numba_source.highlighted import PythonText
from volta.numba_source.numba_words import KERNEL
from volta.numba_source.text import Module
from volta.numba_source.texts import has_text, module_text, text_of_kernel
from volta.xla_like.compile import build_plan
from volta.xla_like.dot import Dot
from volta.xla_like.kernels import CombineKernel, IndexValue, KernelCall, Load, LoopKernel, kernel_name
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.user import is_user

BACKEND = KERNELS["njit"]

Named = TypeVar("Named")


def listing(plan: HostPlan) -> PythonText:
    """The plan as comments, then every kernel behind the calls that run it: a module of Python."""
    module, kernels = Module(), []
    runs = list(_runs(plan))
    for name, call in kernel_calls(plan).items():
        said = [x for which, x in runs if which == name]
        if is_user(call):
            said += [f"{name}: {call.kernel.text()}, a function of your own", *_own_lines(call)]
        function = [] if is_user(call) else [text_of_kernel(call, module).function]
        kernels.append("\n".join([*comments(said), *function]))
    return listed(ExecutionPlan.as_text(plan), module, kernels)


def comments(said: Sequence[str]) -> list[str]:
    """What is said above a function, as lines of comments."""
    folded = textwrap.TextWrapper(
        118, initial_indent="# ", subsequent_indent="#     ", break_long_words=False, break_on_hyphens=False
    )
    return [line for x in said for line in folded.wrap(x)]


def listed(plan: str, module: Module, kernels: Sequence[str]) -> PythonText:
    """A plan's text, what its kernels call, and these."""
    heading = "".join(f"# {line}\n" for line in plan.splitlines())
    functions = [*module.functions.values(), *kernels]
    return PythonText(heading + module_text(module.dialect, [*module.tables.values()], functions))


def source(plan: HostPlan, kernel: str) -> PythonText:
    """The text of one kernel, as a module of its own; of a kernel of the user's own, his function's."""
    call = _call(plan, kernel)
    return PythonText(inspect.getsource(_own(call).py_func) if is_user(call) else text_of_kernel(call).source)


def dispatcher(plan: HostPlan, kernel: str) -> Any:
    """One kernel as Numba's dispatcher, compiled as a plan runs it; of a kernel of the user's own, theirs."""
    call = _call(plan, kernel)
    if is_user(call):
        return _own(call)
    found = dispatcher_of(text_of_kernel(call))
    found.compile(KERNEL)
    return found


def text_plan(plan: HostPlan, program: ClosedJaxpr) -> HostPlan:
    """The plan as generated kernels run it. Small loops are the kernels of their bodies; what LLVM alone has kernels
    for, as it means a program of others, is that program."""
    if not any(isinstance(c.kernel, Dot) and c.kernel.spec.blocks for call in plan.calls for c in call.nested()):
        found = BACKEND.complete(plan)
        if all(has_text(call.kernel) or is_user(call) for call in kernel_calls(found).values()):
            return found
    again, _ = build_plan(
        program, name=plan.name, donated=plan.donated, level=plan.level, scheduler=BACKEND.scheduler()
    )
    return BACKEND.complete(again)


def _own(call: KernelCall) -> Any:
    return call.kernel.spec.kernel.cpu  # type: ignore[union-attr]


def _own_name(call: KernelCall) -> str:
    return str(call.kernel.spec.kernel.name)  # type: ignore[union-attr]


def _own_lines(call: KernelCall) -> list[str]:
    """The source of a function of the user's own, where it is known."""
    try:
        return inspect.getsource(_own(call).py_func).splitlines()
    except (OSError, TypeError):
        return []


def _call(plan: HostPlan, kernel: str) -> KernelCall:
    """The first call of a kernel that is named, or whose name alone has this part."""
    calls = kernel_calls(plan)
    own = {_own_name(call): call for call in calls.values() if is_user(call)}
    return own[kernel] if kernel in own else named(plan, kernel, calls)


def named(plan: ExecutionPlan, kernel: str, kernels: Mapping[str, Named]) -> Named:
    """That of a plan's kernels, by name, which has this name, or alone has this part in it.

    Raises:
        ArgumentError: none has, or several have.
    """
    if not isinstance(kernel, str):
        raise ArgumentError(at_user_line(f"a kernel is asked for by its name or a part of it, got {kernel!r:.60}"))
    found = [name for name in kernels if kernel == name] or [name for name in kernels if kernel in name]
    if len(found) != 1:
        problem = f"{len(found)} kernels whose names have {kernel!r} in them" if found else f"no kernel {kernel!r}"
        there = ", ".join(kernels) or "none"
        raise ArgumentError(at_user_line(f"plan {plan.name!r} has {problem}; there are {there}"))
    return kernels[found[0]]


def _runs(plan: HostPlan, around: str = "call ") -> Iterator[tuple[str, str]]:
    """The name of each kernel that runs, and what a call gives it: call 5.2 is the third of the plan that call 5 runs,
    or in a choice of the plan in brackets."""
    for number, (call, launches) in enumerate(zip(plan.calls, plan.launches, strict=True)):
        for x in (part for launch in launches for part in launch.each() if not part.functions):
            yield kernel_name(x.kernel), described(f"{around}{number}", plan, x.call)
        for i, nested in enumerate(call.plans):
            assert isinstance(nested, HostPlan)
            yield from _runs(nested, f"{around}{number}{f'[{i}]' if len(call.plans) > 1 else ''}.")


def described(what: str, plan: ExecutionPlan, call: KernelCall) -> str:
    """What a call gives its kernel: its buffers under the names that the text has for them."""
    return f"{what}{f', {call.label}' if call.label else ''}: {_operands(plan, call)}"


def _operands(plan: ExecutionPlan, call: KernelCall) -> str:
    """The buffers; behind a view's how many bytes in it begins, where it begins within."""

    def buffer(number: int, distance: int = 0) -> str:
        b = plan.buffers[number]
        label = f" {b.label}" if b.kind == "input" and b.label else ""
        return f"b{number}{label} {b.aval.strip_weak()}{f' + {distance} bytes' if distance else ''}"

    if not isinstance(call.kernel, LoopKernel):
        names = "part" if isinstance(call.kernel, CombineKernel) else "from"
        return f"{names} {', '.join(map(buffer, call.reads))}; into {', '.join(map(buffer, call.writes))}"
    count = sum(isinstance(x, (Load, IndexValue)) for x in call.kernel.body)
    inputs = [(f"in{i}", a) for i, a in enumerate(call.accesses[:count])]
    outputs = [(f"out{i}", a) for i, a in enumerate(call.accesses[count:])]
    given = ((name, a.buffer, a.offset) for name, a in (*inputs, *outputs))
    return ", ".join(f"{name} = {buffer(number, at)}" for name, number, at in given if number is not None)
