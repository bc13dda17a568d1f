"""Schur's form of real matrices in real numbers, by QR iterations with two shifts at once.

A pair of shifts is a pair of conjugate eigenvalues, or two real ones, so nothing is complex. What is left on the
diagonal are blocks of one row, or of two whose eigenvalues are conjugate to the bit.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from volta.core.interp import get_aval
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.ops.lax import add, div, mul, neg, sub
from volta.trace.decomposition import (
    Decomposition,
    bordered,
    broadcast,
    diagonal_of,
    fori,
    iota,
    larger_part,
    over,
    row_at,
    scale_of,
    slice_at,
    times,
    transposed,
    update_at,
    where,
)
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.panels import PanelProgram
from volta.trace.schur import ITERATIONS, hessenberg_of, no_rule, turned
from volta.trace.while_loop import run_while
from volta.xla_like.panels import CHASE


def _all(*tests: Any) -> Any:
    return reduce(lax.bitwise_and, tests)


def _signed(size: Any, like: Any) -> Any:
    """``size`` with the sign of ``like``, of which 0 is positive."""
    return where(lax.lt(like, 0), neg(size), size)


def _diagonals(h: Any, n: int) -> tuple[Any, Any, Any]:
    """Of matrices with a border the diagonal, that below it and that above it."""
    return diagonal_of(h, 0, n), diagonal_of(h, n + 1, n - 1), diagonal_of(h, 1, n - 1)


# -- iterations --------------------------------------------------------------------------------------------------------


def _reflection(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any, Any]:
    """The factors (1, v, w) and t of 1 − t (1, v, w)ᵀ(1, v, w), which takes (x, y, z) to its length times (1, 0, 0)."""
    size = lax.max(lax.max(lax.abs(x), lax.abs(y)), lax.abs(z))
    some = lax.gt(lax.max(lax.abs(y), lax.abs(z)), 0)
    size = where(some, size, 1)
    x, y, z = (div(a, size) for a in (x, y, z))
    length = _signed(lax.sqrt(add(add(mul(x, x), mul(y, y)), mul(z, z))), x)
    first = where(some, add(x, length), 1)
    factor = where(some, div(first, where(some, length, 1)), 0)
    return div(y, first), div(z, first), factor, some


def _reflected(h: Any, k: Any, axis: int, on: Any, v: Any, w: Any, t: Any) -> Any:
    """Rows k to k + 2 of each matrix (columns: axis 2) less t (1, v, w)ᵀ times (1, v, w) times them, where it is on."""
    rows = slice_at(h, k, 3, axis)
    a, b, c = (row_at(rows, np.int32(i), axis) for i in range(3))
    on, v, w, t = (broadcast(x, a, 0) for x in (on, v, w, t))
    share = mul(add(add(a, mul(v, b)), mul(w, c)), t)
    turned = sub(a, share), sub(b, mul(v, share)), sub(c, mul(w, share))
    return _with_rows(h, k, axis, *(where(on, x, y) for x, y in zip(turned, (a, b, c), strict=True)))


def _with_rows(x: Any, k: Any, axis: int, *rows: Any) -> Any:
    """The matrices with these rows (columns: axis 2) from the k-th on."""
    return update_at(x, lax.concatenate([lax.expand_dims(row, (axis,)) for row in rows], axis), k, axis)


def _chased_down(
    h: Any, z: Any, linked: Any, x: Any, y: Any, end: Any, low: Any, high: Any, left: Any, unit: bool
) -> list[Any]:
    """One QR step with two shifts, whose first column is (x, y, end): what is not ``linked`` below the diagonal is 0;
    reflections from row ``low`` to ``high`` of each matrix, of the rows of z (Zᵀ) too."""
    batch, n = shape_of(h)[0], shape_of(h)[1] - 1
    apart = bordered(lax.expand_dims(lax.bitwise_not(linked), (1,)), 1, n + 1)
    under = _all(lax.eq(iota(h, 1), add(iota(h, 2), np.int32(1))), broadcast(apart, (batch, n + 1, n + 1), 0, 1, 2))
    first = x, y, end

    def step(k: Any, h: Any, z: Any) -> list[Any]:
        before = lax.max(sub(k, np.int32(1)), np.int32(0))
        below = row_at(slice_at(h, k, 3, 1), before, 2)
        begins = lax.eq(broadcast(k, low), low)
        x, y, end = (where(begins, f, row_at(below, np.int32(i), 1)) for i, f in enumerate(first))
        wide = broadcast(k, low)
        end = where(lax.ge(add(wide, np.int32(1)), high), 0, end)
        on = _all(left, lax.ge(wide, low), lax.lt(wide, high))
        v, w, t, _ = _reflection(x, y, end)
        h = _reflected(_reflected(h, k, 1, on, v, w, t), k, 2, on, v, w, t)
        column = row_at(h, before, 2)
        gone = _all(  # what the reflection has made 0 in the column before it
            broadcast(_all(on, lax.bitwise_not(begins)), column, 0), lax.gt(iota(column, 1), broadcast(k, column))
        )
        h = update_at(h, lax.expand_dims(where(gone, 0, column), (2,)), before, 2)
        return [h, _reflected(z, k, 1, on, v, w, t)]

    return fori(n - 1, step, where(under, 0, h), z)


_chased = PanelProgram(CHASE, _chased_down)


def _pick(x: Any, i: Any) -> Any:
    """Element i of each row."""
    return lax.reduce_sum(where(lax.eq(iota(x, 1), broadcast(i, x, 0)), x, 0), (1,))


def _first_column(h: Any, n: int, low: Any, high: Any, stalled: Any) -> list[Any]:
    """Of (H − s)(H − s') the first column of the block, up to a factor, for the eigenvalues s and s' of its last two
    rows; where ten iterations have not split the block, for other numbers of about their size."""
    diagonal, below, above = _diagonals(h, n)
    one, two = np.int32(1), np.int32(2)
    x, y = _pick(diagonal, high), _pick(diagonal, sub(high, one))
    product = mul(_pick(below, sub(high, one)), _pick(above, sub(high, one)))
    size = add(lax.abs(_pick(below, sub(high, one))), lax.abs(_pick(below, sub(high, two))))
    odd = _all(lax.gt(stalled, np.int32(0)), lax.eq(lax.rem(stalled, np.int32(10)), np.int32(0)))
    other = add(x, mul(size, 0.75))
    x, y = where(odd, other, x), where(odd, other, y)
    product = where(odd, mul(mul(size, size), -0.4375), product)
    a, b = _pick(diagonal, low), _pick(diagonal, add(low, one))
    under, link = _pick(below, low), _pick(below, add(low, one))
    under = where(lax.eq(under, 0), 1, under)
    head = add(div(sub(mul(sub(a, x), sub(a, y)), product), under), _pick(above, low))
    return [head, sub(sub(add(a, b), x), y), link]


def _iterated(h: Any, z: Any) -> tuple[Any, Any, Any]:
    """The block triangular form and what it was turned by, and whether it was reached."""
    batch, _, n = shape_of(z)
    eps = float(np.finfo(base.dtype_of(h)).eps)

    def iteration(number: Any, left: Any, stalled: Any, before: Any, h: Any, z: Any) -> Any:
        diagonal, below, _ = _diagonals(h, n)
        size = lax.abs(diagonal)
        near = add(lax.slice_in_dim(size, 0, n - 1, axis=1), lax.slice_in_dim(size, 1, n, axis=1))
        linked = lax.gt(
            lax.abs(below), lax.max(mul(near, eps), base.fill(shape_of(below), eps * eps, base.dtype_of(h)))
        )
        place = iota(linked, 1)
        both = _all(
            linked,
            lax.concatenate(
                [lax.slice_in_dim(linked, 1, n - 1, axis=1), base.fill((batch, 1), False, np.dtype(bool))], 1
            ),
        )
        high = add(lax.reduce_max(where(both, place, -2), (1,)), np.int32(2))
        split = _all(lax.bitwise_not(linked), lax.lt(place, broadcast(high, place, 0)))
        low = add(lax.reduce_max(where(split, place, -1), (1,)), np.int32(1))
        left = lax.gt(high, np.int32(0))
        stalled = where(lax.eq(high, before), add(stalled, np.int32(1)), 0)
        safe = where(left, high, 2)
        first = _first_column(h, n, where(left, low, 0), safe, stalled)
        h, z = _chased(h, z, linked, *first, low, high, left)
        return [add(number, np.int32(1)), left, stalled, high, h, z], None

    def going_on(number: Any, left: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.bitwise_and(lax.lt(number, np.int32(ITERATIONS * n)), lax.reduce_or(left, (0,)))], None

    none = base.fill((batch,), 0, np.dtype(np.int32))
    begin = [np.int32(0), base.fill((batch,), True, np.dtype(bool)), none, none, h, z]
    avals = [get_aval(x).strip_weak() for x in begin]
    programs = [trace_to_jaxpr(f, avals, "iteration")[0] for f in (going_on, iteration)]
    _, left, _, _, h, z = run_while(programs[0], [], programs[1], [], begin)
    return h, z, lax.bitwise_not(left)


# -- blocks of two rows ------------------------------------------------------------------------------------------------


def _rotation(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any]:
    """Cosine and sine that make (a, b; c, d) triangular, where its eigenvalues are real, or its diagonal equal; and
    where they are real."""
    half = mul(sub(a, d), 0.5)
    large, small = lax.max(lax.abs(b), lax.abs(c)), lax.min(lax.abs(b), lax.abs(c))
    opposite = lax.lt(_signed(c, b), 0)
    scale = lax.max(lax.abs(half), large)
    scale = where(lax.gt(scale, 0), scale, 1)
    root = add(mul(div(half, scale), half), mul(div(large, scale), where(opposite, neg(small), small)))
    real = lax.ge(root, 0)
    root = lax.sqrt(where(real, root, 0))
    far = add(half, _signed(mul(lax.sqrt(scale), root), half))
    length = lax.sqrt(add(mul(c, c), mul(far, far)))
    length = where(lax.gt(length, 0), length, 1)
    sigma = add(b, c)
    spread = mul(half, 2.0)
    reach = lax.sqrt(add(mul(sigma, sigma), mul(spread, spread)))
    even = lax.eq(reach, 0)
    reach = where(even, 1, reach)
    cosine = lax.sqrt(mul(add(div(lax.abs(sigma), reach), 1.0), 0.5))
    sine = neg(_signed(div(half, mul(reach, cosine)), sigma))
    cosine, sine = where(even, 1, cosine), where(even, 0, sine)
    return where(real, div(far, length), cosine), where(real, div(c, length), sine), real


def _pair_turned(x: Any, k: Any, axis: int, p: Any, q: Any) -> Any:
    """Rows (columns: axis 2) k and k + 1 of each matrix: p x + q y and p y − q x."""
    a, b = row_at(x, k, axis), row_at(x, add(k, np.int32(1)), axis)
    p, q = broadcast(p, a, 0), broadcast(q, a, 0)
    return _with_rows(x, k, axis, add(mul(p, a), mul(q, b)), sub(mul(p, b), mul(q, a)))


def _corner(h: Any, k: Any, after: Any) -> list[Any]:
    return [row_at(row_at(h, i, 1), j, 1) for i in (k, after) for j in (k, after)]


def _standard(h: Any, z: Any) -> list[Any]:
    """Blocks of two rows with equal diagonal elements and conjugate eigenvalues, or none: real ones are split. Zᵀ is
    turned too."""
    n = shape_of(z)[2]

    def step(k: Any, h: Any, z: Any) -> list[Any]:
        after = add(k, np.int32(1))
        a, b, c, d = _corner(h, k, after)
        some = lax.ne(c, 0)
        p, q, real = _rotation(a, b, c, d)
        p, q = where(some, p, 1), where(some, q, 0)
        h = _pair_turned(_pair_turned(h, k, 1, p, q), k, 2, p, q)
        z = _pair_turned(z, k, 1, p, q)
        a, b, c, d = _corner(h, k, after)
        # Of conjugate values the elements beside the diagonal have opposite signs. Where rounding made one of them 0,
        # or took it beyond, that one is no larger than it: below the diagonal it is dropped, above it is replaced.
        apart = _all(lax.lt(_signed(c, b), 0), lax.ne(b, 0))
        split = _all(some, lax.bitwise_or(real, _all(lax.bitwise_not(apart), lax.le(lax.abs(c), lax.abs(b)))))
        keep = _all(some, lax.bitwise_not(split))
        middle = mul(add(a, d), 0.5)
        hidden = neg(mul(c, np.finfo(base.dtype_of(h)).eps ** 2))
        a, d = where(keep, middle, a), where(keep, middle, d)
        b, c = where(_all(keep, lax.bitwise_not(apart)), hidden, b), where(split, 0, c)
        corner = lax.concatenate([lax.expand_dims(x, (1,)) for x in (a, b, c, d)], 1)
        corner = base.reshape_to(corner, (shape_of(h)[0], 2, 2))
        return [lax.dynamic_update_slice(h, corner, (np.int32(0), k, k)), z]

    return fori(n - 1, step, h, z)


# -- the form ----------------------------------------------------------------------------------------------------------


def _scaled_form(a: Any) -> tuple[Any, Any, Any, Any]:
    """T of about size 1 and Z, what T is divided by, and of which matrices they were found."""
    batch, n, _ = shape_of(a)
    found = lax.reduce_and(lax.lt(larger_part(a), np.inf), (1, 2))
    a = where(broadcast(found, a, 0), a, 0)
    scale = broadcast(scale_of(a), a, 0)
    if n < 2:
        return over(a, scale), base.fill(shape_of(a), 1, base.dtype_of(a)), scale, found
    h, q = hessenberg_of(over(a, scale))
    h, z = bordered(h, n + 1, n + 1), bordered(transposed(q), n + 1, n)
    if n > 2:
        h, z, reached = _iterated(h, z)
        found = lax.bitwise_and(found, reached)
    h, z = _standard(h, z)
    t, z = (lax.slice(x, (0, 0, 0), (batch, n, n)) for x in (h, z))
    return where(lax.gt(iota(t, 1), add(iota(t, 2), np.int32(1))), 0, t), transposed(z), scale, found


def real_schur_of(a: Any) -> list[Any]:
    """T, block triangular, and orthogonal Z with a = Z T Zᵀ; NaN where the matrix is not finite."""
    if not base.shape_of(a)[0] * shape_of(a)[1]:
        return [a, a]
    t, z, scale, found = _scaled_form(a)
    return [where(broadcast(found, x, 0), x, np.nan) for x in (times(t, scale), z)]


def complex_schur_of(a: Any) -> list[Any]:
    """Complex T, upper triangular, and unitary Z of real matrices: eigenvalues that are not real are neighbours on T's
    diagonal, and conjugate."""
    t, z, scale, found = _scaled_form(a)
    t, z = _complex_form(t, z)
    return [where(broadcast(found, x, 0), x, np.nan) for x in (times(t, scale), z)]


def _eigenvalues_of(t: Any) -> Any:
    """The eigenvalues of block triangular T, as complex numbers: of a block first that with a positive imaginary part,
    then its conjugate."""
    n = shape_of(t)[1]
    size = _imaginary(t)
    none = base.fill((shape_of(t)[0], 1), 0, base.dtype_of(t))
    parts = sub(lax.concatenate([size, none], 1), lax.concatenate([none, size], 1))
    return lax.complex(diagonal_of(t, 0, n), parts)


def _imaginary(t: Any) -> Any:
    """Of each element below the diagonal the imaginary part of the eigenvalues of its block: 0 where there is none."""
    n = shape_of(t)[1]
    if n < 2:
        return base.fill((shape_of(t)[0], 0), 0, base.dtype_of(t))
    below, above = diagonal_of(t, n, n - 1), diagonal_of(t, 1, n - 1)
    size = mul(lax.sqrt(lax.abs(above)), lax.sqrt(lax.abs(below)))
    return where(lax.ne(below, 0), size, 0)


def _complex_form(t: Any, z: Any) -> list[Any]:
    """Complex T, upper triangular with the very eigenvalues of the blocks, and unitary Z."""
    n, values, sizes = shape_of(t)[1], _eigenvalues_of(t), _imaginary(t)
    dtype = base.dtype_of(values)

    def step(k: Any, t: Any, z: Any, below: Any) -> list[Any]:
        size, c = row_at(sizes, k, 1), row_at(below, k, 1)
        some = lax.ne(c, 0)
        length = where(some, lax.sqrt(add(mul(size, size), mul(c, c))), 1)
        p = where(some, lax.complex(mul(size, 0.0), div(size, length)), 1)
        q = where(some, lax.convert_element_type(div(c, length), dtype), 0)
        t = _pair_rotated(t, k, lax.conj(p), q, 1)
        return [_pair_rotated(t, k, p, q, 2), _pair_rotated(z, k, p, q, 2), below]

    below = diagonal_of(t, n, n - 1) if n > 1 else sizes
    t, z = (lax.convert_element_type(x, dtype) for x in (t, z))
    t, z, _ = fori(n - 1, step, t, z, below)
    row, column = iota(t, 1), iota(t, 2)
    t = where(lax.eq(row, column), broadcast(values, t, 0, 1), t)
    return [where(lax.gt(row, column), 0, t), z]


def _pair_rotated(x: Any, k: Any, p: Any, q: Any, axis: int) -> Any:
    """Rows or columns k and k + 1 of each matrix: p x + q y and conj(p) y − conj(q) x."""
    return _with_rows(x, k, axis, *turned(p, q, row_at(x, k, axis), row_at(x, add(k, np.int32(1)), axis)))


real_schur = Decomposition("schur", real_schur_of, no_rule("schur"))
