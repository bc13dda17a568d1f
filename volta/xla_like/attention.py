"""Attention as operations: what is computed, of which sizes, on which arrays. Pure data.

The definition stands in docs/determinism.md (Attention). Three operations share one spec and one list of arrays:

- ``attention``: out, and for each row the largest score m and the sum l of exp(score - m);
- ``attention_dq``: the cotangent of the queries, from that of the output (``DO``), m, l and delta = SUM(DO * out);
- ``attention_dkv``: the cotangents of keys and values, one for each query head.

(Both cotangents of one attention are one operation, ``attention_backward``, where there are many heads.)

Memory grows with T and S, never with their product: scores live in registers and scratch, one block at a time.
"""

from __future__ import annotations

import enum
from typing import Literal

import attrs

from volta.core.contract import DEFINITIONS
from volta.xla_like.kernels import Operation

BLOCK = DEFINITIONS.attention_block
"""Keys (and, in ``attention_dkv``, query rows) in one block: part of the definition."""

MAX_HEAD = 256
"""Heads up to this size have kernels: a score is then one chain of DOT."""

KernelName = Literal["attention", "attention_dq", "attention_dkv", "attention_backward"]


@attrs.frozen
class AttentionSpec:
    """What one compiled attention kernel is for. Other sizes, strides and the scale are run-time arguments.

    ``dtype`` is that of queries, keys, values, results and cotangents; m, l and delta have `accumulator`. ``head`` and
    ``value_head`` are the sizes of one key and one value. ``started``: START holds the position of each batch item's
    first query among the keys (without it, it is 0); ``masked``: MASK holds booleans.
    """

    dtype: str
    head: int
    value_head: int
    causal: bool = False
    started: bool = False
    masked: bool = False

    def __attrs_post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise ValueError(f"attention is not defined for {self.dtype}")
        if not (1 <= self.head <= MAX_HEAD and 1 <= self.value_head <= MAX_HEAD):
            raise ValueError(f"heads must have 1 to {MAX_HEAD} elements, got {self.head} and {self.value_head}")
        if self.started and not self.causal:
            raise ValueError("positions of the first queries mean something only for causal attention")

    @property
    def accumulator(self) -> str:
        """The dtype in which everything is computed."""
        return "float64" if self.dtype == "float64" else "float32"


@attrs.frozen
class TensorSpec(AttentionSpec):
    """The same for kernels on tensor cores, which take bfloat16: `out` is the dtype of results and of gradients."""

    out: str = "bfloat16"


def fits_tensor_cores(t: int, s: int, head: int, value_head: int, scale: float) -> bool:
    """Whether attention that asks for tensor cores runs there: for heads that they have kernels for, and rows enough.

    No size of the batch counts, nor how operands lie: so the bits do not depend on these, either.
    """
    return t > 16 and s > 0 and {head, value_head} <= {64, 128} and 2.0**-100 < scale < 2.0**100


class Array(enum.IntEnum):
    """The arrays of an attention, in the order of a call's accesses; one that it lacks is absent.

    In those with heads (Q, K, V, OUT, DO, DQ, DK, DV) the elements of one head are neighbours; their accesses have the
    strides, in bytes, of the dimensions before. M, L and DELTA are contiguous. K and V have heads / group heads, all
    others as many as there are: query head n reads key head n // group.
    """

    Q = 0  # (batch, heads, queries, head)
    K = 1  # (batch, heads / group, keys, head)
    V = 2  # (batch, heads / group, keys, value head)
    START = 3  # (batch,) int32
    MASK = 4  # (batch, heads, queries, keys) bool: any of its strides may be 0
    OUT = 5  # (batch, heads, queries, value head): written by attention
    M = 6  # (batch, heads, queries): written by attention, read by the others
    L = 7
    DO = 8  # (batch, heads, queries, value head): the cotangent of OUT
    DELTA = 9  # (batch, heads, queries)
    DQ = 10  # (batch, heads, queries, head): written by attention_dq
    DK = 11  # (batch, heads, keys, head): written by attention_dkv
    DV = 12  # (batch, heads, keys, value head)


@attrs.frozen
class Attention(Operation):
    """Attention of a batch of heads, or cotangents of it. ``group`` query heads share a key head."""

    kernel: KernelName
    spec: AttentionSpec
    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    scale: float

    @property
    def name(self) -> str:
        """On tensor cores it is another class: its bits are those of one architecture."""
        return f"{self.kernel}_tc" if isinstance(self.spec, TensorSpec) else self.kernel

    def details(self) -> str:
        spec = self.spec
        kinds = "".join(f" {kind}" for kind in ("causal", "started", "masked") if getattr(spec, kind))
        sizes = f"batch={self.batch} heads={self.heads} group={self.group} queries={self.queries} keys={self.keys}"
        return f"{sizes} head={spec.head} value_head={spec.value_head} scale={self.scale}{kinds}"
