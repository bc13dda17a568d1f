"""Functions that have derivative rules of their own: ``custom_jvp``, ``custom_vjp`` and, elementwise, composites.

What such a function computes and how it is differentiated are two things: a call of it carries both. Where nothing is
differentiated it is its function: in a recorded program one equation that means the program of it, which lowering
inlines. Where it is differentiated the rule takes its place, and is run by Python on the trace below: what a rule does
is differentiated, batched and compiled as any other function is, to any order.

Rules take flat values and symbolic zeros. ``volta.api.custom_derivatives`` makes them of the user's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.base import backwards_only, sum_axes, zeros_of
from volta.ops.primitive import Family, Primitive, Zero, register
from volta.runtime.array import as_array
from volta.trace import masks
from volta.trace.batch import BatchTrace, BatchTracer
from volta.trace.control import batched as batched_program
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr
from volta.trace.jvp import has_tangent
from volta.trace.linearize import linearize_flat
from volta.trace.masks import Mask
from volta.trace.meaning import means_its_program
from volta.trace.tracer import closed_over

Linearized = tuple[Sequence[Any], Sequence[bool], Callable[..., Sequence[Any]]]
"""Outputs, which of them have tangents, and the function from nonzero tangents to these: as a ``linearize`` rule's."""


class Derivative:
    """How a function is differentiated. ``name`` is the function's, ``key`` what tells one rule from another."""

    name: str
    key: Any = None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Outputs and their tangents; tangents, those given too, may be Zero."""
        raise NotImplementedError

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        raise NotImplementedError

    def batch(self, args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, params: dict[str, Any]) -> Any:
        """The batch rule of a recorded call."""
        moved = [x if d is None else trace_front(x, d, trace) for x, d in zip(args, dims, strict=True)]
        mapped, count = tuple(d is not None for d in dims), params["num_consts"]
        every = (True,) * len(params["jaxpr"].out_avals)
        program, _ = batched_program(params["jaxpr"], trace.axis, mapped, every, self.name)
        rule = Batched(self, trace.again(), mapped[count:])
        outs = _bind(program, moved, count, rule)
        return outs, [0] * len(outs)

    def __repr__(self) -> str:
        return self.name


def trace_front(x: Any, dim: int, trace: BatchTrace) -> Any:
    return trace.front(BatchTracer(trace, x, dim))


@attrs.frozen(eq=False)
class CustomCall:
    """A call of such a function: ``run`` is the function over flat values, in Python until a program is recorded."""

    run: Callable[..., Sequence[Any]]
    rule: Derivative

    @property
    def name(self) -> str:
        return self.rule.name

    def recorded(self, args: Sequence[Any]) -> list[Any]:
        """The call as one equation of the current trace."""
        program, _ = trace_to_jaxpr(
            lambda *xs: (self.run(*xs), None), [get_aval(x) for x in args], self.name, "custom derivatives trace"
        )
        return _bind(program, args, 0, self.rule)

    def batched(self, trace: BatchTrace, mapped: Mask) -> CustomCall:
        """The call over examples: every output is mapped, in front."""

        def run(*values: Any) -> list[Any]:
            with trace.entered():
                outs = self.run(*_joined(trace, values, mapped))
            return [trace.front(x) for x in outs]

        return CustomCall(run, Batched(self.rule, trace, mapped))


def _bind(program: ClosedJaxpr, args: Sequence[Any], num_consts: int, rule: Derivative) -> list[Any]:
    """Constants become operands: the rule's arguments are those behind them."""
    consts, jaxpr = program.consts, program.jaxpr
    opened = ClosedJaxpr(jaxpr.replace(constvars=(), invars=jaxpr.constvars + jaxpr.invars), ())
    return custom_p.bind(*consts, *args, jaxpr=opened, num_consts=len(consts) + num_consts, rule=rule)


def _joined(trace: BatchTrace, values: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    return [trace.join(x, 0 if m else None) for x, m in zip(values, mapped, strict=True)]


# -- the rules ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class ForwardRule(Derivative):
    """``rule``: from primals and tangents (values or Zero) to outputs and theirs."""

    name: str
    rule: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]
    key: Any

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        return self.rule(primals, tangents)

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        """The rule is linear in its tangents, so it is its own derivative by them, at 0 as anywhere.

        Recording the rule itself would not do: a loop in it that computes outputs beside tangents would make outputs
        of what is not known yet. The derivative of the loop tells them apart.
        """
        avals = [get_aval(x).strip_weak() for x in primals]

        def of_tangents(*live: Any) -> tuple[list[Any], Any]:
            outs, tangents = self.rule(primals, masks.spread(nonzero, live, masks.zeros(avals)))
            return masks.live(tangents), (list(outs), masks.nonzero(tangents))

        zeros = [_value(zeros_of(a)) for a, nz in zip(avals, nonzero, strict=True) if nz]
        _, linear, (outs, have) = linearize_flat(of_tangents, zeros, [True] * len(zeros), self.name, self.key)
        found = iter(linear.nonzero_out)
        nonzero_out = [nz and next(found) for nz in have]
        return outs, nonzero_out, lambda *tangents: eval_closed(linear.program, *tangents)


def _value(x: Any) -> Any:
    return x if isinstance(x, Array) else as_array(x)


Pull = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""From residuals and the cotangents of outputs (values or Zero) to those of arguments (values or Zero)."""


@attrs.frozen(eq=False, repr=False)
class ReverseRule(Derivative):
    """``forward``: from primals, and which have tangents, to outputs, residuals and the function ``Pull``."""

    name: str
    forward: Callable[[Sequence[Any], Sequence[bool]], tuple[Sequence[Any], Sequence[Any], Pull]]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        raise backwards_only(self.name)

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        outs, residuals, pull = self.forward(primals, nonzero)
        avals = [get_aval(x).strip_weak() for x in outs]
        nonzero_out = [has_tangent(a.dtype) for a in avals]

        def of_live(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            given = pull(residuals, masks.spread(nonzero_out, cts, masks.zeros(avals)))
            return [ct for ct, nz in zip(given, nonzero, strict=True) if nz]

        def linear(*tangents: Any) -> list[Any]:
            live_out = tuple(a for a, nz in zip(avals, nonzero_out, strict=True) if nz)
            count = len(residuals)
            return custom_tangent_p.bind(
                *residuals, *tangents, num_residuals=count, out_avals=live_out, pull=of_live, name=self.name
            )

        return outs, nonzero_out, linear


@attrs.frozen(eq=False, repr=False)
class Batched(Derivative):
    """The rule over examples: it runs on the trace of the mapped axis, which is entered again."""

    of: Derivative
    trace: BatchTrace
    mapped: Sequence[bool]  # which arguments are, in front

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.of.name

    @property
    def key(self) -> Any:
        return self.of.key

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with self.trace.entered():
            inside = _joined(self.trace, primals, self.mapped)
            zeros = masks.zeros([get_aval(x) for x in inside])
            have = masks.nonzero(tangents)
            live = _joined(self.trace, masks.live(tangents), [m for m, nz in zip(self.mapped, have, strict=True) if nz])
            outs, tangents_out = self.of.jvp(inside, masks.spread(have, live, zeros))
        values = [self.trace.front(x) for x in outs]
        return values, [
            Zero(get_aval(x).strip_weak()) if isinstance(t, Zero) else self.trace.front(t)
            for x, t in zip(values, tangents_out, strict=True)
        ]

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        with self.trace.entered():
            outs, nonzero_out, linear = self.of.linearize(nonzero, _joined(self.trace, primals, self.mapped))
        live = [m for m, nz in zip(self.mapped, nonzero, strict=True) if nz]

        def of_examples(*tangents: Any) -> list[Any]:
            with self.trace.entered():
                found = linear(*_joined(self.trace, tangents, live))
            return [self.trace.front(x) for x in found]

        return [self.trace.front(x) for x in outs], nonzero_out, of_examples


# -- the records -------------------------------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, num_consts: int, rule: Derivative, **params: Any) -> Any:
    _refuse_constants(primals[:num_consts], masks.nonzero(tangents), rule)
    outs, tangents_out = rule.jvp(primals[num_consts:], tangents[num_consts:])
    return list(outs), list(tangents_out)


def _linearize(nonzero: Sequence[bool], *primals: Any, num_consts: int, rule: Derivative, **params: Any) -> Linearized:
    _refuse_constants(primals[:num_consts], nonzero, rule)
    return rule.linearize(nonzero[num_consts:], primals[num_consts:])


def _refuse_constants(consts: Sequence[Any], nonzero: Sequence[bool], rule: Derivative) -> None:
    for x, differentiated in zip(consts, nonzero, strict=False):
        if differentiated:
            raise closed_over(rule.name, get_aval(x).short())


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, *, rule: Derivative, **params: Any
) -> Any:
    return rule.batch(args, dims, trace, params)


custom_p = means_its_program(
    "custom_derivative",
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    doc="Calls a function that has derivative rules of its own: means exactly its program.",
)


def _tangent_abstract(*avals: ShapedArray, out_avals: tuple[ShapedArray, ...], **params: Any) -> list[ShapedArray]:
    return list(out_avals)


def _tangent_refused(*args: Any, name: str, **params: Any) -> Any:
    raise backwards_only(name)


def _tangent_transpose(cts: Sequence[Any], *operands: Any, num_residuals: int, pull: Pull, **params: Any) -> list[Any]:
    return [*[None] * num_residuals, *pull(operands[:num_residuals], cts)]


def _tangent_batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, *, num_residuals: int,
    out_avals: tuple[ShapedArray, ...], pull: Pull, name: str,
) -> Any:  # fmt: skip
    """Residuals and tangents with the mapped axis in front; the cotangent of what is not mapped is a sum over it."""
    moved = [x if d is None else trace_front(x, d, trace) for x, d in zip(args, dims, strict=True)]
    kept, live = masks.parts([d is not None for d in dims], num_residuals)
    again, size = trace.again(), trace.axis.size

    def of_examples(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        with again.entered():
            zeros = masks.zeros(out_avals)
            mapped = [again.join(ct, 0) for ct in masks.live(cts)]
            given = pull(_joined(again, residuals, kept), masks.spread(masks.nonzero(cts), mapped, zeros))
        return [_gathered(again, ct, m) for ct, m in zip(given, live, strict=True)]

    avals = tuple(a.update(shape=(size, *a.shape)) for a in out_avals)
    outs = custom_tangent_p.bind(*moved, num_residuals=num_residuals, out_avals=avals, pull=of_examples, name=name)
    return outs, [0] * len(outs)


def _gathered(trace: BatchTrace, ct: Any, mapped: bool) -> Any:
    if isinstance(ct, Zero):
        return Zero(ct.aval.update(shape=(trace.axis.size, *ct.aval.shape))) if mapped else ct
    if mapped:
        return trace.front(ct)
    own = type(ct) is BatchTracer and ct._trace is trace
    return sum_axes(trace.front(ct), (0,)) if own else ct


custom_tangent_p = register(
    Primitive(
        "custom_tangent",
        Family.CALL,
        _tangent_abstract,
        _tangent_refused,
        _tangent_batch,
        _tangent_transpose,
        linearize=_tangent_refused,
        multiple_results=True,
        doc="The tangent of a function with a rule for reverse derivatives alone: it has a transpose, and no value.",
    )
)
