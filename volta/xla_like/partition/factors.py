"""How each primitive may be cut: one rule a primitive, in factors.

A factor is an axis of the work along which the parts have nothing to do with each other: a dimension of some operands
and of some results, which are cut together. A dimension that is in no factor must be whole on every rank, so a
primitive without a rule has its operands gathered, which is always right. A factor that ``reduces`` is a dimension that
goes: its parts are joined as the bit contract says (`sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.avals import Shape
from volta.core.ir import Eqn
from volta.ops.primitive import Family

DimFactor = tuple[int, int]
"""A dimension, and how many of its elements are one element of the factor."""


@attrs.frozen
class Factor:
    size: int
    operands: tuple[DimFactor | None, ...]
    results: tuple[DimFactor | None, ...]
    reduces: bool = False


def factors_of(eqn: Eqn) -> list[Factor]:
    """The factors of an equation; those of size 0 or 1 cannot be cut, and are left out."""
    rule = _RULES.get(eqn.primitive.name, _FAMILIES.get(eqn.primitive.family))
    if rule is None:
        return []
    return [f for f in rule(eqn, *(a.aval.shape for a in eqn.inputs)) if f.size > 1]


Rule = Callable[..., list[Factor]]


def _along(eqn: Eqn, size: int, operands: Sequence[int | None], results: Sequence[int | None], **more: Any) -> Factor:
    return Factor(
        size, tuple(None if d is None else (d, 1) for d in operands),
        tuple(None if d is None else (d, 1) for d in results), **more,
    )  # fmt: skip


# -- elementwise and movement ------------------------------------------------------------------------------------------


def _elementwise(eqn: Eqn, *shapes: Shape) -> list[Factor]:
    out = eqn.outputs[0].aval.shape
    return [_along(eqn, n, [d if shape else None for shape in shapes], [d]) for d, n in enumerate(out)]


def _same_but(*kept: int) -> Callable[[Eqn, Sequence[Shape]], list[Factor]]:
    def rule(eqn: Eqn, shapes: Sequence[Shape]) -> list[Factor]:
        """Operands and results have all dimensions in common; some must be whole."""
        found = []
        for d, n in enumerate(shapes[0]):
            if d not in kept:
                found.append(_along(eqn, n, [d if shape else None for shape in shapes], [d] * len(eqn.outputs)))
        return found

    return rule


def _along_axis(name: str) -> Rule:
    """Operations along one axis, which a param names."""
    return lambda eqn, *shapes: _same_but(eqn.params[name])(eqn, shapes)


def _transpose(eqn: Eqn, shape: Shape) -> list[Factor]:
    return [_along(eqn, shape[d], [d], [i]) for i, d in enumerate(eqn.params["permutation"])]


def _broadcast(eqn: Eqn, shape: Shape) -> list[Factor]:
    out, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    source = {d: i for i, d in enumerate(dims) if shape[i] == out[d]}
    return [_along(eqn, n, [source.get(d)], [d]) for d, n in enumerate(out)]


def _reshape(eqn: Eqn, shape: Shape) -> list[Factor]:
    """Dimensions in groups of as many elements; of each the first dimension, in units that both sides are made of."""
    out = eqn.params["new_sizes"]
    if 0 in shape:
        return []
    found, i, k = [], 0, 0
    while i < len(shape) and k < len(out):
        first, second = (i, k)
        left, right = shape[i], out[k]
        i, k = i + 1, k + 1
        while left != right:
            if left < right:
                left, i = left * shape[i], i + 1
            else:
                right, k = right * out[k], k + 1
        if left > 1:
            while shape[first] == 1:
                first += 1
            while out[second] == 1:
                second += 1
            inner, other = left // shape[first], right // out[second]
            unit = math.lcm(inner, other)
            found.append(Factor(left // unit, ((first, unit // inner),), ((second, unit // other),)))
    return found


def _slice(eqn: Eqn, shape: Shape) -> list[Factor]:
    starts, limits, steps = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
    whole = [d for d, n in enumerate(shape) if starts[d] == 0 and limits[d] == n and (steps is None or steps[d] == 1)]
    return [_along(eqn, shape[d], [d], [d]) for d in whole]


def _pad(eqn: Eqn, shape: Shape, value: Shape) -> list[Factor]:
    config = eqn.params["padding_config"]
    return [_along(eqn, n, [d, None], [d]) for d, n in enumerate(shape) if config[d] == (0, 0, 0)]


def _rev(eqn: Eqn, shape: Shape) -> list[Factor]:
    return [_along(eqn, n, [d], [d]) for d, n in enumerate(shape) if d not in eqn.params["dimensions"]]


def _dynamic_slice(eqn: Eqn, shape: Shape, *starts: Shape) -> list[Factor]:
    sizes, none = eqn.params["slice_sizes"], [None] * len(starts)
    return [_along(eqn, n, [d, *none], [d]) for d, n in enumerate(shape) if sizes[d] == n]


def _dynamic_update(eqn: Eqn, shape: Shape, update: Shape, *starts: Shape) -> list[Factor]:
    none = [None] * len(starts)
    return [_along(eqn, n, [d, d, *none], [d]) for d, n in enumerate(shape) if update[d] == n]


# -- reductions and products -------------------------------------------------------------------------------------------


def _reduction(eqn: Eqn, shape: Shape) -> list[Factor]:
    axes = eqn.params["axes"]
    kept = [d for d in range(len(shape)) if d not in axes]
    found = [_along(eqn, shape[d], [d], [i]) for i, d in enumerate(kept)]
    leading = next((d for d in axes if shape[d] > 1), None)
    if leading is not None and 0 not in (shape[d] for d in axes):
        found.append(_along(eqn, shape[leading], [leading], [None], reduces=True))
    return found


def _positions(eqn: Eqn, shape: Shape) -> list[Factor]:
    kept = [d for d in range(len(shape)) if d != eqn.params["axis"]]
    return [_along(eqn, shape[d], [d], [i]) for i, d in enumerate(kept)]


def free_dims(ndim: int, contract: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [d for d in range(ndim) if d not in contract and d not in batch]


def _dot(eqn: Eqn, left: Shape, right: Shape) -> list[Factor]:
    (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
    lf, rf = free_dims(len(left), lc, lb), free_dims(len(right), rc, rb)
    found = [_along(eqn, left[a], [a, b], [i]) for i, (a, b) in enumerate(zip(lb, rb, strict=True))]
    found += [_along(eqn, left[d], [d, None], [len(lb) + i]) for i, d in enumerate(lf)]
    found += [_along(eqn, right[d], [None, d], [len(lb) + len(lf) + i]) for i, d in enumerate(rf)]
    leading = next((i for i, d in enumerate(lc) if left[d] > 1), None)
    if leading is not None and 0 not in (left[d] for d in lc):
        found.append(_along(eqn, left[lc[leading]], [lc[leading], rc[leading]], [None], reduces=True))
    return found


# -- attention, gather and scatter -------------------------------------------------------------------------------------


def _attention(eqn: Eqn, q: Shape, k: Shape, v: Shape, *rest: Shape) -> list[Factor]:
    """Batches, and heads in the groups that share a key head; of what sees every key, queries too."""
    started, masked = eqn.params["started"], eqn.params["masked"]
    statistics = [] if eqn.primitive.name == "attention" else [0] * 4  # the cotangent, m, l and delta
    heads = q[1] // k[1] if k[1] else 1

    def places(dim: int, scale: int, keyed: bool) -> Factor:
        own: list[DimFactor | None] = [
            (dim, scale),
            *[(dim, 1) if keyed else None] * 2,
            *[(dim, scale) for _ in statistics],
        ]
        if started:
            own.append((0, 1) if dim == 0 else None)
        if masked:
            own.append((dim, scale) if rest[-1][dim] != 1 else None)
        results: list[DimFactor | None] = [(dim, scale)] * len(eqn.outputs)
        return Factor(q[dim] // scale, tuple(own), tuple(results))

    found = [places(0, 1, True), places(1, heads, True)] if k[1] else []
    if eqn.primitive.name != "attention_dkv" and not eqn.params["causal"]:
        found.append(places(2, 1, False))
    return found


def _gather(eqn: Eqn, table: Shape, *indices: Shape) -> list[Factor]:
    axes, nb, many = eqn.params["axes"], eqn.params["batch_dims"], len(indices)
    shape = indices[0]
    found = [_along(eqn, shape[d], [d, *[d] * many], [d]) for d in range(nb)]
    found += [_along(eqn, shape[d], [None, *[d] * many], [d]) for d in range(nb, len(shape))]
    rest = [d for d in range(nb, len(table)) if d not in axes]
    return found + [_along(eqn, table[d], [d, *[None] * many], [len(shape) + i]) for i, d in enumerate(rest)]


def _scatter(eqn: Eqn, table: Shape, updates: Shape, *indices: Shape) -> list[Factor]:
    """The updates of a target are one sequence, so they are cut only along what is not indexed."""
    axes, nb, many = eqn.params["axes"], eqn.params["batch_dims"], len(indices)
    found = [_along(eqn, table[d], [d, d, *[d] * many], [d]) for d in range(nb)]
    rest = [d for d in range(nb, len(table)) if d not in axes]
    first = len(indices[0])
    return found + [_along(eqn, table[d], [d, first + i, *[None] * many], [d]) for i, d in enumerate(rest)]


def _user(eqn: Eqn, *shapes: Shape) -> list[Factor]:
    """A kernel of the user's own is run for each element of its batch by itself."""
    found, mapped = [], eqn.params["mapped"]
    for d, n in enumerate(eqn.params["batch"]):
        places = [sum(mask[:d]) if mask[d] else None for mask in mapped]
        found.append(_along(eqn, n, places, [d] * len(eqn.outputs)))
    return found


_FAMILIES: dict[Family, Rule] = {Family.ELEMENTWISE: _elementwise, Family.REDUCTION: _reduction}

_RULES: dict[str, Rule] = {
    "argmax": _positions,
    "argmin": _positions,
    "attention": _attention,
    "attention_dkv": _attention,
    "attention_dq": _attention,
    "broadcast_in_dim": _broadcast,
    "concatenate": _along_axis("dimension"),
    "cummax": _along_axis("axis"),
    "cummin": _along_axis("axis"),
    "cumprod": _along_axis("axis"),
    "cumsum": _along_axis("axis"),
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _rev,
    "scatter": _scatter,
    "slice": _slice,
    "sort": _along_axis("dimension"),
    "split": _along_axis("axis"),
    "transpose": _transpose,
    "user_kernel": _user,
}
"""By name, where the family does not say it. Others (loops, branches, iota, what is new) have no factors."""


# -- params of a part --------------------------------------------------------------------------------------------------


def params_of_part(eqn: Eqn, operands: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Any]:
    """The params of an equation over parts of these shapes."""
    name, params = eqn.primitive.name, eqn.params
    if name == "broadcast_in_dim":
        return {**params, "shape": results[0]}
    if name == "user_kernel":
        return {**params, "batch": results[0][: len(params["batch"])]}
    if name == "reshape":
        return {**params, "new_sizes": results[0]}
    if name == "slice":
        whole = eqn.inputs[0].aval.shape
        limits = tuple(
            n if operands[0][d] != whole[d] else params["limit_indices"][d] for d, n in enumerate(operands[0])
        )
        return {**params, "limit_indices": limits}
    if name == "dynamic_slice":
        return {**params, "slice_sizes": results[0]}
    return params
