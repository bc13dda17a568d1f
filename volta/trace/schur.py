"""Schur's form and the eigenvalues of general matrices, by QR iterations over complex numbers.

A matrix is divided by a power of two, made Hessenberg by reflections, and then multiplied from both sides by rotations
until what is below its diagonal is gone. An iteration works on the last block of each matrix that has something left
there; a matrix that has nothing left keeps its bits, while others of its batch go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import NotDifferentiableError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import (
    Decomposition,
    broadcast,
    conjugated,
    diagonal_of,
    eye,
    fori,
    iota,
    larger_part,
    over,
    part_dtype,
    row_at,
    scale_of,
    square_of_size,
    times,
    transposed,
    triu,
    where,
)
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.orthogonal import reflection
from volta.trace.panels import PanelProgram
from volta.trace.scan import run_scan
from volta.trace.while_loop import run_while
from volta.xla_like.panels import FOLLOW, TURN

ITERATIONS = 30
"""For each row; more are not made. An eigenvalue takes two or three."""


def hessenberg_of(a: Any) -> list[Any]:
    """H, with zeros below its first lower diagonal, and unitary Q with a = Q H Qᴴ."""
    (batch, n, _), dtype = shape_of(a), base.dtype_of(a)
    q = eye((batch, n, n), dtype)
    count = n - 1 if dtypes.is_complex(dtype) else n - 2  # the last one only makes an element real
    if count < 1 or not batch:
        return [a, q]

    def step(k: Any, a: Any, q: Any) -> list[Any]:
        at = lax.add(k, np.int32(1))
        vector, factor, last = reflection(row_at(a, k, 2), at)
        row, column = broadcast(vector, a, 0, 1), broadcast(conjugated(vector), a, 0, 2)
        share = lax.mul(lax.reduce_sum(lax.mul(a, conjugated(row)), (1,)), broadcast(conjugated(factor), vector, 0))
        a = lax.sub(a, lax.mul(row, broadcast(share, a, 0, 2)))
        number, here = iota(vector, 1), broadcast(at, vector)
        below = where(lax.eq(number, here), broadcast(last, vector, 0), 0)
        known = where(lax.ge(number, here), broadcast(k, number), -1)  # the column in which a row has it, if any
        a = where(lax.eq(iota(a, 2), broadcast(known, a, 0, 1)), broadcast(below, a, 0, 1), a)
        along = broadcast(vector, a, 0, 2)
        for x in (a, q):
            share = lax.mul(lax.reduce_sum(lax.mul(x, along), (2,)), broadcast(factor, vector, 0))
            turned = lax.sub(x, lax.mul(broadcast(share, x, 0, 1), column))
            a, q = (turned, q) if x is a else (a, turned)
        return [a, q]

    return fori(count, step, a, q)


# -- iterations --------------------------------------------------------------------------------------------------------


def _spread(x: Any, like: Any) -> Any:
    """Of each matrix, in a list (n, batch, n) of its rows or columns."""
    return broadcast(x, like, 1)


def turned(p: Any, q: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """p x + q y, and conj(p) y − conj(q) x, for each matrix."""
    p, q = broadcast(p, x, 0), broadcast(q, x, 0)
    return (
        lax.add(lax.mul(p, x), lax.mul(q, y)),
        lax.sub(lax.mul(lax.conj(p), y), lax.mul(lax.conj(q), x)),
    )


def _scanned(step: Any, carry: Sequence[Any], xs: Sequence[Any], count: int) -> list[Any]:
    def run(i: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.add(i, np.int32(1)), *step(i, *values)], None

    slices = [get_aval(x).update(shape=shape_of(x)[1:]) for x in xs]
    avals = [ShapedArray((), dtypes.int32), *map(get_aval, carry), *slices]
    program, _ = trace_to_jaxpr(run, [a.strip_weak() for a in avals], "iteration")
    return run_scan(program, [], [np.int32(0), *carry], xs, length=count, reverse=False, unroll=1)[1:]


def _rows_rotated(rows: Any, on: Any) -> list[Any]:
    """Where ``on`` (n − 1, batch) says so, neighbouring rows are rotated, so that the element below the diagonal is 0.

    The rows, and both numbers of each rotation.
    """
    n = shape_of(rows)[0]

    def step(k: Any, row: Any, below: Any, on: Any) -> list[Any]:
        f, g = row_at(row, k), row_at(below, k)
        length = lax.sqrt(lax.add(square_of_size(f), square_of_size(g)))
        on = lax.bitwise_and(on, lax.gt(length, 0))
        length = where(on, length, 1)
        p, q = where(on, over(lax.conj(f), length), 1), where(on, over(lax.conj(g), length), 0)
        first, second = turned(p, q, row, below)
        second = where(lax.eq(iota(row, 1), broadcast(k, row)), 0, second)
        wide = broadcast(on, row, 0)
        return [where(wide, second, below), where(wide, first, row), p, q, on]

    carry, rest = row_at(rows, 0, 0), lax.slice_in_dim(rows, 1, n, axis=0)
    last, done, p, q, on = _scanned(step, [carry], [rest, on], n - 1)
    return [lax.concatenate([done, lax.expand_dims(last, (0,))], 0), p, q, on]


def _columns_rotated(columns: Any, p: Any, q: Any, on: Any) -> Any:
    """The columns times the adjoints of the rotations."""
    n = shape_of(columns)[0]

    def step(k: Any, column: Any, behind: Any, p: Any, q: Any, on: Any) -> list[Any]:
        first, second = turned(lax.conj(p), lax.conj(q), column, behind)
        wide = broadcast(on, column, 0)
        return [where(wide, second, behind), where(wide, first, column)]

    carry, rest = row_at(columns, 0, 0), lax.slice_in_dim(columns, 1, n, axis=0)
    last, done = _scanned(step, [carry], [rest, p, q, on], n - 1)
    return lax.concatenate([done, lax.expand_dims(last, (0,))], 0)


def _parts(*values: Any) -> list[Any]:
    return [part(x) for x in values for part in (lax.real, lax.imag)]


def _parts_of_rows_rotated(re: Any, im: Any, on: Any, unit: bool) -> list[Any]:
    *values, on = _rows_rotated(lax.complex(re, im), on)
    return [*_parts(*values), on]


def _parts_of_columns_rotated(re: Any, im: Any, zr: Any, zi: Any, *rotations: Any, unit: bool) -> list[Any]:
    """Of H, whose rows are given, and of Z, whose columns are."""
    n, (pr, pi, qr, qi, on) = shape_of(re)[0], rotations
    both = lax.concatenate([base.permute(lax.complex(re, im), (2, 1, 0)), lax.complex(zr, zi)], 2)
    both = _columns_rotated(both, lax.complex(pr, pi), lax.complex(qr, qi), on)
    h, z = (lax.slice_in_dim(both, k, k + n, axis=2) for k in (0, n))
    return _parts(base.permute(h, (2, 1, 0)), z)


_turn = PanelProgram(TURN, _parts_of_rows_rotated)
_follow = PanelProgram(FOLLOW, _parts_of_columns_rotated)


def _diagonals(rows: Any, offset: int) -> Any:
    """(n − offset, batch): the diagonal of each matrix, or that one ``offset`` below it."""
    n, batch, _ = shape_of(rows)
    return transposed(diagonal_of(base.permute(rows, (1, 0, 2)), offset * n, n - offset))


def _shift(rows: Any, low: Any, high: Any, stalled: Any) -> Any:
    """The eigenvalue of the last two rows and columns of the block that is nearer to its last element (Wilkinson's).

    Where ten iterations have not split the block, a number of about its size that is not an eigenvalue.
    """
    dtype = base.dtype_of(rows)
    diagonal, below = _diagonals(rows, 0), _diagonals(rows, 1)
    above = transposed(diagonal_of(base.permute(rows, (1, 0, 2)), 1, shape_of(rows)[0] - 1))

    def at(x: Any, i: Any) -> Any:
        return lax.reduce_sum(where(lax.eq(iota(x, 0), broadcast(i, x, 1)), x, 0), (0,))

    before = lax.sub(high, np.int32(1))
    a, b, c, d = at(diagonal, before), at(above, before), at(below, before), at(diagonal, high)
    half = times(lax.sub(a, d), np.float64(0.5).astype(part_dtype(rows)))
    product = lax.mul(b, c)
    root = lax.sqrt(lax.add(lax.mul(half, half), product))
    plus, minus = lax.add(half, root), lax.sub(half, root)
    larger = where(lax.ge(square_of_size(plus), square_of_size(minus)), plus, minus)
    none = lax.eq(square_of_size(larger), 0)
    usual = lax.sub(d, where(none, 0, lax.div(product, where(none, 1, larger))))
    odd = lax.rem(stalled, np.int32(20))
    for turn, element, near in ((10, at(below, low), at(diagonal, low)), (0, c, d)):
        size = lax.mul(lax.sqrt(square_of_size(element)), 0.75)
        other = lax.add(near, lax.convert_element_type(size, dtype))
        chosen = lax.bitwise_and(lax.eq(odd, np.int32(turn)), lax.gt(stalled, np.int32(0)))
        usual = where(chosen, other, usual)
    return usual


def _iterated(h: Any, z: Any) -> tuple[Any, Any, Any]:
    """T and Z with h = Z T Zᴴ times what ``z`` has already, and whether it was reached."""
    batch, n, _ = shape_of(h)
    eps = float(np.finfo(base.dtype_of(h)).eps)

    def iteration(number: Any, left: Any, stalled: Any, before: Any, rows: Any, columns: Any) -> Any:
        diagonal, below = larger_part(_diagonals(rows, 0)), larger_part(_diagonals(rows, 1))
        near = lax.add(lax.slice_in_dim(diagonal, 0, n - 1, axis=0), lax.slice_in_dim(diagonal, 1, n, axis=0))
        linked = lax.gt(below, lax.max(lax.mul(near, eps), base.fill(shape_of(below), eps * eps, part_dtype(h))))
        place = iota(linked, 0)
        high = lax.add(lax.reduce_max(where(linked, place, -1), (0,)), np.int32(1))
        apart = lax.bitwise_and(lax.bitwise_not(linked), lax.lt(place, broadcast(high, place, 1)))
        low = lax.add(lax.reduce_max(where(apart, place, -1), (0,)), np.int32(1))
        left = lax.gt(high, np.int32(0))
        stalled = where(lax.eq(high, before), lax.add(stalled, np.int32(1)), 0)
        on = lax.bitwise_and(lax.ge(place, broadcast(low, place, 1)), lax.lt(place, broadcast(high, place, 1)))
        row, column = iota(rows, 0), iota(rows, 2)
        gone = lax.bitwise_and(
            lax.eq(row, lax.add(column, np.int32(1))),
            lax.bitwise_not(broadcast(_before(linked), rows, 0, 1)),
        )
        rows = where(gone, 0, rows)
        shift = where(left, _shift(rows, low, high, stalled), 0)
        block = lax.bitwise_and(lax.ge(row, _spread(low, rows)), lax.le(row, _spread(high, rows)))
        block = lax.bitwise_and(lax.bitwise_and(block, lax.eq(row, column)), _spread(left, rows))
        wide = _spread(shift, rows)
        re, im, *rotations = _turn(*_parts(where(block, lax.sub(rows, wide), rows)), on)
        re, im, zr, zi = _follow(re, im, *_parts(columns), *rotations)
        rows = where(block, lax.add(lax.complex(re, im), wide), lax.complex(re, im))
        return [lax.add(number, np.int32(1)), left, stalled, high, rows, lax.complex(zr, zi)], None

    def going_on(number: Any, left: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.bitwise_and(lax.lt(number, np.int32(ITERATIONS * n)), lax.reduce_or(left, (0,)))], None

    none = base.fill((batch,), 0, np.dtype(np.int32))
    begin = [
        np.int32(0), base.fill((batch,), True, np.dtype(bool)), none, none,
        base.permute(h, (1, 0, 2)), base.permute(z, (2, 0, 1)),
    ]  # fmt: skip
    avals = [get_aval(x).strip_weak() for x in begin]
    programs = [trace_to_jaxpr(f, avals, "iteration")[0] for f in (going_on, iteration)]
    _, left, _, _, rows, columns = run_while(programs[0], [], programs[1], [], begin)
    return triu(base.permute(rows, (1, 0, 2))), base.permute(columns, (1, 2, 0)), lax.bitwise_not(left)


def _before(linked: Any) -> Any:
    """Of each row, whether it is linked to the one before it; the first one counts as linked."""
    return lax.concatenate([base.fill((1, shape_of(linked)[1]), True, np.dtype(bool)), linked], 0)


def schur_of(a: Any) -> list[Any]:
    """T, upper triangular, and unitary Z with a = Z T Zᴴ: complex numbers, NaN where the matrix is not finite."""
    (batch, n, _), dtype = shape_of(a), np.result_type(base.dtype_of(a), np.complex64)
    if not batch * n:
        return [lax.convert_element_type(a, dtype)] * 2
    finite = lax.reduce_and(lax.lt(larger_part(a), np.inf), (1, 2))
    a = where(broadcast(finite, a, 0), a, 0)
    scale = broadcast(scale_of(a), a, 0)
    t, z = (lax.convert_element_type(x, dtype) for x in hessenberg_of(over(a, scale)))
    found = finite
    if n > 1:
        t, z, reached = _iterated(t, z)
        found = lax.bitwise_and(finite, reached)
    return [where(broadcast(found, x, 0), x, np.nan) for x in (times(t, scale), z)]


def no_rule(name: str) -> Any:
    def rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        raise NotDifferentiableError(
            at_user_line(
                f"{name} has no derivative: the matrix determines the form only up to the order of eigenvalues and "
                "phases. Eigenvalues and eigenvectors (volta.numpy.linalg.eig) have one"
            )
        )

    return rule


hessenberg = Decomposition("hessenberg", hessenberg_of, no_rule("hessenberg"), of_complex=True)
schur = Decomposition("schur", schur_of, no_rule("schur"), of_complex=True)
