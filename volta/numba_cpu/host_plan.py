"""A plan as it runs on the CPU: the launches of its calls, and what memory each thread needs for them."""

from __future__ import annotations

import attrs

from volta.numba_cpu.launches import Launch
from volta.numba_cpu.schedule import Schedule
from volta.numba_cpu.threads import get_num_threads
from volta.numba_cpu.work import work_of
from volta.xla_like.kernels import kernel_name
from volta.xla_like.plan import ExecutionPlan, aligned

PARALLEL_WORK = 1 << 17
"""Plans that touch fewer bytes (or do fewer operations in products) run on the calling thread alone."""


@attrs.frozen
class HostPlan(ExecutionPlan):
    """An ExecutionPlan with the launches of each of its calls. The plans that calls run are such plans too."""

    launches: tuple[tuple[Launch, ...], ...] = ()

    def all_launches(self) -> list[Launch]:
        """Every launch, those inside of loops and choices too, in order; a loop's own stand for its body's."""
        found: list[Launch] = []
        for call, launches in zip(self.calls, self.launches, strict=True):
            found += launches
            for plan in () if launches else call.plans:
                assert isinstance(plan, HostPlan)
                found += plan.all_launches()
        return found

    @property
    def scratch_bytes(self) -> int:
        """Memory that each thread that takes part needs for itself."""
        return max((x.scratch_bytes for x in self.all_launches()), default=0)

    @property
    def work(self) -> int:
        """A rough count of bytes touched and operations done."""
        return work_of(self)

    @property
    def parallel(self) -> bool:
        """Whether threads pay."""
        return self.work > PARALLEL_WORK

    def bytes_by_class(self) -> dict[str, int]:
        """Bytes held while the plan runs, by class; 'temp' is the arena, 'scratch' what threads need for themselves: as
        many of them as take part now (`volta.set_num_threads`)."""
        threads = get_num_threads() if self.parallel else 1
        return super().bytes_by_class() | {"scratch": threads * aligned(self.scratch_bytes)}

    def bytes_by_placement(self) -> dict[str, int]:
        """As the plan's, and the memory that threads need for themselves."""
        scratch = self.bytes_by_class()["scratch"]
        return super().bytes_by_placement() | ({"thread_scratch": scratch} if scratch else {})

    def kernel_texts(self) -> dict[str, str]:
        """The readable text of each distinct kernel, by symbol, in order of first use."""
        return {kernel_name(x.kernel): x.kernel.text() for launch in self.all_launches() for x in launch.each()}


def host_plan(plan: ExecutionPlan, schedule: Schedule) -> HostPlan:
    """The plan with its launches."""
    fields = {f.name: getattr(plan, f.name) for f in attrs.fields(ExecutionPlan)}
    calls = tuple(
        attrs.evolve(c, plans=tuple(host_plan(p, schedule) for p in c.plans)) if c.plans else c for c in plan.calls
    )
    launches = tuple(() if c.elided else tuple(schedule.launches(c, plan.buffers)) for c in calls)
    return HostPlan(**fields | {"calls": calls}, launches=launches)
