"""The least work that a plan's calls can cost within a budget, by trying everything: for plans of few calls."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from volta.xla_like.plan import aligned
from volta.xla_like.scheduled import Scheduled, work_of


def least_work(scheduled: Scheduled, budget: int) -> int | None:
    """The work beyond the plain plan's of the best order in which its calls, each as often as need be, keep within
    ``budget`` bytes of temporaries; None where there is none.

    A state is what is in memory and how many calls have run a first time (in their order, as for Checkmate); Dijkstra's
    search over them is exact. A call is one step, and what it computes in place takes no memory of its own.
    """
    plan = scheduled.plan
    temps = [b.id for b in plan.buffers if b.kind == "temp" and b.nbytes]
    bit = {number: 1 << i for i, number in enumerate(temps)}
    nbytes = [aligned(plan.buffers[number].nbytes) for number in temps]
    works = [0] * len(plan.calls)
    begin = 0
    for eqn, end in zip(scheduled.program.eqns, scheduled.lowered.ends, strict=True):
        calls = [scheduled.call_of[n.index] for n in scheduled.lowered.nodes[begin:end] if n.index in scheduled.call_of]
        if calls:
            works[max(calls)] += work_of(eqn)
        begin = end
    reads = [sum({bit[b] for b in c.reads if b in bit}) for c in plan.calls]
    writes = [sum({bit[b] for b in c.writes if b in bit}) for c in plan.calls]
    inplace = [[(bit[r], bit[w]) for r, w in c.inplace if r in bit and w in bit] for c in plan.calls]

    def size(held: int) -> int:
        return sum(n for i, n in enumerate(nbytes) if held >> i & 1)

    def run(call: int, held: int) -> Iterator[int]:
        """What may be in memory after a call."""
        after = held | writes[call]
        if size(after) <= budget:
            yield after
        for read, written in inplace[call]:
            if size(after & ~read) <= budget and not held & written:
                yield after & ~read

    known = {(0, 0): 0}
    waiting = [(0, 0, 0)]
    while waiting:
        cost, done, held = heapq.heappop(waiting)
        if known[done, held] < cost:
            continue
        if done == len(plan.calls):
            return cost
        found = [(cost, done, held & ~(1 << i)) for i in range(len(temps)) if held >> i & 1]
        for call in range(done + 1):
            if reads[call] & ~held or (call < done and not writes[call] & ~held):
                continue
            found += [(cost + (works[call] if call < done else 0), done + (call == done), h) for h in run(call, held)]
        for cost, *state in found:
            if cost < known.get((state[0], state[1]), cost + 1):
                known[state[0], state[1]] = cost
                heapq.heappush(waiting, (cost, *state))
    return None
