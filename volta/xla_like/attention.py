"""Attention as kernels: what one compiled kernel is for, its args block, and how it is cut into tasks. Pure data.

The definition stands in docs/determinism.md (Attention). Three kernels share one spec and one args block:

- ``attention``: out, and for each row the largest score m and the sum l of exp(score - m);
- ``attention_dq``: the cotangent of the queries, from that of the output (``DO``), m, l and delta = SUM(DO * out);
- ``attention_dkv``: the cotangents of keys and values, one for each query head.

(A CPU runs the last two as one kernel, ``attention_backward``, where there are many heads.)

Memory grows with T and S, never with their product: scores live in registers and scratch, one block at a time.
"""

from __future__ import annotations

import enum
import struct
from typing import Literal

import attrs

from volta.core.contract import DEFINITIONS
from volta.xla_like.dot import item_size

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


class Arg(enum.IntEnum):
    """Positions in the args block of all three kernels. Strides are in bytes; an address a kernel lacks is 0.

    In operands of heads (Q, K, V, OUT, DO, DQ, DK, DV) the elements of one head are neighbours. M, L and DELTA are
    contiguous (B, N, T). K and V have N / GROUP heads, all others N: query head n reads key head n // GROUP.
    """

    Q = 0  # (B, N, T, H)
    K = 1  # (B, N / GROUP, S, H)
    V = 2  # (B, N / GROUP, S, HV)
    START = 3  # (B,) int32
    MASK = 4  # (B, N, T, S) bool: one byte each
    OUT = 5  # (B, N, T, HV): written by attention
    M = 6  # (B, N, T): written by attention, read by the others
    L = 7
    DO = 8  # (B, N, T, HV): the cotangent of OUT
    DELTA = 9  # (B, N, T)
    DQ = 10  # (B, N, T, H): written by attention_dq
    DK = 11  # (B, N, S, H): written by attention_dkv
    DV = 12  # (B, N, S, HV)
    B = 13  # sizes
    N = 14
    GROUP = 15
    T = 16
    S = 17
    SCALE = 18  # the bits of the scale in the accumulator's dtype
    Q_B = 19
    Q_N = 20
    Q_T = 21
    K_B = 22
    K_N = 23  # from one key head to the next
    K_S = 24
    V_B = 25
    V_N = 26
    V_S = 27
    START_B = 28
    MASK_B = 29  # any of the mask's strides may be 0
    MASK_N = 30
    MASK_T = 31
    MASK_S = 32
    OUT_B = 33
    OUT_N = 34
    OUT_T = 35
    DO_B = 36
    DO_N = 37
    DO_T = 38
    DQ_B = 39
    DQ_N = 40
    DQ_T = 41
    DK_B = 42
    DK_N = 43
    DK_S = 44
    DV_B = 45
    DV_N = 46
    DV_S = 47
    TASK_ROWS = 48  # a task of the CPU is this many query rows (keys in attention_dkv) of one (b, n): see tasks_of


OPERANDS = tuple(arg for arg in Arg if arg < Arg.B)
"""What the first arguments are: the plan binds the addresses."""


def scale_bits(spec: AttentionSpec, scale: float) -> int:
    """The argument SCALE: ``scale`` rounded to the accumulator's dtype, as an integer."""
    code, integer = ("<d", "<q") if spec.accumulator == "float64" else ("<f", "<i")
    bits: int = struct.unpack(integer, struct.pack(code, scale))[0]
    return bits


TASK_ROWS = 2 * BLOCK
"""Rows of the largest task of a CPU: a packed block of keys serves several tiles of rows."""


def task_rows(kernel: KernelName, t: int) -> int:
    """Rows (keys in ``attention_dkv``) of one task, from sizes alone."""
    return BLOCK if kernel == "attention_dkv" or t <= BLOCK else TASK_ROWS


def tasks_of(kernel: KernelName, b: int, n: int, heads: int, t: int, s: int) -> int:
    """How many tasks a call has, for ``n`` query heads and ``heads`` key heads.

    Where ``attention`` has one row a head, the heads that share a key head are the rows of its tasks.
    """
    size, rows = task_rows(kernel, t), s if kernel == "attention_dkv" else t
    if kernel == "attention" and t == 1 and heads:
        n, rows = heads, n // heads
    return b * n * -(-rows // size)


@attrs.frozen
class Scratch:
    """Byte offsets into the scratch memory that each thread of a CPU has, and its size."""

    offsets: dict[str, int]
    total: int


def scratch(spec: AttentionSpec, kernel: KernelName) -> Scratch:
    """What one task keeps at hand, by name: 64-byte aligned, rows padded to whole vectors (see `row_elements`)."""
    item, h, hv = item_size(spec.accumulator), spec.head, spec.value_head
    wide, value_wide = row_elements(h), row_elements(hv)
    rows = TASK_ROWS
    elements = {
        "kt": h * BLOCK,  # the keys of a block, one vector of keys for each element of a head
        "q": rows * wide,  # queries in the accumulator's dtype
        "scores": BLOCK * BLOCK,  # scores, then weights, then cotangents of scores
    }
    if kernel == "attention":
        elements |= {"v": BLOCK * value_wide, "part": BLOCK * value_wide, "sum": rows * value_wide}
        elements |= {"m": rows, "l": rows, "block_m": BLOCK, "block_l": BLOCK}
    else:
        elements |= {"vt": hv * BLOCK, "do": rows * value_wide, "weights": BLOCK * BLOCK}
        if kernel != "attention_dkv":
            elements |= {"k": BLOCK * wide}
        if kernel == "attention_dq":
            elements |= {"part": BLOCK * wide, "sum": rows * wide}
        else:
            elements |= {"part": BLOCK * max(wide, value_wide), "sum": BLOCK * wide, "value_sum": BLOCK * value_wide}
    sizes = {name: count * item for name, count in elements.items()}
    sizes |= {"seen": BLOCK * 8, "seen_by": BLOCK * 8}  # a bit a key for each row, a bit a row for each key
    offsets, at = {}, 0
    for name, size in sizes.items():
        offsets[name] = at
        at += -(-size // 64) * 64
    return Scratch(offsets, at)


def backward_scratch_bytes(spec: AttentionSpec, t: int) -> int:
    """What a task of ``attention_backward`` needs: at the end, the queries' cotangents of a whole head."""
    rows = -(-t // BLOCK) * BLOCK
    return scratch(spec, "attention_backward").total + rows * row_elements(spec.head) * item_size(spec.accumulator)


def row_elements(count: int) -> int:
    """The elements of a head as they lie in scratch memory: whole vectors, however wide the machine's are."""
    return -(-count // 16) * 16
