"""From device memory to a stage in shared memory: how a block's threads share the copies of an operand's tile."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from llvmlite import ir

from volta.emit.builder import Builder
from volta.emit.loops import I32, I64, minimum, offset
from volta.numba_cuda.codegen.ptx_ops import copy_async
from volta.numba_cuda.products.dot_tile import OperandLayout, Tile
from volta.xla_like.dot import item_size

_RUN = 8


@attrs.frozen
class Layout:
    """A stage of an operand in shared memory: bytes from one k to the next, from one line (row, column) to the next."""

    k: int
    line: int
    bytes: int


def lines_of_k(size: int, length: int, depth: int, pad: int) -> Layout:
    """For each k a line of `length` neighbours, `pad` bytes apart."""
    return Layout(length * size + pad, size, depth * (length * size + pad))


def lines_along_k(size: int, length: int, depth: int, pad: int) -> Layout:
    """For each row or column a line of the stage's k."""
    return Layout(size, depth * size + pad, length * (depth * size + pad))


@attrs.frozen
class _Copy:
    """One of a thread's copies: how far it reads behind the tile's pointer, and, relative to the thread's first copy,
    its bytes in the stage and steps of k."""

    distance: ir.Value
    place: int
    k: int


class Feed:
    """The copies of an operand's tile of `length` rows or columns to a stage at byte `region` of shared memory.

    ``first`` is the tile's pointer for the first stage, ``step`` the bytes to the next stage. All threads share the
    pointer; how far behind it a thread's copies read never changes, and is in 32 bits where the operand is near: then a
    copy takes one register, and two instructions (seen: 64 bits take so many registers that they are computed again).
    """

    def __init__(
        self, b: ir.IRBuilder, thread: ir.Value, tile: Tile, operand: OperandLayout, length: int, layout: Layout,
        region: int, base: ir.Value, start: ir.Value, total: ir.Value, stride: ir.Value, stride_k: ir.Value,
    ) -> None:  # fmt: skip
        """The tile's lines begin at element `start` of `total`; strides in bytes."""
        self.b, self.operand, self.region, self.layout = b, operand, region, layout
        size, width = item_size(operand.dtype), operand.width
        self.along_k = operand.along == "k"
        if operand.along == "k":
            stride_k = I64(size)
        elif operand.along == "line":
            stride = I64(size)
        threads, depth = tile.threads, tile.depth
        # A thread's first copy is of (line, k); the others are `moves` away.
        if self.along_k:
            runs = depth // width
            if layout.k != item_size(operand.staged):
                runs = min(runs, _RUN)  # what is transposed is copied in short runs, which end in different banks
            lines = threads // runs
            line, k = b.udiv(thread, I32(runs)), b.mul(b.urem(thread, I32(runs)), I32(width))
            moves = [(j, i) for i in range(0, depth, runs * width) for j in range(0, length, lines)]
            last = b.sub(total, I64(1))
        else:
            groups = length // width
            beside, below = max(1, groups // threads), max(1, threads // groups)
            line, k = b.mul(b.urem(thread, I32(groups)), I32(width)), b.udiv(thread, I32(groups))
            moves = [(j * threads * width, i) for i in range(0, depth, below) for j in range(beside)]
            last = b.sub(total, I64(width))
        assert len(moves) * threads * width == length * depth, (tile, operand)
        self.k = k

        def line_at(more: int) -> ir.Value:
            return b.mul(minimum(b, b.add(start, b.add(b.zext(line, I64), I64(more))), last), stride)

        corner = b.mul(start, stride)
        self.first = offset(b, base, corner)
        self.step = b.mul(I64(depth), stride_k)
        self.place = b.add(I32(region), b.add(b.mul(k, I32(layout.k)), b.mul(line, I32(layout.line))))
        lines_at = {more: b.sub(line_at(more), corner) for more, _ in moves}
        self.copies, kind = [], I32 if operand.near else I64
        for more, more_k in moves:
            along = b.mul(b.zext(b.add(k, I32(more_k)), I64), stride_k)
            distance = b.add(lines_at[more], along)
            distance = b.trunc(distance, kind) if operand.near else distance
            self.copies.append(_Copy(distance, more_k * layout.k + more * layout.line, more_k))
        self.safe = offset(b, self.first, lines_at[0])

    def _source(self, copy: _Copy) -> ir.Value:
        b, distance = self.b, copy.distance
        return offset(b, self.source, b.zext(distance, I64) if self.operand.near else distance)

    def begin(
        self, shared: ir.Value, stage: ir.Value, pointer: ir.Value, tiles: ir.Value, rest: ir.Value | None
    ) -> None:
        """Settle which tile is copied next, if `tiles` are left; of it only `rest` k exist (None: all)."""
        b = self.b
        self.to = offset(b, shared, b.zext(b.add(stage, self.place), I64))
        self.source, self.rest = pointer, rest
        self.more = b.icmp_signed(">", tiles, I32(0))

    def copy(self, part: int, parts: int) -> None:
        """Start one of `parts` parts of this thread's copies.

        Of an operand along k what follows the last k in the stage becomes 0.
        """
        b, n = self.b, len(self.copies)
        size, width = item_size(self.operand.dtype), self.operand.width
        for c in self.copies[n * part // parts : n * (part + 1) // parts]:
            valid: ir.Value = I32(width * size)
            if self.rest is not None:
                left = b.sub(self.rest, b.add(self.k, I32(c.k)))
                some = b.mul(minimum(b, left, width), I32(size)) if self.along_k else valid
                valid = b.select(b.icmp_signed(">", left, I32(0)), some, I32(0))
            valid = b.select(self.more, valid, I32(0))
            copy_async(b, offset(b, self.to, c.place), self._source(c), width * size, valid)

    def finish(self) -> None:
        """Once a stage, before its barrier: what must be done by the thread itself is done."""


class CastFeed(Feed):
    """A feed through registers: elements change their dtype on the way, or the GPU has no asynchronous copies."""

    def begin(
        self, shared: ir.Value, stage: ir.Value, pointer: ir.Value, tiles: ir.Value, rest: ir.Value | None
    ) -> None:
        super().begin(shared, stage, pointer, tiles, rest)
        self.found: list[ir.Value] = []

    def copy(self, part: int, parts: int) -> None:
        if part:
            return
        b, operand = self.b, self.operand
        kind = Builder(b, operand.width).memory_type(operand.dtype)
        kind = ir.VectorType(kind, operand.width) if operand.width > 1 else kind
        for c in self.copies:
            source, inside = self._source(c), self.more
            if self.rest is not None:
                inside = b.and_(inside, b.icmp_signed("<", b.add(self.k, I32(c.k)), self.rest))
            source = b.select(inside, source, self.safe)  # beyond the end: something is read, and not used
            raw = b.load(source, typ=kind, align=operand.width * item_size(operand.dtype))
            self.found.append(b.select(inside, raw, ir.Constant(kind, None)) if self.rest is not None else raw)

    def finish(self) -> None:
        b, operand, layout = self.b, self.operand, self.layout
        size = item_size(operand.staged)
        lanes, wide = Builder(b, operand.width), min(operand.width, 16 // size)
        for c, raw in zip(self.copies, self.found, strict=True):
            value = lanes.cast(lanes.from_memory(raw, operand.dtype), operand.staged).ir
            here = offset(b, self.to, c.place)
            if operand.width == 1:
                b.store(value, here, align=size)
            elif self.along_k and layout.k != size:  # neighbours along k go to lines below each other
                for i in range(operand.width):
                    b.store(b.extract_element(value, I32(i)), offset(b, here, i * layout.k), align=size)
            else:
                for first in range(0, operand.width, wide):
                    which = ir.Constant(ir.VectorType(I32, wide), list(range(first, first + wide)))
                    vector = b.shuffle_vector(value, value, which)
                    b.store(vector, offset(b, here, first * size), align=wide * size)


def vectors(b: ir.IRBuilder, pointer: ir.Value, kind: ir.Type, size: int, count: int) -> Iterator[ir.Value]:
    """`count` neighbouring elements in shared memory, read 16 bytes at a time."""
    wide = min(count, 16 // size)
    for first in range(0, count, wide):
        found = b.load(offset(b, pointer, first * size), typ=ir.VectorType(kind, wide), align=wide * size)
        for i in range(wide):
            yield b.extract_element(found, I32(i))
