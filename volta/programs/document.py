"""A program as JSON and a list of arrays, and back.

Calls are inlined first, so what is left is operations with data as parameters: a program is four lists, of constants
(numbers of arrays), inputs, equations and outputs. A value is its number, counted in the order in which values are
defined; a literal is its bytes and its type. Equal programs give equal documents; the user's lines are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, FormatError, ShapeError, UnsupportedOperationError
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from volta.ops.callbacks import HostCall
from volta.ops.primitive import REGISTRY, Family
from volta.ops.user import UserKernel
from volta.programs import values
from volta.xla_like.passes import inline_calls
from volta.xla_like.verify import verify_graph

OF_ONE_PROCESS = {
    Family.CALLBACK: "calls a Python function",
    Family.USER: "is a kernel of the user's own",
    Family.COLLECTIVE: "means the workers of a mesh",
}
"""Why operations of a family mean something in one process alone."""


def shown(eqn: Eqn) -> str:
    """An operation by its name, or by that of the user's function that it is or calls."""
    kernel, call = eqn.params.get("kernel"), eqn.params.get("call")
    if isinstance(kernel, UserKernel):
        return f"`{kernel.name}`"
    return f"{call.kind} of `{call.name}`" if isinstance(call, HostCall) else f"`{eqn.primitive.name}`"


MAX_DEPTH = 64
"""Programs within programs: more would need more of Python's stack than a caller may have left."""


_PLAIN = ("jit", "checkpoint", "name", "sharding_constraint")
"""Calls whose derivative is their program's."""


def has_rules(program: ClosedJaxpr) -> bool:
    """Whether a derivative of a call's own is lost where calls are inlined."""
    return any(
        (eqn.primitive.family is Family.CALL and eqn.primitive.name not in _PLAIN)
        or any(map(has_rules, subjaxprs(eqn.params)))
        for eqn in program.eqns
    )


class Writer:
    """Programs to JSON. ``constants`` gathers their arrays."""

    def __init__(self) -> None:
        self.constants: list[Any] = []

    def program(self, program: ClosedJaxpr) -> dict[str, Any]:
        """Raises UnsupportedOperationError for an operation that means something in this process alone."""
        program = inline_calls(program)
        jaxpr = program.jaxpr
        numbers: dict[Var, int] = {}

        def atom(x: Atom) -> Any:
            return numbers[x] if isinstance(x, Var) else [np.asarray(x.value).tobytes().hex(), _aval(x.aval)]

        def define(variables: Sequence[Var]) -> list[Any]:
            numbers.update({v: len(numbers) + i for i, v in enumerate(variables)})
            return [_aval(v.aval) for v in variables]

        define(jaxpr.constvars)
        inputs = define(jaxpr.invars)
        equations = []
        for eqn in jaxpr.eqns:
            read = [atom(x) for x in eqn.inputs]
            equations.append([eqn.primitive.name, read, self._params(eqn), define(eqn.outputs)])
        return {
            "constants": [self._constant(x) for x in program.consts],
            "inputs": inputs,
            "equations": equations,
            "outputs": [atom(x) for x in jaxpr.outvars],
        }

    def _constant(self, x: Any) -> int:
        for i, known in enumerate(self.constants):
            if known is x:
                return i
        self.constants.append(x)
        return len(self.constants) - 1

    def _params(self, eqn: Eqn) -> dict[str, Any]:
        if eqn.primitive.family in OF_ONE_PROCESS:
            where = f"\n{eqn.source.pointer()}" if eqn.source is not None else ""
            raise UnsupportedOperationError(
                f"export: {shown(eqn)} {OF_ONE_PROCESS[eqn.primitive.family]}, which a file cannot hold; "
                f"export what comes before and after it{where}"
            )
        return {
            key: values.encode(value, self.program, f"the parameter {key} of {eqn.primitive.name}", eqn.source)
            for key, value in eqn.params.items()
        }


class Reader:
    """Programs from JSON and the arrays of their constants. Everything is looked at before it is believed."""

    def __init__(self, constants: Sequence[Any]) -> None:
        self._constants = constants
        self._depth = 0

    def whole(self, stored: Any) -> ClosedJaxpr:
        """Raises FormatError for what is no program of today's operations."""
        program = self.program(stored)
        try:
            verify_graph(program)
        except Exception as error:  # a shape rule may stumble over any parameter that Volta never gives it
            raise FormatError(f"corrupt, or of another version's operations: {error}") from None
        return program

    def program(self, stored: Any) -> ClosedJaxpr:
        wanted = ("constants", "inputs", "equations", "outputs")
        if not isinstance(stored, dict) or {*stored} != {*wanted}:
            raise FormatError(f"corrupt: a program has {', '.join(wanted)}")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormatError(f"corrupt: programs within programs, more than {MAX_DEPTH} levels deep")
        constants, inputs, equations, outputs = (_list(stored[key]) for key in wanted)
        consts = tuple([self._constants[_below(i, len(self._constants))] for i in constants])
        constvars = tuple([Var(x.aval) for x in consts])
        invars = tuple([Var(_aval_of(x)) for x in inputs])
        defined: list[Var] = [*constvars, *invars]

        def atom(x: Any) -> Atom:
            return _literal(x) if isinstance(x, list) else defined[_below(x, len(defined))]

        eqns = []
        for equation in equations:
            name, read, params, given = _list(equation, 4)
            primitive = REGISTRY.get(name) if isinstance(name, str) else None
            if primitive is None or primitive.family in (*OF_ONE_PROCESS, Family.CALL):
                raise FormatError(f"corrupt, or of another version: there is no operation {name!r:.80} in files")
            if not isinstance(params, dict):
                raise FormatError(f"corrupt: the parameters of {name} are none")
            operands = tuple([atom(x) for x in _list(read)])
            decoded = {key: values.decode(value, self.program) for key, value in params.items()}
            results = tuple([Var(_aval_of(x)) for x in _list(given)])
            defined += results
            eqns.append(Eqn(primitive, operands, results, decoded))
        self._depth -= 1
        return ClosedJaxpr(Jaxpr(constvars, invars, tuple(eqns), tuple([atom(x) for x in outputs])), consts)


def _list(stored: Any, length: int | None = None) -> list[Any]:
    if not isinstance(stored, list) or length not in (None, len(stored)):
        raise FormatError(f"corrupt: {stored!r:.80} in a program is no list{'' if length is None else f' of {length}'}")
    return stored


def _below(number: Any, end: int) -> int:
    if type(number) is not int or not 0 <= number < end:
        raise FormatError(f"corrupt: {number!r:.80} in a program is the number of nothing that is defined before")
    return number


def _aval(aval: ShapedArray) -> list[Any]:
    return [aval.dtype.name, list(aval.shape), *([True] if aval.weak_type else [])]


def _aval_of(stored: Any) -> ShapedArray:
    try:
        name, shape, weak = stored if len(stored) == 3 else (*stored, False)
        if type(weak) is bool and all(type(size) is int for size in shape):
            aval = ShapedArray(tuple(shape), values.dtype_of(name), weak)
            aval.check("a program's value")
            return aval
    except (TypeError, ValueError, ShapeError):
        pass
    raise FormatError(f"corrupt: {stored!r:.80} is no type of an array")


def _literal(stored: list[Any]) -> Literal:
    data, kind = _list(stored, 2)
    aval = _aval_of(kind)
    try:
        if not aval.shape:
            return Literal(np.frombuffer(bytes.fromhex(data), aval.dtype.newbyteorder("<"))[0], aval)
    except (TypeError, ValueError, IndexError, DTypeError):
        pass
    raise FormatError(f"corrupt: {data!r:.80} is no number of type {aval}")
