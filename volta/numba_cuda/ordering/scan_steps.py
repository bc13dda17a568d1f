"""The launches of scans.

Rows of up to 32 blocks take one kernel. Of others the blocks' totals are found, what comes before each block, and the
results; of long sums and products of floats what comes before each leaf of 32 blocks (chains.py). A long row by itself
goes in parts: while a warp traverses the chain of one, the totals of others are found, and the results of those
before it are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import attrs

from volta.emit.builder import compute_dtype, item_size
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Range
from volta.numba_cuda.ordering import chains, scanning
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import Access, KernelCall
from volta.xla_like.ordering import Scan, ScanSpec

ENOUGH_BLOCKS = 264 * WARP * scanning.WARPS
"""Blocks of rows from which on a warp has as many as it has lanes."""

ENOUGH_PIECES = 16
"""Pieces of a row's chain that are worth being taken in parts."""

_NOTHING = Access(None, 0, ())


@attrs.frozen
class _Scan:
    """A scan's rows, and the kernels that read or write their elements."""

    ctx: LaunchContext
    spec: ScanSpec
    source: Access
    out: Access
    rows: int
    length: int

    @property
    def kind(self) -> str:
        return compute_dtype(self.spec.dtype.name)

    @property
    def blocks(self) -> int:
        return -(-self.length // scanning.BLOCK)

    def step(
        self, part: str, build: Callable[..., object], totals: Access, leaves: Access, pitch: int, first: int,
        span: int, share: int, reads: tuple[Access | Range, ...], writes: tuple[Access | Range, ...],
    ) -> Launch:  # fmt: skip
        """``span`` numbers of blocks a row, from the ``first`` on; a warp has a ``share`` of them."""
        spec, long = self.spec, leaves.buffer is not None
        words = (
            self.source, self.out, totals, leaves, self.rows, self.length, first, span, self.blocks, share, pitch,
        )  # fmt: skip
        stem = f"{part}{'_long' * long}_{spec.kind}_{spec.dtype.name}{'_reverse' * spec.reverse}"
        return self.ctx.step(
            f"volta_scan_{stem}", f"scan {part} {long} {spec}", partial(build, spec=spec),
            -(-self.rows * span // (share * scanning.WARPS)), scanning.THREADS, words, reads, writes,
        )  # fmt: skip


def scan(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of a scan."""
    op, (source, out) = call.kernel, call.accesses
    assert isinstance(op, Scan)
    s = _Scan(ctx, op.spec, source, out, op.rows, op.length)
    if s.blocks <= WARP:
        share = min(s.rows, WARP // s.blocks) * s.blocks
        yield s.step("rows", scanning.build_scan, _NOTHING, _NOTHING, 0, 0, s.blocks, share, (s.source,), (s.out,))
    elif chains.is_long(s.blocks, s.spec.kind, s.kind):
        yield from _long(s)
    else:
        yield from _by_blocks(s)


def _by_blocks(s: _Scan) -> Iterator[Launch]:
    kind, pitch = s.spec.kind, chains.totals_of(s.blocks, s.spec.kind, s.kind)
    totals = s.ctx.scratch(item_size(s.kind) * s.rows * pitch)
    share = WARP if s.rows * s.blocks >= filling(ENOUGH_BLOCKS) else WARP // 4
    blocks = (totals, _NOTHING, pitch, 0, s.blocks, share)
    yield s.step("totals", partial(scanning.build_totals, long=False), *blocks, (s.source,), (totals,))
    yield s.ctx.step(
        f"volta_scan_chain_{kind}_{s.kind}", f"scan chain {kind} {s.kind}",
        partial(chains.build_chain, kind=kind, dtype=s.kind), -(-s.rows // chains.WARPS), chains.THREADS,
        (totals, s.rows, pitch), (totals,), (totals,),
    )  # fmt: skip
    yield s.step("apply", partial(scanning.build_apply, long=False), *blocks, (s.source, totals), (s.out,))


def parts_of(rows: int, pieces: int) -> list[tuple[int, int]]:
    """The parts of rows' chains: first piece, and that behind the last.

    The chain of the first is traversed while the others' totals are found; the last are short, since what is left to do
    behind a chain is the results of its part.
    """
    if rows > 1 or pieces < filling(ENOUGH_PIECES) or pieces < 8:
        return [(0, pieces)]
    ends = [pieces * eighths // 8 for eighths in (0, 2, 4, 6, 7, 8)]
    return list(zip(ends, ends[1:], strict=False))


def _long(s: _Scan) -> Iterator[Launch]:
    kind, rows, size, ctx = s.spec.kind, s.rows, item_size(s.kind), s.ctx
    pitch = chains.totals_of(s.blocks, kind, s.kind)
    pieces = pitch // chains.PIECE
    record = chains.record_bytes(s.kind) if kind == "cumsum" else 0
    totals, leaves = ctx.scratch(size * rows * pitch), size * rows * pieces * WARP
    records = ctx.scratch(rows * pieces * record) if record else _NOTHING
    parts = parts_of(rows, pieces)
    # One piece of memory: what comes to lie where something else was would have to wait for what used that.
    sums = ctx.scratch(2 * leaves + size * rows)
    begins, ends = (attrs.evolve(sums, offset=k * leaves) for k in (1, 2))

    def of(array: Access, nbytes: int, first: int, stop: int) -> tuple[Access | Range, ...]:
        """What an array of so many bytes a piece has of pieces: of several rows they are all over it."""
        if array.buffer is None or len(parts) == 1:
            return (array,)
        return (Range(array.buffer, array.offset + first * nbytes, array.offset + stop * nbytes),)

    def prepare(first: int, stop: int) -> Iterator[Launch]:
        """Totals, and jumps along them. The totals of the first part come first."""
        here, leaves = of(totals, size * chains.PIECE, first, stop), of(sums, size * WARP, first, stop)
        before = of(sums, size * WARP, 0, first) if first else ()
        yield s.step(
            "totals", partial(scanning.build_totals, long=True), totals, sums, pitch, first * chains.PIECE,
            (stop - first) * chains.PIECE, WARP, (s.source, *before), (*here, *leaves),
        )  # fmt: skip
        if record:
            yield ctx.step(
                f"volta_scan_jumps_{s.kind}", f"scan jumps {s.kind}", partial(chains.build_jumps, dtype=s.kind),
                rows * -(-(stop - first) // chains.WARPS), chains.THREADS,
                (totals, sums, records, first, stop, pieces), (*here, *leaves, *before),
                of(records, record, first, stop),
            )  # fmt: skip

    yield from prepare(*parts[0])
    if len(parts) > 1:
        yield from prepare(parts[0][1], pieces)
    for first, stop in parts:
        own = attrs.evolve(begins, offset=begins.offset + first * size * WARP)
        here, known = of(totals, size * chains.PIECE, first, stop), of(begins, size * WARP, first, stop)
        end = of(ends, size, 0, 1)
        yield ctx.step(
            f"volta_scan_long_chain_{kind}_{s.kind}", f"scan long chain {kind} {s.kind}",
            partial(chains.build_long_chain, kind=kind, dtype=s.kind), rows, WARP,
            (totals, records, own, ends, first, stop, pieces), (*here, *of(records, record, first, stop), *end),
            (*known, *end),
        )  # fmt: skip
        apply = s.step(
            "apply", partial(scanning.build_apply, long=True), totals, own, pitch, first * chains.PIECE,
            (stop - first) * chains.PIECE, WARP, (s.source, *here, *known), (_written(s, first, stop, len(parts)),),
        )  # fmt: skip
        yield attrs.evolve(apply, alone=len(parts) > 1)  # not merged with the next: they end one after the other


def _written(s: _Scan, first: int, stop: int, parts: int) -> Access | Range:
    """The results of a part."""
    if parts == 1 or s.out.buffer is None:
        return s.out
    low, high = (min(s.length, k * chains.PIECE * scanning.BLOCK) for k in (first, stop))
    if s.spec.reverse:
        low, high = s.length - high, s.length - low
    size = s.spec.dtype.itemsize
    return Range(s.out.buffer, s.out.offset + low * size, s.out.offset + high * size)
