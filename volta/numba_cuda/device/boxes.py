"""Copies of boxes within a device's memory: a part of one array becomes a part of another."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from volta.numba_cuda.device.driver import Device
    from volta.numba_cuda.device.streams import Stream

_DEVICE = 2  # CUmemorytype

_MOST_PITCH = (1 << 31) - 1
"""Bytes that two rows may be apart in one call of the driver's."""


class _Side(ctypes.Structure):
    """One half of CUDA_MEMCPY3D."""

    _fields_ = [
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("lod", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_void_p), ("device", ctypes.c_uint64), ("array", ctypes.c_void_p),
        ("reserved", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D: rows of bytes, in planes."""

    _fields_ = [
        ("source", _Side), ("to", _Side),
        ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t), ("planes", ctypes.c_size_t),
    ]  # fmt: skip


@attrs.frozen
class Box:
    """A part of an array that lies row by row: where from and where to, in each dimension of the array's shape."""

    shape: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in self.bounds)

    def steps(self, itemsize: int) -> list[int]:
        """Bytes between neighbours, dimension by dimension."""
        return [itemsize * math.prod(self.shape[d + 1 :]) for d in range(len(self.shape))]

    def start(self, itemsize: int) -> int:
        """Bytes before the first element."""
        return sum(a * step for (a, _), step in zip(self.bounds, self.steps(itemsize), strict=True))

    def nbytes(self, itemsize: int) -> int:
        return itemsize * math.prod(self.sizes)

    @property
    def in_one_piece(self) -> bool:
        """Whether its elements follow each other in memory."""
        return len(_merged(self.sizes, [self.steps(1)], 1)[0]) == 0


def whole(shape: Sequence[int]) -> Box:
    """All of an array."""
    return Box(tuple(shape), tuple((0, n) for n in shape))


def _merged(
    sizes: Sequence[int], steps: Sequence[Sequence[int]], itemsize: int
) -> tuple[list[int], list[list[int]], int]:
    """Rows of bytes with as few dimensions around them as can be: their numbers, steps on each side, bytes of a row."""
    width, outer, outer_steps = itemsize, list[int](), [list[int]() for _ in steps]
    for d in reversed([d for d, n in enumerate(sizes) if n != 1]):
        here = [s[d] for s in steps]
        if not outer and all(x == width for x in here):
            width *= sizes[d]
        elif outer and all(x == inner[0] * outer[0] for x, inner in zip(here, outer_steps, strict=True)):
            outer[0] *= sizes[d]
        else:
            outer.insert(0, sizes[d])
            for inner, x in zip(outer_steps, here, strict=True):
                inner.insert(0, x)
    return outer, outer_steps, width


@attrs.frozen(eq=False)
class Step:
    """One call of the driver's: bytes in one piece, or rows of them; offsets are from where the arrays begin."""

    to: int
    source: int
    nbytes: int
    rows: Copy3D | None = None


def steps(put: Box, taken: Box, itemsize: int) -> tuple[Step, ...]:
    """How a box of one array is copied to a box of as many elements in another."""
    if 0 in taken.sizes:
        return ()
    assert taken.sizes == put.sizes, (taken, put)
    outer, (to_steps, source_steps), width = _merged(
        taken.sizes, [put.steps(itemsize), taken.steps(itemsize)], itemsize
    )
    found: list[Step] = []
    _add(found, put.start(itemsize), to_steps, taken.start(itemsize), source_steps, outer, width)
    return tuple(found)


def _add(
    found: list[Step], to: int, to_steps: list[int], source: int, source_steps: list[int], outer: list[int], width: int
) -> None:
    if not outer:
        found.append(Step(to, source, width))
    elif len(outer) > 2 or max(to_steps[-1], source_steps[-1]) > _MOST_PITCH:
        for i in range(outer[0]):
            at = to + i * to_steps[0], source + i * source_steps[0]
            _add(found, at[0], to_steps[1:], at[1], source_steps[1:], outer[1:], width)
    else:
        sides = []
        for apart in (source_steps, to_steps):
            rows_apart = apart[0] // apart[1] if len(outer) == 2 else outer[0]
            sides.append(_Side(kind=_DEVICE, pitch=apart[-1], height=rows_apart))
        rows = Copy3D(sides[0], sides[1], width, outer[-1], outer[0] if len(outer) == 2 else 1)
        found.append(Step(to, source, width * math.prod(outer), rows))


def run(device: Device, found: Sequence[Step], to: int, source: int, stream: Stream) -> None:
    """Make the copies, from the array at one address to that at another, in order with a stream's work."""
    for step in found:
        if step.rows is None:
            device.copy(to + step.to, source + step.source, step.nbytes, stream)
        else:
            call = Copy3D.from_buffer_copy(step.rows)
            call.to.device, call.source.device = to + step.to, source + step.source
            device.copy_rows(call, step.nbytes, stream)


def copy(device: Device, to: int, put: Box, source: int, taken: Box, itemsize: int, stream: Stream) -> None:
    """Copy a box of the array at one address to a box of as many elements in the array at another."""
    run(device, steps(put, taken, itemsize), to, source, stream)
