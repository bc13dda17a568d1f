"""Passes over the IR. Each keeps the bits, and the program is verified again after each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from volta.core.source import Source
from volta.ops.base import backwards_only
from volta.ops.primitive import REGISTRY, Family
from volta.xla_like.verify import verify_graph

Evaluate = Callable[[ClosedJaxpr], Sequence[Any]]
"""Runs a program without inputs through Volta's own kernels; its results as NumPy values."""


Kept = Callable[[Eqn], bool]
"""Which calls are not replaced by what they mean."""


def optimize(
    program: ClosedJaxpr, only_inline: bool = False, evaluate: Evaluate | None = None, kept: Kept | None = None
) -> ClosedJaxpr:
    """Inline calls, fold constants, simplify, join common subexpressions, drop dead code.

    Constants are folded by ``evaluate``, where it is given: by the kernels that would compute them. Calls that are
    ``kept`` stay. A pass that finds nothing to do gives back what it got.
    """
    program = inline_calls(program, kept)
    verify_graph(program, types=False)
    if only_inline:
        return program
    folding = () if evaluate is None else (partial(fold_constants, evaluate=evaluate),)
    for a_pass in (*folding, *PASSES):
        before, program = program, a_pass(program)
        if program is not before:
            verify_graph(program, types=False)
    return program


def inline_calls(program: ClosedJaxpr, kept: Kept | None = None) -> ClosedJaxpr:
    """Replace call equations (jit, checkpoint) by the programs they stand for, but those to be kept."""

    def is_inlined(eqn: Eqn) -> bool:
        return eqn.primitive.family is Family.CALL and not (kept is not None and kept(eqn))

    if not any(map(is_inlined, program.eqns)):
        return program
    consts, constvars, eqns = list(program.consts), list(program.jaxpr.constvars), []

    def run(jaxpr: Jaxpr, env: dict[Var, Atom], source: Source | None = None) -> list[Atom]:
        def read(a: Atom) -> Atom:
            return env.get(a, a) if isinstance(a, Var) else a

        for eqn in jaxpr.eqns:
            inputs = tuple(read(a) for a in eqn.inputs)
            if is_inlined(eqn):
                if "jaxpr" not in eqn.params:
                    raise backwards_only(eqn.params["name"])
                inner: ClosedJaxpr = eqn.params["jaxpr"]
                fresh = [Var(v.aval) for v in inner.jaxpr.constvars]
                consts.extend(inner.consts)
                constvars.extend(fresh)
                binding: dict[Var, Atom] = dict(zip(inner.jaxpr.constvars, fresh, strict=True))
                binding.update(zip(inner.jaxpr.invars, inputs, strict=True))
                env.update(zip(eqn.outputs, run(inner.jaxpr, binding, eqn.source or source), strict=True))
            else:
                outputs = tuple(Var(v.aval) for v in eqn.outputs)
                env.update(zip(eqn.outputs, outputs, strict=True))
                eqns.append(eqn.replace(inputs=inputs, outputs=outputs, source=eqn.source or source))
        return [read(a) for a in jaxpr.outvars]

    outs = run(program.jaxpr, {})
    return ClosedJaxpr(Jaxpr(tuple(constvars), program.jaxpr.invars, tuple(eqns), tuple(outs)), tuple(consts))


def _rewrite(program: ClosedJaxpr, rule: Callable[[Eqn], list[Atom] | None]) -> ClosedJaxpr:
    """Drop equations for which ``rule`` names atoms that equal their outputs."""
    env: dict[Atom, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in program.eqns:
        if not env.keys().isdisjoint(eqn.inputs):
            eqn = eqn.replace(inputs=tuple([env.get(a, a) for a in eqn.inputs]))
        same = rule(eqn)
        if same is None:
            eqns.append(eqn)
        else:
            env.update(zip(eqn.outputs, same, strict=True))
    if len(eqns) == len(program.eqns):
        return program
    outs = tuple(env.get(a, a) for a in program.jaxpr.outvars)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns), outvars=outs), program.consts)


def fold_constants(program: ClosedJaxpr, evaluate: Evaluate) -> ClosedJaxpr:
    """Compute scalar expressions of literals now, with the kernels that would compute them at run time."""
    known: dict[Var, None] = {}
    folded: list[Eqn] = []
    for eqn in program.eqns:
        constant = eqn.primitive.family is Family.ELEMENTWISE and all(
            isinstance(a, Literal) or a in known for a in eqn.inputs
        )
        if constant and not eqn.outputs[0].aval.shape:
            folded.append(eqn)
            known[eqn.outputs[0]] = None
    if not folded:
        return program
    outs = tuple(known)
    values = evaluate(ClosedJaxpr(Jaxpr((), (), tuple(folded), outs), ()))
    literals = {v: Literal(x, v.aval) for v, x in zip(outs, values, strict=True)}

    def folded_to(eqn: Eqn) -> list[Atom] | None:
        return [literals[eqn.outputs[0]]] if eqn.outputs and eqn.outputs[0] in literals else None

    return _rewrite(program, folded_to)


def _literal_is(atom: Atom, number: float) -> bool:
    """Whether an atom is the literal ``number``, with its sign of zero."""
    if not isinstance(atom, Literal):
        return False
    value = float(atom.value)
    return value == number and bool(np.signbit(value)) == bool(np.signbit(number))


def _neutral(eqn: Eqn) -> Atom | None:
    """The operand that an equation returns unchanged, for every bit pattern, or None."""
    name, xs, out = eqn.primitive.name, eqn.inputs, eqn.outputs[0].aval
    if name in ("reshape", "broadcast_in_dim", "rev", "transpose", "slice") and xs[0].aval.shape == out.shape:
        trivial = {
            "reshape": lambda p: True,
            "broadcast_in_dim": lambda p: True,
            "rev": lambda p: not p["dimensions"],
            "transpose": lambda p: p["permutation"] == tuple(range(len(out.shape))),
            "slice": lambda p: True,
        }
        return xs[0] if trivial[name](eqn.params) else None
    if name == "convert_element_type" and xs[0].aval.dtype == out.dtype:
        return xs[0]
    if name in ("mul", "div") and _literal_is(xs[1], 1.0):
        return xs[0]
    if name == "mul" and _literal_is(xs[0], 1.0):
        return xs[1]
    zero = -0.0 if dtypes.is_float(out.dtype) else 0.0
    if name == "add" and _literal_is(xs[1], zero):
        return xs[0]
    if name == "add" and _literal_is(xs[0], zero):
        return xs[1]
    if name == "sub" and _literal_is(xs[1], 0.0):
        return xs[0]
    if name == "select_n" and len(xs) == 3 and xs[1] is xs[2]:
        return xs[1]
    return None


def simplify(program: ClosedJaxpr) -> ClosedJaxpr:
    """Remove operations that return an operand bit for bit: x * 1, x + (-0), x - 0, a reshape to the same shape."""

    def rule(eqn: Eqn) -> list[Atom] | None:
        same = _neutral(eqn)
        return [same] if same is not None and same.aval.shape == eqn.outputs[0].aval.shape else None

    return _rewrite(program, rule)


def join_common(program: ClosedJaxpr) -> ClosedJaxpr:
    """Compute equal subexpressions once. An optimization barrier's results are never equal to anything else."""
    known: dict[Any, list[Atom]] = {}

    def rule(eqn: Eqn) -> list[Atom] | None:
        if eqn.primitive.name == "optimization_barrier":
            return None
        inputs = tuple(a.key() if isinstance(a, Literal) else a for a in eqn.inputs)
        key = (eqn.primitive.name, tuple(sorted(eqn.params.items())), inputs)
        try:
            found = known.get(key)
        except TypeError:  # a param without a hash: leave the equation alone
            return None
        if found is None:
            known[key] = list(eqn.outputs)
        return found

    return _rewrite(program, rule)


def turn_products(program: ClosedJaxpr) -> ClosedJaxpr:
    """A matrix product that is only used transposed is computed that way: x * y is y * x to the last bit."""
    made = {e.outputs[0]: e for e in program.eqns if e.primitive.name == "dot_general"}
    uses, eqns = _uses(program), []
    for eqn in program.eqns:
        product = made.get(eqn.inputs[0]) if eqn.primitive.name == "transpose" and eqn.inputs else None  # type: ignore[arg-type]
        if product is not None and uses[eqn.inputs[0]] == 1 and eqn.params["permutation"] == _turned(product):
            (lc, rc), (lb, rb) = product.params["dimension_numbers"]
            params = {**product.params, "dimension_numbers": ((rc, lc), (rb, lb))}
            eqn = product.replace(inputs=product.inputs[::-1], outputs=eqn.outputs, params=params)
        eqns.append(eqn)
    if all(map(operator.is_, eqns, program.eqns)):
        return program
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns)), program.consts)


def _turned(product: Eqn) -> tuple[int, ...]:
    """The permutation of a product's axes that swaps the free axes of its operands."""
    (lc, _), (lb, _) = product.params["dimension_numbers"]
    batch, rank = len(lb), len(product.outputs[0].aval.shape)
    left = len(product.inputs[0].aval.shape) - batch - len(lc)
    return (*range(batch), *range(batch + left, rank), *range(batch, batch + left))


def spread_numbers(program: ClosedJaxpr) -> ClosedJaxpr:
    """Convert a Python number in each loop over an array that reads it, which costs nothing there, instead of in a
    kernel of its own. Each element meets the same converted number."""
    converted = {e.outputs[0]: e for e in program.eqns if _converts_a_number(e)}
    if not converted:
        return program
    spread: dict[tuple[Var, tuple[int, ...]], Var] = {}
    eqns: list[Eqn] = []

    def over(eqn: Eqn, shape: tuple[int, ...]) -> Var:
        (number,), (scalar,) = eqn.inputs, eqn.outputs
        found = spread.get((scalar, shape))
        if found is None:
            many = Var(number.aval.update(shape=shape))
            found = spread[scalar, shape] = Var(scalar.aval.update(shape=shape))
            params = {"shape": shape, "broadcast_dimensions": ()}
            eqns.append(Eqn(REGISTRY["broadcast_in_dim"], (number,), (many,), params, eqn.source))
            eqns.append(Eqn(eqn.primitive, (many,), (found,), eqn.params, eqn.source))
        return found

    for eqn in program.eqns:
        shape = eqn.outputs[0].aval.shape if eqn.outputs else ()
        if shape and eqn.primitive.family is Family.ELEMENTWISE:
            known = [converted.get(a) if isinstance(a, Var) else None for a in eqn.inputs]
            inputs = tuple(a if e is None else over(e, shape) for a, e in zip(eqn.inputs, known, strict=True))
            eqn = Eqn(eqn.primitive, inputs, eqn.outputs, eqn.params, eqn.source)
        eqns.append(eqn)
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns)), program.consts)


def _converts_a_number(eqn: Eqn) -> bool:
    if eqn.primitive.name != "convert_element_type" or not isinstance(eqn.inputs[0], Var):
        return False
    aval = eqn.inputs[0].aval
    return aval.shape == () and dtypes.is_number(aval.dtype, aval.weak_type)


@attrs.define
class _Padded:
    """A sum of parts that zeros continue along one axis: where each begins, and how much of the axis they are."""

    axis: int
    parts: list[tuple[int, Atom]]
    length: int


def lay_side_by_side(program: ClosedJaxpr) -> ClosedJaxpr:
    """A sum of arrays padded with zeros, which fill an axis and nowhere meet, is their concatenation.

    So are the cotangents of slices added up. An element is added to zeros alone: x + 0 is x but for -0 + 0, which is 0,
    and adding 0 once more changes nothing. So 0 is added once to each part.
    """
    if not any(e.primitive.name == "pad" for e in program.eqns):
        return program
    known: dict[Atom, _Padded] = {}
    uses, eqns = _uses(program), []
    for eqn in program.eqns:
        name, replaced = eqn.primitive.name, [eqn]
        if name == "pad" and (one := _padded(eqn)):
            known[eqn.outputs[0]] = one
        elif name == "add" and all(a in known and uses[a] == 1 for a in eqn.inputs):
            few, many = sorted((known.pop(a) for a in eqn.inputs), key=lambda x: len(x.parts))
            if few.axis == many.axis:
                many.parts += few.parts
                many.length += few.length
                known[eqn.outputs[0]] = many
                if many.length == eqn.outputs[0].aval.shape[many.axis]:
                    replaced = _side_by_side(eqn, many) or replaced
        eqns += replaced
    return ClosedJaxpr(program.jaxpr.replace(eqns=tuple(eqns)), program.consts)


def _padded(eqn: Eqn) -> _Padded | None:
    """What a padding with zeros along one axis is."""
    part, value = eqn.inputs
    axes = [a for a, config in enumerate(eqn.params["padding_config"]) if config != (0, 0, 0)]
    if len(axes) != 1 or not _literal_is(value, 0.0):
        return None
    low, high, interior = eqn.params["padding_config"][axes[0]]
    return _Padded(axes[0], [(low, part)], part.aval.shape[axes[0]]) if min(low, high) >= 0 == interior else None


def _side_by_side(total: Eqn, padded: _Padded) -> list[Eqn] | None:
    """The equations of a sum as a concatenation; None where parts meet."""
    eqns: list[Eqn] = []
    sums: list[Atom] = []
    end, dtype = 0, total.outputs[0].aval.dtype
    for low, part in sorted(padded.parts, key=lambda x: x[0]):
        if low != end:
            return None
        end += part.aval.shape[padded.axis]
        if dtypes.is_float(dtype):
            zero = Literal(0.0, ShapedArray((), dtype))
            eqns.append(Eqn(total.primitive, (part, zero), (Var(part.aval.strip_weak()),), {}, total.source))
            part = eqns[-1].outputs[0]
        sums.append(part)
    joined = Eqn(REGISTRY["concatenate"], tuple(sums), total.outputs, {"dimension": padded.axis}, total.source)
    return [*eqns, joined]


def _uses(program: ClosedJaxpr) -> dict[Atom, int]:
    """How often each value is read, as a result of the program too."""
    uses: dict[Atom, int] = {}
    for atom in (*(a for e in program.eqns for a in e.inputs), *program.jaxpr.outvars):
        uses[atom] = uses.get(atom, 0) + 1
    return uses


def drop_dead(program: ClosedJaxpr) -> ClosedJaxpr:
    """Remove equations whose results nobody needs, and constants that nobody reads."""
    live: set[Atom] = set(program.jaxpr.outvars)
    eqns: list[Eqn] = []
    for eqn in reversed(program.eqns):
        if not live.isdisjoint(eqn.outputs):
            eqns.append(eqn)
            live.update(eqn.inputs)
    kept = [i for i, v in enumerate(program.jaxpr.constvars) if v in live]
    if len(eqns) == len(program.eqns) and len(kept) == len(program.consts):
        return program
    jaxpr = program.jaxpr.replace(eqns=tuple(reversed(eqns)), constvars=tuple(program.jaxpr.constvars[i] for i in kept))
    return ClosedJaxpr(jaxpr, tuple(program.consts[i] for i in kept))


PASSES: tuple[Callable[[ClosedJaxpr], ClosedJaxpr], ...] = (
    drop_dead, simplify, join_common, turn_products, lay_side_by_side, spread_numbers, drop_dead,
)  # fmt: skip
