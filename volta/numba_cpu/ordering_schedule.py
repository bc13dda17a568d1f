"""Scans, sorts and scatters on the CPU: one task a row, or a few slots of a batch item."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from volta.emit.args import Word, laid_out
from volta.emit.reducers import LANES
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.ordering import Scan, Scatter, ScatterSpec, Sort, SortSpec
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


DIGIT = 8
"""Bits of a key by which a pass of a radix sort places records: 256 places written to fit into the nearest cache."""

BUCKETS_OF_DIGIT = 1 << DIGIT

SHORT_ROW = 6
"""Rows of up to so many elements for each digit are merged: to count fewer costs more (measured, rows of 8 to 64)."""

SORT_CHUNK = 1 << 16
"""Records of a long row that a task counts and places."""

FEW_ROWS = 16
"""As many rows or more are a task each, of any length."""


@attrs.frozen
class RadixRecord:
    """What a radix sort moves: a key and a position, of 64 bits each (``wide``) or of 32."""

    wide: bool

    @classmethod
    def of(cls, spec: SortSpec) -> RadixRecord:
        return cls(max(d.itemsize for d in spec.dtypes[: spec.num_keys]) > 4)

    @property
    def size(self) -> int:
        """In bytes."""
        return 16 if self.wide else 8


@attrs.frozen
class RadixKeys:
    """The records of a sort get the elements of one of its keys."""

    sort: SortSpec
    key: int


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
    """Short rows are merged, longer ones sorted by digits, in memory of the thread's own (double buffering); a few long
    ones in chunks, by several threads."""
    op = call.kernel
    assert isinstance(op, Sort)
    if call.workspace is not None:
        return _sort_in_chunks(call, op, call.workspace)
    digits = sum(8 * d.itemsize // DIGIT for d in op.spec.dtypes[: op.spec.num_keys])
    if not SHORT_ROW * digits < op.length < SMALL:
        return merge(call, vector_bits, buffers)
    words = laid_out((*call.accesses, op.rows, op.length))
    scratch = 8 * BUCKETS_OF_DIGIT + 2 * RadixRecord.of(op.spec).size * op.length
    return [Launch(LibraryKernel("sort_rows", op.spec), call, *words, op.rows, scratch)]


def merge(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Rows of any length, each a task that merges them in memory of the thread's own."""
    op = call.kernel
    assert isinstance(op, Sort)
    words = laid_out((*call.accesses, op.rows, op.length))
    return [Launch(LibraryKernel("sort", op.spec), call, *words, op.rows, 16 * op.length + 64)]


def _sort_in_chunks(call: KernelCall, op: Sort, workspace: int) -> list[Launch]:
    spec, record = op.spec, RadixRecord.of(op.spec)
    chunks, inputs = -(-op.length // SORT_CHUNK), call.accesses[: len(op.spec.read)]
    at = _in_chunks(op)
    counts, here, there = (Access(workspace, n, ()) for n in (0, at, at + record.size * op.rows * op.length))
    found = []

    def launch(name: str, what: object, tasks: int, *words: Word) -> None:
        found.append(Launch(LibraryKernel(name, what), call, *laid_out(words), tasks))

    for key in reversed(range(spec.num_keys)):
        launch("sort_keys", RadixKeys(spec, key), op.rows * chunks, *inputs, op.length, chunks, here)
        for shift in range(0, 8 * spec.dtypes[key].itemsize, DIGIT):
            words = (op.length, chunks, counts, shift, here, there)
            launch("sort_count", record, op.rows * chunks, *words)
            launch("sort_starts", record, op.rows, *words)
            launch("sort_place", record, op.rows * chunks, *words)
            here, there = there, here
    launch("sort_results", spec, op.rows * chunks, *call.accesses, op.length, chunks, here)
    return found


def _in_chunks(op: Sort) -> int:
    """Bytes of what is counted of each chunk."""
    return 8 * BUCKETS_OF_DIGIT * op.rows * -(-op.length // SORT_CHUNK)


def sort_bytes(call: KernelCall, vector_bits: int) -> int:
    """For the records of a few long rows, twice, and what is counted."""
    op = call.kernel
    assert isinstance(op, Sort)
    if op.rows >= FEW_ROWS or not SORT_CHUNK < op.length < SMALL:
        return 0
    return _in_chunks(op) + 2 * RadixRecord.of(op.spec).size * op.rows * op.length


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
