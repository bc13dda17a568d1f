"""Stable sorts: rows of up to a tile in shared memory, longer ones by radix passes over device memory.

Stable sorting has one result, so the digits of a radix sort give the bits of the CPU's merge sort.
"""

from __future__ import annotations

import attrs
from llvmlite import ir

from volta.emit.loops import I32, I64, for_range, if_then, load_args, loop, minimum, offset
from volta.numba_cuda.codegen import ptx_ops
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    thread_index,
)
from volta.numba_cuda.ordering import radix
from volta.numba_cuda.ordering.indexing import divide
from volta.numba_cuda.ordering.radix import (
    BITS,
    THREADS,
    Staging,
    digit_of,
    inclusive_sum,
    ordered,
    passes_of,
    raw_type,
    zero_shared,
)
from volta.xla_like.ordering import SortSpec

ITEMS = 16
"""Elements of a thread in a pass over device memory."""

TILE = THREADS * ITEMS
SLOT = "slot"
"""Stands for a dtype: targets of a scatter, int64 in memory, of which the lower 32 bits are kept."""

TAKE_EACH = 4
OFFSET_COLUMNS = 16
"""Neighbouring counts that a lane adds up at once, four in one access."""

_AT_ONCE = 4
_FOUR = ir.VectorType(I32, _AT_ONCE)


@attrs.frozen
class PassSpec:
    """A pass of a long sort: what is moved, and whether positions are carried.

    ``first``: the positions are those of the elements. ``records``: what is written are positions and keys in one word.
    ``carried``: words that come with the elements are moved, from the first pass on, in the place of positions.
    ``bits``: of a digit.
    """

    dtype: str
    positions: bool
    first: bool
    records: bool = False
    carried: bool = False
    bits: int = BITS

    @property
    def digits(self) -> int:
        return 1 << self.bits

    @property
    def kind(self) -> ir.IntType:
        return ir.IntType(32) if self.dtype == SLOT else raw_type(self.dtype)

    def load(self, b: ir.IRBuilder, base: ir.Value, index: ir.Value) -> ir.Value:
        """An element; the first pass over a scatter's targets finds int64."""
        if self.dtype == SLOT and self.first:
            return b.trunc(b.load(offset(b, base, b.shl(index, I64(3))), align=8, typ=I64), I32)
        size = self.kind.width // 8
        return b.load(offset(b, base, b.mul(index, I64(size))), align=size, typ=self.kind)

    def digit(self, b: ir.IRBuilder, raw: ir.Value, shift: ir.Value) -> ir.Value:
        return digit_of(b, raw if self.dtype == SLOT else ordered(b, raw, self.dtype), shift, self.digits)


def tiles_of(length: int) -> int:
    return -(-length // TILE)


def counts_bytes(rows: int, length: int, bits: int) -> int:
    """Bytes of the counts [rows, digit, tile] and, behind them, the sums [rows, digit]."""
    return 4 * (rows << bits) * (padded(tiles_of(length)) + 1)


def padded(tiles: int) -> int:
    return -(-tiles // _AT_ONCE) * _AT_ONCE


class _Pass:
    """The args of a pass, and where a block's tile is.

    Words: from, positions, to, positions to, counts, rows, length, tiles, tiles rounded up, shift, slots (of records).
    """

    def __init__(self, b: ir.IRBuilder, spec: PassSpec, args: ir.Value) -> None:
        self.b, self.spec = b, spec
        words = load_args(b, args, 11)
        self.source, self.positions, self.to, self.positions_to, self.counts = (device_pointer(b, w) for w in words[:5])
        self.rows, self.length, self.tiles, self.padded, shift, self.slots = words[5:]
        self.shift = b.trunc(shift, I32)

    def tile(self) -> None:
        b = self.b
        self.row, tile = divide(b, block_index(b), self.tiles)
        self.start = b.mul(tile, I64(TILE))
        self.size = minimum(b, b.sub(self.length, self.start), I64(TILE))
        self.base = b.mul(self.row, self.length)
        self.tile_number = tile

    def count(self, digit: ir.Value) -> ir.Value:
        """Where the count of a digit (i64) of this tile lies."""
        b = self.b
        line = b.add(b.mul(self.row, I64(self.spec.digits)), digit)
        return offset(b, self.counts, b.shl(b.add(b.mul(line, self.padded), self.tile_number), I64(2)))

    def total(self, row: ir.Value, digit: ir.Value) -> ir.Value:
        """Where the count of a digit (i64) of a row lies."""
        b = self.b
        behind = b.mul(b.mul(self.rows, I64(self.spec.digits)), self.padded)
        return offset(b, self.counts, b.shl(b.add(behind, b.add(b.mul(row, I64(self.spec.digits)), digit)), I64(2)))


def build_count(module: ir.Module, name: str, spec: PassSpec) -> ir.Function:
    """Count the digits of each tile."""
    function, b = new_entry(module, name, THREADS)
    p = _Pass(b, spec, function.args[0])
    p.tile()
    thread = thread_index(b)
    counters = shared_memory(module, b, f"{name}_counters", 4 * spec.digits)
    zero_shared(b, counters, spec.digits, thread)
    barrier(b)
    base = b.add(p.base, p.start)
    whole = b.icmp_signed("==", p.size, I64(TILE))

    def add(raw: ir.Value) -> None:
        place = offset(b, counters, b.shl(b.zext(spec.digit(b, raw, p.shift), I64), I64(2)))
        shared = b.addrspacecast(place, ir.PointerType(addrspace=3))
        b.atomic_rmw("add", shared, I32(1), "monotonic")

    with b.if_else(whole) as (then, otherwise):
        with then:  # all loads are under way before the first is counted
            for raw in [spec.load(b, p.source, b.add(base, b.add(thread, I64(r * THREADS)))) for r in range(ITEMS)]:
                add(raw)
        with otherwise, for_range(b, thread, p.size, THREADS) as i:
            add(spec.load(b, p.source, b.add(base, i)))
    barrier(b)
    for k in range(0, spec.digits, THREADS):
        digit = b.add(thread, I64(k))
        found = b.load(offset(b, counters, b.shl(digit, I64(2))), align=4, typ=I32)
        b.store(found, p.count(digit), align=4)
    b.ret_void()
    return function


def line_threads(tiles: int) -> int:
    """Threads that have one digit of a row in `build_offsets`: a warp, or a block where it would take several
    iterations."""
    return WARP if tiles <= WARP * OFFSET_COLUMNS else THREADS


def build_offsets(module: ir.Module, name: str, together: int, bits: int) -> ir.Function:
    """From the counts of each digit, where its elements of each tile begin: ``together`` threads have one digit of
    a row (`line_threads`)."""
    function, b = new_entry(module, name, THREADS)
    p = _Pass(b, PassSpec("uint32", False, False, bits=bits), function.args[0])
    thread = thread_index(b)
    shift = I64(together.bit_length() - 1)
    line = b.add(b.mul(block_index(b), I64(THREADS // together)), b.lshr(thread, shift))
    lane = b.and_(b.trunc(thread, I32), I32(WARP - 1))
    member = b.and_(thread, I64(together - 1))
    warp = b.lshr(b.trunc(thread, I32), I32(WARP.bit_length() - 1))
    sums = shared_memory(module, b, f"{name}_sums", 4 * radix.WARPS) if together == THREADS else None
    counts = offset(b, p.counts, b.shl(b.mul(line, p.padded), I64(2)))
    step = together * OFFSET_COLUMNS
    with loop(b, 0, p.tiles, step, [I32(0)]) as it:
        own = b.add(it.index, b.mul(member, I64(OFFSET_COLUMNS)))
        found, places = [], []
        for k in range(0, OFFSET_COLUMNS, _AT_ONCE):
            at = b.add(own, I64(k))
            inside = b.icmp_signed("<", at, p.tiles)
            place = offset(b, counts, b.shl(b.select(inside, at, I64(0)), I64(2)))
            four = b.load(place, align=4 * _AT_ONCE, typ=_FOUR)
            for c in range(_AT_ONCE):
                there = b.icmp_signed("<", b.add(at, I64(c)), p.tiles)
                found.append(b.select(there, b.extract_element(four, I32(c)), I32(0)))
            places.append((place, inside))
        mine = found[0]
        for x in found[1:]:
            mine = b.add(mine, x)
        upto = inclusive_sum(b, mine, lane)
        running = b.add(it.values[0], b.sub(upto, mine))
        whole = ptx_ops.shuffle(b, "idx", upto, I32(WARP - 1))
        if sums is not None:
            before, whole = _of_warps(b, sums, warp, whole)
            running = b.add(running, before)
        for k, (place, inside) in enumerate(places):
            four = ir.Constant(_FOUR, ir.Undefined)
            for c in range(_AT_ONCE):
                four = b.insert_element(four, running, I32(c))
                running = b.add(running, found[k * _AT_ONCE + c])
            with if_then(b, inside):
                b.store(four, place, align=4 * _AT_ONCE)
        it.advance(b.add(it.values[0], whole))
    with if_then(b, b.icmp_unsigned("==", member, I64(0))):
        b.store(it.results[0], p.total(I64(0), line), align=4)
    b.ret_void()
    return function


def _of_warps(b: ir.IRBuilder, sums: ir.Value, warp: ir.Value, own: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the warps before this one have, and all of the block; the lanes of a warp say the same."""
    barrier(b)
    lane = b.and_(b.trunc(thread_index(b), I32), I32(WARP - 1))
    with if_then(b, b.icmp_unsigned("==", lane, I32(0))):
        b.store(own, offset(b, sums, b.shl(b.zext(warp, I64), I64(2))), align=4)
    barrier(b)
    before, whole = I32(0), I32(0)
    for w in range(radix.WARPS):
        found = b.load(offset(b, sums, 4 * w), align=4, typ=I32)
        before = b.add(before, b.select(b.icmp_unsigned("<", I32(w), warp), found, I32(0)))
        whole = b.add(whole, found)
    return before, whole


def build_move(module: ir.Module, name: str, spec: PassSpec) -> ir.Function:
    """Put the elements of each tile where they belong by this pass's digit."""
    function, b = new_entry(module, name, THREADS, radix.RESIDENT)
    p = _Pass(b, spec, function.args[0])
    p.tile()
    kind = spec.kind
    size = kind.width // 8
    places = Staging(b, name, ITEMS, max(size, 4) if spec.positions else size, spec.digits)
    base = b.add(p.base, p.start)
    before = shared_memory(module, b, f"{name}_before", 4 * spec.digits)
    own = places.own_digits()
    totals = [b.load(p.total(p.row, b.zext(x, I64)), align=4, typ=I32) for x in own]
    here = [b.load(p.count(b.zext(x, I64)), align=4, typ=I32) for x in own]
    last = b.sub(p.size, I64(1))
    keys, positions, inside = [], [], []
    for r in range(ITEMS):
        index = b.zext(places.index(r), I64)
        inside.append(b.icmp_signed("<", index, p.size))
        at = b.add(base, b.select(inside[r], index, last))
        keys.append(spec.load(b, p.source, at))
        if spec.positions and spec.first and not spec.carried:
            positions.append(b.trunc(b.add(p.start, index), I32))
        elif spec.positions:
            positions.append(b.load(offset(b, p.positions, b.shl(at, I64(2))), align=4, typ=I32))
    firsts = places.before_digits(totals)
    ranks = places.rank([spec.digit(b, x, p.shift) for x in keys], inside)
    for x, first, ahead in zip(own, firsts, here, strict=True):
        start = b.load(places.at(places.starts, x), align=4, typ=I32)
        b.store(b.sub(b.add(first, ahead), start), places.at(before, x), align=4)
    mine = [b.add(places.thread, I32(r * THREADS)) for r in range(ITEMS)]
    keys = places.exchange(keys, ranks, inside, mine)  # the barriers in it also make `before` seen
    found = []
    for x, index in zip(keys, mine, strict=True):
        digit = spec.digit(b, x, p.shift)
        found.append(b.add(b.load(places.at(before, digit), align=4, typ=I32), index))
    targets = [b.add(p.base, b.zext(x, I64)) for x in found]
    wanted = [b.icmp_signed("<", b.zext(index, I64), p.size) for index in mine]
    if spec.positions:
        positions = places.exchange(positions, ranks, inside, mine)
    for r in range(ITEMS):
        with if_then(b, wanted[r]):
            if spec.records:
                record = b.or_(b.zext(positions[r], I64), b.shl(b.zext(keys[r], I64), I64(32)))
                b.store(record, _record_place(b, p, found[r]), align=8)
            else:
                b.store(keys[r], offset(b, p.to, b.mul(targets[r], I64(size))), align=size)
                if spec.positions:
                    b.store(positions[r], offset(b, p.positions_to, b.shl(targets[r], I64(2))), align=4)
    b.ret_void()
    return function


def _record_place(b: ir.IRBuilder, p: _Pass, place: ir.Value) -> ir.Value:
    """Where a record of a scatter's order lies (see ordering.py)."""
    line = b.add(b.mul(p.row, b.add(p.slots, p.length)), b.add(p.slots, b.zext(place, I64)))
    return offset(b, p.to, b.shl(line, I64(3)))


def build_take(module: ir.Module, name: str, nbytes: int) -> ir.Function:
    """Words: from, positions, to, rows, length. Elements of `nbytes` from their positions in their rows."""
    function, b = new_entry(module, name, THREADS)
    source, positions, to, rows, length = load_args(b, function.args[0], 5)
    source, positions, to = (device_pointer(b, x) for x in (source, positions, to))
    kind = ir.IntType(8 * nbytes)
    start = b.add(b.mul(block_index(b), I64(TAKE_EACH * THREADS)), thread_index(b))
    total = b.mul(rows, length)
    found = []
    for k in range(TAKE_EACH):
        i = b.add(start, I64(k * THREADS))
        inside = b.icmp_signed("<", i, total)
        safe = b.select(inside, i, I64(0))
        row = b.mul(b.udiv(safe, length), length)
        position = b.load(offset(b, positions, b.shl(safe, I64(2))), align=4, typ=I32)
        at = b.mul(b.add(row, b.zext(position, I64)), I64(nbytes))
        found.append((i, inside, b.load(offset(b, source, at), align=nbytes, typ=kind)))
    for i, inside, x in found:
        with if_then(b, inside):
            b.store(x, offset(b, to, b.mul(i, I64(nbytes))), align=nbytes)
    b.ret_void()
    return function


def build_rows(module: ir.Module, name: str, spec: SortSpec, items: int) -> ir.Function:
    """Rows that fit a tile: a block of threads sorts as many as fit. Words: inputs, outputs, rows, length, rows a tile.

    All elements of a tile are sorted as one row, and at last by the number of their row, which keeps their order.
    """
    function, b = new_entry(module, name, THREADS, radix.RESIDENT)
    number = len(spec.dtypes)
    words = load_args(b, function.args[0], len(spec.read) + number + 3)
    inputs, outputs = words[: len(spec.read)], words[len(spec.read) : -3]
    rows, length, group = words[-3:]
    first = b.mul(block_index(b), group)
    size = b.mul(minimum(b, b.sub(rows, first), group), length)
    base = b.mul(first, length)

    def place(array: ir.Value, k: int, index: ir.Value) -> ir.Value:
        at = b.add(base, b.zext(index, I64))
        return offset(b, device_pointer(b, array), b.mul(at, I64(spec.dtypes[k].itemsize)))

    def element(k: int, index: ir.Value) -> ir.Value:
        if k == spec.positions:
            return b.urem(index, b.trunc(length, I32))
        at = place(inputs[spec.read.index(k)], k, index)
        return b.load(at, align=spec.dtypes[k].itemsize, typ=raw_type(spec.dtypes[k].name))

    largest = max(4, *(d.itemsize for d in spec.dtypes[: spec.num_keys]))
    places = Staging(b, name, items, largest)
    order = [places.index(r) for r in range(items)]
    inside = [b.icmp_unsigned("<", i, b.trunc(size, I32)) for i in order]
    positions = [b.select(valid, i, I32(0)) for i, valid in zip(order, inside, strict=True)]
    for k in reversed(range(spec.num_keys)):
        dtype = spec.dtypes[k].name
        bits = 1 if dtype == "bool" else 8 * spec.dtypes[k].itemsize
        keys = [element(k, p) for p in positions]
        with loop(b, 0, passes_of(bits), 1, [*keys, *positions]) as it:
            keys, positions = it.values[:items], it.values[items:]
            shift = b.shl(b.trunc(it.index, I32), I32(3))
            ranks = places.rank([digit_of(b, ordered(b, x, dtype), shift) for x in keys], inside)
            keys = places.exchange(keys, ranks, inside, order)
            positions = places.exchange(positions, ranks, inside, order)
            it.advance(*_known(b, keys, inside), *_known(b, positions, inside))
        positions = it.results[items:]
    several = b.zext(b.icmp_signed(">", group, I64(1)), I64)
    with loop(b, 0, several, 1, positions) as it:
        digits = [b.udiv(p, b.trunc(length, I32)) for p in it.values]
        ranks = places.rank(digits, inside)
        it.advance(*_known(b, places.exchange(it.values, ranks, inside, order), inside))
    for k in range(number):
        found = [element(k, p) for p in it.results]
        for x, index, valid in zip(found, order, inside, strict=True):
            with if_then(b, valid):
                b.store(x, place(outputs[k], k, index), align=spec.dtypes[k].itemsize)
    b.ret_void()
    return function


def _known(b: ir.IRBuilder, values: list[ir.Value], inside: list[ir.Value]) -> list[ir.Value]:
    """Values, and 0 where there is no element."""
    return [b.select(valid, x, x.type(0)) for x, valid in zip(values, inside, strict=True)]
