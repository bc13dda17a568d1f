"""The passes of a kernel with reductions."""

from __future__ import annotations

import attrs

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.reducers import Reducer, State
from volta.xla_like.kernels import Reduce
from volta.xla_like.phases import store_pass, targets_of


@attrs.define(eq=False)
class Pass:
    """One pass over the reduced dimension: what it reduces, computes and stores."""

    reduces: list[int]
    which: list[int]
    stores: list[int]  # numbers of the kernel's stores
    reducers: dict[int, Reducer]


def passes_of(e: BodyEmitter) -> list[Pass]:
    kernel, a = e.kernel, e.analysis
    elem = [s.value for s in kernel.stores if s.level == "elem"]
    writes_in = store_pass(kernel.body, a, elem)
    out = []
    for phase in range(a.last + 1):
        targets = targets_of(kernel.body, a, elem, phase)
        reduces = [i for i, x in enumerate(kernel.body) if isinstance(x, Reduce) and a.phase[x.arg] == phase]
        stores = [k for k, s in enumerate(kernel.stores) if s.level == "elem"] if phase == writes_in else []
        reducers = {}
        for i in reduces:
            x = kernel.body[i]
            assert isinstance(x, Reduce)
            reducers[i] = Reducer(x.kind, compute_dtype(x.dtype.name))
        out.append(Pass(reduces, e.pass_values(targets), stores, reducers))
    return out


def result_of(e: BodyEmitter, p: Pass, i: int, state: State) -> Value:
    """A finished reduction as a value of its dtype: what the kernel goes on with is what it would have stored."""
    x, value = e.kernel.body[i], p.reducers[i].result(state)
    assert isinstance(x, Reduce)
    if x.dtype.name in ("float16", "bfloat16") and not p.reducers[i].is_arg:
        return Builder(e.b, value.builder.lanes).round_to_half(value, x.dtype.name)
    return value
