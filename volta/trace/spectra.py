"""Eigenvalues of symmetric (Hermitian) matrices and singular values, by Jacobi's rotations.

Half of the rows meets the other half, pair by pair; then they change places as in a tournament, so that in one sweep
each meets each. A matrix whose pairs are all orthogonal already is left as it is, bit for bit, while others of its
batch go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    adjoint,
    broadcast,
    conjugated,
    diagonal_of,
    eye,
    fori,
    iota,
    larger_part,
    matmul,
    over,
    part_dtype,
    real_part,
    scale_of,
    square_of_size,
    times,
    transposed,
    where,
)
from volta.trace.factors import rows_in_order
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.orthogonal import qr_of
from volta.trace.panels import PanelProgram
from volta.trace.reduction import tridiagonal, turned_back
from volta.trace.tridiagonal import tridiagonal_eigh
from volta.trace.while_loop import run_while
from volta.xla_like.panels import ROWS, SWEEP, SWEEPS


def _sweeps(count: int, rotate_pairs: Callable[..., tuple[list[Any], Any]], *start: Any) -> list[Any]:
    """Sweeps of ``count`` rounds as long as a pair of some matrix is rotated. ``rotate_pairs`` gives values and who
    rotated."""

    def round_(i: Any, moved: Any, *values: Any) -> list[Any]:
        found, rotated = rotate_pairs(*values)
        return [lax.bitwise_or(moved, lax.reduce_or(rotated, (1,))), *found]

    def sweep(moved: Any, *values: Any) -> list[Any]:
        none = base.fill(shape_of(moved), False, np.dtype(bool))
        return fori(count, round_, none, *values)

    return _repeated(sweep, base.fill(shape_of(start[0])[:1], True, np.dtype(bool)), *start)


def _repeated(sweep: Callable[..., Sequence[Any]], moved: Any, *start: Any) -> list[Any]:
    """Sweeps as long as one of them has ``moved`` some matrix, which it gives before its values."""

    def step(number: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.add(number, np.int32(1)), *sweep(*values)], None

    def going_on(number: Any, moved: Any, *values: Any) -> tuple[list[Any], None]:
        return [lax.bitwise_and(lax.lt(number, np.int32(SWEEPS)), lax.reduce_or(moved, (0,)))], None

    begin = [np.int32(0), moved, *start]
    avals: list[ShapedArray] = [get_aval(x).strip_weak() for x in begin]
    programs = [trace_to_jaxpr(f, avals, "sweep")[0] for f in (going_on, step)]
    return run_while(programs[0], [], programs[1], [], begin)[2:]


def _next_round(x: Any, axis: int) -> Any:
    """Everybody but the first moves on by one seat."""
    n = shape_of(x)[axis]
    half = n // 2
    if half < 2:
        return x
    cuts = [(0, 1), (half, half + 1), (1, half - 1), (half + 1, n), (half - 1, half)]
    return lax.concatenate([lax.slice_in_dim(x, i, j, axis=axis) for i, j in cuts if i < j], axis)


def _rotated(c: Any, s: Any, rotated: Any, x: Any, axis: int) -> Any:
    """The pairs of an axis, rotated: c x − s y and c y + conj(s) x, with real c."""
    half = shape_of(x)[axis] // 2
    x, y = (lax.slice_in_dim(x, i, i + half, axis=axis) for i in (0, half))
    c, s, rotated = (broadcast(v, x, 0, axis) for v in (c, s, rotated))
    if dtypes.is_complex(base.dtype_of(x)):
        first = lax.sub(times(x, c), lax.mul(s, y))
        second = lax.add(times(y, c), lax.mul(lax.conj(s), x))
    else:
        first = lax.fma(c, x, lax.neg(lax.mul(s, y)))
        second = lax.fma(c, y, lax.mul(s, x))
    return lax.concatenate([where(rotated, first, x), where(rotated, second, y)], axis)


def _turn(xy: Any) -> tuple[Any, Any]:
    """What two rows have in common, as a real number, and the unit that takes it there: 1 of real rows (None)."""
    if not dtypes.is_complex(base.dtype_of(xy)):
        return xy, None
    scale = larger_part(xy)
    xy = over(xy, where(lax.gt(scale, 0), scale, 1))  # so that it is a unit also of numbers whose squares vanish
    size = lax.sqrt(square_of_size(xy))
    return lax.mul(scale, size), over(xy, where(lax.gt(size, 0), size, 1))


def _angle(xx: Any, yy: Any, xy: Any, rotated: Any) -> tuple[Any, Any, Any]:
    """Tangent (the smaller one), cosine and sine of what makes a pair orthogonal."""
    z = lax.div(lax.mul(lax.sub(yy, xx), 0.5), where(rotated, xy, 1))
    size = lax.abs(z)
    far = 1 / float(np.finfo(base.dtype_of(xx)).eps)
    bound = lax.min(size, base.fill(shape_of(z), far, base.dtype_of(z)))
    t = lax.div(1.0, lax.add(size, lax.sqrt(lax.fma(bound, bound, 1.0))))
    t = where(lax.gt(size, far), lax.div(0.5, size), t)
    t = where(lax.lt(z, 0), lax.neg(t), t)
    c = lax.div(1.0, lax.sqrt(lax.fma(t, t, 1.0)))
    return t, c, lax.mul(t, c)


def _row_norms(x: Any) -> Any:
    """Of rows. Many rotations change them by a rounding each, and what they rotate alike: division mends both."""
    return lax.sqrt(lax.reduce_sum(square_of_size(x), (2,)))


def _symmetric_sweeps(x: Any, least: Any, unit: bool) -> list[Any]:
    """Pairs of rows and columns whose common element is above ``least`` are rotated: (batch, n, n) with even n."""
    batch, size, _ = shape_of(x)
    dtype, half = base.dtype_of(x), size // 2

    def rotate_pairs(x: Any, v: Any) -> tuple[list[Any], Any]:
        whole = real_part(diagonal_of(x, 0, size))
        xx, yy = (lax.slice_in_dim(whole, i, i + half, axis=1) for i in (0, half))
        xy, unit = _turn(diagonal_of(x, half, half))
        rotated = lax.gt(lax.abs(xy), broadcast(least, xy, 0))
        t, c, s = _angle(xx, yy, xy, rotated)
        change = where(rotated, lax.mul(t, xy), 0)
        diagonal = lax.convert_element_type(lax.concatenate([lax.sub(xx, change), lax.add(yy, change)], 1), dtype)
        s = s if unit is None else times(unit, s)
        x = _rotated(c, conjugated(s), rotated, _rotated(c, s, rotated, x, 1), 2)
        row, column = iota(x, 1), iota(x, 2)
        met = lax.concatenate([rotated, rotated], 1)
        pair = lax.bitwise_and(lax.eq(lax.abs(lax.sub(row, column)), np.int32(half)), broadcast(met, x, 0, 1))
        x = where(lax.eq(row, column), broadcast(diagonal, x, 0, 1), where(pair, 0, x))
        return [_next_round(_next_round(x, 1), 2), _next_round(_rotated(c, s, rotated, v, 1), 1)], rotated

    return _sweeps(size - 1, rotate_pairs, x, eye((batch, size, size), dtype))


_symmetric = PanelProgram("symmetric", _symmetric_sweeps)


def _eigh(a: Any) -> list[Any]:
    """Eigenvalues, ascending, and the eigenvectors as columns."""
    batch, n, _ = shape_of(a)
    if not batch * n:
        return [base.fill((batch, n), 0, part_dtype(a)), a]
    return _rotated_eigh(a) if n <= ROWS else _divided_eigh(a)


def _divided_eigh(a: Any) -> list[Any]:
    """By the tridiagonal form."""
    batch, n, _ = shape_of(a)
    scale = scale_of(a)
    x = over(a, broadcast(scale, a, 0))
    good = lax.reduce_and(lax.lt(larger_part(x), np.inf), (1, 2))
    d, e, groups = tridiagonal(where(broadcast(good, x, 0), x, 0))
    size = lax.abs(e)
    sides = [lax.pad(size, np.zeros((), base.dtype_of(e)), [(0, 0, 0), pad]) for pad in ((1, 0, 0), (0, 1, 0))]
    rows = lax.add(lax.abs(d), lax.add(*sides))
    own = scale_of(base.reshape_to(rows, (batch, 1, n)))
    d, e = (lax.div(y, broadcast(own, y, 0)) for y in (d, e))
    values, vectors = tridiagonal_eigh(d, e, _rotated_eigh)
    vectors = turned_back(groups, lax.convert_element_type(vectors, base.dtype_of(a)))
    values = lax.mul(lax.mul(values, broadcast(own, values, 0)), broadcast(scale, values, 0))
    return [where(broadcast(good, y, 0), y, np.nan) for y in (values, vectors)]


def _rotated_eigh(a: Any) -> list[Any]:
    """By rotations."""
    batch, n, _ = shape_of(a)
    dtype = base.dtype_of(a)
    scale = scale_of(a)
    x = over(a, broadcast(scale, a, 0))
    norm = lax.sqrt(lax.reduce_sum(square_of_size(x), (1, 2)))
    least = lax.mul(norm, float(np.finfo(dtype).eps) / (4 * n))
    size = n + n % 2
    x = lax.pad(x, np.zeros((), dtype), [(0, 0, 0), (0, size - n, 0), (0, size - n, 0)])
    x, v = _symmetric(x, least)
    values = real_part(lax.slice_in_dim(diagonal_of(x, 0, size), 0, n, axis=1))
    order = _ascending(values)
    values = lax.mul(rows_in_order(values, order), broadcast(scale, values, 0))
    v = lax.slice(v, (0, 0, 0), (batch, n, n))
    vectors = adjoint(rows_in_order(over(v, broadcast(_row_norms(v), v, 0, 1)), order))
    good = lax.lt(norm, np.inf)
    return [where(broadcast(good, values, 0), values, np.nan), where(broadcast(good, vectors, 0), vectors, np.nan)]


def _ascending(values: Any) -> Any:
    return lax.sort_key_val(values, iota(values, 1), 1)[1]


def _eigh_rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """dw is the diagonal of Vᴴ da V; V turns by what is beside it, divided by the distances of eigenvalues."""
    (w, v), (da,) = outs, tangents
    inner = matmul(conjugated(v), matmul(da, v), transpose_a=True)
    last = len(shape_of(inner)) - 1
    front = tuple(range(last - 1))
    same = lax.eq(iota(inner, -2), iota(inner, -1))
    gaps = lax.sub(broadcast(w, inner, *front, last), broadcast(w, inner, *front, last - 1))
    rotation = where(same, 0, over(inner, where(same, 1, gaps)))
    return [lax.reduce_sum(where(same, real_part(inner), 0), (last,)), matmul(v, rotation)]


eigh = Decomposition("eigh", _eigh, _eigh_rule, of_complex=True)


def _row_pairs(x: Any, least: Any, v: Any, only: Any = None) -> tuple[list[Any], Any]:
    """Pairs of rows whose product is above ``least`` of their lengths are rotated, of ``only`` some matrices."""
    half = shape_of(x)[1] // 2
    first, second = (lax.slice_in_dim(x, i, i + half, axis=1) for i in (0, half))
    xx, yy = (lax.reduce_sum(square_of_size(p), (2,)) for p in (first, second))
    xy, unit = _turn(lax.reduce_sum(lax.mul(first, conjugated(second)), (2,)))
    rotated = lax.gt(lax.abs(xy), lax.mul(lax.mul(lax.sqrt(xx), lax.sqrt(yy)), broadcast(least, xy, 0)))
    if only is not None:
        rotated = lax.bitwise_and(rotated, broadcast(only, rotated, 0))
    _, c, s = _angle(xx, yy, xy, rotated)
    s = s if unit is None else times(unit, s)
    return [_next_round(_rotated(c, s, rotated, y, 1), 1) for y in (x, v)], rotated


def _row_sweeps(x: Any, least: Any, unit: bool) -> list[Any]:
    """As long as a pair is rotated: an even number of rows."""
    batch, size, _ = shape_of(x)
    return _sweeps(
        size - 1, lambda x, v: _row_pairs(x, least, v), x, eye((batch, size, size), base.dtype_of(x))
    )  # fmt: skip


_rows = PanelProgram("rows", _row_sweeps)


def _rotated_columns(x: Any) -> tuple[Any, Any]:
    """Columns of (batch, n, n) made orthogonal, as rows, and what has rotated them."""
    return _rotated_rows(transposed(x), 1.0, _rows)


def _rotated_rows(x: Any, bound: float, sweeps: Callable[[Any, Any], Sequence[Any]]) -> tuple[Any, Any]:
    """Rows made orthogonal, to ``bound`` times eps √n."""
    batch, n, _ = shape_of(x)
    size = n + n % 2
    x = lax.pad(x, np.zeros((), base.dtype_of(x)), [(0, 0, 0), (0, size - n, 0), (0, 0, 0)])
    least = bound * float(np.finfo(base.dtype_of(x)).eps) * max(n, 4) ** 0.5
    x, v = sweeps(x, base.fill((batch,), least, part_dtype(x)))
    x, v = (lax.slice(y, (0, 0, 0), (batch, n, n)) for y in (x, v))
    length = broadcast(_row_norms(v), x, 0, 1)
    return over(x, length), over(v, length)


def _wide_columns(a: Any) -> tuple[Any, Any]:
    """Columns times the eigenvectors of their products, in double precision: orthogonal in single precision."""
    a = lax.convert_element_type(a, np.result_type(base.dtype_of(a), np.float64))
    v = _divided_eigh(matmul(conjugated(a), a, transpose_a=True))[1]
    return matmul(v, a, transpose_a=True, transpose_b=True), transposed(v)


def _turned_columns(x: Any) -> tuple[Any, Any]:
    """As `_rotated_columns`: columns that are many are first turned by the eigenvectors of their products. Then they
    are nearly orthogonal, but for those whose lengths' squares are lost beside the largest, and few sweeps are left."""
    if shape_of(x)[2] <= ROWS:
        return _rotated_columns(x)
    rows, turn = _wide_columns(x)
    rows, v = _rotated_rows(rows, 4.0, _few_sweeps)
    return rows, matmul(v, turn)


def _one_sweep(x: Any, v: Any, least: Any, only: Any, unit: bool) -> list[Any]:
    """Of ``only`` some matrices."""
    return fori(shape_of(x)[1] - 1, lambda i, x, v: _row_pairs(x, least, v, only)[0], x, v)


_swept = PanelProgram(SWEEP, _one_sweep)


def _few_sweeps(x: Any, least: Any) -> Sequence[Any]:
    """Of each matrix as long as a product of two rows is above twice ``least`` of their lengths. To see that by one
    product takes less than a sweep that rotates nothing."""
    batch, size, _ = shape_of(x)

    def left(x: Any) -> Any:
        size_of = lax.abs(matmul(x, conjugated(x), transpose_b=True))
        length = _row_norms(x)
        most = lax.mul(broadcast(lax.mul(length, broadcast(least, length, 0)), size_of, 0, 1), 2.0)
        most = lax.mul(most, broadcast(length, size_of, 0, 2))
        apart = lax.ne(iota(size_of, 1), iota(size_of, 2))
        return lax.reduce_or(lax.bitwise_and(lax.gt(size_of, most), apart), (1, 2))

    def sweep(some: Any, x: Any, v: Any) -> list[Any]:
        x, v = _swept(x, v, least, some)
        return [left(x), x, v]

    return _repeated(sweep, left(x), x, eye((batch, size, size), base.dtype_of(x)))


def _svd_tall(a: Any, full: bool) -> list[Any]:
    """Columns are made orthogonal: U s, and V's rotations, of (batch, m, n) with m >= n."""
    batch, m, n = shape_of(a)
    dtype = base.dtype_of(a)
    scale = scale_of(a)
    x = over(a, broadcast(scale, a, 0))
    finite = lax.reduce_and(lax.lt(larger_part(x), np.inf), (1, 2))
    wide, outer = n > ROWS and part_dtype(a) == np.float32, None
    if not wide and m > n:
        outer, x = qr_of(x, full)
        x = lax.slice(x, (0, 0, 0), (batch, n, n))
    x, v = _wide_columns(where(broadcast(finite, x, 0), x, 0)) if wide else _turned_columns(x)
    v = conjugated(v)
    values = _row_norms(x)
    order = _ascending(lax.neg(values))
    values, x, v = (rows_in_order(y, order) for y in (values, x, v))
    nonzero = lax.gt(values, 0)
    length = broadcast(where(nonzero, values, 1), x, 0, 1)
    u, r = qr_of(transposed(where(broadcast(nonzero, x, 0, 1), over(x, length), 0)), full and wide)
    turned = lax.lt(real_part(diagonal_of(lax.slice(r, (0, 0, 0), (batch, n, n)), 0, n)), 0)
    if shape_of(u)[2] > n:
        turned = lax.pad(turned, np.zeros((), bool), [(0, 0, 0), (0, shape_of(u)[2] - n, 0)])
    u = where(broadcast(turned, u, 0, 2), lax.neg(u), u)
    if outer is not None:
        inner = matmul(lax.slice(outer, (0, 0, 0), (batch, m, n)), u)
        u = lax.concatenate([inner, lax.slice(outer, (0, 0, n), (batch, m, m))], 2) if full else inner
    u, values, v = (lax.convert_element_type(y, t) for y, t in ((u, dtype), (values, part_dtype(a)), (v, dtype)))
    outs = [u, lax.mul(values, broadcast(scale, values, 0)), v]
    return [where(broadcast(finite, y, 0), y, np.nan) for y in outs]


def svd_of(a: Any, full: bool) -> list[Any]:
    """U, the singular values, descending, and Vᴴ."""
    batch, m, n = shape_of(a)
    dtype = base.dtype_of(a)
    k = min(m, n)
    if not batch * k:
        u, v = (eye((batch, x, x if full else k), dtype) for x in (m, n))
        return [u, base.fill((batch, k), 0, part_dtype(a)), transposed(v)]
    if m >= n:
        return _svd_tall(a, full)
    u, s, v = _svd_tall(adjoint(a), full)
    return [adjoint(v), s, adjoint(u)]


def _svd_rule(full: bool) -> Any:
    def rule(primals: Sequence[Any], outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """ds is the diagonal of Uᴴ da V; U and V turn by what is beside it, and U by the phases on it."""
        (a,), (u, s, vt), (da,) = primals, outs, tangents
        m, n = shape_of(a)[-2:]
        if full and m != n:
            raise NotDifferentiableError(
                at_user_line(
                    f"svd of matrices {m} x {n} with all columns of U and V has no derivative: the matrix does not "
                    "determine them. Pass full_matrices=False"
                )
            )
        v, onto = adjoint(vt), conjugated(u)
        inner = matmul(matmul(onto, da, transpose_a=True), v)
        last = len(shape_of(inner)) - 1
        front = tuple(range(last - 1))
        same = lax.eq(iota(inner, -2), iota(inner, -1))
        column, row = broadcast(s, inner, *front, last), broadcast(s, inner, *front, last - 1)
        gaps = where(same, 1, lax.mul(lax.sub(column, row), lax.add(column, row)))
        right, left = times(inner, column), times(inner, row)
        rotation_u, rotation_v = (where(same, 0, over(lax.add(x, adjoint(x)), gaps)) for x in (right, left))
        if dtypes.is_complex(base.dtype_of(inner)):
            angle = lax.div(lax.imag(inner), where(lax.eq(column, 0), 1, column))
            phases = lax.complex(lax.mul(angle, 0.0), where(lax.eq(column, 0), 0, angle))
            rotation_u = where(same, phases, rotation_u)
        du, dv = matmul(u, rotation_u), matmul(v, rotation_v)
        if m > n:
            moved = matmul(da, v)
            rest = lax.sub(moved, matmul(u, matmul(onto, moved, transpose_a=True)))
            du = lax.add(du, over(rest, broadcast(s, rest, *front, last)))
        elif n > m:
            moved = matmul(conjugated(da), u, transpose_a=True)
            rest = lax.sub(moved, matmul(v, matmul(vt, moved)))
            dv = lax.add(dv, over(rest, broadcast(s, rest, *front, last)))
        return [du, lax.reduce_sum(where(same, real_part(inner), 0), (last,)), adjoint(dv)]

    return rule


svd = {
    full: Decomposition("svd", lambda a, full=full: svd_of(a, full), _svd_rule(full), of_complex=True)
    for full in (False, True)
}
