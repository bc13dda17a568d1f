"""How tiles of the operands of a tensor-core product come to shared memory.

A tile lies in lines of 128 bytes, eight pieces of 16 bytes each; piece c of line l is at place c xor l % 8, so that
neither the copies nor the tensor cores meet in one bank. A line runs along k (a line for each row or column), or along
the rows or columns (a line for each k, 64 rows or columns a block). Beyond the last k there are zeros, in both
operands; beyond the last row or column there is anything, and nothing of that is stored.
"""

from __future__ import annotations

from typing import Literal

import attrs
from llvmlite import ir

from volta.emit.dot_args import at
from volta.emit.loops import I8, I16, I32, I64, minimum, offset
from volta.numba_cuda.codegen import ptx_ops, ptx_round

LINE = 128
PIECE = 16
PIECES = LINE // PIECE
ITEMS = {"tf32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of an element of a tile, by what the tensor cores multiply."""
BLOCK = 64
"""Rows or columns in a line that runs along them; and lines in a block."""


@attrs.frozen
class OperandLayout:
    """How an operand lies in memory, and how it is loaded.

    ``along``: the dimension in which neighbours lie next to each other ("k", or "mn": its rows or columns). ``load``:
    "map" and "async" copy as they are, boxes by the copy engine or pieces; "whole" loads pieces, "single" elements, and
    both may convert; "blocks" unpacks those of few bits (``dtype`` is their format).
    """

    dtype: str
    along: Literal["k", "mn"]
    load: Literal["map", "async", "whole", "single", "blocks"]

    def suffix(self) -> str:
        return f"{self.along}{self.load[0]}"


def line_along(operand: OperandLayout, kind: str) -> str:
    """What the lines of a tile run along: as in memory, but always along k where elements are not of 2 bytes."""
    return operand.along if ITEMS[kind] == 2 else "k"


def swizzled(b: ir.IRBuilder, line: ir.Value, piece: ir.Value) -> ir.Value:
    """The byte of a tile where piece `piece` of line `line` begins."""
    exchanged = b.xor(piece, b.and_(line, I64(PIECES - 1)))
    return b.add(b.mul(line, I64(LINE)), b.mul(exchanged, I64(PIECE)))


class Loader:
    """Loads tiles of one operand: `length` rows or columns, 128 bytes of k."""

    def __init__(
        self, b: ir.IRBuilder, operand: OperandLayout, kind: str, length: int, threads: int, thread: ir.Value,
        base: ir.Value, start: ir.Value, size: ir.Value, stride: ir.Value, k_size: ir.Value, k_stride: ir.Value,
    ) -> None:  # fmt: skip
        """`start` is the tile's first row or column, of `size`; `kind` is what the tensor cores multiply."""
        self.b, self.operand, self.kind, self.size, self.k_size = b, operand, kind, size, k_size
        self.item = ITEMS[kind]
        self.group = PIECE // self.item  # elements of a piece
        self.depth = LINE // self.item
        self.stride, self.k_stride, self.base = stride, k_stride, base
        self.places = [
            self._place(b.add(thread, I64(step * threads)), start, length) for step in range(length * PIECES // threads)
        ]

    def _place(self, number: ir.Value, start: ir.Value, length: int) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
        """Of the piece that has this number: its row or column, its depth, and where it goes.

        A place for each element where neighbours in memory are none in the tile, else one for the piece.
        """
        b, operand = self.b, self.operand
        line, piece = b.udiv(number, I64(PIECES)), b.urem(number, I64(PIECES))
        if operand.along == "k":
            place, depth = line, b.mul(piece, I64(self.group))
            return b.add(start, place), depth, [swizzled(b, line, piece)]
        if line_along(operand, self.kind) == "mn":
            block, depth = b.udiv(line, I64(BLOCK)), b.urem(line, I64(BLOCK))
            place = b.add(b.mul(block, I64(BLOCK)), b.mul(piece, I64(self.group)))
            return b.add(start, place), depth, [swizzled(b, line, piece)]
        # Four neighbouring rows go to four lines; a warp takes 8 of k by 16 rows: whole sectors, few conflicts.
        low, rest = b.urem(number, I64(4)), b.udiv(number, I64(4))
        deep, rest = b.urem(rest, I64(8)), b.udiv(rest, I64(8))
        groups = length // self.group // 4
        place = b.mul(b.add(b.mul(b.urem(rest, I64(groups)), I64(4)), low), I64(self.group))
        depth = b.add(b.mul(b.udiv(rest, I64(groups)), I64(8)), deep)
        column, within = b.udiv(depth, I64(self.group)), b.mul(b.urem(depth, I64(self.group)), I64(self.item))
        lines = [b.add(place, I64(i)) for i in range(self.group)]
        return b.add(start, place), depth, [b.add(swizzled(b, x, column), within) for x in lines]

    # -- copies that run by themselves ---------------------------------------------------------------------------------

    def begin(self, k: ir.Value, tile: ir.Value) -> None:
        """Begin to copy the tile of depth `k` on to `tile`; beyond the operand there come zeros."""
        b = self.b
        along, across = (self.k_size, self.size) if self.operand.along == "k" else (self.size, self.k_size)
        for place, depth, (to,) in self.places:
            deep = b.add(k, depth)
            first, line = (deep, place) if self.operand.along == "k" else (place, deep)
            left = minimum(b, b.mul(b.sub(along, first), I64(self.item)), PIECE)
            there = b.and_(b.icmp_signed(">", left, I64(0)), b.icmp_signed("<", line, across))
            nbytes = b.trunc(b.select(there, left, I64(0)), I32)
            source = at(b, self.base, (place, self.stride), (deep, self.k_stride))
            ptx_ops.copy_async(b, offset(b, tile, to), source, PIECE, nbytes)

    # -- loads that go through registers -------------------------------------------------------------------------------

    def fetch(self, k: ir.Value) -> list[ir.Value]:
        """This thread's part of the tile of depth `k` on, as it lies in memory; `put` converts and stores it."""
        return [x for place, depth, _ in self.places for x in self._fetch(place, self.b.add(k, depth))]

    def _fetch(self, place: ir.Value, deep: ir.Value) -> list[ir.Value]:
        b, wide = self.b, 4 if self.operand.dtype == "float32" else 8
        raw = ir.FloatType() if self.operand.dtype == "float32" else I16
        nothing = ir.Constant(raw, 0.0 if raw == ir.FloatType() else 0)
        found: list[ir.Value] = []
        step = wide if self.operand.load == "whole" else 1
        for first in range(0, self.group, step):
            own, far = place, deep
            if self.operand.along == "k":
                far = b.add(deep, I64(first))
            else:
                own = b.add(place, I64(first))
            inside = b.icmp_signed("<", far, self.k_size)
            own = minimum(b, own, b.sub(self.size, I64(step if self.operand.along == "mn" else 1)))
            far = minimum(b, far, b.sub(self.k_size, I64(step if self.operand.along == "k" else 1)))
            here = at(b, self.base, (own, self.stride), (far, self.k_stride))
            if step == 1:
                found.append(b.select(inside, b.load(here, typ=raw, align=raw_bytes(raw)), nothing))
                continue
            vector = b.load(here, typ=ir.VectorType(raw, step), align=PIECE)
            found += [b.select(inside, b.extract_element(vector, I32(i)), nothing) for i in range(step)]
        return found

    def put(self, values: list[ir.Value], tile: ir.Value) -> None:
        """Store what `fetch` loaded, as the tensor cores take it."""
        b = self.b
        for number, (_, _, to) in enumerate(self.places):
            own = values[number * self.group : (number + 1) * self.group]
            if self.kind == "tf32":
                words = [ptx_round.round_tf32(b, x) for x in own]
            elif self.operand.dtype == "float32":
                pairs = zip(own[::2], own[1::2], strict=True)
                words = [ptx_round.round_pair(b, low, high, self.kind) for low, high in pairs]
            else:
                words = [
                    b.or_(b.zext(own[i], I32), b.shl(b.zext(own[i + 1], I32), I32(16))) for i in range(0, len(own), 2)
                ]
            if len(to) == 1:
                piece = ir.Constant(ir.VectorType(I32, len(words)), ir.Undefined)
                for i, word in enumerate(words):
                    piece = b.insert_element(piece, word, I32(i))
                b.store(piece, offset(b, tile, to[0]), align=PIECE)
            else:
                for word, place in zip(words, to, strict=True):
                    b.store(word, offset(b, tile, place), align=4)


def raw_bytes(kind: ir.Type) -> int:
    """Bytes of an element of memory of this type."""
    return 4 if kind == ir.FloatType() else {I8: 1, I16: 2}[kind]
