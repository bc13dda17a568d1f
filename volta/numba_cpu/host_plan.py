"""A plan as it runs on the CPU: the launches of its calls, and what memory each thread needs for them."""

from __future__ import annotations

import attrs

from volta.numba_cpu.launches import Launch
from volta.numba_cpu.schedule import Schedule
from volta.xla_like.kernels import kernel_name
from volta.xla_like.plan import ExecutionPlan


@attrs.frozen
class HostPlan(ExecutionPlan):
    """An ExecutionPlan with the launches of each of its calls. The plans that calls run are such plans too."""

    launches: tuple[tuple[Launch, ...], ...] = ()

    def all_launches(self) -> list[Launch]:
        """Every launch, those inside of loops and choices too, in order."""
        found: list[Launch] = []
        for call, launches in zip(self.calls, self.launches, strict=True):
            found += launches
            for plan in call.plans:
                assert isinstance(plan, HostPlan)
                found += plan.all_launches()
        return found

    @property
    def scratch_bytes(self) -> int:
        """Memory that each thread that takes part needs for itself."""
        return max((x.scratch_bytes for x in self.all_launches()), default=0)

    def kernel_texts(self) -> dict[str, str]:
        """The readable text of each distinct kernel, by symbol, in order of first use."""
        return {kernel_name(x.kernel): x.kernel.text() for launch in self.all_launches() for x in launch.each()}


def host_plan(plan: ExecutionPlan, schedule: Schedule) -> HostPlan:
    """The plan with its launches."""
    fields = {f.name: getattr(plan, f.name) for f in attrs.fields(ExecutionPlan)}
    calls = tuple(
        attrs.evolve(c, plans=tuple(host_plan(p, schedule) for p in c.plans)) if c.plans else c for c in plan.calls
    )
    launches = tuple(tuple(schedule.launches(c, plan.buffers)) if c.tasks and not c.plans else () for c in plan.calls)
    return HostPlan(**fields | {"calls": calls}, launches=launches)
