"""Scans, sorts and scatters on the CPU: one task a row, or a few slots of a batch item."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from volta.emit.args import laid_out
from volta.emit.reducers import LANES
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.ordering import Scan, Scatter, ScatterSpec, Sort
from volta.xla_like.plan import Buffer

FEW_UPDATES = 32
"""Up to this many updates a batch item are matched by comparing targets, without sorting them."""

SCATTER_SLOTS = 64
"""Target rows in one task of a scatter, where each of them is sorted by itself."""

CHUNK = 1 << 16
"""Updates that a task sorts."""

ALONE = 4096
"""Up to this many slots updates are sorted at once: the cache holds as many places that are written to."""

BUCKETS = 128
"""Of more slots, updates are sorted by so many buckets of slots first, and each bucket then: by more of them where a
bucket would have over `BUCKET_SLOTS`."""

BUCKET_SLOTS = 1 << 14

SMALL = 1 << 31
"""Fewer updates are counted in 32 bits."""


@attrs.frozen
class SortedUpdates:
    """What the kernels of a scatter sort by target: the updates themselves where rows have one element (``carries``),
    else their positions. ``index``: the dtype of positions and of what is counted. ``coarse``: by buckets of slots
    first, then by slots."""

    scatter: ScatterSpec
    index: np.dtype
    carries: bool
    coarse: bool

    @property
    def value(self) -> np.dtype:
        """Of what is sorted."""
        return self.scatter.dtype if self.carries else self.index

    @property
    def word(self) -> int:
        """A record of a bucket is a slot and a value, of so many bytes each."""
        return max(self.value.itemsize, self.index.itemsize)


@attrs.frozen
class Sorting:
    """How the updates of a scatter are sorted: by buckets of 2^``shift`` slots, each chunk of updates by itself. Then
    each chunk's updates have their places: a bucket's are those of all chunks, in order."""

    what: SortedUpdates
    shift: int
    buckets: int
    chunks: int

    @classmethod
    def of(cls, op: Scatter) -> Sorting:
        coarse, index = op.slots > ALONE, np.dtype(np.int32 if op.count < SMALL else np.int64)
        shift = min((-(-op.slots // BUCKETS) - 1).bit_length(), BUCKET_SLOTS.bit_length() - 1) if coarse else 0
        what = SortedUpdates(op.spec, index, op.width == 1, coarse)
        return cls(what, shift, -(-op.slots >> shift), -(-op.count // CHUNK))

    def parts(self, op: Scatter) -> tuple[int, int, int]:
        """Bytes of what is counted of each chunk, of the records by bucket, and of what is sorted (read in vectors)."""
        counts = op.batch * self.chunks * self.buckets * self.what.index.itemsize
        records = op.batch * op.count * 2 * self.what.word if self.what.coarse else 0
        values = (op.batch * op.count + LANES) * self.what.value.itemsize
        return tuple(-(-n // 64) * 64 for n in (counts, records, values))  # type: ignore[return-value]


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
    """For what updates are sorted in, many of them."""
    op = call.kernel
    assert isinstance(op, Scatter)
    return sum(Sorting.of(op).parts(op)) if op.count > FEW_UPDATES else 0


def scatter(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Few updates by comparing targets; more are sorted by target, then combined slot by slot."""
    op, (updates, targets, out) = call.kernel, call.accesses
    assert isinstance(op, Scatter)
    sizes = (op.batch, op.slots, op.width, op.count)
    if call.workspace is None:
        words = laid_out((updates, targets, out, *sizes))
        return [Launch(LibraryKernel("scatter_few", op.spec), call, *words, op.batch)]
    how = Sorting.of(op)
    counts, records, _ = how.parts(op)
    places = (Access(call.workspace, at, ()) for at in (0, counts, counts + records))
    words = laid_out((updates, targets, out, *sizes, *places, how.shift, how.buckets, how.chunks))
    chunks = op.batch * how.chunks
    groups = how.buckets if how.what.coarse else -(-op.slots // SCATTER_SLOTS)
    scratch = (how.what.index.itemsize << how.shift) if how.what.coarse else 0

    def launch(name: str, tasks: int, scratch: int = 0) -> Launch:
        return Launch(LibraryKernel(name, how.what), call, *words, tasks, scratch)

    return [
        launch("scatter_count", chunks),
        launch("scatter_starts", op.batch),
        launch("scatter_place", chunks),
        launch("scatter", op.batch * groups, scratch),
    ]
