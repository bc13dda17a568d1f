"""QR by Householder reflections. A block of columns is reflected one by one; products do the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.errors import NotDifferentiableError
from volta.core.source import at_user_line
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    BLOCK,
    Decomposition,
    adjoint,
    broadcast,
    conjugated,
    eye,
    fori,
    iota,
    larger_part,
    matmul,
    over,
    real_part,
    row_at,
    square_of_size,
    subtract_product,
    transposed,
    tril,
    triu,
    update_at,
    where,
)
from volta.trace.panels import PanelProgram
from volta.trace.triangular import Triangular, substituted
from volta.xla_like.panels import TRIANGLE


def householder(a: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """R, and of each block of reflections their vectors as columns, from its diagonal on, and T of I − V T Vᴴ."""
    batch, m, n = shape_of(a)
    k, blocks = min(m, n), []
    r = base.fill((batch, k, n), 0, base.dtype_of(a))
    for start in range(0, k, BLOCK):
        width = min(k - start, BLOCK)
        columns, factors = _panel(transposed(lax.slice_in_dim(a, 0, width, axis=2)), np.int32(0))
        panel = transposed(columns)
        vectors = _vectors(panel)
        blocks.append((vectors, triangle_of(vectors, factors)))
        r = lax.dynamic_update_slice(r, triu(lax.slice_in_dim(panel, 0, width, axis=1)), (0, start, start))
        if width < n - start:
            a = apply_block(*blocks[-1], lax.slice_in_dim(a, width, n - start, axis=2), True)
            r = lax.dynamic_update_slice(r, lax.slice_in_dim(a, 0, width, axis=1), (0, start, start + width))
            a = lax.slice_in_dim(a, width, m - start, axis=1)
    return r, blocks


def element_at(x: Any, at: Any) -> Any:
    """One element of each row, as the largest of it and of nothing: so that a row is read and written by one kernel."""

    def only(part: Any) -> Any:
        return lax.reduce_max(where(lax.eq(iota(part, 1), broadcast(at, part)), part, -np.inf), (1,))

    return lax.complex(only(lax.real(x)), only(lax.imag(x))) if dtypes.is_complex(base.dtype_of(x)) else only(x)


def reflection(column: Any, at: Any) -> tuple[Any, Any, Any]:
    """What reflects a column's elements from ``at`` on onto the one there: I − factor v vᴴ, whose adjoint does it.

    The vector (1 at ``at``, 0 before it), the factor, and what the element becomes: a real number, of the other sign.
    """
    number, here, dtype = iota(column, 1), broadcast(at, column), base.dtype_of(column)
    open_ = where(lax.ge(number, here), column, 0)
    size = lax.reduce_max(larger_part(open_), (1,))
    size = where(lax.eq(size, 0), 1, size)
    scaled = over(open_, broadcast(size, column, 0))  # so that no reflection is of subnormal numbers
    below, first = where(lax.gt(number, here), scaled, 0), element_at(scaled, at)
    length = lax.sqrt(lax.reduce_sum(square_of_size(scaled), (1,)))
    done = lax.reduce_and(lax.eq(below, 0), (1,))
    if dtypes.is_complex(dtype):
        done = lax.bitwise_and(done, lax.eq(lax.imag(first), 0))
    last = where(done, real_part(first), where(lax.lt(real_part(first), 0), length, lax.neg(length)))
    gap = lax.sub(first, lax.convert_element_type(last, dtype))
    factor = where(done, 0, over(lax.neg(gap), where(done, 1, last)))
    vector = where(lax.eq(number, here), 1, lax.div(below, broadcast(where(done, 1, gap), below, 0)))
    return vector, factor, where(done, element_at(column, at), lax.convert_element_type(lax.mul(last, size), dtype))


def _reflected_columns(x: Any, start: Any, unit: bool) -> list[Any]:
    """A block, whose columns are the rows of ``x``: each is reflected onto its diagonal element, with those behind."""
    batch, width, _ = shape_of(x)

    def step(j: Any, x: Any, factors: Any) -> list[Any]:
        column, at = row_at(x, j), lax.add(start, j)
        number, here = iota(column, 1), broadcast(at, column)
        vector, factor, last = reflection(column, at)
        along = lax.reduce_sum(lax.mul(x, broadcast(conjugated(vector), x, 0, 2)), (2,))
        share = lax.mul(along, broadcast(conjugated(factor), along, 0))
        after = subtract_product(x, broadcast(share, x, 0, 1), broadcast(vector, x, 0, 2))
        own = where(lax.gt(number, here), vector, where(lax.eq(number, here), broadcast(last, column, 0), column))
        number, here = iota(x, 1), broadcast(j, x)
        x = where(lax.gt(number, here), after, where(lax.eq(number, here), broadcast(own, x, 0, 2), x))
        return [x, update_at(factors, base.reshape_to(factor, (batch, 1)), j, 1)]

    return fori(width, step, x, base.fill((batch, width), 0, base.dtype_of(x)))


_panel = PanelProgram("qr", _reflected_columns)


def _vectors(panel: Any) -> Any:
    """The reflections' vectors of a block as columns."""
    row, column = iota(panel, 1), iota(panel, 2)
    return where(lax.gt(row, column), panel, lax.convert_element_type(lax.eq(row, column), base.dtype_of(panel)))


def triangle_of(vectors: Any, factors: Any) -> Any:
    """T = (1 + D S)⁻¹ D of a block's reflections: D their factors, S = Vᴴ V above its diagonal."""
    return _triangle(matmul(conjugated(vectors), vectors, transpose_a=True), factors)[0]


def _solved_triangle(products: Any, factors: Any, unit: bool) -> list[Any]:
    inner = triu(products, 1)
    scale = broadcast(factors, inner, 0, 1)
    diagonal = where(lax.eq(iota(inner, 1), iota(inner, 2)), scale, 0)
    return [substituted(Triangular(lower=False, unit_diagonal=True), lax.mul(scale, inner), diagonal)]


_triangle = PanelProgram(TRIANGLE, _solved_triangle)


def apply_block(vectors: Any, t: Any, x: Any, back: bool) -> Any:
    """x − V T Vᴴ x: the block's reflections of x, from the last to the first; ``back`` with Tᴴ, from the first."""
    onto = conjugated(vectors)
    t = conjugated(t) if back else t
    return lax.sub(x, matmul(vectors, matmul(t, matmul(onto, x, transpose_a=True), transpose_a=back)))


def _product(blocks: Sequence[tuple[Any, Any]], columns: int) -> Any:
    """The first columns of the product of all reflections: of the identity's, those that a block meets."""
    batch, m, _ = shape_of(blocks[0][0])
    q = eye((batch, m, columns), base.dtype_of(blocks[0][0]))
    for vectors, t in reversed(blocks):
        start = m - shape_of(vectors)[1]
        inside = apply_block(vectors, t, lax.slice(q, (0, start, start), (batch, m, columns)), False)
        q = lax.dynamic_update_slice(q, inside, (0, start, start))
    return q


def qr_of(a: Any, full: bool) -> list[Any]:
    """Q and R of (batch, m, n): all m columns of Q, or the first min(m, n)."""
    batch, m, n = shape_of(a)
    k = m if full else min(m, n)
    if not batch * m * n:
        return [eye((batch, m, k), base.dtype_of(a)), base.fill((batch, k, n), 0, base.dtype_of(a))]
    r, blocks = householder(a)
    r = lax.pad(r, np.zeros((), base.dtype_of(a)), [(0, 0, 0), (0, k - shape_of(r)[1], 0), (0, 0, 0)])
    return [_product(blocks, k), r]


def _turning(q: Any, r: Any, da: Any) -> tuple[Any, Any]:
    """Of a = q r with square r. The part below the diagonal of Qᴴ da R⁻¹ says how Q turns; R's diagonal stays real."""
    moved = Triangular(left_side=False, lower=False)(r, da)
    inner = matmul(conjugated(q), moved, transpose_a=True)
    below = tril(inner, -1)
    rotation = lax.sub(below, adjoint(below))
    if dtypes.is_complex(base.dtype_of(inner)):
        phases = lax.complex(lax.mul(lax.real(inner), 0.0), lax.imag(inner))
        rotation = where(lax.eq(iota(inner, -2), iota(inner, -1)), phases, rotation)
    return lax.add(matmul(q, lax.sub(rotation, inner)), moved), matmul(lax.sub(inner, rotation), r)


def _rule(full: bool) -> Any:
    def rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """A wide matrix turns Q by its first columns."""
        (a,), (q, r), (da,) = primals, outs, tangents
        *front, m, n = shape_of(a)
        last = len(front) + 1
        if full and m > n:
            raise NotDifferentiableError(
                at_user_line(
                    f"qr of matrices {m} x {n} with all columns of Q has no derivative: the matrix does not determine "
                    "them. Take the reduced one"
                )
            )
        dq, dr = _turning(q, *(lax.slice_in_dim(x, 0, min(m, n), axis=last) for x in (r, da)))
        if m < n:
            rest, moved = (lax.slice_in_dim(x, m, n, axis=last) for x in (a, da))
            more = lax.add(*(matmul(conjugated(x), y, transpose_a=True) for x, y in ((dq, rest), (q, moved))))
            dr = lax.concatenate([dr, more], last)
        return [dq, dr]

    return rule


qr = {
    full: Decomposition("qr", lambda a, full=full: qr_of(a, full), _rule(full), of_complex=True)
    for full in (False, True)
}
