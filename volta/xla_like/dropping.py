"""What a plan drops to keep to a budget: values that wait long for their next readers, and cost little to get back:
computed again, or, where a plan runs in a GPU's memory, moved to the host's and back (see offload.py).

A `Timeline` is a model of the finished plan: when each value is computed and touched, and the bytes that are live at
each call. Where most are live, the value is dropped whose bytes, over all calls beyond the goal, cost the least work.
Each choice keeps the model true: what a value will be computed from again is touched then, so it stays in memory
until there; values that are dropped already and needed on the way come back then, and cost no work of their own. So a
stretch of layers costs one more pass, whoever of them is dropped first.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TypeGuard

import attrs
import numpy as np

from volta.core.ir import Atom, Var
from volta.xla_like.nodes import Ref, Val
from volta.xla_like.offload import Link, Stay
from volta.xla_like.scheduled import AGAIN, Scheduled

_SMALL = 16
"""A value of at most 1/SMALL of the bytes that it helps to spare may be kept longer for that."""

_CHAIN = 256
"""Operations that one value may take to compute again."""

_HELD = 0.25
"""What a value is computed from may be kept longer, each for this share of what is spared; what it costs to compute
that again too is looked at besides."""

_LOOKED_AT = 8
"""Of the values that were looked at before, so many are at each choice: the best, if they cost as much still."""


@attrs.frozen(eq=False)
class _Return:
    """How a value comes back for a call: at what ``work``, by which ``equations``, of which some are ``shared`` with
    other values' returns; read from which values (``held``); which dropped ones come back with it (``earlier``); and
    the bytes of the largest that is stored on the way (``passing``)."""

    work: float
    equations: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    held: tuple[Val, ...] = ()
    earlier: tuple[Val, ...] = ()
    passing: int = 0


_NEVER = _Return(math.inf)


class Timeline:
    """When each value is computed and read, by the numbers of the plan's calls; and which values are dropped."""

    def __init__(self, scheduled: Scheduled, moves: bool = False) -> None:
        """``moves``: values may wait in the host's memory too."""
        lowered, self.plan, self.buffer_of = scheduled.lowered, scheduled.plan, scheduled.buffer_of
        self.program = scheduled.program
        self._work = scheduled.works
        self._may_run_again = [e.primitive.family in AGAIN and "memory" not in e.params for e in self.program.eqns]
        self.home: dict[Var, int] = {v: i for i, e in enumerate(self.program.eqns) for v in e.outputs}
        self.val_of: dict[Var, Val] = {v: x.val for v, x in lowered.operands.items() if isinstance(x, Ref)}
        self._reads: dict[int, list[int]] = {}  # of a buffer: the calls
        for i, each in enumerate(self.plan.calls):
            for number in dict.fromkeys(each.reads):
                self._reads.setdefault(number, []).append(i)
        self.call_of: list[int | None] = []  # of an equation; None of one that only looks at its operands otherwise
        self.ready: list[int] = []
        """Of an equation: the call in which it and all that it names are computed. A plan may compute it before what it
        names but reads no element of, such as a padding that cuts all away; a program may not."""
        self.made: dict[Val, int] = {}
        self.name_of: dict[Val, Var] = {}
        begin = 0
        for eqn, end in zip(self.program.eqns, lowered.ends, strict=True):
            nodes = lowered.nodes[begin:end]
            call = max((scheduled.call_of[n.index] for n in nodes if n.index in scheduled.call_of), default=None)
            self.call_of.append(call)
            named = [self.home[x] for x in eqn.inputs if isinstance(x, Var) and x in self.home]
            ready = max([call or 0, *(self.ready[i] for i in named)])
            self.ready.append(ready)
            if call is not None:
                self.made.update((val, ready) for node in nodes for val in node.outputs)
            for var in eqn.outputs:
                if var in self.val_of:
                    self.name_of.setdefault(self.val_of[var], var)
            begin = end
        self.dropped: dict[Val, int] = {}
        """And the first call for which it is computed again, or in front of which it begins to return."""
        self.stays: dict[Val, Stay] = {}
        """Those that wait in the host's memory."""
        self._gone: dict[Val, int] = {}  # and the call up to which it is there
        self._touched: dict[Val, list[int]] = {}
        self._again: dict[int, int] = {}  # the equations that run twice, and for which call
        self._over: list[int] | None = None  # how many calls before each are beyond the goal
        self._until: dict[Val, float] = {}  # the last call that a stored value is in memory for
        for val, number in self.buffer_of.items():
            kind = self.plan.buffers[number].kind
            if kind != "unstored":
                self._until[val] = self._reads.get(number, [0])[-1] if kind == "temp" else math.inf
        replaced = {read for call in self.plan.calls for read, _ in call.inplace if read not in self._reads}
        self._replaced = {v for v, number in self.buffer_of.items() if number in replaced}
        """What a call computes on the way to something that takes its place in memory."""
        self._link: Link | None = None
        if moves:
            works = [0.0] * len(self.plan.calls)
            for call, work in zip(self.call_of, self._work, strict=True):
                if call is not None:
                    works[call] += work
            self._link = Link(works)
        self._needs = [tuple([self._place(a) for a in e.inputs if self._is_computed(a)]) for e in self.program.eqns]

    def _place(self, var: Var) -> tuple[int, Val | None]:
        """Which equation computes a variable, and the stored value that it is a view of."""
        val = self.val_of.get(var)
        return self.home[var], val if val in self._until else None

    def _is_computed(self, atom: Atom) -> TypeGuard[Var]:
        """Whether an operand is computed by the program, rather than given to it."""
        val = self.val_of.get(atom)  # type: ignore[arg-type]
        return atom in self.home and (val is None or val.producer is not None)

    def is_stored(self, val: Val) -> bool:
        """Whether a value is in memory of its own."""
        return val in self._until

    def is_there(self, var: Var, call: int, spares: int, longer: float = -1.0) -> bool:
        """Whether a call may read a variable that an earlier one has computed: what is in memory then anyway, or is too
        small to matter beside the bytes that are spared."""
        if not self._is_computed(var):
            return True
        val = self.val_of.get(var)
        return val is not None and val in self._until and self._is_kept(val, call, spares, longer)

    def _is_kept(self, val: Val, call: int, spares: int, longer: float) -> bool:
        if self.made.get(val, call) >= call:
            return False
        if val in self.dropped:
            return call <= self._gone[val]
        last = self._until[val]
        return last >= call or val.nbytes * _SMALL <= spares or self._longer(val, int(last), call) <= longer

    def _longer(self, val: Val, last: int, call: int) -> float:
        """The bytes that a value takes longer than to its last call, over the calls that are beyond the goal."""
        return val.nbytes * (self._over[call + 1] - self._over[last + 1]) if self._over is not None else math.inf

    def _return(self, val: Val, call: int, longer: float) -> _Return:
        """How a value would come back for a call; what it is read from may be kept for ``longer``."""
        passing = 0
        seen: dict[int, None] = {}
        shared: dict[int, None] = {}
        held: dict[Val, None] = {}
        earlier: dict[Val, None] = {}
        home, dropped, made, until = self.home[self.name_of[val]], self.dropped, self.made, self._until
        if not self._may_run_again[home]:
            return _NEVER
        waiting: list[tuple[int, Val | None]] = list(self._needs[home])
        seen[home], work = None, self._work[home]
        while waiting:
            i, stored = waiting.pop()
            returns = None
            if stored is not None:
                returns = dropped.get(stored)
                if returns is not None:
                    if returns <= call:
                        held[stored] = None
                        continue
                    if call <= self._gone[stored]:
                        continue
                    if stored in self.stays:
                        return _NEVER
                elif made.get(stored, call) < call and (
                    until[stored] >= call or self._is_kept(stored, call, val.nbytes, longer)
                ):
                    if stored in self._touched:
                        held[stored] = None
                    continue
            if i in seen:
                continue
            if not self._may_run_again[i] or len(seen) > _CHAIN:
                return _NEVER
            seen[i] = None
            if returns is not None:
                assert stored is not None
                earlier[stored] = None
            elif i in self._again:
                shared[i] = None
                if self._again[i] <= call:
                    continue
            else:
                work += self._work[i]
                if stored is not None and stored not in self._replaced:
                    passing = max(passing, stored.nbytes)
            waiting += self._needs[i]
        return _Return(work, tuple(seen), tuple(shared), tuple(held), tuple(earlier), passing)

    def choose(self, goal: int) -> None:
        """Choose the values to drop."""
        temps = [
            val for val, number in self.buffer_of.items()
            if val in self.made and val in self.name_of and self.plan.buffers[number].kind == "temp"
            and self.made[val] <= self._reads.get(number, [-1])[0]
        ]  # fmt: skip
        self._touched = {v: sorted({self.made[v], *self._reads[self.buffer_of[v]]}) for v in temps}
        live = np.asarray(self.plan.live_temp_bytes(), np.int64)
        passing = np.zeros_like(live)  # the part of them that is only on the way
        least = {v: float(self._work[self.home[self.name_of[v]]]) for v in temps}
        if self._link is not None:
            least = {v: min(work, self._link.least(v.nbytes)) for v, work in least.items()}
        gaps = _Gaps(self._touched, least)
        while live.size and live[at := int(np.argmax(live))] > goal:
            over = np.append(0, np.cumsum(live > goal))
            self._over = over.tolist()
            found = self._best(gaps, at, live, passing, over)
            if found is None:
                break
            gap, back = found
            val, early, first = gaps.vals[gap], gaps.early[gap], gaps.first[gap]
            if isinstance(back, Stay):
                assert self._link is not None
                self._link.carry(early, first, val.nbytes)
                live[back.left + 1 : back.back] -= val.nbytes
                gaps.end(val)
                self.stays[val], self.dropped[val], self._gone[val] = back, back.back, back.left
                continue
            live[early + 1 : first] -= val.nbytes
            live[first] += max(0, back.passing - passing[first])
            passing[first] = max(back.passing, passing[first])
            gaps.end(val)
            for u in back.earlier:
                live[first : self.dropped[u]] += u.nbytes
                self.dropped[u] = first
            for u in back.held:
                live[self._touched[u][-1] + 1 : first + 1] += u.nbytes
                gaps.touch(u, self._touched[u], first)
                self._until[u] = max(self._until[u], first)
            self.dropped[val], self._gone[val] = first, early
            self._again.update((i, min(first, self._again.get(i, first))) for i in back.equations)
        self._over = None

    def _best(
        self, gaps: _Gaps, at: int, live: np.ndarray, passing: np.ndarray, over: np.ndarray
    ) -> tuple[int, _Return | Stay] | None:
        """Which gap over a call spares most bytes for the work, and how its value comes back; None where none does."""
        best: tuple[float, int, _Return | Stay] | None = None
        for n, (gap, gain, seems) in enumerate(gaps.over(at, over)):
            if best is not None and (seems <= best[0] or (n >= _LOOKED_AT and gap in gaps.known)):
                break
            val, first = gaps.vals[gap], gaps.first[gap]
            ways = [self._return(val, first, _HELD * gain)]
            if any(self._until[u] < first for u in ways[0].held):
                ways.append(self._return(val, first, 0.0))
            stays = list(self._link.stays(gaps.early[gap], first, val.nbytes)) if self._link is not None else []
            gaps.costs(gap, min([*(back.work for back in ways), *(stay.work for stay in stays)]))
            for back in ways:
                more = max(0, back.passing - passing[first])
                if (not more or live[first] + more < live[at]) and (worth := self._worth(gain, back, first)) > 0:
                    if best is None or worth > best[0]:
                        best = worth, gap, back
            for stay in stays:
                worth = val.nbytes * float(over[stay.back] - over[stay.left + 1]) / (stay.work + 1)
                if stay.left < at < stay.back and worth > 0 and (best is None or worth > best[0]):
                    best = worth, gap, stay
        return best and best[1:]

    def _worth(self, gain: float, back: _Return, call: int) -> float:
        """The bytes that are spared over all calls that are beyond the goal, for a unit of work."""
        over = self._over
        assert over is not None
        for u in back.earlier:
            gain -= u.nbytes * (over[self.dropped[u]] - over[call])
        for u in back.held:
            gain -= u.nbytes * (over[call + 1] - over[min(call, self._touched[u][-1]) + 1])
        for i in back.shared:
            gain -= self.program.eqns[i].outputs[0].aval.nbytes * abs(over[self._again[i]] - over[call])
        return gain / (back.work + 1)


class _Gaps:
    """Stretches of calls for which values wait in memory, touched before and after but not within."""

    def __init__(self, touched: Mapping[Val, list[int]], least: Mapping[Val, float]) -> None:
        self.vals: list[Val] = []
        self.early: list[int] = []
        self.first: list[int] = []
        self._of: dict[Val, list[int]] = {}
        self._least = least
        self.known: set[int] = set()
        self._columns = np.zeros((4, 1024))  # early, first, bytes, work
        for val, calls in touched.items():
            for early, first in itertools.pairwise(calls):
                self._add(val, early, first)

    def _add(self, val: Val, early: int, first: int) -> None:
        if first - early < 2:
            return
        gap = len(self.vals)
        if gap == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._columns[:, gap] = early, first, val.nbytes, self._least[val]
        self.vals.append(val)
        self.early.append(early)
        self.first.append(first)
        self._of.setdefault(val, []).append(gap)

    def over(self, at: int, over: np.ndarray) -> Iterator[tuple[int, float, float]]:
        """The gaps over a call; the bytes that each spares, over the calls that are beyond the goal; and that for a
        unit of work, by what it is known to cost. Those come first that look best."""
        early, first, nbytes, work = self._columns[:, : len(self.vals)]
        here = np.flatnonzero((early < at) & (at < first) & (work < math.inf))
        gain = nbytes[here] * (over[first[here].astype(np.int64)] - over[early[here].astype(np.int64) + 1])
        seems = gain / (work[here] + 1)
        order = np.argsort(-seems, kind="stable")
        return ((int(here[n]), float(gain[n]), float(seems[n])) for n in order)

    def costs(self, gap: int, work: float) -> None:
        self._columns[3, gap] = work
        self.known.add(gap)

    def end(self, val: Val) -> None:
        for gap in self._of.pop(val, ()):
            self.costs(gap, math.inf)

    def touch(self, val: Val, calls: list[int], call: int) -> None:
        """A value is read at one more call."""
        i = bisect.bisect_left(calls, call)
        if i < len(calls) and calls[i] == call:
            return
        calls.insert(i, call)
        if val not in self._of:
            return
        for gap in self._of[val]:
            if self.early[gap] < call < self.first[gap]:
                self.costs(gap, math.inf)
                self._of[val].remove(gap)
                self._add(val, self.early[gap], call)
                self._add(val, call, self.first[gap])
                return
        self._add(val, calls[i - 1], call)
