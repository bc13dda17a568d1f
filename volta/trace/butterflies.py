"""Discrete Fourier transforms of few elements, written out: of lists of complex values, each a pair of real arrays.

The order of every sum is that of docs/determinism.md. Factors are exactly rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core.roots import roots
from volta.ops import base, lax

Complex = tuple[Any, Any]
"""Real and imaginary part."""


def transformed(x: Sequence[Complex]) -> list[Complex]:
    """The sums of x[k] exp(−2πi k c / n) over k, for each c."""
    n = len(x)
    if n == 1:
        return list(x)
    if n == 2:
        return [_plus(*x), _minus(*x)]
    first = next((p for p in (4, 2, 3, 5, 7, 11, 13) if n % p == 0 and p != n and n != 8), 4 if n == 4 else n)
    if n == 8:
        first = 2
    if n == 4:
        return _four(*x)
    if first == n:
        return _prime(x)
    rest = n // first
    columns = [transformed(x[j::rest]) for j in range(rest)]
    out: list[Any] = [None] * n
    for c in range(first):
        row = [turned(column[c], j * c, n) for j, column in enumerate(columns)]
        out[c::first] = transformed(row)
    return out


def _plus(x: Complex, y: Complex) -> Complex:
    return lax.add(x[0], y[0]), lax.add(x[1], y[1])


def _minus(x: Complex, y: Complex) -> Complex:
    return lax.sub(x[0], y[0]), lax.sub(x[1], y[1])


def _four(a: Complex, b: Complex, c: Complex, d: Complex) -> list[Complex]:
    even, odd = _plus(a, c), _plus(b, d)
    (p, q), (r, s) = _minus(a, c), _minus(b, d)
    return [_plus(even, odd), (lax.add(p, s), lax.sub(q, r)), _minus(even, odd), (lax.sub(p, s), lax.add(q, r))]


def _prime(x: Sequence[Complex]) -> list[Complex]:
    """An odd prime: the sums and differences of elements k and n − k, in chains of fused products over ascending k."""
    n, half = len(x), len(x) // 2
    (re, im), dtype = x[0], base.dtype_of(x[0][0])
    cos, sin = roots(np.arange(n), n, dtype)
    sums = [_plus(x[k], x[n - k]) for k in range(1, half + 1)]
    differences = [_minus(x[k], x[n - k]) for k in range(1, half + 1)]
    total = x[0]
    for s in sums:
        total = _plus(total, s)
    out: list[Any] = [total] + [None] * (n - 1)
    for c in range(1, half + 1):
        even: list[Any] = [re, im]
        odd: list[Any] = [None, None]
        for k in range(1, half + 1):
            for part in (0, 1):
                even[part] = lax.fma(sums[k - 1][part], cos[k * c % n], even[part])
                factor, d = sin[k * c % n], differences[k - 1][part]
                odd[part] = lax.mul(d, factor) if k == 1 else lax.fma(d, factor, odd[part])
        out[c] = lax.add(even[0], odd[1]), lax.sub(even[1], odd[0])
        out[n - c] = lax.sub(even[0], odd[1]), lax.add(even[1], odd[0])
    return out


def turned(x: Complex, k: int, n: int) -> Complex:
    """x exp(−2πi k / n) for known k: quarters of a turn are exact, eighths take two products."""
    (re, im), k = x, k % n
    if 4 * k % n == 0:
        return [x, (im, lax.neg(re)), (lax.neg(re), lax.neg(im)), (lax.neg(im), re)][4 * k // n]
    cos, sin = (v[0] for v in roots(np.array([k]), n, base.dtype_of(re)))
    if 8 * k % n == 0:  # odd eighths: cos and sin differ in their signs alone
        h, eighth = abs(cos), 8 * k // n
        both, between = lax.mul(lax.add(re, im), h), lax.mul(lax.sub(im, re), h)
        return {
            1: (both, between),
            3: (between, lax.neg(both)),
            5: (lax.neg(both), lax.neg(between)),
            7: (lax.neg(between), both),
        }[eighth]
    return times(x, (cos, -sin))


def times(x: Complex, y: Complex) -> Complex:
    """A product of complex values: of each part one product is rounded by itself, the other one is fused."""
    (a, b), (c, d) = x, y
    return lax.fma(a, c, lax.neg(lax.mul(b, d))), lax.fma(a, d, lax.mul(b, c))
