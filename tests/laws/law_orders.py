"""The orders that the bit contract declares, written once more as plain NumPy; and how to see them from outside.

Nothing here is shared with Volta: the constants are repeated on purpose.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np

LANES, BLOCK, CHUNK, SCAN = 64, 4096, 256, 256
HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def register(x: np.ndarray) -> np.ndarray:
    """Half floats are summed in float32."""
    return x.astype(np.float32) if x.dtype in HALF else x


# -- SUM ---------------------------------------------------------------------------------------------------------------


def halving(lanes: np.ndarray, combine: Combine) -> np.ndarray:
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = combine(lanes[:half], lanes[half:])
    return lanes[0]


def pairs(blocks: list[np.ndarray], combine: Combine) -> np.ndarray:
    """Neighbours in pairs, level by level; an odd one out waits for the next level."""
    while len(blocks) > 1:
        odd = blocks[-1:] if len(blocks) % 2 else []
        blocks = [combine(a, b) for a, b in zip(blocks[::2], blocks[1::2], strict=False)] + odd
    return blocks[0]


def declared_sum(
    x: np.ndarray, product: bool = False, across: Callable = halving, above: Callable = pairs
) -> np.ndarray:
    """SUM (or PROD) over axis 0 of an array."""
    combine: Combine = np.multiply if product else np.add
    if not len(x):
        return np.full(x.shape[1:], int(product), x.dtype)
    values, done = register(x), []
    with np.errstate(all="ignore"):
        for start in range(0, len(x), BLOCK):
            lanes = np.full((LANES, *x.shape[1:]), 1 if product else -0.0, values.dtype)
            for row in range(start, min(start + BLOCK, len(x)), LANES):
                part = values[row : min(row + LANES, start + BLOCK)]
                lanes[: len(part)] = combine(lanes[: len(part)], part)
            done.append(across(lanes, combine))
        return np.asarray(above(done, combine)).astype(x.dtype)


def neighbours(lanes: np.ndarray, combine: Combine) -> np.ndarray:
    """A wrong way to combine lanes: neighbours first."""
    while len(lanes) > 1:
        lanes = combine(lanes[::2], lanes[1::2])
    return lanes[0]


def in_turn(blocks: list[np.ndarray], combine: Combine) -> np.ndarray:
    """A wrong way to combine blocks: one after the other."""
    total = blocks[0]
    for b in blocks[1:]:
        total = combine(total, b)
    return total


def joined_blocks(n: int, i: int, j: int) -> int:
    """How many of n elements have been added together once blocks i and j have met, in the tree of adjacent pairs."""
    level = (i ^ j).bit_length()
    first = i >> level << level
    return min(n, (first + (1 << level)) * BLOCK) - first * BLOCK


def joined(n: int, i: int, j: int) -> int:
    """How many of n elements have been added together once elements i and j have met, in the declared order of SUM."""
    (block_i, at_i), (block_j, at_j) = divmod(i, BLOCK), divmod(j, BLOCK)
    if block_i != block_j:
        return joined_blocks(n, block_i, block_j)
    (row_i, lane_i), (row_j, lane_j) = divmod(at_i, LANES), divmod(at_j, LANES)
    if lane_i == lane_j:
        return max(row_i, row_j) + 1
    apart = next(h for h in (32, 16, 8, 4, 2, 1) if lane_i % h == lane_j % h)
    here = min(n - block_i * BLOCK, BLOCK)
    return sum(1 for k in range(lane_i % apart, here, apart))


# -- DOT ---------------------------------------------------------------------------------------------------------------

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype, _libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Fused multiply-add. float32: in float64, rounded to odd where inexact, so only the second rounding counts."""
    if c.dtype == np.float64:
        return np.vectorize(_libm.fma, otypes=[np.float64])(a, b, c)
    p, z = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s = p + z
    back = s - p
    error = (p - (s - back)) + (z - back)
    raw = s.view(np.int64)
    nudge = np.where((error > 0) == (s > 0), 1, -1)
    odd = np.where(np.isfinite(s) & (error != 0) & (raw & 1 == 0), raw + nudge, raw)
    return odd.view(np.float64).astype(np.float32)


def declared_dot(
    a: np.ndarray, b: np.ndarray, chunk: int = CHUNK, block: int = BLOCK, above: Callable = pairs
) -> np.ndarray:
    """DOT of (m, k) and (k, n): chains of FMAs from +0, chunk by chunk; a block's chunks' sums in ascending order,
    blocks in a tree of adjacent pairs."""
    out_dtype, (m, k), n = a.dtype, a.shape, b.shape[1]
    a, b = register(a), register(b)
    done = [np.zeros((m, n), a.dtype)] if k == 0 else []
    with np.errstate(all="ignore"):
        for first in range(0, k, block):
            total = None
            for start in range(first, min(first + block, k), chunk):
                chain = np.zeros((m, n), a.dtype)
                for i in range(start, min(start + chunk, first + block, k)):
                    x, y = np.broadcast_arrays(a[:, i, None], b[None, i, :])
                    chain = fma(x, y, chain)
                total = chain if total is None else total + chain
            done.append(total)
        return np.asarray(above(done, np.add)).astype(out_dtype)


def declared_exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """EXACT of (m, k) and (k, n), by Python's integers, term by term."""
    count, least = (7, -1021) if a.dtype == np.float64 else (4, -125)
    bits = 8 * count - 2

    def whole(row: np.ndarray) -> tuple[list[list[int]], int] | None:
        row = row.astype(np.float64)
        if not np.isfinite(row).all():
            return None
        exponent = max(math.frexp(max(map(abs, row), default=0.0))[1], least)
        found = []
        for x in row:
            rest, digits = round(Fraction(float(x)) * Fraction(2) ** (bits - exponent)), []
            for _ in range(count):
                digits.insert(0, (rest + 128) % 256 - 128)
                rest = (rest - digits[0]) >> 8
            assert rest == 0
            found.append(digits)
        return found, exponent

    def scaled(total: float, *exponents: int) -> float:
        near = [max(-600, min(600, e)) for e in exponents]
        for e in (*near, *(e - n for e, n in zip(exponents, near, strict=True))):
            total *= 2.0**e
        return total

    rows, columns = [whole(x) for x in a], [whole(y) for y in b.T]
    out = np.full((len(rows), len(columns)), np.nan, np.float64)
    for i, left in enumerate(rows):
        for j, right in enumerate(columns):
            if left is None or right is None:
                continue
            total = 0
            for x, y in zip(left[0], right[0], strict=True):
                total += sum(x[p] * y[q] << 8 * (count - 1 - p - q) for p in range(count) for q in range(count - p))
            out[i, j] = scaled(float(total), left[1] - bits + 4 * count - 4, right[1] - bits + 4 * count - 4)
    with np.errstate(over="ignore"):
        return out.astype(a.dtype)


def joined_dot(n: int, i: int, j: int) -> int:
    """How many of n products have been added together once products i < j have met, in the declared order of DOT."""
    if i // BLOCK != j // BLOCK:
        return joined_blocks(n, i // BLOCK, j // BLOCK)
    if i // CHUNK == j // CHUNK:
        return j % CHUNK + 1
    return min(n, (j // CHUNK + 1) * CHUNK) - j // BLOCK * BLOCK


# -- scans -------------------------------------------------------------------------------------------------------------


def declared_cumsum(x: np.ndarray) -> np.ndarray:
    """CUMSUM of a vector: blocks scanned from their first element, each behind the chain of the totals before it."""
    values, out, before = register(x), [], None
    with np.errstate(all="ignore"):
        for start in range(0, len(x), SCAN):
            total = None
            for v in values[start : start + SCAN]:
                total = v if total is None else total + v
                out.append(total if before is None else before + total)
            before = total if before is None else before + total
        return np.array(out, values.dtype).astype(x.dtype)


# -- the order seen from outside (FPRev, https://arxiv.org/abs/2411.00442) ---------------------------------------------


def masks(n: int, where: list[tuple[int, int]], dtype: np.dtype) -> np.ndarray:
    """A row for each pair (i, j): ones, but a number that swallows ones at i, and its opposite at j.

    The sum of a row counts the ones that are added only after i and j have met: n minus what has been joined by then.
    """
    big = 2.0**100 if dtype == np.float32 else 2.0**900
    x = np.ones((len(where), n), dtype)
    for row, (i, j) in enumerate(where):
        x[row, i], x[row, j] = big, -big
    return x


def some_pairs(n: int, seed: int = 0) -> list[tuple[int, int]]:
    """All pairs of a short sequence; of a longer one, pairs around every boundary and pairs at random."""
    if n <= 24:
        return [(i, j) for j in range(n) for i in range(j)]
    edges = {0, 1, 31, 32, 33, 62, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, n - 1, n - 2, n - 65}
    for k in range(BLOCK, n, BLOCK):
        edges |= {k - 1, k, k + 64}
    kept = sorted(e for e in edges if 0 <= e < n)
    rng = np.random.default_rng(seed)
    found = {(i, j) for i in kept for j in kept if i < j}
    found |= {(min(i, j), max(i, j)) for i, j in rng.integers(0, n, (60, 2)).tolist() if i != j}
    return sorted(found)
