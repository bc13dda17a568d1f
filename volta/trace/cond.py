"""``cond``: one of several programs, by an index. ``volta.lax.cond`` and ``volta.lax.switch``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr, Var, used_vars
from volta.ops.base import bind_named, to_front, zeros_of
from volta.ops.callbacks import refuse_io
from volta.ops.primitive import Family, Primitive, Zero, register
from volta.ops.primitive import Linear as LinearOperand
from volta.trace import masks
from volta.trace.calls import jvp_program, linearize_program, transpose_program
from volta.trace.control import CACHED, batched, either, opened_together, where, with_zeros
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr
from volta.trace.masks import Mask
from volta.trace.transpose import transpose_by

Programs = tuple[ClosedJaxpr, ...]


def choose(index: Any, branches: Programs, operands: Sequence[Any]) -> list[Any]:
    """Bind a choice; the branches' constants become operands of all of them, and what none reads is no operand."""
    branches, consts = opened_together(branches)
    branches, read = _trimmed(branches)
    return cond_p.bind(index, *(x for x, r in zip((*consts, *operands), read, strict=True) if r), branches=branches)


@lru_cache(maxsize=CACHED)
def _trimmed(branches: Programs) -> tuple[Programs, Mask]:
    used = [used_vars(b.eqns, b.jaxpr.outvars) for b in branches]
    columns = zip(*(b.jaxpr.invars for b in branches), strict=True)
    read = tuple(any(v in u for v, u in zip(column, used, strict=True)) for column in columns)
    if all(read):
        return branches, read
    kept = [tuple(v for v, r in zip(b.jaxpr.invars, read, strict=True) if r) for b in branches]
    return tuple(ClosedJaxpr(b.jaxpr.replace(invars=k), ()) for b, k in zip(branches, kept, strict=True)), read


def _abstract(index: ShapedArray, *avals: ShapedArray, branches: Programs) -> list[ShapedArray]:
    return branches[0].out_avals


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, branches: Programs) -> Any:
    nonzero, avals = masks.nonzero(tangents[1:]), tuple(branches[0].out_avals)
    found = [jvp_program(b, nonzero, "cond") for b in branches]
    want = either(*(mask for _, mask in found))
    programs = tuple(with_zeros(p, len(avals), mask, want, avals, "jvp(cond)") for p, mask in found)
    outs = choose(primals[0], programs, [*primals[1:], *masks.live(tangents[1:])])
    primals_out, live = masks.parts(outs, len(avals))
    return primals_out, masks.spread(want, live, masks.zeros(avals))


def _batch(args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, branches: Programs) -> Any:
    axis, size = trace.axis, trace.axis.size
    mapped = tuple(d is not None for d in dims[1:])
    moved = [x if d is None else to_front(x, d, size) for x, d in zip(args[1:], dims[1:], strict=True)]
    none = (False,) * len(branches[0].out_avals)
    want = either(*(batched(b, axis, mapped, none, "cond")[1] for b in branches))
    if dims[0] is not None:
        want = (True,) * len(want)
    programs = tuple(batched(b, axis, mapped, want, "cond")[0] for b in branches)
    if dims[0] is None:
        return choose(args[0], programs, moved), [0 if w else None for w in want]
    # Each example has a choice of its own: all branches are computed for all, and picked from.
    refuse_io(branches, "under vmap a choice for each example computes all branches, and would call it for each")
    dtype = get_aval(args[0]).dtype
    here = [bind_named("eq", args[0], np.asarray(number, dtype)[()]) for number in range(len(programs))]
    outs = [
        eval_closed(p, *(_live_where(on, x, m) for x, m in zip(moved, mapped, strict=True)))
        for p, on in zip(programs, here, strict=True)
    ]
    chosen = outs[0]
    for on, other in zip(here[1:], outs[1:], strict=True):
        chosen = [where(on, y, x) for x, y in zip(chosen, other, strict=True)]
    return chosen, [0] * len(chosen)


def _live_where(on: Any, x: Any, mapped: bool) -> Any:
    """``x``, with a derivative for those examples alone that choose a branch: so a slope that another branch has
    nowhere, as of a root at 0, which a factor of 0 does not take away, is no part of theirs."""
    if not mapped or not dtypes.is_inexact(get_aval(x).dtype):
        return x
    return where(on, x, bind_named("stop_gradient", x))


def _linearize(nonzero: Mask, index: Any, *operands: Any, branches: Programs) -> Any:
    """The chosen branch's residuals are results of the choice; of the other branches they are zeros that nobody reads.
    Residuals of different branches share results where they are of one shape and dtype."""
    split = [linearize_program(b, nonzero[1:], "cond") for b in branches]
    want, avals = either(*(s.nonzero_out for s in split)), tuple(branches[0].out_avals)
    slots: list[ShapedArray] = []
    forwards, linears = [], []
    places: list[list[int]] = []  # of each branch's residuals: an operand's number, or from -1 down a slot's
    for s in split:
        free, taken, place = list(range(len(slots))), {}, []
        for kind, number in s.residuals:
            if kind == 0:
                place.append(number)
                continue
            if number not in taken:
                aval = s.forward.out_avals[number].strip_weak()
                found = next((k for k in free if slots[k] == aval), len(slots))
                if found == len(slots):
                    slots.append(aval)
                else:
                    free.remove(found)
                taken[number] = found
            place.append(-1 - taken[number])
        places.append(place)
    for s, place in zip(split, places, strict=True):
        inside = {-1 - p: number for p, (kind, number) in zip(place, s.residuals, strict=True) if kind == 1}
        forwards.append(
            _with_slots(s.forward, len(avals), tuple(inside.get(k) for k in range(len(slots))), tuple(slots))
        )
        linear = with_zeros(s.linear, 0, s.nonzero_out, want, avals, "jvp(cond)")
        linears.append(
            _from_slots(linear, tuple(place), len(slots), tuple(get_aval(x) for x in operands), tuple(slots))
        )
    outs, residuals = masks.parts(choose(index, tuple(forwards), operands), len(avals))

    def linear_part(*tangents: Any) -> list[Any]:
        return choose(index, tuple(linears), [*operands, *residuals, *tangents])

    return outs, want, linear_part


@lru_cache(maxsize=CACHED)
def _with_slots(
    program: ClosedJaxpr, n_out: int, numbers: tuple[int | None, ...], slots: tuple[ShapedArray, ...]
) -> ClosedJaxpr:
    """The program with its results, then those that ``numbers`` names; zeros for None."""

    def run(*args: Any) -> tuple[list[Any], None]:
        outs = eval_closed(program, *args)
        return [
            *outs[:n_out],
            *(zeros_of(a) if k is None else outs[k] for k, a in zip(numbers, slots, strict=True)),
        ], None

    return trace_to_jaxpr(run, program.in_avals, "cond", "grad differentiates")[0]


@lru_cache(maxsize=CACHED)
def _from_slots(
    program: ClosedJaxpr, places: tuple[int, ...], n_slots: int, operands: tuple[ShapedArray, ...],
    slots: tuple[ShapedArray, ...],
) -> ClosedJaxpr:  # fmt: skip
    """The program as one of operands, slots and tangents instead of its own residuals and tangents."""
    jaxpr = program.jaxpr
    own: list[Any] = [Var(a) for a in (*operands, *slots)]
    for v, place in zip(jaxpr.invars, places, strict=False):
        own[place if place >= 0 else len(operands) - 1 - place] = v
    renamed: dict[Any, Any] = {}  # a residual that is there twice is one input
    for v, place in zip(jaxpr.invars, places, strict=False):
        kept = own[place if place >= 0 else len(operands) - 1 - place]
        if kept is not v:
            renamed[v] = kept
    eqns = tuple(e.replace(inputs=tuple(renamed.get(a, a) for a in e.inputs)) for e in jaxpr.eqns)
    outs = tuple(renamed.get(a, a) for a in jaxpr.outvars)
    invars = (*own, *jaxpr.invars[len(places) :])
    return ClosedJaxpr(jaxpr.replace(invars=invars, eqns=eqns, outvars=outs), program.consts)


def _accumulate(cts: Sequence[Any], held: Sequence[Any], index: Any, *operands: Any, branches: Programs) -> list[Any]:
    linear = tuple(isinstance(x, LinearOperand) for x in operands)
    first: dict[int, int] = {}
    numbers = [first.setdefault(id(x), i) if m else i for i, (x, m) in enumerate(zip(operands, linear, strict=True))]
    totals = [
        h if h is not None and not isinstance(h, Zero) and numbers[i] == i else None for i, h in enumerate(held[1:])
    ]
    nonzero_out = masks.nonzero(cts)
    nonzero_held = tuple(t is not None for t, m in zip(totals, linear, strict=True) if m)
    found = [transpose_program(b, linear, nonzero_out, nonzero_held, "cond") for b in branches]
    avals = tuple(a for a, m in zip(branches[0].in_avals, linear, strict=True) if m)
    programs = tuple(with_zeros(p, 0, have, (True,) * len(avals), avals, "transpose(cond)") for p, have in found)
    known = [x for x, m in zip(operands, linear, strict=True) if not m]
    given = [t for t in totals if t is not None]
    after = iter(choose(index, programs, [*known, *masks.live(cts), *given]))
    new = [next(after) if m else None for m in linear]
    for i, number in enumerate(numbers):
        if linear[i] and number != i:  # one variable as several operands gathers one total
            new[number] = bind_named("add", new[number], new[i])
    return [None, *(new[number] if m else None for number, m in zip(numbers, linear, strict=True))]


cond_p = register(
    Primitive(
        name="cond",
        family=Family.CONTROL,
        abstract=_abstract,
        jvp=_jvp,
        batch=_batch,
        transpose=transpose_by(_accumulate),
        linearize=_linearize,
        accumulate=_accumulate,
        multiple_results=True,
        doc="One of several programs over the same operands, by an index that is inside of their range.",
    )
)
