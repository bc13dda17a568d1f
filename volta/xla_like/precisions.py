"""What precisions below float32 mean, as equations: the operands of a product are rounded where they are made.

Only for backends with tensor cores, and only below strict. The rounding then runs inside the kernels that make the
operands, is shared by the products that read them, and operands in bfloat16 are half the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import UnsupportedOperationError
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Literal, Var
from volta.core.policy import TENSOR_PRECISIONS, DeterminismLevel
from volta.core.source import at_user_line
from volta.ops.primitive import REGISTRY
from volta.xla_like.attention import fits_tensor_cores
from volta.xla_like.dot import BLOCK_PRODUCT
from volta.xla_like.nodes import Node

_ROUNDED = {"dot_general": 2, BLOCK_PRODUCT: 1, "attention": 3, "attention_dq": 4, "attention_dkv": 4}
"""How many operands take part in products: those come first. (Weights in blocks a kernel rounds.)"""

_VIEWS = ("broadcast_in_dim", "reshape", "rev", "slice", "squeeze", "transpose")


def round_operands(program: ClosedJaxpr) -> ClosedJaxpr:
    """Round the float32 operands of products, attention's among them, at precisions of tensor cores; the results stay
    float32.

    Precision bf16 makes them bfloat16. Precision tf32 leaves them float32, and puts the contracted axes last, since
    there is no other way to give 4-byte elements to all tensor cores. The right one has mantissas of 10 bits then; the
    left one the product itself rounds, as it takes it from registers.
    """
    if not any(_rounds(eqn) for eqn in program.eqns):
        return program
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(_Rounding(program).eqns)), program.consts)


def allows_tensor_cores(node: Node, precision: str, level: DeterminismLevel, there: bool) -> bool:
    """Whether what asks for tensor cores runs there, if they are there. Raises UnsupportedOperationError at strict."""
    if level is DeterminismLevel.STRICT:
        raise UnsupportedOperationError(_refusal(node, precision))
    return there


def _refusal(node: Node, precision: str) -> str:
    where = "" if node.source is None else f" (from {node.source})"
    text = (
        f"operation {node.name!r} at precision {precision!r} is not there at determinism level 'strict'{where}: tensor "
        "cores add in an order of their own, and no other machine has their bits. Allow it by "
        'volta.execution_context(level="device") (volta offline: --level device), or leave the precision at None '
        "(chains of float32)."
    )
    return text if where else at_user_line(text)


def _rounds(eqn: Eqn) -> bool:
    asked = eqn.params.get("precision") in TENSOR_PRECISIONS
    if not asked or eqn.inputs[0].aval.dtype != dtypes.float32:
        return False
    if eqn.primitive.name in ("dot_general", BLOCK_PRODUCT):
        return True
    (_, _, t, head), (_, _, s, value_head) = (eqn.inputs[i].aval.shape for i in (0, 2))
    return fits_tensor_cores(t, s, head, value_head, eqn.params["scale"])


class _Rounding:
    def __init__(self, program: ClosedJaxpr) -> None:
        self.makers = {v: eqn for eqn in program.eqns for v in eqn.outputs}
        self.eqns: list[Eqn] = []
        for eqn in program.eqns:
            if _rounds(eqn):
                self.source = eqn.source
                eqn = (self._in_bfloat16 if eqn.params["precision"] == "bf16" else self._in_tf32)(eqn)
            self.eqns.append(eqn)

    def _emit(self, name: str, *inputs: Atom, **params: Any) -> Var:
        primitive = REGISTRY[name]
        out = Var(primitive.abstract(*(a.aval for a in inputs), **params))
        self.eqns.append(Eqn(primitive, inputs, (out,), params, self.source))
        return out

    def _in_bfloat16(self, eqn: Eqn) -> Eqn:
        if eqn.primitive.name == BLOCK_PRODUCT:  # whose rows must lie one after the other
            return eqn.replace(inputs=(self._converted(eqn.inputs[0]), *eqn.inputs[1:]))
        params = {**eqn.params, "preferred_element_type": eqn.outputs[0].aval.dtype}
        rounded = _ROUNDED[eqn.primitive.name]
        inputs = (*(self._bfloat16(a) for a in eqn.inputs[:rounded]), *eqn.inputs[rounded:])
        return eqn.replace(inputs=inputs, params=params)

    def _bfloat16(self, operand: Atom) -> Atom:
        """The operand as bfloat16. What only moves elements moves the rounded ones: it stays a view."""
        if isinstance(operand, Literal):
            return Literal(operand.value, operand.aval.update(dtype=dtypes.bfloat16))
        maker = self.makers.get(operand)
        if maker is not None and maker.primitive.name in _VIEWS:
            return self._emit(maker.primitive.name, self._bfloat16(maker.inputs[0]), **maker.params)
        return self._converted(operand)

    def _converted(self, operand: Atom) -> Atom:
        return self._emit(
            "convert_element_type", operand, new_dtype=dtypes.bfloat16, weak_type=operand.aval.weak_type
        )  # fmt: skip

    def _in_tf32(self, eqn: Eqn) -> Eqn:
        (contracts, batches), inputs = eqn.params["dimension_numbers"], []
        for side, (operand, contract, batch) in enumerate(zip(eqn.inputs, contracts, batches, strict=True)):
            free = tuple(d for d in range(operand.aval.ndim) if d not in contract + batch)
            order = batch + free + contract
            if order != tuple(range(operand.aval.ndim)):
                operand = self._emit("transpose", operand, permutation=order)
            inputs.append(self._tf32(operand) if side else operand)
        last = tuple(tuple(range(a.aval.ndim - len(c), a.aval.ndim)) for a, c in zip(inputs, contracts, strict=True))
        first = tuple(range(len(batches[0])))
        return eqn.replace(inputs=tuple(inputs), params={**eqn.params, "dimension_numbers": (last, (first, first))})

    def _tf32(self, x: Atom) -> Atom:
        """Rounded to 10 bits of mantissa, ties away from zero; a NaN is one that stays NaN."""

        def word(value: int) -> Literal:
            return Literal(np.int32(value), ShapedArray((), dtypes.int32))

        bits = self._emit("bitcast_convert_type", x, new_dtype=dtypes.int32, old_dtype=dtypes.float32)
        rounded = self._emit("and", self._emit("add", bits, word(1 << 12)), word(-1 << 13))
        value = self._emit("bitcast_convert_type", rounded, new_dtype=dtypes.float32, old_dtype=dtypes.int32)
        nan = Literal(np.float32(np.nan), ShapedArray((), dtypes.float32))
        return self._emit("select_n", self._emit("ne", x, x), value, nan)
