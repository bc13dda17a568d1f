"""Scaled dot-product attention, with the interface of ``jax.nn.dot_product_attention``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.nn.normalization import softmax
from volta.numpy.contractions import contract
from volta.numpy.promotion import broadcast_array, convert, promote_floats, scalar_like
from volta.ops import lax

Array = Any


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> Array:
    """softmax(scale * query keyᵀ + bias) value for each head.

    Args:
        query: (B, T, N, H), or (T, N, H) without a batch.
        key, value: (B, S, K, H) and (B, S, K, Hv), or without a batch; K divides N, and each key head serves N / K
            query heads in a row.
        bias: added to the logits; broadcasts to (B, N, T, S).
        mask: boolean, broadcasts to (B, N, T, S); False leaves a key out.
        scale: of the logits; 1 / sqrt(H) where not given.
        is_causal: query t sees keys 0 to t.
        query_seq_lengths, key_value_seq_lengths: (B,) integers; later positions are left out.
        local_window_size: how many keys before and after its own position a query sees.

    Returns:
        (B, T, N, Hv), or without a batch as ``query``. float16 and bfloat16 logits are computed in float32.
        A key that is left out weighs exactly 0, so that keys behind a causal mask never change a bit.

    Raises:
        ShapeError: naming the shapes that do not fit.
    """
    q, k, v = promote_floats("dot_product_attention", query, key, value)
    batched = get_aval(q).ndim == 4
    if not batched:
        q, k, v = (vnp.expand_dims(x, 0) for x in (q, k, v))
    B, T, N, H, S, K = _sizes(q, k, v)
    out_dtype = get_aval(q).dtype
    work = dtypes.compute_dtype(out_dtype)
    group = N // K
    wanted = None if work == out_dtype else work
    if group > 1:
        q = lax.reshape(q, (B, T, K, group, H))
        logits = contract(q, "btkgh", k, "bskh", "bkgts", None, wanted)
        logits = lax.reshape(logits, (B, N, T, S))
    else:
        logits = contract(q, "btnh", k, "bsnh", "bnts", None, wanted)
    logits = lax.mul(logits, scalar_like(logits, 1.0 / math.sqrt(H) if scale is None else scale))
    shape = (B, N, T, S)
    if bias is not None:
        logits = lax.add(logits, _expanded("bias", convert(bias, work), shape))
    keep = _mask(shape, mask, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size)
    if keep is not None:
        # finite, so that a query without any key gives the mean of all values and no NaN, as in jax.nn
        logits = lax.select_n(keep, work.type(-0.7 * float(dtypes.finfo(work).max)), logits)
    weights = convert(softmax(logits), out_dtype)
    if group > 1:
        weights = lax.reshape(weights, (B, K, group, T, S))
        out = lax.reshape(contract(weights, "bkgts", v, "bskh", "btkgh", None, None), (B, T, N, get_aval(v).shape[-1]))
    else:
        out = contract(weights, "bnts", v, "bsnh", "btnh", None, None)
    return out if batched else vnp.squeeze(out, 0)


def _sizes(q: Array, k: Array, v: Array) -> tuple[int, int, int, int, int, int]:
    shapes = [get_aval(x).shape for x in (q, k, v)]
    if all(len(s) == 4 for s in shapes):
        (B, T, N, H), (Bk, S, K, Hk), (Bv, Sv, Kv, _) = shapes
        if B == Bk == Bv and S == Sv and K == Kv and H == Hk and K and N % K == 0:
            return B, T, N, H, S, K
    raise ShapeError(
        at_user_line(
            f"dot_product_attention: query {shapes[0]}, key {shapes[1]}, value {shapes[2]} do not fit. Wanted: query "
            "(B, T, N, H), key (B, S, K, H), value (B, S, K, Hv), with K dividing N (or all three without B)."
        )
    )


def _expanded(what: str, x: Array, shape: tuple[int, ...]) -> Array:
    own = get_aval(x).shape
    if len(own) > 4 or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
        raise ShapeError(at_user_line(f"dot_product_attention: {what} of shape {own} does not broadcast to {shape}"))
    return broadcast_array(x, shape) if own else x


def _mask(
    shape: tuple[int, ...], mask: Any, is_causal: bool, query_lengths: Any, key_lengths: Any, window: Any
) -> Array | None:
    """The keys that each query sees, of shape (B, N, T, S); None for all of them."""
    B, _, T, S = shape
    parts = []  # (mask, the axes of (B, N, T, S) that it has)
    t = lax.broadcasted_iota(dtypes.int32, (T, S), 0) if is_causal or window is not None else None
    s = lax.broadcasted_iota(dtypes.int32, (T, S), 1) if is_causal or window is not None else None
    square = None
    if is_causal:
        square = lax.ge(t, s)
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        near = lax.bitwise_and(lax.ge(s, lax.sub(t, np.int32(left))), lax.le(s, lax.add(t, np.int32(right))))
        square = near if square is None else lax.bitwise_and(square, near)
    if square is not None:
        parts.append(lax.broadcast_in_dim(square, shape, (2, 3)))
    for lengths, axis, n in ((query_lengths, 2, T), (key_lengths, 3, S)):
        if lengths is not None:
            lengths = convert(lengths, dtypes.int32)
            inside = lax.lt(lax.broadcasted_iota(dtypes.int32, (B, n), 1), lax.broadcast_in_dim(lengths, (B, n), (0,)))
            parts.append(lax.broadcast_in_dim(inside, shape, (0, axis)))
    if mask is not None:
        if get_aval(mask).dtype != dtypes.bool_:
            raise DTypeError(
                at_user_line(
                    f"dot_product_attention: mask must be boolean, not {get_aval(mask).dtype}; use bias to add"
                )
            )
        parts.append(_expanded("mask", mask, shape))
    if not parts:
        return None
    keep = parts[0]
    for part in parts[1:]:
        keep = lax.bitwise_and(keep, part)
    return keep
