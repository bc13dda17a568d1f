"""Spherical harmonics, element by element, by the recurrences of normalized Legendre functions."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ArgumentError, DTypeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.lax.loops import fori_loop
from volta.numpy.promotion import convert, float_operands
from volta.numpy.shaping import broadcast_arrays
from volta.ops import lax
from volta.runtime.array import ConcreteArray

__all__ = ["sph_harm_y"]


def sph_harm_y(
    n: ArrayLike, m: ArrayLike, theta: ArrayLike, phi: ArrayLike, diff_n: int | None = None, n_max: int | None = None
) -> Array:
    """The spherical harmonic of degree ``n`` and order ``m``, orthonormal on the sphere; 0 where ``n < abs(m)``.

    Computed in float64 and rounded once. Derivatives are those by ``theta`` and ``phi``.

    Args:
        n, m: integers.
        theta: the polar angle, from 0 to pi. Angles are real.
        phi: the azimuth.
        diff_n: None or 0; SciPy's derivatives are those of :func:`volta.jvp`.
        n_max: the largest degree, needed where ``n`` is traced; larger degrees count as this one.

    Returns:
        complex64, or complex128 where an angle is float64; the operands' common shape.

    Raises:
        DTypeError: for degrees or orders that are no integers, and complex angles.
        ArgumentError: for derivatives, and for traced degrees without ``n_max``.

    >>> sph_harm_y(2, 1, 0.5, 0.0).real.round(4)
    Array(-0.325, dtype=float32)
    """
    if diff_n not in (None, 0):
        text = f"sph_harm_y: diff_n must be None or 0, got {diff_n!r:.40}; volta.jvp and volta.jacfwd give derivatives"
        raise ArgumentError(at_user_line(text))
    for name, x in (("n", n), ("m", m)):
        if not dtypes.is_integer(get_aval(x).dtype):
            raise DTypeError(at_user_line(f"sph_harm_y: {name} must be integers, got {get_aval(x)}"))
    largest = _largest(n, n_max)
    theta, phi = float_operands("sph_harm_y", theta, phi)
    aval = get_aval(theta)
    wide = [convert(x, dtypes.float64) for x in (n, m, theta, phi)]
    re, im = _parts(largest, *broadcast_arrays(*wide))
    narrow = dtypes.part_dtype(dtypes.complex_dtype(aval.dtype))
    return lax.complex(convert(re, narrow), convert(im, narrow))


def _largest(n: Any, n_max: int | None) -> int:
    if n_max is not None:
        return operator.index(n_max)
    if isinstance(n, (int, np.ndarray, np.generic, ConcreteArray)):
        return int(np.max(np.asarray(n), initial=0))
    text = "sph_harm_y: the degrees are traced, so the largest one is not known: give it as n_max"
    raise ArgumentError(at_user_line(text))


def _parts(largest: int, n: Array, m: Array, theta: Array, phi: Array) -> tuple[Array, Array]:
    """Real and imaginary part. From order 0 on the Legendre function goes up to its order along the diagonal, where
    degree and order are equal, then up to its degree."""
    n, size = lax.min(n, float(largest)), lax.abs(m)
    x, y = lax.cos(theta), lax.sin(theta)
    y = lax.select(lax.lt(y, 0.0), lax.neg(y), y)  # Legendre's functions know of an angle its cosine alone
    square = lax.mul(size, size)

    def step(i: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        before, now = state
        k = lax.add(lax.convert_element_type(i, dtypes.float64), 1.0)
        last = lax.sub(k, 1.0)
        twice = lax.mul(k, 2.0)
        along = lax.mul(lax.mul(now, y), lax.neg(lax.sqrt(lax.div(lax.add(twice, 1.0), twice))))
        far = lax.sub(lax.mul(twice, twice), 1.0)
        near = lax.sub(lax.mul(lax.mul(last, last), 4.0), 1.0)
        up = lax.sqrt(lax.div(far, lax.max(lax.sub(lax.mul(k, k), square), 1.0)))
        down = lax.sqrt(lax.max(lax.div(lax.sub(lax.mul(last, last), square), near), 0.0))
        further = lax.mul(up, lax.sub(lax.mul(x, now), lax.mul(down, before)))
        diagonal, there = lax.le(k, size), lax.le(k, n)
        new = lax.select(diagonal, along, further)
        return lax.select(there, lax.select(diagonal, lax.zeros_like(now), now), before), lax.select(there, new, now)

    zero = lax.zeros_like(theta)
    _, legendre = fori_loop(0, largest, step, (zero, lax.full_like(theta, math.sqrt(0.25 / math.pi))))
    legendre = lax.select(lax.gt(size, n), zero, legendre)
    odd = lax.ne(lax.rem(size, 2.0), 0.0)
    negative = lax.lt(m, 0.0)
    turned = lax.mul(size, phi)
    signed = lax.select(lax.bitwise_and(negative, odd), lax.neg(legendre), legendre)
    sine = lax.mul(signed, lax.sin(turned))
    return lax.mul(signed, lax.cos(turned)), lax.select(negative, lax.neg(sine), sine)
