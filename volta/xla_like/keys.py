"""Programs over random keys, rewritten as programs over the integers that keys are in memory.

It is the first thing that happens to a program that is to be compiled, before complex numbers become pairs, so passes,
plans, kernels and backends after it know numbers only. A key is one integer, so shapes stay, and what moves, chooses or
compares keys does so with integers; only where words become keys or keys words is there something to write.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.extended import FRY, is_key
from volta.core.interp import use_trace
from volta.core.ir import Atom, ClosedJaxpr, Jaxpr, Var, subjaxprs
from volta.ops.base import bind_named, reshape_to
from volta.xla_like.recorder import Recorded, Recorder


def has_keys(program: ClosedJaxpr) -> bool:
    """Whether a value of a program, or of one nested in it, is an array of keys."""
    jaxpr = program.jaxpr
    made = [v for e in jaxpr.eqns for v in e.outputs]
    atoms: tuple[Atom, ...] = (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars, *made)
    return any(is_key(a.aval.dtype) for a in atoms) or any(has_keys(x) for e in jaxpr.eqns for x in subjaxprs(e.params))


def without_keys(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program over integers; its arguments, constants and results are the same bytes."""
    return _rewritten(program) if has_keys(program) else program


def _rewritten(program: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr, trace = program.jaxpr, Recorder()
    env: dict[Var, Atom] = {}

    def stored(var: Var) -> Var:
        found = env[var] = Var(var.aval.stored) if is_key(var.aval.dtype) else var
        return found

    def read(atom: Atom) -> Atom:
        return env[atom] if isinstance(atom, Var) else atom

    constvars, invars = (tuple(map(stored, vs)) for vs in (jaxpr.constvars, jaxpr.invars))
    with use_trace(trace):
        for eqn in jaxpr.eqns:
            inputs = tuple(map(read, eqn.inputs))
            if write := _WRITTEN.get(eqn.primitive.name):
                trace.source = eqn.source
                env[eqn.outputs[0]] = trace.atom(write(Recorded(trace, inputs[0])))
            else:
                params = {k: _with_nested(v) for k, v in eqn.params.items()}
                outputs = tuple(map(stored, eqn.outputs))
                trace.eqns.append(eqn.replace(inputs=inputs, outputs=outputs, params=params))
    outs = tuple(map(read, jaxpr.outvars))
    consts = tuple([x.stored() if is_key(x.aval.dtype) else x for x in program.consts])
    return ClosedJaxpr(Jaxpr(constvars, invars, tuple(trace.eqns), outs), consts)


def _with_nested(param: Any) -> Any:
    if isinstance(param, ClosedJaxpr):
        return without_keys(param)
    return tuple(map(_with_nested, param)) if type(param) is tuple else param


# -- words -------------------------------------------------------------------------------------------------------------

# The first word is the lower half: it lies first in memory, as NumPy lays out the words of a key.


def _words(key: Any) -> Any:
    high = bind_named("shift_right_logical", key, np.uint64(32))
    halves = [bind_named("convert_element_type", x, new_dtype=dtypes.uint32, weak_type=False) for x in (key, high)]
    shape = key.aval.shape
    return bind_named("concatenate", *(reshape_to(x, (*shape, 1)) for x in halves), dimension=len(shape))


def _key(words: Any) -> Any:
    *shape, _ = words.aval.shape
    start = (0,) * len(shape)
    low, high = (
        bind_named("convert_element_type", reshape_to(half, tuple(shape)), new_dtype=FRY.stored, weak_type=False)
        for half in (
            bind_named("slice", words, start_indices=(*start, k), limit_indices=(*shape, k + 1), strides=None)
            for k in (0, 1)
        )
    )
    return bind_named("or", low, bind_named("shift_left", high, np.uint64(32)))


_WRITTEN = {"random_unwrap": _words, "random_wrap": _key}
