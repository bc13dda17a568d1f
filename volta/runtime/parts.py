"""Programs that call Python functions: what is between the calls is compiled, and the calls are made in their order.

The parts of such a program are programs of their own, through the gateway like any other, so they have the bits that
the whole would have. A loop that calls Python in its body, or a choice that does in a branch, is run iteration by
iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core.errors import UnsupportedOperationError
from volta.core.extended import is_key
from volta.core.interp import eval_trace, use_trace
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.ops.callbacks import callback_p, calls_python
from volta.runtime.array import ConcreteArray, as_array, intern_aval
from volta.runtime.devices import fetch
from volta.runtime.executable import Executable
from volta.xla_like.keys import without_keys
from volta.xla_like.passes import inline_calls

Env = dict[Var, Any]
Run = Callable[[Sequence[Any]], list[Any]]
Compile = Callable[[ClosedJaxpr], Run]
Prepare = Callable[[ClosedJaxpr], Run]
Look = Callable[[Eqn, Sequence[Any], Sequence[Any]], None]
"""Is told of an equation, its operands and its results."""


def in_parts(program: ClosedJaxpr) -> bool:
    """Whether a program calls Python functions, and so is run in parts."""
    return any(map(calls_python, program.eqns))


class Parts:
    """An executable of parts: call it with a list of arrays, get a list of arrays."""

    def __init__(self, program: ClosedJaxpr, name: str, level: DeterminismLevel, compile_part: Compile):
        self.name, self.level = name, level
        self.program = program
        self._run = prepared(program, compile_part)
        self._out_avals = program.out_avals

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        with use_trace(eval_trace()):
            outs = self._run(arrays)
        return [x.keyed(a.dtype) if is_key(a.dtype) else x for a, x in zip(self._out_avals, outs, strict=True)]

    def __getattr__(self, name: str) -> Any:
        """What an executable of one plan knows (``plan``, ``as_text``, ``peak_live_bytes``, …) is not there.

        Raises:
            UnsupportedOperationError: it is asked for.
        """
        if name != "plan" and (name.startswith("_") or not hasattr(Executable, name)):
            raise AttributeError(name)
        raise UnsupportedOperationError(
            at_user_line(
                f"{name}: `{self.name}` calls Python functions, so it is run in parts, with a plan each: there is no "
                "one plan to look at, and no code that could be called without Python"
            )
        )


def _literal(atom: Literal) -> ConcreteArray:
    return ConcreteArray.from_numpy(atom.value, weak_type=atom.aval.weak_type)


def _value(env: Env, atom: Atom) -> Any:
    return env[atom] if isinstance(atom, Var) else _literal(atom)


def prepared(closed: ClosedJaxpr, compile_part: Compile, look: Look | None = None) -> Run:
    """A function that runs the program in parts; with ``look``, of one equation each, which it is told of."""
    closed = inline_calls(without_keys(closed))
    jaxpr, consts = closed.jaxpr, [as_array(c).stored() for c in closed.consts]
    prepare = lambda inner: prepared(inner, compile_part, look)  # noqa: E731
    steps = _steps(jaxpr, compile_part, prepare) if look is None else _watched(jaxpr, compile_part, prepare, look)

    def run(arrays: Sequence[Any]) -> list[Any]:
        env: Env = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, [as_array(x).stored() for x in arrays], strict=True))
        for step in steps:
            step(env)
        return [_typed(_value(env, a), a) for a in jaxpr.outvars]

    return run


def _watched(jaxpr: Jaxpr, compile_part: Compile, prepare: Prepare, look: Look) -> list[Callable[[Env], None]]:
    def each(eqn: Eqn) -> Callable[[Env], None]:
        special = _SPECIAL.get(eqn.primitive.name)
        run = special(eqn, prepare) if special else _part((eqn,), frozenset(eqn.outputs), compile_part)

        def step(env: Env) -> None:
            run(env)
            look(eqn, [_value(env, a) for a in eqn.inputs], [env[v] for v in eqn.outputs])

        return step

    return [each(eqn) for eqn in jaxpr.eqns]


def _typed(x: Any, atom: Atom) -> Any:
    """A result in the type that the program says: whether it is weak is the program's to say."""
    if x.aval == atom.aval:
        return x
    return ConcreteArray.from_numpy(np.asarray(x), weak_type=atom.aval.weak_type)


def _steps(jaxpr: Jaxpr, compile_part: Compile, prepare: Prepare) -> list[Callable[[Env], None]]:
    """Runs of equations that call no Python are one compiled part each; between them stand the others."""
    later: set[Var] = {a for a in jaxpr.outvars if isinstance(a, Var)}
    steps: list[Callable[[Env], None]] = []
    part: list[Eqn] = []

    def close() -> None:
        if part:
            steps.append(_part(tuple(reversed(part)), frozenset(later_of_part[0]), compile_part))
        part.clear()

    later_of_part: list[set[Var]] = [set(later)]
    for eqn in reversed(jaxpr.eqns):
        if calls_python(eqn):
            close()
            steps.append(_SPECIAL[eqn.primitive.name](eqn, prepare))
            later.update(a for a in eqn.inputs if isinstance(a, Var))
        else:
            if not part:
                later_of_part[0] = set(later)
            part.append(eqn)
            later.update(a for a in eqn.inputs if isinstance(a, Var))
    close()
    steps.reverse()
    return steps


def _part(eqns: Sequence[Eqn], later: frozenset[Var], compile_part: Compile) -> Callable[[Env], None]:
    made = [v for e in eqns for v in e.outputs]
    outs = tuple(v for v in made if v in later)
    own = set(made)
    read = tuple(dict.fromkeys(a for e in eqns for a in e.inputs if isinstance(a, Var) and a not in own))
    executable = compile_part(ClosedJaxpr(Jaxpr((), read, tuple(eqns), outs), ()))

    def step(env: Env) -> None:
        env.update(zip(outs, executable([as_array(env[v]) for v in read]), strict=True))

    return step


def _call(eqn: Eqn, prepare: Prepare) -> Callable[[Env], None]:
    call = eqn.params["call"]

    def step(env: Env) -> None:
        arrays = [fetch(as_array(_value(env, a))).numpy() for a in eqn.inputs]
        outs = call.function(arrays)
        env.update({v: _result(x, v) for v, x in zip(eqn.outputs, outs, strict=True)})

    return step


def _result(x: np.ndarray, var: Var) -> ConcreteArray:
    out = ConcreteArray.from_numpy(x)
    return out if out.aval == var.aval else ConcreteArray.from_numpy(x, weak_type=intern_aval(var.aval).weak_type)


def _scan(eqn: Eqn, prepare: Prepare) -> Callable[[Env], None]:
    params = eqn.params
    body = prepare(params["jaxpr"])
    n_consts, n_carry, length = params["num_consts"], params["num_carry"], params["length"]

    def step(env: Env) -> None:
        given = [_value(env, a) for a in eqn.inputs]
        consts, carry = given[:n_consts], given[n_consts : n_consts + n_carry]
        read = [fetch(as_array(x)).numpy() for x in given[n_consts + n_carry :]]
        rows: list[list[np.ndarray]] = [[] for _ in eqn.outputs[n_carry:]]
        for i in reversed(range(length)) if params["reverse"] else range(length):
            outs = body([*consts, *carry, *(ConcreteArray.from_numpy(x[i]) for x in read)])
            carry = outs[:n_carry]
            for row, y in zip(rows, outs[n_carry:], strict=True):
                row.append(fetch(as_array(y)).numpy())
        env.update(zip(eqn.outputs[:n_carry], carry, strict=True))
        for var, row in zip(eqn.outputs[n_carry:], rows, strict=True):
            ordered = row[::-1] if params["reverse"] else row
            stacked = np.stack(ordered) if row else np.zeros(var.aval.shape, var.aval.dtype)
            env[var] = ConcreteArray.from_numpy(stacked)

    return step


def _while(eqn: Eqn, prepare: Prepare) -> Callable[[Env], None]:
    params = eqn.params
    condition, body = (prepare(params[key]) for key in ("cond_jaxpr", "body_jaxpr"))
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]

    def step(env: Env) -> None:
        given = [_value(env, a) for a in eqn.inputs]
        tested, used, carry = given[:n_cond], given[n_cond : n_cond + n_body], given[n_cond + n_body :]
        while bool(condition([*tested, *carry])[0]):
            carry = body([*used, *carry])
        env.update(zip(eqn.outputs, carry, strict=True))

    return step


def _cond(eqn: Eqn, prepare: Prepare) -> Callable[[Env], None]:
    branches = [prepare(b) for b in eqn.params["branches"]]

    def step(env: Env) -> None:
        index, *operands = [_value(env, a) for a in eqn.inputs]
        env.update(zip(eqn.outputs, branches[int(index)](operands), strict=True))

    return step


_SPECIAL: dict[str, Callable[[Eqn, Prepare], Callable[[Env], None]]] = {
    callback_p.name: _call,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
