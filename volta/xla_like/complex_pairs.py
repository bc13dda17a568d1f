"""Programs over complex values, rewritten as programs over pairs of real ones.

It is the first thing that happens to a program that is to be compiled, so all passes, plans, kernels and backends after
it know real numbers only. What an operation means for pairs its record says (``volta.ops.complexes``).

At the boundary of a program a complex array lies as NumPy has it, each real part before its imaginary part: an argument
is an array of floats with one more axis of size 2, of which the parts are strided views; results are written so once,
at the end. Programs inside of the program (loops, choices) take and give both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import UnsupportedOperationError
from volta.core.interp import use_trace
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from volta.core.source import at_user_line
from volta.ops.base import bind_named, reshape_to
from volta.ops.complexes import Pair
from volta.ops.primitive import Family
from volta.xla_like.passes import Kept, inline_calls
from volta.xla_like.recorder import Recorded, Recorder


def has_complex(program: ClosedJaxpr) -> bool:
    """Whether a value of a program, or of one nested in it, is complex."""
    jaxpr = program.jaxpr
    own = (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)
    found = {a.aval.dtype for a in own} | {a.aval.dtype for e in jaxpr.eqns for a in (*e.inputs, *e.outputs)}
    return any(map(dtypes.is_complex, found)) or any(has_complex(x) for e in jaxpr.eqns for x in subjaxprs(e.params))


def to_pairs(program: ClosedJaxpr, kept: Kept | None = None) -> ClosedJaxpr:
    """The program over real values; complex arguments, constants and results have one more axis of size 2. Calls that
    are ``kept`` stay where what they take and give is real."""

    def stays(eqn: Eqn) -> bool:
        return kept is not None and kept(eqn) and not _has_complex_values(eqn)

    return _rewritten(program, stays, _of_whole, _joined)


def _has_complex_values(eqn: Eqn) -> bool:
    return any(dtypes.is_complex(a.aval.dtype) for a in (*eqn.inputs, *eqn.outputs))


def _nested(program: ClosedJaxpr, stays: Kept) -> ClosedJaxpr:
    """A program that another one carries, between whose arguments and results both parts of a complex one stand."""
    return _rewritten(program, stays, _of_parts, lambda value: [value.re, value.im])


Enter = Callable[["_PairRecorder", ShapedArray], tuple[list[Var], Pair]]
Leave = Callable[[Pair], list[Any]]


def _rewritten(program: ClosedJaxpr, stays: Kept, enter: Enter, leave: Leave) -> ClosedJaxpr:
    program = inline_calls(program, stays)
    jaxpr, trace = program.jaxpr, _PairRecorder(stays)
    env: dict[Var, Any] = {}

    def entered(variables: Sequence[Var], how: Enter) -> tuple[Var, ...]:
        found: list[Var] = []
        for var in variables:
            own = [var]
            if dtypes.is_complex(var.aval.dtype):
                own, env[var] = how(trace, var.aval)
            else:
                env[var] = Recorded(trace, var)
            found += own
        return tuple(found)

    def read(atom: Atom) -> Any:
        return env[atom] if isinstance(atom, Var) else trace.literal(atom)

    with use_trace(trace):
        constvars, invars = entered(jaxpr.constvars, _of_whole), entered(jaxpr.invars, enter)
        for eqn in jaxpr.eqns:
            trace.source = eqn.source
            env.update(zip(eqn.outputs, trace.apply(eqn, [read(a) for a in eqn.inputs]), strict=True))
        results = [read(a) for a in jaxpr.outvars]
        outs = [trace.atom(x) for value in results for x in (leave(value) if isinstance(value, Pair) else [value])]
    return ClosedJaxpr(Jaxpr(constvars, invars, tuple(trace.eqns), tuple(outs)), program.consts)


# -- the boundary of a program -----------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Whole(Pair):
    """The parts of an array that lies as NumPy has it."""

    whole: Any


def _of_whole(trace: _PairRecorder, aval: ShapedArray) -> tuple[list[Var], Pair]:
    """One array of floats with the parts along its last axis."""
    shape, start = aval.shape, (0,) * aval.ndim
    var = Var(ShapedArray((*shape, 2), dtypes.part_dtype(aval.dtype)))
    whole = Recorded(trace, var)
    parts = [
        bind_named("slice", whole, start_indices=(*start, k), limit_indices=(*shape, k + 1), strides=None)
        for k in (0, 1)
    ]
    return [var], _Whole(reshape_to(parts[0], shape), reshape_to(parts[1], shape), whole)


def _of_parts(trace: _PairRecorder, aval: ShapedArray) -> tuple[list[Var], Pair]:
    variables = [Var(ShapedArray(aval.shape, dtypes.part_dtype(aval.dtype))) for _ in ("re", "im")]
    return variables, Pair(*(Recorded(trace, v) for v in variables))


def _joined(value: Pair) -> list[Any]:
    """The parts side by side; an argument that is handed on is itself."""
    if isinstance(value, _Whole):
        return [value.whole]
    shape = value.shape
    sides = [reshape_to(x, (*shape, 1)) for x in (value.re, value.im)]
    return [bind_named("concatenate", *sides, dimension=len(shape))]


# -- equations ---------------------------------------------------------------------------------------------------------

_COUNTS = {"scan": ("num_consts", "num_carry"), "while": ("cond_nconsts", "body_nconsts"), "cond": ()}
"""Equations that carry programs, and the params that say how many operands are of a kind, from the first one on."""


class _PairRecorder(Recorder):
    """Writes the operations of rules for pairs down as equations."""

    def __init__(self, stays: Kept) -> None:
        super().__init__()
        self._stays = stays

    def literal(self, atom: Literal) -> Any:
        if not dtypes.is_complex(atom.aval.dtype):
            return Recorded(self, atom)
        aval = ShapedArray((), dtypes.part_dtype(atom.aval.dtype))
        return Pair(*(Recorded(self, Literal(x, aval)) for x in (atom.value.real, atom.value.imag)))

    def apply(self, eqn: Eqn, values: list[Any]) -> Sequence[Any]:
        """The results of an equation of the program that is rewritten."""
        complex_inside = any(map(has_complex, subjaxprs(eqn.params)))
        if not _has_complex_values(eqn) and (eqn.primitive.family is Family.CALL or not complex_inside):
            params = {k: _with_nested(v, self._stays) for k, v in eqn.params.items()} if complex_inside else eqn.params
            self.eqns.append(eqn.replace(inputs=tuple(map(self.atom, values)), params=params))
            return [Recorded(self, v) for v in eqn.outputs]
        if eqn.primitive.name in _COUNTS:
            return self._carrier(eqn, values)
        if eqn.primitive.pairs is None:
            raise _refusal(eqn)
        found = eqn.primitive.pairs(*values, **eqn.params)
        return found if eqn.primitive.multiple_results else [found]

    def _carrier(self, eqn: Eqn, values: Sequence[Any]) -> list[Any]:
        """A loop or choice with both parts of complex operands, in the place of these."""
        given = [[v.re, v.im] if isinstance(v, Pair) else [v] for v in values]
        params = {k: _with_nested(v, self._stays) for k, v in eqn.params.items()}
        start = 0
        for name in _COUNTS[eqn.primitive.name]:
            count = eqn.params[name]
            params[name] = sum(map(len, given[start : start + count]))
            start += count
        outs = iter(bind_named(eqn.primitive.name, *(x for xs in given for x in xs), **params))
        return [Pair(next(outs), next(outs)) if dtypes.is_complex(v.aval.dtype) else next(outs) for v in eqn.outputs]


def _with_nested(param: Any, stays: Kept) -> Any:
    if isinstance(param, ClosedJaxpr):
        return _nested(param, stays)
    return tuple([_with_nested(x, stays) for x in param]) if isinstance(param, tuple) else param


def _refusal(eqn: Eqn) -> UnsupportedOperationError:
    text = f"`{eqn.primitive.name}` takes no complex values: give it their real and imaginary parts, x.real and x.imag"
    return UnsupportedOperationError(at_user_line(text) if eqn.source is None else f"{text}\n{eqn.source.pointer()}")
