"""Convolution, as one equation that means a product of windows and weights.

Operands stand in one order of axes: batch, features, space of the left one; features out, features in, window of the
right one; batch, features out, windows of the result. Its program writes the windows side by side and contracts them
with DOT of the bit contract, so a convolution has DOT's bits, in one stated order of the terms; and convolution is
closed under derivatives: that of each operand is a convolution again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.contract import DEFINITIONS
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops import base, lax
from volta.ops.base import dtype_error, shape_error, shape_of
from volta.ops.primitive import Linear, Zero
from volta.ops.windows import (
    Axes,
    Axis,
    Shape,
    by_element,
    by_window,
    counts,
    dilated,
    index,
    padded,
    reversed_axes,
    sizes,
)
from volta.trace import masks
from volta.trace.meaning import CACHED, meaning, means_its_program

MOST_SLICES = 64
"""Up to so many slices are copied side by side, a loop each; more are gathered, in one loop."""

_NAME = "conv_general_dilated"


@attrs.frozen
class Convolution:
    """What a convolution is, beside its operands' shapes."""

    axes: Axes
    """How the window slides, an axis of space each."""

    groups: int = 1
    """Groups of features: each has its own part of the features in and out."""

    batch_groups: int = 1
    """Groups of the batch: each has its own part of the batch and of the features out, at one place of the result."""

    features_first: bool = False
    """The order of a result's terms: feature by feature, or (if not) place by place in the window."""

    layout: str = "ncs"
    """How the left operand lies in memory: batch n, features c, space s, outermost first. It moves no bit."""

    precision: str | None = None
    dtype: np.dtype | None = None
    """The result's, where it is not the operands'."""

    def __call__(self, lhs: Any, rhs: Any) -> Any:
        avals = (get_aval(lhs).strip_weak(), get_aval(rhs).strip_weak())
        _check(self, *avals)
        return convolution_p.bind(lhs, rhs, jaxpr=_program(self, avals), name=_NAME, convolution=self)[0]


def _check(conv: Convolution, lhs: ShapedArray, rhs: ShapedArray) -> None:
    groups, split = conv.groups, conv.batch_groups
    if lhs.dtype != rhs.dtype:
        raise dtype_error(_NAME, (lhs, rhs), "operands must have one dtype; use convert_element_type on one of them")
    if lhs.shape[1] != rhs.shape[1] * groups:
        raise shape_error(
            _NAME, (lhs, rhs), f"the left operand has {lhs.shape[1]} features, the right one takes {rhs.shape[1]} in "
            f"each of {groups} groups (feature_group_count)",
        )  # fmt: skip
    if rhs.shape[0] % (groups * split) or lhs.shape[0] % split or (groups > 1 and split > 1):
        raise shape_error(
            _NAME, (lhs, rhs), f"a batch of {lhs.shape[0]} and {rhs.shape[0]} features out cannot be divided into "
            f"{groups} groups of features and {split} of the batch; one of the two must be 1",
        )  # fmt: skip


# -- its meaning -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Named:
    """An array whose axes have names: g(roup), n (batch), c (features in), o(ut), z0, … windows, w0, … places."""

    x: Any
    names: tuple[str, ...]

    def permuted(self, names: Sequence[str]) -> Named:
        return Named(base.permute(self.x, [self.names.index(n) for n in names]), tuple(names))

    def at(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.names.index(n) for n in names)


@lru_cache(maxsize=CACHED)
def _program(conv: Convolution, avals: tuple[ShapedArray, ShapedArray]) -> ClosedJaxpr:
    return meaning(lambda lhs, rhs: _windows_times_weights(conv, lhs, rhs), avals, _NAME)


def _windows_times_weights(conv: Convolution, lhs: Any, rhs: Any) -> Any:
    dtype = base.dtype_of(lhs)
    windows = counts(conv.axes, shape_of(lhs)[2:])
    parts = conv.groups * conv.batch_groups
    shape = (shape_of(lhs)[0] // conv.batch_groups, shape_of(rhs)[0], *windows)
    if not prod(shape) * prod(shape_of(lhs)) * prod(shape_of(rhs)):
        return base.fill(shape, 0, conv.dtype or dtype)
    x = _stored(conv, lhs, parts)
    x = Named(padded(x.x, conv.axes, base.fill((), 0, dtype), _first(x)), x.names)
    o, i, *places = shape_of(rhs)
    z, w = _axis_names("z", windows), _axis_names("w", windows)
    weights = Named(base.reshape_to(rhs, (parts, o // parts, i, *places)), ("g", "o", "c", *w))
    if _is_chain(conv, i, dtype):
        out = _chain(conv, x, weights, windows)
    else:
        out = _product(conv, _side_by_side(conv, x, windows), weights)
    return base.reshape_to(out.permuted(("n", "g", "o", *z)).x, shape)


def _stored(conv: Convolution, lhs: Any, parts: int) -> Named:
    """The left operand as it lies in memory, its groups apart."""
    n, c, *space = shape_of(lhs)
    features = conv.groups > 1
    axes = {
        "n": {"n": n} if features else {"g": parts, "n": n // parts},
        "c": {"g": parts, "c": c // parts} if features else {"c": c},
        "s": dict(zip(_axis_names("s", space), space, strict=True)),
    }
    places = {"n": [0], "c": [1], "s": list(range(2, 2 + len(space)))}
    x = base.permute(lhs, [i for role in conv.layout for i in places[role]])
    named = {name: size for role in conv.layout for name, size in axes[role].items()}
    return Named(base.reshape_to(x, tuple(named.values())), tuple(named))


def _axis_names(kind: str, axes: Sequence[Any]) -> tuple[str, ...]:
    return tuple(f"{kind}{i}" for i in range(len(axes)))


def _terms(conv: Convolution) -> tuple[str, ...]:
    """The axes of a sum, in the order of its terms."""
    w = _axis_names("w", conv.axes)
    return ("c", *w) if conv.features_first else (*w, "c")


def _side_by_side(conv: Convolution, x: Named, windows: Shape) -> Named:
    """All windows' elements: those of a sum in its order, and the innermost axis where it was in memory."""
    z, w = _axis_names("z", windows), _axis_names("w", windows)
    terms, batch = (("g", *_terms(conv)), ("n",)) if conv.groups > 1 else (_terms(conv), ("g", "n"))
    innermost = conv.layout[-1]
    if innermost == "c":
        order = (*batch, *z, *terms)
    elif innermost == "n":
        order = (*terms, *z, *batch)
    else:
        order = (*z, *batch, *terms) if conv.features_first else (*batch, *terms, *z)
    places = sizes(conv.axes)
    few, names, kept = (places, w, z) if prod(places) <= prod(windows) else (windows, z, w)
    if prod(few) > MOST_SLICES:
        return _gathered(conv, x, windows).permuted(order)
    boxes = (by_element if names is w else by_window)(x.x, conv.axes, windows, _first(x))
    boxed = _with_axes(x, kept)
    at, rest = order.index(names[0]) if names else 0, tuple(n for n in order if n not in names)
    lined = [lax.expand_dims(Named(box, boxed).permuted(rest).x, (at,)) for box in boxes]
    joined = lined[0] if len(lined) == 1 else lax.concatenate(lined, at)
    shape = shape_of(joined)
    return Named(base.reshape_to(joined, (*shape[:at], *few, *shape[at + 1 :])), order)


def _first(x: Named) -> int:
    """The first axis of space."""
    return x.names.index("s0") if "s0" in x.names else 0


def _with_axes(x: Named, names: tuple[str, ...]) -> tuple[str, ...]:
    """Its axes with others in the place of space."""
    first = _first(x)
    return (*x.names[:first], *names, *x.names[first + len(names) :])


def _gathered(conv: Convolution, x: Named, windows: Shape) -> Named:
    names, indices = [], []
    shape = tuple(n for z, a in zip(windows, conv.axes, strict=True) for n in (z, a.size))
    for i, a in enumerate(conv.axes):
        indices.append(index(a, *(lax.broadcasted_iota(np.int64, shape, 2 * i + k) for k in (0, 1))))
        names += [f"z{i}", f"w{i}"]
    axes = range(_first(x), _first(x) + len(conv.axes))
    found = lax.gather(x.x, indices, axes, mode="clip")  # none is out of range
    return Named(found, (*names, *(n for n in x.names if n[0] != "s")))


def _product(conv: Convolution, lines: Named, weights: Named) -> Named:
    terms, shared = _terms(conv), ["g"]
    if conv.layout[-1] == "s" and not conv.features_first:  # the batch lies around the sums: a product for each of it
        n = shape_of(lines.x)[lines.names.index("n")]
        shape = shape_of(weights.x)
        spread = base.broadcast_to(weights.x, (n, *shape), range(1, len(shape) + 1))
        weights, shared = Named(spread, ("n", *weights.names)), ["n", "g"]
    first, second = (weights, lines) if conv.layout[-1] == "s" else (lines, weights)
    out = lax.dot_general(
        first.x,
        second.x,
        ((first.at(terms), second.at(terms)), (first.at(shared), second.at(shared))),
        precision=conv.precision,
        preferred_element_type=conv.dtype,
    )
    free = [n for x in (first, second) for n in x.names if n not in shared and n not in terms]
    return Named(out, (*shared, *free))


def _is_chain(conv: Convolution, features: int, dtype: np.dtype) -> bool:
    """Whether a sum has so few terms, of one feature, that it is written as the chain that DOT is."""
    small = prod(sizes(conv.axes)) <= min(MOST_SLICES, DEFINITIONS.dot_chunk)
    plain = conv.precision is None and conv.dtype is None and dtype in (dtypes.float32, dtypes.float64)
    return features == 1 and conv.groups > 1 and small and plain


def _chain(conv: Convolution, x: Named, weights: Named, windows: Shape) -> Named:
    """DOT of up to 256 terms is one chain of fused multiply-adds from +0.0: here a term is a slice."""
    z, o = _axis_names("z", windows), shape_of(weights.x)[1]
    order = ("n", *z, "g", "o") if conv.layout[-1] == "c" else ("n", "g", "o", *z)
    total: Any = 0.0
    places = itertools.product(*map(range, sizes(conv.axes)))
    for place, box in zip(places, by_element(x.x, conv.axes, windows, _first(x)), strict=True):
        single_feature = [n if n != "o" else "c" for n in order]  # which is spread over those of the result
        given = Named(box, _with_axes(x, z)).permuted(single_feature)
        shape = tuple(o if n == "o" else s for n, s in zip(order, shape_of(given.x), strict=True))
        single = lax.squeeze(given.x, given.at("c"))
        term = base.broadcast_to(single, shape, [i for i, n in enumerate(order) if n != "o"])
        ends = [p + 1 for p in place]
        own = lax.slice(weights.x, (0, 0, 0, *place), (*shape_of(weights.x)[:3], *ends))
        own = base.reshape_to(own, shape_of(own)[:2])
        factor = base.broadcast_to(own, shape, [order.index("g"), order.index("o")])
        total = lax.fma(term, factor, total)
    return Named(total, order)


# -- its derivatives ---------------------------------------------------------------------------------------------------


def _left_cotangent(conv: Convolution, ct: Any, lhs: ShapedArray, rhs: Any) -> Any:
    """The windows that an element is in, each with the weight it has there: a convolution with the window reversed."""
    parts = conv.groups * conv.batch_groups
    turned = _merged(base.move_axis(_apart(rhs, 0, parts), 1, 2), 0)
    axes = reversed_axes(conv.axes, lhs.shape[2:])
    back = attrs.evolve(conv, axes=axes, groups=parts, batch_groups=1, features_first=False, dtype=None)
    out = back(ct, lax.rev(turned, tuple(range(2, 2 + len(axes)))))
    return out if conv.batch_groups == 1 else _merged(base.move_axis(_apart(out, 1, parts), 1, 0), 0)


def _right_cotangent(conv: Convolution, ct: Any, rhs: ShapedArray, lhs: Any) -> Any:
    """What each weight was multiplied by, with the cotangents there: batch and features change places.

    Its terms go through the batch, and through the windows of each of it: a part of the batch is a range of them.
    """
    axes = []
    for a, n, z in zip(conv.axes, shape_of(lhs)[2:], shape_of(ct)[2:], strict=True):
        high = dilated(z, a.stride) - dilated(n, a.base) + dilated(a.size, a.dilation) - 1 - a.low
        axes.append(Axis(z, a.dilation, a.low, high, a.base, a.stride))
    back = attrs.evolve(
        conv,
        axes=tuple(axes),
        groups=conv.batch_groups,
        batch_groups=conv.groups,
        features_first=True,
        layout=conv.layout.translate(str.maketrans("nc", "cn")),
        dtype=None,
    )
    out = back(base.move_axis(lhs, 1, 0), base.move_axis(ct, 1, 0))
    return base.move_axis(out, 1, 0)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, convolution: Convolution, **params: Any) -> Any:
    out = convolution(*primals)
    if not dtypes.is_inexact(base.dtype_of(out)) or base.all_zero(tangents):
        return [out], [base.zero_like(out)]
    return [out], [_tangent(convolution, primals, tangents)]


def _tangent(conv: Convolution, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    (x, y), (dx, dy) = primals, tangents
    shares = [] if isinstance(dx, Zero) else [conv(dx, y)]
    shares += [] if isinstance(dy, Zero) else [conv(x, dy)]
    return shares[0] if len(shares) == 1 else lax.add(*shares)


def _linearize(nonzero: Sequence[bool], *primals: Any, convolution: Convolution, **params: Any) -> Any:
    out = convolution(*primals)

    def linear(*live: Any) -> list[Any]:
        return [_tangent(convolution, primals, masks.spread(nonzero, live, lambda i: base.zero_like(primals[i])))]

    return [out], (True,), linear


def _transpose(cts: Sequence[Any], x: Any, y: Any, *, convolution: Convolution, **params: Any) -> list[Any]:
    (ct,) = cts
    if isinstance(ct, Zero):
        return [None, None]
    left = isinstance(x, Linear)
    linear, other = (x.aval, y) if left else (y.aval, x)
    other = lax.convert_element_type(other, base.dtype_of(ct))
    share = (_left_cotangent if left else _right_cotangent)(convolution, ct, linear, other)
    share = lax.convert_element_type(share, linear.dtype)
    return [share, None] if left else [None, share]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, convolution: Convolution, **params: Any
) -> Any:
    (x, y), (x_dim, y_dim), conv, size = args, dims, convolution, trace.axis.size
    parts = conv.groups * conv.batch_groups
    if x_dim is not None and y_dim is not None:  # a group each
        y = _merged(base.move_axis(y, y_dim, 0), 0)
        if conv.batch_groups > 1:
            conv = attrs.evolve(conv, batch_groups=conv.batch_groups * size)
            x = _merged(base.move_axis(x, x_dim, 0), 0)
        else:
            conv = attrs.evolve(conv, groups=conv.groups * size)
            x = _merged(base.move_axis(x, x_dim, 1), 1)
        return [_apart(conv(x, y), 1, size)], [1]
    if x_dim is not None:  # more of the batch, within its groups
        x = _merged(_merged(_within(base.move_axis(x, x_dim, 0), conv.batch_groups), 1), 0)
        return [_apart(conv(x, y), 0, size)], [0]
    assert y_dim is not None
    y = _merged(_merged(_within(base.move_axis(y, y_dim, 0), parts), 1), 0)  # more features out, within their groups
    out = _apart(_apart(conv(x, y), 1, parts), 2, size)
    return [_merged(base.move_axis(out, 2, 0), 2)], [0]


def _within(x: Any, parts: int) -> Any:
    """Its first axis behind the groups that the second one is divided into: (parts, first, rest of second, …)."""
    return base.move_axis(_apart(x, 1, parts), 1, 0)


def _apart(x: Any, axis: int, parts: int) -> Any:
    shape = shape_of(x)
    return base.reshape_to(x, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]))


def _merged(x: Any, axis: int) -> Any:
    """An axis and the one behind it as one."""
    shape = shape_of(x)
    return base.reshape_to(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


convolution_p = means_its_program(
    _NAME,
    jvp=_jvp,
    batch=_batch,
    transpose=_transpose,
    linearize=_linearize,
    doc="Windows that slide over space, contracted with weights: means exactly its program.",
)
