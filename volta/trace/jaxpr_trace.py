"""Recording: run a function on abstract values and write its operations down as a program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.extended import is_key
from volta.core.floats import standard
from volta.core.interp import Trace, Tracer, bind, get_aval, use_trace
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, used_vars
from volta.core.source import Source, user_source
from volta.ops.callbacks import has_effect
from volta.runtime.array import ConcreteArray
from volta.trace.tracer import TransformTracer


class _Provenance(threading.local):
    source: Source | None = None


_provenance = _Provenance()


@contextmanager
def attributed_to(source: Source | None) -> Iterator[None]:
    """Operations recorded inside the block belong to ``source``: a derivative's, to the line that is differentiated."""
    previous = _provenance.source
    _provenance.source = source or previous
    try:
        yield
    finally:
        _provenance.source = previous


def here() -> Source | None:
    """The user's line that an operation recorded now belongs to."""
    return _provenance.source or user_source()


class JaxprTracer(TransformTracer):
    """A value inside a program that is being recorded: a variable."""

    __slots__ = ("variable",)  # not `var`: that is a method of arrays

    def __init__(self, trace: JaxprTrace, var: Var, source: Source | None):
        self._trace = trace
        self.variable = var
        self.aval = var.aval
        self.source = source

    def origin(self) -> str:
        return self._trace.origin(self.variable)  # type: ignore[attr-defined]


class JaxprTrace(Trace):
    """Records every operation as an equation; nothing is computed.

    ``name`` is the traced function's; ``doing`` says, for error messages, which transform is at work.
    """

    # Whether arrays of rank 0 are written into the program as literals, where the compiler can use them.
    literal_arrays = True

    def __init__(self, name: str, doing: str = "jit traces", arg_paths: Callable[[], list[str]] | None = None):
        self.name, self.doing = name, doing
        self._arg_paths = arg_paths
        self.ended = False
        self._eqns: list[Eqn] = []
        self._invars: list[Var] = []
        self._constants: dict[int, tuple[Any, Var]] = {}  # by identity of the value, which the entry keeps alive

    def describe(self) -> str:
        return f"{self.doing} `{self.name}`"

    def new_arg(self, aval: ShapedArray) -> JaxprTracer:
        var = Var(aval)
        self._invars.append(var)
        return JaxprTracer(self, var, None)

    def origin(self, var: Var) -> str:
        """Which arguments a value comes from, in words; empty where that is unknown."""
        if self._arg_paths is None or self.ended:
            return ""
        seen = {var}
        for eqn in reversed(self._eqns):
            if not seen.isdisjoint(eqn.outputs):
                seen.update([v for v in eqn.inputs if type(v) is Var])
        paths = [path for path, v in zip(self._arg_paths(), self._invars, strict=True) if v in seen]
        if not paths:
            return ""
        if var in self._invars:
            return f"\nit is {paths[0]}"
        return f"\nit depends on {', '.join(paths[:5])}{' and others' if len(paths) > 5 else ''}"

    def atom(self, x: Any) -> Atom:
        """The variable or literal that stands for an operand; a foreign value becomes a constant of the program."""
        if isinstance(x, JaxprTracer):
            if x._trace is self:
                return x.variable
            if x._trace.ended:  # type: ignore[attr-defined]
                raise x.leak_error()
        elif isinstance(x, TransformTracer) and x._trace.hidden_from is not None:
            raise x.leak_error()
        known = self._constants.get(id(x))
        if known is not None and not isinstance(x, np.ndarray):
            return known[1]
        aval = get_aval(x)
        written = not isinstance(x, Array) or (self.literal_arrays and not isinstance(x, Tracer))
        if aval.shape == () and written and not is_key(aval.dtype):
            return Literal(x, aval)
        var = Var(aval)
        # A NumPy array may change later: the program keeps the elements of now.
        value = ConcreteArray.from_numpy(x) if isinstance(x, np.ndarray) else x
        self._constants[id(value)] = value, var
        return var

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        inputs = tuple([x.variable if type(x) is JaxprTracer and x._trace is self else self.atom(x) for x in args])
        out_avals = primitive.abstract(*[a.aval for a in inputs], **params)
        if self.ended:
            raise RuntimeError(f"{self.describe()} has ended")
        source = _provenance.source or user_source()
        for aval in out_avals if primitive.multiple_results else (out_avals,):
            aval.check(primitive.name)
        if primitive.multiple_results:
            outputs = tuple([Var(aval) for aval in out_avals])
            self._eqns.append(Eqn(primitive, inputs, outputs, params, source))
            return [JaxprTracer(self, var, source) for var in outputs]
        var = Var(out_avals)
        self._eqns.append(Eqn(primitive, inputs, (var,), params, source))
        return JaxprTracer(self, var, source)

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        return call.recorded(args)

    def end(self, outs: Sequence[Any]) -> ClosedJaxpr:
        """The recorded program that gives ``outs``, without dead equations. The trace is over."""
        outvars = tuple(self.atom(x) for x in outs)
        self.ended = True
        eqns = live_eqns(self._eqns, outvars)
        used = used_vars(eqns, outvars)
        constants = [(value, var) for value, var in self._constants.values() if var in used]
        self._eqns, self._constants = [], {}
        jaxpr = Jaxpr(tuple(var for _, var in constants), tuple(self._invars), tuple(eqns), outvars)
        return ClosedJaxpr(jaxpr, tuple(value for value, _ in constants))


def live_eqns(eqns: Sequence[Eqn], outvars: Sequence[Atom]) -> list[Eqn]:
    """The equations that ``outvars`` depend on, and those that do something beside computing, in order."""
    live = {v for v in outvars if type(v) is Var}
    kept = []
    for eqn in reversed(eqns):
        if not live.isdisjoint(eqn.outputs) or has_effect(eqn):
            kept.append(eqn)
            live.update([v for v in eqn.inputs if type(v) is Var])
    kept.reverse()
    return kept


@standard
def trace_to_jaxpr(
    fun: Callable[..., tuple[Sequence[Any], Any]],
    in_avals: Sequence[ShapedArray],
    name: str,
    doing: str = "jit traces",
    arg_paths: Callable[[], list[str]] | None = None,
) -> tuple[ClosedJaxpr, Any]:
    """Record ``fun``, which takes one value an aval and gives ``(flat outputs, anything else)``.

    Returns the program (constants of enclosing traces are among its ``consts``) and what else ``fun`` gave. Outputs may
    be inputs or constants themselves. ``name``, ``doing`` and ``arg_paths`` are for error messages.
    """
    trace = JaxprTrace(name, doing, arg_paths)
    args = [trace.new_arg(aval) for aval in in_avals]
    try:
        with use_trace(trace):
            outs, aux = fun(*args)
        return trace.end(outs), aux
    finally:
        trace.ended = True


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Run a program's equations under the current trace."""
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    previous = _provenance.source
    try:
        for eqn in jaxpr.eqns:
            values = [env[a] if type(a) is Var else literal_value(a) for a in eqn.inputs]
            _provenance.source = eqn.source or previous
            out = bind(eqn.primitive, *values, **eqn.params)
            if eqn.primitive.multiple_results:
                env.update(zip(eqn.outputs, out, strict=True))
            else:
                env[eqn.outputs[0]] = out
    finally:
        _provenance.source = previous
    return [env[a] if type(a) is Var else literal_value(a) for a in jaxpr.outvars]


def eval_closed(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    return eval_jaxpr(closed.jaxpr, closed.consts, *args)


def literal_value(literal: Any) -> Any:
    """A literal as an operand that gives the same literal when it is recorded again (a weak type stays weak)."""
    if literal.aval.weak_type:
        return ConcreteArray.from_numpy(literal.value, weak_type=True)
    return literal.value


def dce_jaxpr(jaxpr: Jaxpr, used_outputs: Sequence[bool]) -> tuple[Jaxpr, list[bool]]:
    """The program for some of its outputs, and which inputs it still reads (unread inputs are dropped)."""
    outvars = tuple(v for v, used in zip(jaxpr.outvars, used_outputs, strict=True) if used)
    eqns = live_eqns(jaxpr.eqns, outvars)
    read = used_vars(eqns, outvars)
    used_inputs = [v in read for v in jaxpr.invars]
    invars = tuple(v for v in jaxpr.invars if v in read)
    return Jaxpr(jaxpr.constvars, invars, tuple(eqns), outvars), used_inputs


def is_concrete(x: Any) -> bool:
    """Whether a value carries its elements (no tracer)."""
    return isinstance(x, Array) and not isinstance(x, Tracer)
