"""Functions of matrices under the names of ``scipy.linalg``."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax import linalg as decompositions
from volta.numpy.linear_systems import square
from volta.ops import base, lax
from volta.trace.decomposition import (
    broadcast,
    conjugated,
    diagonal_of,
    eye,
    fori,
    iota,
    matmul,
    part_dtype,
    row_at,
    slice_at,
    times,
    triu,
    update_at,
    where,
)
from volta.trace.triangular import Triangular

# Padé approximants of the exponential: coefficients, and the norm up to which they are exact to rounding (Higham).
_SINGLE = ((17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0), 3.925724783138660)
_DOUBLE = (
    (
        64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
        10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
    ),
    5.371920351148152,
)  # fmt: skip


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:  # noqa: N803 - SciPy's name
    """The exponentials of matrices (…, n, n), by a Padé approximant of the matrix over a power of two, and squaring.

    Args:
        upper_triangular: what is below the diagonals counts as 0.
        max_squarings: matrices of a norm that needs more give NaN.

    Raises:
        ShapeError: for what are no square matrices, and a negative ``max_squarings``.

    >>> volta.scipy.linalg.expm(np.float32([[0, 1], [0, 0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    a = square("expm", A)
    if max_squarings < 0:
        raise ShapeError(at_user_line(f"expm: max_squarings must not be negative, got {max_squarings}"))
    return _expm(triu(a) if upper_triangular else a, int(max_squarings))


def _exponential(a: Any, most: int) -> Any:
    *front, n, _ = a.shape
    if not n:
        return a
    coefficients, reach = _SINGLE if part_dtype(a) == dtypes.float32 else _DOUBLE
    norm = lax.stop_gradient(lax.reduce_max(lax.reduce_sum(lax.abs(a), (a.ndim - 2,)), (a.ndim - 2,)))
    scale = base.fill(tuple(front), 1, part_dtype(a))
    count = base.fill(tuple(front), 0, dtypes.int32)
    for k in range(most):
        above = lax.gt(norm, reach * 2.0**k)
        scale, count = where(above, 2.0 ** -(k + 1), scale), where(above, k + 1, count)
    axes = range(len(front))
    a = times(a, broadcast(scale, a, *axes))
    one = eye(a.shape, a.dtype)
    squared = matmul(a, a)
    even, odd, power = lax.mul(one, coefficients[0]), lax.mul(one, coefficients[1]), squared
    for k in range(2, len(coefficients), 2):
        even = lax.fma(power, base.fill(a.shape, coefficients[k], a.dtype), even)
        odd = lax.fma(power, base.fill(a.shape, coefficients[k + 1], a.dtype), odd)
        power = matmul(power, squared) if k + 2 < len(coefficients) else power
    odd = matmul(a, odd)
    x = decompositions.solved(lax.sub(even, odd), lax.add(even, odd))

    def square_again(k: Any, x: Any) -> list[Any]:
        on = broadcast(lax.lt(base.spread(k, count.shape), count), x, *axes)
        given = where(on, x, 0)
        return [where(on, matmul(given, given), x)]

    (x,) = fori(most, square_again, x)
    return where(broadcast(lax.gt(norm, reach * 2.0**most), x, *axes), np.nan, x)


def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:  # noqa: N803 - SciPy's name
    """The principal square roots of matrices (…, n, n), as complex numbers, from Schur's form (Björck, Hammarling).

    Of a negative eigenvalue both roots are as near: rounding decides.

    ``blocksize`` means nothing. A matrix with several eigenvalues of 0 may have no root: infinities or NaN.

    Raises:
        ShapeError: for what are no square matrices. NotDifferentiableError: for derivatives.

    >>> volta.scipy.linalg.sqrtm(np.float32([[4, 0], [0, 9]])).tolist()
    [[(2+0j), 0j], [0j, (3+0j)]]
    """
    return _sqrtm(square("sqrtm", A))


@jit
def _sqrtm(a: Any) -> Any:
    t, z = decompositions.schur(a)
    front, n = a.shape[:-2], a.shape[-1]
    if not t.size:
        return t
    t = lax.reshape(t, (prod(front), n, n))
    root = lax.sqrt(diagonal_of(t, 0, n))
    own = lax.eq(iota(t, 1), iota(t, 2))

    def row(i: Any, x: Any) -> list[Any]:
        """From the last row up: what is right of row k's diagonal solves x (U + u I) = t, of the rows below it."""
        k = lax.sub(np.int32(n - 1), i)
        sums = lax.add(root, broadcast(row_at(root, k), root, 0))
        sums = where(lax.eq(sums, 0), float(np.finfo(t.dtype).tiny), sums)
        behind = lax.gt(iota(t, 2), broadcast(k, t))
        triangle = where(own, broadcast(sums, t, 0, 2), x)
        right = where(lax.slice_in_dim(behind, 0, 1, axis=1), slice_at(t, k, 1, 1), 0)
        found = Triangular(left_side=False, lower=False)(triangle, right)
        here = lax.eq(iota(found, 2), broadcast(k, found))
        return [update_at(x, where(here, broadcast(root, found, 0, 2), found), k, 1)]

    (x,) = fori(n, row, base.fill(t.shape, 0, t.dtype))
    x = lax.reshape(x, (*front, n, n))
    return matmul(matmul(z, x), conjugated(z), transpose_b=True)


_expm = jit(_exponential, static_argnums=1)
