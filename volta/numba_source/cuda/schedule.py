"""How calls run where kernels are texts on a GPU: nothing is tiled, packed or joined, and a thread has a task.

A task is an element of a map or of a product, a column, a row, a query or a key: as few as the text allows, so that
there are threads enough. What may be computed by itself, and in which order a task computes, the plan and the text say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from volta.core.ir import Eqn
from volta.core.policy import DeterminismLevel
from volta.emit.args import laid_out, loop_words
from volta.emit.attention_args import attention_words
from volta.emit.dot_args import dot_words
from volta.emit.reducers import BLOCK
from volta.numba_cpu import schedule as cpu
from volta.numba_cpu.launches import Launch
from volta.xla_like.attention import Attention
from volta.xla_like.control_calls import KINDS
from volta.xla_like.dot import Dot, strides_of
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel, LoopKernel, kernel_class
from volta.xla_like.ordering import Scatter
from volta.xla_like.plan import Buffer
from volta.xla_like.user import NAME as USER
from volta.xla_like.views import prod

_REGISTERS = 0
"""The width of vectors, which nothing here has."""


def _dot(call: KernelCall) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Dot)
    words = laid_out((*call.accesses, Access(None, 0, ()), *dot_words(op, strides_of(call))))
    return [Launch(LibraryKernel("dot_element", op.spec), call, *words, op.batches * op.m * op.n)]


def _attention(call: KernelCall) -> list[Launch]:
    """Rows of queries; of cotangents, rows of queries and then keys."""
    op = call.kernel
    assert isinstance(op, Attention)
    words = laid_out((*call.accesses, *attention_words(call), 1))
    names = ("attention_dq", "attention_dkv") if op.kernel == "attention_backward" else (op.kernel,)
    rows = {name: op.keys if name == "attention_dkv" else op.queries for name in names}
    return [Launch(LibraryKernel(n, op.spec), call, *words, op.batch * op.heads * rows[n]) for n in names]


def _loop(call: KernelCall) -> list[Launch]:
    """An element of a 'map', a row or a column a task; by blocks, a block of one."""
    kernel, sizes = call.kernel, call.sizes
    assert isinstance(kernel, LoopKernel)
    if kernel.mode == "map":
        return [Launch(kernel, call, *laid_out((*loop_words(call), 1)), prod(sizes))]
    blocks = -(-sizes[-1] // BLOCK) if kernel.by_blocks else 1
    return [Launch(kernel, call, *laid_out(loop_words(call)), prod(sizes[:-1]) * blocks)]


def _as_on_the_cpu(name: str) -> Callable[[KernelCall], list[Launch]]:
    return lambda call: cpu.Schedule(_REGISTERS, general=True).launches(call, ())


HANDLERS: dict[str, Callable[[KernelCall], list[Launch]]] = {
    **dict.fromkeys(("attention", "attention_dq", "attention_dkv", "attention_backward"), _attention),
    "dot": _dot,
    "loop": _loop,
    **{name: _as_on_the_cpu(name) for name in ("combine", "scan", "scatter", "sort")},
}
"""By `kernel_class`: what runs a call of no plans, in kernels that have texts."""

KERNEL_CLASSES = dict.fromkeys((*HANDLERS, USER, *KINDS), DeterminismLevel.STRICT)
"""What asks for tensor cores runs on plain kernels."""


def launches_of(call: KernelCall) -> list[Launch]:
    """Kernels that have texts, with their args and tasks, that run a call of no plans."""
    return HANDLERS[kernel_class(call.kernel)](call)


@attrs.frozen
class Schedule:
    """What is decided before memory is planned: every call runs by itself."""

    tensor_cores = False
    moves = False

    def keeps(self, eqn: Eqn) -> bool:
        """No equation: the texts are of programs."""
        return False

    def bare(self, op: Scatter) -> bool:
        return False

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """The calls as they are."""
        return list(calls)

    def moments(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> Sequence[int]:
        return range(len(calls))

    def workspace(self, call: KernelCall) -> int:
        """Bytes for the sorted targets of a scatter."""
        return cpu.HANDLERS["scatter"].workspace(call, _REGISTERS) if kernel_class(call.kernel) == "scatter" else 0
