"""Eager evaluation: one operation is a program of one equation, compiled and run like any other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.interp import Trace, Tracer
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.core.recent import Recent
from volta.ops.primitive import Family
from volta.runtime import gateway, spread
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context
from volta.runtime.sharded import ShardedArray

_executables: Recent[Any, Any] = Recent(2048)
"""What operations run, by primitive, parameters, types and context; what operators of two arrays run (`operate`)."""


class _Noted(threading.local):
    """Of a thread: the operations that ran since an operator asked which one it is; None where none asks."""

    ran: list[tuple[Any, list[ConcreteArray], Any]] | None = None


_noted = _Noted()


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
        if primitive.multiple_results:
            return out
        if _noted.ran is not None:
            _noted.ran.append((executable, arrays, out[0]))
        return out[0]

    def process_custom(self, call: Any, args: Sequence[Any]) -> list[Any]:
        """Nothing is differentiated, so it is a call; the function may look at the values."""
        for x in args:
            if isinstance(x, Tracer):
                raise x.leak_error()
        return call.run(*args)


def operate(function: Callable[[Any, Any], Any], x: ConcreteArray, y: ConcreteArray) -> Any:
    """``function(x, y)`` of two arrays whose types say what it does: no Python numbers, whose values say so too.

    Where it is one operation of the two as they are, that is found by their types the next time: between an operator
    and what it runs are two dozen functions that ask of shapes and dtypes what they asked before.
    """
    key = (function, x.aval, y.aval, current_context())
    run = _executables.get(key)
    if run is None:
        run = _executables.find(key)
    if run is None:
        return _first(function, x, y, key)
    return function(x, y) if run is _SEVERAL else run([x, y])[0]


_SEVERAL = object()
"""What runs an operator that is not one operation of its operands as they are."""


def _first(function: Callable[[Any, Any], Any], x: ConcreteArray, y: ConcreteArray, key: Any) -> Any:
    """An operator of operands of new types, by its function."""
    if x is y:  # which is the left one?
        y = ConcreteArray(y.aval, y.buffer(), y.address)
    before, _noted.ran = _noted.ran, []
    try:
        out = function(x, y)
        ran = _noted.ran
    finally:
        _noted.ran = before
    run = _SEVERAL
    if len(ran) == 1:
        executable, (*operands,), result = ran[0]
        if result is out and len(operands) == 2 and operands[0] is x and operands[1] is y:
            run = executable
    _executables.keep(key, run)
    return out


_scalars: Recent[tuple[Any, Any], ConcreteArray] = Recent(2048)

_BITS: dict[type, Callable[[Any], Any]] = {
    int: int, bool: int, float: float.hex, complex: repr,
    **{kind: kind.tobytes for kind in (d.type for d in dtypes.ALL) if issubclass(kind, np.generic)},
}  # fmt: skip
"""Scalars of these types differ where these differ."""


def scalar(x: Any) -> ConcreteArray | None:
    """A number as an array that is kept, as numbers recur; None for what is none, or more than 64 bits hold.

    Not to be donated: it is everybody's who passes the number.
    """
    bits = _BITS.get(type(x))
    if bits is None:
        return None
    key = (type(x), bits(x))
    found = _scalars.get(key)
    if found is None:
        found = _scalars.find(key)
    if found is None and (type(x) is not int or dtypes.of_python_scalar(x) is not None):
        return _scalars.keep(key, as_array(x))
    return found


def _operand(x: Any) -> ConcreteArray:
    """An operand as an array. Eager operations never donate, so scalars are those that are kept."""
    found = scalar(x)
    return as_array(x) if found is None else found


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
