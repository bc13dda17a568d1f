"""Factors of matrices by elimination: cholesky and lu. Columns of a block go one by one; products do the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.contract import DEFINITIONS
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    BLOCK,
    Decomposition,
    bordered,
    broadcast,
    conjugated,
    diagonal_of,
    eye,
    fori,
    iota,
    matmul,
    padded_size,
    real_part,
    row_at,
    slice_at,
    subtract_product,
    symmetrized,
    transposed,
    tril,
    triu,
    update_at,
    where,
)
from volta.trace.panels import PanelProgram
from volta.trace.triangular import Triangular, forward_block
from volta.xla_like.panels import FACTOR, LOWER, MEAN

GROUP = DEFINITIONS.dot_chunk
"""Columns that are factored in one loop: what is left of them is taken off by one product."""

# -- cholesky ----------------------------------------------------------------------------------------------------------


def _cholesky(a: Any) -> list[Any]:
    """L with a = L Lᴴ, from the lower triangle; NaN where there is none."""
    batch, n, _ = shape_of(a)
    if not batch * n:
        return [a]
    if n <= BLOCK:
        return _lower(a)
    size = padded_size(n)
    a = tril(bordered(a, size, size, True))
    found = base.fill((batch, size, size), 0, base.dtype_of(a))
    for start in range(0, size, GROUP):
        end = min(start + GROUP, size)
        x = lax.slice(a, (0, start, start), (batch, size, end))
        if start:
            left = lax.slice(found, (0, start, 0), (batch, size, start))
            x = lax.sub(x, matmul(left, conjugated(lax.slice_in_dim(left, 0, end - start, axis=1)), transpose_b=True))
        x = _factor(x)[0] if end - start > BLOCK else _cholesky_block(x)
        if end < size:
            found = lax.dynamic_update_slice(found, x, (0, start, start))
        elif start:  # put together: a loop that reads what is updated asks of each element where it lies
            above = base.fill((batch, start, end - start), 0, base.dtype_of(a))
            x = lax.concatenate([lax.slice_in_dim(found, 0, start, axis=2), lax.concatenate([above, x], 1)], 2)
    return [_checked(lax.slice(x, (0, 0, 0), (batch, n, n)))]


def _checked(x: Any) -> Any:
    """L, NaN where there is none."""
    good = lax.reduce_and(lax.gt(real_part(diagonal_of(x, 0, shape_of(x)[1])), 0), (1,))
    return tril(where(broadcast(good, x, 0), x, np.nan))


def _cholesky_of_mean(a: Any) -> list[Any]:
    """That of (a + aᴴ) / 2."""
    batch, n, _ = shape_of(a)
    return _mean(a) if batch and 0 < n <= BLOCK else _cholesky(symmetrized(a))


_lower = PanelProgram(LOWER, lambda a, unit: [_checked(_cholesky_block(tril(a)))])
_mean = PanelProgram(MEAN, lambda a, unit: _lower.value(symmetrized(a), unit))


def _cholesky_group(x: Any, unit: bool) -> list[Any]:
    """The columns of L for a group of columns, whose first rows are the diagonal's."""
    batch, rows, width = shape_of(x)
    found = base.fill((batch, rows, width), 0, base.dtype_of(x))
    for start in range(0, width, BLOCK):
        end = min(start + BLOCK, width)
        rest = lax.slice(x, (0, start, start), (batch, rows, end))
        if start:
            left = lax.slice(found, (0, start, 0), (batch, rows, start))
            across = lax.slice(left, (0, 0, 0), (batch, end - start, start))
            rest = lax.sub(rest, matmul(left, conjugated(across), transpose_b=True))
        found = lax.dynamic_update_slice(found, _cholesky_block(rest), (0, start, start))
    return [found]


_factor = PanelProgram(FACTOR, _cholesky_group)


def _cholesky_block(x: Any) -> Any:
    """Columns of L, whose first rows are the diagonal's: that square column by column, then the rows below by it."""
    batch, rows, width = shape_of(x)
    (columns,) = _cholesky_panel(transposed(lax.slice(x, (0, 0, 0), (batch, width, width))))
    square = transposed(columns)
    if rows == width:
        return square
    across = conjugated(square)
    if across is not square:
        across = where(lax.eq(iota(square, 1), iota(square, 2)), square, across)
    below = forward_block(across, transposed(lax.slice(x, (0, width, 0), (batch, rows, width))), False)
    return lax.concatenate([square, transposed(below)], 1)


def _cholesky_columns(x: Any, unit: bool) -> list[Any]:
    """The columns of L from those of a square (both as rows): one that is known is taken from those after it."""
    width = shape_of(x)[2]

    def step(j: Any, x: Any) -> list[Any]:
        column = row_at(x, j)
        root = lax.convert_element_type(lax.sqrt(real_part(row_at(column, j))), base.dtype_of(column))
        number, here = iota(column, 1), broadcast(j, column)
        below = lax.div(column, broadcast(root, column, 0))
        column = where(lax.gt(number, here), below, where(lax.eq(number, here), broadcast(root, column, 0), 0))
        number, here = iota(x, 1), broadcast(j, x)
        after = subtract_product(x, broadcast(conjugated(column), x, 0, 1), broadcast(column, x, 0, 2))
        return [where(lax.gt(number, here), after, where(lax.eq(number, here), broadcast(column, x, 0, 2), x))]

    return fori(width, step, x)


_cholesky_panel = PanelProgram("cholesky", _cholesky_columns)


def _cholesky_rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """dL = L Φ(L⁻¹ da L⁻ᴴ), with Φ the lower triangle and half the diagonal; da is taken as symmetric (Hermitian)."""
    (factor,), (da,) = outs, tangents
    da = lax.mul(lax.add(da, conjugated(transposed(da))), 0.5)
    inner = Triangular(left_side=False, transpose_a=True)(conjugated(factor), Triangular()(factor, da))
    diagonal = lax.eq(iota(inner, -2), iota(inner, -1))
    phi = tril(where(diagonal, lax.mul(inner, 0.5), inner))
    return [matmul(factor, phi)]


def _mean_rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    return _cholesky_rule(primals, outs, [symmetrized(tangents[0])])


cholesky = Decomposition("cholesky", _cholesky, _cholesky_rule, of_complex=True)
cholesky_of_mean = Decomposition("cholesky", _cholesky_of_mean, _mean_rule, of_complex=True)

# -- lu ----------------------------------------------------------------------------------------------------------------


def _lu(a: Any) -> list[Any]:
    """L and U in one matrix, for each step the row that changed places with it, and the order of rows."""
    batch, m, n = shape_of(a)
    k = min(m, n)
    if not batch * k:
        order = base.broadcast_to(lax.broadcasted_iota(np.int32, (m,), 0), (batch, m), (1,))
        return [a, base.fill((batch, k), 0, np.dtype("int32")), order]
    strips: list[tuple[Any, Any]] = []  # of each block its columns, and its rows behind them
    moves, pivots = [], []
    for start in range(0, k, BLOCK):
        width, rows = min(k - start, BLOCK), m - start
        columns, moved, chosen = _lu_panel(transposed(lax.slice_in_dim(a, 0, width, axis=2)), np.int32(0))
        panel, rest = transposed(columns), lax.slice_in_dim(a, width, n - start, axis=2)
        if n - start > width:
            rest = lax.gather(rest, [moved], (1,), 1, "clip")
            strip = forward_block(_rows(panel, 0, width), _rows(rest, 0, width), True)
            a = lax.sub(_rows(rest, width, rows), matmul(_rows(panel, width, rows), strip)) if start + width < k else a
            rest = strip
        strips.append((panel, rest))
        moves.append(moved)
        pivots.append(lax.add(chosen, np.int32(start)))
    packed, order = _packed(strips, moves, (batch, m, n))
    return [packed, lax.concatenate(pivots, 1), order]


def _rows(x: Any, start: int, stop: int) -> Any:
    return lax.slice_in_dim(x, start, stop, axis=1)


def _packed(strips: Sequence[tuple[Any, Any]], moves: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """L and U, whose rows go where later blocks have moved them, and the order of all rows."""
    packed, order = base.fill(shape, 0, base.dtype_of(strips[0][0])), None
    for p in reversed(range(len(strips))):
        (panel, strip), moved, start = strips[p], moves[p], p * BLOCK
        _, rows, width = shape_of(panel)
        if order is not None:
            below = rows_in_order(_rows(panel, width, rows), order)
            panel = lax.concatenate([_rows(panel, 0, width), below], 1)
            later = rows_in_order(moved, lax.add(order, np.int32(width)))
            moved = lax.concatenate([lax.slice_in_dim(moved, 0, width, axis=1), later], 1)
        packed, order = lax.dynamic_update_slice(packed, panel, (0, start, start)), moved
        if shape_of(strip)[2]:
            packed = lax.dynamic_update_slice(packed, strip, (0, start, start + width))
    return packed, order


def _lu_columns(x: Any, start: Any, unit: bool) -> list[Any]:
    """Column by column, the largest element first; the columns are the rows of ``x``. Also the order of what were rows,
    and what each step has chosen."""
    batch, width, rows = shape_of(x)

    def step(j: Any, x: Any, moved: Any, chosen: Any) -> list[Any]:
        column, at = row_at(x, j), lax.add(start, j)
        number = iota(column, 1)
        open_ = lax.ge(number, broadcast(at, column))
        best = lax.argmax(where(open_, lax.abs(column), -1), 1, np.int32)
        here, there = lax.eq(number, broadcast(at, number)), lax.eq(number, broadcast(best, number, 0))

        def exchanged(values: Any, first: Any, other: Any) -> Any:
            last = len(shape_of(values)) - 1
            at, to = (broadcast(t, values, 0, last) for t in (here, there))
            axes = range(last)
            return where(at, broadcast(other, values, *axes), where(to, broadcast(first, values, *axes), values))

        first, other = row_at(x, at, 2), lax.gather(x, [best], (2,), 1, "clip")
        chosen_one = row_at(other, j)
        column, pivot = exchanged(column, row_at(first, j), chosen_one), broadcast(chosen_one, column, 0)
        x = exchanged(x, first, other)  # read element by element only, so that it is never in memory
        moved = exchanged(moved, row_at(moved, at), lax.gather(moved, [best], (1,), 1, "clip"))
        divided = lax.bitwise_and(lax.gt(number, broadcast(at, number)), lax.ne(pivot, 0))
        column = where(divided, lax.div(column, pivot), column)
        after = lax.bitwise_and(lax.gt(iota(x, 1), broadcast(j, x)), lax.gt(iota(x, 2), broadcast(at, x)))
        left = subtract_product(x, broadcast(other, x, 0, 1), broadcast(column, x, 0, 2))
        x = where(after, left, where(lax.eq(iota(x, 1), broadcast(j, x)), broadcast(column, x, 0, 2), x))
        return [x, moved, update_at(chosen, base.reshape_to(best, (batch, 1)), j, 1)]

    return fori(width, step, x, iota((batch, rows), 1), base.fill((batch, width), 0, np.dtype("int32")))


_lu_panel = PanelProgram("lu", _lu_columns)


def rows_in_order(x: Any, order: Any) -> Any:
    """The rows of matrices in the order that ``order`` gives, for each of the axes in front."""
    count = len(shape_of(order)) - 1
    return lax.gather(x, [order], (count,), count, "clip")


def inverse_order(order: Any) -> Any:
    """The places that rows had which are in this order."""
    front = len(shape_of(order)) - 1
    return lax.scatter(order, iota(order, -1), [order], (front,), front, "clip", "set")


def lu_substitute(packed: Any, order: Any, b: Any, transposed: bool = False) -> Any:
    """The x of ``a x = b`` (``aᵀ x = b``) from the factors of ``a``."""
    lower, upper = Triangular(unit_diagonal=True), Triangular(lower=False)
    if not transposed:
        return upper(packed, lower(packed, rows_in_order(b, order)))
    return rows_in_order(lower.back()(packed, upper.back()(packed, b)), inverse_order(order))


def _lu_rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """With P da = dL U + L dU: L⁻¹ P da U⁻¹ has L⁻¹ dL below its diagonal, and dU U⁻¹ on it and above."""
    (packed, _, order), (da,) = outs, tangents
    *front, m, n = shape_of(packed)
    k = min(m, n)
    if not k:
        return [da]
    left = tril(slice_at(packed, 0, k, -1), -1)
    below = lax.add(bordered(left, m, m), eye((*front, m, m), base.dtype_of(packed)))
    right = triu(slice_at(packed, 0, k, len(front)))
    above = bordered(right, n, n, True)
    inner = Triangular(unit_diagonal=True)(below, rows_in_order(da, order))
    inner = Triangular(left_side=False, lower=False)(above, inner)
    return [lax.add(matmul(below, tril(inner, -1)), matmul(triu(inner), above))]


lu = Decomposition("lu", _lu, _lu_rule, of_complex=True)
