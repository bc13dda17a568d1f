"""What is known of a program of several workers before it runs: its text, and bytes held and moved."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence

import attrs

from volta.core.ir import MONOSPACED, Var
from volta.core.policy import DeterminismLevel
from volta.xla_like.partition.local import LocalProgram, Partitioned
from volta.xla_like.plan import ExecutionPlan, aligned

Plans = Sequence[ExecutionPlan | None]
"""A rank's plans, segment by segment; None for a segment without work."""


@attrs.frozen(eq=False)
class SpreadPlan:
    """A partitioned program with the plans of the ranks that are in this process."""

    partition: Partitioned
    plans: Mapping[int, Plans]
    level: DeterminismLevel
    given: tuple[int, ...] = ()  # the arguments that segments may overwrite

    def bytes_sent(self, rank: int) -> int:
        """Bytes that a rank sends to others in one run."""
        return self.partition.bytes_sent(rank)

    def bytes_received(self, rank: int) -> int:
        return self.partition.bytes_received(rank)

    def peak_of(self, rank: int) -> int:
        """The most bytes that a rank of this process holds at once."""
        return peak(self.partition.locals[rank], self.plans[rank], self.given)

    @property
    def peak_live_bytes(self) -> int:
        """The most bytes that are live at once on one of this process's workers."""
        return max((self.peak_of(rank) for rank in self.plans), default=0)

    def as_text(self) -> str:
        """The first rank's programs and plans, the exchanges between them, and the bytes of all ranks."""
        rank = min(self.plans, default=0)
        lines = [self.partition.as_text(rank)]
        lines += [f"rank {r} peak={self.peak_of(r)}" for r in self.plans]
        lines += [plan.as_text() for plan in self.plans.get(rank, ()) if plan is not None]
        return "\n".join(lines)

    __str__ = as_text

    def _repr_html_(self) -> str:
        return f'<pre style="{MONOSPACED}">{html.escape(self.as_text())}</pre>'


def peak(local: LocalProgram, plans: Plans, given: Collection[int] = ()) -> int:
    """The most bytes that a rank holds: while a segment runs, what it needs and what waits for later ones; in a round,
    what is given and got. Segments may overwrite the arguments that are ``given`` to them."""
    held = {v: aligned(v.aval.nbytes) for v in local.inputs if isinstance(v, Var)}
    most = sum(held.values())
    steps = zip(local.segments, plans, local.rounds, local.drops, local.donated(given), strict=True)
    for segment, plan, met, gone, over in steps:
        if plan is not None:
            waiting = sum(n for v, n in held.items() if v not in segment.jaxpr.invars)
            most = max(most, waiting + plan.peak_live_bytes)
            for i in over:
                del held[segment.jaxpr.invars[i]]
        made = [*segment.jaxpr.outvars, *(g.got for g in met)]
        held.update((v, aligned(v.aval.nbytes)) for v in made if isinstance(v, Var))
        most = max(most, sum(held.values()))
        for v in gone:
            held.pop(v, None)
    return most
