"""A program as a StableHLO module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.tracing import make_jaxpr
from volta.core.errors import UnsupportedOperationError
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Literal, Var
from volta.core.source import at_user_line
from volta.ops.attention_derivatives import written_out
from volta.ops.primitive import Family
from volta.programs.document import OF_ONE_PROCESS, shown
from volta.programs.stablehlo import arrays, elementwise
from volta.programs.stablehlo.elementwise import applied
from volta.programs.stablehlo.text import Value, Writer, ints, tensor, type_text
from volta.xla_like.keys import without_keys
from volta.xla_like.passes import inline_calls


def module_text(program: ClosedJaxpr, name: str) -> str:
    """A module with one public function, ``main``, named after the program. Random keys are their words there.

    Raises:
        UnsupportedOperationError: an operation calls Python, is a kernel of the user's own or has no text; it is named.
    """
    program = inline_calls(without_keys(program))
    w = Writer()
    arguments = [w.fresh(a) for a in program.in_avals]
    consts = [w.constant(np.asarray(c)) for c in program.consts]
    results = _equations(w, program, [*consts, *arguments])
    takes = ", ".join(f"{x.name}: {type_text(x.aval)}" for x in arguments)
    gives = ", ".join(type_text(a) for a in program.out_avals)
    w.operations("func.return", results, [])
    lines = [f'module @"{name}" {{', f"  func.func public @main({takes}) -> ({gives}) {{", *w.lines, "  }", "}"]
    return "\n".join(lines)


def _equations(w: Writer, program: ClosedJaxpr, values: Sequence[Value]) -> list[Value]:
    """The equations of a program whose constants, then arguments, have these values; the values of its results."""
    jaxpr = program.jaxpr
    held: dict[Var, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

    def read(x: Atom) -> Value:
        return w.constant(x.value, x.aval.dtype) if isinstance(x, Literal) else held[x]

    for eqn in jaxpr.eqns:
        held.update(zip(eqn.outputs, _equation(w, eqn, [read(x) for x in eqn.inputs]), strict=True))
    return [read(x) for x in jaxpr.outvars]


def _equation(w: Writer, eqn: Eqn, operands: Sequence[Value]) -> Sequence[Value]:
    name = eqn.primitive.name
    if name in elementwise.COVERED:
        return elementwise.write(w, eqn, operands)
    if name in arrays.WRITERS:
        return arrays.WRITERS[name](w, eqn, *operands, **eqn.params)
    if name in _CONTROL:
        return _CONTROL[name](w, eqn, operands, **eqn.params)
    if eqn.primitive.family is Family.ATTENTION:
        return _program(w, lambda *xs: written_out(name, xs, eqn.params), operands)
    why = OF_ONE_PROCESS.get(eqn.primitive.family, "has no StableHLO")
    where = "" if eqn.source is None else f" (at {eqn.source})"
    raise UnsupportedOperationError(at_user_line(f"to StableHLO: {shown(eqn)}{where} {why}"))


def _program(w: Writer, f: Callable[..., Any], operands: Sequence[Value]) -> list[Value]:
    """What an operation means, written out in others."""
    meant = inline_calls(make_jaxpr(f)(*(x.aval for x in operands)))
    return _equations(w, meant, [*(w.constant(np.asarray(c)) for c in meant.consts), *operands])


# -- control flow ------------------------------------------------------------------------------------------------------


def _nested(program: ClosedJaxpr) -> ClosedJaxpr:
    program = inline_calls(program)
    assert not program.consts, "programs within programs are open: their constants are operands"
    return program


def _cond(w: Writer, eqn: Eqn, operands: Sequence[Value], *, branches: Sequence[ClosedJaxpr]) -> list[Value]:
    which, *rest = operands
    which = w.convert(which, np.int32)
    last = w.constant(len(branches) - 1, np.int32)
    which = w.operation("stablehlo.clamp", [w.constant(0, np.int32), which, last], which.aval)

    def body(branch: ClosedJaxpr) -> Any:
        return (), lambda: _equations(w, _nested(branch), rest)

    return w.operations("stablehlo.case", [which], [v.aval for v in eqn.outputs], "", [body(b) for b in branches])


def _loop(
    w: Writer, init: Sequence[Value], test: Callable[..., Value], step: Callable[..., Sequence[Value]]
) -> list[Value]:
    avals = [tensor(x.shape, x.dtype) for x in init]
    bodies = [(avals, lambda *xs: [test(*xs)]), (avals, step)]
    return w.operations("stablehlo.while", init, avals, "", bodies)


def _while(
    w: Writer, eqn: Eqn, operands: Sequence[Value], *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr,
    cond_nconsts: int, body_nconsts: int,
) -> list[Value]:  # fmt: skip
    tested, used = operands[:cond_nconsts], operands[cond_nconsts : cond_nconsts + body_nconsts]
    return _loop(
        w,
        operands[cond_nconsts + body_nconsts :],
        lambda *xs: _equations(w, _nested(cond_jaxpr), [*tested, *xs])[0],
        lambda *xs: _equations(w, _nested(body_jaxpr), [*used, *xs]),
    )


def _scan(
    w: Writer, eqn: Eqn, operands: Sequence[Value], *, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int, length: int,
    reverse: bool, **rest: Any,
) -> list[Value]:  # fmt: skip
    consts, carry, xs = (
        operands[:num_consts],
        operands[num_consts : num_consts + num_carry],
        operands[num_consts + num_carry :],
    )
    stacked = [v.aval for v in eqn.outputs[num_carry:]]
    start = [w.spread(w.constant(0, a.dtype), a.shape) for a in stacked]
    zero, one = w.constant(0, np.int64), w.constant(1, np.int64)

    def step(i: Value, *held: Value) -> list[Value]:
        now, ys = held[:num_carry], held[num_carry:]
        at = applied(w, "subtract", w.constant(length - 1, np.int64), i) if reverse else i
        out = _equations(w, _nested(jaxpr), [*consts, *now, *(_row(w, x, at, zero) for x in xs)])
        put = [_put(w, y, row, at, zero) for y, row in zip(ys, out[num_carry:], strict=True)]
        return [applied(w, "add", i, one), *out[:num_carry], *put]

    limit = w.constant(length, np.int64)
    return _loop(w, [zero, *carry, *start], lambda i, *held: w.compare(i, limit, "LT"), step)[1:]


def _row(w: Writer, x: Value, at: Value, zero: Value) -> Value:
    shape = (1, *x.shape[1:])
    places = [at, *[zero] * len(x.shape[1:])]
    row = w.operation("stablehlo.dynamic_slice", [x, *places], tensor(shape, x.dtype), f"slice_sizes = {ints(shape)}")
    return w.reshape(row, x.shape[1:])


def _put(w: Writer, x: Value, row: Value, at: Value, zero: Value) -> Value:
    row = w.reshape(row, (1, *row.shape))
    return w.operation("stablehlo.dynamic_update_slice", [x, row, at, *[zero] * len(x.shape[1:])], x.aval)


_CONTROL: dict[str, Callable[..., list[Value]]] = {"cond": _cond, "while": _while, "scan": _scan}
