"""Scans and sorts on the CPU: one task a row, or a chunk of a long one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from volta.core import dtypes
from volta.emit.args import Word, laid_out
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.ordering import Scan, Sort, SortSpec
from volta.xla_like.plan import Buffer

SMALL = 1 << 31
"""Rows of fewer elements are sorted by positions of 32 bits."""

DIGIT = 8
"""Bits of a key by which a pass of a radix sort places records: 256 places written to fit into the nearest cache."""

BUCKETS_OF_DIGIT = 1 << DIGIT

SHORT_ROW = 6
"""Rows of up to so many elements for each digit are merged: to count fewer costs more (measured, rows of 8 to 64)."""

SORT_CHUNK = 1 << 16
"""Records of a long row that a task counts and places."""

FEW_ROWS = 16
"""As many rows or more are a task each, of any length."""

REGISTER_BITS = 512
"""Of registers whose processors move the lanes of a mask to the front (AVX-512): what sorts in vectors needs."""

SPLIT = 64
"""Buckets of a long row of numbers alone: a power of four, so that keys are back in their buffer when they are shared
out; many threads have several each, and one fits into a nearer cache."""

BOUNDS = SPLIT + 2
"""Words of a chunk: where the keys of each bucket begin, where they end, and whether some are special."""


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
    if _in_vectors(op, vector_bits):
        return _sort_in_vectors(call, op)
    if call.workspace is not None:
        return _sort_in_chunks(call, op, call.workspace)
    digits = sum(8 * d.itemsize // DIGIT for d in op.spec.dtypes[: op.spec.num_keys])
    if not SHORT_ROW * digits < op.length < SMALL:
        return merge(call, vector_bits, buffers)
    words = laid_out((*call.accesses, op.rows, op.length))
    scratch = 8 * BUCKETS_OF_DIGIT + 2 * RadixRecord.of(op.spec).size * op.length
    return [Launch(LibraryKernel("sort_rows", op.spec), call, *words, op.rows, scratch)]


def _in_vectors(op: Sort, vector_bits: int) -> bool:
    """Whether a sort is of numbers alone, which vectors have room for."""
    (dtype, *others) = op.spec.dtypes
    return vector_bits >= REGISTER_BITS and not others and op.spec.positions is None and dtype.itemsize in (4, 8)


def _sort_in_vectors(call: KernelCall, op: Sort) -> list[Launch]:
    (dtype,) = op.spec.dtypes
    if call.workspace is None:
        words = laid_out((*call.accesses, op.rows, op.length))
        return [Launch(LibraryKernel("vector_sort", dtype), call, *words, op.rows, dtype.itemsize * op.length)]
    chunks = -(-op.length // SORT_CHUNK)
    parts = [Access(call.workspace, n, ()) for n in _vector_workspace(op)[:-1]]
    words = laid_out((*call.accesses, op.length, chunks, *parts))
    tasks = {"sample": op.rows, "share": op.rows * chunks, "buckets": op.rows * SPLIT}
    if dtypes.is_float(dtype):
        tasks["special"] = op.rows
    return [Launch(LibraryKernel(f"vector_sort_{x}", dtype), call, *words, n) for x, n in tasks.items()]


def _vector_workspace(op: Sort) -> list[int]:
    """Where the bounds of chunks, the splitters and the keys of long rows, twice, begin; and the bytes in all."""
    size = op.spec.dtypes[0].itemsize
    keys = size * op.rows * op.length
    parts = [8 * BOUNDS * op.rows * -(-op.length // SORT_CHUNK), size * SPLIT * op.rows, keys, keys]
    return [0, *itertools.accumulate(parts)]


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
    if _in_vectors(op, vector_bits):
        return _vector_workspace(op)[-1]
    return _in_chunks(op) + 2 * RadixRecord.of(op.spec).size * op.rows * op.length
