"""Scatters on the CPU: how updates come to their slots.

Few are matched by comparing targets. Rows of numbers are sorted by target, as positions, and combined slot by slot.
Single numbers are not sorted: those of a slot fill a row of its own (`scatter_numbers`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from volta.emit.args import laid_out
from volta.emit.builder import compute_dtype, item_size
from volta.emit.reducers import BLOCK, LANES
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.ordering import Scatter, ScatterSpec
from volta.xla_like.plan import Buffer

FEW_UPDATES = 32
"""Up to this many updates a batch item are matched by comparing targets, without sorting them."""

SCATTER_SLOTS = 64
"""Target rows in one task of a scatter, where no bucket of them is a task."""

CHUNK = 1 << 16
"""Updates that a task sorts, or puts into buckets."""

ALONE = 4096
"""Up to this many slots positions are sorted without buckets: the cache holds as many places that are written to."""

NUMBERS_ALONE = 1 << 15
"""Likewise for single numbers, which are written once, to where nothing waits for them: memory farther away will do."""

BUCKETS = 128
"""Of more slots, positions are sorted by so many buckets of slots first, and each bucket then: by more of them where a
bucket would have over `BUCKET_SLOTS`."""

BUCKET_SLOTS = 1 << 14

SMALL = 1 << 31
"""Fewer updates, and fewer slots, are counted in 32 bits."""

NUMBER_BUCKETS = 256
"""Likewise for single numbers: then what a bucket's slots keep is about as large as the nearest cache."""

SHORT_ROW, LONG_ROW = 32, LANES
"""Numbers that a slot keeps until they are joined with what came before them: few where there are few a slot."""

RECORDS = 64
"""In a block of a bucket's list."""

_LINE = 64  # bytes


def _aligned(n: int) -> int:
    return -(-n // _LINE) * _LINE


@attrs.frozen
class SortedUpdates:
    """What the kernels of a scatter sort by target: positions of updates. ``index``: their dtype, and that of what is
    counted. ``coarse``: by buckets of slots first, then by slots."""

    scatter: ScatterSpec
    index: np.dtype
    coarse: bool


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
        shift = _shift(op.slots, BUCKETS) if coarse else 0
        return cls(SortedUpdates(op.spec, index, coarse), shift, -(-op.slots >> shift), -(-op.count // CHUNK))

    def parts(self, op: Scatter) -> tuple[int, int, int]:
        """Bytes of what is counted of each chunk, of the records by bucket (slots and positions), and of positions."""
        index = self.what.index.itemsize
        counts = op.batch * self.chunks * self.buckets * index
        records = op.batch * op.count * 2 * index if self.what.coarse else 0
        return _aligned(counts), _aligned(records), _aligned(op.batch * op.count * index)


def _shift(slots: int, buckets: int) -> int:
    """Log2 of the slots in a bucket."""
    return min((-(-slots // buckets) - 1).bit_length(), BUCKET_SLOTS.bit_length() - 1)


@attrs.frozen
class Numbers:
    """What the kernels of a scatter of single numbers are for. ``target``: bytes of one of the targets; ``row``:
    numbers that a slot keeps; ``split``: whether updates go to buckets of slots first."""

    scatter: ScatterSpec
    target: int
    row: int
    split: bool

    @property
    def word(self) -> int:
        """Bytes of an update on its way: at least those of a slot's number, which stands before it in a record."""
        return max(self.scatter.dtype.itemsize, 4)


@attrs.frozen
class Filling:
    """How single numbers come to their slots' rows: by buckets of 2^``shift`` slots, from ``chunks`` of ``chunk``
    updates; or all at once (one bucket). A full row joins a block of SUM; a block's lanes and its tree of ``levels``
    are kept for at most ``blocks`` slots at once."""

    what: Numbers
    shift: int
    buckets: int
    chunk: int
    chunks: int
    slots: int
    blocks: int
    levels: int

    @classmethod
    def of(cls, op: Scatter, target: int = 8) -> Filling:
        split = op.slots > NUMBERS_ALONE
        row = LONG_ROW if 2 * op.count > SHORT_ROW * op.slots else SHORT_ROW
        shift = _shift(op.slots, NUMBER_BUCKETS) if split else 0
        buckets = -(-op.slots >> shift) if split else 1
        eighth = 1 << (op.count // 8 - 1).bit_length()
        chunk = max(CHUNK, 1 << (2 * RECORDS * buckets).bit_length(), min(4 * CHUNK, eighth))
        slots = -(-(1 << shift if split else op.slots) // LANES) * LANES
        return cls(
            Numbers(op.spec, target, row, split), shift, buckets, chunk, -(-op.count // chunk), slots,
            min(slots, op.count // row), (-(-op.count // BLOCK)).bit_length(),
        )  # fmt: skip

    @property
    def lists(self) -> int:
        """Blocks of records in the lists of a chunk: a bucket more is for updates without a slot. A list's first block
        is begun somewhere in it, so that lists which grow alike do not meet in the same lines of a cache."""
        return 2 * (self.buckets + 1) + self.chunk // RECORDS

    def head(self) -> int:
        """Bytes of what is known of a chunk: its order, where lists end, and which block follows another."""
        return _aligned(4 * (self.buckets + 1 + self.lists) + _LINE)

    def records(self) -> int:
        """Bytes of a chunk's records."""
        return self.lists * RECORDS * 2 * self.what.word

    def bytes(self, op: Scatter) -> int:
        """For what chunks are put into."""
        return op.batch * self.chunks * (self.head() + self.records()) if self.what.split else 0

    def scratch(self) -> int:
        """Bytes that a thread keeps for slots."""
        dtype = self.what.scatter.dtype
        rows = self.slots * self.what.row * dtype.itemsize
        block = (LANES + self.levels) * item_size(compute_dtype(dtype.name))
        return 2 * _LINE + 12 * self.slots + _aligned(rows) + self.blocks * block


def fills_rows(op: Scatter) -> bool:
    """Whether updates are many single numbers."""
    return op.width == 1 and op.count > FEW_UPDATES and op.slots < SMALL


def general_bytes(call: KernelCall, vector_bits: int) -> int:
    """For positions that are sorted, of many updates."""
    op = call.kernel
    assert isinstance(op, Scatter)
    return sum(Sorting.of(op).parts(op)) if op.count > FEW_UPDATES else 0


def order_bytes(call: KernelCall, vector_bits: int) -> int:
    """For what updates are sorted in, or put into, many of them."""
    op = call.kernel
    assert isinstance(op, Scatter)
    if fills_rows(op):
        return Filling.of(op).bytes(op)
    return general_bytes(call, vector_bits)


def general(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
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


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Many single numbers fill rows. Without buckets each thread reads all targets, once: its slots are one piece."""
    op, (updates, targets, out) = call.kernel, call.accesses
    assert isinstance(op, Scatter)
    if not fills_rows(op):
        return general(call, vector_bits, buffers)
    how = Filling.of(op, targets.strides[-1])
    sizes = (op.slots, op.count, how.slots, how.blocks, how.levels)
    if not how.what.split:
        words = laid_out((updates, targets, out, *sizes))
        groups = op.batch * -(-op.slots // SCATTER_SLOTS)
        return [Launch(LibraryKernel("scatter_numbers", how.what), call, *words, groups, how.scratch(), pieces=1)]
    assert call.workspace is not None
    chunks = op.batch * how.chunks
    places = (Access(call.workspace, at, ()) for at in (0, chunks * how.head()))
    lists = (how.head(), how.records(), how.shift, how.buckets, how.chunk, how.chunks)
    words = laid_out((updates, targets, out, *sizes, *places, *lists))
    return [
        Launch(LibraryKernel("scatter_split", how.what), call, *words, chunks),
        Launch(LibraryKernel("scatter_numbers", how.what), call, *words, op.batch * how.buckets, how.scratch()),
    ]
