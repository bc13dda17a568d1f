"""Matrix-product epilogues: a kernel that reads a product row by row runs band by band behind it.

A chain is one call whose parts run in turn on one band of rows after the other, so the second part finds its rows in
the cache and no thread waits in between. The parts are the kernels that would have run one after the other, over the
same elements, so nothing about the bits changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from volta.xla_like.dot_schedule import Arg, Mode
from volta.xla_like.kernels import KernelCall, LibraryKernel, LoopKernel
from volta.xla_like.plan import Buffer
from volta.xla_like.views import Ints, prod, row_major

BAND_BYTES = 1 << 17
"""Aim for the size of one band of the product: well inside the second-level cache of a core."""

MAX_PARTS = 4


@attrs.frozen
class _Band:
    """What one task of a product covers: ``elements`` neighbouring elements of ``buffer``; ``step`` tasks a band."""

    buffer: int
    elements: int
    step: int


def _arg(call: KernelCall, which: Arg) -> int:
    return call.sizes[which - Arg.BATCH1]


def _band(call: KernelCall, buffers: Sequence[Buffer]) -> _Band | None:
    """How a product's tasks tile its result, or None where a task is not whole rows of contiguous memory."""
    if not (isinstance(call.kernel, LibraryKernel) and call.kernel.name == "dot") or len(call.writes) != 1:
        return None
    out, m, n = call.writes[0], _arg(call, Arg.M), _arg(call, Arg.N)
    rows, itemsize = _arg(call, Arg.TASK_ROWS), buffers[out].aval.dtype.itemsize
    whole_items = rows >= m
    rows = min(rows, m)
    elements = rows * n
    if m % rows or _arg(call, Arg.TASK_COLS) < n or _arg(call, Arg.OUT_M) != n * itemsize:
        return None
    if call.tasks * elements != buffers[out].aval.size or call.accesses[Arg.OUT].offset:
        return None
    if not whole_items and _arg(call, Arg.RHS_MODE) == Mode.SCRATCH:
        return None  # each band would pack the right operand again
    block = 1 if whole_items else max(1, _arg(call, Arg.BLOCK_ROWS) // rows)
    step = max(1, BAND_BYTES // (elements * itemsize * block)) * block
    return _Band(out, elements, step)


def _follows(call: KernelCall, band: _Band, buffers: Sequence[Buffer], written: Sequence[int]) -> KernelCall | None:
    """The call with its tasks aligned to the band's, or None where it reads other rows than its task's own."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or kernel.mode == "col" or kernel.by_blocks or band.buffer not in call.reads:
        return None
    size = buffers[band.buffer].aval.size
    if prod(call.sizes[: kernel.rank + (kernel.mode == "row")]) != size:
        return None
    dims = call.sizes if kernel.mode == "row" else call.sizes[: kernel.rank]
    if not reads_in_order(call, dims, buffers[band.buffer]) or any(a.buffer in written for a in call.accesses):
        return None
    if kernel.mode == "row":
        return call if band.elements % dims[-1] == 0 else None
    if kernel.rank == 1:
        return with_chunk(call, band.elements)
    return with_chunk(call, dims[-1]) if band.elements % dims[-1] == 0 else None


def with_chunk(call: KernelCall, chunk: int) -> KernelCall:
    """A 'map' call whose tasks are ``chunk`` elements of the innermost dimension each."""
    *outer, inner, _ = call.sizes
    return attrs.evolve(call, sizes=(*outer, inner, chunk), tasks=prod(outer) * -(-inner // chunk))


def reads_in_order(call: KernelCall, dims: Ints, buffer: Buffer) -> bool:
    """Whether a call that loops over ``dims`` reads a buffer's elements in their own order, wherever it reads it."""
    linear = tuple(s * buffer.aval.dtype.itemsize for s in row_major(dims))
    reads = [a for a in call.accesses if a.buffer == buffer.id]
    return all(not (a.offset or a.terms) and _same(a.strides, linear, dims) for a in reads)


def _same(strides: Ints, wanted: Ints, dims: Ints) -> bool:
    return all(n == 1 or s == w for s, w, n in zip(strides, wanted, dims, strict=True))


def chain_epilogues(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Join each product with the loop kernels that come right behind it and read it row by row."""
    out: list[KernelCall] = []
    i = 0
    while i < len(calls):
        head = calls[i]
        i += 1
        band = _band(head, buffers)
        parts = [head]
        while band is not None and i < len(calls) and len(parts) < MAX_PARTS:
            written = [b for p in parts for b in p.writes]
            follower = _follows(calls[i], band, buffers, [b for b in written if b != band.buffer])
            if follower is None or any(b in parts[0].reads for b in follower.writes):
                break
            parts.append(follower)
            i += 1
        out.append(head if band is None or len(parts) == 1 else _chain(parts, band))
    return out


def _chain(parts: list[KernelCall], band: _Band) -> KernelCall:
    written = dict.fromkeys(b for p in parts for b in p.writes)
    reads = dict.fromkeys(b for p in parts for b in p.reads if b not in written)
    busy = set(parts[0].reads)  # other bands still read these
    inplace = [pair for p in parts[1:] for pair in p.inplace if pair[0] not in busy]
    # A value that two parts read is overwritten by neither.
    count = {b: sum(b in p.reads for p in parts) for b in (*reads, *written)}
    return KernelCall(
        kernel=LibraryKernel("chain", len(parts)),
        sizes=(band.step, *(p.tasks // parts[0].tasks for p in parts)),
        accesses=(),
        tasks=parts[0].tasks,
        reads=tuple(reads),
        writes=tuple(written),
        scratch_bytes=max(p.scratch_bytes for p in parts),
        label=parts[0].label,
        inplace=tuple(pair for pair in inplace if count[pair[0]] == 1),
        parts=tuple(parts),
    )
