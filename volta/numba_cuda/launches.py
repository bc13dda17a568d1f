"""Launches, and which memory each of them touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from volta.numba_cuda.codegen.ptx import KernelSource
from volta.xla_like.kernels import Access, CombineKernel, IndexValue, KernelCall, Load, LoopKernel, Store
from volta.xla_like.loops import BLOCK

SCRATCH = -1
"""Stands for the plan's scratch memory where a launch names a buffer."""


class Range(NamedTuple):
    """Buffer, first byte, byte behind the last; of each ``period`` bytes, where there is one, the first ``width``.
    Until scratch memory is laid out, negative buffers are regions of it."""

    buffer: int
    low: int
    high: int
    period: int = 0
    width: int = 0

    @property
    def nbytes(self) -> int:
        if not self.period:
            return self.high - self.low
        whole, rest = divmod(self.high - self.low, self.period)
        return whole * self.width + min(rest, self.width)

    def moved(self, buffer: int, by: int) -> Range:
        """The same of another buffer, so many bytes further."""
        return self._replace(buffer=buffer, low=self.low + by, high=self.high + by)


@attrs.frozen
class Launch:
    """One kernel of a plan: its source, grid, threads in a block, args words, and which words are addresses.

    ``addresses`` holds (word, buffer, byte offset). ``scratch`` is how far into the scratch memory it reaches.
    ``shared`` is the bytes of dynamic shared memory a block has (`threads.dynamic_shared`), beside what is static.
    ``after`` are the positions of the plan's launches that must be done before; the others may run beside it.
    ``mapped``: there are tensor maps in its args, which must lie in device memory, at multiples of 128 bytes.
    ``calls`` is how many calls of a kernel run in it (see merging.py); ``alone``: it may not be merged with others.
    ``inside`` are the launches that run behind it if it finds its condition true, with ``repeats`` as long as it does
    (see conditional_nodes.py). ``early``: it may begin before the one that it comes after is done, as it waits itself
    (see codegen/ptx_following.py).
    """

    source: KernelSource
    grid: int
    threads: int
    words: tuple[int, ...]
    addresses: tuple[tuple[int, int, int], ...]
    scratch: int
    label: str
    shared: int = 0
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    calls: int = 1
    alone: bool = False
    after: tuple[int, ...] = ()
    mapped: bool = False
    inside: tuple[Launch, ...] = ()
    repeats: bool = False
    early: bool = False

    def flat(self) -> Iterator[Launch]:
        """The launch, then those inside of it, at any depth."""
        yield self
        yield from every(self.inside)


def every(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Launches, each followed by those inside of it."""
    for x in launches:
        yield from x.flat()


class Regions:
    """Pieces of scratch memory that the launches of a plan ask for, numbered -1, -2, …"""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, nbytes: int) -> int:
        self.sizes.append(aligned(nbytes))
        return -len(self.sizes)

    def size(self, number: int) -> int:
        return self.sizes[-1 - number]


def aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def touched(call: KernelCall, nbytes: Callable[[int], int]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """What a call reads and what it writes; ``nbytes`` is the size of a buffer."""
    kernel = call.kernel

    def whole(access: Access) -> Range:
        assert access.buffer is not None
        return Range(access.buffer, 0, nbytes(access.buffer))

    if isinstance(kernel, LoopKernel):
        reads: list[Range] = []
        writes: list[Range] = []
        loads = [x for x in kernel.body if isinstance(x, (Load, IndexValue))]
        for x, access in zip((*loads, *kernel.stores), call.accesses, strict=True):
            if access.buffer is not None:
                (writes if isinstance(x, Store) else reads).append(_extent(call, access, x))
        return tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))
    if isinstance(kernel, CombineKernel):
        *parts, out = call.accesses
        assert out.buffer is not None
        end = out.offset + call.sizes[0] * kernel.out_dtype.itemsize
        return tuple(whole(a) for a in parts), (Range(out.buffer, out.offset, end),)
    found = dict.fromkeys(whole(a) for a in call.accesses if a.buffer is not None)
    return tuple(r for r in found if r[0] in call.reads), tuple(r for r in found if r[0] in call.writes)


def _extent(call: KernelCall, access: Access, x: Load | IndexValue | Store) -> Range:
    """The bytes that an access of a loop kernel touches, from the first to the last; what lies between pieces of one
    size at one distance, as a concatenation's other parts do, is left out."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel) and access.buffer is not None
    steps = list(access.terms)  # (stride, largest index)
    for d, stride in enumerate(access.strides):
        size = call.sizes[d]
        if d == kernel.rank and kernel.by_blocks and isinstance(x, Store) and x.level == "row":
            size = -(-size // BLOCK)
        steps.append((stride, size - 1))
    moves = [stride * largest for stride, largest in steps]
    low = access.offset + sum(m for m in moves if m < 0)
    high = access.offset + sum(m for m in moves if m > 0) + x.dtype.itemsize
    return Range(access.buffer, low, high, *_pieces([s for s in steps if s[1]], x.dtype.itemsize))


def _pieces(steps: Sequence[tuple[int, int]], itemsize: int) -> tuple[int, int]:
    """The distance of equal pieces that lie apart, and their size: the smallest ones. (0, 0) where there are none."""
    for period in sorted({abs(stride) for stride, _ in steps}):
        width = itemsize + sum(abs(stride) * largest for stride, largest in steps if abs(stride) < period)
        if width < period and not any(stride % period for stride, _ in steps if abs(stride) >= period):
            return period, width
    return 0, 0
