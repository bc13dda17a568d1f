"""Eigenvalues and eigenvectors of real symmetric tridiagonal matrices, by division in two and secular equations.

A matrix is that of its halves plus one of rank one, so its eigenvalues are the roots of 1 + ρ Σ z² / (d − λ), of which
one lies behind each eigenvalue d of the halves. Nothing is deflated: where eigenvalues of the halves meet they are
moved apart by less than rounding does, and no element of z is 0. So all shapes are known, every root is found by
itself, and eigenvectors are orthogonal as those z are taken for which the roots that were found are exact (Gu and
Eisenstat). Eigenvalues are integers between the steps, in units of 2⁻⁶⁰: their differences are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.decomposition import broadcast, iota, matmul, where
from volta.trace.factors import inverse_order, rows_in_order
from volta.trace.jaxpr_trace import trace_to_jaxpr
from volta.trace.while_loop import run_while

LEAF = 16
"""Rows at most of a part that is not divided: it is solved by rotations."""

UNIT = 2.0**-60
BEYOND = 3
"""On the diagonal of rows that are added: above all eigenvalues of a matrix whose norm is below 2."""

ITERATIONS = 64
"""For each root; more are not made. Most take five."""


def _and(*tests: Any) -> Any:
    found = tests[0]
    for test in tests[1:]:
        found = lax.bitwise_and(found, test)
    return found


def _eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def _least_gap(dtype: Any) -> int:
    """Between eigenvalues of the halves, in units."""
    return max(2, int(_eps(dtype) / 4096 / UNIT))


def _number(x: Any, dtype: Any) -> Any:
    """Of units."""
    return lax.mul(lax.convert_element_type(x, dtype), UNIT)


@attrs.frozen
class _Roots:
    """What is known of the roots of secular equations, each between two poles: (batch, m) or (batch, m, m)."""

    distance: Any
    """From the pole that is nearer to the root (its origin) to each pole."""
    squares: Any
    """z², of each pole in its row."""
    before: Any
    """Whether a pole lies left of the root."""
    left: Any
    """The poles on both sides, seen from the origin."""
    right: Any
    rest: Any
    """1 / ρ."""

    def sums(self, x: Any) -> tuple[Any, ...]:
        """Of the terms of the poles left and right of ``x``, and of their derivatives."""
        inverse = lax.div(1.0, lax.sub(self.distance, broadcast(x, self.distance, 0, 1)))
        term = lax.mul(self.squares, inverse)
        slope = lax.mul(term, inverse)
        sides = ([where(self.before, y, 0), where(self.before, 0, y)] for y in (term, slope))
        return tuple(lax.reduce_sum(y, (2,)) for pair in sides for y in pair)

    def step(self, x: Any, low: Any, high: Any) -> tuple[Any, Any, Any, Any]:
        """The next ``x``, between what is known to be below and above the root, and whether it was one already."""
        minus, plus, minus_slope, plus_slope = self.sums(x)
        value, slope = lax.add(lax.add(self.rest, minus), plus), lax.add(minus_slope, plus_slope)
        size = lax.fma(lax.sub(plus, minus), 4.0, lax.fma(lax.abs(x), slope, self.rest))
        eps = _eps(base.dtype_of(x))
        found = lax.le(lax.abs(value), lax.mul(size, eps))
        below = lax.lt(value, 0)
        low, high = where(below, x, low), where(below, high, x)
        left, right = lax.sub(self.left, x), lax.sub(self.right, x)
        both = lax.mul(left, right)
        c = lax.sub(lax.sub(value, lax.mul(left, minus_slope)), lax.mul(right, plus_slope))
        a = lax.sub(lax.mul(lax.add(left, right), value), lax.mul(both, slope))
        new = within(lax.add(x, smaller_root(a, lax.mul(both, value), c)), low, high)
        near = lax.le(lax.abs(lax.sub(new, x)), lax.mul(lax.abs(x), eps))
        return new, low, high, lax.bitwise_or(found, near)


def smaller_root(a: Any, b: Any, c: Any) -> Any:
    """Of c x² − a x + b, the one between the poles."""
    root = lax.sqrt(lax.max(lax.fma(a, a, lax.mul(lax.mul(b, c), -4.0)), base.fill(shape_of(a), 0, base.dtype_of(a))))
    first = lax.div(lax.sub(a, root), where(lax.eq(c, 0), 1, lax.mul(c, 2.0)))
    other = lax.add(a, root)
    return where(lax.le(a, 0), first, lax.div(lax.mul(b, 2.0), where(lax.eq(other, 0), 1, other)))


def within(x: Any, low: Any, high: Any) -> Any:
    """``x`` if it lies between both; else a point that does, where these differ by much the one between their sizes."""
    turned = lax.lt(low, 0)
    near, far = where(turned, lax.neg(high), low), where(turned, lax.neg(low), high)
    point = where(lax.gt(near, 0), lax.mul(lax.sqrt(near), lax.sqrt(far)), lax.mul(far, 2.0**-10))
    point = where(lax.gt(lax.mul(near, 4.0), far), lax.mul(lax.add(near, far), 0.5), point)
    inside = lax.bitwise_and(lax.gt(x, low), lax.lt(x, high))
    return where(inside, x, where(turned, lax.neg(point), point))


def _solved(roots: _Roots, x: Any, low: Any, high: Any) -> Any:
    """Steps as long as a root is not found; those that are stay as they are."""

    def going_on(number: Any, open_: Any, *values: Any) -> tuple[list[Any], None]:
        return [_and(lax.lt(number, np.int32(ITERATIONS)), lax.reduce_or(open_, (0, 1)))], None

    def step(number: Any, open_: Any, x: Any, low: Any, high: Any) -> tuple[list[Any], None]:
        new, low, high, found = roots.step(x, low, high)
        still = _and(open_, lax.bitwise_not(found))
        return [lax.add(number, np.int32(1)), still, where(still, new, x), low, high], None

    begin = [np.int32(0), base.fill(shape_of(x), True, np.dtype(bool)), x, low, high]
    avals: list[ShapedArray] = [get_aval(v).strip_weak() for v in begin]
    programs = [trace_to_jaxpr(f, avals, "secular")[0] for f in (going_on, step)]
    return run_while(programs[0], [], programs[1], [], begin)[2]


def _secular(poles: Any, z: Any, rho: Any) -> tuple[Any, Any]:
    """The roots of 1 + ρ Σ z² / (d − λ), of ascending poles in units: each from its origin, and the origins."""
    batch, m = shape_of(z)
    dtype, square = base.dtype_of(z), (batch, m, m)
    squares, last = lax.mul(z, z), lax.eq(iota(z, 1), np.int32(m - 1))
    inverse = broadcast(lax.div(1.0, rho), z, 0)
    following = _following(poles)
    reach = lax.mul(lax.mul(lax.reduce_sum(squares, (1,)), rho), 1 + 8 * _eps(dtype))
    gap = where(last, broadcast(reach, z, 0), _number(lax.sub(following, poles), dtype))
    half = lax.mul(gap, 0.5)

    def distance(origin: Any) -> Any:
        return _number(lax.sub(broadcast(poles, square, 0, 2), broadcast(origin, square, 0, 1)), dtype)

    z2, before = broadcast(squares, square, 0, 2), lax.le(iota(square, 2), iota(square, 1))
    terms = lax.div(z2, lax.sub(distance(poles), broadcast(half, square, 0, 1)))
    middle = lax.add(inverse, lax.reduce_sum(terms, (2,)))
    upper = lax.lt(middle, 0)
    turned = _and(upper, lax.bitwise_not(last))
    origin = where(turned, following, poles)
    left, right = where(turned, lax.neg(gap), 0), where(turned, 0, gap)
    low, high = where(turned, lax.neg(half), where(upper, half, 0)), where(turned, 0, where(upper, gap, half))
    own, other = squares, where(last, 0, _following(squares))
    at = where(turned, lax.neg(half), half)
    c = lax.sub(middle, lax.add(lax.div(own, lax.sub(left, at)), lax.div(other, lax.sub(right, at))))
    a = lax.add(lax.mul(c, lax.add(left, right)), lax.add(own, other))
    b = lax.add(lax.mul(own, right), lax.mul(other, left))
    roots = _Roots(distance(origin), z2, before, left, right, inverse)
    x = _solved(roots, within(smaller_root(a, b, c), low, high), low, high)
    return x, origin


def _following(x: Any) -> Any:
    """Of each element the next one, of the last itself."""
    m = shape_of(x)[1]
    return lax.concatenate([lax.slice_in_dim(x, 1, m, axis=1), lax.slice_in_dim(x, m - 1, m, axis=1)], 1)


def _exact_z(poles: Any, x: Any, origin: Any, z: Any) -> Any:
    """The z, with these signs, whose equation has exactly these roots: z² is the product of (λ − d) / (d' − d)."""
    batch, m = shape_of(x)
    square, dtype = (batch, m, m), base.dtype_of(x)
    own, root = broadcast(poles, square, 0, 1), iota(square, 2)
    over = lax.add(_number(lax.sub(broadcast(origin, square, 0, 2), own), dtype), broadcast(x, square, 0, 2))
    following = _following(poles)
    left = lax.lt(root, iota(square, 1))
    pole = where(left, broadcast(poles, square, 0, 2), broadcast(following, square, 0, 2))
    under = where(_and(lax.eq(root, np.int32(m - 1)), lax.bitwise_not(left)), 1, _number(lax.sub(pole, own), dtype))
    size = lax.sqrt(lax.reduce_prod(lax.abs(lax.div(over, under)), (2,)))
    return where(lax.lt(z, 0), lax.neg(size), size)


def _joined(poles: Any, vectors: Any, coupling: Any) -> tuple[Any, Any]:
    """Of (batch, 2, h) eigenvalues in units and (batch, 2, h, h) eigenvectors as columns: those of the whole."""
    batch, _, h = shape_of(poles)
    m, dtype = 2 * h, base.dtype_of(vectors)
    eps = _eps(dtype)
    first = lax.squeeze(lax.slice(vectors, (0, 0, h - 1, 0), (batch, 1, h, h)), (1, 2))
    second = lax.squeeze(lax.slice(vectors, (0, 1, 0, 0), (batch, 2, 1, h)), (1, 2))
    negative = broadcast(lax.lt(coupling, 0), second, 0)
    z = lax.concatenate([first, where(negative, lax.neg(second), second)], 1)
    z = where(lax.lt(lax.abs(z), eps), where(lax.lt(z, 0), -eps, eps), z)
    rho = lax.max(lax.abs(coupling), base.fill((batch,), eps * eps, dtype))
    poles = base.reshape_to(poles, (batch, m))
    poles, order = lax.sort_key_val(poles, iota(poles, 1), 1)
    apart = lax.mul(lax.convert_element_type(iota(poles, 1), np.int64), np.int64(_least_gap(dtype)))
    poles = lax.add(lax.cummax(lax.sub(poles, apart), 1), apart)
    sorted_z = rows_in_order(z, order)
    x, origin = _secular(poles, sorted_z, rho)
    places = inverse_order(order)
    z, own = (rows_in_order(y, places) for y in (_exact_z(poles, x, origin, sorted_z), poles))
    square = (batch, m, m)
    far = lax.sub(
        _number(lax.sub(broadcast(own, square, 0, 2), broadcast(origin, square, 0, 1)), dtype),
        broadcast(x, square, 0, 1),
    )
    u = lax.div(broadcast(z, square, 0, 2), far)
    u = lax.div(u, broadcast(lax.sqrt(lax.reduce_sum(lax.mul(u, u), (2,))), u, 0, 1))
    parts = base.permute(base.reshape_to(u, (batch, m, 2, h)), (0, 2, 1, 3))
    out = base.reshape_to(matmul(vectors, parts, transpose_b=True), (batch, m, m))
    return lax.add(origin, lax.convert_element_type(lax.mul(x, 1 / UNIT), np.int64)), out


def tridiagonal_eigh(d: Any, e: Any, rotated: Callable[[Any], list[Any]]) -> list[Any]:
    """Eigenvalues, ascending, and eigenvectors as columns, of the matrices with diagonals ``d`` (batch, n) and ``e``
    (batch, n − 1) beside. In each row |d| and |e| on both sides sum to less than 2. ``rotated``: of small matrices."""
    batch, n = shape_of(d)
    dtype, parts = base.dtype_of(d), 1
    while -(-n // parts) > LEAF:
        parts *= 2
    h = -(-n // parts)
    size, zero = parts * h, np.zeros((), dtype)
    d = lax.pad(d, np.asarray(BEYOND, dtype), [(0, 0, 0), (0, size - n, 0)])
    e = lax.pad(e, zero, [(0, 0, 0), (0, size - n + 1, 0)])
    d, e = (base.reshape_to(x, (batch, parts, h)) for x in (d, e))
    couplings = lax.squeeze(lax.slice_in_dim(e, h - 1, h, axis=2), (2,))  # the last one is 0
    poles, vectors = _parts(d, e, lax.abs(couplings), rotated)
    step = 1  # parts that are one already
    while step < parts:
        count, half = parts // (2 * step), step * h
        coupling = lax.slice(couplings, (0, step - 1), (batch, parts), (1, 2 * step))
        poles, vectors = _joined(
            base.reshape_to(poles, (batch * count, 2, half)),
            base.reshape_to(vectors, (batch * count, 2, half, half)),
            base.reshape_to(coupling, (batch * count,)),
        )
        step *= 2
    return [_number(lax.slice_in_dim(poles, 0, n, axis=1), dtype), lax.slice(vectors, (0, 0, 0), (batch, n, n))]


def _parts(d: Any, e: Any, taken: Any, rotated: Callable[[Any], list[Any]]) -> tuple[Any, Any]:
    """Of (batch, parts, h) elements: the parts by themselves, of which both sides of a cut lose what is ``taken``."""
    batch, parts, h = shape_of(d)
    before = lax.pad(
        lax.slice_in_dim(taken, 0, parts - 1, axis=1), np.zeros((), base.dtype_of(d)), [(0, 0, 0), (1, 0, 0)]
    )
    for place, sizes in ((h - 1, taken), (0, before)):
        d = lax.sub(d, where(lax.eq(iota(d, 2), np.int32(place)), broadcast(sizes, d, 0, 1), 0))
    d, e = (base.reshape_to(x, (batch * parts, h)) for x in (d, e))
    shape = (batch * parts, h, h)
    row, column = iota(shape, 1), iota(shape, 2)
    beside = where(lax.eq(column, lax.add(row, np.int32(1))), broadcast(e, shape, 0, 1), 0)
    beside = where(lax.eq(row, lax.add(column, np.int32(1))), broadcast(e, shape, 0, 2), beside)
    values, vectors = rotated(where(lax.eq(row, column), broadcast(d, shape, 0, 1), beside))
    return lax.convert_element_type(lax.mul(values, 1 / UNIT), np.int64), vectors
