"""Programs over random keys, rewritten as programs over their words.

It is the first thing that happens to a program that is to be compiled, before complex numbers become pairs, so passes,
plans, kernels and backends after it know numbers only. An array of keys is one of words with one more axis, the last,
which nothing touches: what moves or chooses keys does so along the other axes, what compares them compares all words.
Between keys and words there is nothing left to do, so a program over typed keys has the plan of that over raw ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.extended import is_key
from volta.core.interp import use_trace
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from volta.ops.base import bind_named, move_axis
from volta.xla_like.recorder import Recorded, Recorder


def has_keys(program: ClosedJaxpr) -> bool:
    """Whether a value of a program, or of one nested in it, is an array of keys."""
    jaxpr = program.jaxpr
    made = [v for e in jaxpr.eqns for v in e.outputs]
    atoms: tuple[Atom, ...] = (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars, *made)
    return any(is_key(a.aval.dtype) for a in atoms) or any(has_keys(x) for e in jaxpr.eqns for x in subjaxprs(e.params))


def without_keys(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program over words; its arguments, constants and results are the same bytes."""
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
            of_keys = [is_key(a.aval.dtype) for a in eqn.inputs]
            if any(subjaxprs(eqn.params)) or not any(of_keys) and eqn.primitive.name not in _SAME:
                params = {k: _with_nested(v) for k, v in eqn.params.items()}
                trace.eqns.append(eqn.replace(inputs=inputs, outputs=tuple(map(stored, eqn.outputs)), params=params))
            elif eqn.primitive.name in _SAME:
                env[eqn.outputs[0]] = inputs[0]
            else:
                trace.source = eqn.source
                made = _of_words(eqn, [Recorded(trace, a) for a in inputs], of_keys)
                env.update(zip(eqn.outputs, map(trace.atom, made), strict=True))
    outs = tuple(map(read, jaxpr.outvars))
    consts = tuple([x.stored() if is_key(x.aval.dtype) else x for x in program.consts])
    return ClosedJaxpr(Jaxpr(constvars, invars, tuple(trace.eqns), outs), consts)


def _with_nested(param: Any) -> Any:
    if isinstance(param, ClosedJaxpr):
        return without_keys(param)
    return tuple(map(_with_nested, param)) if type(param) is tuple else param


# -- equations ---------------------------------------------------------------------------------------------------------

_SAME = ("random_unwrap", "random_wrap")


def _of_words(eqn: Eqn, values: Sequence[Any], of_keys: Sequence[bool]) -> list[Any]:
    """The results of an equation that moves, chooses or compares keys: by its rule for a batch, which the words are."""
    name, primitive = eqn.primitive.name, eqn.primitive
    if name in _ALONG:
        params = _ALONG[name](values[0].aval.shape, **eqn.params)
        return [bind_named(name, values[0], **params)]
    if name in _UNCHANGED:
        out = primitive.bind(*values, **eqn.params)
        return list(out) if primitive.multiple_results else [out]
    words = next(x.aval.shape[-1] for x, k in zip(values, of_keys, strict=True) if k)
    dims = [x.aval.ndim - 1 if k else None for x, k in zip(values, of_keys, strict=True)]
    out, at = primitive.batch(values, dims, words, **eqn.params)
    outs, places = (out, at) if primitive.multiple_results else ([out], [at])
    found = []
    for x, d, var in zip(outs, places, eqn.outputs, strict=True):
        if d is None or is_key(var.aval.dtype):
            found.append(x if d is None else move_axis(x, d, var.aval.ndim))
        elif name in _JOINED:
            found.append(bind_named(_JOINED[name], x, axes=(d,)))
        else:  # sorted numbers beside keys, which are the same for each word
            first = bind_named("slice", x, **_box(x.aval.shape, d))
            found.append(bind_named("reshape", first, new_sizes=var.aval.shape))
    return found


_JOINED = {"eq": "reduce_and", "ne": "reduce_or"}
"""What compares keys, and how the answers of their words are joined."""

_UNCHANGED = ("concatenate", "copy", "optimization_barrier", "rev", "split", "stop_gradient")
"""What says nothing of axes after those that it means."""

_ALONG: dict[str, Callable[..., dict[str, Any]]] = {
    "broadcast_in_dim": lambda own, shape, broadcast_dimensions: {
        "shape": (*shape, own[-1]),
        "broadcast_dimensions": (*broadcast_dimensions, len(shape)),
    },
    "reshape": lambda own, new_sizes: {"new_sizes": (*new_sizes, own[-1])},
    "slice": lambda own, start_indices, limit_indices, strides: {
        "start_indices": (*start_indices, 0),
        "limit_indices": (*limit_indices, own[-1]),
        "strides": strides and (*strides, 1),
    },
    "transpose": lambda own, permutation: {"permutation": (*permutation, len(permutation))},
}
"""The params of what moves one operand, with the axis of words last: where these lie is what no batch rule promises."""


def _box(shape: Sequence[int], axis: int) -> dict[str, Any]:
    """The first of an axis."""
    start = (0,) * len(shape)
    limit = tuple(1 if d == axis else n for d, n in enumerate(shape))
    return {"start_indices": start, "limit_indices": limit, "strides": None}
