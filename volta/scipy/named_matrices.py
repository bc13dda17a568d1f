"""Matrices that have a name, under those of ``scipy.linalg``: laid out from vectors, or known from their size alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import complexes, creation, fft, matrices, shaping
from volta.numpy.promotion import aval_of, broadcast_array, broadcast_shapes_of, promote_dtypes, promote_floats
from volta.ops import lax
from volta.runtime.array import ConcreteArray

__all__ = [
    "circulant", "companion", "convolution_matrix", "dft", "fiedler", "fiedler_companion", "hadamard", "hankel",
    "helmert", "hilbert", "invhilbert", "invpascal", "leslie", "pascal", "toeplitz",
]  # fmt: skip


def _vectors(name: str, x: ArrayLike, least: int = 0) -> Any:
    """Vectors along the last axis, of ``least`` elements at least."""
    x = shaping.atleast_1d(x)
    if aval_of(name, x).shape[-1] < least:
        raise ShapeError(at_user_line(f"{name}: takes vectors of {least} elements or more, got shape {x.shape}"))
    return x


def _together(name: str, *xs: ArrayLike) -> list[Any]:
    """Vectors of one dtype and equal axes in front."""
    values = [shaping.atleast_1d(x) for x in promote_dtypes(name, *xs)]
    front = broadcast_shapes_of(name, [aval_of("", x).shape[:-1] for x in values])
    return [broadcast_array(x, (*front, aval_of("", x).shape[-1])) for x in values]


def _laid(positions: np.ndarray, *parts: Any) -> Array:
    """Each element of the matrices from its position in ``parts``, one after the other: vectors, and numbers."""
    like = aval_of("", parts[0])
    wide = [broadcast_array(np.full(1, p, like.dtype), (*like.shape[:-1], 1)) if np.ndim(p) == 0 else p for p in parts]
    return creation.asarray(lax.concatenate(wide, like.ndim - 1))[..., positions]


def _size(name: str, n: Any, least: int = 0) -> int:
    if int(n) != n or n < least:
        raise ShapeError(at_user_line(f"{name}: the size must be an integer of {least} or more, got {n!r}"))
    return int(n)


def _fixed(elements: Any, dtype: np.dtype = dtypes.DEFAULT_FLOAT) -> Array:
    return ConcreteArray.from_numpy(np.asarray(elements, dtypes.float64).astype(dtype))


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrices whose first column is ``c`` and first row ``r`` (``conj(c)`` by default), constant along diagonals.

    >>> volta.scipy.linalg.toeplitz(np.int32([1, 2]), np.int32([1, 5, 6])).tolist()
    [[1, 5, 6], [2, 1, 5]]
    """
    c, r = _together("toeplitz", c, complexes.conjugate(c) if r is None else r)
    m, n = (aval_of("", x).shape[-1] for x in (c, r))
    below = np.arange(m)[:, None] - np.arange(n)
    return _laid(np.where(below >= 0, below, m - below), c, r)


def circulant(c: ArrayLike) -> Array:
    """The matrices (…, n, n) whose columns are ``c`` (…, n), each turned by one more place.

    >>> volta.scipy.linalg.circulant(np.int32([1, 2, 3])).tolist()
    [[1, 3, 2], [2, 1, 3], [3, 2, 1]]
    """
    c = _vectors("circulant", c)
    n = aval_of("", c).shape[-1]
    return _laid((np.arange(n)[:, None] - np.arange(n)) % max(n, 1), c)


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrices whose first column is ``c`` and last row ``r`` but its first (0), constant along antidiagonals.

    >>> volta.scipy.linalg.hankel(np.int32([1, 2]), np.int32([9, 5, 6])).tolist()
    [[1, 2, 5], [2, 5, 6]]
    """
    c, r = _together("hankel", c, creation.zeros_like(creation.asarray(c)) if r is None else r)
    m, n = (aval_of("", x).shape[-1] for x in (c, r))
    along = np.arange(m)[:, None] + np.arange(n)
    return _laid(np.where(along < m, along, along + 1), c, r)


def companion(a: ArrayLike) -> Array:
    """The matrices (…, n - 1, n - 1) whose characteristic polynomials have the coefficients ``a`` (…, n), in floats.

    A highest coefficient of 0 gives infinities and NaN.

    >>> volta.scipy.linalg.companion(np.float32([1, -10, 31, -30])).tolist()
    [[10.0, -31.0, 30.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    row = _monic("companion", a, 2)
    n = aval_of("", row).shape[-1]
    at = np.full((n, n), n + 1)
    at[0], at[range(1, n), range(n - 1)] = np.arange(n), n
    return _laid(at, row, 1, 0)


def fiedler_companion(a: ArrayLike) -> Array:
    """Matrices as those of :func:`companion`, with five diagonals.

    >>> volta.scipy.linalg.fiedler_companion(np.float32([1, -16, 86, -176, 105])).tolist()[0]
    [16.0, -86.0, 1.0, 0.0]
    """
    row = _monic("fiedler_companion", a, 1)
    n = aval_of("", row).shape[-1]
    at, power = np.full((n, n), n + 1), np.arange(n)
    at[range(3, n, 2), range(1, n - 2, 2)] = n
    at[range(2, n, 2), range(1, n - 1, 2)] = power[2::2]
    at[range(0, n - 2, 2), range(2, n, 2)] = n
    at[range(0, n - 1, 2), range(1, n, 2)] = power[1::2]
    at[1:2, :1], at[:1, :1] = n, 0
    return _laid(at, row, 1, 0)


def _monic(name: str, a: ArrayLike, least: int) -> Any:
    """All coefficients but the highest, divided by minus it."""
    a = _vectors(name, promote_floats(name, a)[0], least)
    aval = aval_of(name, a)
    axis = aval.ndim - 1
    first, rest = lax.slice_in_dim(a, 0, 1, axis=axis), lax.slice_in_dim(a, 1, None, axis=axis)
    return lax.neg(lax.div(rest, broadcast_array(first, aval_of("", rest).shape)))


def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """The matrices with ``f`` (…, n) as first row and ``s`` (…, n - 1) below the diagonal: ages of a population.

    >>> volta.scipy.linalg.leslie(np.float32([1, 2, 3]), np.float32([4, 5])).tolist()
    [[1.0, 2.0, 3.0], [4.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    """
    f, s = _together("leslie", f, s)
    n, m = (aval_of("", x).shape[-1] for x in (f, s))
    if n < 2 or m != n - 1:
        raise ShapeError(at_user_line(f"leslie: takes n >= 2 numbers and one less, got {n} and {m}"))
    at = np.full((n, n), n + m)
    at[0], at[range(1, n), range(m)] = np.arange(n), n + np.arange(m)
    return _laid(at, f, s, 0)


def fiedler(a: ArrayLike) -> Array:
    """The matrices (…, n, n) of the distances between the numbers ``a`` (…, n).

    >>> volta.scipy.linalg.fiedler(np.int32([1, 4, 12])).tolist()
    [[0, 3, 11], [3, 0, 8], [11, 8, 0]]
    """
    a = _vectors("fiedler", a)
    n = aval_of("", a).shape[-1]
    at = np.broadcast_to(np.arange(n), (n, n))
    return lax.abs(lax.sub(_laid(at, a), _laid(at.T, a)))


def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """The matrices A (…, k, n) with ``A @ v = convolve(a, v, mode)`` for vectors of ``n`` elements.

    >>> volta.scipy.linalg.convolution_matrix(np.int32([-1, 4]), 3, mode="valid").tolist()
    [[4, -1, 0], [0, 4, -1]]
    """
    a, n = _vectors("convolution_matrix", a, 1), _size("convolution_matrix", n, 1)
    m = aval_of("", a).shape[-1]
    if mode not in ("full", "same", "valid"):
        raise ValueError(at_user_line(f"convolution_matrix: mode is 'full', 'same' or 'valid', not {mode!r}"))
    less = {"full": 0, "same": min(m, n) - 1, "valid": 2 * (min(m, n) - 1)}[mode]
    at = np.arange(m + n - 1)[:, None] - np.arange(n)
    at = np.where((at >= 0) & (at < m), at, m)[less // 2 : m + n - 1 - (less - less // 2)]
    return _laid(at, a, 0)


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Array:
    """The matrix of the Fourier transform of ``n`` numbers, complex64 or ``dtype``; ``scale`` divides it.

    'sqrtn' divides by the root of ``n``, which makes the matrix unitary, 'n' by ``n``.

    >>> volta.scipy.linalg.dft(2).tolist()
    [[(1+0j), (1+0j)], [(1+0j), (-1+0j)]]
    """
    n, kind = _size("dft", n), dtypes.complex64 if dtype is None else dtypes.canonicalize(dtype)
    norms = {None: "backward", "sqrtn": "ortho", "n": "forward"}
    if scale not in norms:
        raise ValueError(at_user_line(f"dft: scale is None, 'sqrtn' or 'n', not {scale!r}"))
    one = matrices.eye(n, dtype=kind)
    return fft.fft(one, norm=norms[scale]) if n else one


def hadamard(n: int, dtype: Any = int) -> Array:
    """Sylvester's matrix of 1 and -1, whose rows are orthogonal; ``n`` is a power of two.

    >>> volta.scipy.linalg.hadamard(2).tolist()
    [[1, 1], [1, -1]]
    """
    n = _size("hadamard", n, 1)
    if n & (n - 1):
        raise ShapeError(at_user_line(f"hadamard: the size must be a power of two, got {n}"))
    signs = np.ones((1, 1))
    while len(signs) < n:
        signs = np.block([[signs, signs], [signs, -signs]])
    return _fixed(signs, dtypes.canonicalize(dtype))


def helmert(n: int, full: bool = False) -> Array:
    """Orthonormal rows, each of which compares a number with the mean of those before; ``full``: a row of equals first.

    >>> volta.scipy.linalg.helmert(3).shape, volta.scipy.linalg.helmert(3, full=True).shape
    ((2, 3), (3, 3))
    """
    n = _size("helmert", n, 1)
    k = np.arange(1, n)[:, None]
    rows = (np.arange(n) < k) - k * (np.arange(n) == k)
    rows = rows / np.sqrt(k * (k + 1.0))
    return _fixed(np.concatenate([np.full((1, n), 1 / math.sqrt(n)), rows]) if full else rows)


def hilbert(n: int) -> Array:
    """The matrix of 1 / (i + j + 1), the example of what is hard to solve.

    >>> volta.scipy.linalg.hilbert(2).tolist()[0]
    [1.0, 0.5]
    """
    places = np.arange(_size("hilbert", n), dtype=np.float64)
    return _fixed(1 / (places[:, None] + places + 1))


def _integers(rows: list[list[int]]) -> Array:
    """Integers of any size, rounded once."""
    n = len(rows)
    top = float(np.finfo(np.float32).max)
    flat = [float(v) if abs(v) <= top else math.copysign(math.inf, v) for row in rows for v in row]
    return _fixed(np.reshape(flat, (n, n)))


def invhilbert(n: int) -> Array:
    """The inverse of :func:`hilbert`, of integers, rounded; what exceeds the floats is infinite.

    >>> volta.scipy.linalg.invhilbert(2).tolist()
    [[4.0, -6.0], [-6.0, 12.0]]
    """
    n, c = _size("invhilbert", n), math.comb
    element = lambda i, j: (  # noqa: E731
        (-1) ** (i + j) * (i + j + 1) * c(n + i, n - j - 1) * c(n + j, n - i - 1) * c(i + j, i) ** 2
    )
    return _integers([[element(i, j) for j in range(n)] for i in range(n)])


def _kind(name: str, kind: str | None) -> str:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise ValueError(at_user_line(f"{name}: kind is 'symmetric', 'lower' or 'upper', not {kind!r}"))
    return kind or "symmetric"


def pascal(n: int, kind: str | None = None) -> Array:
    """The matrix of binomial coefficients: comb(i + j, i), or comb(i, j) where ``kind`` is 'lower' ('upper': its
    transpose).

    >>> volta.scipy.linalg.pascal(3).tolist()
    [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 6.0]]
    """
    n, kind = _size("pascal", n), _kind("pascal", kind)
    element = {
        "symmetric": lambda i, j: math.comb(i + j, i),
        "lower": math.comb,
        "upper": lambda i, j: math.comb(j, i),
    }[kind]
    return _integers([[element(i, j) for j in range(n)] for i in range(n)])


def invpascal(n: int, kind: str | None = None) -> Array:
    """The inverse of :func:`pascal`, of integers, rounded.

    >>> volta.scipy.linalg.invpascal(3, kind="lower").tolist()
    [[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [1.0, -2.0, 1.0]]
    """
    n, kind = _size("invpascal", n), _kind("invpascal", kind)
    lower = [[(-1) ** (i + j) * math.comb(i, j) for j in range(n)] for i in range(n)]
    upper = [list(column) for column in zip(*lower, strict=True)]
    if kind == "symmetric":  # the product of its triangles, the other way round
        return _integers([[sum(a * b for a, b in zip(x, y, strict=True)) for y in upper] for x in upper])
    return _integers(lower if kind == "lower" else upper)
