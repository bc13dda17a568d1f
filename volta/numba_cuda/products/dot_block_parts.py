"""In which units the bytes of a chunk of weights in blocks are copied, and in what order: as its elements need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from volta.core.block_formats import BlockFormat
from volta.xla_like.dot import CHUNK

_PARTS = 4  # of a chunk, by which copies are waited for

Unit = Literal[16, 4, 2]
"""Bytes that a lane copies at once: 2 by way of a register, others on their own."""


def chunk_bytes(fmt: BlockFormat) -> int:
    """What a chunk of one column takes."""
    return CHUNK // fmt.elements * fmt.nbytes


def unit_of(fmt: BlockFormat, column_bytes: int) -> Unit:
    """In what units the chunks of columns can be copied that lie so far apart."""
    units: tuple[Unit, ...] = (16, 4)
    for unit in units:
        if chunk_bytes(fmt) % unit == column_bytes % unit == 0:
            return unit
    return 2


def parts(fmt: BlockFormat, unit: Unit) -> list[list[int]]:
    """The units of a chunk that its elements need, part by part, without those of the parts before."""
    if unit == 2:
        return [list(range(chunk_bytes(fmt) // unit))]
    seen: set[int] = set()
    out = []
    for part in range(_PARTS):
        found = {
            byte // unit
            for element in range(part * CHUNK // _PARTS, (part + 1) * CHUNK // _PARTS)
            for byte in _bytes_of(fmt, element)
        } - seen
        seen |= found
        out.append(sorted(found))
    return out


def _bytes_of(fmt: BlockFormat, element: int) -> Iterator[int]:
    """The bytes of a chunk that an element is made of."""
    block, inside = divmod(element, fmt.elements)
    start = block * fmt.nbytes
    for piece in fmt.pieces(inside):
        yield start + piece.byte
    for halves in (fmt.scale, fmt.offset):
        if halves is not None:
            yield from (start + halves.at, start + halves.at + 1)
            if halves.groups:
                group = halves.groups[inside * len(halves.groups) // fmt.elements]
                yield from (start + piece.byte for piece in group)


def runs(units: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring units: the first, and how many."""
    found: list[tuple[int, int]] = []
    for unit in units:
        if found and sum(found[-1]) == unit:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((unit, 1))
    return found
