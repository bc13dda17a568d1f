"""Loops that run tile by tile on a GPU: a block of threads takes a tile through all of them, in shared memory.

As sizes and strides are the kernel's own, addresses are a few additions, and what lies side by side is read and written
together. Threads meet before a loop that reads what others have written, and before what others have read is written
over. What a loop reads of device memory it asks for before that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.bodies import AccessArgs
from volta.emit.builder import Value
from volta.emit.loops import I32, I64, if_then, load_arg, offset
from volta.numba_cuda.codegen.ptx import KernelSource, shared_of
from volta.numba_cuda.codegen.threads import (
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    thread_index,
)
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, touched
from volta.numba_cuda.loops import nests
from volta.numba_cuda.loops.nests_body import ThreadEmitter
from volta.numba_cuda.loops.tile_layout import PADDED, Part, Piece, Spot, Tiled, padded, tiled, words_of
from volta.numba_cuda.loops.tiles import tile_of
from volta.xla_like.kernels import GivenValue, IndexValue, KernelCall, Load
from volta.xla_like.loops import unique
from volta.xla_like.views import Ints, prod


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """One launch, a block of threads a tile; one for each loop where a GPU has too little shared memory."""
    outside = (*call.reads, *call.writes)
    inside = unique(b for part in call.parts for b in part.writes if b not in outside)
    tile = tile_of(call.parts, inside, ctx.nbytes)
    assert tile is not None
    kernel, arrays = tiled(call.parts, tile, ctx.nbytes)
    if kernel.shared > shared_of(ctx.capability):
        yield from _one_by_one(call, inside, ctx)
        return
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


def _one_by_one(call: KernelCall, inside: Sequence[int], ctx: LaunchContext) -> Iterator[Launch]:
    """What the loops pass on lies in scratch memory."""
    regions = {b: ctx.scratch(ctx.nbytes(b)).buffer for b in inside}
    for part in call.parts:
        accesses = tuple(attrs.evolve(a, buffer=regions.get(a.buffer, a.buffer)) for a in part.accesses)  # type: ignore[arg-type]
        moved = attrs.evolve(part, accesses=accesses)
        yield from nests.launches(moved, ctx.of(moved))


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
        b = self.b
        out: list[list[ir.Value]] = []
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
    for part in kernel.parts:
        body = _Body(b, words, part)
        elements = _elements(block, body, part)
        if part.meets:
            barrier(b)
        for x in elements:
            body.evaluate(range(len(part.kernel.body)), x.values, 1, x.row, None)
            _aligned(body, part, x)
        if part.over:
            barrier(b)
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


def _elements(block: _Block, body: _Body, part: Part) -> list[_Element]:
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
        if (within := block.within(part, index)) is not None:
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
    sums: dict[tuple[Ints, bool], ir.Value] = {}

    def total(spot: Spot) -> ir.Value:
        """Of accesses with the same strides the same value."""
        key = spot.strides, spot.inside
        if key not in sums:
            values, at = (flat, I32(0)) if spot.inside else (globally, I64(0))
            for value, stride in zip(values, spot.strides, strict=True):
                at = b.add(at, b.mul(value, value.type(stride))) if stride else at
            sums[key] = at
        return sums[key]

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
            at = total(spot)
            behind = padded(spot.first)
            if min(spot.strides, default=0) < 0 or spot.first % PADDED and any(n % PADDED for n in spot.strides):
                at, behind = b.add(at, I32(spot.first)), 0
            at = b.add(at, b.udiv(at, I32(PADDED)))
            place = offset(b, block.shared, b.zext(b.mul(at, I32(spot.size)), I64))
            out.append(offset(b, place, spot.array + behind * spot.size))
        else:
            out.append(offset(b, offset(b, block.arrays[spot.array], total(spot)), spot.first))
    return out
