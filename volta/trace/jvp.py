"""Forward derivatives: each value travels with its tangent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from volta.core import dtypes, pytrees
from volta.core.errors import NotDifferentiableError
from volta.core.interp import Trace, current_trace, get_aval, use_trace
from volta.core.source import at_user_line
from volta.ops.primitive import NoDerivative, Zero
from volta.trace.jaxpr_trace import here
from volta.trace.tracer import TransformTracer, concrete_of, elements_of


class JVPTracer(TransformTracer):
    """A primal value with a tangent that is not a symbolic zero."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: JVPTrace, primal: Any, tangent: Any):
        self._trace = trace
        self.primal = primal
        self.tangent = tangent
        self.aval = get_aval(primal)
        self.source = here()

    def concrete(self) -> Any:
        return concrete_of(self.primal)

    def elements(self) -> str:
        return elements_of(self.primal)

    def obstacle(self) -> str:
        return self.primal.obstacle() if isinstance(self.primal, TransformTracer) else super().obstacle()


def zero_tangent(primal: Any) -> Zero:
    """The symbolic zero tangent of a value; of an integer too, whose only tangent it is."""
    return Zero(get_aval(primal).strip_weak())


def has_tangent(dtype: Any) -> bool:
    """Whether values of this dtype can carry a tangent: floats and complex numbers do."""
    return dtypes.is_inexact(dtype)


class JVPTrace(Trace):
    """Interprets an operation through its ``jvp`` rule, on the parent trace."""

    def __init__(self, parent: Trace, name: str, doing: str = "jvp differentiates"):
        self.parent = parent
        self.name, self.doing = name, doing

    def describe(self) -> str:
        return f"{self.doing} `{self.name}`"

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], bool]:
        """Primals, tangents (symbolic zeros for values of other traces), and whether any tangent is not zero."""
        primals: list[Any] = []
        tangents: list[Any] = []
        live = False
        for x in args:
            if type(x) is JVPTracer and x._trace is self:
                primals.append(x.primal)
                tangents.append(x.tangent)
                live = True
            else:
                primals.append(x)
                tangents.append(None)
        if live:
            tangents = [zero_tangent(p) if t is None else t for p, t in zip(primals, tangents, strict=True)]
        return primals, tangents, live

    def join(self, primal: Any, tangent: Any) -> Any:
        return primal if isinstance(tangent, Zero) else JVPTracer(self, primal, tangent)

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        primals, tangents, live = self.split(args)
        if not live:
            return self.parent.process_primitive(primitive, primals, params)
        rule = primitive.jvp
        if isinstance(rule, NoDerivative):
            if not rule.zero:
                raise self.no_derivative(primitive, rule)
            return self.parent.process_primitive(primitive, primals, params)
        with use_trace(self.parent):
            out, tangent = rule(primals, tangents, **params)
        if primitive.multiple_results:
            return [self.join(p, t) for p, t in zip(out, tangent, strict=True)]
        return self.join(out, tangent)

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        primals, tangents, live = self.split(args)
        with self.hidden(call.name):
            if not live:
                return self.parent.process_custom(call, primals)
            outs, tangents = call.rule.jvp(primals, tangents)
        return [self.join(p, t) for p, t in zip(outs, tangents, strict=True)]

    @contextmanager
    def hidden(self, function: str) -> Iterator[None]:
        """Run a function with derivative rules of its own, or its rule, on the parent trace."""
        before, self.hidden_from = self.hidden_from, function
        try:
            with use_trace(self.parent):
                yield
        finally:
            self.hidden_from = before

    def no_derivative(self, primitive: Any, rule: NoDerivative) -> NotDifferentiableError:
        return NotDifferentiableError(
            at_user_line(
                f"`{primitive.name}` has no derivative ({rule.reason}), but {self.describe()} reached it. "
                "If no gradient should flow through it, apply volta.lax.stop_gradient to its inputs."
            )
        )


def jvp_flat(
    fun: Callable[..., tuple[Sequence[Any], Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    name: str,
    doing: str = "jvp differentiates",
) -> tuple[list[Any], list[Any], Any]:
    """``fun`` on primals and tangents (each a value or Zero): its outputs, their tangents, and what else ``fun``
    gave (a pytree; without tangents)."""
    trace = JVPTrace(current_trace(), name, doing)
    with use_trace(trace):
        outs, aux = fun(*[trace.join(p, t) for p, t in zip(primals, tangents, strict=True)])
    return unzip_outputs(trace, outs, aux)


def unzip_outputs(trace: JVPTrace, outs: Sequence[Any], aux: Any) -> tuple[list[Any], list[Any], Any]:
    """Primal outputs, their tangents, and ``aux`` (a pytree of anything) with primals in place of tracers."""
    primals_out, tangents_out = [], []
    for x in outs:
        if type(x) is JVPTracer and x._trace is trace:
            primals_out.append(x.primal)
            tangents_out.append(x.tangent)
        else:
            primals_out.append(x)
            tangents_out.append(zero_tangent(x))

    def primal_of(x: Any) -> Any:
        return x.primal if type(x) is JVPTracer and x._trace is trace else x

    return primals_out, tangents_out, pytrees.map(primal_of, aux)
