"""Loops and choices whose parts have nothing to do with each other: each rank runs them on its own parts.

A body is cut as any program is. If no exchange comes out, and what is carried comes to lie as it lay, then that is the
body of each rank. Otherwise there is no rule, and operands are gathered: ranks do not meet within loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.core.sharding import Layout
from volta.xla_like.partition.local import Partitioned

CutBody = Callable[[ClosedJaxpr, Sequence[Layout]], Partitioned | None]
"""Cuts a body whose inputs lie so; None where it has exchanges."""

_TRIES = 4
"""How often it is looked whether what is carried lies as it comes out: what begins whole may be cut by the first
iteration, and what follows from it by the second."""


@attrs.frozen(eq=False)
class OwnLoop:
    """How operands and results of a loop lie, and its params on each rank."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    params: Callable[[int], dict[str, Any]]


def own_loop(eqn: Eqn, layouts: Sequence[Layout], cut_body: CutBody) -> OwnLoop | None:
    """The loop of each rank, if its operands lie so; None where there is none."""
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or all(cut is None for layout in layouts for cut in layout):
        return None
    return rule(eqn, tuple(layouts), cut_body)


def _body_of(found: Partitioned, rank: int) -> ClosedJaxpr:
    local = found.locals[rank]
    (segment,) = local.segments
    inputs = tuple(v for v in local.inputs if isinstance(v, Var))
    return ClosedJaxpr(Jaxpr((), inputs, segment.jaxpr.eqns, local.outputs), ())


def _params(eqn: Eqn, **bodies: Partitioned) -> Callable[[int], dict[str, Any]]:
    """The params of a loop on each rank, from its bodies cut for all."""
    return lambda rank: {**eqn.params, **{name: _body_of(found, rank) for name, found in bodies.items()}}


def _scan(eqn: Eqn, layouts: tuple[Layout, ...], cut_body: CutBody) -> OwnLoop | None:
    """The iterations are whole on every rank; what each of them reads and gives may be cut."""
    params = eqn.params
    n, m = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry = layouts[:n], layouts[n:m]
    rows = tuple(layout[1:] for layout in layouts[m:])
    for _ in range(_TRIES):
        body = cut_body(params["jaxpr"], (*consts, *carry, *rows))
        if body is None:
            return None
        out, made = body.out_layouts[: m - n], body.out_layouts[m - n :]
        if out == carry:
            operands = (*consts, *carry, *((None, *x) for x in rows))
            return OwnLoop(operands, (*carry, *((None, *x) for x in made)), _params(eqn, jaxpr=body))
        carry = out
    return None


def _while(eqn: Eqn, layouts: tuple[Layout, ...], cut_body: CutBody) -> OwnLoop | None:
    params = eqn.params
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, consts, carry = layouts[:n], layouts[n:m], layouts[m:]
    for _ in range(_TRIES):
        body = cut_body(params["body_jaxpr"], (*consts, *carry))
        if body is None:
            return None
        if body.out_layouts == carry:
            cond = cut_body(params["cond_jaxpr"], (*asked, *carry))
            if cond is None:
                return None
            return OwnLoop((*asked, *consts, *carry), carry, _params(eqn, body_jaxpr=body, cond_jaxpr=cond))
        carry = body.out_layouts
    return None


def _cond(eqn: Eqn, layouts: tuple[Layout, ...], cut_body: CutBody) -> OwnLoop | None:
    bodies = [cut_body(branch, layouts[1:]) for branch in eqn.params["branches"]]
    found = [body for body in bodies if body is not None]
    if len(found) < len(bodies) or any(body.out_layouts != found[0].out_layouts for body in found):
        return None
    return OwnLoop(
        layouts, found[0].out_layouts,
        lambda rank: {**eqn.params, "branches": tuple(_body_of(body, rank) for body in found)},
    )  # fmt: skip


_RULES: dict[str, Callable[[Eqn, tuple[Layout, ...], CutBody], OwnLoop | None]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
