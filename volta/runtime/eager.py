"""Eager evaluation: one operation is a program of one equation, compiled and run like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.interp import Trace, Tracer
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.core.recent import Recent
from volta.ops.primitive import Family
from volta.runtime import gateway, spread
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context
from volta.runtime.sharded import ShardedArray

_executables: Recent[Any, gateway.Executable] = Recent(2048)


class EvalTrace(Trace):
    """Evaluates each operation at once."""

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for x in args:
            if isinstance(x, Tracer):
                raise x.leak_error()
            if type(x) is ShardedArray and primitive.family is not Family.CALLBACK:
                return _spread(primitive, args, params)
        arrays = [x if type(x) is ConcreteArray else _operand(x) for x in args]
        key = (primitive, tuple(params.items()), tuple([a.aval for a in arrays]), current_context())
        executable = _executables.get(key)
        if executable is None:
            executable = _executables.find(key)
        if executable is None and primitive.family is Family.CALLBACK:  # one of its own at each call
            return _compile(primitive, arrays, params)(arrays)
        if executable is None:
            executable = _executables.keep(key, _compile(primitive, arrays, params))
        out = executable(arrays)
        return out if primitive.multiple_results else out[0]

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        """Nothing is differentiated, so it is a call; the function may look at the values."""
        for x in args:
            if isinstance(x, Tracer):
                raise x.leak_error()
        return call.run(*args)


_scalars: Recent[tuple[Any, Any], ConcreteArray] = Recent(2048)


def _operand(x: Any) -> ConcreteArray:
    """An operand as an array. Scalars are kept: they recur, and eager operations never donate."""
    if not isinstance(x, (np.generic, int, float, complex)):
        return as_array(x)
    key = (type(x), x.tobytes() if isinstance(x, np.generic) else repr(x))
    found = _scalars.get(key)
    if found is None:
        found = _scalars.find(key)
    return _scalars.keep(key, as_array(x)) if found is None else found


def _spread(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """An operation on arrays of several workers."""
    values = [x if type(x) is ShardedArray else _operand(x) for x in args]
    avals = [x.aval for x in values]
    key = (primitive, tuple(params.items()), tuple(avals))
    out = spread.run(_program(primitive, avals, params), values, primitive.name, key)
    return out if primitive.multiple_results else out[0]


def _compile(primitive: Any, arrays: list[ConcreteArray], params: dict[str, Any]) -> gateway.Executable:
    part = f"a part of `{params['name']}`, which a transform has made" if "name" in params else "an operation by itself"
    return gateway.compile(
        _program(primitive, [x.aval for x in arrays], params),
        name=primitive.name,
        why=lambda: f"{part}, first for these types and settings",
        arguments=arrays,
    )


def _program(primitive: Any, avals: list[Any], params: dict[str, Any]) -> ClosedJaxpr:
    result = primitive.abstract(*avals, **params)
    results = result if primitive.multiple_results else [result]
    for aval in results:
        aval.check(primitive.name)
    outs = tuple(Var(a) for a in results)
    invars = tuple(Var(a) for a in avals)
    return ClosedJaxpr(Jaxpr((), invars, (Eqn(primitive, invars, outs, params),), outs), ())
