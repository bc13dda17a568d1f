"""What a program costs, counted from its equations: for people, and for what compares programs."""

from __future__ import annotations

import math

import attrs

from volta.core import dtypes
from volta.core.ir import ClosedJaxpr, Eqn, subjaxprs
from volta.ops.primitive import FUNCTION, Family


@attrs.frozen
class Counts:
    """Operations on numbers, evaluations of functions (exp, sin, …), and bytes that equations read and write."""

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes_accessed: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))

    def times(self, n: int) -> Counts:
        return Counts(*(n * x for x in attrs.astuple(self)))

    def analysis(self) -> dict[str, float]:
        """Under the names of ``jax.stages.Compiled.cost_analysis``."""
        return {
            "flops": self.flops,
            "transcendentals": self.transcendentals,
            "bytes accessed": self.bytes_accessed,
        }


def counts(program: ClosedJaxpr) -> Counts:
    """The counts of a program: a scan's body for each iteration, other loops' once, of a choice the dearest branch."""
    return sum((_of_equation(eqn) for eqn in program.eqns), Counts())


def _of_equation(eqn: Eqn) -> Counts:
    inner = [counts(part) for part in subjaxprs(eqn.params)]
    primitive = eqn.primitive
    if primitive.name == "scan":
        return inner[0].times(eqn.params["length"])
    if inner and primitive.family is not Family.REDUCTION:
        return sum(inner, Counts()) if primitive.family is Family.CALL or primitive.name == "while" else _dearest(inner)
    moved = sum(v.aval.nbytes for v in (*eqn.inputs, *eqn.outputs))
    size = sum(v.aval.size for v in eqn.outputs)
    if primitive.family is Family.CONTRACTION:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return Counts(2.0 * size * math.prod(eqn.inputs[0].aval.shape[d] for d in contracted), 0.0, moved)
    if primitive.family is Family.ATTENTION:
        return Counts(4.0 * size * eqn.inputs[1].aval.shape[1], 0.0, moved)  # two products over the keys
    if primitive.family is Family.REDUCTION:
        return Counts(float(sum(x.aval.size for x in eqn.inputs) - size), 0.0, moved)
    if primitive.family is not Family.ELEMENTWISE or not dtypes.is_inexact(eqn.inputs[0].aval.dtype):
        return Counts(0.0, 0.0, moved)
    if primitive.cost >= FUNCTION:
        return Counts(0.0, float(size), moved)
    return Counts(float(size), 0.0, moved)


def _dearest(parts: list[Counts]) -> Counts:
    return max(parts, key=lambda c: (c.flops + c.transcendentals, c.bytes_accessed))
