"""Which rows of a loop's body never ask for each other.

A row is a part of each step's elements, as many for every row, one behind the other. Rows are apart where what a step
writes of one row only steps of that row read: then blocks of threads can have rows of their own. What no step writes,
such as weights, all of them may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import prod

import attrs

from volta.xla_like.dot import CHUNK, Dot, item_size
from volta.xla_like.kernels import GivenValue, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.views import Ints


@attrs.frozen
class Touch:
    """An access of a step: its buffer, bytes of an element, first byte, strides over the step's sizes and, behind them,
    those of what each element reads one by one as (stride, count); strides of what is added to the place."""

    buffer: int
    size: int
    first: int
    strides: Ints
    along: tuple[tuple[int, int], ...]
    terms: Ints


@attrs.frozen
class Work:
    """A step: a loop or a product, its elements' sizes, what it reads and what it writes."""

    call: KernelCall
    sizes: Ints
    read: tuple[Touch, ...]
    written: tuple[Touch, ...]

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(x.buffer for x in self.read))

    @property
    def writes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(x.buffer for x in self.written))

    @property
    def outermost(self) -> int:
        """The first dimension that has more than one element."""
        return next((d for d, n in enumerate(self.sizes) if n > 1), 0)

    def splits(self, rows: int) -> bool:
        """Whether the elements are so many rows."""
        return bool(self.sizes) and self.sizes[self.outermost] % rows == 0


def work_of(call: KernelCall, key: Callable[[int], int]) -> Work | None:
    """A call as a step; None unless it is an elementwise loop, or a product of one chain for each element.

    ``key`` says which buffer stands for one.
    """
    kernel, found = call.kernel, None
    if isinstance(kernel, LoopKernel) and kernel.mode == "map":
        found = Work(call, call.sizes, *_of_loop(call, kernel, key))
    elif isinstance(kernel, Dot) and _is_plain(kernel):
        found = Work(call, (*kernel.batch, kernel.m, kernel.n), *_of_dot(call, kernel, key))
    if found is None or not found.elements or any(not _alike(found, x) for x in found.written):
        return None
    return found


def _is_plain(dot: Dot) -> bool:
    spec = dot.spec
    same = spec.lhs == spec.rhs == spec.out == spec.accumulator
    return same and spec.precision == "default" and 0 < dot.k <= CHUNK


def _alike(work: Work, x: Touch) -> bool:
    """Whether a step that reads what it writes does so element by element."""
    return all(y == x for y in work.read if y.buffer == x.buffer) and x.strides.count(0) <= sum(
        n == 1 for n in work.sizes
    )


def _of_loop(
    call: KernelCall, kernel: LoopKernel, key: Callable[[int], int]
) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    loads = [x for x in kernel.body if isinstance(x, (Load, IndexValue))]
    found: tuple[list[Touch], list[Touch]] = [], []
    for i, (x, a) in enumerate(zip((*loads, *kernel.stores), call.accesses, strict=True)):
        if isinstance(x, (IndexValue, GivenValue)) or a.buffer is None:
            continue
        terms = tuple(stride for stride, top in a.terms if top)
        found[i >= len(loads)].append(Touch(key(a.buffer), x.dtype.itemsize, a.offset, a.strides, (), terms))
    return tuple(found[0]), tuple(found[1])


def _of_dot(call: KernelCall, dot: Dot, key: Callable[[int], int]) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    lhs, rhs, out = call.accesses
    assert lhs.buffer is not None and rhs.buffer is not None and out.buffer is not None
    (lb0, lb1, lm, lk), (rb0, rb1, rk, rn) = lhs.strides, rhs.strides
    size = item_size(dot.spec.out)
    return (
        Touch(key(lhs.buffer), size, lhs.offset, (lb0, lb1, lm, 0), ((lk, dot.k),), ()),
        Touch(key(rhs.buffer), size, rhs.offset, (rb0, rb1, 0, rn), ((rk, dot.k),), ()),
    ), (Touch(key(out.buffer), size, out.offset, out.strides, (), ()),)


def rows_of(works: Sequence[Work], written: AbstractSet[int]) -> int:
    """The most rows that are apart; 1 where none are."""
    counts = {w.sizes[w.outermost] for w in works if w.sizes}
    return next(n for n in sorted({1, *counts}, reverse=True) if bytes_a_row(works, written, n) is not None)


def bytes_a_row(works: Sequence[Work], written: AbstractSet[int], rows: int) -> dict[int, int] | None:
    """Of what is written by rows, the bytes from one to the next; what else is written has no entry. None where such
    rows are not apart."""
    if rows == 1:
        return {}
    split = [w for w in works if w.splits(rows)]
    others = [w for w in works if not w.splits(rows)]
    once = {b for w in others for b in w.writes}
    if any(b in written - once for w in others for b in w.reads):
        return None
    found: dict[int, int] = {}
    for work in split:
        for x, is_written in _touches(work):
            if x.buffer not in written or (x.buffer in once and not is_written):
                continue
            row = _row(work, x, rows)
            if x.buffer in once or row is None or found.setdefault(x.buffer, row) != row:
                return None
    return found


def _touches(work: Work) -> Iterator[tuple[Touch, bool]]:
    for x in work.read:
        yield x, False
    for x in work.written:
        yield x, True


def _row(work: Work, x: Touch, rows: int) -> int | None:
    """Bytes from what a row touches to what the next one does, if each lies within so many; else None."""
    d = work.outermost
    inner = work.sizes[d] // rows
    row = x.strides[d] * inner
    if row <= 0 or any(stride % (row * rows) for stride in x.terms):
        return None
    counts = [(stride, inner if i == d else n) for i, (stride, n) in enumerate(zip(x.strides, work.sizes, strict=True))]
    moves = [stride * (n - 1) for stride, n in (*counts, *x.along)]
    first = x.first % (row * rows)
    low, high = first + sum(m for m in moves if m < 0), first + sum(m for m in moves if m > 0) + x.size
    return row if low >= 0 and high <= row else None
