"""Where a program's time goes on the device: each launch by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from volta.numba_cuda.device_plan import DevicePlan


@attrs.frozen
class Timing:
    """A launch: the plan, what it computes, its kernel, blocks and threads in each, microseconds, and bytes touched.

    The bytes are those between the first and the last that an operand touches: what skips some counts them all.
    """

    plan: str
    label: str
    kernel: str
    grid: int
    threads: int
    microseconds: float
    nbytes: int

    @property
    def gb_per_s(self) -> float:
        return 1e-3 * self.nbytes / self.microseconds if self.microseconds else 0.0


@attrs.define(eq=False)
class Profile:
    """The launches of the programs that ran inside a `profile` block, in order."""

    rows: list[Timing] = attrs.field(factory=list)

    def add(self, plan: DevicePlan, times: list[float]) -> None:
        for x, microseconds in zip(plan.launches, times, strict=True):
            touched = sum(r.nbytes for r in (*x.reads, *x.writes))
            name = x.source.name
            self.rows.append(Timing(plan.name, x.label, name, x.grid, x.threads, microseconds, touched))

    @property
    def microseconds(self) -> float:
        """The sum over all launches."""
        return sum(x.microseconds for x in self.rows)

    def by_kernel(self) -> list[tuple[Timing, int]]:
        """Launches of one kernel and geometry taken together, longest first: their sum, and how many there are."""
        groups: dict[tuple[str, int, int], list[Timing]] = {}
        for x in self.rows:
            groups.setdefault((x.kernel, x.grid, x.threads), []).append(x)
        sums = []
        for found in groups.values():
            total = sum(x.microseconds for x in found)
            sums.append((attrs.evolve(found[0], microseconds=total, nbytes=sum(x.nbytes for x in found)), len(found)))
        return sorted(sums, key=lambda x: -x[0].microseconds)

    def table(self, most: int = 40) -> str:
        """The longest kernels as text."""
        total = self.microseconds
        lines = [
            f"{len(self.rows)} launches, {total / 1e3:.3f} ms",
            "      ms      %  launches     GB/s  grid x threads",
        ]
        for x, count in self.by_kernel()[:most]:
            share = 100 * x.microseconds / total if total else 0.0
            geometry = f"{x.grid} x {x.threads}"
            lines.append(
                f"{x.microseconds / 1e3:8.3f} {share:6.1f} {count:9d} {x.gb_per_s:8.0f}  {geometry:<14} "
                f"{x.kernel}  {x.label}"
            )
        return "\n".join(lines)

    __str__ = table


active: list[Profile] = []
"""The profiles being taken, the innermost last."""


@contextmanager
def profile() -> Iterator[Profile]:
    """Time each launch of the programs that run inside the block, in any thread; they run kernel by kernel."""
    found = Profile()
    active.append(found)
    try:
        yield found
    finally:
        active.remove(found)
