"""How much calls have to do, roughly: whether threads pay for a plan, and for each of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from volta.ops.primitive import REGISTRY
from volta.xla_like.attention import Attention
from volta.xla_like.dot import Dot
from volta.xla_like.kernels import CombineKernel, Compute, KernelCall, LoopKernel
from volta.xla_like.panels import Panel
from volta.xla_like.plan import Buffer, ExecutionPlan
from volta.xla_like.user import User

ALONE = 1 << 15
"""Launches with less to do are the caller's: a microsecond or two, in which threads would hardly have met."""

_USER_WORK = 16
"""What a kernel of the user's own is taken to do with a byte; nobody knows."""

_FUNCTION = 16
"""What an element of a costly function counts at most, beside a byte: exp of a vector takes so long."""


def touched(call: KernelCall, buffers: Sequence[Buffer], reached: int | None = None) -> int:
    """Bytes that a call touches; of a large array what its loop reaches, or so many bytes."""
    kernel = call.kernel
    if isinstance(kernel, LoopKernel):
        reached = 8 * prod(call.sizes[: kernel.rank + (kernel.mode != "map")])
    sizes = (buffers[b].nbytes for b in (*call.reads, *call.writes))
    return sum(sizes if reached is None else (min(nbytes, reached) for nbytes in sizes))


def is_small(call: KernelCall, buffers: Sequence[Buffer]) -> bool:
    """Whether the caller runs a call's launches alone: loops and products that take little."""
    total = 0
    for part in call.each():
        kernel = part.kernel
        if isinstance(kernel, LoopKernel):
            costs = (min(REGISTRY[x.name].cost, _FUNCTION) for x in kernel.body if isinstance(x, Compute))
            total += prod(part.sizes) * sum(costs)
        elif isinstance(kernel, Dot):
            total += _products(kernel)
        elif isinstance(kernel, Panel):
            total += kernel.batch * kernel.width**2 * kernel.length
        elif not isinstance(kernel, CombineKernel):
            return False
        total += touched(part, buffers)
    return total < ALONE


def work_of(plan: ExecutionPlan) -> int:
    """A rough count of bytes touched and operations done, to decide whether threads pay."""
    total = 0
    for call in plan.calls:
        nbytes = sum(plan.buffers[b].nbytes for b in (*call.reads, *call.writes))
        several = isinstance(call.kernel, User) and prod(call.kernel.batch) > 1
        total += nbytes * _USER_WORK if several else nbytes
        for part in call.each():
            if isinstance(part.kernel, Dot):
                total += _products(part.kernel)
            elif isinstance(part.kernel, Attention):
                op = part.kernel
                total += op.batch * op.heads * op.queries * op.keys * op.spec.head // 2
        total += sum(work_of(nested) for nested in call.plans)
    return total


def _products(dot: Dot) -> int:
    return dot.m * dot.n * dot.k // 4
