"""``while``: a program again and again, as long as a condition holds. ``volta.lax.while_loop``, ``fori_loop``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.errors import NotDifferentiableError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr, Var
from volta.core.source import at_user_line
from volta.ops.base import bind_named, instantiate, to_front
from volta.ops.callbacks import refuse_io
from volta.ops.primitive import Family, Primitive, register
from volta.trace import masks
from volta.trace.calls import jvp_program, opened
from volta.trace.control import (
    batched,
    carried_tangents,
    reordered,
    where,
    with_zeros,
)
from volta.trace.jaxpr_trace import eval_closed, here, trace_to_jaxpr
from volta.trace.masks import Mask


def run_while(
    condition: ClosedJaxpr,
    cond_consts: Sequence[Any],
    body: ClosedJaxpr,
    body_consts: Sequence[Any],
    init: Sequence[Any],
) -> list[Any]:
    """Bind a loop; what the programs have as constants become operands."""
    tested, used = [*condition.consts, *cond_consts], [*body.consts, *body_consts]
    condition, body = opened(condition), opened(body)
    return while_p.bind(
        *tested, *used, *init, cond_jaxpr=condition, body_jaxpr=body, cond_nconsts=len(tested), body_nconsts=len(used)
    )


def _while_abstract(*avals: ShapedArray, body_jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    return body_jaxpr.out_avals


def _while_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
    cond_nconsts: int, body_nconsts: int,
) -> Any:  # fmt: skip
    tested, used, init = masks.parts(primals, cond_nconsts, body_nconsts)
    _, const_tangents, tangents = masks.parts(tangents, cond_nconsts, body_nconsts)
    consts, n = masks.nonzero(const_tangents), len(init)
    carry = carried_tangents(body_jaxpr, consts, masks.nonzero(tangents), (), "while")
    avals = tuple(body_jaxpr.out_avals)
    program, have = jvp_program(body_jaxpr, (*consts, *carry), "while")
    program = with_zeros(program, n, have, carry, avals, "jvp(while)")
    live = sum(consts)
    # (consts, carry, tangents of consts, of carry) -> with the constants first
    k = body_nconsts
    order = (*range(k), *range(k + n, k + n + live), *range(k, k + n), *range(k + n + live, len(program.in_avals)))
    program = reordered(program, order)
    condition = _reads_first(cond_jaxpr, sum(carry), [a for a, c in zip(avals, carry, strict=True) if c])
    start = [instantiate(t) for t, c in zip(tangents, carry, strict=True) if c]
    outs = run_while(condition, tested, program, [*used, *masks.live(const_tangents)], [*init, *start])
    return outs[:n], masks.spread(carry, outs[n:], masks.zeros(avals))


def _reads_first(condition: ClosedJaxpr, count: int, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """A condition that is given ``count`` more values, which it does not read."""
    jaxpr = condition.jaxpr
    more = tuple(Var(a.strip_weak()) for a in avals)
    return ClosedJaxpr(jaxpr.replace(invars=(*jaxpr.invars, *more)), condition.consts) if count else condition


def _while_batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
    cond_nconsts: int, body_nconsts: int,
) -> Any:  # fmt: skip
    """Examples whose condition is false keep their values while others go on."""
    axis, size = trace.axis, trace.axis.size
    args = [x if d is None else to_front(x, d, size) for x, d in zip(args, dims, strict=True)]
    tested, used, carry = masks.parts([d is not None for d in dims], cond_nconsts, body_nconsts)
    mapped = tuple(carry)
    while True:
        _, out = batched(body_jaxpr, axis, (*used, *mapped), mapped, "while")
        _, (own_test,) = batched(cond_jaxpr, axis, (*tested, *out), (False,), "while")
        more = (True,) * len(out) if own_test else out
        if more == mapped:
            break
        mapped = more
    condition, _ = batched(cond_jaxpr, axis, (*tested, *mapped), (False,), "while")
    body, _ = batched(body_jaxpr, axis, (*used, *mapped), mapped, "while")
    cond_consts, body_consts, init = masks.parts(args, cond_nconsts, body_nconsts)
    init = [to_front(x, 0 if c else None, size) if m else x for x, c, m in zip(init, carry, mapped, strict=True)]
    if own_test:
        refuse_io((cond_jaxpr, body_jaxpr), "under vmap examples that are done would call it on, while others are not")
        body = _going_on(condition, body, cond_nconsts)
        condition = _some(condition)
        body_consts = [*cond_consts, *body_consts]
    outs = run_while(condition, cond_consts, body, body_consts, init)
    return outs, [0 if m else None for m in mapped]


def _some(condition: ClosedJaxpr) -> ClosedJaxpr:
    """Whether the condition holds for some example."""

    def run(*args: Any) -> tuple[list[Any], None]:
        (tests,) = eval_closed(condition, *args)
        return [bind_named("reduce_or", tests, axes=(0,))], None

    return trace_to_jaxpr(run, condition.in_avals, "while", "vmap maps")[0]


def _going_on(condition: ClosedJaxpr, body: ClosedJaxpr, cond_nconsts: int) -> ClosedJaxpr:
    """(constants of the condition, of the body, carried) -> the body's results for the examples that go on."""
    n = len(body.out_avals)
    tested = condition.in_avals[:cond_nconsts]

    def run(*args: Any) -> tuple[list[Any], None]:
        consts, rest = masks.parts(args, cond_nconsts)
        carry = rest[len(rest) - n :]
        (on,) = eval_closed(condition, *consts, *carry)
        new = eval_closed(body, *rest)
        return [where(on, x, y) for x, y in zip(new, carry, strict=True)], None

    return trace_to_jaxpr(run, [*tested, *body.in_avals], "while", "vmap maps")[0]


def _linearize_while(nonzero: Mask, *primals: Any, **params: Any) -> Any:
    """What is linear is the loop again, with tangents beside its values: how many iterations it takes they decide."""
    _, consts, carry = masks.parts(nonzero, params["cond_nconsts"], params["body_nconsts"])
    moving = carried_tangents(params["body_jaxpr"], tuple(consts), tuple(carry), (), "while", reverse=True)
    outs = while_p.bind(*primals, **params)
    if not any(moving):
        return outs, moving, lambda *tangents: []
    zeros = masks.zeros([get_aval(x) for x in primals])

    def linear(*tangents: Any) -> list[Any]:
        try:
            moved = _while_jvp(primals, masks.spread(nonzero, tangents, zeros), **params)[1]
        except NotDifferentiableError:  # something in it has a derivative backwards alone
            raise _not_backwards() from None
        return [instantiate(t) for t, m in zip(moved, moving, strict=True) if m]

    return outs, moving, linear


def _not_backwards() -> NotDifferentiableError:
    source = here()
    text = (
        "grad cannot run a `while` backwards: how many iterations it takes is not known before it runs. Use "
        "volta.lax.scan, or volta.lax.fori_loop with bounds known when it is traced; volta.jvp and jacfwd work."
    )
    return NotDifferentiableError(at_user_line(text) if source is None else f"{text}\n{source.pointer()}")


def _transpose_while(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    raise _not_backwards()


while_p = register(
    Primitive(
        name="while",
        family=Family.CONTROL,
        abstract=_while_abstract,
        jvp=_while_jvp,
        batch=_while_batch,
        linearize=_linearize_while,
        transpose=_transpose_while,
        multiple_results=True,
        doc="A program again and again, from values to the next values, as long as a condition on them holds.",
    )
)
