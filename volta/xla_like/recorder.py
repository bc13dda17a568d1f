"""Writing programs down: operations on recorded values become equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core.interp import Trace, Tracer, get_aval
from volta.core.ir import Atom, Eqn, Literal, Var
from volta.core.source import Source


class Recorded(Tracer):
    """A value of the program that is written."""

    __slots__ = ("aval", "atom")

    def __init__(self, trace: Recorder, atom: Atom):
        self._trace, self.atom, self.aval = trace, atom, atom.aval


class Recorder(Trace):
    """Writes operations down as equations, each with the line of the user's that ``source`` names."""

    def __init__(self) -> None:
        self.eqns: list[Eqn] = []
        self.source: Source | None = None

    def atom(self, x: Any) -> Atom:
        return x.atom if isinstance(x, Recorded) else Literal(x, get_aval(x))

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        inputs = tuple(self.atom(x) for x in args)
        found = primitive.abstract(*(a.aval for a in inputs), **params)
        outs = tuple(Var(aval) for aval in (found if primitive.multiple_results else [found]))
        self.eqns.append(Eqn(primitive, inputs, outs, params, self.source))
        values = [Recorded(self, v) for v in outs]
        return values if primitive.multiple_results else values[0]
