"""What precisions below float32 mean, as equations: the operands of a product are rounded where they are made.

Only for backends with tensor cores, and only below strict. The rounding then runs inside the kernels that make the
operands, is shared by the products that read them, and the product reads half the bytes.
"""

from __future__ import annotations

from volta.core import dtypes
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Literal, Var
from volta.ops.selection import convert_element_type_p

_VIEWS = ("broadcast_in_dim", "reshape", "rev", "slice", "squeeze", "transpose")


def round_operands(program: ClosedJaxpr) -> ClosedJaxpr:
    """Convert the float32 operands of products at precision bf16 to bfloat16; the results stay float32."""
    if not any(_rounds(eqn) for eqn in program.eqns):
        return program
    makers = {v: eqn for eqn in program.eqns for v in eqn.outputs}
    eqns: list[Eqn] = []
    for eqn in program.eqns:
        if _rounds(eqn):
            params = {**eqn.params, "preferred_element_type": eqn.outputs[0].aval.dtype}
            eqn = eqn.replace(inputs=tuple(_rounded(a, eqn, makers, eqns) for a in eqn.inputs), params=params)
        eqns.append(eqn)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns)), program.consts)


def _rounds(eqn: Eqn) -> bool:
    return (
        eqn.primitive.name == "dot_general"
        and eqn.params["precision"] == "bf16"
        and eqn.inputs[0].aval.dtype == dtypes.float32
    )


def _rounded(operand: Atom, eqn: Eqn, makers: dict[Var, Eqn], eqns: list[Eqn]) -> Atom:
    """The operand as bfloat16. What only moves elements moves the rounded ones: it stays a view."""
    aval = operand.aval.update(dtype=dtypes.bfloat16)
    if isinstance(operand, Literal):
        return Literal(operand.value, aval)
    maker = makers.get(operand)
    if maker is not None and maker.primitive.name in _VIEWS:
        out = Var(aval)
        inputs = (_rounded(maker.inputs[0], eqn, makers, eqns),)
        eqns.append(maker.replace(inputs=inputs, outputs=(out,)))
        return out
    out, params = Var(aval), {"new_dtype": aval.dtype, "weak_type": aval.weak_type}
    eqns.append(eqn.replace(primitive=convert_element_type_p, inputs=(operand,), outputs=(out,), params=params))
    return out
