"""What the CPU decides about a plan: which calls run as one, what memory they need besides, and their launches.

A plan's calls say what is computed; `HANDLERS` has an entry for each class of operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.numba_cpu import attention_schedule, chains, dot_schedule, loop_schedule, ordering_schedule, user_entry
from volta.numba_cpu.launches import Launch, plain
from volta.xla_like.kernels import Joined, KernelCall, LoopKernel, Operation
from volta.xla_like.plan import Buffer
from volta.xla_like.user import is_user


@attrs.frozen
class Handler:
    """How an operation runs. ``launches`` and ``workspace`` are functions of a call and of the width of registers; the
    latter is the bytes of memory that its launches share."""

    launches: Callable[[KernelCall, int], list[Launch]]
    workspace: Callable[[KernelCall, int], int] = lambda call, vector_bits: 0


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("attention", "attention_dq", "attention_dkv", "attention_backward"), Handler(attention_schedule.launches)
    ),
    "dot": Handler(dot_schedule.launches, dot_schedule.workspace),
    "scan": Handler(ordering_schedule.scan),
    "scatter": Handler(ordering_schedule.scatter, ordering_schedule.order_bytes),
    "sort": Handler(ordering_schedule.sort),
}
"""By `Operation.name`."""


@attrs.frozen
class Schedule:
    """The CPU's, for registers of ``vector_bits``. It changes no bit."""

    vector_bits: int
    tensor_cores = False

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Products with the loops that run band by band behind them."""
        return chains.join(calls, buffers, self.vector_bits)

    def workspace(self, call: KernelCall) -> int:
        """Bytes that a call's launches share."""
        head = call.parts[0] if isinstance(call.kernel, Joined) else call
        if not isinstance(head.kernel, Operation):
            return 0
        return HANDLERS[head.kernel.name].workspace(head, self.vector_bits) if head.kernel.name in HANDLERS else 0

    def launches(self, call: KernelCall, buffers: Sequence[Buffer]) -> list[Launch]:
        """What runs a call of kernels."""
        kernel = call.kernel
        if isinstance(kernel, Joined):
            heads = self.launches(attrs.evolve(call.parts[0], workspace=call.workspace), buffers)
            return chains.launches(call, heads, buffers, self.vector_bits)
        if isinstance(kernel, Operation):
            return HANDLERS[kernel.name].launches(call, self.vector_bits)
        if is_user(call):
            return user_entry.launches(call, self.vector_bits)
        return [loop_schedule.launch(call) if isinstance(kernel, LoopKernel) else plain(call)]
