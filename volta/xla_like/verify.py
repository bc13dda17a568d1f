"""The legal IR and the legal schedule, written down and checked.

A failure is a bug of Volta's, and names the equation or the call.
"""

from __future__ import annotations

from volta.core.errors import VerificationError
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Literal, Var, print_jaxpr, subjaxprs
from volta.xla_like.plan import ExecutionPlan


def verify_graph(program: ClosedJaxpr, types: bool = True, checked: ClosedJaxpr | None = None) -> None:
    """Check that a program is in SSA form and, with ``types``, that every equation obeys its primitive's shape rule;
    those that it shares with a program that was ``checked`` do.

    Raises:
        VerificationError: with the program printed and an arrow at the offending equation.
    """
    jaxpr = program.jaxpr
    if len(program.consts) != len(jaxpr.constvars):
        raise VerificationError(f"{len(jaxpr.constvars)} constvars are bound to {len(program.consts)} constants")
    defined: set[Atom] = set()
    known = set() if checked is None else set(checked.eqns)
    for var in (*jaxpr.constvars, *jaxpr.invars):
        if var in defined:
            raise VerificationError(f"an argument is bound twice in\n{jaxpr}")
        defined.add(var)
    for i, eqn in enumerate(jaxpr.eqns):
        for atom in eqn.inputs:
            if atom in defined:
                continue
            if not isinstance(atom, Literal):
                _fail(jaxpr, i, "an operand is used before it is defined")
            elif atom.aval.shape:
                _fail(jaxpr, i, f"literal {atom} is not a scalar")
        for var in eqn.outputs:
            if var in defined:
                _fail(jaxpr, i, "a variable is assigned twice")
            defined.add(var)
        if types and eqn not in known:
            _verify_types(jaxpr, i)
            for sub in subjaxprs(eqn.params):
                verify_graph(sub)
    for atom in jaxpr.outvars:
        if isinstance(atom, Var) and atom not in defined:
            raise VerificationError(f"a result is never computed in\n{jaxpr}")


def _verify_types(jaxpr: Jaxpr, i: int) -> None:
    eqn = jaxpr.eqns[i]
    try:
        want = eqn.primitive.abstract(*(a.aval for a in eqn.inputs), **eqn.params)
    except Exception as error:
        raise VerificationError(f"equation {i} breaks the shape rule of {eqn.primitive}: {error}\n"
                                f"{print_jaxpr(jaxpr, mark=i)}") from error  # fmt: skip
    want = list(want) if eqn.primitive.multiple_results else [want]
    got = [v.aval for v in eqn.outputs]
    if [(a.shape, a.dtype) for a in want] != [(a.shape, a.dtype) for a in got]:
        _fail(jaxpr, i, f"the shape rule gives {' '.join(map(str, want))}, the equation has {' '.join(map(str, got))}")


def _fail(jaxpr: Jaxpr, i: int, why: str) -> None:
    raise VerificationError(f"equation {i} ({jaxpr.eqns[i].primitive}) is illegal: {why}\n{print_jaxpr(jaxpr, mark=i)}")


def verify_schedule(plan: ExecutionPlan) -> None:
    """Check that every call reads what was written before, writes only what it may, and that results are computed."""
    kinds = [b.kind for b in plan.buffers]
    written = {b.id for b in plan.buffers if b.kind in ("input", "const") or not b.nbytes}
    passed: dict[int, int] = {}  # values without memory, and the call that has them
    for i, call in enumerate(plan.calls):
        touched = [a.buffer for c in call.each() for a in c.accesses if a.buffer is not None]
        for b in (*call.reads, *call.writes, *touched):
            if not 0 <= b < len(kinds):
                raise VerificationError(f"call {i} touches buffer b{b}, which does not exist\n{plan}")
        for b in touched:
            if kinds[b] == "unstored":
                if passed.setdefault(b, i) != i or not any(b in part.writes for part in call.parts):
                    raise VerificationError(
                        f"call {i} touches b{b}, a value that another call has in registers\n{plan}"
                    )
            elif b not in call.reads and b not in call.writes:
                raise VerificationError(f"call {i} has an access to b{b} that it does not declare\n{plan}")
        for b in call.reads:
            if b not in written:
                raise VerificationError(f"call {i} reads b{b} before it is written\n{plan}")
        for b in call.writes:
            if kinds[b] in ("input", "const"):
                raise VerificationError(f"call {i} writes {kinds[b]} b{b}\n{plan}")
            written.add(b)
    overwritten = {b.alias for b in plan.buffers}
    for b in plan.outputs:
        if b in overwritten:
            raise VerificationError(f"result b{b} is an input that another result overwrites\n{plan}")
        if b not in written and plan.buffers[b].nbytes:
            raise VerificationError(f"result b{b} is never written\n{plan}")
