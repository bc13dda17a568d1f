"""Rematerialization to a memory budget: values that wait long for their last readers are computed again for them.

Where more memory is live than may be, values are dropped that are not touched there: those first whose bytes cost the
least work to get back. For its later readers a value is computed again, by the same operations on the same operands, so
with the same bits, from inputs and from values that are in memory then anyway; whatever else that takes is computed
again too. A barrier holds the second computation back until the first of these readers is about to run.

This is what ``checkpoint`` does where a person says so, chosen by the plan; J. Feng and D. Huang, "Optimal Gradient
Checkpoint Search for Arbitrary Computation Graphs" (2021), and XLA's HloRematerialization choose likewise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import attrs

from volta.core.ir import ClosedJaxpr, Eqn, Var
from volta.ops.primitive import REGISTRY, Family
from volta.xla_like.nodes import Lowered, Ref, Val
from volta.xla_like.passes import drop_dead
from volta.xla_like.plan import ExecutionPlan

_AGAIN = {
    Family.ELEMENTWISE, Family.REDUCTION, Family.MOVEMENT, Family.CONTRACTION, Family.ATTENTION, Family.INDEXING,
    Family.SORTING,
}  # fmt: skip
"""What may run twice: a loop, a user's kernel and a call of Python run once."""

_SMALL = 16
"""A value of at most 1/SMALL of the bytes that it helps to spare may be kept longer for that."""

STEPS = (0.85, 0.0)
"""Each round goes to this share of the temporaries of the one before, or to the goal: by small steps first, which know
better what is in memory when; if these end too early, at once."""

ROUNDS = 24
"""How often a program is planned anew, each time with more values computed again."""

_CHAIN = 256
"""Operations that one value may take to compute again."""


@attrs.frozen(eq=False)
class Scheduled:
    """A program, its plan, and how they belong together: the buffer of each stored value, the call of each node."""

    program: ClosedJaxpr
    plan: ExecutionPlan
    lowered: Lowered
    buffer_of: Mapping[Val, int]
    call_of: Mapping[int, int]

    @property
    def work(self) -> int:
        """Floating-point operations, or what takes as long, of the whole program."""
        return sum(map(work_of, self.program.eqns))


def work_of(eqn: Eqn) -> int:
    """Floating-point operations, or what takes as long, that an equation costs."""
    size = sum(v.aval.size for v in eqn.outputs)
    if eqn.primitive.family is Family.CONTRACTION:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * size * math.prod(eqn.inputs[0].aval.shape[d] for d in contracted)
    if eqn.primitive.family is Family.ATTENTION:
        return 4 * size * eqn.inputs[1].aval.shape[1]  # two products over the keys
    if eqn.primitive.family is Family.REDUCTION:
        size = sum(x.aval.size for x in eqn.inputs)
    return size * eqn.primitive.cost


def rematerialize(scheduled: Scheduled, goal: int) -> ClosedJaxpr | None:
    """The program with values computed again where more than ``goal`` bytes of temporaries would be live; None where no
    value can be spared."""
    timeline = _Timeline(scheduled)
    timeline.choose(goal)
    return drop_dead(_Rewriting(timeline).program()) if timeline.dropped else None


class _Timeline:
    """When each value is computed and read, by the numbers of the plan's calls; and which values are dropped."""

    def __init__(self, scheduled: Scheduled) -> None:
        lowered, self.plan, self.buffer_of = scheduled.lowered, scheduled.plan, scheduled.buffer_of
        self.program = scheduled.program
        self._work = list(map(work_of, self.program.eqns))
        self.home: dict[Var, int] = {v: i for i, e in enumerate(self.program.eqns) for v in e.outputs}
        self.val_of: dict[Var, Val] = {v: x.val for v, x in lowered.operands.items() if isinstance(x, Ref)}
        self.reads: dict[int, list[int]] = {}  # of a buffer: the calls
        for i, each in enumerate(self.plan.calls):
            for number in dict.fromkeys(each.reads):
                self.reads.setdefault(number, []).append(i)
        self.call_of: list[int | None] = []  # of an equation; None of one that only looks at its operands otherwise
        self.made: dict[Val, int] = {}
        self.name_of: dict[Val, Var] = {}
        begin = 0
        for eqn, end in zip(self.program.eqns, lowered.ends, strict=True):
            nodes = lowered.nodes[begin:end]
            call = max((scheduled.call_of[n.index] for n in nodes if n.index in scheduled.call_of), default=None)
            self.call_of.append(call)
            if call is not None:
                self.made.update((val, call) for node in nodes for val in node.outputs)
            for var in eqn.outputs:
                if var in self.val_of:
                    self.name_of.setdefault(self.val_of[var], var)
            begin = end
        self.dropped: dict[Val, int] = {}
        """And the first call for which it is computed again."""

    def is_stored(self, val: Val) -> bool:
        """Whether a value is in memory of its own."""
        number = self.buffer_of.get(val)
        return number is not None and self.plan.buffers[number].kind != "unstored"

    def is_there(self, var: Var, call: int, spares: int) -> bool:
        """Whether a call may read a variable that an earlier one has computed: what is in memory then anyway, or is too
        small to matter beside the bytes that are spared."""
        val = self.val_of.get(var)
        if var not in self.home or (val is not None and val.producer is None):
            return True
        if val is None or not self.is_stored(val) or val in self.dropped or self.made.get(val, call) >= call:
            return False
        buffer = self.plan.buffers[self.buffer_of[val]]
        kept = buffer.kind != "temp" or self.reads.get(buffer.id, [0])[-1] >= call
        return kept or val.nbytes * _SMALL <= spares

    def work(self, var: Var, call: int, spares: int) -> float:
        """The work of computing a variable again at a call, from what is there; infinite where it cannot be."""
        seen: set[int] = set()
        total, waiting = 0.0, [var]
        while waiting:
            x = waiting.pop()
            if x is not var and self.is_there(x, call, spares):
                continue
            i = self.home[x]
            eqn = self.program.eqns[i]
            if eqn.primitive.family not in _AGAIN or len(seen) > _CHAIN:
                return math.inf
            if i not in seen:
                seen.add(i)
                total += self._work[i]
                waiting += [a for a in eqn.inputs if isinstance(a, Var)]
        return total

    def choose(self, goal: int) -> None:
        """Choose the values to drop."""
        live = self.plan.live_temp_bytes()
        temps = [
            (val, self.reads[number])
            for val, number in self.buffer_of.items()
            if val in self.made and val in self.name_of and self.plan.buffers[number].kind == "temp"
            and number in self.reads
        ]  # fmt: skip
        least: dict[tuple[Val, int], float] = {}  # the work may only grow, as more is dropped
        while live and (most := max(live)) > goal:
            at = live.index(most)
            candidates: list[tuple[float, int, int, Val, int, int]] = []
            for val, reads in temps:
                early = max([self.made[val], *(i for i in reads if i <= at)])
                first = next((i for i in reads if i > at), None)
                if val in self.dropped or first is None or early >= at:
                    continue
                gain = val.nbytes * (first - early - 1)
                bound = gain / (least.get((val, first), self._work[self.home[self.name_of[val]]]) + 1)
                candidates.append((bound, len(candidates), gain, val, early, first))
            best: tuple[float, Val, int, int] | None = None
            for bound, _, gain, val, early, first in sorted(candidates, reverse=True):
                if best is not None and bound <= best[0]:
                    break
                work = least[val, first] = self.work(self.name_of[val], first, val.nbytes)
                if work < math.inf and (best is None or gain / (work + 1) > best[0]):
                    best = gain / (work + 1), val, early, first
            if best is None:
                break
            _, val, early, first = best
            self.dropped[val] = first
            for i in range(early + 1, first):
                live[i] -= val.nbytes


class _Rewriting:
    """The program, in the order of its calls, with clones of what is dropped for those that read it late."""

    def __init__(self, timeline: _Timeline) -> None:
        self._timeline = timeline
        self._old = timeline.program.eqns
        self._lost: dict[tuple[Var, int], int] = {}
        self._clones: dict[Var, Var] = {}
        self._eqns: list[Eqn] = []
        self._defined: dict[Var, None] = {}

    def program(self) -> ClosedJaxpr:
        timeline = self._timeline
        program = timeline.program
        for i in self._order():
            eqn, call = self._old[i], timeline.call_of[i]
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
        home, calls = self._timeline.home, self._timeline.call_of
        waits = [{home[x] for x in e.inputs if isinstance(x, Var) and x in home} for e in self._old]
        readers: list[list[int]] = [[] for _ in self._old]
        for i, needed in enumerate(waits):
            for n in needed:
                readers[n].append(i)
        ready = [(calls[i] or 0, i) for i, needed in enumerate(waits) if not needed]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(i)
            for r in readers[i]:
                waits[r].discard(i)
                if not waits[r]:
                    heapq.heappush(ready, (calls[r] or 0, r))
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

    def _trigger(self, call: int) -> tuple[Var, ...]:
        """What a call waits for: of the values that it reads the one that is computed last."""
        timeline = self._timeline
        read = {*timeline.plan.calls[call].reads}
        found = [
            (made, var)
            for val, made in timeline.made.items()
            if made < call and timeline.buffer_of.get(val) in read and val not in timeline.dropped
            and (var := timeline.name_of.get(val)) in self._defined
        ]  # fmt: skip
        return (max(found, key=lambda pair: pair[0])[1],) if found else ()
