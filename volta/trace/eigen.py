"""Eigenvalues and eigenvectors of general matrices, from Schur's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    Decomposition,
    adjoint,
    broadcast,
    diagonal_of,
    fori,
    iota,
    larger_part,
    matmul,
    over,
    part_dtype,
    row_at,
    scale_of,
    square_of_size,
    times,
    update_at,
    where,
)
from volta.trace.factors import lu, lu_substitute
from volta.trace.real_schur import complex_schur_of
from volta.trace.schur import schur_of

_FAR = 2.0**40


def _vectors_of_triangle(t: Any) -> Any:
    """The eigenvectors of upper triangular matrices of about size 1, as columns of any length: from the last row up.

    Eigenvalues that are equal to rounding count as a little apart; a vector that grows is made smaller on the way.
    """
    (batch, n, _), part = shape_of(t), part_dtype(t)
    values = diagonal_of(t, 0, n)
    least = base.fill((batch, n), float(np.finfo(part).eps), part)

    def step(i: Any, x: Any) -> list[Any]:
        k = lax.sub(np.int32(n - 1), i)
        row = row_at(t, k)
        number, here = iota(row, 1), broadcast(k, row)
        rest = matmul(lax.expand_dims(where(lax.gt(number, here), row, 0), (1,)), x)
        gap = lax.sub(broadcast(row_at(row, k), values, 0), values)
        gap = where(lax.lt(larger_part(gap), least), lax.convert_element_type(least, base.dtype_of(t)), gap)
        new = where(lax.gt(number, here), lax.neg(lax.div(lax.squeeze(rest, (1,)), gap)), 0)
        x = update_at(x, lax.expand_dims(where(lax.eq(number, here), 1, new), (1,)), k, 1)
        factor = where(lax.gt(larger_part(new), _FAR), 1 / _FAR, base.fill((batch, n), 1.0, part))
        return [times(x, broadcast(factor, x, 0, 2))]

    return fori(n, step, base.fill((batch, n, n), 0, base.dtype_of(t)))[0]


def _normalized(v: Any) -> Any:
    """Columns of length 1, whose largest element is positive."""
    v = over(v, broadcast(lax.reduce_max(larger_part(v), (1,)), v, 0, 2))
    sizes = square_of_size(v)
    v = over(v, broadcast(lax.sqrt(lax.reduce_sum(sizes, (1,))), v, 0, 2))
    largest = lax.eq(iota(v, 1), broadcast(lax.argmax(sizes, 1, np.int32), v, 0, 2))
    element = lax.reduce_sum(where(largest, v, 0), (1,))
    unit = over(lax.conj(element), lax.sqrt(square_of_size(element)))
    v = lax.mul(v, broadcast(unit, v, 0, 2))
    return where(largest, lax.complex(lax.real(v), lax.mul(lax.imag(v), 0.0)), v)


def _eig(a: Any, left: bool, right: bool) -> list[Any]:
    """Eigenvalues, and the left and right eigenvectors that are wanted."""
    (batch, n, _), real = shape_of(a), not dtypes.is_complex(base.dtype_of(a))
    if not batch * n:
        t, _ = schur_of(a)
        return [base.fill((batch, n), 0, base.dtype_of(t)), *[t] * (left + right)]
    t, z = complex_schur_of(a) if real else schur_of(a)
    values = diagonal_of(t, 0, n)
    found = lax.reduce_and(lax.lt(larger_part(t), np.inf), (1, 2))
    t = where(broadcast(found, t, 0), t, 0)
    t = over(t, broadcast(scale_of(t), t, 0))
    outs = []
    if left:  # right ones of the adjoint, which is upper triangular too where rows and columns are read from the end
        x = lax.rev(_vectors_of_triangle(lax.rev(adjoint(t), (1, 2))), (1, 2))
        outs.append(_normalized(matmul(z, x)))
    if right:
        outs.append(_normalized(matmul(z, _vectors_of_triangle(t))))
    outs = [_in_pairs(v, values) for v in outs] if real else outs
    return [values, *(where(broadcast(found, v, 0), v, np.nan) for v in outs)]


def _in_pairs(v: Any, values: Any) -> Any:
    """Of a real matrix: eigenvectors of real eigenvalues are real, those of conjugate ones conjugate.

    The real part of an eigenvector is one too; where eigenvalues are all but equal it may be shorter by some digits.
    """
    before = lax.concatenate([lax.slice_in_dim(v, 0, 1, axis=2), lax.slice_in_dim(v, 0, -1, axis=2)], 2)
    part = broadcast(lax.imag(values), v, 0, 2)
    v = where(lax.lt(part, 0), lax.conj(before), v)
    real = _normalized(lax.convert_element_type(lax.real(v), base.dtype_of(v)))
    return where(lax.eq(part, 0), lax.convert_element_type(lax.real(real), base.dtype_of(v)), v)


def _solution(a: Any, b: Any) -> Any:
    packed, _, order = lu(a)
    return lu_substitute(packed, order, b)


def _moved(values: Any, v: Any, da: Any) -> tuple[Any, Any]:
    """The eigenvalues' tangents are the diagonal of V⁻¹ da V; V moves by what is beside it, divided by the distances.

    Lengths stay 1, and largest elements real.
    """
    last = len(shape_of(v)) - 1
    front = tuple(range(last - 1))
    inner = _solution(v, matmul(da, v))
    same = lax.eq(iota(inner, -2), iota(inner, -1))
    gaps = lax.sub(broadcast(values, inner, *front, last), broadcast(values, inner, *front, last - 1))
    dv = matmul(v, where(same, 0, lax.div(inner, where(same, 1, gaps))))
    place = broadcast(lax.argmax(square_of_size(v), last - 1, np.int32), v, *front, last)
    largest = lax.eq(iota(v, -2), place)
    element, change = (lax.reduce_sum(where(largest, x, 0), (last - 1,)) for x in (v, dv))
    along = lax.real(lax.reduce_sum(lax.mul(lax.conj(v), dv), (last - 1,)))
    fixed = lax.complex(lax.neg(along), lax.neg(lax.div(lax.imag(change), lax.real(element))))
    dv = lax.add(dv, lax.mul(v, broadcast(fixed, v, *front, last)))
    return lax.reduce_sum(where(same, inner, 0), (last,)), dv


def _eig_rule(left: bool, right: bool) -> Any:
    def rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        values, *vectors = outs
        da = lax.convert_element_type(tangents[0], base.dtype_of(values))
        v = vectors[-1] if right else eig[False, True](primals[0])[1]
        dw, dv = _moved(values, v, da)
        found = [dw]
        if left:
            found.append(_moved(lax.conj(values), vectors[0], adjoint(da))[1])
        return [*found, dv] if right else found

    return rule


eig = {
    (left, right): Decomposition(
        "eig", lambda a, left=left, right=right: _eig(a, left, right), _eig_rule(left, right), of_complex=True
    )
    for left in (False, True)
    for right in (False, True)
}
"""By whether left and right eigenvectors are wanted."""
