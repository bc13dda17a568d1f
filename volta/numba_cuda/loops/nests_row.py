"""Row kernels on a GPU: a group of threads reads a row once and keeps it from one phase to the next.

In registers, if it is short, else in shared memory. Rows that fit neither are read again in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, for_range, if_else, if_then, load_arg, loop, minimum, offset
from volta.emit.passes import Pass, passes_of, result_of
from volta.emit.reducers import BLOCK, LANES, BlockTree, Reducer, State
from volta.numba_cuda.codegen.threads import barrier, block_index, dynamic_shared, new_entry, thread_index
from volta.numba_cuda.loops.nests_body import ThreadEmitter, position, unravel, words_of
from volta.numba_cuda.loops.row_variants import GUARDED, RowVariant, Slot, aligned, width_of
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.numba_cuda.loops.thread_groups import ThreadGroup
from volta.xla_like.kernels import Load, LoopKernel, Reduce

CHAINED = 8
"""Elements of a lonely row's chain that a thread reads at once."""

AHEAD = 16
"""Elements of an operand that a thread reads before it uses them."""


def build_row(module: ir.Module, name: str, kernel: LoopKernel, v: RowVariant) -> ir.Function:
    """A thread group computes a row of a 'row' kernel, or reduces a few blocks of one."""
    function, b = new_entry(module, name, v.threads)
    e = ThreadEmitter(b, function.args[0], kernel, v.narrow)
    threads = ThreadGroup(b, v.shape, thread_index(b), v.threads)
    part, active = None, ir.Constant(ir.IntType(1), 1)
    row = block_index(b)
    if kernel.by_blocks:
        parts = b.udiv(b.add(e.sizes[-1], I64(BLOCK * v.shape.blocks - 1)), I64(BLOCK * v.shape.blocks))
        row, part = b.udiv(row, parts), b.urem(row, parts)
    elif v.groups > 1:
        row = b.add(b.mul(row, I64(v.groups)), threads.slot)
        active = b.icmp_signed("<", row, load_arg(b, e.args, words_of(kernel)))
        row = b.select(active, row, I64(0))
    if v.narrow:
        outer = unravel(b, e.args, words_of(kernel) + 1, row, e.sizes[:-1])
    else:
        outer = e.unravel(row, e.sizes[:-1])
    nest = LonelyRow if v.spread else RegisterRow if v.length else LongRow
    nest(e, threads, outer, active, v, part).emit()
    b.ret_void()
    return function


class RowNest:
    """A row, as one thread of its group runs it."""

    def __init__(
        self, e: ThreadEmitter, threads: ThreadGroup, outer: Sequence[ir.Value], active: ir.Value, v: RowVariant,
        part: ir.Value | None,
    ) -> None:  # fmt: skip
        self.e, self.b, self.threads, self.active, self.v, self.part = e, e.b, threads, active, v, part
        self.shape = v.shape
        self.passes = passes_of(e)
        self.row, self.stores = e.row_bases(outer)

    def emit(self) -> None:
        e, b = self.e, self.b
        self.once: dict[int, Value] = {}
        states: dict[int, State] = {}
        self._once(0)
        for phase, p in enumerate(self.passes):
            self.phase = phase
            found = self.run(p)
            for i, state in zip(p.reduces, found, strict=True):
                states[i] = state
                self.once[i] = result_of(e, p, i, state)
            self._once(phase + 1)
        with if_then(b, b.and_(self.active, self.threads.first)):
            for k, s in enumerate(e.kernel.stores):
                if s.level == "row":
                    base, value = self.stores[k], self.once[s.value]
                    if self.part is not None:
                        base = offset(b, base, b.mul(self.part, e.places[len(e.memory) + k].strides[-1]))
                        value = states[s.value][s.part]
                    e.store(k, s, value, 1, base, None, self.once)

    def run(self, p: Pass) -> list[State]:
        """One pass over the row; the states of its reductions."""
        raise NotImplementedError

    def _once(self, phase: int) -> None:
        self.e.evaluate(self.e.invariant(phase), self.once, 1, self.row, None)

    # -- pieces of a pass ----------------------------------------------------------------------------------------------

    def identities(self, reducers: Sequence[Reducer]) -> list[list[State]]:
        many = ThreadBuilder(self.b, self.shape.lanes)
        return [[r.identity(many) for r in reducers] for _ in range(self.shape.share)]

    def step(
        self, p: Pass, reducers: Sequence[Reducer], totals: list[list[State]],
        places: Sequence[tuple[int, ir.Value, ir.Value | None]], kept: Sequence[dict[int, Value]],
    ) -> list[list[State]]:  # fmt: skip
        """Go on over some groups of elements: ``places`` are (group, index, whether inside or None), in order."""
        b, lanes = self.b, self.shape.lanes
        self.begin(p, places, kept)
        many = ThreadBuilder(b, lanes)
        for (group, reduced, inside), values in zip(places, kept, strict=True):
            for n, element in enumerate(self.elements(p, reducers, values, reduced)):
                old = totals[group][n]
                new = reducers[n].combine(many, old, element)
                if inside is not None:
                    keep = many.splat(Builder(b, 1).value(inside, "bool"))
                    new = tuple(many.select(keep, y, z) for y, z in zip(new, old, strict=True))
                totals[group][n] = new
        if p.stores:
            for (_, reduced, inside), values in zip(places, kept, strict=True):
                self.store_elements(p, values, reduced, inside)
        return totals

    def begin(
        self, p: Pass, places: Sequence[tuple[int, ir.Value, ir.Value | None]], kept: Sequence[dict[int, Value]]
    ) -> None:
        """Read what a pass reads of some groups of elements."""
        e, b, lanes = self.e, self.b, self.shape.lanes
        loads = [i for i, x in enumerate(e.kernel.body) if i in p.which and isinstance(x, Load) and not x.terms]
        for (_, reduced, inside), values in zip(places, kept, strict=True):
            values.update(self.once)
            if self.v.careful:
                wanted = self.active if inside is None else b.and_(inside, self.active)
                e.read_if(wanted, loads, values, lanes, self.row, reduced)
            else:
                e.evaluate(loads, values, lanes, self.row, reduced)

    def elements(
        self, p: Pass, reducers: Sequence[Reducer], values: dict[int, Value], reduced: ir.Value
    ) -> list[State]:  # fmt: skip
        """A group's values that a pass computes, and its elements as each reduction takes them."""
        e, b, lanes = self.e, self.b, self.shape.lanes
        many, out = ThreadBuilder(b, lanes), []
        e.evaluate(p.which, values, lanes, self.row, reduced)
        for n, i in enumerate(p.reduces):
            x = e.kernel.body[i]
            assert isinstance(x, Reduce)
            where = partial(position, b, reduced, lanes)
            out.append(reducers[n].element(many, e._widened(values[x.arg], many), where))
        return out

    def store_elements(self, p: Pass, values: dict[int, Value], reduced: ir.Value, inside: ir.Value | None) -> None:
        e, b = self.e, self.b
        wanted = self.active if inside is None else b.and_(inside, self.active)
        with if_then(b, wanted):
            for k in p.stores:
                s = e.kernel.stores[k]
                e.store(k, s, values[s.value], self.shape.lanes, self.stores[k], reduced, values)

    def bounded(self, reduced: ir.Value, stop: ir.Value) -> tuple[ir.Value, ir.Value]:
        """An index and whether it is below ``stop``; beyond that the last group is computed, and forgotten."""
        inside = self.b.icmp_signed("<", reduced, stop)
        return self.b.select(inside, reduced, self.b.sub(stop, I64(self.shape.lanes))), inside


class RegisterRow(RowNest):
    """A row of known length, all of it in registers."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.kept: dict[tuple[int, int], dict[int, Value]] = {}

    def _places(self, row: int) -> Iterator[tuple[int, ir.Value, ir.Value | None]]:
        """A thread's groups among the elements 64 row … 64 row + 63 of its block."""
        b, s, n = self.b, self.shape, self.v.length
        last = BLOCK * (s.blocks - 1) + LANES * row
        for group in range(s.share):
            if last + s.lanes * s.threads * group >= n:
                break
            reduced = b.add(self.threads.place(group), I64(LANES * row))
            if s.blocks > 1:
                reduced = b.add(reduced, b.shl(self.threads.block, I64(BLOCK.bit_length() - 1)))
            if last + s.lanes * s.threads * (group + 1) <= n:
                yield group, reduced, None
            else:
                reduced, inside = self.bounded(reduced, I64(n))
                yield group, reduced, inside

    def run(self, p: Pass) -> list[State]:
        reducers = [p.reducers[i] for i in p.reduces]
        totals = self.identities(reducers)
        rows = -(-min(self.v.length, BLOCK) // LANES)
        if not (p.reduces or p.stores):
            return []
        ahead = max(1, AHEAD // (self.shape.lanes * self.shape.share))
        for first in range(0, rows, ahead):
            places, kept = [], []
            for row in range(first, min(first + ahead, rows)):
                for place in self._places(row):
                    places.append(place)
                    kept.append(self.kept.setdefault((row, place[0]), {}))
            totals = self.step(p, reducers, totals, places, kept)
        if not p.reduces:
            return []
        there = -(-self.v.length // (self.shape.lanes * self.shape.threads))  # groups that got an element
        states = self.threads.across(reducers, totals[:there])
        return self.threads.tree(reducers, states, None)


class LonelyRow(RowNest):
    """A row of known length that a block of threads has for itself: each computes a few elements, and leaves them in
    shared memory, where each 64 threads reduce all of them."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        b, spread, length = self.b, self.v.spread, self.v.length
        self.threads.first = b.icmp_signed("==", self.threads.thread, I64(0))
        self.places: list[tuple[int, ir.Value, ir.Value | None]] = []
        for first in range(0, length, spread):
            index, inside = b.add(self.threads.thread, I64(first)), None
            if first + spread > length:
                index, inside = self.bounded(index, I64(length))
            self.places.append((0, index, inside))
        self.kept: list[dict[int, Value]] = [{} for _ in self.places]

    def run(self, p: Pass) -> list[State]:
        reducers = [p.reducers[i] for i in p.reduces]
        if not (p.reduces or p.stores):
            return []
        if not self.phase:  # what later passes read is on its way from the start
            every = sorted({i for x in self.passes for i in x.which})
            self.begin(attrs.evolve(p, which=every), self.places, self.kept)
        for values in self.kept:
            values.update(self.once)
        areas = self._areas(reducers)
        for (_, index, inside), values in zip(self.places, self.kept, strict=True):
            wanted = ir.Constant(ir.IntType(1), 1) if inside is None else inside
            elements = self.elements(p, reducers, values, index)
            with if_then(self.b, wanted):
                for state, own in zip(elements, areas, strict=True):
                    for x, area in zip(state, own, strict=True):
                        self._builder.store(x, self._at(area, x, index))
            if p.stores:
                self.store_elements(p, values, index, inside)
        if not p.reduces:
            return []
        barrier(self.b)
        return self.threads.across(reducers, [self._chains(reducers, areas)])

    @property
    def _builder(self) -> ThreadBuilder:
        return ThreadBuilder(self.b, 1)

    def _at(self, area: int, x: Value, index: ir.Value) -> ir.Value:
        b = self.b
        return offset(b, dynamic_shared(b.module, b), b.add(I64(area), b.mul(index, I64(item_size(x.dtype)))))

    def _areas(self, reducers: Sequence[Reducer]) -> list[list[int]]:
        """Where the elements' states lie, part by part."""
        out, end = [], 0
        for r in reducers:
            own = []
            for dtype in r.state_dtypes:
                own.append(end)
                end += aligned(self.v.length * item_size(dtype))
            out.append(own)
        return out

    def _chains(self, reducers: Sequence[Reducer], areas: Sequence[Sequence[int]]) -> list[State]:
        """The thread's lane of the sum: its elements in ascending order."""
        b, length = self.b, self.v.length
        rows, lane = -(-length // LANES), b.and_(self.threads.thread, I64(LANES - 1))
        start = [r.identity(self._builder) for r in reducers]
        dtypes = [x.dtype for state in start for x in state]

        def states(flat: Sequence[ir.Value]) -> list[State]:
            values = iter(self._builder.value(x, d) for x, d in zip(flat, dtypes, strict=True))
            return [tuple(next(values) for _ in r.state_dtypes) for r in reducers]

        with loop(b, 0, rows, CHAINED, [x.ir for state in start for x in state], some=True) as it:
            now, found = states(it.values), []
            for i in range(CHAINED):
                index = b.add(b.mul(b.add(it.index, I64(i)), I64(LANES)), lane)
                index, inside = self.bounded(index, I64(length))
                loaded = [
                    tuple(self._builder.load(self._at(a, x, index), x.dtype) for a, x in zip(own, state, strict=True))
                    for own, state in zip(areas, now, strict=True)
                ]
                found.append((inside, loaded))
            for inside, loaded in found:
                keep = self._builder.value(inside, "bool")
                joined = [r.combine(self._builder, x, y) for r, x, y in zip(reducers, now, loaded, strict=True)]
                now = [
                    tuple(self._builder.select(keep, y, x) for x, y in zip(old, new, strict=True))
                    for old, new in zip(now, joined, strict=True)
                ]
            it.advance(*[x.ir for state in now for x in state])
        return states(it.results)


class LongRow(RowNest):
    """A row of any length, or a part of one: the group's blocks side by side, then the next ones.

    If it is a single round, values may be kept in shared memory; each thread reads only what it wrote there.
    """

    def run(self, p: Pass) -> list[State]:
        e, b, side = self.e, self.b, self.shape.blocks
        length, span = e.sizes[-1], BLOCK * side
        reducers = [p.reducers[i] for i in p.reduces]
        if not (p.reduces or p.stores):
            return []
        if self.part is not None:
            return self._blocks(p, reducers, b.mul(self.part, I64(span)), length)
        if self.v.single:
            return self._blocks(p, reducers, I64(0), length)
        trees = [BlockTree(b, r, 1) for r in reducers]
        for tree in trees:
            tree.start()
        with for_range(b, 0, length, span) as start:
            for tree, state in zip(trees, self._blocks(p, reducers, start, length), strict=True):
                tree.push(state, b.lshr(start, I64(span.bit_length() - 1)))
            if p.reduces:
                barrier(b)  # what was exchanged is read before the next round writes
        return [tree.finish() for tree in trees]

    def _blocks(self, p: Pass, reducers: Sequence[Reducer], start: ir.Value, length: ir.Value) -> list[State]:
        """The states of up to `blocks` blocks from an element on."""
        b = self.b
        first = b.add(start, b.mul(self.threads.block, I64(BLOCK)))
        stop = minimum(b, b.add(first, I64(BLOCK)), length)
        identity = self._flat(self.identities(reducers))
        ahead = max(1, AHEAD // (self.shape.lanes * self.shape.share))
        whole = b.icmp_signed("==", b.sub(stop, first), I64(BLOCK))
        with if_else(b, whole) as branch:
            with branch.then():
                branch.give(*self._walk(p, reducers, first, stop, identity, ahead, False))
            with branch.otherwise():
                branch.give(*self._walk(p, reducers, first, stop, identity, GUARDED, True))
        if not p.reduces:
            return []
        states = self.threads.across(reducers, self._deep(reducers, branch.results))
        count = b.lshr(b.add(b.sub(length, start), I64(BLOCK - 1)), I64(BLOCK.bit_length() - 1))
        return self.threads.tree(reducers, states, count)

    def _walk(self, p: Pass, reducers: Sequence[Reducer], first: ir.Value, stop: ir.Value,
              identity: Sequence[ir.Value], ahead: int, guarded: bool) -> list[ir.Value]:  # fmt: skip
        b = self.b
        with loop(b, first, stop, LANES * ahead, identity) as it:
            totals = self._deep(reducers, it.values)
            places: list[tuple[int, ir.Value, ir.Value | None]] = []
            kept: list[dict[int, Value]] = []
            for row in range(ahead):
                for group in range(self.shape.share):
                    reduced = b.add(it.index, b.add(self.threads.place(group), I64(LANES * row)))
                    inside = None
                    if guarded:
                        reduced, inside = self.bounded(reduced, stop)
                    places.append((group, reduced, inside))
                    kept.append(self._recall(b.add(it.index, I64(LANES * row)), first))
            totals = self.step(p, reducers, totals, places, kept)
            for row, values in enumerate(kept):
                index = b.add(it.index, I64(LANES * row))
                self._keep(index, first, stop if guarded else None, values)
            it.advance(*self._flat(totals))
        return it.results

    def _place(self, slot: Slot, index: ir.Value, first: ir.Value) -> ir.Value:
        b, v = self.b, self.v
        width = width_of(v.slots) * self.shape.lanes
        row = b.add(b.lshr(b.sub(index, first), I64(LANES.bit_length() - 1)), I64(slot.place * v.rows))
        at = b.mul(b.add(b.mul(row, I64(v.threads)), self.threads.thread), I64(width))
        return offset(b, dynamic_shared(b.module, b), at)

    def _recall(self, index: ir.Value, first: ir.Value) -> dict[int, Value]:
        many = ThreadBuilder(self.b, self.shape.lanes)
        return {
            s.value: many.load(self._place(s, index, first), s.dtype)
            for s in self.v.slots
            if s.first < self.phase <= s.last
        }

    def _keep(self, index: ir.Value, first: ir.Value, stop: ir.Value | None, values: dict[int, Value]) -> None:
        """Store what this pass is the first to compute; only below ``stop`` is there memory."""
        b, found = self.b, [s for s in self.v.slots if s.first == self.phase]
        if found:
            with if_then(b, ir.Constant(ir.IntType(1), 1) if stop is None else b.icmp_signed("<", index, stop)):
                for s in found:
                    many = ThreadBuilder(b, self.shape.lanes)
                    many.store(self.e._widened(values[s.value], many), self._place(s, index, first))

    def _flat(self, totals: Sequence[Sequence[State]]) -> list[ir.Value]:
        return [x.ir for states in totals for state in states for x in state]

    def _deep(self, reducers: Sequence[Reducer], flat: Sequence[ir.Value]) -> list[list[State]]:
        many, values = ThreadBuilder(self.b, self.shape.lanes), iter(flat)
        return [
            [tuple(many.value(next(values), d) for d in r.state_dtypes) for r in reducers]
            for _ in range(self.shape.share)
        ]
