"""Kernels compiled to run elsewhere: for processors like this one, or of a level of this one's architecture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

import attrs

from volta.emit import carried
from volta.emit.cache import StoredUnit
from volta.numba_cpu import fpenv, launch, target, threads, unit, watch
from volta.numba_cpu.host_plan import HostPlan, host_plan
from volta.numba_cpu.lower import kernel_calls, source_of
from volta.numba_cpu.schedule import Schedule
from volta.xla_like.plan import ExecutionPlan

HERE = "cpu"
"""The target that is this processor; others are ``cpu:`` and a level."""


@attrs.frozen
class Processor:
    """What plans and compiles for a target."""

    machine: target.Machine

    def scheduler(self) -> Schedule:
        """What decides how a plan's calls run there."""
        return Schedule(self.machine.vector_bits)

    def complete(self, plan: ExecutionPlan) -> HostPlan:
        """The plan with its launches there."""
        return host_plan(plan, self.scheduler())

    def made_by(self) -> dict[str, str]:
        """Everything that decides the machine code besides the kernels' texts."""
        with target.made_for(self.machine):
            return {**_interpreter(), **json.loads(unit.environment())}

    def units(self, plans: Sequence[ExecutionPlan]) -> tuple[StoredUnit, ...]:
        """The kernels of plans as one unit, and the loops that run them."""
        calls = {k: v for plan in plans if isinstance(plan, HostPlan) for k, v in kernel_calls(plan).items()}
        with target.made_for(self.machine):
            kernels = (unit.compile_unit([source_of(call.kernel) for call in calls.values()]),) if calls else ()
            return (*kernels, *(unit.module_unit(*loop) for loop in _loops()))


def processor(name: str) -> Processor:
    """What compiles for a target of `names`."""
    return Processor(target.host() if name == HERE else target.named(name.removeprefix(f"{HERE}:")))


def names() -> list[str]:
    """The targets that can be compiled for here."""
    return [HERE, *(f"{HERE}:{level}" for level in target.LEVELS if target.is_x86())]


def why_not(made_by: Mapping[str, str]) -> str:
    """Why machine code cannot be used in this process; nothing where it can."""
    here = processor(HERE).made_by()
    level = target.LEVELS.get(made_by.get("cpu", "")) == made_by.get("features")
    for key in sorted({*here, *made_by}):
        theirs, ours = made_by.get(key), here.get(key)
        if theirs != ours and not (level and key in ("cpu", "features")):
            return f"made by {key} {theirs!s:.60}, and here is {ours!s:.60}"
    if not level:
        return ""
    host, found = target.host(), target.named(made_by["cpu"])
    wanted = [x[1:] for x in found.features.split(",") if x[0] == "+"]
    missing = [feature for feature in wanted if not host.has(feature)]
    if missing:
        return f"this processor ({host.cpu_name}) has no {', '.join(missing)}"
    if found.vector_bits != host.vector_bits:
        return f"its vectors have {found.vector_bits} bits, and plans for this processor have {host.vector_bits}"
    return ""


def admit(units: Iterable[StoredUnit]) -> None:
    """Let kernels be found in units that `why_not` has nothing against."""
    carried.admit(unit.environment(), units)


def _interpreter() -> dict[str, str]:
    return {"python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"}


def _loops() -> list[tuple[str, Sequence[str]]]:
    """Volta's own native loops, in the order in which they refer to each other."""
    return [
        (fpenv.text(), fpenv.EXPORTS), (watch.text(target.is_x86()), watch.EXPORTS),
        (threads.text(), threads.EXPORTS), (launch.text(), launch.EXPORTS),
    ]  # fmt: skip
