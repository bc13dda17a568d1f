"""How calls run where kernels are texts on a GPU: nothing is tiled, packed or joined, and a thread has a task.

A task is an element of a map or of a product, a column, a row, a query or a key: as few as the text allows, so that
there are threads enough. What may be computed by itself, and in which order a task computes, the plan and the text say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.emit.attention_args import attention_words
from volta.emit.dot_args import dot_words
from volta.emit.reducers import BLOCK
from volta.numba_cpu import ordering_schedule
from volta.numba_cpu.launches import Launch, operand_words, plain
from volta.xla_like.attention import Attention
from volta.xla_like.dot import Dot, strides_of
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel, LoopKernel, Operation
from volta.xla_like.plan import Buffer
from volta.xla_like.views import prod

_REGISTERS = 0
"""The width of vectors, which nothing here has."""


def _dot(call: KernelCall) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Dot)
    words = operand_words((*call.accesses, Access(None, 0, ())), dot_words(op, strides_of(call)))
    return [Launch(LibraryKernel("dot_element", op.spec), call, *words, op.batches * op.m * op.n)]


def _attention(call: KernelCall) -> list[Launch]:
    """Rows of queries; of cotangents, rows of queries and then keys."""
    op = call.kernel
    assert isinstance(op, Attention)
    words = operand_words(call.accesses, (*attention_words(call), 1))
    names = ("attention_dq", "attention_dkv") if op.kernel == "attention_backward" else (op.kernel,)
    rows = {name: op.keys if name == "attention_dkv" else op.queries for name in names}
    return [Launch(LibraryKernel(n, op.spec), call, *words, op.batch * op.heads * rows[n]) for n in names]


def _as_on_the_cpu(launches: Callable[[KernelCall, int], list[Launch]]) -> Callable[[KernelCall], list[Launch]]:
    return lambda call: launches(call, _REGISTERS)


HANDLERS: dict[str, Callable[[KernelCall], list[Launch]]] = {
    **dict.fromkeys(("attention", "attention_dq", "attention_dkv", "attention_backward"), _attention),
    "dot": _dot,
    "scan": _as_on_the_cpu(ordering_schedule.scan),
    "scatter": _as_on_the_cpu(ordering_schedule.scatter),
    "sort": _as_on_the_cpu(ordering_schedule.sort),
}
"""By `Operation.name`: what runs a call."""


def launches_of(call: KernelCall) -> list[Launch]:
    """Kernels that have texts, with their args and tasks, that run a call of no plans."""
    kernel = call.kernel
    if isinstance(kernel, Operation):
        return HANDLERS[kernel.name](call)
    return [plain(_in_single_tasks(call) if isinstance(kernel, LoopKernel) else call)]


def _in_single_tasks(call: KernelCall) -> KernelCall:
    """A loop with an element of a 'map', a column of a 'col' a task."""
    kernel, sizes = call.kernel, call.sizes
    assert isinstance(kernel, LoopKernel)
    if kernel.mode == "map":
        return attrs.evolve(call, sizes=(*sizes[:-1], 1), tasks=prod(sizes[:-1]))
    if kernel.mode == "col":
        blocks = -(-sizes[-1] // BLOCK) if kernel.by_blocks else 1
        return attrs.evolve(call, tasks=prod(sizes[:-1]) * blocks)
    return call


@attrs.frozen
class Schedule:
    """What is decided before memory is planned: every call runs by itself."""

    tensor_cores = False

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """The calls as they are."""
        return list(calls)

    def workspace(self, call: KernelCall) -> int:
        """Bytes for the sorted targets of a scatter."""
        scatter = isinstance(call.kernel, Operation) and call.kernel.name == "scatter"
        return ordering_schedule.order_bytes(call, _REGISTERS) if scatter else 0
