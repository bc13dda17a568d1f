"""Linearization: compute the values now, and record the linear program from input tangents to output tangents.

It is forward differentiation over a trace that separates known from unknown: what depends only on primal values runs at
once on the parent trace; what depends on a tangent is recorded. The values that the linear program needs (residuals)
become its constants. ``vjp`` is linearization followed by transposition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.errors import NotDifferentiableError
from volta.core.interp import Trace, current_trace, use_trace
from volta.core.ir import ClosedJaxpr
from volta.ops.base import zeros_of
from volta.ops.primitive import Family, NoDerivative, Zero
from volta.trace.jaxpr_trace import JaxprTrace, JaxprTracer, eval_closed
from volta.trace.jvp import JVPTrace, unzip_outputs


@attrs.frozen(eq=False)
class Linear:
    """A linear program with its residuals: from the tangents of ``nonzero_in`` inputs to those of ``nonzero_out``."""

    program: ClosedJaxpr
    nonzero_in: tuple[bool, ...]
    nonzero_out: tuple[bool, ...]
    out_avals: tuple[ShapedArray, ...]

    def __call__(self, tangents: Sequence[Any]) -> list[Any]:
        """Push all input tangents forward; the answer has a value (maybe zeros) an output."""
        live = [t for t, nonzero in zip(tangents, self.nonzero_in, strict=True) if nonzero]
        outs = iter(eval_closed(self.program, *live))
        pairs = zip(self.nonzero_out, self.out_avals, strict=True)
        return [next(outs) if nonzero else zeros_of(aval) for nonzero, aval in pairs]


class LinearTrace(JaxprTrace):
    """Records operations on tangents; hands everything else to the parent."""

    literal_arrays = False  # residuals are data of this call; reading them now would wait for the device

    def __init__(self, parent: Trace, name: str):
        super().__init__(name, "grad differentiates")
        self.parent = parent

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for x in args:
            if type(x) is JaxprTracer and x._trace is self:
                return super().process_primitive(primitive, args, params)
        return self.parent.process_primitive(primitive, args, params)

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        for x in args:
            if type(x) is JaxprTracer and x._trace is self:
                return super().process_custom(call, args)
        with use_trace(self.parent):
            return self.parent.process_custom(call, args)


class LinearizeTrace(JVPTrace):
    """Forward differentiation over a :class:`LinearTrace`, with the rules of primitives that have their own."""

    parent: LinearTrace
    # Where a derivative rule is linearized by its tangents: the rule. Of them its function is linear, and is
    # differentiated as it stands: by its rule this would begin again.
    of_rule: Any = None

    def __init__(self, parent: Trace, name: str):
        super().__init__(LinearTrace(parent, name), name, "grad differentiates")

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        rule = primitive.linearize
        if rule is None:
            carries = primitive.family in (Family.CALL, Family.CONTROL)
            if carries and not isinstance(primitive.jvp, NoDerivative):
                raise NotDifferentiableError(f"`{primitive.name}` carries a program but has no linearize rule")
            return super().process_primitive(primitive, args, params)
        primals, tangents, live = self.split(args)
        values = self.parent.parent
        if not live:
            return values.process_primitive(primitive, primals, params)
        nonzero = tuple(not isinstance(t, Zero) for t in tangents)
        with use_trace(values):
            linearized = rule(nonzero, *primals, **params)
        joined = self.recorded(tangents, *linearized)
        return joined if primitive.multiple_results else joined[0]

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        primals, tangents, live = self.split(args)
        values = self.parent.parent
        if live and self.of_rule is not None and call.rule.key is self.of_rule:
            return list(call.run(*args))
        with self.hidden(call.name), use_trace(values):
            if not live:
                return values.process_custom(call, primals)
            linearized = call.rule.linearize([not isinstance(t, Zero) for t in tangents], primals)
        return self.recorded(tangents, *linearized)

    def recorded(
        self, tangents: Sequence[Any], outs: Sequence[Any], nonzero_out: Sequence[bool], linear: Callable[..., Any]
    ) -> list[Any]:
        """Outputs with the tangents that ``linear`` makes of the nonzero ones, which is recorded."""
        with use_trace(self.parent):
            live_out = iter(linear(*[t for t in tangents if not isinstance(t, Zero)]))
        return [self.join(x, next(live_out)) if nz else x for x, nz in zip(outs, nonzero_out, strict=True)]


def linearize_flat(
    fun: Callable[..., tuple[Sequence[Any], Any]],
    primals: Sequence[Any],
    nonzero: Sequence[bool],
    name: str,
    of_rule: Any = None,
) -> tuple[list[Any], Linear, Any]:
    """Outputs of ``fun``, the linear program of its nonzero inputs, and what else ``fun`` gave (without tangents)."""
    trace = LinearizeTrace(current_trace(), name)
    trace.of_rule = of_rule
    args = []
    for x, is_nonzero in zip(primals, nonzero, strict=True):
        args.append(trace.join(x, trace.parent.new_arg(x.aval.strip_weak())) if is_nonzero else x)
    try:
        with use_trace(trace):
            outs, aux = fun(*args)
        primals_out, tangents_out, aux = unzip_outputs(trace, outs, aux)
        live = [t for t in tangents_out if not isinstance(t, Zero)]
        program = trace.parent.end(live)
    finally:
        trace.parent.ended = True
    nonzero_out = tuple(not isinstance(t, Zero) for t in tangents_out)
    avals = tuple(t.aval for t in tangents_out)
    return primals_out, Linear(program, tuple(nonzero), nonzero_out, avals), aux
