"""Scans, sorts and scatters on the CPU: one task a row, or a few slots of a batch item."""

from __future__ import annotations

from collections.abc import Sequence

from volta.emit.args import laid_out
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.ordering import Scan, Scatter, Sort
from volta.xla_like.plan import Buffer

FEW_UPDATES = 32
"""Up to this many updates a batch item are matched by comparing targets, without sorting them."""

SCATTER_SLOTS = 256
"""Target rows in one task of a scatter."""


def scan(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """A task is a row."""
    op = call.kernel
    assert isinstance(op, Scan)
    words = laid_out((*call.accesses, op.rows, op.length))
    return [Launch(LibraryKernel("scan", op.spec), call, *words, op.rows)]


def sort(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """A task is a row, whose positions are merged between two arrays of the thread's own (double buffering)."""
    op = call.kernel
    assert isinstance(op, Sort)
    words = laid_out((*call.accesses, op.rows, op.length))
    return [Launch(LibraryKernel("sort", op.spec), call, *words, op.rows, 16 * op.length + 64)]


def order_bytes(call: KernelCall, vector_bits: int) -> int:
    """For each batch item where each slot's updates end, and the updates' positions, slot by slot."""
    op = call.kernel
    assert isinstance(op, Scatter)
    return 8 * op.batch * (op.count + op.slots) if op.count > FEW_UPDATES else 0


def scatter(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Few updates by comparing targets; more by a counting sort of the targets, then slot by slot."""
    op, (updates, targets, out) = call.kernel, call.accesses
    assert isinstance(op, Scatter)
    sizes = (op.batch, op.slots, op.width, op.count)
    if call.workspace is None:
        words = laid_out((updates, targets, out, *sizes))
        return [Launch(LibraryKernel("scatter_few", op.spec), call, *words, op.batch)]
    order = Access(call.workspace, 0, ())
    sorting = LibraryKernel("scatter_order", "stable counting sort of targets")
    first = laid_out((targets, order, op.batch, op.slots, op.count))
    words = laid_out((updates, order, out, *sizes))
    tasks = op.batch * -(-op.slots // SCATTER_SLOTS)
    return [Launch(sorting, call, *first, op.batch), Launch(LibraryKernel("scatter", op.spec), call, *words, tasks)]
