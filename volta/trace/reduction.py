"""Symmetric (Hermitian) matrices made tridiagonal by reflections, column by column, and turned back by products."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    BLOCK,
    broadcast,
    conjugated,
    eye,
    fori,
    iota,
    matmul,
    part_dtype,
    real_part,
    row_at,
    square_of_size,
    times,
    triu,
    update_at,
    where,
)
from volta.trace.orthogonal import reflection
from volta.trace.triangular import Triangular, substituted

GROUP = 128
"""Columns in one loop: behind it the matrix is what is left of it."""


def _taken(a: Any, v: Any, w: Any) -> Any:
    """a − (v wᴴ + w vᴴ), as symmetric as ``a``: what a reflection changes."""
    products = [lax.mul(broadcast(x, a, 0, 1), broadcast(conjugated(y), a, 0, 2)) for x, y in ((v, w), (w, v))]
    return lax.sub(a, lax.add(*products))


def _group(a: Any, count: int) -> list[Any]:
    """The first columns: what is left of the matrix behind them, the reflections' vectors as rows, their factors, the
    diagonal and the elements beside it. A reflection is taken from the matrix together with the next one's product."""
    batch, m, _ = shape_of(a)
    dtype, part = base.dtype_of(a), part_dtype(a)

    def step(j: Any, a: Any, v: Any, w: Any, vectors: Any, factors: Any, diagonal: Any, beside: Any) -> list[Any]:
        shares = [lax.mul(broadcast(conjugated(row_at(x, j)), y, 0), y) for x, y in ((w, v), (v, w))]
        column = lax.sub(conjugated(row_at(a, j)), lax.add(*shares))
        vector, factor, last = reflection(column, lax.add(j, np.int32(1)))
        a = _taken(a, v, w)
        along = lax.reduce_sum(lax.mul(a, broadcast(vector, a, 0, 2)), (2,))
        share = lax.mul(along, broadcast(factor, along, 0))
        inner = lax.reduce_sum(lax.mul(conjugated(vector), share), (1,))
        half = times(lax.mul(conjugated(factor), inner), 0.5)
        w = lax.sub(share, lax.mul(vector, broadcast(half, vector, 0)))
        one = (batch, 1)
        return [
            a, vector, w,
            update_at(vectors, base.reshape_to(vector, (batch, 1, m)), j, 1),
            update_at(factors, base.reshape_to(factor, one), j, 1),
            update_at(diagonal, base.reshape_to(real_part(row_at(column, j)), one), j, 1),
            update_at(beside, base.reshape_to(real_part(last), one), j, 1),
        ]  # fmt: skip

    zeros = [base.fill(shape, 0, kind) for shape, kind in (
        ((batch, m), dtype), ((batch, m), dtype), ((batch, count, m), dtype), ((batch, count), dtype),
        ((batch, count), part), ((batch, count), part),
    )]  # fmt: skip
    a, v, w, *found = fori(count, step, a, *zeros)
    a, v, w = lax.slice(a, (0, count, count), (batch, m, m)), *(lax.slice_in_dim(x, count, m, axis=1) for x in (v, w))
    return [_taken(a, v, w), *found]


def tridiagonal(a: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The diagonal, the (real) elements beside it, and reflections in groups, whose product Q has a = Q T Qᴴ."""
    batch, n, _ = shape_of(a)
    groups, diagonals, besides = [], [], []
    for start in range(0, n - 1, GROUP):
        a, vectors, factors, diagonal, beside = _group(a, min(GROUP, n - 1 - start))
        groups.append((vectors, factors))
        diagonals.append(diagonal)
        besides.append(beside)
    diagonals.append(base.reshape_to(real_part(a), (batch, 1)))
    return lax.concatenate(diagonals, 1), lax.concatenate(besides, 1), groups


def turned_back(groups: list[tuple[Any, Any]], x: Any) -> Any:
    """Q times ``x``: blocks of reflections I − V T Vᴴ, from the last to the first."""
    batch, n, columns = shape_of(x)
    for vectors, factors in reversed(groups):
        _, count, m = shape_of(vectors)
        blocks = -(-count // BLOCK)
        more = blocks * BLOCK - count
        zero = np.zeros((), base.dtype_of(x))
        rows = lax.pad(vectors, zero, [(0, 0, 0), (0, more, 0), (0, 0, 0)])
        rows = base.reshape_to(rows, (batch * blocks, BLOCK, m))
        scale = base.reshape_to(lax.pad(factors, zero, [(0, 0, 0), (0, more, 0)]), (batch * blocks, BLOCK))
        inner = triu(matmul(conjugated(rows), rows, transpose_b=True), 1)
        scale = broadcast(scale, inner, 0, 1)
        diagonal = where(lax.eq(iota(inner, 1), iota(inner, 2)), scale, 0)
        t = substituted(Triangular(lower=False, unit_diagonal=True), lax.mul(scale, inner), diagonal)
        onto = base.reshape_to(matmul(t, conjugated(rows)), (batch, blocks * BLOCK, m))
        rows = base.reshape_to(rows, (batch, blocks * BLOCK, m))

        def block(p: Any, x: Any, rows: Any = rows, onto: Any = onto, blocks: int = blocks) -> list[Any]:
            start = lax.mul(lax.sub(np.int32(blocks - 1), p), np.int32(BLOCK))
            vectors, factor = (lax.dynamic_slice_in_dim(y, start, BLOCK, 1) for y in (rows, onto))
            return [lax.sub(x, matmul(vectors, matmul(factor, x), transpose_a=True))]

        below = fori(blocks, block, lax.slice(x, (0, n - m, 0), (batch, n, columns)))[0]
        x = lax.concatenate([lax.slice(x, (0, 0, 0), (batch, n - m, columns)), below], 1) if m < n else below
    return x
