"""Rematerialization to a memory budget: values that wait long for their last readers are computed again for them.

Where more memory is live than may be, values are dropped that are not touched there: those first whose bytes cost the
least work to get back. For its later readers a value is computed again, by the same operations on the same operands, so
with the same bits, from inputs and from values that are in memory then anyway; whatever else that takes is computed
again too. A barrier holds the second computation back until the first of these readers is about to run.

This is what ``checkpoint`` does where a person says so, chosen by the plan; J. Feng and D. Huang, "Optimal Gradient
Checkpoint Search for Arbitrary Computation Graphs" (2021), and XLA's HloRematerialization choose likewise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from volta.core.ir import Atom, ClosedJaxpr, Eqn, Var
from volta.ops.primitive import REGISTRY, Family
from volta.xla_like.nodes import Lowered, Ref, Val
from volta.xla_like.plan import ExecutionPlan, lifetimes

_AGAIN = {
    Family.ELEMENTWISE, Family.REDUCTION, Family.MOVEMENT, Family.CONTRACTION, Family.ATTENTION, Family.INDEXING,
    Family.SORTING,
}  # fmt: skip
"""What may run twice: a loop, a user's kernel and a call of Python run once."""

_SMALL = 16
"""A value of at most 1/SMALL of the bytes that it helps to spare may be kept longer for that."""

ROUNDS = 12
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
    found = _Analysis(scheduled)
    victims = found.victims(goal)
    return _Rewriting(found, victims).program() if victims else None


@attrs.frozen(eq=False)
class _Use:
    """An equation that reads a stored value, by the variable that it reads, and the call in which it does."""

    call: int
    equation: int
    var: Var


class _Analysis:
    """When each stored value is computed and read."""

    def __init__(self, scheduled: Scheduled) -> None:
        self.eqns: Sequence[Eqn] = scheduled.program.eqns
        self.scheduled = scheduled
        self.home: dict[Var, int] = {v: i for i, e in enumerate(self.eqns) for v in e.outputs}
        lowered, plan = scheduled.lowered, scheduled.plan
        _, self._last = lifetimes(plan.buffers, plan.calls)
        self.val_of: dict[Var, Val] = {v: x.val for v, x in lowered.operands.items() if isinstance(x, Ref)}
        self.made: dict[Val, int] = {}  # the call that computes it
        self.uses: dict[Val, list[_Use]] = {}
        begin = 0
        for i, (eqn, end) in enumerate(zip(self.eqns, lowered.ends, strict=True)):
            calls = [scheduled.call_of[n] for n in range(begin, end) if n in scheduled.call_of]
            for node in lowered.nodes[begin:end]:
                for val in node.outputs:
                    self.made[val] = max(calls, default=0)
            for var in dict.fromkeys(x for x in eqn.inputs if isinstance(x, Var)) if calls else ():
                if var in self.val_of:
                    self.uses.setdefault(self.val_of[var], []).append(_Use(min(calls), i, var))
            begin = end
        self.candidates = [v for v in self.uses if self._may_go(v)]
        self.dropped: dict[Val, int] = {}  # and the first call that reads it then

    def _may_go(self, val: Val) -> bool:
        number = self.scheduled.buffer_of.get(val)
        return val in self.made and number is not None and self.scheduled.plan.buffers[number].kind == "temp"

    def is_there(self, val: Val, call: int, spares: int) -> bool:
        """Whether a value is in memory at a call anyway, or is too small to matter beside the bytes that are spared."""
        if val.producer is None:
            return True
        number = self.scheduled.buffer_of.get(val)
        if number is None or val in self.dropped:
            return False
        buffer = self.scheduled.plan.buffers[number]
        if buffer.kind != "temp" or self._last[number] >= call:
            return buffer.kind in ("temp", "input", "const", "output") and self.made.get(val, 0) < call
        return val.nbytes * _SMALL <= spares

    def work(self, var: Var, call: int, spares: int) -> float:
        """The work of computing a variable again at a call, from what is there; infinite where it cannot be."""
        seen: set[int] = set()
        total, waiting = 0.0, [var]
        while waiting:
            x = waiting.pop()
            val = self.val_of.get(x)
            if x is not var and (x not in self.home or (val is not None and self.is_there(val, call, spares))):
                continue
            i = self.home.get(x)
            if i is None or self.eqns[i].primitive.family not in _AGAIN or len(seen) > _CHAIN:
                return math.inf
            if i not in seen:
                seen.add(i)
                total += work_of(self.eqns[i])
                waiting += [a for a in self.eqns[i].inputs if isinstance(a, Var)]
        return total

    def victims(self, goal: int) -> list[tuple[Val, list[_Use]]]:
        """Values to drop, each with the readers for which it is computed again."""
        live = self.scheduled.plan.live_temp_bytes()
        chosen: list[tuple[Val, list[_Use]]] = []
        while live and (most := max(live)) > goal:
            at = live.index(most)
            best = None
            for val in self.candidates:
                early = max([self.made[val], *(u.call for u in self.uses[val] if u.call <= at)])
                late = [u for u in self.uses[val] if u.call > at]
                if val in self.dropped or not late or early >= at or self.made[val] >= at:
                    continue
                first = min(u.call for u in late)
                work = self.work(late[0].var, first, val.nbytes)
                score = val.nbytes * (first - early - 1) / (work + 1)
                if work < math.inf and (best is None or score > best[0]):
                    best = score, val, late, early, first
            if best is None:
                break
            _, val, late, early, first = best
            chosen.append((val, late))
            self.dropped[val] = first
            for i in range(early + 1, first):
                live[i] -= val.nbytes
        return chosen


class _Rewriting:
    """The program with clones for late readers."""

    def __init__(self, found: _Analysis, victims: Sequence[tuple[Val, list[_Use]]]) -> None:
        self._found = found
        self._late: dict[int, list[tuple[Var, Val]]] = {}
        for val, uses in victims:
            for use in uses:
                self._late.setdefault(use.equation, []).append((use.var, val))
        self._clones: dict[Var, Var] = {}
        self._eqns: list[Eqn] = []

    def program(self) -> ClosedJaxpr:
        program = self._found.scheduled.program
        for i, eqn in enumerate(self._found.eqns):
            late = self._late.get(i, [])
            new = [(var, val) for var, val in late if var not in self._clones]
            if new:
                self._compute_again(new, eqn)
            renamed = {var: self._clones[var] for var, _ in late}
            inputs = tuple(renamed.get(a, a) if isinstance(a, Var) else a for a in eqn.inputs)
            self._eqns.append(eqn.replace(inputs=inputs) if renamed else eqn)
        return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(self._eqns)), program.consts)

    def _compute_again(self, wanted: Sequence[tuple[Var, Val]], reader: Eqn) -> None:
        """Clones of variables in front of the equation that reads them first."""
        needed: list[int] = []
        anchors: dict[Var, None] = {}
        for var, val in wanted:
            self._collect(var, self._found.dropped[val], val.nbytes, needed, anchors)
        names: dict[Var, Var] = {}
        if anchors:
            trigger = self._trigger(reader, {var for var, _ in wanted})
            held = (*anchors, *trigger)
            results = tuple([Var(v.aval) for v in held])
            barrier = REGISTRY["optimization_barrier"]
            self._eqns.append(Eqn(barrier, held, results, {}, reader.source))
            names = dict(zip(anchors, results, strict=False))
        for i in sorted(needed):
            eqn = self._found.eqns[i]
            outputs = tuple([Var(v.aval) for v in eqn.outputs])
            inputs = tuple(self._named(a, names) for a in eqn.inputs)
            self._eqns.append(eqn.replace(inputs=inputs, outputs=outputs))
            self._clones.update(zip(eqn.outputs, outputs, strict=True))

    def _named(self, atom: Atom, names: Mapping[Var, Var]) -> Atom:
        if not isinstance(atom, Var):
            return atom
        return names[atom] if atom in names else self._clones[atom]

    def _collect(self, var: Var, call: int, spares: int, needed: list[int], anchors: dict[Var, None]) -> None:
        found, waiting = self._found, [var]
        while waiting:
            x = waiting.pop()
            if x in self._clones or x in anchors:
                continue
            val = found.val_of.get(x)
            if x is not var and (x not in found.home or (val is not None and found.is_there(val, call, spares))):
                anchors[x] = None
            elif found.home[x] not in needed:
                needed.append(found.home[x])
                waiting += [a for a in found.eqns[found.home[x]].inputs if isinstance(a, Var)]

    def _trigger(self, reader: Eqn, dropped: set[Var]) -> tuple[Var, ...]:
        """What the reader waits for, of its other operands the one that is computed last."""
        home = self._found.home
        others = [a for a in reader.inputs if isinstance(a, Var) and a in home and a not in dropped]
        return (max(others, key=home.__getitem__),) if others else ()

