"""How attention is cut into tasks on the CPU, and what a task keeps at hand."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from volta.emit.args import laid_out
from volta.emit.attention_args import Arg, attention_words
from volta.numba_cpu.launches import Launch
from volta.xla_like.attention import BLOCK, Attention, AttentionSpec, KernelName
from volta.xla_like.dot import item_size
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.plan import Buffer


@attrs.frozen
class VectorSpec(AttentionSpec):
    """What one compiled kernel of the CPU is for: `vector_bits` is the width of its registers."""

    vector_bits: int = 512

    @classmethod
    def of(cls, spec: AttentionSpec, vector_bits: int) -> VectorSpec:
        return cls(**attrs.asdict(spec), vector_bits=vector_bits)


class Tasks(enum.IntEnum):
    """Positions in the args block behind those of `Arg`."""

    TASK_ROWS = len(Arg)  # a task is this many query rows (keys in attention_dkv) of one (b, n): see tasks_of


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


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """One launch, of both cotangents too: a task of theirs is a head, for which scores are computed once."""
    op = call.kernel
    assert isinstance(op, Attention)
    name, key_heads = op.kernel, op.heads // op.group
    if name == "attention_backward":
        parts = [scratch(op.spec, part).total for part in ("attention_dq", "attention_dkv")]
        tasks, nbytes = op.batch * op.heads, max(*parts, backward_scratch_bytes(op.spec, op.queries))
        rows = task_rows("attention_dq", op.queries)
    else:
        tasks = tasks_of(name, op.batch, op.heads, key_heads, op.queries, op.keys)
        nbytes, rows = scratch(op.spec, name).total, task_rows(name, op.queries)
    words = laid_out((*call.accesses, *attention_words(call), rows))
    return [Launch(LibraryKernel(name, VectorSpec.of(op.spec, vector_bits)), call, *words, tasks, nbytes)]
