"""Sorting and scans along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.extended import is_key
from volta.core.interp import bind, get_aval
from volta.ops import base
from volta.ops.arithmetic import add, ge, le, max, min, mul
from volta.ops.assembly import broadcasted_iota
from volta.ops.base import canonical_axis, dtype_error, shape_error, shape_of
from volta.ops.elementwise import NUMBER, refusal, takes
from volta.ops.indexing import gather
from volta.ops.movement import pad, rev
from volta.ops.primitive import Family, Linear, Primitive, Rule, Zero, register
from volta.ops.selection import select
from volta.ops.shaping import slice_in_dim

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "sort", "sort_key_val", "top_k"]

# -- sort --------------------------------------------------------------------------------------------------------------


def _sort_abstract(*avals: ShapedArray, dimension: int, is_stable: bool, num_keys: int) -> list[ShapedArray]:
    if not avals or any(a.shape != avals[0].shape for a in avals):
        raise shape_error("sort", avals, "operands must have one shape")
    if not 1 <= num_keys <= len(avals):
        raise shape_error("sort", avals, f"num_keys must be from 1 to {len(avals)}, got {num_keys}")
    canonical_axis("sort", dimension, avals[0].ndim)
    if any(is_key(a.dtype) for a in avals[:num_keys]):
        raise dtype_error("sort", avals, f"they have no order: {refusal(avals[0].dtype, NUMBER)}")
    return list(avals)


def _sort_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    if base.all_zero(tangents):
        outs = list(bind(sort_p, *primals, **params))
        return outs, [base.zero_like(o) for o in outs]
    axis = params["dimension"]
    positions = broadcasted_iota(dtypes.int32, shape_of(primals[0]), axis)
    *outs, order = bind(sort_p, *primals, positions, **params)
    moved = [base.zero_like(o) if isinstance(t, Zero) else _take_along(t, order, axis)
             for o, t in zip(outs, tangents, strict=True)]  # fmt: skip
    return outs, moved


def _take_along(x: Any, order: Any, axis: int) -> Any:
    """``x`` along ``axis`` in the given order, for each position of the other axes."""
    last = len(shape_of(x)) - 1
    x, order = base.move_axis(x, axis, last), base.move_axis(order, axis, last)
    return base.move_axis(gather(x, (order,), (last,), last, "clip"), last, axis)


def _sort_batch(args: Any, dims: Any, size: int, *, dimension: int, **params: Any) -> tuple[list[Any], list[int]]:
    aligned = [base.to_front(x, d, size) for x, d in zip(args, dims, strict=True)]
    return list(bind(sort_p, *aligned, dimension=dimension + 1, **params)), [0] * len(args)


sort_p = register(
    Primitive(
        "sort",
        Family.SORTING,
        _sort_abstract,
        _sort_jvp,
        _sort_batch,
        multiple_results=True,
        of_keys=True,
        doc="Operands ordered along an axis by the first num_keys of them; NaN last, -0 and +0 equal; always stable.",
    )
)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """``operand`` (an array, or a tuple of arrays of one shape) in ascending order along an axis.

    Of a tuple, the first ``num_keys`` arrays decide, the first of them first, and the others follow. NaN come last.
    The order is stable whatever ``is_stable`` says.

    >>> lax.sort(np.float32([3, np.nan, 1]))
    Array([ 1.,  3., nan], dtype=float32)
    """
    items = tuple(operand) if isinstance(operand, (tuple, list)) else (operand,)
    axis = canonical_axis("sort", dimension, len(shape_of(items[0])))
    outs = bind(sort_p, *items, dimension=axis, is_stable=bool(is_stable), num_keys=int(num_keys))
    return tuple(outs) if isinstance(operand, (tuple, list)) else outs[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """``keys`` in ascending order along an axis, and ``values`` in the same order.

    >>> lax.sort_key_val(np.int32([3, 1]), np.int32([0, 1]))
    (Array([1, 3], dtype=int32), Array([1, 0], dtype=int32))
    """
    first, second = sort((keys, values), dimension, is_stable, 1)
    return first, second


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest values along an axis, largest first, and their int32 positions; equal values: lowest first.

    >>> lax.top_k(np.int32([3, 1, 2]), 2)
    (Array([3, 2], dtype=int32), Array([0, 2], dtype=int32))
    """
    aval = get_aval(operand)
    axis = canonical_axis("top_k", axis, aval.ndim)
    n = aval.shape[axis]
    if not 0 <= k <= n:
        raise shape_error("top_k", (aval,), f"k must be from 0 to {n}, got {k}")
    # ascending by (value, position from the end), then read from the end
    from_end = rev(broadcasted_iota(dtypes.int32, aval.shape, axis), (axis,))
    values, places = sort((operand, from_end), axis, num_keys=2)
    values, places = (rev(slice_in_dim(v, n - k, n, 1, axis), (axis,)) for v in (values, places))
    return values, base.bind_named("sub", np.int32(n - 1), places)


# -- scans -------------------------------------------------------------------------------------------------------------


def scan_primitive(name: str, doc: str, jvp: Rule, transpose: Rule | None = None) -> Callable[..., Array]:
    """Define a scan along ``axis`` (from the end where ``reverse``) and give its function."""

    def abstract(x: ShapedArray, *, axis: int, reverse: bool) -> ShapedArray:
        if not takes(name, x.dtype, NUMBER):
            raise dtype_error(name, (x,), refusal(x.dtype, NUMBER))
        canonical_axis(name, axis, x.ndim)
        return x

    def batch(args: Any, dims: Any, size: int, *, axis: int, reverse: bool) -> tuple[Any, int]:
        return base.bind_named(name, args[0], axis=axis + (axis >= dims[0]), reverse=reverse), dims[0]

    primitive = register(Primitive(name, Family.SORTING, abstract, jvp, batch, transpose, doc=doc))

    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        return bind(primitive, operand, axis=canonical_axis(name, axis, len(shape_of(operand))), reverse=bool(reverse))

    function.__name__ = function.__qualname__ = name
    example = f">>> lax.{name}(np.ones((2, 3), np.int32), 1).shape\n(2, 3)"
    function.__doc__ = f"{doc}\n\nShape and dtype (float or int) stay; ``reverse`` goes from the end.\n\n{example}"
    return function


def _cumsum_transpose(ct: Any, x: Linear, *, axis: int, reverse: bool) -> list[Any]:
    return [None if isinstance(ct, Zero) else base.bind_named("cumsum", ct, axis=axis, reverse=not reverse)]


cumsum = scan_primitive(
    "cumsum",
    "Sums of all elements up to each along an axis.",
    base.linear_jvp("cumsum"),
    _cumsum_transpose,
)

Combine = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def _scan_jvp(name: str, combine: Combine, identity: Callable[[np.dtype], Any]) -> Rule:
    """Pairs (value, tangent), combined with those at distance 1, 2, 4, …: right for zeros and ties, to any order."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = base.bind_named(name, x, axis=axis, reverse=reverse)
        if isinstance(t, Zero):
            return out, base.zero_like(out)
        n, ndim = shape_of(x)[axis], len(shape_of(x))
        one, zero = base.fill((), identity(base.dtype_of(x)), base.dtype_of(x)), base.fill((), 0, base.dtype_of(t))
        distance = 1
        while distance < n:
            config = [(0, 0, 0)] * ndim
            config[axis] = (-distance, distance, 0) if reverse else (distance, -distance, 0)
            x, t = combine(pad(x, one, config), pad(t, zero, config), x, t)
            distance *= 2
        return out, t

    return jvp


def _multiply(p0: Any, t0: Any, p1: Any, t1: Any) -> tuple[Any, Any]:
    return mul(p0, p1), add(mul(t0, p1), mul(p0, t1))


def _pick(extreme: Callable[..., Any], wins: Callable[..., Any]) -> Combine:
    """Of equal values the earlier one keeps the tangent."""
    return lambda m0, t0, m1, t1: (extreme(m0, m1), select(wins(m0, m1), t0, t1))


cumprod = scan_primitive(
    "cumprod", "Products of all elements up to each along an axis.", _scan_jvp("cumprod", _multiply, lambda d: 1)
)
cummax = scan_primitive(
    "cummax",
    "Largest of all elements up to each along an axis. Of equal ones the first has the derivative.",
    _scan_jvp("cummax", _pick(max, ge), lambda d: -np.inf),
)
cummin = scan_primitive(
    "cummin",
    "Smallest of all elements up to each along an axis. Of equal ones the first has the derivative.",
    _scan_jvp("cummin", _pick(min, le), lambda d: np.inf),
)
