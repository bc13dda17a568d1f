"""The passes of a kernel with reductions, and the kernel that finishes a reduction by blocks."""

from __future__ import annotations

import attrs
from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value, compute_dtype, item_size
from volta.emit.loops import I64, for_range, load_arg, load_pointer, new_kernel, offset
from volta.emit.reducers import BlockTree, Reducer, State
from volta.xla_like.kernels import CombineKernel, Reduce
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
        out.append(Pass(reduces, e.pass_values(phase, targets), stores, reducers))
    return out


def result_of(e: BodyEmitter, p: Pass, i: int, state: State) -> Value:
    """A finished reduction as a value of its dtype: what the kernel goes on with is what it would have stored."""
    x, value = e.kernel.body[i], p.reducers[i].result(state)
    assert isinstance(x, Reduce)
    if x.dtype.name in ("float16", "bfloat16") and not p.reducers[i].is_arg:
        return Builder(e.b, value.builder.lanes).round_to_half(value, x.dtype.name)
    return value


def build_combine(module: ir.Module, name: str, kernel: CombineKernel) -> ir.Function:
    """Add the function that finishes a reduction. Args: rows, blocks, partial results [blocks, rows]…, out."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    reducer = Reducer(kernel.kind, compute_dtype(kernel.dtype.name))
    rows, blocks = load_arg(b, args, 0), load_arg(b, args, 1)
    partials = [load_pointer(b, args, 2 + p) for p in range(len(reducer.state_dtypes))]
    out = load_pointer(b, args, 2 + len(partials))
    tree, one = BlockTree(b, reducer, 1), Builder(b, 1)
    with for_range(b, begin, end) as row:
        tree.start()
        with for_range(b, 0, blocks) as block:
            at = b.add(b.mul(block, rows), row)
            state = tuple(
                one.load(offset(b, pointer, b.mul(at, I64(item_size(d)))), d)
                for pointer, d in zip(partials, reducer.state_dtypes, strict=True)
            )
            tree.push(state, block)
        result = reducer.result(tree.finish())
        dtype = kernel.out_dtype.name
        if result.dtype != compute_dtype(dtype):
            result = one.cast(result, dtype)
        one.store(result, offset(b, out, b.mul(row, I64(kernel.out_dtype.itemsize))), dtype)
    b.ret_void()
    return function
