"""Primitives that carry a program: ``jit`` (a call of a traced function), and what ``checkpoint`` shares with it.

Their rules transform the carried program and bind the result, so that a transformed call is again one call: ``grad`` of
a jitted function runs a compiled forward program and a compiled backward program. Derived programs are cached by the
identity of the program they come from, which is what keeps a second call from tracing or compiling again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.axes import Axis
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Var, used_vars
from volta.ops.base import bind_named
from volta.ops.callbacks import has_effects
from volta.ops.primitive import Family, Primitive, Rule, register
from volta.ops.primitive import Linear as LinearOperand
from volta.trace import masks
from volta.trace.batch import batch_flat
from volta.trace.jaxpr_trace import eval_closed, is_concrete, trace_to_jaxpr
from volta.trace.jvp import jvp_flat
from volta.trace.linearize import linearize_flat
from volta.trace.masks import Mask
from volta.trace.transpose import backward_pass, transpose_by

_CACHED = 1024  # derived programs kept, a kind


# -- programs from programs --------------------------------------------------------------------------------------------


@lru_cache(maxsize=_CACHED)
def jvp_program(program: ClosedJaxpr, nonzero: Mask, name: str) -> tuple[ClosedJaxpr, Mask]:
    """(inputs, nonzero tangents) -> (outputs, nonzero output tangents), and which tangents these are."""
    avals = program.in_avals

    def run(*args: Any) -> tuple[list[Any], Mask]:
        primals, live = masks.parts(args, len(avals))
        tangents = masks.spread(nonzero, live, masks.zeros(avals))
        outs, tangents_out, _ = jvp_flat(lambda *xs: (eval_closed(program, *xs), None), primals, tangents, name)
        return [*outs, *masks.live(tangents_out)], masks.nonzero(tangents_out)

    tangent_avals = [a.strip_weak() for a, nz in zip(avals, nonzero, strict=True) if nz]
    return trace_to_jaxpr(run, [*avals, *tangent_avals], name)


@attrs.frozen(eq=False)
class LinearizedProgram:
    """A program split in two: ``forward`` gives the outputs and what only it can know of the residuals; ``linear``
    takes all residuals and the tangents.

    ``residuals`` says where each residual comes from: ``(0, i)`` is input i of the call, ``(1, j)`` is output j of
    ``forward``.
    """

    forward: ClosedJaxpr
    linear: ClosedJaxpr
    residuals: tuple[tuple[int, int], ...]
    nonzero_out: Mask


@lru_cache(maxsize=_CACHED)
def linearize_program(program: ClosedJaxpr, nonzero: Mask, name: str) -> LinearizedProgram:
    def run(*primals: Any) -> tuple[list[Any], Any]:
        outs, linear, _ = linearize_flat(lambda *xs: (eval_closed(program, *xs), None), primals, nonzero, name)
        # Constants stay constants of the linear program; values of this trace are handed over.
        handed = [i for i, c in enumerate(linear.program.consts) if not is_concrete(c)]
        return [*outs, *[linear.program.consts[i] for i in handed]], (linear, handed)

    traced, (linear, handed) = trace_to_jaxpr(run, program.in_avals, name, "grad differentiates")
    n_out = len(program.jaxpr.outvars)
    outvars, residual_vars = masks.parts(traced.jaxpr.outvars, n_out)
    inputs = {v: i for i, v in enumerate(traced.jaxpr.invars)}
    places = {v: j for j, v in reversed(list(enumerate(outvars))) if type(v) is Var}
    residuals: list[tuple[int, int]] = []
    for v in residual_vars:
        if v in inputs:
            residuals.append((0, inputs[v]))
            continue
        if v not in places:
            places[v] = len(outvars)
            outvars.append(v)
        residuals.append((1, places[v]))
    forward = ClosedJaxpr(traced.jaxpr.replace(outvars=tuple(outvars)), traced.consts)
    body = linear.program.jaxpr
    kept = [i for i in range(len(body.constvars)) if i not in set(handed)]
    opened = Jaxpr(
        tuple(body.constvars[i] for i in kept),
        tuple(body.constvars[i] for i in handed) + body.invars,
        body.eqns,
        body.outvars,
    )
    closed = ClosedJaxpr(opened, tuple(linear.program.consts[i] for i in kept))
    return LinearizedProgram(forward, closed, tuple(residuals), linear.nonzero_out)


@lru_cache(maxsize=_CACHED)
def transpose_program(
    program: ClosedJaxpr, linear: Mask, nonzero_out: Mask, nonzero_held: Mask, name: str, recompute: bool = False
) -> tuple[ClosedJaxpr, Mask]:
    """(inputs that are not linear, nonzero output cotangents, nonzero totals of linear inputs before the call) ->
    nonzero totals of linear inputs after it, and which.

    With ``recompute`` the inputs pass through ``optimization_barrier`` together with the cotangents: what is computed
    from them again is neither merged with the first time nor moved before the cotangents are there.
    """
    n_known, n_ct = linear.count(False), nonzero_out.count(True)
    linear_avals = [a.strip_weak() for a, m in zip(program.in_avals, linear, strict=True) if m]

    def run(*args: Any) -> tuple[list[Any], Mask]:
        reads, totals = masks.parts(args, n_known + n_ct)
        if recompute and reads:
            reads = bind_named("optimization_barrier", *reads)
        known, live = masks.parts(reads, n_known)
        cts = masks.spread(nonzero_out, live, masks.zeros(program.out_avals))
        operands = masks.spread([not m for m in linear], known, lambda i: None)
        held = masks.spread(linear, masks.spread(nonzero_held, totals, masks.zeros(linear_avals)), lambda i: None)
        after = backward_pass(program, linear, operands, cts, held)
        given = [ct for ct, m in zip(after, linear, strict=True) if m]
        return masks.live(given), masks.nonzero(given)

    known_avals = [a for a, m in zip(program.in_avals, linear, strict=True) if not m]
    ct_avals = [a.strip_weak() for a, nz in zip(program.out_avals, nonzero_out, strict=True) if nz]
    held_avals = [a for a, nz in zip(linear_avals, nonzero_held, strict=True) if nz]
    return trace_to_jaxpr(run, [*known_avals, *ct_avals, *held_avals], name, "grad transposes")


@lru_cache(maxsize=_CACHED)
def batch_program(
    program: ClosedJaxpr, axis: Axis, dims: tuple[int | None, ...], name: str
) -> tuple[ClosedJaxpr, tuple[int | None, ...]]:
    """The program over inputs with a mapped axis, and the mapped axis of each output."""

    def run(*args: Any) -> tuple[list[Any], tuple[int | None, ...]]:
        outs, out_dims, _ = batch_flat(lambda *xs: (eval_closed(program, *xs), None), axis, args, dims, name)
        return outs, tuple(out_dims)

    avals = [
        a if d is None else ShapedArray(a.shape[:d] + (axis.size,) + a.shape[d:], a.dtype, a.weak_type)
        for a, d in zip(program.in_avals, dims, strict=True)
    ]
    return trace_to_jaxpr(run, avals, name, "vmap maps")


# -- calling -----------------------------------------------------------------------------------------------------------


def _firsts(args: Sequence[Any]) -> tuple[int, ...]:
    """For each argument the number of the first one that is the same object."""
    seen: dict[int, int] = {}
    return tuple([seen.setdefault(id(x), i) for i, x in enumerate(args)])


@lru_cache(maxsize=_CACHED)
def merge_inputs(program: ClosedJaxpr, firsts: tuple[int, ...]) -> ClosedJaxpr:
    """The program for equal arguments: it takes only argument i with ``firsts[i] == i``."""
    jaxpr = program.jaxpr
    pairs = [(v, jaxpr.invars[f]) for v, f in zip(jaxpr.invars, firsts, strict=True)]
    merged: dict[Atom, Atom] = {v: first for v, first in pairs if first is not v}
    if not merged:
        return program
    eqns = tuple(e.replace(inputs=tuple(merged.get(a, a) for a in e.inputs)) for e in jaxpr.eqns)
    invars = tuple(v for i, v in enumerate(jaxpr.invars) if firsts[i] == i)
    outvars = tuple(merged.get(v, v) for v in jaxpr.outvars)
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, invars, eqns, outvars), program.consts)


@attrs.frozen(eq=False)
class _Form:
    """A program without what need not pass through a call: ``program`` takes the arguments ``takes``; ``gives`` says
    for each output whether it is argument i, ``(0, i)``, or output j of ``program``, ``(1, j)``."""

    program: ClosedJaxpr
    takes: tuple[int, ...]
    gives: tuple[tuple[int, int], ...]


@lru_cache(maxsize=_CACHED)
def _normal_form(program: ClosedJaxpr, firsts: tuple[int, ...]) -> _Form:
    jaxpr = merge_inputs(program, firsts).jaxpr
    numbers = [i for i, f in enumerate(firsts) if f == i]
    places: dict[Atom, tuple[int, int]] = {v: (0, i) for v, i in zip(jaxpr.invars, numbers, strict=True)}
    outvars: list[Atom] = []
    gives = []
    for v in jaxpr.outvars:
        place = places.get(v)
        if place is None:
            place = (1, len(outvars))
            outvars.append(v)
            if type(v) is Var:
                places[v] = place
        gives.append(place)
    read = used_vars(jaxpr.eqns, outvars)
    takes = tuple(i for v, i in zip(jaxpr.invars, numbers, strict=True) if v in read)
    if len(takes) == len(firsts) and len(outvars) == len(jaxpr.outvars):
        return _Form(program, takes, tuple(gives))
    invars = tuple(v for v in jaxpr.invars if v in read)
    opened = Jaxpr(jaxpr.constvars, invars, jaxpr.eqns, tuple(outvars))
    return _Form(ClosedJaxpr(opened, program.consts), takes, tuple(gives))


@lru_cache(maxsize=_CACHED)
def opened(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program with its constants as its first inputs."""
    if not program.consts:
        return program
    jaxpr = program.jaxpr
    return ClosedJaxpr(jaxpr.replace(constvars=(), invars=jaxpr.constvars + jaxpr.invars), ())


def call(primitive: Primitive, program: ClosedJaxpr, args: Sequence[Any], name: str, **settings: Any) -> list[Any]:
    """Bind a call so that it hides nothing from what is around it.

    Constants become arguments: a program inside of a program has none, so its text says all that it means. Equal
    arguments are passed once, and an output that is an argument or another output does not go through the call: a
    derivative then accumulates as it would without the call.
    """
    args, program = [*program.consts, *args], opened(program)
    form = _normal_form(program, _firsts(args))
    outs = []
    if form.program.jaxpr.outvars or has_effects(form.program):
        outs = primitive.bind(*[args[i] for i in form.takes], jaxpr=form.program, name=name, **settings)
    return [args[i] if kind == 0 else outs[i] for kind, i in form.gives]


# -- the records -------------------------------------------------------------------------------------------------------


def _abstract(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    return jaxpr.out_avals


def call_primitive(name: str, doc: str, linearize: Rule, recompute: bool = False) -> Primitive:
    """The record of a primitive with params ``jaxpr`` and ``name`` that means exactly its program. Other params are
    settings, which its transforms keep."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, name: str, **settings: Any) -> Any:
        program, nonzero_out = jvp_program(jaxpr, masks.nonzero(tangents), name)
        outs = call(primitive, program, [*primals, *masks.live(tangents)], f"jvp({name})", **settings)
        primals_out, live = masks.parts(outs, len(nonzero_out))
        return primals_out, masks.spread(nonzero_out, live, masks.zeros(jaxpr.out_avals))

    def batch(
        args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, jaxpr: ClosedJaxpr, name: str, **settings: Any
    ) -> Any:
        program, out_dims = batch_program(jaxpr, trace.axis, tuple(dims), name)
        return call(primitive, program, args, f"vmap({name})", **settings), out_dims

    def accumulate(
        cts: Sequence[Any], held: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr, name: str, **settings: Any
    ) -> list[Any]:
        firsts = _firsts(operands)  # equal linear operands are one marker, and gather one total
        own = [i for i, f in enumerate(firsts) if f == i]
        linear = tuple(isinstance(operands[i], LinearOperand) for i in own)
        totals = [held[i] for i, m in zip(own, linear, strict=True) if m]
        program, nonzero = transpose_program(
            merge_inputs(jaxpr, firsts), linear, masks.nonzero(cts), masks.nonzero(totals), name, recompute
        )
        known = [operands[i] for i, m in zip(own, linear, strict=True) if not m]
        given = [*known, *masks.live(cts), *masks.live(totals)]
        live = call(primitive, program, given, f"transpose({name})", **settings)
        after = iter(masks.spread(nonzero, live, lambda i: totals[i]))
        new = {i: next(after) if m else None for i, m in zip(own, linear, strict=True)}
        return [new[f] for f in firsts]

    primitive = register(
        Primitive(
            name=name,
            family=Family.CALL,
            abstract=_abstract,
            jvp=jvp,
            batch=batch,
            transpose=transpose_by(accumulate),
            linearize=linearize,
            accumulate=accumulate,
            multiple_results=True,
            doc=doc,
        )
    )
    return primitive


def _linearize_jit(nonzero: Mask, *primals: Any, jaxpr: ClosedJaxpr, name: str) -> Any:
    split = linearize_program(jaxpr, nonzero, name)
    outs = call(jit_p, split.forward, primals, name)
    residuals = [(primals, outs)[where][i] for where, i in split.residuals]

    def linear(*tangents: Any) -> list[Any]:
        return call(jit_p, split.linear, [*residuals, *tangents], f"jvp({name})")

    return outs[: len(split.nonzero_out)], split.nonzero_out, linear


jit_p = call_primitive("jit", "Calls a traced function: means exactly its program.", _linearize_jit)
