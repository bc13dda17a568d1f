"""Eager evaluation: one operation is a program of one equation, compiled and run like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.interp import Trace, Tracer, get_aval
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.runtime import gateway
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context

_executables: dict[Any, gateway.Executable] = {}
_KEPT = 8192


class EvalTrace(Trace):
    """Evaluates each operation at once."""

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for x in args:
            if isinstance(x, Tracer):
                raise x.leak_error()
        arrays = [x if type(x) is ConcreteArray else _operand(x) for x in args]
        key = (primitive, tuple(params.items()), tuple([a.aval for a in arrays]), current_context())
        executable = _executables.get(key)
        if executable is None:
            executable = _executables[key] = _compile(primitive, [get_aval(a) for a in arrays], params)
            if len(_executables) > _KEPT:  # a program made anew at each call is a new key each time
                del _executables[next(iter(_executables))]
        out = executable(arrays)
        return out if primitive.multiple_results else out[0]


_scalars: dict[tuple[Any, Any], ConcreteArray] = {}
_SCALARS = 4096


def _operand(x: Any) -> ConcreteArray:
    """An operand as an array. Scalars are kept: they recur, and eager operations never donate."""
    if not isinstance(x, (np.generic, int, float)):
        return as_array(x)
    key = (type(x), x.tobytes() if isinstance(x, np.generic) else repr(x))
    found = _scalars.get(key)
    if found is None:
        if len(_scalars) >= _SCALARS:
            _scalars.clear()
        found = _scalars[key] = as_array(x)
    return found


def _compile(primitive: Any, avals: list[Any], params: dict[str, Any]) -> gateway.Executable:
    result = primitive.abstract(*avals, **params)
    outs = tuple(Var(a) for a in (result if primitive.multiple_results else [result]))
    invars = tuple(Var(a) for a in avals)
    jaxpr = Jaxpr((), invars, (Eqn(primitive, invars, outs, params),), outs)
    return gateway.compile(ClosedJaxpr(jaxpr, ()), name=primitive.name)
