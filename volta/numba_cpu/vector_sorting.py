"""Rows of numbers alone, sorted by vectors of their keys.

Where nothing is sorted along, equal keys need no order but that of zeros of both signs and of NaNs, which are put back
as the row had them. A row is a task; a very long one is cut into chunks, which share its keys out into buckets by
splitters from a sample, and a bucket is a task (sample sort: Frazer and McKellar, 1970).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from volta.core import dtypes
from volta.emit.loops import I64, PTR, any_of, for_range, if_then, load_args, loop, minimum, offset
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.ordering_schedule import BOUNDS, SORT_CHUNK, SPLIT
from volta.numba_cpu.quicksort import Quicksort
from volta.numba_cpu.vector_keys import Keys

_SAMPLED = 8
"""Keys of a sample for each bucket."""


def _keys_of(k: Keys, elements: ir.Value, keys: ir.Value, count: ir.Value) -> ir.Value:
    """Write the keys of elements; whether some are special: NaNs or negative zeros, of which keys do not say all."""
    b, whole = k.b, k.b.and_(count, I64(-k.lanes))
    rest = b.sub(count, whole)

    def special(bits: ir.Value) -> ir.Value:
        if not dtypes.is_float(k.dtype):
            return k.first(I64(0))
        return b.or_(k.is_nan(bits), k.is_negative_zero(bits))

    with loop(b, 0, whole, k.lanes, [ir.Constant(k.mask, [0] * k.lanes)]) as it:
        bits = k.load(elements, it.index)
        k.store(k.of(bits), keys, it.index)
        it.advance(b.or_(it.values[0], special(bits)))
    bits = k.load_some(elements, whole, rest)
    k.store_some(k.of(bits), keys, whole, rest)
    found = b.or_(it.results[0], b.and_(special(bits), k.first(rest)))
    return any_of(b, found)


def _put_back(k: Keys, row: ir.Value, out: ir.Value, length: ir.Value) -> None:
    """The zeros of a row and its NaNs at their places among the sorted, in the order of the row."""
    b = k.b
    zero = k.splat(0)

    def found(i: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        some = k.first(b.sub(length, i))
        bits = k.load_some(row, i, b.sub(length, i))
        zeros = b.icmp_signed("==", b.and_(bits, k.splat(k.most)), zero)
        return bits, b.and_(some, zeros), b.and_(some, k.is_nan(bits)), some

    with loop(b, 0, length, k.lanes, [I64(0), I64(0)]) as it:
        bits, _, nans, some = found(it.index)
        below = b.and_(some, b.icmp_signed("<", k.of(bits), zero))
        it.advance(*(b.add(n, k.counted(mask)) for n, mask in zip(it.values, (below, nans), strict=True)))
    first, nans = it.results
    with loop(b, 0, length, k.lanes, [first, b.sub(length, nans)]) as it:
        bits, *masks, _ = found(it.index)
        numbers = [k.counted(mask) for mask in masks]
        for mask, place, number in zip(masks, it.values, numbers, strict=True):
            k.store_some(k.compressed(bits, mask), out, place, number)
        it.advance(*(b.add(place, n) for place, n in zip(it.values, numbers, strict=True)))


def build_rows(module: ir.Module, name: str, dtype: np.dtype) -> ir.Function:
    """A task is a row. Words: the array, the result, rows, length. Scratch: a row's keys."""
    sort = Quicksort(module, name, dtype)
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    source, result, _, length = load_args(b, args, 4)
    k, keys = Keys(b, dtype), b.inttoptr(scratch, PTR)
    with for_range(b, begin, end) as task:
        row, out = (k.at(b.inttoptr(x, PTR), b.mul(task, length)) for x in (source, result))
        special = _keys_of(k, row, keys, length)
        sort.call(b, keys, out, out, length)
        if dtypes.is_float(dtype):
            with if_then(b, special, likely=False):
                _put_back(k, row, out, length)
    b.ret_void()
    return function


class _Words:
    """The args of long rows, and what lies where. Words: the array, the result, length, chunks, bounds (where the keys
    of each bucket begin in a chunk that has been shared out, their end, and whether some are special), splitters, keys,
    and keys by bucket."""

    def __init__(self, b: ir.IRBuilder, dtype: np.dtype, args: ir.Value) -> None:
        self.b, self.k = b, Keys(b, dtype)
        self._source, self._result, self.length, self.chunks, *rest = load_args(b, args, 8)
        self._bounds, self._splitters, self._keys, self._gathered = rest

    def _row(self, base: ir.Value, row: ir.Value) -> ir.Value:
        return self.k.at(self.b.inttoptr(base, PTR), self.b.mul(row, self.length))

    def source(self, row: ir.Value) -> ir.Value:
        return self._row(self._source, row)

    def result(self, row: ir.Value) -> ir.Value:
        return self._row(self._result, row)

    def keys(self, row: ir.Value) -> ir.Value:
        return self._row(self._keys, row)

    def gathered(self, row: ir.Value) -> ir.Value:
        return self._row(self._gathered, row)

    def splitter(self, row: ir.Value, number: ir.Value) -> ir.Value:
        """Where the largest key of a bucket stands; the last has none."""
        return self.k.at(self.b.inttoptr(self._splitters, PTR), self.b.add(self.b.mul(row, I64(SPLIT)), number))

    def bound(self, row: ir.Value, chunk: ir.Value, number: ir.Value | int) -> ir.Value:
        b, number = self.b, I64(number) if isinstance(number, int) else number
        first = b.mul(b.add(b.mul(row, self.chunks), chunk), I64(BOUNDS))
        return offset(b, b.inttoptr(self._bounds, PTR), b.shl(b.add(first, number), I64(3)))


def build_sample(module: ir.Module, name: str, dtype: np.dtype) -> ir.Function:
    """A task is a row: the splitters of its buckets, from a sample that is sorted by counting what is less."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = _Words(b, dtype, args)
    k, number = w.k, SPLIT * _SAMPLED
    with b.goto_entry_block():
        sample = b.alloca(k.word, number)
    with for_range(b, begin, end) as row:
        with for_range(b, 0, number) as i:
            at = b.udiv(b.mul(i, w.length), I64(number))
            bits = k.splat(b.load(k.at(w.source(row), at), align=k.size, typ=k.word))
            b.store(b.extract_element(k.of(bits), I64(0)), k.at(sample, i), align=k.size)
        with for_range(b, 0, number) as i:
            key = b.load(k.at(sample, i), align=k.size, typ=k.word)
            own = k.splat(key)
            with loop(b, 0, number, k.lanes, [I64(0)]) as it:
                x = k.load(sample, it.index)
                less, equal = b.icmp_signed("<", x, own), b.icmp_signed("==", x, own)
                before = b.or_(less, b.and_(equal, k.first(b.sub(i, it.index))))
                it.advance(b.add(it.values[0], k.counted(before)))
            rank = b.sub(it.results[0], I64(_SAMPLED))
            splits = b.icmp_unsigned("==", b.urem(rank, I64(_SAMPLED)), I64(0))
            with if_then(b, b.and_(splits, b.icmp_signed(">=", rank, I64(0)))):
                b.store(key, w.splitter(row, b.udiv(rank, I64(_SAMPLED))), align=k.size)
    b.ret_void()
    return function


def build_share(module: ir.Module, name: str, dtype: np.dtype) -> ir.Function:
    """A task is a chunk, whose keys are shared out into buckets: in halves by the splitter in the middle, and so on."""
    split = Quicksort(module, name, dtype).split
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = _Words(b, dtype, args)
    k = w.k
    with for_range(b, begin, end) as task:
        row, chunk = b.udiv(task, w.chunks), b.urem(task, w.chunks)
        first = b.mul(chunk, I64(SORT_CHUNK))
        count = minimum(b, b.sub(w.length, first), I64(SORT_CHUNK))
        source, here, there = (k.at(x(row), first) for x in (w.source, w.keys, w.result))
        special = _keys_of(k, source, here, count)
        b.store(b.zext(special, I64), w.bound(row, chunk, SPLIT + 1), align=8)
        b.store(I64(0), w.bound(row, chunk, 0), align=8)
        b.store(count, w.bound(row, chunk, SPLIT), align=8)
        buckets = SPLIT
        while buckets > 1:
            with for_range(b, 0, SPLIT, buckets) as bucket:
                ends = (bucket, b.add(bucket, I64(buckets)))
                begins, stops = (b.load(w.bound(row, chunk, x), align=8, typ=I64) for x in ends)
                middle = b.add(bucket, I64(buckets // 2))
                pivot = b.load(w.splitter(row, b.sub(middle, I64(1))), align=k.size, typ=k.word)
                parts = [k.at(x, begins) for x in (here, there)]
                left = b.call(split, [*parts, b.sub(stops, begins), pivot])
                b.store(b.add(begins, left), w.bound(row, chunk, middle), align=8)
            here, there, buckets = there, here, buckets // 2
    b.ret_void()
    return function


def build_buckets(module: ir.Module, name: str, dtype: np.dtype) -> ir.Function:
    """A task is a bucket of a row: its keys from all chunks, sorted to its place in the result."""
    sort = Quicksort(module, name, dtype)
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = _Words(b, dtype, args)
    k = w.k
    with for_range(b, begin, end) as task:
        row, bucket = b.udiv(task, I64(SPLIT)), b.urem(task, I64(SPLIT))

        def bounds(chunk: ir.Value, row: ir.Value = row, bucket: ir.Value = bucket) -> list[ir.Value]:
            ends = (bucket, b.add(bucket, I64(1)))
            return [b.load(w.bound(row, chunk, x), align=8, typ=I64) for x in ends]

        with loop(b, 0, w.chunks, init=[I64(0)]) as it:  # all that is in lower buckets stands before
            it.advance(b.add(it.values[0], bounds(it.index)[0]))
        keys, out = (k.at(x(row), it.results[0]) for x in (w.gathered, w.result))
        with loop(b, 0, w.chunks, init=[I64(0)]) as it:
            low, high = bounds(it.index)
            part = k.at(w.keys(row), b.add(b.mul(it.index, I64(SORT_CHUNK)), low))
            count = b.sub(high, low)
            k.copy(part, k.at(keys, it.values[0]), count)
            it.advance(b.add(it.values[0], count))
        sort.call(b, keys, out, out, it.results[0])
    b.ret_void()
    return function


def build_special(module: ir.Module, name: str, dtype: np.dtype) -> ir.Function:
    """A task is a row: its zeros and NaNs, where keys do not say all of them."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    w = _Words(b, dtype, args)
    with for_range(b, begin, end) as row:
        with loop(b, 0, w.chunks, init=[I64(0)]) as it:
            it.advance(b.or_(it.values[0], b.load(w.bound(row, it.index, SPLIT + 1), align=8, typ=I64)))
        with if_then(b, b.icmp_signed("!=", it.results[0], I64(0)), likely=False):
            _put_back(w.k, w.source(row), w.result(row), w.length)
    b.ret_void()
    return function
