"""Kernels whose tasks are independent and sequential: each runs on one thread, as it runs on one of the CPU's.

Right first: a long row that one thread sorts or scans is slow, and a later kernel may share it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from volta.emit.loops import I64, if_then, load_arg, load_args
from volta.emit.passes import build_combine
from volta.emit.scatter import build_scatter_few, build_scatter_order, scatter_column
from volta.emit.sorting import build_scan, build_sort
from volta.numba_cuda.threads import block_index, device_pointer, new_entry, own_args, product, thread_index
from volta.xla_like.opaque import ScatterSpec

TASK_THREADS = 64
COLUMN_THREADS = 256

TASKS: dict[str, Callable[[ir.Module, str, Any], ir.Function]] = {
    "combine": build_combine,
    "scan": build_scan,
    "sort": build_sort,
    "scatter_few": lambda m, n, spec: build_scatter_few(m, n, spec, 1),
    "scatter_order": build_scatter_order,
}
"""Builders of kernels of the CPU's ABI that use no vectors, by class."""


def _linear(b: ir.IRBuilder, threads: int) -> ir.Value:
    return b.add(b.mul(block_index(b), I64(threads)), thread_index(b))


def build_task(module: ir.Module, name: str, kind: str, spec: object) -> ir.Function:
    """A thread runs one task of a kernel of the CPU's ABI."""
    inner = TASKS[kind](module, f"{name}_task", spec)
    inner.linkage = "internal"
    inner.attributes.add("alwaysinline")
    function, b = new_entry(module, name, TASK_THREADS)
    args = function.args[0]
    task = _linear(b, TASK_THREADS)
    with if_then(b, b.icmp_signed("<", task, load_arg(b, args, 0))):
        scratch = b.add(load_arg(b, args, 1), b.mul(task, load_arg(b, args, 2)))
        b.call(inner, [own_args(b, args), task, b.add(task, I64(1)), scratch])
    b.ret_void()
    return function


def build_scatter(module: ir.Module, name: str, spec: ScatterSpec) -> ir.Function:
    """A thread combines one column of one slot."""
    function, b = new_entry(module, name, COLUMN_THREADS)
    words = load_args(b, own_args(b, function.args[0]), 7)
    linear = _linear(b, COLUMN_THREADS)
    with if_then(b, b.icmp_signed("<", linear, product(b, words[3:6]))):
        scatter_column(b, spec, words, linear, device_pointer)
    b.ret_void()
    return function
