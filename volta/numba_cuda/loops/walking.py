"""Maps that read what is moved: a thread takes a group of neighbouring elements in a few rows that follow one another.

What reads by an index (rolls, paddings, parts that are put together) computes where that is and whether it is in range.
A thread that walks down its columns computes this once for all of its rows, reads once what is the same for them, and
finds the rows above and below where its neighbours have just read them.

Of a group whose neighbours all are in range of a load by an index, or none of which is, the first one's index tells
where they are read: from there on, side by side. Few groups are others; they are computed one element after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I1, I32, I64, for_range, if_else, if_then, minimum, offset
from volta.numba_cuda.codegen.threads import block_index, new_entry, product, thread_index
from volta.numba_cuda.loops.nests_body import (
    SMALL,
    ThreadEmitter,
    accesses_of,
    division_words,
    is_narrow,
    narrowed,
    unravel,
    widest,
    words_of,
)
from volta.numba_cuda.processors import filling
from volta.xla_like.kernels import GivenValue, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.phases import Analysis, analyse, operands
from volta.xla_like.views import prod

THREADS = 256

RESIDENT = 4
"""Blocks of threads that a multiprocessor holds: 64 registers a thread, as addresses of several rows take many."""

LANES = 4
"""Neighbouring elements in a group, where every other access allows it."""

ROWS = 8
"""Rows that a thread walks, where there are so many."""

TOGETHER, FEW_LOADS = 2, 5
"""Rows that are read before the first of them is computed, and up to how many loads: more are enough in flight."""

FILLED = 1 << 22
"""Elements from which a thread walks several rows: below, more threads hide more of the latency."""


@attrs.frozen
class Walk:
    """How a map is walked: neighbours in a group, and rows a thread (1: there is no such dimension, or it is not known
    that ranges are the same for all rows). ``steady`` are the accesses that are the same for all rows, by their number.
    ``beside``: loads by an index read neighbours side by side."""

    lanes: int
    rows: int
    steady: tuple[int, ...]
    beside: bool

    def suffix(self) -> str:
        return f"walk{self.lanes}x{self.rows}{'b' * self.beside}{''.join(f'_{k}' for k in self.steady)}"


def choose_walk(call: KernelCall, costly: bool) -> Walk | None:
    """How a map is walked, if it reads what is moved (and by an index, if it is costly to compute)."""
    kernel = call.kernel
    assert isinstance(kernel, LoopKernel)
    sizes = call.sizes[: kernel.rank]
    accesses, analysis = accesses_of(kernel, call.accesses), analyse(kernel.mode, kernel.body)
    moved = [(x, a) for x, a in accesses if isinstance(x, Load) and x.terms]
    if not moved or not is_narrow(call) or prod(sizes) > SMALL - THREADS * LANES * ROWS:
        return None
    by_index = [(x, a) for x, a in moved if any(analysis.spread[t] for t in x.terms)]
    beside = bool(by_index) and all(_is_beside(kernel, x, a.terms, analysis) for x, a in by_index)
    if not beside and (by_index or costly):
        return None
    steady = {k for k, (_, a) in enumerate(accesses) if kernel.rank > 1 and a.strides[kernel.rank - 2] == 0}
    number = {i: k for k, i in enumerate(i for i, x in enumerate(kernel.body) if isinstance(x, (Load, IndexValue)))}
    ranges = {number[t] for x, _ in by_index for t in x.terms if analysis.spread[t]}
    several = kernel.rank > 1 and ranges <= steady and prod(sizes) >= filling(FILLED)
    if not beside and not several:
        return None
    lanes = widest(call, sizes[-1], kernel.rank - 1, LANES)
    return Walk(lanes, min(ROWS, sizes[-2]), tuple(sorted(steady)), beside) if several else Walk(lanes, 1, (), beside)


def _is_beside(kernel: LoopKernel, x: Load, terms: Sequence[tuple[int, int]], analysis: Analysis) -> bool:
    """Whether a load by an index reads neighbours side by side, where all are in range."""
    spread = [(kernel.body[t], stride) for t, (stride, _) in zip(x.terms, terms, strict=True) if analysis.spread[t]]
    if len(spread) != 1 or x.pattern[0] != "0":
        return False
    term, stride = spread[0]
    if not isinstance(term, IndexValue) or isinstance(term, GivenValue):
        return False
    return term.dtype.name in ("int32", "int64") and term.pattern[0] == "1" and stride == x.dtype.itemsize


def _shared_out(call: KernelCall, v: Walk) -> list[int]:
    """The map's dimensions, counted in groups of neighbours and of rows."""
    sizes = list(call.sizes[: call.kernel.rank])  # type: ignore[union-attr]  # a loop kernel
    sizes[-1] //= v.lanes
    if v.rows > 1:
        sizes[-2] = -(-sizes[-2] // v.rows)
    return sizes


def grid_of_walk(call: KernelCall, v: Walk) -> int:
    return -(-prod(_shared_out(call, v)) // THREADS)


def extra_words(call: KernelCall, v: Walk) -> list[int]:
    """What the kernel's args hold beyond a call's own: how to divide by the sizes."""
    return division_words(_shared_out(call, v))


class WalkEmitter(ThreadEmitter):
    """A body whose loads by an index read ``beside`` one another, while it is emitted for groups that allow it."""

    def __init__(self, b: ir.IRBuilder, own: ir.Value, kernel: LoopKernel, by_index: bool) -> None:
        super().__init__(b, own, kernel, narrow=True)
        self.beside = False
        self._by_index = {i: x for i, x in enumerate(kernel.body) if by_index and self._reads_by_index(x)}
        self._elsewhere = self._only_elsewhere()

    def _reads_by_index(self, x: object) -> bool:
        return isinstance(x, Load) and any(self.analysis.spread[t] for t in x.terms)

    def _only_elsewhere(self) -> set[int]:
        """The loads by an index that nothing reads but others, where those are out of range."""
        used = {v for s in self.kernel.stores for v in (s.value, *s.terms)}
        for i, x in enumerate(self.kernel.body):
            other = x.other if i in self._by_index and isinstance(x, Load) else None
            used |= {v for v in operands(x) if v != other}
        return set(self._by_index) - used

    def fits(self, row: Mapping[int, ir.Value], index: ir.Value, lanes: int) -> ir.Value:
        """Whether of a group's neighbours all are in range of each load by an index, or none."""
        b, fits, last = self.b, I1(True), I32(lanes - 1)
        for i in self._by_index:
            first, top = self._first(i, row, index)
            some = b.icmp_unsigned("<=", b.add(first, last), b.add(top, last))
            fits = b.and_(fits, b.or_(self._every(first, top, lanes), b.not_(some)))
        return fits

    def _every(self, first: ir.Value, top: ir.Value, lanes: int) -> ir.Value:
        """Whether all of a group that begins at an index are in range."""
        places = self.b.neg(minimum(self.b, self.b.sub(I32(lanes - 2), top), 0))
        return self.b.icmp_unsigned("<", first, places)

    def _first(self, i: int, row: Mapping[int, ir.Value], index: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where a group begins by the index of a load, and the largest index in range."""
        place = self.places[self.memory.index(i)]
        terms = zip(self._by_index[i].terms, place.terms, strict=True)  # type: ignore[union-attr]  # a load
        term, top = next((t, top) for t, (_, top) in terms if self.analysis.spread[t])
        return self.b.add(self.b.trunc(row[term], I32), self.b.trunc(index, I32)), self.b.trunc(top, I32)

    def evaluate(
        self, which: Sequence[int], values: dict[int, Value], lanes: int, row: dict[int, ir.Value],
        vector_index: ir.Value | None, reduced_index: ir.Value | None = None,
    ) -> None:  # fmt: skip
        if self.beside:
            which = [i for i in which if i not in self._elsewhere]
        super().evaluate(which, values, lanes, row, vector_index, reduced_index)

    def _load(
        self, i: int, x: Load, values: dict[int, Value], b: Builder, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        if not self.beside or i not in self._by_index or index is None:
            return super()._load(i, x, values, b, row, index, reduced)
        pointer, inside, last = self._where(i, x, values, b.lanes, row, index)
        with if_else(self.b, inside) as branch:
            with branch.then():
                found = b.load(pointer, x.dtype.name, x.dtype.itemsize)
                branch.give(found.ir)
            with branch.otherwise():
                if last.other is not None and last.other not in values:
                    there = self._value(last.other, values, b.lanes, row, index, reduced)
                    values = {**values, last.other: there}
                nothing = b.value(ir.Constant(found.ir.type, None), found.dtype)
                branch.give(self.filled(nothing, b.const("bool", False), last, b, values).ir)
        return b.value(branch.results[0], found.dtype)

    def _where(
        self, i: int, x: Load, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value
    ) -> tuple[ir.Value, ir.Value, Load]:  # fmt: skip
        """Where a group is read of which all are in range or none, whether they are, and the load that says what is
        elsewhere. Where another load by an index is, one place is chosen, and read."""
        b, pointer, inside = self.b, row[i], I1(True)
        for t, (stride, top) in zip(x.terms, self.places[self.memory.index(i)].terms, strict=True):
            if self.analysis.spread[t]:
                at, top = self._first(i, row, index)
                fits, stride = self._every(at, top, lanes), I64(x.dtype.itemsize)
            else:
                at, top = Builder(b, 1).cast(values[t], "int32").ir, b.trunc(top, I32)
                fits = b.icmp_unsigned("<=", at, top)
            inside = b.and_(inside, fits)
            pointer = offset(b, pointer, b.mul(b.sext(at, I64), stride))
        other = None if x.other is None else self._by_index.get(x.other)
        if isinstance(other, Load) and x.other is not None and other.dtype == x.dtype:
            there, also, last = self._where(x.other, other, values, lanes, row, index)
            return b.select(inside, pointer, there), b.or_(inside, also), last
        return pointer, inside, x


def build_walk(module: ir.Module, name: str, kernel: LoopKernel, v: Walk) -> ir.Function:
    """A thread computes a group of neighbours in each of its rows."""
    function, b = new_entry(module, name, THREADS, RESIDENT)
    e = WalkEmitter(b, function.args[0], kernel, v.beside)
    dims = list(e.sizes[: kernel.rank])
    dims[-1] = b.lshr(dims[-1], I64(v.lanes.bit_length() - 1))
    rows = dims[-2] if v.rows > 1 else I64(1)
    if v.rows > 1:
        dims[-2] = narrowed(b, b.udiv(b.add(rows, I64(v.rows - 1)), I64(v.rows)))
    linear = b.add(b.mul(block_index(b), I64(THREADS)), thread_index(b))
    which = e.pass_values([s.value for s in kernel.stores])
    stores = range(len(e.memory), len(e.places))
    steady = {e.memory[k] for k in v.steady if k not in stores}
    alike = [i for i in which if i in steady and isinstance(x := kernel.body[i], Load) and not x.terms]

    with if_then(b, b.icmp_signed("<", linear, product(b, dims))):
        *outer, index = unravel(b, e.args, words_of(kernel), linear, dims)
        index = narrowed(b, b.shl(index, I64(v.lanes.bit_length() - 1)))
        first = narrowed(b, b.mul(outer.pop(), I64(v.rows))) if v.rows > 1 else I64(0)
        stop = minimum(b, b.add(first, I64(v.rows)), rows)
        bases, targets = e.row_bases(outer)

        def moved(k: int, base: ir.Value, row: ir.Value) -> ir.Value:
            """Where an access begins in a row."""
            if v.rows == 1 or k in v.steady:
                return base
            step = b.mul(row, e.places[k].strides[kernel.rank - 2])
            return b.add(base, step) if base.type == I64 else offset(b, base, step)

        def element(row: ir.Value, index: ir.Value, lanes: int, known: Mapping[int, Value]) -> Callable[[], None]:
            """Compute a group in a row; what is returned writes it."""
            row = narrowed(b, row)
            here = {i: moved(k, base, row) for k, (i, base) in enumerate(bases.items())}
            values = dict(known)
            e.evaluate(e.invariant(), values, 1, here, None)
            e.evaluate(which, values, lanes, here, index)

            def write() -> None:
                for number, (k, s) in enumerate(zip(stores, kernel.stores, strict=True)):
                    e.store(number, s, values[s.value], lanes, moved(k, targets[number], row), index, values)

            return write

        def together() -> None:
            known: dict[int, Value] = {}
            e.evaluate(alike, known, v.lanes, bases, index)
            some = min(TOGETHER, v.rows) if sum(isinstance(x, Load) for x in kernel.body) <= FEW_LOADS else 1
            with for_range(b, first, stop, some) as row:
                last = b.sub(stop, I64(1))  # a row that is computed twice has the same bits
                following = [row, *(minimum(b, b.add(row, I64(k)), last) for k in range(1, some))]
                for write in [element(r, index, v.lanes, known) for r in following]:
                    write()

        def one_by_one() -> None:
            stop_at = minimum(b, b.add(index, I64(v.lanes)), e.sizes[kernel.rank - 1])  # unknown, so not unrolled
            with for_range(b, first, stop) as row, for_range(b, index, stop_at) as at:
                element(row, narrowed(b, at), 1, {})()

        if v.lanes == 1 or not v.beside:
            e.beside = v.beside
            together()
        else:
            with if_else(b, e.fits(bases, index, v.lanes)) as branch:
                with branch.then():
                    e.beside = True
                    together()
                    e.beside = False
                with branch.otherwise():
                    one_by_one()
    b.ret_void()
    return function
