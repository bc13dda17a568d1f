"""Transposition: run a linear program backwards, from cotangents of its outputs to cotangents of its inputs.

**Order of accumulation.** Where a value is used more than once its cotangents are added in a fixed order: those of
outputs first, in the order of the outputs; then those of the equations that use it, last equation first; within one
equation, in the order of its operands. A new cotangent is the right operand of the addition.

A call (``jit``, ``checkpoint``) *continues* the accumulation: what its operands have gathered so far goes into the
transposed program, which adds to it. So the sums are those of the same program without calls, and wrapping a function
in ``jit`` or ``checkpoint`` changes no bit of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.errors import VerificationError
from volta.core.interp import bind, get_aval
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Var
from volta.ops.base import bind_named
from volta.ops.primitive import Linear, Zero
from volta.trace.jaxpr_trace import attributed_to, literal_value


def transpose_by(accumulate: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The transpose rule that goes with an ``accumulate`` rule: its operands have gathered nothing before."""

    def transpose(cts: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
        held = [Zero(x.aval) if isinstance(x, Linear) else None for x in operands]
        return accumulate(cts, held, *operands, **params)

    return transpose


def add_cotangents(x: Any, y: Any) -> Any:
    return bind_named("add", x, y)


def backward_pass(
    program: ClosedJaxpr,
    linear: Sequence[bool],
    args: Sequence[Any],
    cotangents: Sequence[Any],
    held: Sequence[Any] | None = None,
) -> list[Any]:
    """Cotangents of the linear inputs (a value or Zero each; None for the other inputs).

    ``args`` holds the values of inputs that are not linear (anything for those that are). ``cotangents`` has a value or
    Zero an output. ``held`` is what the inputs have gathered before (None: nothing). Equations that do not depend on a
    linear input are evaluated first, in order.
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

    totals: dict[Var, Any] = {}
    for var, ct in zip(jaxpr.invars, held or (), strict=held is not None):
        if ct is not None and not isinstance(ct, Zero):
            totals[var] = ct

    def is_linear_var(atom: Atom) -> bool:
        return type(atom) is Var and atom in depends

    def accumulate(atom: Atom, ct: Any, giver: str) -> None:
        if ct is None or isinstance(ct, Zero) or type(atom) is not Var or atom not in depends:
            return
        _check_cotangent(atom, ct, giver)
        total = totals.get(atom)
        totals[atom] = ct if total is None else add_cotangents(total, ct)

    for atom, ct in zip(jaxpr.outvars, cotangents, strict=True):
        accumulate(atom, ct, "an output")
    for eqn in reversed(backwards):
        cts = [totals.pop(v, None) for v in eqn.outputs]
        if all(ct is None for ct in cts):
            continue
        full = [Zero(v.aval) if ct is None else ct for v, ct in zip(eqn.outputs, cts, strict=True)]
        markers = {a: Linear(a.aval) for a in eqn.inputs if is_linear_var(a)}
        operands = [markers[a] if a in markers else _known_operand(a, values) for a in eqn.inputs]
        given_cts = full if eqn.primitive.multiple_results else full[0]
        continues = eqn.primitive.accumulate
        with attributed_to(eqn.source and attrs.evolve(eqn.source, gradient=True)):
            if continues is not None:
                gathered = [totals.get(a, Zero(a.aval)) if is_linear_var(a) else None for a in eqn.inputs]  # type: ignore[arg-type]
                new = continues(given_cts, gathered, *operands, **eqn.params)
                for atom, ct in zip(eqn.inputs, new, strict=True):
                    if is_linear_var(atom) and not isinstance(ct, Zero):
                        _check_cotangent(atom, ct, eqn.primitive.name)
                        totals[atom] = ct  # type: ignore[index]
                continue
            if eqn.primitive.transpose is None:
                raise VerificationError(f"`{eqn.primitive.name}` occurs in a linear program but has no transpose rule")
            shares = eqn.primitive.transpose(given_cts, *operands, **eqn.params)
            for atom, ct in zip(eqn.inputs, shares, strict=True):
                accumulate(atom, ct, eqn.primitive.name)
    return [
        totals.get(v, Zero(v.aval)) if is_linear else None for v, is_linear in zip(jaxpr.invars, linear, strict=True)
    ]


def _check_cotangent(atom: Atom, ct: Any, giver: str) -> None:
    aval = get_aval(ct)
    if aval.shape != atom.aval.shape or aval.dtype != atom.aval.dtype:
        raise VerificationError(
            f"the transpose rule of `{giver}` gave a cotangent {aval.short()} for a value {atom.aval.short()}: "
            "they must agree"
        )


def _known_operand(atom: Atom, values: dict[Var, Any]) -> Any:
    return values[atom] if type(atom) is Var else literal_value(atom)


def _evaluate(eqn: Eqn, values: dict[Var, Any]) -> None:
    inputs = [_known_operand(a, values) for a in eqn.inputs]
    with attributed_to(eqn.source):
        out = bind(eqn.primitive, *inputs, **eqn.params)
    if eqn.primitive.multiple_results:
        values.update(zip(eqn.outputs, out, strict=True))
    else:
        values[eqn.outputs[0]] = out
