"""Rematerialization to a memory budget: values that wait long for their last readers are computed again for them.

What is dropped, and when it comes back, is chosen in `volta.xla_like.dropping`. For its later readers a value is
computed again, by the same operations on the same operands, so with the same bits, from inputs and from values that are
in memory then anyway; whatever else that takes is computed again too. A barrier holds the second computation back until
the first of these readers is about to run.

This is what ``checkpoint`` does where a person says so, chosen by the plan; J. Feng and D. Huang, "Optimal Gradient
Checkpoint Search for Arbitrary Computation Graphs" (2021), and XLA's HloRematerialization choose likewise.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence

from volta.core.ir import ClosedJaxpr, Eqn, Var
from volta.ops.primitive import REGISTRY
from volta.xla_like.dropping import Timeline
from volta.xla_like.nodes import Val
from volta.xla_like.offload import DEVICE, HOST
from volta.xla_like.passes import drop_dead
from volta.xla_like.scheduled import Scheduled

STEPS = (0.0, 0.5, 0.85)
"""Each round goes to this share of the temporaries of the one before, or to the goal. Large steps cost less work and
time; small ones know better what is in memory when, and may reach what those do not."""

ROUNDS = 24
"""How often a program is planned anew, each time with more values computed again."""


def rematerialize(scheduled: Scheduled, goal: int, moves: bool = False) -> ClosedJaxpr | None:
    """The program with values computed again, or with ``moves`` sent to the host's memory and brought back, where more
    than ``goal`` bytes of temporaries would be live; None where no value can be spared."""
    timeline = Timeline(scheduled, moves)
    timeline.choose(goal)
    return drop_dead(_Rewriting(timeline).program()) if timeline.dropped else None


class _Rewriting:
    """The program, in the order of its calls, with clones of what is dropped for those that read it late."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._old = timeline.program.eqns
        self._lost: dict[tuple[Var, int], int] = {}
        self._clones: dict[Var, Var] = {}
        self._eqns: list[Eqn] = []
        self._defined: dict[Var, None] = {}
        self._made: dict[int, list[tuple[int, Var]]] = {}  # of a buffer: when what lies there is computed, and its name
        for val, when in timeline.made.items():
            if val in timeline.name_of and val not in timeline.dropped and val in timeline.buffer_of:
                self._made.setdefault(timeline.buffer_of[val], []).append((when, timeline.name_of[val]))
        self._moves = sorted(
            [(stay.left + 1, HOST, val) for val, stay in timeline.stays.items()]
            + [(stay.back, DEVICE, val) for val, stay in timeline.stays.items()], key=lambda x: x[0], reverse=True,
        )  # fmt: skip
        """What moves in front of which call, the last one first."""
        named = [(when, timeline.name_of[val]) for val, when in timeline.made.items() if val in timeline.name_of]
        self._times = sorted(named, key=lambda x: x[0])
        self._away: dict[Val, Var] = {}

    def program(self) -> ClosedJaxpr:
        timeline = self._timeline
        program = timeline.program
        for i in self._order():
            eqn, call = self._old[i], timeline.call_of[i]
            while call is not None and self._moves and self._moves[-1][0] <= timeline.ready[i]:
                self._move(*self._moves.pop())
            lost = [] if call is None else [x for x in eqn.inputs if isinstance(x, Var) and self._spares(x, call)]
            if lost and call is not None:
                self._compute_again([x for x in lost if x not in self._clones], call, eqn)
                renamed = {x: self._clones[x] for x in lost}
                eqn = eqn.replace(inputs=tuple(renamed.get(x, x) if isinstance(x, Var) else x for x in eqn.inputs))
            self._eqns.append(eqn)
            self._defined.update(dict.fromkeys(eqn.outputs))
        return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(self._eqns)), program.consts)

    def _order(self) -> list[int]:
        """The equations' numbers: operands first, and else by the call in which they run."""
        home, calls = self._timeline.home, self._timeline.ready
        waits = [{home[x] for x in e.inputs if isinstance(x, Var) and x in home} for e in self._old]
        readers: list[list[int]] = [[] for _ in self._old]
        for i, needed in enumerate(waits):
            for n in needed:
                readers[n].append(i)
        ready = [(calls[i], i) for i, needed in enumerate(waits) if not needed]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(i)
            for r in readers[i]:
                waits[r].discard(i)
                if not waits[r]:
                    heapq.heappush(ready, (calls[r], r))
        return order

    def _spares(self, var: Var, call: int) -> int:
        """The bytes of the largest dropped value that a call would keep alive by reading a variable: itself, or by way
        of values that are in no memory and come with their reader; 0 where there is none."""
        timeline = self._timeline
        known = self._lost.get((var, call))
        if known is not None:
            return known
        val = timeline.val_of.get(var)
        found = 0
        if val is not None and val in timeline.dropped:
            found = val.nbytes if timeline.dropped[val] <= call else 0
        elif var in timeline.home and (val is None or not timeline.is_stored(val)):
            eqn = self._old[timeline.home[var]]
            found = max((self._spares(x, call) for x in eqn.inputs if isinstance(x, Var)), default=0)
        self._lost[var, call] = found
        return found

    def _compute_again(self, wanted: Sequence[Var], call: int, reader: Eqn) -> None:
        """Clones of variables in front of an equation that reads them in a call."""
        timeline = self._timeline
        needed: dict[int, None] = {}
        anchors: dict[Var, None] = {}
        for var in wanted:
            spares, waiting = self._spares(var, call), [var]
            while waiting:
                x = waiting.pop()
                if x in self._clones or x in anchors:
                    continue
                if x is not var and timeline.is_there(x, call, spares) and not self._spares(x, call):
                    anchors[x] = None
                elif timeline.home[x] not in needed:
                    needed[timeline.home[x]] = None
                    waiting += [a for a in self._old[timeline.home[x]].inputs if isinstance(a, Var)]
        names: dict[Var, Var] = {}
        if anchors:
            held = tuple(dict.fromkeys((*anchors, *self._trigger(call))))
            results = tuple([Var(v.aval) for v in held])
            self._eqns.append(Eqn(REGISTRY["optimization_barrier"], held, results, {}, reader.source))
            names = dict(zip(held, results, strict=True))
        for i in sorted(needed):
            eqn = self._old[i]
            outputs = tuple([Var(v.aval) for v in eqn.outputs])
            inputs = tuple(self._clones.get(a, names.get(a, a)) if isinstance(a, Var) else a for a in eqn.inputs)
            self._eqns.append(eqn.replace(inputs=inputs, outputs=outputs))
            self._clones.update(zip(eqn.outputs, outputs, strict=True))

    def _move(self, call: int, memory: str, val: Val) -> None:
        """Send a value to the host's memory in front of a call, or have it back."""
        var = self._timeline.name_of[val]
        source = var if memory == HOST else self._away[val]
        before = bisect.bisect_left(self._times, call, key=lambda x: x[0])
        awaited = next((v for _, v in reversed(self._times[:before]) if v in self._defined and v is not var), None)
        held = (source,) if awaited is None else (source, awaited)
        results = tuple([Var(v.aval) for v in held])
        where = self._old[self._timeline.home[var]].source
        self._eqns.append(Eqn(REGISTRY["optimization_barrier"], held, results, {"memory": memory}, where))
        if memory == HOST:
            self._away[val] = results[0]
        else:
            self._clones[var] = results[0]

    def _trigger(self, call: int) -> tuple[Var, ...]:
        """What a call waits for: of the values that it reads the one that is computed last."""
        made = [x for b in dict.fromkeys(self._timeline.plan.calls[call].reads) for x in self._made.get(b, ())]
        found = [(when, var) for when, var in made if when < call and var in self._defined]
        return (max(found, key=lambda pair: pair[0])[1],) if found else ()
