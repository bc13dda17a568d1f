"""Loops that run tile by tile on a GPU: a block of threads takes a tile through all of them, in shared memory.

Sizes and strides are written into the kernel, but for how many tiles there are: so addresses are a few additions, and
what lies side by side is read and written together. Between two loops the threads meet, once all have read and once all
have written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from math import gcd

import attrs
from llvmlite import ir

from volta.emit.args import Word
from volta.emit.bodies import AccessArgs
from volta.emit.builder import Value
from volta.emit.loops import I32, I64, if_then, load_arg, offset
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    thread_index,
)
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, touched
from volta.numba_cuda.loops.nests_body import ThreadEmitter, accesses_of
from volta.numba_cuda.loops.scalars import WIDEST
from volta.numba_cuda.loops.tiles import Tile, item_sizes, tile_of
from volta.xla_like.kernels import Access, GivenValue, IndexValue, KernelCall, Load, LoopKernel, Store
from volta.xla_like.views import Ints, prod

THREADS = 1024
"""Threads of a block at most."""

PADDED = 8
"""Neighbouring elements of a tile, behind which one is left free: so threads that write eight apart, or any power of
two, do not all meet in one bank."""


@attrs.frozen
class Piece:
    """A part of a dimension's index: its values in a tile, the digit that it is (None: of no digit), and its step."""

    size: int
    digit: int | None
    step: int


@attrs.frozen
class Spot:
    """Where an access of a loop lies: a buffer as the kernel numbers them, bytes to the first element, and bytes from
    one value of each of the loop's pieces to the next. ``inside``: in the tile."""

    array: int
    first: int
    strides: Ints
    inside: bool

    @property
    def alignment(self) -> int:
        """What its addresses are multiples of at least; 1 in the tile, where neighbours do not stay together."""
        return 1 if self.inside else gcd(WIDEST, self.first, *self.strides)


@attrs.frozen
class Part:
    """A loop as a tile runs it: its body, how its index is put together, and its accesses (None: no memory)."""

    kernel: LoopKernel
    dims: tuple[tuple[Piece, ...], ...]
    spots: tuple[Spot | None, ...]
    count: int

    def text(self) -> str:
        return f"{self.kernel.text()}\n{self.dims} {self.spots}"


@attrs.frozen
class Tiled:
    """The loops of one kernel; where in shared memory each array of a tile begins."""

    parts: tuple[Part, ...]
    chunks: Ints
    starts: Ints
    even: tuple[bool, ...]
    """Of each digit, whether its tiles are all whole."""
    shared: int

    @property
    def threads(self) -> int:
        most = max(part.count for part in self.parts)
        rounds = -(-most // THREADS)
        return -(-most // (rounds * WARP)) * WARP

    def text(self) -> str:
        return "\n".join([*(p.text() for p in self.parts), f"{self.chunks} {self.starts} {self.even} {self.shared}"])


def padded(elements: int) -> int:
    return elements + elements // PADDED


def tiled(calls: Sequence[KernelCall], tile: Tile, nbytes: Callable[[int], int]) -> tuple[Tiled, list[int]]:
    """The kernel of loops, and the buffers that it is given; ``nbytes`` of each buffer."""
    arrays: list[int] = []
    starts: dict[int, int] = {}
    shared = 0
    items = item_sizes(calls)
    for passed in tile.passed:  # what one loop passes on takes the place of what the one before did
        at = 0
        for b in passed:
            starts[b] = at
            at += -(-padded(tile.local(b, nbytes(b)) // items[b]) * items[b] // 16) * 16
        shared = max(shared, at)
    inside = list(starts)
    parts = []
    for i, call in enumerate(calls):
        dims = tuple(_pieces(tile, i, d, n) for d, n in enumerate(call.sizes))
        spots: list[Spot | None] = []
        for x, access in accesses_of(_loop(call), call.accesses):
            if access.buffer is None or isinstance(x, IndexValue):
                spots.append(None)
                continue
            steps = [access.strides[d] * p.step for d, pieces in enumerate(dims) for p in pieces]
            b = access.buffer
            if b in starts:
                local = [tile.local(b, s) // x.dtype.itemsize for s in steps]
                first = tile.local(b, access.offset) // x.dtype.itemsize
                spots.append(Spot(inside.index(b), first, tuple(local), True))
            else:
                if b not in arrays:
                    arrays.append(b)
                spots.append(Spot(arrays.index(b), access.offset, tuple(steps), False))
        parts.append(Part(_loop(call), dims, tuple(spots), tile.elements(call)))
    even = tuple(p.count % c == 0 for p, c in zip(tile.places, tile.chunks, strict=True))
    return Tiled(tuple(parts), tile.chunks, tuple(starts.values()), even, shared), arrays


def _loop(call: KernelCall) -> LoopKernel:
    assert isinstance(call.kernel, LoopKernel)
    return call.kernel


def _pieces(tile: Tile, part: int, dim: int, size: int) -> tuple[Piece, ...]:
    pieces, rest = [], size
    own = [(p.each[part], k) for k, p in enumerate(tile.places) if p.each[part].dim == dim]
    for digit, k in sorted(own, key=lambda x: -x[0].below):
        whole = digit.below * digit.count
        if rest > whole:
            pieces.append(Piece(rest // whole, None, whole))
        pieces.append(Piece(tile.chunks[k], k, digit.below))
        rest = digit.below
    if rest > 1:
        pieces.append(Piece(rest, None, 1))
    return tuple(pieces)


def words_of(calls: Sequence[KernelCall], tile: Tile, arrays: Sequence[int]) -> list[Word]:
    """Of each digit its values and its tiles; the arrays; of each loop the numbers of its body, and of terms."""
    words: list[Word] = [n for p, blocks in zip(tile.places, tile.blocks, strict=True) for n in (p.count, blocks)]
    words += [Access(b, 0, ()) for b in arrays]
    for call in calls:
        for x, access in accesses_of(_loop(call), call.accesses):
            if isinstance(x, IndexValue):
                words += [access, *(() if isinstance(x, GivenValue) else access.strides)]
            elif isinstance(x, Load):
                words += [n for term in access.terms for n in term]
    return words


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """One launch, a block of threads a tile."""
    tile = tile_of(call.parts, ctx.nbytes)
    assert tile is not None
    kernel, arrays = tiled(call.parts, tile, ctx.nbytes)
    text = kernel.text()
    name = f"volta_tiled_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    source = KernelSource(name, f"tiled\n{text}", partial(build, kernel=kernel, arrays=len(arrays)))
    found = [touched(part, ctx.nbytes) for part in call.parts]
    reads = tuple(dict.fromkeys(r for of, _ in found for r in of if r[0] in call.reads))
    writes = tuple(dict.fromkeys(r for _, of in found for r in of if r[0] in call.writes))
    yield ctx.launch(
        source, prod(tile.blocks), kernel.threads, words_of(call.parts, tile, arrays), kernel.shared,
        touched=(reads, writes),
    )  # fmt: skip


# -- the kernel --------------------------------------------------------------------------------------------------------


class _Words:
    """The args block, read from its beginning on."""

    def __init__(self, b: ir.IRBuilder, args: ir.Value) -> None:
        self.b, self.args, self.at = b, args, 0

    def next(self) -> ir.Value:
        self.at += 1
        return load_arg(self.b, self.args, self.at - 1)


class _Body(ThreadEmitter):
    """A loop's body, whose accesses lie at given places."""

    def __init__(self, b: ir.IRBuilder, words: _Words, part: Part) -> None:
        self._words, self._part = words, part
        super().__init__(b, words.args, part.kernel)

    def _read_args(self) -> None:
        next_word = self._words.next
        nothing = ir.Constant(I64, 0)
        self.sizes, self.places = [], []
        for x in [*(self.kernel.body[i] for i in self.memory), *self.kernel.stores]:
            if isinstance(x, IndexValue):
                dims = 0 if isinstance(x, GivenValue) else len(self._part.dims)
                self.places.append(AccessArgs(next_word(), [next_word() for _ in range(dims)], []))
            else:
                terms = [(next_word(), next_word()) for _ in x.terms] if isinstance(x, Load) else []
                self.places.append(AccessArgs(nothing, [], terms))


@attrs.define
class _Block:
    """A block of threads: where its tile is, and where arrays lie."""

    b: ir.IRBuilder
    kernel: Tiled
    firsts: list[ir.Value]
    """Of each digit, its value in the tile's first element."""
    counts: list[ir.Value]
    arrays: list[ir.Value]
    shared: ir.Value

    def index(self, part: Part, linear: ir.Value) -> list[list[ir.Value]]:
        """An element of a tile, as the values of each dimension's pieces."""
        b, out = self.b, []
        for pieces in reversed(part.dims):
            values: list[ir.Value] = []
            for piece in reversed(pieces):
                values.insert(0, b.urem(linear, I32(piece.size)))
                linear = b.udiv(linear, I32(piece.size))
            out.insert(0, values)
        return out

    def globally(self, piece: Piece, value: ir.Value) -> ir.Value:
        """A piece's value in the whole loop. Past the last one of a digit it is that one: its element is computed
        twice, and not stored."""
        b = self.b
        if piece.digit is None:
            return b.zext(value, I64)
        at = b.add(self.firsts[piece.digit], b.zext(value, I64))
        if self.kernel.even[piece.digit]:
            return at
        last = b.sub(self.counts[piece.digit], I64(1))
        return b.select(b.icmp_unsigned("<", at, last), at, last)

    def within(self, part: Part, index: list[list[ir.Value]]) -> ir.Value | None:
        """Whether an element is one of the loop's; None if all are."""
        b, found = self.b, None
        for pieces, values in zip(part.dims, index, strict=True):
            for piece, value in zip(pieces, values, strict=True):
                if piece.digit is not None and not self.kernel.even[piece.digit]:
                    at = b.add(self.firsts[piece.digit], b.zext(value, I64))
                    fits = b.icmp_unsigned("<", at, self.counts[piece.digit])
                    found = fits if found is None else b.and_(found, fits)
        return found


def build(module: ir.Module, name: str, kernel: Tiled, arrays: int) -> ir.Function:
    """Args: see `words_of`."""
    function, b = new_entry(module, name, kernel.threads)
    words = _Words(b, function.args[0])
    pairs = [(words.next(), words.next()) for _ in kernel.chunks]
    block = _Block(b, kernel, [], [n for n, _ in pairs], [], dynamic_shared(module, b))
    number = block_index(b)
    for k, chunk in reversed(list(enumerate(kernel.chunks))):
        value = number
        if k > 0:
            blocks = b.trunc(pairs[k][1], I32)
            small = b.trunc(number, I32)
            value, number = b.zext(b.urem(small, blocks), I64), b.zext(b.udiv(small, blocks), I64)
        block.firsts.insert(0, b.mul(value, I64(chunk)))
    block.arrays = [device_pointer(b, words.next()) for _ in range(arrays)]
    last = len(kernel.parts) - 1
    for i, part in enumerate(kernel.parts):
        body = _Body(b, words, part)
        elements = _elements(block, body, part, i == last)
        if i > 0:
            barrier(b)  # all of the tile is written
        for x in elements:
            body.evaluate(range(len(part.kernel.body)), x.values, 1, x.row, None)
            _aligned(body, part, x)
        if 0 < i < last:
            barrier(b)  # all of the tile is read
        for x in elements:
            with if_then(b, x.there) if x.there is not None else nullcontext():
                _store(b, body, part, x)
    b.ret_void()
    return function


@attrs.frozen
class _Element:
    """One of the elements of a loop that a thread computes: whether there is such, where its loads and its stores are,
    and its values."""

    there: ir.Value | None
    row: dict[int, ir.Value]
    stores: list[ir.Value]
    values: dict[int, Value]


def _elements(block: _Block, body: _Body, part: Part, last: bool) -> list[_Element]:
    """A thread's elements, of which nothing is computed but what lies in memory and not in the tile."""
    b, thread = block.b, block.b.trunc(thread_index(block.b), I32)
    threads = block.kernel.threads
    found = []
    for r in range(-(-part.count // threads)):
        linear, there = b.add(thread, I32(r * threads)), None
        if (r + 1) * threads > part.count:
            there = b.icmp_unsigned("<", linear, I32(part.count))
            linear = b.select(there, linear, I32(part.count - 1))
        index = block.index(part, linear)
        places = _places(block, body, part, index)
        if last and (within := block.within(part, index)) is not None:
            there = within if there is None else b.and_(there, within)
        row = dict(zip(body.memory, places, strict=False))
        x = _Element(there, row, places[len(body.memory) :], {})
        body.evaluate(_ahead(body, part), x.values, 1, row, None)
        found.append(x)
    return found


def _ahead(body: _Body, part: Part) -> list[int]:
    """The loads that wait for nothing of the tile."""
    spots = dict(zip(body.memory, part.spots, strict=False))
    plain = (i for i in body.memory if isinstance(x := part.kernel.body[i], Load) and not x.terms)
    return [i for i in plain if (spot := spots[i]) is not None and not spot.inside]


def _aligned(body: _Body, part: Part, x: _Element) -> None:
    """Say what addresses are multiples of: neighbours are then read together."""
    for i, spot in zip(body.memory, part.spots, strict=False):
        read = x.values[i].ir
        if spot is not None and isinstance(read, ir.LoadInstr):
            read.align = max(read.align, spot.alignment)


def _store(b: ir.IRBuilder, body: _Body, part: Part, x: _Element) -> None:
    for k, s in enumerate(part.kernel.stores):
        body.store(k, s, x.values[s.value], 1, x.stores[k], None, x.values)
        written, spot = b.block.instructions[-1], part.spots[len(body.memory) + k]
        if spot is not None and isinstance(written, ir.StoreInstr):
            written.align = max(written.align, spot.alignment)


def _places(block: _Block, body: _Body, part: Part, index: list[list[ir.Value]]) -> list[ir.Value]:
    """Of each load and index of a loop's element, then of each store, where it is."""
    b = block.b
    flat = [v for values in index for v in values]
    pieces = [p for dim in part.dims for p in dim]
    globally = [block.globally(p, v) for p, v in zip(pieces, flat, strict=True)]
    items = [x.dtype.itemsize for x in (*(part.kernel.body[i] for i in body.memory), *part.kernel.stores)]  # type: ignore[union-attr]
    sums: dict[tuple[Ints, bool], ir.Value] = {}

    def total(strides: Ints, inside: bool) -> ir.Value:
        """Of accesses with the same strides the same value."""
        if (strides, inside) not in sums:
            steps = [
                b.mul(v, v.type(s)) for v, s in zip(flat if inside else globally, strides, strict=True) if s
            ]
            at = (I32 if inside else I64)(0)
            for step in steps:
                at = b.add(at, step)
            sums[strides, inside] = at
        return sums[strides, inside]

    out = []
    for k, spot in enumerate(part.spots):
        if spot is None:
            place = body.places[k]
            at, step = place.base, 0
            for pieces_of, dim_stride in zip(part.dims, place.strides, strict=False):
                for p in pieces_of:
                    at = b.add(at, b.mul(b.mul(globally[step], I64(p.step)), dim_stride))
                    step += 1
            out.append(at)
        elif spot.inside:
            at = total(spot.strides, True)
            if spot.first % PADDED and any(s % PADDED for s in spot.strides):
                at = b.add(at, I32(spot.first))
                more = 0
            else:
                more = padded(spot.first)
            at = b.add(at, b.udiv(at, I32(PADDED)))
            start = block.kernel.starts[spot.array] + more * items[k]
            out.append(offset(b, offset(b, block.shared, b.zext(b.mul(at, I32(items[k])), I64)), start))
        else:
            out.append(offset(b, offset(b, block.arrays[spot.array], total(spot.strides, False)), spot.first))
    return out
