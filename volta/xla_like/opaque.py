"""Calls for the nodes that are not fused: matrix products, copies into parts of a result, and library kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.policy import TENSOR_PRECISIONS, DeterminismLevel
from volta.xla_like.attention import (
    Array,
    Attention,
    AttentionSpec,
    KernelName,
    TensorSpec,
    fits_tensor_cores,
)
from volta.xla_like.constants import constant_of
from volta.xla_like.dot import (
    BLOCK_PRODUCT,
    Dot,
    DotSpec,
    DotStrides,
    Precision,
    canonical,
    column_as_row,
    fold_batch,
)
from volta.xla_like.kernels import Access, KernelCall, Load, LoopKernel, Store
from volta.xla_like.loops import pattern_of, unique
from volta.xla_like.nodes import Const, Iota, Node, Operand, Ref, Val
from volta.xla_like.offload import Move
from volta.xla_like.ordering import Scan, ScanSpec, Scatter, ScatterSpec, Sort, SortSpec
from volta.xla_like.panels import CHASE, PANEL, SWEEP, Panel, PanelSpec
from volta.xla_like.placing import NOWHERE, Place, parts, place_of
from volta.xla_like.precisions import allows_tensor_cores
from volta.xla_like.views import Ints, View, merge, prod, row_major


@attrs.frozen
class Context:
    """What lowering an opaque node may ask for."""

    buffer_of: Callable[[Val], int]
    new_temp: Callable[[ShapedArray], int]
    level: DeterminismLevel = DeterminismLevel.STRICT
    tensor_cores: bool = False  # whether the backend has kernels for precisions below float32
    placed: Mapping[Val, Place] = NOWHERE  # values that are computed where they belong


def opaque_calls(node: Node, ctx: Context) -> list[KernelCall]:
    calls = _HANDLERS[node.kind](node, ctx)
    return calls if node.source is None else [attrs.evolve(c, label=str(node.source)) for c in calls]


# -- matrix products ---------------------------------------------------------------------------------------------------


def _dot(node: Node, ctx: Context) -> list[KernelCall]:
    a, b = node.operands
    assert isinstance(a, Ref) and isinstance(b, Ref)
    out = node.outputs[0]
    precision: Precision = node.params.get("precision") or "default"
    tensor = precision in TENSOR_PRECISIONS
    if tensor and not allows_tensor_cores(node, precision, ctx.level, ctx.tensor_cores):
        precision = "default"  # a stronger promise
    if out.size == 0:
        return []
    return _product(a, b, out.dtype, precision, ctx.buffer_of(out), 0, ctx)


@lru_cache(256)
def _spec(lhs: np.dtype, rhs: np.dtype, out: np.dtype, precision: Precision) -> DotSpec:
    return DotSpec(lhs.name, rhs.name, out.name, precision)


def _product(
    a: Ref, b: Ref, dtype: np.dtype, precision: Precision, out: int, offset: int, ctx: Context
) -> list[KernelCall]:
    """``a`` [..., m, k] times ``b`` [..., n, k], row-major into ``out`` from byte ``offset`` on."""
    *batch, m, k = a.view.shape
    n, item = b.view.shape[-2], dtype.itemsize
    *a_batch, a_m, a_k = (s * a.dtype.itemsize for s in a.view.strides)
    *b_batch, b_n, b_k = (s * b.dtype.itemsize for s in b.view.strides)
    *out_batch, out_m, _ = (s * item for s in row_major((*batch, m, n)))
    folded = fold_batch(batch, a_batch, b_batch, out_batch)
    if folded is None:  # more than two batch dimensions that do not merge: one product for each index of the first
        calls: list[KernelCall] = []
        for i in range(batch[0]):
            x, y = (attrs.evolve(r, view=_at(r.view, i)) for r in (a, b))
            calls += _product(x, y, dtype, precision, out, offset + i * out_batch[0], ctx)
        return calls
    sizes, a_strides, b_strides, out_strides = folded
    spec = _spec(a.dtype, b.dtype, dtype, precision)
    lhs, rhs, result = (*a_strides, a_m, a_k), (*b_strides, b_k, b_n), (*out_strides, out_m, item)
    dot, strides = canonical(Dot(spec, sizes, m, n, k), DotStrides(lhs, rhs, result))
    transposed = column_as_row(dot, strides) if dot.name == "dot" else None
    if transposed is not None:
        (dot, strides), a, b = transposed, b, a
    left, right = (ctx.buffer_of(r.val) for r in (a, b))
    accesses = (
        Access(left, a.view.offset * a.dtype.itemsize, strides.lhs),
        Access(right, b.view.offset * b.dtype.itemsize, strides.rhs),
        Access(out, offset, strides.out),
    )
    return [KernelCall(dot, (), accesses, unique((left, right)), (out,))]


def _block_product(node: Node, ctx: Context) -> list[KernelCall]:
    """Rows (m, k) times the transpose of weights in blocks, whose bytes are (n, bytes of a row)."""
    x, packed = node.operands
    assert isinstance(x, Ref) and isinstance(packed, Ref)
    (m, k), (n, nbytes) = x.view.shape, packed.view.shape
    precision: Precision = node.params["precision"] or "default"
    if precision != "default" and not allows_tensor_cores(node, precision, ctx.level, ctx.tensor_cores):
        precision = "default"  # a stronger promise
    spec, item = DotSpec(x.dtype.name, node.params["format"], "float32", precision), x.dtype.itemsize
    assert spec.blocks is not None
    rows = spec.blocks.rows
    n, strides = n * rows, (0, 0, spec.blocks.chunk_bytes * rows, nbytes // rows)
    arrays = [(x, (0, 0, item * k, item)), (packed, strides)]
    accesses = [Access(ctx.buffer_of(a.val), 0, strides) for a, strides in arrays]
    out = ctx.buffer_of(node.outputs[0])
    accesses.append(Access(out, 0, (0, 0, 4 * n, 4)))
    reads = unique([ctx.buffer_of(a.val) for a, _ in arrays])
    return [KernelCall(Dot(spec, (1, 1), m, n, k), (), tuple(accesses), reads, (out,))]


def _at(view: View, i: int) -> View:
    """The view at index ``i`` of its leading dimension."""
    return View(view.shape[1:], view.strides[1:], view.offset + i * view.strides[0])


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(node: Node, ctx: Context) -> list[KernelCall]:
    """Operands as the primitive has them, heads with neighbouring elements; results are stored as (B, T, N, H)."""
    q, k, v, *others = node.operands
    name: KernelName = node.name  # type: ignore[assignment]
    params, backward = node.params, name != "attention"
    inputs = {Array.Q: q, Array.K: k, Array.V: v}
    if backward:
        inputs |= dict(zip((Array.DO, Array.M, Array.L, Array.DELTA), others, strict=False))
        others = others[4:]
    inputs |= {Array.START: others[0]} if params["started"] else {}
    inputs |= {Array.MASK: others[-1]} if params["masked"] else {}
    results = {
        "attention": (Array.OUT, Array.M, Array.L), "attention_dq": (Array.DQ,), "attention_dkv": (Array.DK, Array.DV),
    }[name]  # fmt: skip
    (b, n, t, h), (_, heads, s, _), hv = q.view.shape, k.view.shape, v.view.shape[3]
    spec = AttentionSpec(q.dtype.name, h, hv, params["causal"], params["started"], params["masked"])
    if not b * n * (s if name == "attention_dkv" else t) or all(val.size == 0 for val in node.outputs):
        return []
    asked = params.get("precision")
    if asked and allows_tensor_cores(node, asked, ctx.level, ctx.tensor_cores):
        if fits_tensor_cores(t, s, h, hv, params["scale"]):
            spec = TensorSpec(**attrs.asdict(spec), out=node.outputs[0].dtype.name)
    places: dict[Array, Access] = {}
    absent = Access(None, 0, ())
    for array, x in inputs.items():
        assert isinstance(x, Ref)
        strides = [i * x.dtype.itemsize * (n != 1) for i, n in zip(x.view.strides, x.view.shape, strict=True)]
        # an operand without elements has no memory, and no kernel reads it
        buffer, offset = (ctx.buffer_of(x.val), x.view.offset * x.dtype.itemsize) if x.val.size else (None, 0)
        places[array] = Access(buffer, offset, _strides(array, strides))
    for array, val in zip(results, node.outputs, strict=True):
        outer, inner, middle = (0, 0, 0)
        if len(val.shape) == 4:
            outer, inner, middle, _ = (i * val.dtype.itemsize for i in row_major(val.shape))
        places[array] = Access(ctx.buffer_of(val), 0, _strides(array, (outer, middle, inner)))
    op = Attention(name, spec, b, n, n // heads if heads else 1, t, s, params["scale"])
    reads = unique([i for a in inputs if (i := places[a].buffer) is not None])
    writes = tuple(ctx.buffer_of(val) for val in node.outputs)
    return [KernelCall(op, (), tuple(places.get(a, absent) for a in Array), reads, writes)]


def _strides(array: Array, strides: Sequence[int]) -> Ints:
    """The strides that an array's access has: rows of statistics have none."""
    if array in (Array.M, Array.L, Array.DELTA):
        return ()
    return tuple(strides[: {Array.START: 1, Array.MASK: 4}.get(array, 3)])


# -- copies into parts of a result -------------------------------------------------------------------------------------


def copy_call(
    source: Operand, shape: Ints, out: int, dtype: np.dtype, strides: Ints, offset: int, ctx: Context,
    starts: Sequence[tuple[Ref, int, int]] = (),
) -> list[KernelCall]:  # fmt: skip
    """Write a view into a strided part of a buffer (strides and offset in elements of it).

    ``starts`` are scalar integers added to the place, each as (value, stride, largest).
    """
    if prod(shape) == 0:
        return []
    assert isinstance(source, (Ref, Const))
    from_strides = source.view.strides if isinstance(source, Ref) else (0,) * len(shape)
    dims, (read, write) = merge(shape, [from_strides, strides])
    if not dims:
        dims, read, write = (1,), (0,), (0,)
    body: list[Any] = []
    accesses: list[Access] = []
    reads: list[int] = []
    for value, _, _ in starts:
        body.append(Load(value.dtype, "0"))
        accesses.append(Access(ctx.buffer_of(value.val), value.view.offset * value.dtype.itemsize, (0,) * len(dims)))
        reads.append(ctx.buffer_of(value.val))
    if isinstance(source, Const):
        instr, bits = constant_of(source.value, dtype, "copy")
        body.append(instr)
        accesses += [] if bits is None else [Access(None, bits, (0,) * len(dims))]
    else:
        size = source.dtype.itemsize
        body.append(Load(source.dtype, pattern_of(read[-1], dims[-1])))
        accesses.append(Access(ctx.buffer_of(source.val), source.view.offset * size, tuple(s * size for s in read)))
        reads.append(ctx.buffer_of(source.val))
    terms = tuple(range(len(starts)))
    kernel = LoopKernel(
        "map", len(dims), tuple(body), (Store(len(body) - 1, dtype, pattern_of(write[-1], dims[-1]), "elem", 0, terms),)
    )
    item = dtype.itemsize
    moved = tuple((s * item, top) for _, s, top in starts)
    accesses.append(Access(out, offset * item, tuple(s * item for s in write), moved))
    return [KernelCall(kernel, dims, tuple(accesses), tuple(dict.fromkeys(reads)), (out,))]


def written(x: Operand, buffer: int, shape: Ints, dtype: np.dtype, ctx: Context) -> list[KernelCall]:
    """Write an operand into the whole of a buffer; in place, where the operand is that memory and nobody else's."""
    calls = copy_call(x, shape, buffer, dtype, row_major(shape), 0, ctx)
    if isinstance(x, Ref) and x.is_whole:
        calls = [attrs.evolve(c, inplace=((ctx.buffer_of(x.val), buffer),)) for c in calls]
    return calls


def _concatenate(node: Node, ctx: Context) -> list[KernelCall]:
    out, calls = node.outputs[0], []
    for x, part in zip(node.operands, parts(node, place_of(out, ctx.placed).view), strict=True):
        if not isinstance(x, Ref) or x.val not in ctx.placed:
            calls += copy_call(x, part.shape, ctx.buffer_of(out), out.dtype, part.strides, part.offset, ctx)
    return calls


def _pad(node: Node, ctx: Context) -> list[KernelCall]:
    x, value = node.operands
    out = node.outputs[0]
    strides, buffer = row_major(out.shape), ctx.buffer_of(out)
    fill = attrs.evolve(value, view=value.view.broadcast(out.shape, ()))
    calls = copy_call(fill, out.shape, buffer, out.dtype, strides, 0, ctx)
    # Negative padding cuts: keep the elements that land inside.
    start, limit, steps, place = [], [], [], []
    for n, m, (low, _, interior) in zip(x.view.shape, out.shape, node.params["padding_config"], strict=True):
        step = interior + 1
        a = max(0, -(low // step))  # first element with low + a * step >= 0
        b = min(n, -(-(m - low) // step)) if m > low else 0
        start.append(a)
        limit.append(max(a, b))
        steps.append(step)
        place.append(low + a * step)
    part = attrs.evolve(x, view=x.view.slice(tuple(start), tuple(limit), None))
    offset = sum(p * s for p, s in zip(place, strides, strict=True))
    stepped = tuple(s * k for s, k in zip(strides, steps, strict=True))
    return calls + copy_call(part, part.view.shape, buffer, out.dtype, stepped, offset, ctx)


def _dynamic_update_slice(node: Node, ctx: Context) -> list[KernelCall]:
    x, update, *starts = node.operands
    out = node.outputs[0]
    strides, buffer = row_major(out.shape), ctx.buffer_of(out)
    calls = written(x, buffer, out.shape, out.dtype, ctx)
    places = zip(node.params["moving"], starts, strict=True)
    moving = [(s, strides[d], out.shape[d] - update.view.shape[d]) for d, s in places]
    at = sum(start * strides[d] for d, start in node.params["known"])
    return calls + copy_call(update, update.view.shape, buffer, out.dtype, strides, at, ctx, moving)  # type: ignore[arg-type]


# -- library kernels ---------------------------------------------------------------------------------------------------


def _rows(x: Operand) -> tuple[int, int]:
    shape = x.view.shape
    return prod(shape[:-1]), shape[-1]


def _scan(node: Node, ctx: Context) -> list[KernelCall]:
    x, out = node.operands[0], node.outputs[0]
    assert isinstance(x, Ref)
    rows, n = _rows(x)
    if out.size == 0:
        return []
    a, b = ctx.buffer_of(x.val), ctx.buffer_of(out)
    scan = Scan(ScanSpec(node.name, out.dtype, node.params["reverse"]), rows, n)
    accesses = (_contiguous(a, (rows, n), out.dtype), _contiguous(b, (rows, n), out.dtype))
    return [KernelCall(scan, (), accesses, (a,), (b,))]


def _contiguous(buffer: int, shape: Ints, dtype: np.dtype) -> Access:
    """The whole of a buffer as an array of a shape."""
    return Access(buffer, 0, tuple(n * dtype.itemsize for n in row_major(shape)))


def _sort(node: Node, ctx: Context) -> list[KernelCall]:
    if node.outputs[0].size == 0:
        return []
    rows, n = _rows(node.operands[0])
    spec = SortSpec(tuple(v.dtype for v in node.outputs), node.params["num_keys"], node.params["positions"])
    arrays = [x.val for x in node.operands if isinstance(x, Ref)]
    reads, writes = (tuple(map(ctx.buffer_of, vals)) for vals in (arrays, node.outputs))
    pairs = zip((*reads, *writes), (*arrays, *node.outputs), strict=True)
    accesses = tuple(_contiguous(b, (rows, n), v.dtype) for b, v in pairs)
    return [KernelCall(Sort(spec, rows, n), (), accesses, tuple(dict.fromkeys(reads)), writes)]


def _scatter(node: Node, ctx: Context) -> list[KernelCall]:
    """Operands: table [B, S, W] (or a constant), updates [B, I, W], targets [B, I] (int64, −1: dropped; or bare)."""
    table, updates, targets = (x for x in node.operands)
    out = node.outputs[0]
    assert not isinstance(table, Iota) and isinstance(updates, Ref) and isinstance(targets, Ref)
    batch, slots, width, count = node.params["sizes"]
    buffer = ctx.buffer_of(out)
    if out.size == 0:
        return []
    calls = written(table, buffer, out.shape, out.dtype, ctx)
    if updates.val.size == 0:
        return calls
    t, u = ctx.buffer_of(targets.val), ctx.buffer_of(updates.val)
    scatter = Scatter(ScatterSpec(node.params["op"], out.dtype), batch, slots, width, count)
    accesses = (
        _contiguous(u, (batch, count, width), out.dtype),
        _contiguous(t, (batch, count), targets.dtype),
        _contiguous(buffer, (batch, slots, width), out.dtype),
    )
    return [*calls, KernelCall(scatter, (), accesses, (u, t, buffer), (buffer,))]


def _panel(node: Node, ctx: Context) -> list[KernelCall]:
    """Its program's operands and results as they are, each an array of its own."""
    arrays = [x for x in node.operands if isinstance(x, Ref)]
    batch, width, length = node.outputs[0].shape
    reads, writes = [ctx.buffer_of(x.val) for x in arrays], [ctx.buffer_of(v) for v in node.outputs]
    vals = (*(x.val for x in arrays), *node.outputs)
    accesses = tuple(_contiguous(i, v.shape, v.dtype) for i, v in zip((*reads, *writes), vals, strict=True))
    spec = PanelSpec(node.params["kind"], node.outputs[0].dtype, node.params["unit"])
    inplace = tuple(zip(reads, writes, strict=False)) if spec.kind in (CHASE, SWEEP) else ()
    return [KernelCall(Panel(spec, batch, width, length), (), accesses, unique(reads), tuple(writes), inplace=inplace)]


def _move(node: Node, ctx: Context) -> list[KernelCall]:
    """Whole values, from one memory to the other."""
    (x,), out = node.operands, node.outputs[0]
    assert isinstance(x, Ref)
    source, target = ctx.buffer_of(x.val), ctx.buffer_of(out)
    move = Move(node.params["to"], out.nbytes)
    return [KernelCall(move, (), (Access(source, 0, ()), Access(target, 0, ())), (source,), (target,))]


_HANDLERS: dict[str, Callable[[Node, Context], list[KernelCall]]] = {
    "dot_general": _dot,
    BLOCK_PRODUCT: _block_product,
    **dict.fromkeys(("attention", "attention_dq", "attention_dkv"), _attention),
    PANEL: _panel,
    "move": _move,
    "concatenate": _concatenate,
    "pad": _pad,
    "dynamic_update_slice": _dynamic_update_slice,
    "sort": _sort,
    "scatter": _scatter,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _scan),
}
