"""Kernels compiled to run elsewhere: as PTX or machine code for a named compute capability, with or without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from volta.core.policy import DeterminismLevel
from volta.emit import carried
from volta.emit.cache import StoredUnit
from volta.emit.jobs import in_threads
from volta.numba_cuda.codegen import modules, nvjitlink, ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device.driver import Device
from volta.numba_cuda.device_plan import DevicePlan, device_plan
from volta.numba_cuda.launches import every
from volta.numba_cuda.schedule import Schedule
from volta.xla_like.plan import ExecutionPlan

_CUBIN = ":cubin"
_CAPABILITIES = {processor: capability for capability, (processor, _) in ptx.CAPABILITIES.items()}


@attrs.frozen
class Gpu:
    """What plans and compiles for a target."""

    capability: str
    cubin: bool

    def scheduler(self) -> Schedule:
        """What decides how a plan's calls run."""
        return Schedule()

    def complete(self, plan: ExecutionPlan) -> DevicePlan:
        """The plan with its launches there."""
        return device_plan(plan, self.capability)

    def made_by(self) -> dict[str, str]:
        """Everything that decides the code besides the kernels' texts."""
        found = modules.made_by(self.capability)
        if self.cubin:
            found["nvjitlink"] = ".".join(map(str, nvjitlink.library_for(self.capability).version))
        return found

    def units(self, plans: Sequence[ExecutionPlan]) -> tuple[StoredUnit, ...]:
        """The kernels of plans, each a unit of its own, as a device compiles them.

        Raises:
            DeviceError: there is no nvJitLink for a cubin.
            AssertionError: the text breaks a rule of strict kernels (a bug of Volta's).
        """
        on_device = [plan for plan in plans if isinstance(plan, DevicePlan)]
        sources = {x.source.name: x.source for plan in on_device for x in every(plan.launches)}
        assembler = nvjitlink.library_for(self.capability) if self.cubin else None
        strict = all(plan.level is DeterminismLevel.STRICT for plan in plans)

        def compiled(source: KernelSource, text: str) -> StoredUnit:
            text = ptx.assemble(text, self.capability)
            broken = ptx.violations(text) if strict else []
            if broken:
                raise AssertionError(f"{source.name} for {self.capability}: " + "; ".join(broken))
            code = text.encode() if assembler is None else assembler.assemble(text, self.capability).code
            return StoredUnit({source.name: source.text}, (code,))

        calls = ((source, ptx.emit_text([source], self.capability)) for source in sources.values())
        return tuple(in_threads(compiled, calls, ptx.workers(len(sources))))


def processor(name: str) -> Gpu:
    """What compiles for a target of `names`."""
    return Gpu(_CAPABILITIES[name.removesuffix(_CUBIN)], name.endswith(_CUBIN))


def names() -> list[str]:
    """The targets that can be compiled for: PTX, and with ``:cubin`` machine code."""
    return [*_CAPABILITIES, *(f"{name}{_CUBIN}" for name in _CAPABILITIES)]


def why_not(made_by: Mapping[str, str], device: Device) -> str:
    """Why code cannot be used on a device; nothing where it can."""
    for key, ours in modules.made_by(modules.capability_of(device)).items():
        if made_by.get(key) != ours:
            return f"made by {key} {made_by.get(key)!s:.60}, and for {device.name} it is {ours:.60}"
    return ""


def admit(units: Iterable[StoredUnit], device: Device) -> None:
    """Let kernels be found in units that `why_not` has nothing against."""
    carried.admit(modules.carried_for(device), units)
