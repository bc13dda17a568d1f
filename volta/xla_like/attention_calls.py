"""Both cotangents of one attention in one call: a CPU then computes scores and weights once for the two of them.

The joined call has the two calls as its parts, and the same chains in the same order: a backend may run either.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.xla_like.attention import Arg, backward_scratch_bytes
from volta.xla_like.kernels import KernelCall, LibraryKernel

MIN_HEADS = 8
"""A task of the joined kernel is one head of one batch item: with fewer of them, the parts share out better."""

_SHARED = tuple(a for a in Arg if a < Arg.OUT or Arg.OUT < a < Arg.DQ)
_OWN_SIZES = range(Arg.DQ_B, Arg.TASK_ROWS + 1)


def join_cotangents(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """Each ``attention_dq`` and the ``attention_dkv`` of the same operands become one call, at the place of the first.

    Both read the same operands, so the later of them could always have run at the place of the earlier.
    """
    waiting: dict[object, int] = {}
    out: list[KernelCall | None] = []
    for call in calls:
        out.append(call)
        kernel = call.kernel
        if not isinstance(kernel, LibraryKernel) or kernel.name not in ("attention_dq", "attention_dkv"):
            continue
        if _size(call, Arg.B) * _size(call, Arg.N) < MIN_HEADS:
            continue
        key = (
            kernel.spec,
            tuple(call.accesses[a] for a in _SHARED),
            tuple(n for a, n in enumerate(call.sizes, Arg.B) if a not in _OWN_SIZES),
        )
        place = waiting.pop(key, None)
        other = None if place is None else out[place]
        if other is None or other.kernel == kernel:
            waiting[key] = len(out) - 1
            continue
        parts = (other, call) if kernel.name == "attention_dkv" else (call, other)
        assert place is not None
        out[place], out[-1] = _joined(*parts), None
    return [call for call in out if call is not None]


def _size(call: KernelCall, arg: Arg) -> int:
    return call.sizes[arg - Arg.B]


def _joined(dq: KernelCall, dkv: KernelCall) -> KernelCall:
    assert isinstance(dq.kernel, LibraryKernel)
    accesses = [x if x.buffer is not None else y for x, y in zip(dq.accesses, dkv.accesses, strict=True)]
    sizes = [x or y for x, y in zip(dq.sizes, dkv.sizes, strict=True)]
    return attrs.evolve(
        dq,
        kernel=LibraryKernel("attention_backward", dq.kernel.spec),
        sizes=tuple(sizes),
        accesses=tuple(accesses),
        tasks=_size(dq, Arg.B) * _size(dq, Arg.N),
        writes=dq.writes + dkv.writes,
        scratch_bytes=max(
            dq.scratch_bytes, dkv.scratch_bytes, backward_scratch_bytes(dq.kernel.spec, _size(dq, Arg.T))
        ),
        parts=(dq, dkv),
    )
