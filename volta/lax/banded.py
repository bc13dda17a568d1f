"""Equations of banded matrices, by elimination from the first row to the last."""

from __future__ import annotations

from typing import Any

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.loops import scan
from volta.ops import base, lax


def tridiagonal_solve(dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike) -> Array:
    """The solution x of ``A x = b`` for tridiagonal matrices A, by elimination with partial pivoting.

    Args:
        dl: (…, n), below the diagonal: ``dl[i] = A[i, i - 1]``; ``dl[0]`` is not read.
        d: (…, n), the diagonal.
        du: (…, n), above it: ``du[i] = A[i, i + 1]``; ``du[n - 1]`` is not read.
        b: (…, n, k).

    Returns:
        (…, n, k). Infinite or NaN where a matrix is singular.

    Raises:
        ShapeError: the shapes do not fit. DTypeError: they are not of one dtype of floats.

    >>> two, one = np.full(3, 2.0), np.ones(3)
    >>> lax.linalg.tridiagonal_solve(one, two, one, np.float64([[3], [4], [3]])).tolist()
    [[1.0], [1.0], [1.0]]
    """
    avals = [get_aval(x) for x in (dl, d, du, b)]
    shape, dtype = avals[3].shape, avals[3].dtype
    if dtype not in (dtypes.float32, dtypes.float64) or any(a.dtype != dtype for a in avals):
        text = "takes float32 or float64, and one of them, got " + ", ".join(a.short() for a in avals)
        raise DTypeError(at_user_line(f"tridiagonal_solve: {text}"))
    if len(shape) < 2 or any(a.shape != shape[:-1] for a in avals[:3]) or not shape[-2]:
        text = "takes three diagonals (…, n) and (…, n, k), n at least 1, got " + ", ".join(a.short() for a in avals)
        raise ShapeError(at_user_line(f"tridiagonal_solve: {text}"))
    place = len(shape) - 2
    low, middle, up = (base.move_axis(lax.expand_dims(x, (place + 1,)), place, 0) for x in (dl, d, du))
    right = base.move_axis(b, place, 0)
    diagonals = [lax.broadcast_in_dim(x, right.shape, tuple(range(len(shape)))) for x in (low, middle, up)]
    zero = lax.full((*shape[:-2], shape[-1]), 0, dtype)

    def eliminate(row: Any, below: Any) -> tuple[Any, Any]:
        """``row`` has the elements of two columns and the right-hand side, ``below`` those of three and its own."""
        own, other = (row[0], row[1], zero, row[2]), below
        swapped = lax.gt(lax.abs(other[0]), lax.abs(own[0]))
        pivot = [lax.select_n(swapped, x, y) for x, y in zip(own, other, strict=True)]
        rest = [lax.select_n(swapped, y, x) for x, y in zip(own, other, strict=True)]
        factor = lax.div(rest[0], pivot[0])
        left = tuple(lax.sub(x, lax.mul(factor, y)) for x, y in zip(rest[1:], pivot[1:], strict=True))
        return left, tuple(pivot)

    def substitute(known: Any, pivot: Any) -> tuple[Any, Any]:
        """The unknown of a row, from the two behind it."""
        total = lax.sub(lax.sub(pivot[3], lax.mul(pivot[1], known[0])), lax.mul(pivot[2], known[1]))
        x = lax.div(total, pivot[0])
        return (x, known[0]), x

    columns = [*diagonals, right]
    first = (diagonals[1][0], diagonals[2][0], right[0])
    last, pivots = scan(eliminate, first, tuple(x[1:] for x in columns))
    end = lax.div(last[2], last[0])
    _, others = scan(substitute, (end, zero), pivots, reverse=True)
    out: Array = base.move_axis(lax.concatenate([others, end[None]], 0), 0, place)
    return out
