"""Which rows of a loop's body never ask for each other.

A row is a part of each step's elements, as many for every row, one behind the other. Rows are apart where what a step
writes of one row only steps of that row read: then blocks of threads can have rows of their own. What no step writes,
such as weights, all of them may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any

import attrs

from volta.xla_like.dot import BLOCK, Dot, item_size
from volta.xla_like.kernels import GivenValue, IndexValue, KernelCall, Load, LoopKernel, Store
from volta.xla_like.views import Ints

LONGEST = 1024
"""Elements that are reduced to one at most."""


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
    """A step: a loop or a product, its elements' sizes, what it reads and what it writes. It runs ``only`` where the
    int32 of each buffer is a number, which each element reads."""

    call: KernelCall
    sizes: Ints
    read: tuple[Touch, ...]
    written: tuple[Touch, ...]
    only: tuple[tuple[int, int], ...] = ()

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
    def reduces(self) -> bool:
        """Whether each element is reduced from a row."""
        return isinstance(self.call.kernel, LoopKernel) and self.call.kernel.mode == "row"

    @property
    def outermost(self) -> int:
        """The first dimension that has more than one element."""
        return next((d for d, n in enumerate(self.sizes) if n > 1), 0)

    def splits(self, rows: int) -> bool:
        """Whether the elements are so many rows."""
        return bool(self.sizes) and self.sizes[self.outermost] % rows == 0


def work_of(call: KernelCall, only: tuple[tuple[int, int], ...]) -> Work | None:
    """A call as a step; None unless it is a loop, elementwise or with short reductions, or a product of few chunks."""
    kernel, found = call.kernel, None
    if isinstance(kernel, LoopKernel) and _is_short(call, kernel):
        call = by_rows(call, kernel)
        found = Work(call, call.sizes[: kernel.rank], *_of_loop(call, kernel))
    elif isinstance(kernel, Dot) and _is_plain(kernel):
        found = Work(call, (*kernel.batch, kernel.m, kernel.n), *_of_dot(call, kernel))
    if found is None or not found.elements or any(not _alike(found, x) for x in found.written):
        return None
    flags = tuple(Touch(flag, 4, 0, (0,) * len(found.sizes), (), ()) for flag, _ in only)
    return attrs.evolve(found, read=(*found.read, *flags), only=only)


def _is_short(call: KernelCall, kernel: LoopKernel) -> bool:
    return kernel.mode == "map" or (not kernel.by_blocks and 0 < call.sizes[-1] <= LONGEST)


def _is_plain(dot: Dot) -> bool:
    return dot.name == "dot" and dot.spec.blocks is None and 0 < dot.k <= BLOCK


def by_rows(call: KernelCall, kernel: LoopKernel) -> KernelCall:
    """A kernel that reduces columns as one that reduces rows, of which neighbours lie apart: the order of a reduction
    is the same."""
    if kernel.mode != "col":
        return call

    def turned(x: Any) -> Any:
        return attrs.evolve(x, pattern="?" if x.pattern[-1] == "1" else x.pattern[-1])

    body = tuple(
        turned(x) if isinstance(x, (Load, IndexValue)) and not isinstance(x, GivenValue) else x for x in kernel.body
    )
    stores = tuple(turned(s) for s in kernel.stores)
    return attrs.evolve(call, kernel=attrs.evolve(kernel, mode="row", body=body, stores=stores))


def _alike(work: Work, x: Touch) -> bool:
    """Whether a step writes each element to a place of its own, and what it reads of what it writes is that place."""
    apart = all(stride or n == 1 for stride, n in zip(x.strides, work.sizes, strict=True))
    return apart and all(y == x for y in work.read if y.buffer == x.buffer)


def _of_loop(call: KernelCall, kernel: LoopKernel) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    loads = [x for x in kernel.body if isinstance(x, (Load, IndexValue))]
    found: tuple[list[Touch], list[Touch]] = [], []
    for i, (x, a) in enumerate(zip((*loads, *kernel.stores), call.accesses, strict=True)):
        if isinstance(x, IndexValue) or a.buffer is None:
            continue
        terms = tuple(stride for stride, top in a.terms if top)
        once = kernel.mode == "map" or (isinstance(x, Store) and x.level == "row") or not a.strides[kernel.rank]
        along = () if once else ((a.strides[kernel.rank], call.sizes[kernel.rank]),)
        strides = a.strides[: kernel.rank]
        found[i >= len(loads)].append(Touch(a.buffer, x.dtype.itemsize, a.offset, strides, along, terms))
    return tuple(found[0]), tuple(found[1])


def _of_dot(call: KernelCall, dot: Dot) -> tuple[tuple[Touch, ...], tuple[Touch, ...]]:
    lhs, rhs, out = call.accesses
    assert lhs.buffer is not None and rhs.buffer is not None and out.buffer is not None
    (lb0, lb1, lm, lk), (rb0, rb1, rk, rn) = lhs.strides, rhs.strides
    sizes = [item_size(x) for x in (dot.spec.lhs, dot.spec.rhs, dot.spec.out)]
    return (
        Touch(lhs.buffer, sizes[0], lhs.offset, (lb0, lb1, lm, 0), ((lk, dot.k),), ()),
        Touch(rhs.buffer, sizes[1], rhs.offset, (rb0, rb1, 0, rn), ((rk, dot.k),), ()),
    ), (Touch(out.buffer, sizes[2], out.offset, out.strides, (), ()),)


@attrs.frozen
class Apart:
    """So many rows that are apart, the steps (by number) that are ``split`` into them, and the bytes from one to the
    next of what these write. What others write has no rows."""

    rows: int
    split: frozenset[int]
    nbytes: dict[int, int]


def ways_apart(works: Sequence[Work]) -> Iterator[Apart]:
    """All numbers of rows that steps can be split into; the last is 1, which splits nothing."""
    counts = {w.sizes[w.outermost] for w in works if w.sizes}
    for rows in sorted(counts - {1}, reverse=True):
        found = _apart(works, rows)
        if found is not None:
            yield found
    yield Apart(1, frozenset(), {})


def _apart(works: Sequence[Work], rows: int) -> Apart | None:
    """A step is not split where others would then read of other rows what it writes. None where none is left."""
    written = {b for w in works for b in w.writes}
    split = {i for i, w in enumerate(works) if w.splits(rows)}
    while split:
        once = {b for i, w in enumerate(works) if i not in split for b in w.writes}
        nbytes: dict[int, int] = {}
        wrong = next(_crossing(works, split, written, once, rows, nbytes), None)
        if wrong is None:
            return Apart(rows, frozenset(split), nbytes)
        writers = {i for i in split if wrong in works[i].writes}
        if not writers:
            return None
        split -= writers
    return None


def _crossing(
    works: Sequence[Work], split: AbstractSet[int], written: AbstractSet[int], once: AbstractSet[int], rows: int,
    nbytes: dict[int, int],
) -> Iterator[int]:  # fmt: skip
    """What is written, and would be read or written across rows. Notes in ``nbytes`` what is written by rows."""
    for i, work in enumerate(works):
        for x, is_written in _touches(work):
            if x.buffer not in written or (x.buffer in once and not (is_written and i in split)):
                continue
            row = _row(work, x, rows) if i in split and x.buffer not in once else None
            if row is None or nbytes.setdefault(x.buffer, row) != row:
                yield x.buffer


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
