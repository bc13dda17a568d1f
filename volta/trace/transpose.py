"""Transposition: run a linear program backwards, from cotangents of its outputs to cotangents of its inputs.

**Order of accumulation.** Where a value is used more than once its cotangents are added in a fixed order: those of
outputs first, in the order of the outputs; then those of the equations that use it, last equation first; within one
equation, in the order of its operands. A new cotangent is the right operand of the addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core.errors import VerificationError
from volta.core.interp import bind, get_aval
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Var
from volta.ops.base import bind_named
from volta.ops.primitive import Linear, Zero
from volta.trace.jaxpr_trace import attributed_to, literal_value


def add_cotangents(x: Any, y: Any) -> Any:
    return bind_named("add", x, y)


def backward_pass(program: ClosedJaxpr, linear: Sequence[bool], args: Sequence[Any], cotangents: Sequence[Any]) -> list:
    """Cotangents of the linear inputs (a value or Zero each; None for the other inputs).

    ``args`` holds the values of inputs that are not linear (anything for those that are). ``cotangents`` has a value or
    Zero an output. Equations that do not depend on a linear input are evaluated first, in order.
    """
    jaxpr = program.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    depends: set[Var] = set()
    for var, is_linear, arg in zip(jaxpr.invars, linear, args, strict=True):
        if is_linear:
            depends.add(var)
        else:
            values[var] = arg
    backwards: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if any(type(a) is Var and a in depends for a in eqn.inputs):
            depends.update(eqn.outputs)
            backwards.append(eqn)
        else:
            _evaluate(eqn, values)

    waiting: dict[Var, Any] = {}

    def accumulate(atom: Atom, ct: Any, eqn: Eqn | None) -> None:
        if ct is None or isinstance(ct, Zero) or type(atom) is not Var or atom not in depends:
            return
        if get_aval(ct).shape != atom.aval.shape or get_aval(ct).dtype != atom.aval.dtype:
            where = "an output" if eqn is None else f"the transpose rule of `{eqn.primitive.name}`"
            raise VerificationError(
                f"{where} gave a cotangent {get_aval(ct).short()} for a value {atom.aval.short()}: they must agree"
            )
        held = waiting.get(atom)
        waiting[atom] = ct if held is None else add_cotangents(held, ct)

    for atom, ct in zip(jaxpr.outvars, cotangents, strict=True):
        accumulate(atom, ct, None)
    for eqn in reversed(backwards):
        cts = [waiting.pop(v, None) for v in eqn.outputs]
        if all(ct is None for ct in cts):
            continue
        full = [Zero(v.aval) if ct is None else ct for v, ct in zip(eqn.outputs, cts, strict=True)]
        operands = [_operand(a, values, depends) for a in eqn.inputs]
        if eqn.primitive.transpose is None:
            raise VerificationError(f"`{eqn.primitive.name}` occurs in a linear program but has no transpose rule")
        with attributed_to(eqn.source):
            given = eqn.primitive.transpose(
                full if eqn.primitive.multiple_results else full[0], *operands, **eqn.params
            )
            for atom, ct in zip(eqn.inputs, given, strict=True):
                accumulate(atom, ct, eqn)
    return [
        waiting.get(v, Zero(v.aval)) if is_linear else None for v, is_linear in zip(jaxpr.invars, linear, strict=True)
    ]


def _operand(atom: Atom, values: dict[Var, Any], depends: set[Var]) -> Any:
    if type(atom) is not Var:
        return literal_value(atom)
    return Linear(atom.aval) if atom in depends else values[atom]


def _evaluate(eqn: Eqn, values: dict[Var, Any]) -> None:
    inputs = [values[a] if type(a) is Var else literal_value(a) for a in eqn.inputs]
    with attributed_to(eqn.source):
        out = bind(eqn.primitive, *inputs, **eqn.params)
    if eqn.primitive.multiple_results:
        values.update(zip(eqn.outputs, out, strict=True))
    else:
        values[eqn.outputs[0]] = out
