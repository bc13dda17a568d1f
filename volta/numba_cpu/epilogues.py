"""Matrix-product epilogues: a kernel that reads a product row by row runs band by band behind it.

An epilogue is one launch whose parts run one after the other on one band of rows after the other, so the second part
finds its rows in the cache and no thread waits in between. The parts are the kernels that would have run one after the
other, over the same elements, so nothing about the bits changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.args import Address
from volta.emit.loops import I64, for_range, load_args, minimum, offset
from volta.numba_cpu import bands, dot_schedule, loop_schedule
from volta.numba_cpu.dot_schedule import Mode, Tiling
from volta.numba_cpu.kernel_abi import KERNEL_TYPE, new_kernel
from volta.numba_cpu.launches import PIECES, Launch
from volta.xla_like.dot import Dot, item_size
from volta.xla_like.kernels import Joined, KernelCall, LibraryKernel, LoopKernel
from volta.xla_like.loops import reads_in_order
from volta.xla_like.plan import Buffer
from volta.xla_like.views import prod

BAND_BYTES = 1 << 17
"""Aim for the size of one band of the product: well inside the second-level cache of a core."""

MAX_PARTS = 4

_HEADER = 40
"""Words of an epilogue's args block before those of its parts."""


@attrs.frozen
class _Band:
    """What one task of a product covers: ``elements`` neighbouring elements of ``buffer``; ``step`` tasks a band."""

    buffer: int
    elements: int
    step: int


def _band(call: KernelCall, buffers: Sequence[Buffer], vector_bits: int) -> _Band | None:
    """How a product's tasks tile its result, or None where a task is not whole rows of contiguous memory."""
    dot = call.kernel
    if not isinstance(dot, Dot) or dot.spec.blocks is not None:
        return None
    *_, launch = dot_schedule.plan_of(call, vector_bits, whole_rows=True).launches
    if launch.kernel != "dot":
        return None
    out, access, itemsize = call.writes[0], call.accesses[2], item_size(dot.spec.out)
    whole_items = launch[Tiling.TASK_ROWS] >= dot.m
    rows = min(launch[Tiling.TASK_ROWS], dot.m)
    elements = rows * dot.n
    if dot.m % rows or launch[Tiling.TASK_COLS] < dot.n or access.strides[2] != dot.n * itemsize:
        return None
    if launch.tasks * elements != buffers[out].aval.size or access.offset:
        return None
    if not whole_items and launch[Tiling.RHS_MODE] == Mode.SCRATCH:
        return None  # each band would pack the right operand again
    block = 1 if whole_items else max(1, launch[Tiling.BLOCK_ROWS] // rows)
    step = max(1, BAND_BYTES // (elements * itemsize * block)) * block
    return _Band(out, elements, step)


def _follows(call: KernelCall, band: _Band, buffers: Sequence[Buffer], written: Sequence[int]) -> bool:
    """Whether tasks of a loop can be aligned to the band's: each reads the rows of its own task only."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or kernel.mode == "col" or kernel.by_blocks or band.buffer not in call.reads:
        return False
    if prod(call.sizes) != buffers[band.buffer].aval.size:
        return False
    if not reads_in_order(call, call.sizes, buffers[band.buffer]) or any(a.buffer in written for a in call.accesses):
        return False
    return _is_flat(call) or band.elements % call.sizes[-1] == 0


def _is_flat(call: KernelCall) -> bool:
    """Whether a loop runs over elements without rows, so that any number of them may be a task."""
    assert isinstance(call.kernel, LoopKernel)
    return call.kernel.mode == "map" and call.kernel.rank == 1


def _aligned(loop: KernelCall, band: _Band) -> Launch:
    """The launch of a loop that follows a product, its tasks aligned to the band's."""
    return loop_schedule.launch(loop, band.elements if _is_flat(loop) else loop.sizes[-1])


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer], vector_bits: int) -> list[KernelCall]:
    """Join each product with the loop kernels that come right behind it and read it row by row."""
    out: list[KernelCall] = []
    i = 0
    while i < len(calls):
        head = calls[i]
        i += 1
        band = _band(head, buffers, vector_bits)
        parts = [head]
        while band is not None and i < len(calls) and len(parts) < MAX_PARTS:
            written = [b for p in parts for b in p.writes]
            follower = calls[i]
            if any(b in parts[0].reads for b in follower.writes):
                break
            if not _follows(follower, band, buffers, [b for b in written if b != band.buffer]):
                break
            parts.append(follower)
            i += 1
        out.append(head if len(parts) == 1 else _joined(parts))
    return out


def _joined(parts: list[KernelCall]) -> KernelCall:
    written = dict.fromkeys(b for p in parts for b in p.writes)
    reads = dict.fromkeys(b for p in parts for b in p.reads if b not in written)
    busy = set(parts[0].reads)  # other bands still read these
    inplace = [pair for p in parts[1:] for pair in p.inplace if pair[0] not in busy]
    # A value that two parts read is overwritten by neither.
    count = {b: sum(b in p.reads for p in parts) for b in (*reads, *written)}
    return KernelCall(
        kernel=Joined(),
        sizes=(),
        accesses=(),
        reads=tuple(reads),
        writes=tuple(written),
        label=parts[0].label,
        inplace=tuple(pair for pair in inplace if count[pair[0]] == 1),
        parts=tuple(parts),
    )


def workspace(call: KernelCall, vector_bits: int) -> int:
    """Bytes for the packed right operand of a joined call's product."""
    if isinstance(call.parts[0].kernel, LoopKernel):
        return 0
    return dot_schedule.workspace(call.parts[0], vector_bits)


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Of a joined call: those of its product, the last of which takes the loops behind it along, band by band."""
    if isinstance(call.parts[0].kernel, LoopKernel):
        return [together(call, *bands.launches(call, buffers), PIECES)]
    product, *loops = call.parts
    band = _band(product, buffers, vector_bits)
    assert band is not None
    product = attrs.evolve(product, workspace=call.workspace)
    *before, head = dot_schedule.launches(product, vector_bits, buffers, whole_rows=True)
    parts = [head, *(_aligned(loop, band) for loop in loops)]
    return [*before, together(call, parts, head.tasks, band.step, head.pieces)]


def together(call: KernelCall, parts: Sequence[Launch], tasks: int, step: int, pieces: int) -> Launch:
    """Launches as one, which runs them one after the other on ``step`` of its tasks."""
    header, words = [step], [0] * _HEADER
    addresses: list[Address] = []
    functions: list[tuple[int, Launch]] = []
    for part in parts:
        at = len(words)
        functions.append((len(header), part))
        header += [0, at, part.tasks // tasks]
        addresses += [(at + word, buffer, distance) for word, buffer, distance in part.addresses]
        words += part.words
    assert len(header) <= _HEADER
    words[: len(header)] = header
    return Launch(
        LibraryKernel("epilogue", len(parts)), call, tuple(words), tuple(addresses), tasks,
        max(part.scratch_bytes for part in parts), tuple(functions), pieces,
    )  # fmt: skip


def build_epilogue(module: ir.Module, name: str, parts: int) -> ir.Function:
    """Run kernels one after the other on bands of tasks. Args: tasks a band, then for each part its address, the first
    word of its args and its tasks per task of the whole."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    step, *words = load_args(b, args, 1 + 3 * parts)
    with for_range(b, begin, end, step) as low:
        high = minimum(b, b.add(low, step), end)
        for address, at, ratio in zip(words[::3], words[1::3], words[2::3], strict=True):
            kernel = b.inttoptr(address, KERNEL_TYPE.as_pointer())
            block = offset(b, args, b.shl(at, I64(3)))
            b.call(kernel, [block, b.mul(low, ratio), b.mul(high, ratio), scratch])
    b.ret_void()
    return function
