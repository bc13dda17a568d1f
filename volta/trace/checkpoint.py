"""``checkpoint``: a call whose inner values are computed again for the backward pass, but for what a policy keeps.

A policy says of each operation whether its results are kept: ``policy(primitive, *avals, **params)``. Kept values are
results of the forward call and operands of the backward one, where they stand for what would be computed again: they
are the same bits. Jitted functions are looked into; a loop is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.interp import bind, current_trace, get_aval
from volta.core.ir import ClosedJaxpr, Jaxpr, Var, used_vars
from volta.ops.callbacks import refuse_io
from volta.trace import masks
from volta.trace.batch import BatchTrace
from volta.trace.calls import call, call_primitive, jit_p
from volta.trace.jaxpr_trace import attributed_to, eval_closed, literal_value, trace_to_jaxpr
from volta.trace.jvp import JVPTracer
from volta.trace.linearize import linearize_flat
from volta.trace.masks import Mask
from volta.trace.meaning import means_its_program

Policy = Callable[..., bool]


def _evaluate(closed: ClosedJaxpr, args: Sequence[Any], known: dict[Var, Any]) -> list[Any]:
    """Run a program with its jitted calls inlined; ``known`` values stand for those that are computed."""
    jaxpr = closed.jaxpr
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(a: Any) -> Any:
        return env[a] if type(a) is Var else literal_value(a)

    for eqn in jaxpr.eqns:
        inputs = [read(a) for a in eqn.inputs]
        with attributed_to(eqn.source):
            if eqn.primitive is jit_p:
                outs = _evaluate(eqn.params["jaxpr"], inputs, known)
            else:
                out = bind(eqn.primitive, *inputs, **eqn.params)
                outs = out if eqn.primitive.multiple_results else [out]
        for v, x in zip(eqn.outputs, outs, strict=True):
            env[v] = _standing_for(x, known[v]) if v in known else x
    return [read(a) for a in jaxpr.outvars]


def _standing_for(x: Any, kept: Any) -> Any:
    """A kept value with the tangent of what is computed again."""
    trace = current_trace()
    mine = type(x) is JVPTracer and x._trace is trace
    return JVPTracer(trace, kept, x.tangent) if mine else kept  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _inlined(program: ClosedJaxpr, name: str) -> ClosedJaxpr:
    return trace_to_jaxpr(lambda *xs: (_evaluate(program, xs, {}), None), program.in_avals, name)[0]


@lru_cache(maxsize=1024)
def _split(
    program: ClosedJaxpr, nonzero: Mask, name: str, policy: Policy | None
) -> tuple[ClosedJaxpr, ClosedJaxpr, Mask]:
    """``forward``: the outputs, then what is kept and read again. ``tangent``: (inputs, kept, nonzero tangents) ->
    nonzero output tangents; the other values are computed inside, where needed."""
    kept: list[Var] = []
    if policy is not None:
        program = _inlined(program, name)
        kept = [
            v for e in program.eqns if policy(e.primitive, *(a.aval for a in e.inputs), **e.params) for v in e.outputs
        ]
    avals = program.in_avals

    def run(*args: Any) -> tuple[list[Any], Mask]:
        primals, given, tangents = masks.parts(args, len(avals), len(kept))
        known = dict(zip(kept, given, strict=True))
        function = lambda *xs: (_evaluate(program, xs, known) if known else eval_closed(program, *xs), None)  # noqa: E731
        _, linear, _ = linearize_flat(function, primals, nonzero, name)
        return eval_closed(linear.program, *tangents), linear.nonzero_out

    tangent_avals = [a.strip_weak() for a, nz in zip(avals, nonzero, strict=True) if nz]
    given = [*avals, *(v.aval for v in kept), *tangent_avals]
    tangent, nonzero_out = trace_to_jaxpr(run, given, name, "grad differentiates")
    jaxpr, n = tangent.jaxpr, len(avals)
    used = used_vars(jaxpr.eqns, jaxpr.outvars)
    needed = [v in used for v in jaxpr.invars[n : n + len(kept)]]
    inputs, places, live = masks.parts(jaxpr.invars, n, len(kept))
    invars = (*inputs, *(v for v, m in zip(places, needed, strict=True) if m), *live)
    outvars = (*program.jaxpr.outvars, *(v for v, m in zip(kept, needed, strict=True) if m))
    forward = ClosedJaxpr(program.jaxpr.replace(outvars=outvars), program.consts) if kept else program
    return forward, ClosedJaxpr(jaxpr.replace(invars=invars), tangent.consts), nonzero_out


def _linearize(nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, name: str, policy: Policy | None) -> Any:
    refuse_io(
        (jaxpr,),
        "checkpoint would call it again where it computes values again; take it out of the function",
        ("io_callback",),
    )
    forward, tangent, nonzero_out = _split(jaxpr, nonzero, name, policy)
    outs, kept = masks.parts(call(checkpoint_p, forward, primals, name, policy=policy), len(nonzero_out))

    def linear(*tangents: Any) -> list[Any]:
        return call(checkpoint_p, tangent, [*primals, *kept, *tangents], f"jvp({name})", policy=policy)

    return outs, nonzero_out, linear


checkpoint_p = call_primitive(
    "checkpoint",
    "Calls a traced function whose inner values are computed again, not stored, for the backward pass.",
    _linearize,
    recompute=True,
)


# -- names -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _same(aval: ShapedArray) -> ClosedJaxpr:
    var = Var(aval)
    return ClosedJaxpr(Jaxpr((), (var,), (), (var,)), ())


def named(x: Any, name: str) -> Any:
    """``x`` as a value of that name, for policies."""
    return name_p.bind(x, jaxpr=_same(get_aval(x)), name=name)[0]


def _name_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, name: str, **params: Any) -> Any:
    return [named(primals[0], name)], list(tangents)


def _name_batch(args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, *, name: str, **params: Any) -> Any:
    return [named(args[0], name)], list(dims)


def _name_linearize(nonzero: Sequence[bool], x: Any, *, name: str, **params: Any) -> Any:
    return [named(x, name)], tuple(nonzero), lambda *tangents: list(tangents)


name_p = means_its_program(
    "name",
    jvp=_name_jvp,
    batch=_name_batch,
    linearize=_name_linearize,
    doc="Its operand, which policies of checkpoint know by a name.",
)
