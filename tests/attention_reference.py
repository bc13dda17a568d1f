"""The definition of attention (docs/determinism.md), written down once more, one rounding at a time.

Every step is one elementwise operation over all rows at once: `lax.fma` and `lax.exp`, whose bits have tests of their
own, and NumPy's additions, multiplications and divisions. Slow, and plain enough to be right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta import lax
from volta.core import dtypes

BLOCK, ROWS = 64, 4096


def fma(x: Any, y: Any, z: Any) -> np.ndarray:
    return np.asarray(lax.fma(*(np.ascontiguousarray(a) for a in np.broadcast_arrays(x, y, z))))


def exp(x: Any) -> np.ndarray:
    return np.asarray(lax.exp(np.asarray(x)))


def maximum(x: np.ndarray, axis: int) -> np.ndarray:
    """A NaN wins; +0 is above -0."""
    top = np.max(x, axis=axis)
    plus = np.any((x == 0) & ~np.signbit(x), axis=axis)
    return np.where((top == 0) & ~plus, -np.zeros_like(top), np.where(top == 0, np.zeros_like(top), top))


def halving(x: np.ndarray) -> np.ndarray:
    """The sum over a last axis of 64 lanes: 32, 16, 8, 4, 2, 1."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def visible(q: np.ndarray, k: np.ndarray, causal: bool, start: Any, mask: Any) -> np.ndarray:
    (B, N, T, _), S = q.shape, k.shape[2]
    seen = np.ones((B, N, T, S), bool)
    if causal:
        first = np.zeros(B, np.int64) if start is None else np.asarray(start, np.int64)
        seen &= np.arange(S) <= (first[:, None] + np.arange(T))[:, None, :, None]
    return seen if mask is None else seen & mask


def _wide(x: np.ndarray, n: int, work: Any) -> np.ndarray:
    return np.repeat(x, n // x.shape[1], axis=1).astype(work)


def rows_times_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """DOT of rows of x (B, N, T, H) with rows of y (B, N, S, H): one ascending chain."""
    total = np.zeros((*x.shape[:3], y.shape[2]), x.dtype)
    for h in range(x.shape[3]):
        total = fma(x[..., h][..., :, None], y[..., h][..., None, :], total)
    return total


def _scores(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    return rows_times_rows(q, k) * q.dtype.type(scale)


def _chain(p: np.ndarray, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Chains over j of p[..., i, j] * x[..., j, d], over the j that row i sees."""
    total = np.zeros((*p.shape[:3], x.shape[3]), p.dtype)
    for j in range(p.shape[3]):
        step = fma(p[..., j][..., None], x[..., j, :][..., None, :], total)
        total = np.where(seen[..., j][..., None], step, total)
    return total


@np.errstate(all="ignore")
def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float = 1.0, causal: bool = False, start: Any = None,
    mask: Any = None,
) -> list[np.ndarray]:  # fmt: skip
    dtype, work, n = q.dtype, dtypes.compute_dtype(q.dtype), q.shape[1]
    seen = visible(q, k, causal, start, mask)
    q, k, v = q.astype(work), _wide(k, n, work), _wide(v, n, work)
    s = _scores(q, k, scale)
    m = np.full(q.shape[:3], -np.inf, work)
    l = np.zeros(q.shape[:3], work)  # noqa: E741
    o = np.zeros((*q.shape[:3], v.shape[3]), work)
    for first in range(0, k.shape[2], BLOCK):
        keys = slice(first, first + BLOCK)
        see = seen[..., keys]
        some = see.any(-1)
        m_b = maximum(np.where(see, s[..., keys], work.type(-np.inf)), -1)
        p = np.where(see, exp(s[..., keys] - m_b[..., None]), work.type(0))
        lanes = np.zeros((*p.shape[:3], BLOCK), work)
        lanes[..., : p.shape[3]] = p
        l_b, o_b = halving(lanes), _chain(p, v[..., keys, :], see)
        top = maximum(np.stack([m, m_b], -1), -1)
        a = np.where(m == -np.inf, work.type(0), exp(m - top))
        c = exp(m_b - top)
        l = np.where(some, fma(l, a, l_b * c), l)  # noqa: E741
        o = np.where(some[..., None], fma(o, a[..., None], o_b * c[..., None]), o)
        m = np.where(some, top, m)
    out = np.where((l == 0)[..., None], work.type(0), o / l[..., None])
    return [out.astype(dtype), m, l]


def _backward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, do: np.ndarray, m: np.ndarray, l: np.ndarray, delta: np.ndarray,  # noqa: E741
    scale: float,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    work, n = dtypes.compute_dtype(q.dtype), q.shape[1]
    q, k, v, do = q.astype(work), _wide(k, n, work), _wide(v, n, work), do.astype(work)
    p = exp(_scores(q, k, scale) - m[..., None]) / l[..., None]
    return q, k, do, p, p * (rows_times_rows(do, v) - delta[..., None])


def _blocks(p: np.ndarray, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    total = np.zeros((*p.shape[:3], x.shape[3]), p.dtype)
    for first in range(0, p.shape[3], BLOCK):
        at = slice(first, first + BLOCK)
        total = total + _chain(p[..., at], x[..., at, :], seen[..., at])
    return total


@np.errstate(all="ignore")
def attention_dq(*operands: Any, scale: float, causal: bool = False, start: Any = None, mask: Any = None) -> np.ndarray:
    dtype, seen = operands[0].dtype, visible(*operands[:2], causal, start, mask)
    _, k, _, _, ds = _backward(*operands, scale)
    return (_blocks(ds, k, seen) * ds.dtype.type(scale)).astype(dtype)


@np.errstate(all="ignore")
def attention_dkv(
    *operands: Any, scale: float, causal: bool = False, start: Any = None, mask: Any = None
) -> list[np.ndarray]:
    dtype, seen = operands[0].dtype, visible(*operands[:2], causal, start, mask)
    q, _, do, p, ds = _backward(*operands, scale)
    keys, values = [], []
    for first in range(0, max(1, q.shape[2]), ROWS):
        at = slice(first, first + ROWS)
        turned = np.swapaxes(seen[:, :, at], 2, 3)
        keys.append(_blocks(np.swapaxes(ds[:, :, at], 2, 3), q[:, :, at], turned) * ds.dtype.type(scale))
        values.append(_blocks(np.swapaxes(p[:, :, at], 2, 3), do[:, :, at], turned))
    return [in_pairs(x).astype(dtype) for x in (keys, values)]


def in_pairs(parts: list[np.ndarray]) -> np.ndarray:
    """Neighbours added, then neighbours of these; an odd one waits for the next level."""
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [*(x + y for x, y in zip(parts[::2], parts[1::2], strict=False)), *odd]
    return parts[0]
