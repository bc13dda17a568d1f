"""Discrete Fourier transforms along one axis: passes of one radix each, or a convolution with a chirp.

A length whose primes are small is transformed in passes (Stockham's, by decimation in frequency: no pass permutes, and
the results are in order). Any other length is a convolution with a chirp (Bluestein), by two transforms of a power of
two. Complex values are pairs of real arrays. What they are multiplied with comes from a table: one array, exactly
rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import attrs
import numpy as np

from volta.core.floats import standard
from volta.core.roots import roots
from volta.ops import base, lax
from volta.ops.base import shape_of
from volta.trace.butterflies import Complex, times, transformed

COSTS = {13: 60, 11: 45, 10: 22, 9: 19, 8: 12, 7: 19, 6: 11, 5: 10, 4: 6, 3: 6, 2: 4}
"""The radices, and the arithmetic of each. It decides into which a length is divided, and with them the order of its
sums (docs/determinism.md)."""

PASS = 4
"""What reading and writing an element costs, in such arithmetic."""


@lru_cache(1024)
def radices(n: int) -> tuple[int, ...] | None:
    """The radices of a length, largest first: those of least cost. None where a prime of it is too large."""
    if n == 1:
        return ()
    found = []
    for r in COSTS:
        rest = radices(n // r) if n % r == 0 else None
        if rest is not None:
            given = tuple(sorted((r, *rest), reverse=True))
            found.append((sum(PASS + COSTS[x] / x for x in given), given))
    return min(found)[1] if found else None


def chirp_length(n: int) -> int:
    """The power of two by which a length is transformed that has no radices."""
    return 1 << (2 * n - 2).bit_length()


# -- tables ------------------------------------------------------------------------------------------------------------


@standard
def factors(n: int, dtype: np.dtype) -> np.ndarray:
    """What a transform of a length multiplies with, in the order of `transform`."""
    if radices(n) is None:
        size, k = chirp_length(n), np.arange(n)
        double = np.dtype(np.float64)
        cos, sin = roots(k * k % (2 * n), 2 * n, dtype)
        chirp = [_mirrored(x, size) for x in roots(k * k % (2 * n), 2 * n, double)]
        spectrum = [(x / size).astype(dtype) for x in _spectrum(*chirp)]
        return np.concatenate([cos, -sin, *spectrum, factors(size, dtype)])
    out, rest = [np.zeros(0, dtype)], n
    for r in radices(n) or ():
        turn, rest = rest, rest // r
        if rest > 1:
            cos, sin = roots(np.arange(1, r)[:, None] * np.arange(rest), turn, dtype)
            out += [cos.ravel(), -sin.ravel()]
    return np.concatenate(out)


@standard
def half_turns(n: int, dtype: np.dtype) -> np.ndarray:
    """What joins the transforms of even and odd elements, for the first half of the result."""
    cos, sin = roots(np.arange(n // 2 + 1), n, dtype)
    return np.concatenate([cos, -sin])


def _mirrored(x: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([x, np.zeros(size - 2 * len(x) + 1), x[:0:-1]])


def _spectrum(re: np.ndarray, im: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The transform of a power of two elements in passes of radix 2, on the host."""
    rest, inner = len(re), 1
    while rest > 1:
        (a, b), (c, d) = (x.reshape(2, rest // 2, inner) for x in (re, im))
        cos, sin = (x[:, None] for x in roots(np.arange(rest // 2), rest, np.dtype(np.float64)))
        p, q = a - b, c - d
        re = np.stack([a + b, p * cos + q * sin], 1)
        im = np.stack([c + d, q * cos - p * sin], 1)
        rest, inner = rest // 2, inner * 2
    return re.ravel(), im.ravel()


@attrs.define
class Table:
    """A one-dimensional array that is read from its beginning on."""

    x: Any
    at: int = 0

    def next(self, *shape: int) -> Any:
        start, self.at = self.at, self.at + prod(shape)
        return base.reshape_to(lax.slice_in_dim(self.x, start, self.at), shape)

    def complex(self, *shape: int) -> Complex:
        return self.next(*shape), self.next(*shape)


# -- programs ----------------------------------------------------------------------------------------------------------

Pieces = list[Complex]
"""Equal parts of a transformed array along its axis, one after the other: (outer, part of the axis, inner) each."""


def transform(x: Complex, axis: int, table: Table, scale: float | None = None) -> Complex:
    """The sums of x[k] exp(−2πi k c / n) over an axis, times a number."""
    shape = shape_of(x[0])
    n, front, behind = shape[axis], shape[:axis], shape[axis + 1 :]
    if radices(n) is not None:
        return _passes(x, axis, table, lambda pieces: [scaled(y, scale) for y in pieces])
    size = chirp_length(n)
    chirp: Complex = tuple(_line(v, shape, axis) for v in table.complex(n))
    spectrum, start = table.complex(size), table.at

    def weighted(pieces: Pieces) -> Pieces:
        like = shape_of(pieces[0][0])
        weights = zip(*(lax.split(v, (like[1],) * len(pieces), 0) for v in spectrum), strict=True)
        return [times(y, (_line(re, like, 1), _line(im, like, 1))) for y, (re, im) in zip(pieces, weights, strict=True)]

    zeros = base.fill((*front, size - n, *behind), 0, base.dtype_of(x[0]))
    long: Complex = tuple(lax.concatenate([v, zeros], axis) for v in times(x, chirp))  # type: ignore[assignment]
    re, im = _passes(long, axis, table, weighted)
    im, re = _passes((im, re), axis, Table(table.x, start), lambda pieces: pieces)
    first: Complex = tuple(lax.slice_in_dim(v, 0, n, axis=axis) for v in (re, im))  # type: ignore[assignment]
    return scaled(times(first, chirp), scale)


def _passes(x: Complex, axis: int, table: Table, then: Callable[[Pieces], Pieces]) -> Complex:
    """The transform of a length that has radices; ``then`` takes what the last pass gives."""
    shape = shape_of(x[0])
    outer, rest, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    behind = inner
    for r in radices(rest) or (1,):
        rest //= r
        like = (outer, 1, rest, inner)
        given = [lax.split(base.reshape_to(v, (outer, r, rest, inner)), (1,) * r, 1) for v in x]
        out = transformed(list(zip(*given, strict=True)))
        if rest > 1:
            weights = zip(*(lax.split(v, (1,) * (r - 1), 0) for v in table.complex(r - 1, rest)), strict=True)
            out[1:] = [
                times(y, (_line(a, like, 2), _line(b, like, 2))) for y, (a, b) in zip(out[1:], weights, strict=True)
            ]
        else:
            out = then([reshaped(y, (outer, inner // behind, behind)) for y in out])
        x = joined([reshaped(y, (outer, rest, 1, inner)) for y in out], 2)
        inner *= r
    return reshaped(x, shape)


def _line(x: Any, like: tuple[int, ...], axis: int) -> Any:
    """A few numbers along one axis of a shape."""
    return base.broadcast_to(base.reshape_to(x, (like[axis],)), like, (axis,))


def reshaped(x: Complex, shape: tuple[int, ...]) -> Complex:
    return base.reshape_to(x[0], shape), base.reshape_to(x[1], shape)


def joined(parts: Sequence[Complex], axis: int) -> Complex:
    re, im = zip(*parts, strict=True)
    return lax.concatenate(re, axis), lax.concatenate(im, axis)


def scaled(x: Complex, scale: float | None) -> Complex:
    return x if scale is None else (lax.mul(x[0], scale), lax.mul(x[1], scale))


def from_real(x: Any, axis: int, table: Table, scale: float | None) -> Complex:
    """The first half of the transform of real numbers: elements 0 to n // 2.

    Of an even length as a transform of half the length, of pairs of neighbours as complex values.
    """
    shape = shape_of(x)
    n, half = shape[axis], shape[axis] // 2
    if n % 2 or n == 0:
        full = transform((x, base.fill(shape, 0, base.dtype_of(x))), axis, table, scale)
        return _part(full, axis, 0, half + 1)
    turns = table.complex(half + 1)
    z = transform((_every_other(x, axis, 0), _every_other(x, axis, 1)), axis, table)
    factor = 0.5 if scale is None else 0.5 * scale
    (a, b) = _part(z, axis, 0, 1)
    zero = base.fill(shape_of(a), 0, base.dtype_of(a))
    ends = [(_times(lax.add(a, b), scale), zero), (_times(lax.sub(a, b), scale), zero)]
    if half == 1:
        return joined(ends, axis)
    (a, b), (c, d) = _part(z, axis, 1, half), _reversed(_part(z, axis, 1, half), axis)
    w = _part(turns, 0, 1, half)
    like = shape_of(a)
    # of the sequence of even elements, and of the odd ones, each twice: (z + z*) and (z − z*) / i
    even, odd = (lax.add(a, c), lax.sub(b, d)), (lax.add(b, d), lax.sub(c, a))
    re, im = times(odd, (_line(w[0], like, axis), _line(w[1], like, axis)))
    middle = scaled((lax.add(even[0], re), lax.add(even[1], im)), factor)
    return joined([ends[0], middle, ends[1]], axis)


def to_real(x: Complex, axis: int, n: int, table: Table, scale: float | None) -> Any:
    """n real numbers from the first half of their transform: the sums of x[k] exp(2πi k c / n) over all k, as the
    second half mirrors the first. Of an element that is its own mirror image the imaginary part is not read."""
    shape, half = shape_of(x[0]), n // 2
    if n % 2:
        (a, _), (b, c) = _part(x, axis, 0, 1), _part(x, axis, 1, half + 1)
        zero = base.fill(shape_of(a), 0, base.dtype_of(a))
        whole = joined([(a, zero), (b, c), _reversed((b, lax.neg(c)), axis)], axis) if n > 1 else (a, zero)
        return transform((whole[1], whole[0]), axis, table, scale)[1]
    turns = table.complex(half + 1)
    (a, _), (b, _) = _part(x, axis, 0, 1), _part(x, axis, half, half + 1)
    parts = [(lax.add(a, b), lax.sub(a, b))]
    if half > 1:
        (a, b), (c, d) = _part(x, axis, 1, half), _reversed(_part(x, axis, 1, half), axis)
        like, w = shape_of(a), _part(turns, 0, 1, half)
        # x + x* of the mirror image, and x − x* of it, turned back
        p, q = times((lax.sub(a, c), lax.add(b, d)), (_line(w[0], like, axis), lax.neg(_line(w[1], like, axis))))
        parts.append((lax.sub(lax.add(a, c), q), lax.add(lax.sub(b, d), p)))
    re, im = joined(parts, axis) if half > 1 else parts[0]
    odd, even = transform((im, re), axis, table, scale)
    pairs = [lax.expand_dims(v, (axis + 1,)) for v in (even, odd)]
    return base.reshape_to(lax.concatenate(pairs, axis + 1), (*shape[:axis], n, *shape[axis + 1 :]))


def _times(x: Any, scale: float | None) -> Any:
    return x if scale is None else lax.mul(x, scale)


def _part(x: Complex, axis: int, start: int, end: int) -> Complex:
    re, im = (lax.slice_in_dim(v, start, end, axis=axis) for v in x)
    return re, im


def _reversed(x: Complex, axis: int) -> Complex:
    return lax.rev(x[0], (axis,)), lax.rev(x[1], (axis,))


def _every_other(x: Any, axis: int, first: int) -> Any:
    return lax.slice_in_dim(x, first, shape_of(x)[axis], 2, axis)
