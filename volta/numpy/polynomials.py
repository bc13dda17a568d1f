"""Polynomials as vectors of coefficients, the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.api.jit import jit
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.contractions import convolve
from volta.numpy.creation import array
from volta.numpy.decompositions import eigvals
from volta.numpy.promotion import as_value, canonical_axes, convert, promote_dtypes, promote_floats
from volta.ops import lax


def _known(p: ArrayLike) -> ArrayLike:
    return array(p) if isinstance(p, (list, tuple)) else p


def _coefficients(name: str, p: ArrayLike, several: bool = False) -> Array:
    p = shaping.atleast_1d(_known(p))
    if p.ndim != 1 and not several:
        raise ShapeError(at_user_line(f"{name}: the coefficients must be a vector, got shape {p.shape}"))
    return p


def _together(name: str, *ps: ArrayLike, several: bool = False) -> list[Array]:
    """Coefficients of one dtype: a number is rounded once, to that of the others."""
    return [_coefficients(name, p, several) for p in promote_dtypes(name, *map(_known, ps))]


def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Array:
    """The polynomial with the coefficients ``p`` at ``x``, by Horner's rule. ``unroll`` is accepted for JAX's sake.

    >>> polyval(np.float32([1, 0, -2]), np.float32(3))
    Array(7., dtype=float32)
    """
    p, x = promote_dtypes("polyval", _known(p), x)
    p = _coefficients("polyval", p)
    out: Any = binary.multiply(x, convert(0, p.dtype))
    for c in p:
        out = binary.add(binary.multiply(out, x), c)
    return as_value(out)


def _aligned(name: str, a1: Array, a2: Array) -> tuple[Array, Array]:
    a1, a2 = _together(name, a1, a2, several=True)
    n, shape = max((a.shape[0], a.shape) for a in (a1, a2))
    zero, flat = a1.dtype.type(0), ((0, 0, 0),) * (len(shape) - 1)
    if any(a.ndim > len(shape) for a in (a1, a2)):
        raise ShapeError(at_user_line(f"{name}: coefficients of shapes {a1.shape} and {a2.shape} do not fit"))
    a1, a2 = (shaping.broadcast_to(a, (a.shape[0], *shape[1:])) for a in (a1, a2))
    a1, a2 = (lax.pad(a, zero, ((n - a.shape[0], 0, 0), *flat)) if a.shape[0] < n else a for a in (a1, a2))
    return a1, a2


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The sum of two polynomials; with more axes, of many: the powers are along the first.

    >>> polyadd(np.int32([1, 2]), np.int32([9, 5, 4]))
    Array([9, 6, 6], dtype=int32)
    """
    return binary.add(*_aligned("polyadd", a1, a2))


def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The difference of two polynomials, or of many as :func:`polyadd` takes them.

    >>> polysub(np.int32([1, 2]), np.int32([9, 5, 4]))
    Array([-9, -4, -2], dtype=int32)
    """
    return binary.subtract(*_aligned("polysub", a1, a2))


def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """The product of two polynomials, in floats. Leading zeros stay unless ``trim_leading_zeros`` (not traced).

    >>> polymul(np.float32([1, 2]), np.float32([1, -2]))
    Array([ 1.,  0., -4.], dtype=float32)
    """
    a1, a2 = promote_floats("polymul", *_together("polymul", a1, a2))
    if trim_leading_zeros:
        a1, a2 = trim_zeros(a1, "f"), trim_zeros(a2, "f")
    a1, a2 = (a if a.shape[0] else lax.full((1,), 0, a.dtype) for a in (a1, a2))
    return convolve(a1, a2)


def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Quotient and remainder of two polynomials, in floats; the remainder keeps the length of ``u``, but leading zeros.

    >>> polydiv(np.float32([1, 0, -4]), np.float32([1, 2]))
    (Array([ 1., -2.], dtype=float32), Array([0., 0., 0.], dtype=float32))
    """
    u, v = promote_floats("polydiv", *_together("polydiv", u, v))
    m, n = u.shape[0] - 1, v.shape[0] - 1
    if m < n:
        return lax.full((1,), 0, u.dtype), u
    rest, quotient = u, []
    for k in range(m - n + 1):
        factor = lax.div(lax.index_in_dim(rest, k, 0, False), lax.index_in_dim(v, 0, 0, False))
        quotient.append(factor)
        rest = lax.sub(rest, lax.pad(lax.mul(v, factor), u.dtype.type(0), ((k, m - n - k, 0),)))
    return shaping.stack(quotient), trim_zeros(rest, "f") if trim_leading_zeros else rest


def polyder(p: ArrayLike, m: int = 1) -> Array:
    """The ``m``-th derivative of a polynomial.

    >>> polyder(np.float32([1, 1, 1]))
    Array([2., 1.], dtype=float32)
    """
    if m < 0:
        raise ValueError(at_user_line(f"polyder: the order must not be negative, got {m}"))
    p = _coefficients("polyder", p)
    p = promote_floats("polyder", p)[0] if m else p
    for _ in range(m):
        n = p.shape[0] - 1
        p = (
            lax.mul(lax.slice(p, (0,), (n,)), np.arange(n, 0, -1).astype(p.dtype))
            if n > 0
            else lax.slice(p, (0,), (0,))
        )
    return p


def polyint(p: ArrayLike, m: int = 1, k: Any = None) -> Array:
    """The ``m``-th antiderivative of a polynomial; ``k`` are the constants of integration (0), one an order.

    >>> polyint(np.float32([2, 1]))
    Array([1., 1., 0.], dtype=float32)
    """
    if m < 0:
        raise ValueError(at_user_line(f"polyint: the order must not be negative, got {m}"))
    p, constants = _together("polyint", p, 0 if k is None else k)
    if constants.shape[0] not in (1, m):
        raise ShapeError(at_user_line(f"polyint: order {m} needs 1 or {m} constants, got {constants.shape[0]}"))
    p, constants = promote_floats("polyint", p, constants)
    for i in range(m):
        n = p.shape[0]
        constant = lax.slice(constants, (i % constants.shape[0],), (i % constants.shape[0] + 1,))
        p = lax.concatenate([lax.div(p, np.arange(n, 0, -1).astype(p.dtype)), constant], 0)
    return p


def poly(seq_of_zeros: ArrayLike) -> Array:
    """The coefficients of the polynomial with the given zeros, or with the eigenvalues of a square matrix.

    Those of a matrix are complex, as its eigenvalues are.

    Raises ShapeError for what is neither a vector nor a square matrix.

    >>> poly(np.float32([1, 2]))
    Array([ 1., -3.,  2.], dtype=float32)
    """
    seq_of_zeros = shaping.atleast_1d(array(seq_of_zeros) if isinstance(seq_of_zeros, (list, tuple)) else seq_of_zeros)
    if seq_of_zeros.ndim == 2:
        seq_of_zeros = eigvals(seq_of_zeros)
    zeros = promote_floats("poly", _coefficients("poly", seq_of_zeros))[0]
    out = lax.full((1,), 1, zeros.dtype)
    one = lax.full((1,), 1, zeros.dtype)
    for i in range(zeros.shape[0]):
        zero = lax.slice(zeros, (i,), (i + 1,))
        out = convolve(out, lax.concatenate([one, lax.neg(zero)], 0))
    return as_value(out)


def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """The zeros of the polynomial with the coefficients ``p``, as complex numbers: eigenvalues of its companion matrix.

    Args:
        strip_zeros: leading zeros are dropped, which needs values (not traced). False: each gives a NaN at the end.

    >>> roots(np.float64([1, -3, 2])).tolist()
    [(2+0j), (1+0j)]
    """
    p = promote_floats("roots", _coefficients("roots", p))[0]
    p = trim_zeros(p, "f") if strip_zeros else p
    n = p.shape[0] - 1
    if n < 1:
        return lax.full((0,), 0, np.result_type(p.dtype, np.complex64))
    return _roots(p)


@jit
def _roots(p: Array) -> Array:
    """Zeros at the ends make no part of the matrix: roots that are 0 would be far from it there."""
    n = p.shape[0] - 1
    place, last = np.arange(n + 1, dtype=np.int32), np.int32(n)
    there = lax.ne(p, lax.full(p.shape, 0, p.dtype))
    first = lax.reduce_min(lax.select(there, place, last), (0,))
    degree = lax.sub(last, first)
    inner = lax.sub(lax.reduce_max(lax.select(there, place, np.int32(0)), (0,)), first)
    p = lax.gather(p, [lax.rem(lax.add(place, first), np.int32(n + 1))], (0,), 0, "clip")
    row = lax.neg(lax.div(lax.slice_in_dim(p, 1, n + 1, axis=0), lax.index_in_dim(p, 0, 0, False)))
    row = lax.select(lax.lt(place[:n], inner), row, 0.0)
    rows, ones = np.broadcast_to(place[1:n, None], (n - 1, n)), np.eye(n - 1, n, dtype=bool)
    below = lax.convert_element_type(lax.bitwise_and(lax.lt(rows, inner), ones), p.dtype)
    found = eigvals(lax.concatenate([lax.expand_dims(row, (0,)), below], 0))
    return lax.select(lax.lt(place[:n], degree), found, complex(np.nan, np.nan))


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | tuple[int, ...] | None = None) -> Array:
    """An array without zeros at the front ('f') and the back ('b') of its axes (all, or those of ``axis``).

    Values decide the shape, so that it cannot be traced.

    >>> trim_zeros(np.int32([0, 2, 0, 3, 0]))
    Array([2, 0, 3], dtype=int32)
    """
    x = array(filt) if isinstance(filt, (list, tuple)) else as_value(filt)
    if set(trim.lower()) - set("fb"):
        raise ValueError(at_user_line(f"trim_zeros: trim must be of 'f' and 'b', not {trim!r}"))
    full = np.argwhere(np.asarray(x))
    low, high = [0] * x.ndim, list(x.shape)
    for a in canonical_axes("trim_zeros", axis, x.ndim):
        if not full.size:
            high[a] = 0
            continue
        low[a] = int(np.min(full[:, a])) if "f" in trim.lower() else 0
        high[a] = int(np.max(full[:, a])) + 1 if "b" in trim.lower() else x.shape[a]
    return lax.slice(x, low, high)
