"""Data that shows a wrong order of operations: ladders of magnitudes, cancellation, subnormals, zeros, infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes

_Make = Callable[[np.random.Generator, int, Any], np.ndarray]


def _normal(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    return rng.standard_normal(n)


def _ladder(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    """±2^k with k over half the exponent range: almost every addition rounds, and differently in another order."""
    low = max(int(info.minexp) // 2, -40)
    high = min(int(info.maxexp) // 2, 40)
    return rng.choice([-1.0, 1.0], n) * np.exp2(rng.integers(low, high, n)) * (1 + rng.random(n))


def _cancel(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    """Numbers and their opposites in random order, with small ones between: the large ones cancel."""
    x = rng.standard_normal(n)
    half = n // 3
    x[:half] *= 2.0 ** min(20, int(info.maxexp) // 2)
    x[half : 2 * half] = -x[:half]
    return rng.permutation(x)


def _subnormal(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    return float(info.smallest_subnormal) * rng.integers(-1000, 1000, n)


def _zeros(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    return rng.choice([0.0, -0.0], n)


def _specials(rng: np.random.Generator, n: int, info: Any) -> np.ndarray:
    """A little of everything: NaN, infinities, zeros of both signs, the largest and the smallest numbers."""
    x = rng.standard_normal(n)
    tiny, huge = float(info.smallest_subnormal), float(info.max)
    odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, 1.0], n)
    return np.where(rng.random(n) < 0.3, odd, x)


FILLS: dict[str, _Make] = {
    "normal": _normal,
    "ladder": _ladder,
    "cancel": _cancel,
    "subnormal": _subnormal,
    "zeros": _zeros,
    "specials": _specials,
}
"""Ways to fill an array with floats, by name."""


def fill(kind: str, shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """An array of ``shape`` filled in the way ``kind`` of :data:`FILLS`. Integers get any value, booleans either.

    >>> fill("zeros", (2,)).dtype
    dtype('float32')
    """
    dtype = dtypes.canonicalize(dtype)
    rng = np.random.default_rng([seed, sorted(FILLS).index(kind)])
    n = int(np.prod(shape))
    if dtypes.is_complex(dtype):
        out = np.empty(shape, dtype)
        out.real, out.imag = (fill(kind, shape, dtypes.part_dtype(dtype), seed + k) for k in (0, 1000))
        return out
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(bool).reshape(shape)
    if dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        low, high = (-9, 10) if kind == "normal" else (info.min, info.max)
        return (
            rng.integers(max(low, info.min), high, n, dtype=np.int64 if info.max < 2**63 else np.uint64)
            .astype(dtype)
            .reshape(shape)
        )
    with np.errstate(over="ignore"):
        return FILLS[kind](rng, n, dtypes.finfo(dtype)).astype(dtype).reshape(shape)
