"""A program with its plan, what its operations cost, and which may run twice."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from volta.core.ir import ClosedJaxpr, Eqn, subjaxprs
from volta.ops.primitive import Family
from volta.xla_like.nodes import Lowered, Val
from volta.xla_like.plan import ExecutionPlan
from volta.xla_like.recompute import Copies

AGAIN = {
    Family.ELEMENTWISE, Family.REDUCTION, Family.MOVEMENT, Family.CONTRACTION, Family.ATTENTION, Family.INDEXING,
    Family.SORTING,
}  # fmt: skip
"""What may run twice: a loop, a user's kernel and a call of Python run once."""


@attrs.frozen(eq=False)
class Scheduled:
    """A program, its plan, and how they belong together: the buffer of each stored value, the call of each node, the
    nodes that kernels of their readers compute again."""

    program: ClosedJaxpr
    plan: ExecutionPlan
    lowered: Lowered
    buffer_of: Mapping[Val, int]
    call_of: Mapping[int, int]
    copies: Copies

    @functools.cached_property
    def works(self) -> list[int]:
        """Floating-point operations, or what takes as long, of each equation."""
        return list(map(work_of, self.program.eqns))

    @property
    def work(self) -> int:
        """That of all that runs."""
        return sum(self.works) + self.copies.work

    def more_than(self, plain: Scheduled) -> More:
        """What this runs that a plan of the same program, plain, does not; most equations are in both."""
        own, others = set(self.program.eqns), set(plain.program.eqns)
        new = [e for e in self.program.eqns if e not in others]
        gone = [e for e in plain.program.eqns if e not in own]
        return More(
            _operations(new) - _operations(gone) + self.copies.count - plain.copies.count,
            sum(map(work_of, new)) - sum(map(work_of, gone)) + self.copies.work - plain.copies.work,
            _lines(new) - _lines(gone),
        )


@attrs.frozen
class More:
    """Of one plan beside another: operations, those of programs that the program carries too; what they cost; and from
    which of the user's lines how many are."""

    operations: int
    work: int
    lines: Counter[str]


def _lines(eqns: Iterable[Eqn]) -> Counter[str]:
    computed = (e for e in eqns if e.source is not None and e.primitive.family in AGAIN)
    return Counter(str(e.source) for e in computed if e.primitive.name != "optimization_barrier")


def _operations(eqns: Iterable[Eqn]) -> int:
    return sum(1 + sum(_operations(program.eqns) for program in subjaxprs(e.params)) for e in eqns)


def work_of(eqn: Eqn) -> int:
    """Floating-point operations, or what takes as long, that an equation costs."""
    size = sum(v.aval.size for v in eqn.outputs)
    if eqn.primitive.family is Family.CONTRACTION:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * size * math.prod(eqn.inputs[0].aval.shape[d] for d in contracted)
    if eqn.primitive.family is Family.ATTENTION:
        return 4 * size * eqn.inputs[1].aval.shape[1]  # two products over the keys
    if eqn.primitive.name == "scan":
        return eqn.params["length"] * sum(map(work_of, eqn.params["jaxpr"].eqns))
    if "jaxpr" in eqn.params and eqn.primitive.family is Family.CALL:
        return sum(map(work_of, eqn.params["jaxpr"].eqns))
    if eqn.primitive.family is Family.REDUCTION:
        size = sum(x.aval.size for x in eqn.inputs)
    return size * eqn.primitive.cost
