"""Long rows sorted by the digits of their keys, the lowest first: a stable counting sort for each of 8 bits.

Keys become unsigned integers that order as they do; a sort moves records of such a key and a position. Of several keys
the last is sorted by first. A row is a task; a very long one is cut into chunks, each counted and placed by itself.
(Knuth, The Art of Computer Programming 3, 5.2.5: distribution sorting.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from volta.core import dtypes
from volta.core.contract import INFINITY_BITS
from volta.emit.loops import I64, PTR, for_range, if_then, load_args, loop, minimum, offset
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.ordering_schedule import BUCKETS_OF_DIGIT, DIGIT, SORT_CHUNK, RadixKeys, RadixRecord
from volta.xla_like.ordering import SortSpec

Record = tuple[ir.Value, ...]


class Records:
    """Keys and positions in memory: a word of 64 bits, the key above the position, or a word for each (``wide``)."""

    def __init__(self, b: ir.IRBuilder, record: RadixRecord) -> None:
        self.b, self.wide = b, record.wide

    def _at(self, base: ir.Value, index: ir.Value) -> ir.Value:
        return offset(self.b, base, self.b.shl(index, I64(4 if self.wide else 3)))

    def make(self, key: ir.Value, position: ir.Value) -> Record:
        """Of a key, as an unsigned integer, and a position as int64."""
        b = self.b
        key = b.zext(key, I64) if key.type.width < 64 else key
        return (key, position) if self.wide else (b.or_(b.shl(key, I64(32)), position),)

    def load(self, base: ir.Value, index: ir.Value) -> Record:
        at = self._at(base, index)
        return tuple(self.b.load(offset(self.b, at, 8 * i), align=8, typ=I64) for i in range(1 + self.wide))

    def store(self, record: Record, base: ir.Value, index: ir.Value) -> None:
        at = self._at(base, index)
        for i, word in enumerate(record):
            self.b.store(word, offset(self.b, at, 8 * i), align=8)

    def position(self, record: Record) -> ir.Value:
        return record[1] if self.wide else self.b.and_(record[0], I64(0xFFFFFFFF))

    def digit(self, record: Record, shift: ir.Value) -> ir.Value:
        """The bits of the key from ``shift`` on."""
        b = self.b
        key = record[0] if self.wide else b.lshr(record[0], I64(32))
        return b.and_(b.lshr(key, shift), I64(BUCKETS_OF_DIGIT - 1))


def _count_at(b: ir.IRBuilder, counts: ir.Value, bucket: ir.Value) -> ir.Value:
    return offset(b, counts, b.shl(bucket, I64(3)))


def ordered(b: ir.IRBuilder, bits: ir.Value, dtype: np.dtype) -> ir.Value:
    """An element's bits as an unsigned integer that sorts as the element does: -0 as 0, every NaN alike and last."""
    kind, width = bits.type, bits.type.width
    if dtype in dtypes.UNSIGNED or dtype == dtypes.bool_:
        return bits
    sign = kind(1 << (width - 1))
    flipped = b.xor(bits, sign)
    if dtype in dtypes.SIGNED:
        return flipped
    magnitude = b.and_(bits, kind((1 << (width - 1)) - 1))
    key = b.select(b.icmp_signed("<", bits, kind(0)), b.not_(bits), flipped)
    key = b.select(b.icmp_unsigned("==", magnitude, kind(0)), sign, key)
    return b.select(b.icmp_unsigned(">", magnitude, kind(INFINITY_BITS[dtype.name])), kind((1 << width) - 1), key)


class Rows:
    """The arrays that a sort reads and writes, of one row."""

    def __init__(self, b: ir.IRBuilder, spec: SortSpec, arrays: list[ir.Value], base: ir.Value) -> None:
        self.b, self.spec = b, spec
        sizes = [spec.dtypes[k].itemsize for k in (*spec.read, *range(len(spec.dtypes)))]
        found = [offset(b, b.inttoptr(x, PTR), b.mul(base, I64(n))) for x, n in zip(arrays, sizes, strict=False)]
        self._inputs = dict(zip(spec.read, found, strict=False))
        self._outputs = found[len(spec.read) :]

    def _bits(self, k: int, position: ir.Value) -> ir.Value:
        """An element of an operand, by its bits."""
        dtype = self.spec.dtypes[k]
        kind = ir.IntType(8 * dtype.itemsize)
        if k == self.spec.positions:
            return self.b.trunc(position, kind)
        at = offset(self.b, self._inputs[k], self.b.mul(position, I64(dtype.itemsize)))
        return self.b.load(at, align=dtype.itemsize, typ=kind)

    def key(self, k: int, position: ir.Value) -> ir.Value:
        return ordered(self.b, self._bits(k, position), self.spec.dtypes[k])

    def write(self, index: ir.Value, position: ir.Value) -> None:
        """All operands' elements at a position become the results' at an index."""
        for k, out in enumerate(self._outputs):
            size = self.spec.dtypes[k].itemsize
            self.b.store(self._bits(k, position), offset(self.b, out, self.b.mul(index, I64(size))), align=size)


def _clear(b: ir.IRBuilder, counts: ir.Value) -> None:
    with for_range(b, 0, BUCKETS_OF_DIGIT) as bucket:
        b.store(I64(0), _count_at(b, counts, bucket), align=8)


def _tally(r: Records, source: ir.Value, begin: ir.Value, end: ir.Value, counts: ir.Value, shift: ir.Value) -> None:
    """How many records from ``begin`` to ``end`` have each digit."""
    b = r.b
    _clear(b, counts)
    with for_range(b, begin, end) as i:
        at = _count_at(b, counts, r.digit(r.load(source, i), shift))
        b.store(b.add(b.load(at, align=8, typ=I64), I64(1)), at, align=8)


def _starts(b: ir.IRBuilder, counts: Callable[[ir.Value], ir.Value], chunks: ir.Value | int) -> None:
    """Counts become places: a digit's records stand behind those of lower ones, and a chunk's behind earlier ones'."""
    with loop(b, 0, BUCKETS_OF_DIGIT, init=[I64(0)]) as over:
        with loop(b, 0, chunks, init=[over.values[0]]) as it:
            at = _count_at(b, counts(it.index), over.index)
            number = b.load(at, align=8, typ=I64)
            b.store(it.values[0], at, align=8)
            it.advance(b.add(it.values[0], number))
        over.advance(it.results[0])


def _place(
    r: Records, source: ir.Value, begin: ir.Value, end: ir.Value, to: ir.Value, counts: ir.Value, shift: ir.Value
) -> None:
    b = r.b
    with for_range(b, begin, end) as i:
        record = r.load(source, i)
        at = _count_at(b, counts, r.digit(record, shift))
        place = b.load(at, align=8, typ=I64)
        b.store(b.add(place, I64(1)), at, align=8)
        r.store(record, to, place)


def build_rows(module: ir.Module, name: str, spec: SortSpec) -> ir.Function:
    """A task is a row. Words: the arrays, rows, length. Scratch: counts, then records twice (double buffering)."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    *arrays, _, length = load_args(b, args, len(spec.read) + len(spec.dtypes) + 2)
    record = RadixRecord.of(spec)
    r, counts = Records(b, record), b.inttoptr(scratch, PTR)
    with b.goto_entry_block():
        here, there = b.alloca(PTR), b.alloca(PTR)

    def now(slot: ir.Value) -> ir.Value:
        return b.load(slot, align=8, typ=PTR)

    with for_range(b, begin, end) as row:
        rows = Rows(b, spec, arrays, b.mul(row, length))
        b.store(offset(b, counts, 8 * BUCKETS_OF_DIGIT), here)
        b.store(offset(b, now(here), b.mul(length, I64(record.size))), there)
        for k in reversed(range(spec.num_keys)):
            source = now(here)
            with for_range(b, 0, length) as i:
                position = i if k == spec.num_keys - 1 else r.position(r.load(source, i))
                r.store(r.make(rows.key(k, position), position), source, i)
            with for_range(b, 0, 8 * spec.dtypes[k].itemsize, DIGIT) as shift:
                source, to = now(here), now(there)
                _tally(r, source, I64(0), length, counts, shift)
                first = b.load(_count_at(b, counts, r.digit(r.load(source, I64(0)), shift)), align=8, typ=I64)
                with if_then(b, b.icmp_signed("<", first, length)):  # else all have this digit
                    _starts(b, lambda chunk: counts, 1)
                    _place(r, source, I64(0), length, to, counts, shift)
                    b.store(to, here)
                    b.store(source, there)
        source = now(here)
        with for_range(b, 0, length) as i:
            rows.write(i, r.position(r.load(source, i)))
    b.ret_void()
    return function


def _pointer(b: ir.IRBuilder, base: ir.Value, index: ir.Value, size: ir.Value | int) -> ir.Value:
    return offset(b, b.inttoptr(base, PTR), b.mul(index, I64(size) if isinstance(size, int) else size))


@contextmanager
def _each_chunk(
    b: ir.IRBuilder, tasks: tuple[ir.Value, ir.Value], chunks: ir.Value, length: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]:
    """For each task its number, where its row begins, and where its chunk begins and ends in that."""
    with for_range(b, *tasks) as task:
        start = b.mul(b.urem(task, chunks), I64(SORT_CHUNK))
        stop = minimum(b, b.add(start, I64(SORT_CHUNK)), length)
        yield task, b.mul(b.udiv(task, chunks), length), start, stop


def build_keys(module: ir.Module, name: str, what: RadixKeys) -> ir.Function:
    """A task is a chunk, whose records get the elements of a key; the last key's have their first positions."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    spec, record = what.sort, RadixRecord.of(what.sort)
    r = Records(b, record)
    *arrays, length, chunks, records = load_args(b, args, len(spec.read) + 3)
    with _each_chunk(b, (begin, end), chunks, length) as (_, base, start, stop):
        rows, source = Rows(b, spec, arrays, base), _pointer(b, records, base, record.size)
        with for_range(b, start, stop) as i:
            position = i if what.key == spec.num_keys - 1 else r.position(r.load(source, i))
            r.store(r.make(rows.key(what.key, position), position), source, i)
    b.ret_void()
    return function


def build_count(module: ir.Module, name: str, record: RadixRecord) -> ir.Function:
    """A task is a chunk: how many of its records have each digit. Words: length, chunks, counts, shift, records, ..."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    length, chunks, counts, shift, records = load_args(b, args, 5)
    with _each_chunk(b, (begin, end), chunks, length) as (task, base, start, stop):
        source = _pointer(b, records, base, record.size)
        _tally(Records(b, record), source, start, stop, _pointer(b, counts, task, 8 * BUCKETS_OF_DIGIT), shift)
    b.ret_void()
    return function


def build_starts(module: ir.Module, name: str, record: RadixRecord) -> ir.Function:
    """A task is a row: where the records of each digit belong. Words as those of `build_count`."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    _, chunks, counts = load_args(b, args, 3)
    with for_range(b, begin, end) as row:
        first = b.mul(row, chunks)
        _starts(b, lambda chunk: _pointer(b, counts, b.add(first, chunk), 8 * BUCKETS_OF_DIGIT), chunks)  # noqa: B023
    b.ret_void()
    return function


def build_place(module: ir.Module, name: str, record: RadixRecord) -> ir.Function:
    """A task is a chunk, whose records go where they belong. Words: those of `build_count`, then the other records."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    length, chunks, counts, shift, records, others = load_args(b, args, 6)
    with _each_chunk(b, (begin, end), chunks, length) as (task, base, start, stop):
        source, to = (_pointer(b, x, base, record.size) for x in (records, others))
        _place(Records(b, record), source, start, stop, to, _pointer(b, counts, task, 8 * BUCKETS_OF_DIGIT), shift)
    b.ret_void()
    return function


def build_results(module: ir.Module, name: str, spec: SortSpec) -> ir.Function:
    """A task is a chunk of the results. Words: the arrays, length, chunks, records."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    record = RadixRecord.of(spec)
    r = Records(b, record)
    *arrays, length, chunks, records = load_args(b, args, len(spec.read) + len(spec.dtypes) + 3)
    with _each_chunk(b, (begin, end), chunks, length) as (_, base, start, stop):
        rows, source = Rows(b, spec, arrays, base), _pointer(b, records, base, record.size)
        with for_range(b, start, stop) as i:
            rows.write(i, r.position(r.load(source, i)))
    b.ret_void()
    return function
