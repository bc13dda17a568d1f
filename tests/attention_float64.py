"""Attention and its gradients over all scores at once, in float64: the references of the three primitives."""

from __future__ import annotations

from typing import Any

import numpy as np


def _attended(q: Any, k: Any, v: Any, rest: Any, scale: float, causal: bool, started: bool, masked: bool) -> Any:
    """Keys and values for each query head, row statistics and weights, in float64."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.astype(np.float64), *(np.repeat(x.astype(np.float64), groups, 1) for x in (k, v))
    scores = scale * np.einsum("bnth,bnsh->bnts", q, k)
    if causal:
        first = rest[0][:, None, None, None] if started else 0
        scores = np.where(np.arange(k.shape[2]) <= first + np.arange(q.shape[2])[:, None], scores, -np.inf)
    if masked:
        scores = np.where(rest[-1], scores, -np.inf)
    m = scores.max(-1)
    weights = np.exp(scores - m[..., None])
    return q, k, v, m, weights.sum(-1), weights / weights.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any, *rest: Any, **params: Any) -> Any:
    work = np.dtype(np.float64) if q.dtype == np.float64 else np.dtype(np.float32)
    _, _, values, m, total, weights = _attended(q, k, v, rest, **params)
    return [np.einsum("bnts,bnsh->bnth", weights, values).astype(q.dtype), m.astype(work), total.astype(work)]


def _backward(q: Any, k: Any, v: Any, do: Any, m: Any, total: Any, delta: Any, *rest: Any, **params: Any) -> Any:
    """m and the total follow from the other operands, so that derivatives see them move."""
    q64, k64, v64, _, _, weights = _attended(q, k, v, rest, **params)
    do = do.astype(np.float64)
    return q64, k64, do, weights, weights * (np.einsum("bnth,bnsh->bnts", do, v64) - delta[..., None])


def attention_dq(*operands: Any, **params: Any) -> Any:
    _, k, _, _, ds = _backward(*operands, **params)
    return (params["scale"] * np.einsum("bnts,bnsh->bnth", ds, k)).astype(operands[0].dtype)


def attention_dkv(*operands: Any, **params: Any) -> Any:
    q, _, do, weights, ds = _backward(*operands, **params)
    dk, dv = params["scale"] * np.einsum("bnts,bnth->bnsh", ds, q), np.einsum("bnts,bnth->bnsh", weights, do)
    return [dk.astype(operands[0].dtype), dv.astype(operands[0].dtype)]
