"""The gateway: the only door to execution.

Every operation, eager or jitted, training or inference, becomes a plan here, is checked (determinism, capabilities,
memory budget) and gets an :class:`Executable` from the backend. Nothing else calls a backend; a test holds that.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs

from volta.core.collector import uncollected
from volta.core.errors import DeviceError, MemoryBudgetError
from volta.core.floats import standard
from volta.core.ir import ClosedJaxpr
from volta.core.later import import_later
from volta.core.locks import free_in_children
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.emit.cache import StoredUnit
from volta.emit.jobs import shielded
from volta.runtime import devices
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.capabilities import BackendCapabilities
from volta.runtime.compile_log import Watch
from volta.runtime.context import ON_GPUS, ExecutionContext, current_context
from volta.runtime.deferred import Deferred, gpu_of
from volta.runtime.device_executable import DeviceExecutable
from volta.runtime.executable import Executable, passed
from volta.runtime.nans import Watched
from volta.runtime.not_here import NotHere, refuse
from volta.runtime.parts import Parts, in_parts
from volta.runtime.plan_cache import PLAN_CACHE, has_constants, program_key
from volta.xla_like.compile import build_plan
from volta.xla_like.passes import Evaluate
from volta.xla_like.plan import ExecutionPlan

BACKENDS: dict[str, tuple[Any, BackendCapabilities]] = {}
"""Backends that are loaded: by the first program that asks for one. (Seen: half of what `import volta` took was Numba.)
"""


DeviceKey = tuple[str, int]
"""A backend and the number of its device."""


def _backend(name: str, kernels: str = "llvm") -> tuple[Any, BackendCapabilities]:
    if name == "cuda" and kernels not in ("llvm", ON_GPUS):
        refuse(kernels, "the CPU", "use 'cuda.jit' on a GPU")
    if name == "cpu" and kernels not in ("llvm", ON_GPUS):
        return import_later("volta.numba_source.backend").KERNELS[kernels], cpu_capabilities()
    if name == "cpu" and name not in BACKENDS:
        BACKENDS["cpu"] = (cpu_backend(), cpu_capabilities())
    if name == "cuda" and name not in BACKENDS:
        BACKENDS["cuda"] = (devices.cuda(), cuda_capabilities())
    if name not in BACKENDS:
        raise DeviceError(f"no backend {name!r}; there are 'cpu' and 'cuda'")
    if name == "cuda" and kernels == ON_GPUS:
        return import_later("volta.numba_source.cuda.backend"), texts_on_cuda()
    return BACKENDS[name]


@shielded
def cpu_backend() -> Any:
    """The CPU's backend. Its modules compute constants, and Numba's would not bear to be interrupted."""
    return import_later("volta.numba_cpu.backend")


@functools.cache
def cpu_capabilities() -> BackendCapabilities:
    """What the CPU's backend can run."""
    return BackendCapabilities("cpu", tuple(cpu_backend().KERNEL_CLASSES.items()))


def cuda_capabilities() -> BackendCapabilities:
    """What the CUDA backend can run; asking needs no GPU."""
    return BackendCapabilities("cuda", devices.cuda_kernel_classes())


def texts_on_cuda() -> BackendCapabilities:
    """What the CUDA backend can run on generated kernels: nothing that is not strict."""
    classes = devices.cuda_kernel_classes()
    return BackendCapabilities("cuda", tuple(c for c in classes if c[1] is DeterminismLevel.STRICT))


def _texts() -> Any:
    """What plans for generated kernels on a GPU; it needs neither one nor what compiles them."""
    return import_later("volta.numba_source.cuda.planning")


_lock = threading.RLock()
free_in_children(globals(), "_lock")


@standard
@uncollected
def compile(  # noqa: A001 - the gateway's one verb
    program: ClosedJaxpr,
    *,
    donated: Sequence[int] = (),
    name: str = "main",
    context: ExecutionContext | None = None,
    why: Callable[[], str] | None = None,
    arguments: Sequence[Any] = (),
) -> Executable:
    """Compile a program for the current (or a given) execution context. ``why`` is for who has asked for a log.

    It will run where its ``arguments`` lie: where that is known and is another device, the context's is deferred.

    The same program under the same context is compiled once: the plan cache compares the whole key, never a hash alone.
    A program with constants is compiled anew.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
        MemoryBudgetError: the plan's peak exceeds the context's budget; says what takes the bytes.
        DeviceError: the context names a backend that is not there.
    """
    context = context or current_context()
    _backend(context.backend, context.kernels)
    with _lock:
        key = None if has_constants(program) else program_key(program, tuple(donated), name, context)
        found = None if key is None else PLAN_CACHE.get(key)
        if found is not None:
            return found
        if in_parts(program):
            part = functools.partial(compile, name=f"a part of {name}", context=context)
            return Parts(program, name, context.level, part)  # type: ignore[return-value]
        if context.refused:
            unwatched = attrs.evolve(context, refused=())
            whole = compile(program, name=name, context=unwatched, why=why)
            part = functools.partial(compile, name=f"a part of {name}", context=unwatched)
            return Watched(whole, program, name, context.refused, part)  # type: ignore[return-value]
        near = gpu_of(arguments)
        if near is not None and ("cuda", near.index) != (context.backend, context.device):
            again = functools.partial(compile, program, donated=donated, name=name)

            def on(device: Any) -> ExecutionContext:
                return context if device is None else attrs.evolve(context, backend="cuda", device=device.index)

            there = again(context=on(near), why=why)
            return Deferred(near, there, lambda device: again(context=on(device)))  # type: ignore[return-value]
        watch = Watch(program, name, f"{context.backend}:{context.device}", why)

        @functools.cache
        def elsewhere(device: int) -> Executable:
            there = attrs.evolve(context, backend="cuda", device=device)
            return compile(program, donated=donated, name=name, context=there)

        def build(
            part: ClosedJaxpr, name: str, donated: Sequence[int], evaluate: Evaluate | None, where: DeviceKey
        ) -> Executable:
            backend, capabilities = _backend(where[0], context.kernels)
            gpu = devices.gpu(f"cuda:{where[1]}") if where[0] == "cuda" else None

            def complete(plan: ExecutionPlan) -> ExecutionPlan:
                return backend.complete(plan, gpu)

            plan, optimised = _planned(part, name, donated, context, backend, capabilities, evaluate, complete)
            watch.planned = perf_counter()
            plan = complete(plan)
            _check_budget(plan, context.memory_budget)
            consts = tuple(_resident(as_array(c), gpu) for c in optimised.consts)
            # Arrays of the plan's own: its kernels are bound to this memory, whatever becomes of the user's arrays.
            consts = tuple(passed(x.aval, x) for x in consts)
            bound = ClosedJaxpr(optimised.jaxpr, consts)
            if gpu is None and context.kernels == ON_GPUS and evaluate is not None:  # constants are the CPU's, always
                return NotHere(plan, bound, elsewhere)
            native = backend.prepare(plan, tuple(c.buffer().address if gpu else c.address for c in consts), consts, gpu)
            if gpu is None:
                return Executable(plan, bound, native, elsewhere)

            def as_texts() -> ExecutionPlan:
                if context.kernels == ON_GPUS:
                    return plan
                texts = _texts()
                found, _ = _planned(part, name, donated, context, texts, texts_on_cuda(), evaluate)
                return texts.text_plan(found)

            return DeviceExecutable(plan, bound, native, elsewhere, gpu, as_texts)

        def evaluate(constants: ClosedJaxpr) -> list[Any]:
            return [x.numpy() for x in build(constants, "constants", (), None, ("cpu", 0))([])]

        executable = build(program, name, donated, evaluate, (context.backend, context.device))
        if key is not None:
            PLAN_CACHE.put(key, executable)
        watch.done(executable.plan)
        return executable


def plan_on_cuda(
    program: ClosedJaxpr, name: str, donated: Sequence[int], texts: bool = False
) -> tuple[ExecutionPlan, ClosedJaxpr]:
    """The plan that a program has on a GPU in the current context, and the program that it implements. Asking needs no
    GPU; how it runs on one of a compute capability is `volta.numba_cuda`'s, or that of generated ``texts``.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
        MemoryBudgetError: the plan's peak exceeds the context's budget.
    """

    context = current_context()

    def evaluate(constants: ClosedJaxpr) -> list[Any]:
        here = attrs.evolve(context, kernels="llvm")
        return [x.numpy() for x in compile(constants, name="constants", context=here)([])]

    scheduling = _texts() if texts else devices.cuda_backend()
    capabilities = texts_on_cuda() if texts else cuda_capabilities()
    found = _planned(program, name, donated, context, scheduling, capabilities, evaluate)
    _check_budget(found[0], context.memory_budget)
    return found


def plan_here(program: ClosedJaxpr, name: str, donated: Sequence[int] = ()) -> ExecutionPlan:
    """The plan that a program would have in the current context, whether or not that passes its budget; no kernel is
    compiled. On a GPU without the tables of one of a kind, which asking for needs none.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
    """
    context = current_context()

    def evaluate(constants: ClosedJaxpr) -> list[Any]:
        here = attrs.evolve(context, kernels="llvm", backend="cpu", memory_budget=None)
        return [x.numpy() for x in compile(constants, name="constants", context=here)([])]

    if context.backend == "cuda":
        cuda = devices.cuda_backend()

        def on_device(plan: ExecutionPlan) -> ExecutionPlan:
            return cuda.complete(plan, None)

        found, _ = _planned(program, name, donated, context, cuda, cuda_capabilities(), evaluate, on_device)
        return on_device(found)
    cpu, capabilities = _backend("cpu")
    return cpu.complete(_planned(program, name, donated, context, cpu, capabilities, evaluate, cpu.complete)[0])


def c_library(program: ClosedJaxpr, name: str) -> Any:
    """A program as one C function ``name`` for processors like this one, see `volta.numba_cpu.library`.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
    """
    context = attrs.evolve(current_context(), kernels="llvm", backend="cpu")

    def evaluate(constants: ClosedJaxpr) -> list[Any]:
        return [x.numpy() for x in compile(constants, name="constants", context=context)([])]

    cpu, capabilities = _backend("cpu")
    plan, optimised = _planned(program, name, (), context, cpu, capabilities, evaluate)
    return cpu.library(cpu.complete(plan), [devices.fetch(as_array(x)).numpy() for x in optimised.consts], name)


def machine_code(
    programs: Sequence[ClosedJaxpr], name: str, donated: Sequence[int], target: str
) -> tuple[dict[str, str], tuple[StoredUnit, ...]]:
    """The kernels that running programs in the current context takes, compiled for a target of `machine_targets`, and
    by what they were made.

    Raises:
        UnsupportedOperationError: the backend has no kernel for an operation at the context's level.
        DeviceError: there is no assembler for a GPU's machine code.
    """
    context = attrs.evolve(current_context(), kernels="llvm", backend="cpu")
    backend, capabilities = _backend("cpu") if _on_cpu(target) else (devices.cuda_backend(), cuda_capabilities())
    there = backend.elsewhere.processor(target)
    plans: list[ExecutionPlan] = []

    def add(part: ClosedJaxpr, name: str, donated: Sequence[int], evaluate: Evaluate | None) -> None:
        plan, _ = _planned(part, name, donated, context, there, capabilities, evaluate, there.complete)
        plans.append(there.complete(plan))

    def evaluate(constants: ClosedJaxpr) -> list[Any]:
        if _on_cpu(target):  # they are computed there again; on a machine with a GPU, on its CPU
            add(constants, "constants", (), None)
        return [x.numpy() for x in compile(constants, name="constants", context=context)([])]

    for program in programs:
        add(program, name, donated, evaluate)
    return there.made_by(), there.units(plans)


def machine_targets() -> list[str]:
    """What kernels can be compiled for, to run elsewhere."""
    return [*cpu_backend().elsewhere.names(), *devices.cuda_backend().elsewhere.names()]


def admit_machine_code(target: str, made_by: Mapping[str, str], units: Sequence[StoredUnit]) -> str:
    """Let the kernels of units be used in this process, as long as somebody holds these. Returns why they cannot be."""
    if _on_cpu(target):
        here = cpu_backend().elsewhere
        why = here.why_not(made_by)
        if not why:
            here.admit(units)
        return why
    try:
        names = devices.names("cuda")
    except DeviceError as error:
        return str(error)
    found, refused = devices.cuda_backend().elsewhere, ""
    reasons = {name: found.why_not(made_by, devices.gpu(name)) for name in names}
    for name, why in reasons.items():
        refused = refused or why
        if not why:
            found.admit(units, devices.gpu(name))
    return refused if all(reasons.values()) else ""


def _on_cpu(target: str) -> bool:
    return target.partition(":")[0] == "cpu"


def _planned(
    program: ClosedJaxpr, name: str, donated: Sequence[int], context: ExecutionContext, backend: Any,
    capabilities: BackendCapabilities, evaluate: Evaluate | None,
    complete: Callable[[ExecutionPlan], ExecutionPlan] = lambda plan: plan,
) -> tuple[ExecutionPlan, ClosedJaxpr]:  # fmt: skip
    """The plan before the backend completes it; within the budget, if values that are computed again bring it there."""
    budget = context.memory_budget

    def excess(plan: ExecutionPlan) -> int:
        return complete(plan).peak_live_bytes - (budget or 0)

    plan, optimised = build_plan(
        program, name=name, donated=donated, level=context.level, options=context.options,
        scheduler=backend.scheduler(), evaluate=evaluate, excess=None if budget is None else excess,
    )  # fmt: skip
    capabilities.check(plan)
    return plan, optimised


def _resident(x: ConcreteArray, gpu: Any) -> ConcreteArray:
    """A constant, wherever it lies, in a GPU's memory, ready for any of its streams; in the host's without a GPU."""
    if gpu is None:
        return devices.fetch(x)
    placed = devices.place(x, gpu.name, gpu.main)
    return placed.block_until_ready()


def _check_budget(plan: ExecutionPlan, budget: int | None) -> None:
    if budget is not None and plan.peak_live_bytes > budget:
        raise MemoryBudgetError(
            at_user_line(
                f"plan {plan.name!r} needs {plan.peak_live_bytes:,} bytes at its peak; the budget is {budget:,}.\n"
                f"{plan.memory_report()}\nValues are computed again or moved already where that spares memory. Raise "
                "the budget, use smaller shapes, or put volta.checkpoint around the body of a scan."
            )
        )
