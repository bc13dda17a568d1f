"""Scaled dot-product attention, with the interface of ``jax.nn.dot_product_attention``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.floats import standard
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.contractions import contract
from volta.numpy.normalizing import softmax
from volta.numpy.promotion import broadcast_array, convert, promote_floats, scalar_like
from volta.ops import lax
from volta.ops.attention import MAX_HEAD


@standard
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_start: ArrayLike | int | None = None,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> Array:
    """softmax(scale * query keyᵀ + bias) value for each head.

    Memory grows with T and S, not with their product: scores are never stored, also in the gradient. Except with a
    ``bias`` or heads of more than 256 elements, which use ordinary operations on the whole matrix of scores.

    Args:
        query: (B, T, N, H), or (T, N, H) without a batch.
        key, value: (B, S, K, H) and (B, S, K, Hv), or without a batch; K divides N, and each key head serves N / K
            query heads in a row.
        bias: added to the logits; broadcasts to (B, N, T, S).
        mask: boolean, broadcasts to (B, N, T, S); False leaves a key out.
        scale: of the logits; 1 / sqrt(H) where not given.
        is_causal: query t sees keys 0 to t (0 to query_start + t).
        query_start: the position of the first query among the keys, an integer or (B,) integers; for causal attention
            and windows. A prompt taken in pieces, or one token at a time, gives the bits of the prompt taken at once.
        query_seq_lengths, key_value_seq_lengths: (B,) integers; later positions are left out.
        local_window_size: how many keys before and after its own position a query sees.

    Returns:
        (B, T, N, Hv), or without a batch as ``query``. float16 and bfloat16 are computed in float32 and rounded once.
        A key that is left out takes no part, so that keys behind a causal mask never change a bit. A query that sees
        no key gives 0 (in jax.nn, the mean of all values).

    Raises:
        ShapeError: naming the shapes that do not fit.

    >>> from volta import nn
    >>> x = np.ones((1, 6, 2, 4), np.float32)
    >>> nn.dot_product_attention(x, x, x, is_causal=True).shape
    (1, 6, 2, 4)
    """
    q, k, v = promote_floats("dot_product_attention", query, key, value)
    batched = get_aval(q).ndim == 4
    if not batched:
        q, k, v = (vnp.expand_dims(x, 0) for x in (q, k, v))
    sizes = _sizes(q, k, v)
    B, T, N, H, S, _ = sizes
    start = _start(query_start, B, is_causal or local_window_size is not None)
    factor = 1.0 / math.sqrt(H) if scale is None else scale
    parts = _mask_parts((B, N, T, S), mask, start, query_seq_lengths, key_value_seq_lengths, local_window_size)
    if bias is None and max(H, get_aval(v).shape[-1]) <= MAX_HEAD:
        q, k, v = (lax.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        out, _, _ = lax.attention(
            q, k, v, scale=factor, causal=is_causal, start=start if is_causal else None, mask=_joined(parts)
        )
        out = lax.transpose(out, (0, 2, 1, 3))
    else:
        if is_causal:
            parts.append(_causal(T, S, start))
        out = _composite(q, k, v, bias, _joined(parts), factor, sizes)
    return out if batched else vnp.squeeze(out, 0)


def _composite(
    q: Array, k: Array, v: Array, bias: Array | None, keep: Array | None, factor: float, sizes: Any
) -> Array:
    """Attention by ordinary operations: logits, softmax, weighted sums."""
    B, T, N, H, S, K = sizes
    shape = (B, N, T, S)
    out_dtype = get_aval(q).dtype
    work = dtypes.compute_dtype(out_dtype)
    group = N // K
    wanted = None if work == out_dtype else work
    if S == 0:  # a maximum over no score is none; as everywhere, a query that sees no key gives 0
        if bias is not None:
            _fits("bias", get_aval(bias).shape, shape)
        return vnp.zeros((B, T, N, get_aval(v).shape[-1]), out_dtype)
    if group > 1:
        q = lax.reshape(q, (B, T, K, group, H))
        logits = contract(q, "btkgh", k, "bskh", "bkgts", None, wanted)
        logits = lax.reshape(logits, shape)
    else:
        logits = contract(q, "btnh", k, "bsnh", "bnts", None, wanted)
    logits = lax.mul(logits, scalar_like(logits, factor))
    if bias is not None:
        logits = lax.add(logits, _expanded("bias", convert(bias, work), shape))
    if keep is not None:
        keep = broadcast_array(keep, shape)
        # finite, so that a query without any key makes no NaN
        logits = lax.select_n(keep, work.type(-0.7 * float(dtypes.finfo(work).max)), logits)
    weights = softmax(logits)
    if keep is not None:
        weights = lax.select_n(keep, work.type(0), weights)
    weights = convert(weights, out_dtype)
    if group > 1:
        weights = lax.reshape(weights, (B, K, group, T, S))
        return lax.reshape(contract(weights, "bkgts", v, "bskh", "btkgh", None, None), (B, T, N, get_aval(v).shape[-1]))
    return contract(weights, "bnts", v, "bsnh", "btnh", None, None)


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


def _fits(what: str, own: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(own) > 4 or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
        raise ShapeError(at_user_line(f"dot_product_attention: {what} of shape {own} does not broadcast to {shape}"))


def _expanded(what: str, x: Array, shape: tuple[int, ...]) -> Array:
    own = get_aval(x).shape
    _fits(what, own, shape)
    return broadcast_array(x, shape) if own else x


def _start(start: Any, batch: int, wanted: bool) -> Array | None:
    """The position of each batch item's first query, (B,) int32; None for 0."""
    if start is None:
        return None
    if not wanted:
        raise ShapeError(at_user_line("dot_product_attention: query_start is for causal attention and windows"))
    start = convert(start, dtypes.int32)
    own = get_aval(start).shape
    if own not in ((), (1,), (batch,)):
        raise ShapeError(at_user_line(f"dot_product_attention: query_start {own} must be an integer or ({batch},)"))
    return broadcast_array(start, (batch,))


def _positions(T: int, S: int, start: Array | None) -> tuple[Array, Array]:
    """Positions of queries and of keys, (B or 1, T, S)."""
    shape = (1 if start is None else get_aval(start).shape[0], T, S)
    t, s = (lax.broadcasted_iota(dtypes.int32, shape, axis) for axis in (1, 2))
    return t if start is None else lax.add(t, lax.broadcast_in_dim(start, shape, (0,))), s


def _causal(T: int, S: int, start: Array | None) -> Array:
    t, s = _positions(T, S, start)
    return lax.expand_dims(lax.ge(t, s), (1,))


def _mask_parts(
    shape: tuple[int, ...], mask: Any, start: Array | None, query_lengths: Any, key_lengths: Any, window: Any
) -> list[Array]:
    """What leaves keys out besides the causal rule: booleans of four dimensions, 1 where they are all alike."""
    B, _, T, S = shape
    parts = []
    if window is not None:
        t, s = _positions(T, S, start)
        left, right = (window, window) if isinstance(window, int) else window
        near = lax.bitwise_and(lax.ge(s, lax.sub(t, np.int32(left))), lax.le(s, lax.add(t, np.int32(right))))
        parts.append(lax.expand_dims(near, (1,)))
    for lengths, axis, n in ((query_lengths, 2, T), (key_lengths, 3, S)):
        if lengths is not None:
            lengths = convert(lengths, dtypes.int32)
            inside = lax.lt(lax.broadcasted_iota(dtypes.int32, (B, n), 1), lax.broadcast_in_dim(lengths, (B, n), (0,)))
            parts.append(lax.expand_dims(inside, (1, 5 - axis)))
    if mask is not None:
        if get_aval(mask).dtype != dtypes.bool_:
            raise DTypeError(
                at_user_line(
                    f"dot_product_attention: mask must be boolean, not {get_aval(mask).dtype}; use bias to add"
                )
            )
        own = get_aval(mask).shape
        _fits("mask", own, shape)
        parts.append(lax.reshape(mask, (1,) * (4 - len(own)) + own))
    return parts


def _joined(parts: list[Array]) -> Array | None:
    """The conjunction of masks, no larger than it must be."""
    if not parts:
        return None
    keep = parts[0]
    for part in parts[1:]:
        shape = np.broadcast_shapes(get_aval(keep).shape, get_aval(part).shape)
        keep = lax.bitwise_and(broadcast_array(keep, shape), broadcast_array(part, shape))
    return keep
