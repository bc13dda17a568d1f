"""Functions that have a batch rule of their own: ``custom_vmap``.

Such a function is a call of its program, whose batch rule is the user's. Its forward derivative is a function of that
kind again: with the program's derivative, and the derivative of the rule as its rule. Reverse ones are the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.base import instantiate, to_front
from volta.trace import masks
from volta.trace.batch import BatchTrace
from volta.trace.calls import jit_p, jvp_program, opened
from volta.trace.jvp import jvp_flat
from volta.trace.masks import Mask
from volta.trace.meaning import means_its_program

Outputs = tuple[Sequence[Any], Sequence[bool]]


@attrs.frozen(eq=False, repr=False)
class BatchRule:
    """``apply``: from the size, which operands are mapped (in front) and these, to outputs and which are mapped."""

    name: str
    apply: Callable[[int, Sequence[bool], Sequence[Any]], Outputs]

    def __repr__(self) -> str:
        return self.name


def call(program: ClosedJaxpr, args: Sequence[Any], rule: BatchRule) -> list[Any]:
    """Bind a call; what the program has as constants become operands, of which the rule is told like of the others."""
    return custom_vmap_p.bind(*program.consts, *args, jaxpr=opened(program), name=rule.name, rule=rule)


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, *, rule: BatchRule, **params: Any
) -> tuple[list[Any], list[int | None]]:
    size = trace.axis.size
    moved = [x if d is None else to_front(x, d, size) for x, d in zip(args, dims, strict=True)]
    outs, mapped = rule.apply(size, [d is not None for d in dims], moved)
    return list(outs), [0 if m else None for m in mapped]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, rule: BatchRule
) -> tuple[list[Any], list[Any]]:
    have = masks.nonzero(tangents)
    program, have_out = jvp_program(jaxpr, have, name)
    derived = BatchRule(f"jvp({name})", lambda size, mapped, args: _pushed(rule, have, have_out, size, mapped, args))
    outs = call(program, [*primals, *masks.live(tangents)], derived)
    primals_out, live = masks.parts(outs, len(have_out))
    return primals_out, masks.spread(have_out, live, masks.zeros(jaxpr.out_avals))


def _pushed(
    rule: BatchRule, have: Mask, have_out: Mask, size: int, mapped: Sequence[bool], args: Sequence[Any]
) -> Outputs:
    """The derivative of a rule: a primal and its tangent are mapped together."""
    count = len(have)
    primals, live = masks.parts(args, count)
    of_primals, of_live = masks.parts(mapped, count)
    of_tangents = masks.spread(have, of_live, lambda i: False)
    both = [p or t for p, t in zip(of_primals, of_tangents, strict=True)]

    def along(x: Any, now: bool, want: bool) -> Any:
        return to_front(x, None, size) if want and not now else x

    primals = list(map(along, primals, of_primals, both))
    live = list(map(along, live, of_live, [b for b, nz in zip(both, have, strict=True) if nz]))
    tangents = masks.spread(have, live, masks.zeros([get_aval(x) for x in primals]))
    outs, dots, batched = jvp_flat(lambda *xs: rule.apply(size, both, xs), primals, tangents, rule.name)
    found = [(instantiate(t), m) for t, m, nz in zip(dots, batched, have_out, strict=True) if nz]
    return [*outs, *(t for t, _ in found)], [*batched, *(m for _, m in found)]


def _linearize(nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, name: str, rule: BatchRule) -> Any:
    return jit_p.linearize(nonzero, *primals, jaxpr=jaxpr, name=name)  # type: ignore[misc]


custom_vmap_p = means_its_program(
    "custom_vmap",
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    doc="Calls a function that has a batch rule of its own: means exactly its program.",
)
