"""Rotary position embeddings: pairs of a head's elements, turned by angles that grow with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.promotion import aval_of, promote_floats
from volta.ops import lax


def rotary_frequencies(size: int, base: float = 10000.0, factors: ArrayLike | None = None) -> Array:
    """By how much each pair of ``size`` elements turns from a position to the next: base ** (-2 i / size), (size / 2,).

    Computed in float64 by exp and log, and rounded to float32 once; then divided by ``factors``, where a model has such
    (of Llama 3.1 and later).

    >>> rotary_frequencies(4, 100.0).tolist()
    [1.0, 0.10000000149011612]
    """
    if size <= 0 or size % 2:
        raise ShapeError(at_user_line(f"rotary_frequencies: {size} elements are no pairs"))
    powers = lax.mul(lax.convert_element_type(lax.iota(np.int32, size // 2), np.float64), np.float64(-2 / size))
    found = lax.convert_element_type(lax.exp(lax.mul(powers, lax.log(np.float64(base)))), np.float32)
    return found if factors is None else vnp.divide(found, vnp.asarray(factors, np.float32))


def rotary_embedding(
    x: ArrayLike, positions: ArrayLike, frequencies: ArrayLike | None = None, *, interleaved: bool = False
) -> Array:
    """Turn queries or keys by their positions: each pair (a, b) becomes (a cos - b sin, b cos + a sin).

    The angle is position * frequency in float32. What is turned is computed in float32 and rounded once, each product
    and sum rounded.

    Args:
        x: (..., T, N, H), any float array.
        positions: (..., T) integers, or (T,).
        frequencies: (R / 2,) with R at most H: the first R elements of each head are turned; as
            :func:`rotary_frequencies` of H where not given.
        interleaved: pairs are neighbours (0, 1), (2, 3), …, as in GGUF files of Llama models; else element i and
            i + R / 2, as in transformers.

    Raises:
        ShapeError, DTypeError: where they do not fit.

    >>> x = np.ones((2, 1, 4), np.float32)
    >>> rotary_embedding(x, np.array([0, 1]))[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    x = promote_floats("rotary_embedding", x)[0]
    own, at = get_aval(x), aval_of("rotary_embedding", positions)
    if own.ndim < 3 or not at.ndim or at.shape[-1] != own.shape[-3]:
        text = (
            f"rotary_embedding: x {own.shape} and positions {at.shape} do not fit: wanted (..., T, N, H) and (..., T)"
        )
        raise ShapeError(at_user_line(text))
    if not dtypes.is_integer(at.dtype):
        raise DTypeError(at_user_line(f"rotary_embedding: positions are integers, not {at.dtype}"))
    turned = rotary_frequencies(own.shape[-1]) if frequencies is None else vnp.asarray(frequencies, np.float32)
    size = 2 * turned.shape[0]
    if turned.ndim != 1 or size > own.shape[-1]:
        text = f"rotary_embedding: frequencies {turned.shape} are for more than heads of {own.shape[-1]} elements"
        raise ShapeError(at_user_line(text))
    angles = (vnp.asarray(positions).astype(np.float32)[..., None] * turned)[..., None, :]  # (..., T, 1, R / 2)
    cos, sin = vnp.cos(angles), vnp.sin(angles)
    work = x.astype(np.float32) if dtypes.compute_dtype(own.dtype) == dtypes.float32 else x
    a, b = _pairs(work, size, interleaved)
    parts = [_apart(a * cos - b * sin, b * cos + a * sin, interleaved)]
    if size < own.shape[-1]:
        parts.append(work[..., size:])
    out = parts[0] if len(parts) == 1 else vnp.concatenate(parts, axis=-1)
    return out.astype(own.dtype)


def _pairs(x: Array, size: int, interleaved: bool) -> tuple[Any, Any]:
    if interleaved:
        return x[..., 0:size:2], x[..., 1:size:2]
    return x[..., : size // 2], x[..., size // 2 : size]


def _apart(a: Array, b: Array, interleaved: bool) -> Array:
    if interleaved:
        return vnp.stack([a, b], axis=-1).reshape(*a.shape[:-1], 2 * a.shape[-1])
    return vnp.concatenate([a, b], axis=-1)
