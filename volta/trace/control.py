"""What loops and choices share: programs that agree about constants, and about which derivatives are 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.axes import Axis
from volta.core.interp import get_aval
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Var
from volta.ops.base import bind_named, broadcast_to, fill, to_front, zeros_of
from volta.trace.batch import batch_flat
from volta.trace.calls import jvp_program, linearize_program
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr
from volta.trace.masks import Mask

CACHED = 1024


def either(*masks: Mask) -> Mask:
    return tuple(map(any, zip(*masks, strict=True)))


@lru_cache(maxsize=CACHED)
def opened_together(programs: tuple[ClosedJaxpr, ...]) -> tuple[tuple[ClosedJaxpr, ...], tuple[Any, ...]]:
    """The programs without constants: each takes those of all of them first; and these."""
    consts = tuple(c for p in programs for c in p.consts)
    if not consts:
        return programs, ()
    opened = []
    for i, program in enumerate(programs):
        own = program.jaxpr.constvars
        others = [[Var(v.aval) for v in p.jaxpr.constvars] if j != i else own for j, p in enumerate(programs)]
        invars = (*(v for group in others for v in group), *program.jaxpr.invars)
        opened.append(ClosedJaxpr(program.jaxpr.replace(constvars=(), invars=invars), ()))
    return tuple(opened), consts


@lru_cache(maxsize=CACHED)
def with_zeros(
    program: ClosedJaxpr, first: int, have: Mask, want: Mask, avals: tuple[ShapedArray, ...], name: str
) -> ClosedJaxpr:
    """A program that, behind its ``first`` results, has those that ``have`` marks, with zeros where more are wanted."""
    if have == want:
        return program

    def run(*args: Any) -> tuple[list[Any], None]:
        outs = eval_closed(program, *args)
        live = iter(outs[first:])
        values = [next(live) if h else zeros_of(a.strip_weak()) for h, w, a in zip(have, want, avals, strict=True) if w]
        return [*outs[:first], *values], None

    return trace_to_jaxpr(run, program.in_avals, name)[0]


@lru_cache(maxsize=CACHED)
def reordered(program: ClosedJaxpr, order: tuple[int, ...]) -> ClosedJaxpr:
    """The program with its inputs in another order: ``order`` has the number of each."""
    jaxpr = program.jaxpr
    return ClosedJaxpr(jaxpr.replace(invars=tuple(jaxpr.invars[i] for i in order)), program.consts)


@lru_cache(maxsize=CACHED)
def batched(program: ClosedJaxpr, axis: Axis, dims: Mask, want: Mask, name: str) -> tuple[ClosedJaxpr, Mask]:
    """The program with axis 0 of the marked inputs mapped, and of the results that ``want`` marks and those that turn
    out to be mapped; and which these are."""

    def run(*args: Any) -> tuple[list[Any], Mask]:
        axes, size = [0 if d else None for d in dims], axis.size
        outs, out_dims, _ = batch_flat(lambda *xs: (eval_closed(program, *xs), None), axis, args, axes, name)
        mapped = tuple(w or d is not None for w, d in zip(want, out_dims, strict=True))
        return [to_front(x, d, size) if m else x for x, d, m in zip(outs, out_dims, mapped, strict=True)], mapped

    avals = [a.update(shape=(axis.size, *a.shape)) if d else a for a, d in zip(program.in_avals, dims, strict=True)]
    return trace_to_jaxpr(run, avals, name, "vmap maps")


def nothing_yet(aval: ShapedArray) -> Any:
    """What a sum of cotangents begins with: -0, to which adding x gives x, bit for bit."""
    return fill(aval.shape, -0.0, aval.dtype)


def select_outputs(program: ClosedJaxpr, places: Sequence[Atom]) -> ClosedJaxpr:
    """The program that gives some of its variables."""
    jaxpr = program.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.eqns, tuple(places)), program.consts)


def carried_tangents(
    body: ClosedJaxpr, consts: Mask, carry: Mask, rest: Mask, name: str, reverse: bool = False
) -> Mask:
    """Which carried values have a tangent in some iteration: those that have one at first, or come to one.

    In ``reverse`` a body is asked that may have no forward derivative.
    """
    while True:
        nonzero = (*consts, *carry, *rest)
        out = linearize_program(body, nonzero, name).nonzero_out if reverse else jvp_program(body, nonzero, name)[1]
        more = either(carry, out[: len(carry)])
        if more == carry:
            return carry
        carry = more


def where(on: Any, x: Any, y: Any) -> Any:
    """``x`` for the examples that a mask marks, ``y`` for the others."""
    return bind_named("select_n", broadcast_to(on, get_aval(x).shape, (0,)), y, x)
