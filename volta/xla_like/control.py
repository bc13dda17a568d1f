"""Loops and choices as nodes: what a ``while``, ``scan`` or ``cond`` equation runs, as programs of their own.

A loop is rotated so that its condition comes last: ``flag = condition(first)``, then, while the flag is not 0, one
program gives the flag and the values of the next iteration. So an iteration is one plan, in which the condition is
fused with what it reads. A scan is such a loop: it counts, takes slices of what it reads, and writes into parts of what
it stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from volta.ops.primitive import REGISTRY
from volta.xla_like.nodes import Const, Iota, Operand, Ref, Val
from volta.xla_like.views import Ints, View

_INT32 = ShapedArray((), dtypes.int32)


class Lowering(Protocol):
    """What is needed of the lowering that comes to such an equation."""

    def add(
        self, kind: str, name: str, params: dict[str, Any], operands: Sequence[Operand], shape: Ints,
        outs: Sequence[ShapedArray],
    ) -> tuple[Val, ...]: ...  # fmt: skip

    def whole(self, val: Val) -> Ref: ...

    def contiguous(self, operand: Operand) -> Ref: ...

    def inline(self, program: ClosedJaxpr, operands: Sequence[Operand]) -> list[Operand]: ...


def lower_while(low: Lowering, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Sequence[Val]:
    """The first test runs before the loop, each other at the end of an iteration."""
    params, count = eqn.params, eqn.params["cond_nconsts"]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    tested, used, carried = operands[:count], operands[count : len(operands) - len(avals)], operands[-len(avals) :]
    (test,) = low.inline(condition, [*tested, *carried])
    (flag,) = low.add(
        "elem", "convert_element_type", {"new_dtype": dtypes.int32, "weak_type": False}, [test], (), [_INT32]
    )

    iteration = Program([*(a.aval for a in eqn.inputs)])
    consts, values = iteration.inputs[: len(iteration.inputs) - len(avals)], iteration.inputs[-len(avals) :]
    following = iteration.call(body, [*consts[count:], *values])
    (again,) = iteration.call(condition, [*consts[:count], *following])
    return _loop(
        low, low.whole(flag), [*tested, *used], carried, iteration.close([iteration.flag(again), *following]), avals
    )


def lower_scan(low: Lowering, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Sequence[Val | Operand]:
    """A loop that carries the number of the iteration and the stacked results besides."""
    params, body = eqn.params, eqn.params["jaxpr"]
    n, n_consts, n_carry = params["length"], params["num_consts"], params["num_carry"]
    consts, carried, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    if n == 0:
        return [*carried, *(Const(0, a.dtype, View((), ()).broadcast(a.shape, ())) for a in avals[n_carry:])]

    given = [a.aval for a in eqn.inputs]
    read, first = [*given[:n_consts], *given[n_consts + n_carry :]], given[n_consts : n_consts + n_carry]
    iteration = Program([*read, _INT32, *first, *avals[n_carry:]])
    inputs = iter(iteration.inputs)
    iteration_consts, iteration_xs, (number,), values, stacks = (
        [next(inputs) for _ in range(k)] for k in (n_consts, len(xs), 1, n_carry, len(avals) - n_carry)
    )
    step, end = (-1, -1) if params["reverse"] else (1, n)
    together = _together(n, params["unroll"])
    for _ in range(together):
        slices = [iteration.part(x, number) for x in iteration_xs]
        results = iteration.call(body, [*iteration_consts, *values, *slices])
        values = results[:n_carry]
        stacks = [iteration.replace_part(s, y, number) for s, y in zip(stacks, results[n_carry:], strict=True)]
        number = iteration.emit("add", number, int32(step))
    flag = iteration.flag(iteration.emit("ne", number, int32(end)))
    program = iteration.close([flag, number, *values, *stacks])
    start = _constant(n - 1 if params["reverse"] else 0)
    outs = _loop(low, _constant(1), [*consts, *xs], [start, *carried], program, [_INT32, *avals], n // together)
    return outs[1:]


def _together(iterations: int, unroll: int) -> int:
    """How many iterations run between two tests: the most, up to ``unroll``, that divide all iterations."""
    return next(k for k in range(min(iterations, unroll), 0, -1) if iterations % k == 0)


def lower_cond(low: Lowering, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Sequence[Val | Operand]:
    """The program that an index names; a known index chooses now."""
    branches, (index, *given) = eqn.params["branches"], operands
    if isinstance(index, Const):
        return low.inline(branches[int(index.value)], given)
    read = [index, *(low.contiguous(x) for x in given)]
    return low.add("switch", "switch", {"programs": branches}, read, (), avals)


def _loop(
    low: Lowering, flag: Operand, consts: Sequence[Operand], carried: Sequence[Operand], program: ClosedJaxpr,
    avals: Sequence[ShapedArray], turns: int | None = None,
) -> tuple[Val, ...]:  # fmt: skip
    """``program`` takes the constants and the carried values, and gives the flag and the carried values that follow. It
    runs ``turns`` times, where that is known.

    Values that are carried but have no operand are written before they are read: they begin as they are.
    """
    params = {"program": program, "consts": len(consts), "turns": turns}
    first = [low.contiguous(x) if isinstance(x, Iota) else x for x in carried]
    return low.add("while", "while", params, [flag, *(low.contiguous(x) for x in consts), *first], (), avals)


def int32(number: int) -> Literal:
    return Literal(np.int32(number), _INT32)


def _constant(number: int) -> Const:
    return Const(np.int32(number), dtypes.int32, View((), ()))


class Program:
    """Writes the program of an iteration."""

    def __init__(self, avals: Sequence[ShapedArray]) -> None:
        self.inputs = [Var(a) for a in avals]
        self.eqns: list[Eqn] = []

    def emit(self, name: str, *inputs: Atom, **params: Any) -> Var:
        primitive = REGISTRY[name]
        out = Var(primitive.abstract(*(a.aval for a in inputs), **params))
        self.eqns.append(Eqn(primitive, inputs, (out,), params))
        return out

    def call(self, program: ClosedJaxpr, inputs: Sequence[Atom]) -> list[Var]:
        outputs = [Var(a) for a in program.out_avals]
        self.eqns.append(Eqn(REGISTRY["jit"], tuple(inputs), tuple(outputs), {"jaxpr": program, "name": "iteration"}))
        return outputs

    def flag(self, test: Var) -> Var:
        return self.emit("convert_element_type", test, new_dtype=dtypes.int32, weak_type=False)

    def part(self, x: Var, number: Atom) -> Atom:
        """``x[number]``."""
        _, *rest = shape = x.aval.shape
        if shape[0] == 1:
            return self.emit("reshape", x, new_sizes=tuple(rest))
        starts = [number, *(int32(0) for _ in rest)]
        one = self.emit("dynamic_slice", x, *starts, slice_sizes=(1, *rest))
        return self.emit("reshape", one, new_sizes=tuple(rest))

    def replace_part(self, stack: Var, y: Var, number: Atom) -> Var:
        """``stack`` with ``y`` at ``number``."""
        _, *rest = stack.aval.shape
        one = self.emit("reshape", y, new_sizes=(1, *rest))
        if stack.aval.shape[0] == 1:
            return one
        return self.emit("dynamic_update_slice", stack, one, number, *(int32(0) for _ in rest))

    def close(self, outputs: Sequence[Atom]) -> ClosedJaxpr:
        return ClosedJaxpr(Jaxpr((), tuple(self.inputs), tuple(self.eqns), tuple(outputs)), ())
