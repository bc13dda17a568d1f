"""Derivatives of attention as ordinary operations on the whole matrix of scores.

Gradients of attention are kernels (``attention_dq``, ``attention_dkv``). What is here serves the rest: forward
derivatives, and derivatives of the kernels themselves. The weights are computed from queries and keys, so that these
functions can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core import dtypes
from volta.core.interp import get_aval
from volta.ops import base
from volta.ops.arithmetic import add, bitwise_and, le, mul, stop_gradient, sub
from volta.ops.assembly import broadcasted_iota
from volta.ops.base import shape_of
from volta.ops.contraction import dot_general
from volta.ops.primitive import Zero
from volta.ops.selection import convert_element_type, select
from volta.ops.transcendental import exp


@attrs.frozen
class Rest:
    """The operands that params decide on."""

    start: Any
    mask: Any

    @staticmethod
    def of(operands: Sequence[Any], started: bool, masked: bool) -> Rest:
        return Rest(operands[0] if started else None, operands[-1] if masked else None)


def _per_query_head(x: Any, n: int) -> Any:
    """Keys or values (B, K, S, H) as (B, N, S, H): each head serves its group of query heads."""
    b, k, s, h = shape_of(x)
    if k == n:
        return x
    wide = base.broadcast_to(x, (b, k, n // k, s, h), (0, 1, 3, 4))
    return base.reshape_to(wide, (b, n, s, h))


def _rows_times_rows(x: Any, y: Any) -> Any:
    """(B, N, T, H) and (B, N, S, H) to (B, N, T, S)."""
    return dot_general(x, y, (((3,), (3,)), ((0, 1), (0, 1))))


def _times_rows(x: Any, y: Any) -> Any:
    """(B, N, T, S) and (B, N, S, H) to (B, N, T, H)."""
    return dot_general(x, y, (((3,), (2,)), ((0, 1), (0, 1))))


def _transposed_times_rows(x: Any, y: Any) -> Any:
    """(B, N, T, S) and (B, N, T, H) to (B, N, S, H)."""
    return dot_general(x, y, (((2,), (2,)), ((0, 1), (0, 1))))


def _along_row(x: Any, shape: Any) -> Any:
    return base.broadcast_to(x, shape, (0, 1, 2))


def visible(shape: tuple[int, ...], causal: bool, rest: Rest) -> Any:
    """Which keys each query sees, (B, N, T, S) booleans; None for all."""
    b, n, t, s = shape
    keep = None
    if causal:
        row = broadcasted_iota(dtypes.int32, (b, t, s), 1)
        if rest.start is not None:
            row = add(row, base.broadcast_to(rest.start, (b, t, s), (0,)))
        keep = base.broadcast_to(le(broadcasted_iota(dtypes.int32, (b, t, s), 2), row), shape, (0, 2, 3))
    if rest.mask is not None:
        mask = base.broadcast_to(rest.mask, shape, range(4))
        keep = mask if keep is None else bitwise_and(keep, mask)
    return keep


@attrs.frozen(eq=False)
class Matrix:
    """The weights of one attention, whole, in the compute dtype, and what derivatives are made from."""

    q: Any
    k: Any
    v: Any
    scale: Any
    weights: Any
    top: Any = None  # the largest score of each row, where there are keys
    total: Any = None  # the sum of exp(score - top) of each row

    @staticmethod
    def of(q: Any, k: Any, v: Any, rest: Rest, scale: float, causal: bool) -> Matrix:
        work = dtypes.compute_dtype(base.dtype_of(q))
        n = shape_of(q)[1]
        q, k, v = (convert_element_type(x, work) for x in (q, k, v))
        k, v = _per_query_head(k, n), _per_query_head(v, n)
        factor = work.type(scale)
        scores = mul(_rows_times_rows(q, k), factor)
        shape = shape_of(scores)
        keep = visible(shape, causal, rest)
        if 0 in shape:
            return Matrix(q, k, v, factor, scores)
        if keep is not None:
            scores = select(keep, scores, base.fill(shape, dtypes.finfo(work).min, work))
        top = stop_gradient(base.bind_named("reduce_max", scores, axes=(3,)))
        weights = exp(sub(scores, _along_row(top, shape)))
        if keep is not None:
            weights = select(keep, weights, base.fill(shape, 0, work))
        total = base.sum_axes(weights, (3,))
        none = base.bind_named("eq", total, work.type(0))  # rows that see no key
        divisor = select(none, base.fill(shape[:3], 1, work), total)
        weights = base.bind_named("div", weights, _along_row(divisor, shape))
        return Matrix(q, k, v, factor, weights, top, total)

    def moved(self, dq: Any, dk: Any) -> Any:
        """The tangent of the weights."""
        parts = []
        if not isinstance(dq, Zero):
            parts.append(_rows_times_rows(self.wide(dq), self.k))
        if not isinstance(dk, Zero):
            parts.append(_rows_times_rows(self.q, self.wide(dk)))
        if not parts:
            return Zero(get_aval(self.weights))
        scores = mul(parts[0] if len(parts) == 1 else add(*parts), self.scale)
        weighted = mul(self.weights, scores)
        mean = _along_row(base.sum_axes(weighted, (3,)), shape_of(scores))
        return sub(weighted, mul(self.weights, mean))

    def wide(self, x: Any) -> Any:
        """A tangent in the compute dtype, with the heads of the queries."""
        return _per_query_head(convert_element_type(x, base.dtype_of(self.q)), shape_of(self.q)[1])


def _total(parts: Sequence[Any]) -> Any:
    """The sum of the parts that are not zero, or None."""
    live = [p for p in parts if p is not None]
    total = live[0] if live else None
    for part in live[1:]:
        total = add(total, part)
    return total


def _linear(f: Callable[..., Any], *args: Any) -> Any:
    """``f(*args)``, or None where an argument is zero."""
    return None if any(a is None or isinstance(a, Zero) for a in args) else f(*args)


def tangent(q: Any, k: Any, v: Any, rest: Rest, tangents: Sequence[Any], *, scale: float, causal: bool) -> Any:
    """The tangent of attention's result, from those of queries, keys and values (each may be Zero, not all)."""
    dtype, matrix = base.dtype_of(q), Matrix.of(q, k, v, rest, scale, causal)
    dq, dk, dv = tangents
    moved = matrix.moved(dq, dk)
    wide_dv = dv if isinstance(dv, Zero) else matrix.wide(dv)
    out = _total([_linear(_times_rows, moved, matrix.v), _linear(_times_rows, matrix.weights, wide_dv)])
    return convert_element_type(out, dtype)


def attention_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    outs = list(base.bind_named("attention", *primals, **params))
    zeros = [base.zero_like(x) for x in outs]
    if base.all_zero(tangents[:3]):
        return outs, zeros
    rest = Rest.of(primals[3:], params["started"], params["masked"])
    q, k, v = primals[:3]
    moved = tangent(q, k, v, rest, tangents[:3], scale=params["scale"], causal=params["causal"])
    return outs, [moved, *zeros[1:]]


@attrs.frozen(eq=False)
class _Backward:
    """What both cotangents and their tangents share."""

    matrix: Matrix
    do: Any
    moved: Any  # the tangent of the weights
    scores: Any  # the cotangent of the scores, ds
    moved_scores: Any
    d: tuple[Any, ...]  # tangents of q, k, v, do as the matrix has them

    @staticmethod
    def of(primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> _Backward:
        q, k, v, do, _, _, delta = primals[:7]
        dq, dk, dv, ddo, _, _, ddelta = tangents[:7]
        rest = Rest.of(primals[7:], params["started"], params["masked"])
        matrix = Matrix.of(q, k, v, rest, params["scale"], params["causal"])
        dq, dk, dv, ddo = (x if isinstance(x, Zero) else matrix.wide(x) for x in (dq, dk, dv, ddo))
        do = convert_element_type(do, base.dtype_of(matrix.q))
        dp = _rows_times_rows(do, matrix.v)
        shape = shape_of(dp)
        gap = sub(dp, _along_row(delta, shape))
        moved = matrix.moved(dq, dk)
        moved_gap = _total([_linear(_rows_times_rows, ddo, matrix.v), _linear(_rows_times_rows, do, dv)])
        less = None if isinstance(ddelta, Zero) else base.bind_named("neg", _along_row(ddelta, shape))
        moved_gap = _total([moved_gap, less])
        moved_scores = _total([_linear(mul, moved, gap), _linear(mul, matrix.weights, moved_gap)])
        return _Backward(matrix, do, moved, mul(matrix.weights, gap), moved_scores, (dq, dk, dv, ddo))


def dq_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    out = base.bind_named("attention_dq", *primals, **params)
    x = _Backward.of(primals, tangents, params)
    moved = _total([_linear(_times_rows, x.moved_scores, x.matrix.k), _linear(_times_rows, x.scores, x.d[1])])
    if moved is None:
        return out, base.zero_like(out)
    return out, convert_element_type(mul(moved, x.matrix.scale), base.dtype_of(out))


def dkv_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    outs = list(base.bind_named("attention_dkv", *primals, **params))
    x, product = _Backward.of(primals, tangents, params), _transposed_times_rows
    dk = _total([_linear(product, x.moved_scores, x.matrix.q), _linear(product, x.scores, x.d[0])])
    dv = _total([_linear(product, x.moved, x.do), _linear(product, x.matrix.weights, x.d[3])])
    dk = _linear(mul, dk, x.matrix.scale)
    moved = [
        base.zero_like(o) if t is None else convert_element_type(t, base.dtype_of(o))
        for o, t in zip(outs, (dk, dv), strict=True)
    ]
    return outs, moved


# -- attention itself --------------------------------------------------------------------------------------------------


def written_out(name: str, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """``attention``, ``attention_dq`` or ``attention_dkv`` of these operands as ordinary operations, to within
    rounding: for what runs elsewhere."""
    q, k, v = operands[:3]
    dtype = params.get("preferred_element_type") or base.dtype_of(q)
    if name == "attention":
        rest = Rest.of(operands[3:], params["started"], params["masked"])
        matrix = Matrix.of(q, k, v, rest, params["scale"], params["causal"])
        out, rows = _times_rows(matrix.weights, matrix.v), shape_of(q)[:3]
        nothing = base.fill(rows, 0, base.dtype_of(matrix.q))
        statistics = [nothing if x is None else x for x in (matrix.top, matrix.total)]
        return [convert_element_type(out, dtype), *statistics]
    zeros = [Zero(get_aval(x)) for x in operands]
    x = _Backward.of(operands, zeros, params)
    if name == "attention_dq":
        return [convert_element_type(mul(_times_rows(x.scores, x.matrix.k), x.matrix.scale), dtype)]
    dk = mul(_transposed_times_rows(x.scores, x.matrix.q), x.matrix.scale)
    dv = _transposed_times_rows(x.matrix.weights, x.do)
    return [convert_element_type(dk, dtype), convert_element_type(dv, dtype)]
