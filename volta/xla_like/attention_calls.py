"""Both cotangents of one attention in one call: a CPU then computes scores and weights once for the two of them.

The joined call has the two calls as its parts, and the same chains in the same order: a backend may run either.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.xla_like.attention import Array, Attention
from volta.xla_like.kernels import KernelCall

MIN_HEADS = 8
"""A task of the joined kernel is one head of one batch item: with fewer of them, the parts share out better."""

_SHARED = tuple(a for a in Array if a < Array.OUT or Array.OUT < a < Array.DQ)


def join_cotangents(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """Each ``attention_dq`` and the ``attention_dkv`` of the same operands become one call, at the place of the first.

    Both read the same operands, so the later of them could always have run at the place of the earlier.
    """
    waiting: dict[object, int] = {}
    out: list[KernelCall | None] = []
    for call in calls:
        out.append(call)
        op = call.kernel
        if not isinstance(op, Attention) or op.name not in ("attention_dq", "attention_dkv"):
            continue
        if op.batch * op.heads < MIN_HEADS:
            continue
        key = attrs.evolve(op, kernel="attention_backward"), tuple(call.accesses[a] for a in _SHARED)
        place = waiting.pop(key, None)
        other = None if place is None else out[place]
        if other is None or other.kernel == op:
            waiting[key] = len(out) - 1
            continue
        parts = (other, call) if op.kernel == "attention_dkv" else (call, other)
        assert place is not None
        out[place], out[-1] = _joined(*parts), None
    return [call for call in out if call is not None]


def _joined(dq: KernelCall, dkv: KernelCall) -> KernelCall:
    assert isinstance(dq.kernel, Attention)
    return attrs.evolve(
        dq,
        kernel=attrs.evolve(dq.kernel, kernel="attention_backward"),
        accesses=tuple(x if x.buffer is not None else y for x, y in zip(dq.accesses, dkv.accesses, strict=True)),
        writes=dq.writes + dkv.writes,
        parts=(dq, dkv),
    )
