"""Primitives that move, reduce, contract, index and sort, in StableHLO's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.ir import Eqn
from volta.core.policy import TENSOR_PRECISIONS
from volta.programs.stablehlo.elementwise import applied, choose, like
from volta.programs.stablehlo.text import Value, Writer, fields, ints, tensor
from volta.xla_like.kernels import fill_value

# -- movement ----------------------------------------------------------------------------------------------------------


def _slice(w: Writer, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Value:
    attributes = f"start_indices = {ints(starts)}, limit_indices = {ints(limits)}, strides = {ints(strides)}"
    shape = [max(0, -(-(b - a) // s)) for a, b, s in zip(starts, limits, strides, strict=True)]
    return w.operation("stablehlo.slice", [x], tensor(shape, x.dtype), attributes)


def _sliced(
    w: Writer, eqn: Eqn, x: Value, *, start_indices: Sequence[int], limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> list[Value]:  # fmt: skip
    return [_slice(w, x, start_indices, limit_indices, strides or [1] * len(start_indices))]


def _split(w: Writer, eqn: Eqn, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    ends = np.cumsum([0, *sizes]).tolist()
    found = []
    for low, high in zip(ends, ends[1:], strict=False):
        starts, limits = [0] * len(x.shape), list(x.shape)
        starts[axis], limits[axis] = low, high
        found.append(_slice(w, x, starts, limits, [1] * len(starts)))
    return found


def _pad(w: Writer, eqn: Eqn, x: Value, value: Value, *, padding_config: Sequence[Sequence[int]]) -> list[Value]:
    low, high, inside = (ints([p[i] for p in padding_config]) for i in range(3))
    attributes = f"edge_padding_low = {low}, edge_padding_high = {high}, interior_padding = {inside}"
    return [w.operation("stablehlo.pad", [x, value], eqn.outputs[0].aval, attributes)]


def _simple(name: str, attributes: Callable[..., str]) -> Callable[..., list[Value]]:
    def write(w: Writer, eqn: Eqn, *operands: Value, **params: Any) -> list[Value]:
        return w.operations(f"stablehlo.{name}", operands, [v.aval for v in eqn.outputs], attributes(**params))

    return write


def _broadcast(
    w: Writer, eqn: Eqn, x: Value, *, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> list[Value]:
    return [w.spread(x, shape, broadcast_dimensions)]


def _dynamic_slice(w: Writer, eqn: Eqn, x: Value, *starts: Value, **params: Any) -> list[Value]:
    out = eqn.outputs[0].aval
    same = [w.convert(s, np.int64) for s in starts]
    return [w.operation("stablehlo.dynamic_slice", [x, *same], out, f"slice_sizes = {ints(out.shape)}")]


def _dynamic_update_slice(w: Writer, eqn: Eqn, x: Value, update: Value, *starts: Value) -> list[Value]:
    same = [w.convert(s, np.int64) for s in starts]
    return [w.operation("stablehlo.dynamic_update_slice", [x, update, *same], x.aval)]


# -- reductions and products -------------------------------------------------------------------------------------------


def _combines(name: str) -> Callable[[Writer, Value, Value], list[Value]]:
    return lambda w, x, y: [applied(w, name, x, y)]


def reduced(w: Writer, x: Value, axes: Sequence[int], name: str, nothing: Any) -> Value:
    """A reduction by an operation of StableHLO's, from what it gives for no elements."""
    one = tensor((), x.dtype)
    out = tensor([n for i, n in enumerate(x.shape) if i not in axes], x.dtype)
    body = ((one, one), lambda a, b: _combines(name)(w, a, b))
    start = w.constant(nothing, x.dtype)
    return w.operations("stablehlo.reduce", [x, start], [out], f"dimensions = {ints(axes)}", [body])[0]


_REDUCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "reduce_and": ("and", lambda dtype: dtype == np.bool_ or dtypes.highest(dtype) if dtype.kind in "bu" else -1),
    "reduce_max": ("maximum", dtypes.lowest),
    "reduce_min": ("minimum", dtypes.highest),
    "reduce_or": ("or", lambda dtype: 0),
    "reduce_prod": ("multiply", lambda dtype: 1),
    "reduce_sum": ("add", lambda dtype: 0),
}


def _reduction(name: str) -> Callable[..., list[Value]]:
    word, nothing = _REDUCTIONS[name]
    return lambda w, eqn, x, *, axes: [reduced(w, x, axes, word, nothing(x.dtype))] if axes else [x]


def _extreme_place(word: str, nothing: Callable[[Any], Any]) -> Callable[..., list[Value]]:
    def write(w: Writer, eqn: Eqn, x: Value, *, axis: int, index_dtype: Any) -> list[Value]:
        rest = [i for i in range(len(x.shape)) if i != axis]
        best = w.spread(reduced(w, x, (axis,), word, nothing(x.dtype)), x.shape, rest)
        won = applied(w, "or", w.compare(x, best, "EQ"), w.compare(x, x, "NE"))  # NaN wins
        places = w.places(x.shape, axis)
        first = reduced(w, choose(w, won, places, like(w, places, x.shape[axis])), (axis,), "minimum", x.shape[axis])
        return [w.convert(first, index_dtype)]

    return write


def _dot_general(
    w: Writer, eqn: Eqn, x: Value, y: Value, *, dimension_numbers: Any, precision: Any = None, **params: Any
) -> list[Value]:
    (left, right), (left_batch, right_batch) = dimension_numbers
    numbers = fields(
        "dot", lhs_batching_dimensions=left_batch, rhs_batching_dimensions=right_batch,
        lhs_contracting_dimensions=left, rhs_contracting_dimensions=right,
    )  # fmt: skip
    word = "DEFAULT" if precision in TENSOR_PRECISIONS else "HIGHEST"
    attributes = (
        f"dot_dimension_numbers = {numbers}, precision_config = [{', '.join([f'#stablehlo<precision {word}>'] * 2)}]"
    )
    return [w.operation("stablehlo.dot_general", [x, y], eqn.outputs[0].aval, attributes)]


def _cumulative(word: str, nothing: Callable[[Any], Any]) -> Callable[..., list[Value]]:
    def write(w: Writer, eqn: Eqn, x: Value, *, axis: int, reverse: bool) -> list[Value]:
        rank, n = len(x.shape), x.shape[axis]
        if not n:
            return [x]
        ones = [1] * rank
        window, low, high = list(ones), [0] * rank, [0] * rank
        window[axis] = n
        (high if reverse else low)[axis] = n - 1
        pairs = np.array([low, high]).T
        attributes = (
            f"window_dimensions = {ints(window)}, window_strides = {ints(ones)}, base_dilations = {ints(ones)}, "
            f"window_dilations = {ints(ones)}, padding = dense<{pairs.tolist()}> : tensor<{rank}x2xi64>"
        )
        one = tensor((), x.dtype)
        start = w.constant(nothing(x.dtype), x.dtype)
        body = ((one, one), lambda a, b: _combines(word)(w, a, b))
        return w.operations("stablehlo.reduce_window", [x, start], [x.aval], attributes, [body])

    return write


# -- indices and order -------------------------------------------------------------------------------------------------


def _positions(w: Writer, indices: Sequence[Value], batch_dims: int, sizes: Sequence[int], clip: bool) -> Value:
    """Index arrays side by side, with the positions of batch axes before them; int64."""
    shape = indices[0].shape
    found = [w.places(shape, d) for d in range(batch_dims)]
    for x, size in zip(indices, sizes, strict=True):
        if x.dtype == np.uint64:  # the large ones stay large
            x = applied(w, "minimum", x, like(w, x, 2**63 - 1))
        x = w.convert(x, np.int64)
        if clip:
            x = w.operation("stablehlo.clamp", [like(w, x, 0), x, like(w, x, max(0, size - 1))], x.aval)
        found.append(x)
    wide = [w.reshape(x, (*shape, 1)) for x in found]
    if len(wide) == 1:
        return wide[0]
    attributes = f"dimension = {len(shape)} : i64"
    return w.operation("stablehlo.concatenate", wide, tensor((*shape, len(wide)), np.int64), attributes)


def _gather(
    w: Writer, eqn: Eqn, x: Value, *indices: Value, axes: Sequence[int], batch_dims: int, mode: str
) -> list[Value]:
    out, shape = eqn.outputs[0].aval, indices[0].shape
    where = _positions(w, indices, batch_dims, [x.shape[a] for a in axes], mode == "clip")
    picked = [*range(batch_dims), *axes]
    numbers = fields(
        "gather", offset_dims=range(len(shape), len(out.shape)), collapsed_slice_dims=picked, start_index_map=picked,
        index_vector_dim=len(shape),
    )  # fmt: skip
    sizes = ints([1 if d in picked else n for d, n in enumerate(x.shape)])
    if 0 in [x.shape[d] for d in picked]:  # nothing can be picked
        found = like(w, Value("", out), 0)
    else:
        found = w.operation(
            "stablehlo.gather", [x, where], out, f"dimension_numbers = {numbers}, slice_sizes = {sizes}"
        )
    if mode == "clip":
        return [found]
    inside = _inside(w, where, [x.shape[d] for d in picked], out)
    return [choose(w, inside, found, like(w, found, fill_value(out.dtype, mode)))]


def _inside(w: Writer, where: Value, sizes: Sequence[int], out: ShapedArray) -> Value:
    """Which elements of a result come from positions that are there."""
    rank = len(where.shape) - 1
    limits = w.spread(w.constant(sizes, np.int64), where.shape, (rank,))
    good = applied(w, "and", w.compare(where, like(w, where, 0), "GE"), w.compare(where, limits, "LT"))
    return w.spread(reduced(w, good, (rank,), "and", True), out.shape, range(rank))


def _scatter(
    w: Writer, eqn: Eqn, x: Value, updates: Value, *indices: Value, axes: Sequence[int], batch_dims: int, mode: str,
    op: str,
) -> list[Value]:  # fmt: skip
    shape = indices[0].shape
    where = _positions(w, indices, batch_dims, [x.shape[a] for a in axes], mode == "clip")
    picked = [*range(batch_dims), *axes]
    numbers = fields(
        "scatter", update_window_dims=range(len(shape), len(updates.shape)), inserted_window_dims=picked,
        scatter_dims_to_operand_dims=picked, index_vector_dim=len(shape),
    )  # fmt: skip
    one = tensor((), x.dtype)
    word = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}.get(op)
    body = ((one, one), lambda old, new: [new] if word is None else _combines(word)(w, old, new))
    attributes = f"scatter_dimension_numbers = {numbers}, indices_are_sorted = false, unique_indices = false"
    return w.operations("stablehlo.scatter", [x, where, updates], [x.aval], attributes, [body])


def _sort(w: Writer, eqn: Eqn, *xs: Value, dimension: int, is_stable: bool, num_keys: int) -> list[Value]:
    pairs = [tensor((), x.dtype) for x in xs for _ in range(2)]

    def before(*found: Value) -> list[Value]:
        less: Value | None = None
        keys: list[tuple[Value, Value]] = []
        for i in range(num_keys):
            keys += zip(w.parts(found[2 * i]), w.parts(found[2 * i + 1]), strict=True)
        for a, b in reversed(keys):
            first = w.compare(a, b, "LT")
            same = w.compare(a, b, "EQ")
            if dtypes.is_float(a.dtype):  # NaN is behind all numbers
                number, nan, other = w.compare(a, a, "EQ"), w.compare(b, b, "NE"), w.compare(a, a, "NE")
                first = applied(w, "or", first, applied(w, "and", number, nan))
                same = applied(w, "or", same, applied(w, "and", other, nan))
            less = first if less is None else applied(w, "or", first, applied(w, "and", same, less))
        assert less is not None
        return [less]

    attributes = f"dimension = {dimension} : i64, is_stable = true"
    return w.operations("stablehlo.sort", xs, [v.aval for v in eqn.outputs], attributes, [(pairs, before)])


WRITERS: dict[str, Callable[..., list[Value]]] = {
    **{name: _reduction(name) for name in _REDUCTIONS},
    "argmax": _extreme_place("maximum", dtypes.lowest),
    "argmin": _extreme_place("minimum", dtypes.highest),
    "broadcast_in_dim": _broadcast,
    "concatenate": _simple("concatenate", lambda dimension: f"dimension = {dimension} : i64"),
    "cummax": _cumulative("maximum", dtypes.lowest),
    "cummin": _cumulative("minimum", dtypes.highest),
    "cumprod": _cumulative("multiply", lambda dtype: 1),
    "cumsum": _cumulative("add", lambda dtype: 0),
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "iota": _simple("iota", lambda dimension, **rest: f"iota_dimension = {dimension} : i64"),
    "optimization_barrier": _simple("optimization_barrier", lambda: ""),
    "pad": _pad,
    "reshape": _simple("reshape", lambda **rest: ""),
    "rev": _simple("reverse", lambda dimensions: f"dimensions = {ints(dimensions)}"),
    "scatter": _scatter,
    "slice": _sliced,
    "sort": _sort,
    "split": _split,
    "transpose": _simple("transpose", lambda permutation: f"permutation = {ints(permutation)}"),
}
"""A primitive's text: ``write(writer, equation, *operands, **params)``."""
