"""Symmetric (Hermitian) matrices made tridiagonal by reflections, column by column, and turned back by products."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.interp import get_aval
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    BLOCK,
    broadcast,
    conjugated,
    iota,
    real_part,
    row_at,
    times,
    transposed,
    update_at,
    where,
)
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.orthogonal import apply_block, element_at, reflection, triangle_of
from volta.trace.scan import run_scan

GROUP = 128
"""Columns in one loop: behind it the matrix is what is left of it."""

TOGETHER = 4
"""Columns in an iteration: a GPU takes as long to begin one as for half a column."""


def _taken(a: Any, v: Any, w: Any) -> Any:
    """a − (v wᴴ + w vᴴ), as symmetric as ``a``: what a reflection changes."""
    products = [lax.mul(broadcast(x, a, 0, 1), broadcast(conjugated(y), a, 0, 2)) for x, y in ((v, w), (w, v))]
    return lax.sub(a, lax.add(*products))


def _group(a: Any, count: int) -> list[Any]:
    """The first columns: what is left of the matrix behind them, then as rows what they became (the diagonal, the real
    element beside it, the reflections' vectors behind that) and the reflections' factors.

    A reflection is taken from the matrix together with the next one's product: each element is read once a column.
    """
    batch, m, _ = shape_of(a)
    dtype = base.dtype_of(a)

    def step(j: Any, at: Any, a: Any, v: Any, w: Any, shared: Any, packed: Any, factors: Any) -> tuple[list[Any], None]:
        """``v`` and ``w`` are the last reflection's: of the elements at this column that of ``v`` is 1, the other
        one ``shared``."""
        column = lax.sub(conjugated(row_at(a, j)), lax.add(lax.mul(v, broadcast(conjugated(shared), v, 0)), w))
        vector, factor, last = reflection(column, at)
        number, here = iota(column, 1), broadcast(at, column)
        own = where(lax.gt(number, here), vector, where(lax.eq(number, here), broadcast(last, column, 0), column))
        a = _taken(a, v, w)
        along = lax.reduce_sum(lax.mul(a, broadcast(vector, a, 0, 2)), (2,))
        share = lax.mul(along, broadcast(factor, along, 0))
        inner = lax.reduce_sum(lax.mul(conjugated(vector), share), (1,))
        half = times(lax.mul(conjugated(factor), inner), 0.5)
        w = lax.sub(share, lax.mul(vector, broadcast(half, vector, 0)))
        packed = update_at(packed, base.reshape_to(own, (batch, 1, m)), j, 1)
        factors = update_at(factors, base.reshape_to(factor, (batch, 1)), j, 1)
        number = [lax.add(j, np.uint32(1)), lax.add(at, np.int32(1))]
        return [*number, a, vector, w, element_at(w, at), packed, factors], None

    shapes = (batch, m), (batch, m), (batch,), (batch, count, m), (batch, count)
    zeros = [base.fill(shape, 0, dtype) for shape in shapes]
    start = [np.uint32(0), np.int32(1), a, *zeros]  # an unsigned place is never counted from the end
    program, _ = trace_to_jaxpr(step, [get_aval(x).strip_weak() for x in start], "column")
    _, _, a, v, w, _, packed, factors = run_scan(program, [], start, [], length=count, reverse=False, unroll=TOGETHER)
    a, v, w = lax.slice(a, (0, count, count), (batch, m, m)), *(lax.slice_in_dim(x, count, m, axis=1) for x in (v, w))
    return [_taken(a, v, w), packed, factors]


def tridiagonal(a: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The diagonal, the (real) elements beside it, and reflections in groups, whose product Q has a = Q T Qᴴ."""
    batch, n, _ = shape_of(a)
    groups: list[tuple[Any, Any]] = []
    diagonals, besides = [], []
    left = n - 1
    while left:
        count = GROUP if left >= GROUP else max(left - left % TOGETHER, left % TOGETHER)
        left -= count
        a, packed, factors = _group(a, count)
        places = lax.sub(iota(packed, 2), iota(packed, 1))
        diagonals.append(_along(packed, 0))
        besides.append(_along(packed, 1))
        vectors = where(lax.gt(places, np.int32(1)), packed, where(lax.eq(places, np.int32(1)), 1, 0))
        groups.append((vectors, factors))
    diagonals.append(base.reshape_to(real_part(a), (batch, 1)))
    return lax.concatenate(diagonals, 1), lax.concatenate(besides, 1), groups


def _along(rows: Any, offset: int) -> Any:
    """Of each row the (real) element as far behind the diagonal."""
    batch, count, m = shape_of(rows)
    flat = base.reshape_to(real_part(rows), (batch, count * m))
    return lax.slice(flat, (0, offset), (batch, offset + (count - 1) * (m + 1) + 1), (1, m + 1))


def turned_back(groups: list[tuple[Any, Any]], x: Any) -> Any:
    """Q times ``x``: blocks of reflections I − V T Vᴴ, from the last to the first."""
    batch, n, columns = shape_of(x)
    for rows, factors in reversed(groups):
        _, count, m = shape_of(rows)
        blocks = -(-count // BLOCK)
        added, zero = [(0, 0, 0), (0, blocks * BLOCK - count, 0)], np.zeros((), base.dtype_of(x))
        rows, factors = lax.pad(rows, zero, [*added, (0, 0, 0)]), lax.pad(factors, zero, added)
        vectors = transposed(base.reshape_to(rows, (batch * blocks, BLOCK, m)))
        t = base.reshape_to(
            triangle_of(vectors, base.reshape_to(factors, (batch * blocks, BLOCK))), (batch, blocks, BLOCK, BLOCK)
        )
        for p in reversed(range(blocks)):
            start = p * BLOCK  # rows before it no reflection of the block touches
            vectors = transposed(lax.slice(rows, (0, start, start), (batch, start + BLOCK, m)))
            own = lax.squeeze(lax.slice_in_dim(t, p, p + 1, axis=1), (1,))
            below = apply_block(vectors, own, lax.slice_in_dim(x, n - m + start, n, axis=1), False)
            x = lax.dynamic_update_slice(x, below, (0, n - m + start, 0))
    return x
