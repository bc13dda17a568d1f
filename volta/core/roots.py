"""Roots of unity, exactly rounded: computed on the host from integers, by no mathematics library.

An angle is a fraction of a turn. Cosine and sine of the first eighth come as sums of two float64 (106 bits) from two
short tables, which are powers of one root in integers of 192 bits; the other eighths are their mirror images.
"""

from __future__ import annotations

import functools
from math import gcd, isqrt

import numpy as np

from volta.core.floats import standard

_BITS = 192
_Pair = tuple[np.ndarray, np.ndarray]
"""A number as the sum of two float64 that do not overlap."""


@standard
def roots(k: np.ndarray, n: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """cos(2πk/n) and sin(2πk/n), each rounded once to a dtype of floats; ``k`` are integers below 2^40.

    >>> [x.tolist() for x in roots(np.arange(4), 4, np.dtype(np.float32))]
    [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, -1.0]]
    """
    eighth, rest = np.divmod(8 * (np.asarray(k, np.int64) % n), n)
    odd = eighth % 2 == 1
    step = gcd(8, n)
    at = np.where(odd, n - rest, rest) // step
    if at.size > n // step:  # most of the eighth, each several times
        pairs = _first_eighth(np.arange(0, n + 1, step), n)
        cos, sin = (_rounded(pair, dtype)[at] for pair in pairs)
    else:
        cos, sin = (_rounded(pair, dtype) for pair in _first_eighth(at * step, n))
    swap = (eighth % 4 == 1) | (eighth % 4 == 2)
    c, s = np.where(swap, sin, cos), np.where(swap, cos, sin)
    c = np.where((eighth >= 2) & (eighth < 6) & (c != 0), -c, c)
    return c.astype(dtype), np.where((eighth >= 4) & (s != 0), -s, s).astype(dtype)


def _first_eighth(r: np.ndarray, n: int) -> tuple[_Pair, _Pair]:
    """cos and sin of r/8n of a turn, for r from 0 to n."""
    step = isqrt(n) + 1
    high, low = np.divmod(r, step)
    a, b = (_at(x, high) for x in _powers(8 * n, step, n // step + 1))
    c, d = (_at(x, low) for x in _powers(8 * n, 1, step))
    return _sum(_product(a, c), _product((-b[0], -b[1]), d)), _sum(_product(a, d), _product(b, c))


def _at(x: _Pair, i: np.ndarray) -> _Pair:
    return x[0][i], x[1][i]


@functools.lru_cache(8)
def _powers(turn: int, step: int, count: int) -> tuple[_Pair, _Pair]:
    """cos and sin of i·step/turn of a turn, for i below a count."""
    one = 1 << _BITS
    c, s = _first(step, turn)
    x, y, cos, sin = one, 0, [], []
    for _ in range(count):
        cos.append(x)
        sin.append(y)
        x, y = (x * c - y * s) >> _BITS, (x * s + y * c) >> _BITS
    return _as_pairs(cos), _as_pairs(sin)


def _first(step: int, turn: int) -> tuple[int, int]:
    """cos and sin of a small angle by their series, in units of 2^-192."""
    x = 2 * _pi() * step // turn
    square = x * x >> _BITS
    cos, sin, term, i = 0, 0, 1 << _BITS, 0
    while term:
        cos += term
        sin += term * x // (i + 1) >> _BITS
        term = -((term * square // ((i + 1) * (i + 2))) >> _BITS)
        term, i = (0 if term == -1 else term), i + 2
    return cos, sin


@functools.cache
def _pi() -> int:
    """π by Machin's formula, in units of 2^-192."""
    guard = 32

    def arctan(n: int) -> int:
        term = (1 << (_BITS + guard)) // n
        total, i = 0, 1
        while term:
            total += (term // i) if i % 4 == 1 else -(term // i)
            term //= n * n
            i += 2
        return total

    return 4 * (4 * arctan(5) - arctan(239)) >> guard


def _as_pairs(values: list[int]) -> _Pair:
    high = [_float(v) for v in values]
    low = [_float(v - _integer(h)) for v, h in zip(values, high, strict=True)]
    return np.array(high), np.array(low)


def _float(v: int) -> float:
    """The float64 nearest to v / 2^192 (division of integers is rounded correctly)."""
    return v / (1 << _BITS)


def _integer(x: float) -> int:
    numerator, denominator = x.as_integer_ratio()
    return (numerator << _BITS) // denominator


# -- sums of two float64, by Dekker's and Knuth's exact transformations ------------------------------------------------


def _two_sum(x: np.ndarray, y: np.ndarray) -> _Pair:
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def _halves(x: np.ndarray) -> _Pair:
    t = x * 134217729.0  # 2^27 + 1
    high = t - (t - x)
    return high, x - high


def _product(x: _Pair, y: _Pair) -> _Pair:
    p = x[0] * y[0]
    (a, b), (c, d) = _halves(x[0]), _halves(y[0])
    error = ((a * c - p) + a * d + b * c) + b * d
    return _two_sum(p, error + (x[0] * y[1] + x[1] * y[0]))


def _sum(x: _Pair, y: _Pair) -> _Pair:
    s, e = _two_sum(x[0], y[0])
    t, f = _two_sum(x[1], y[1])
    s, e = _two_sum(s, e + t)
    return _two_sum(s, e + f)


def _rounded(x: _Pair, dtype: np.dtype) -> np.ndarray:
    """A float64 that, rounded to the dtype, is the pair rounded to it: to odd, where the dtype is narrower."""
    high, low = x
    if np.dtype(dtype) == np.float64:
        return high
    beyond = (low != 0) & ((low < 0) != (high < 0))
    toward_zero = np.where(beyond, np.nextafter(high, 0.0), high)
    bits = toward_zero.view(np.int64) | (low != 0)
    return bits.view(np.float64)
