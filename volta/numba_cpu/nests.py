"""Loop nests of kernels with reductions: along the vector dimension ('row') and across it ('col')."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype, item_size
from volta.emit.loops import I64, for_range, loop, minimum, offset
from volta.emit.passes import Pass, passes_of, result_of
from volta.emit.reducers import BLOCK, LANES, BlockTree, State, StateArray, across_lanes, columns_block
from volta.numba_cpu.codegen import KernelEmitter
from volta.numba_cpu.loop_schedule import VectorLoop, columns_of
from volta.xla_like.kernels import Compute, Reduce
from volta.xla_like.phases import needed

LIGHT = 6
"""Bodies of at most this many operations keep all 64 lanes of a sum in registers."""


class RowNest:
    """A 'row' kernel: each task is a row (or a block of one); vectors run along the row."""

    def __init__(self, e: KernelEmitter) -> None:
        self.e, self.b = e, e.b
        self.passes = passes_of(e)
        self.length = e.sizes[-1]
        self.lanes: dict[int, StateArray] = {}
        self.trees: dict[int, BlockTree] = {}
        for p in self.passes:
            for i in p.reduces:
                self.lanes[i] = StateArray(self.b, p.reducers[i], LANES, 1)
                if not e.kernel.by_blocks:
                    self.trees[i] = BlockTree(self.b, p.reducers[i], 1)
        self.computed: set[int] = set()  # spilled values that an earlier pass has written to scratch

    def emit(self) -> None:
        e, b = self.e, self.b
        by_blocks = e.kernel.by_blocks
        blocks = b.sdiv(b.add(self.length, I64(BLOCK - 1)), I64(BLOCK)) if by_blocks else None
        with for_range(b, e.begin, e.end) as task:
            row_number, block = (b.udiv(task, blocks), b.urem(task, blocks)) if blocks is not None else (task, None)
            self.row, stores = e.row_bases(e.unravel(row_number, e.sizes[:-1]))
            self.once: dict[int, Value] = {}
            states: dict[int, State] = {}
            e.evaluate(e.invariant(0), self.once, 1, self.row, None)
            for phase, p in enumerate(self.passes):
                if p.reduces:
                    states.update(self.reduce(p, stores, block))
                    for i in p.reduces:
                        self.once[i] = result_of(e, p, i, states[i])
                elif p.stores:
                    e.vector_loop(I64(0), self.length, partial(self.body, p, stores), self.masked(p))
                e.evaluate(e.invariant(phase + 1), self.once, 1, self.row, None)
            for k, s in enumerate(e.kernel.stores):
                if s.level == "row":
                    base = stores[k]
                    value = self.once[s.value]
                    if block is not None:
                        base = offset(b, base, b.mul(block, e.places[len(e.memory) + k].strides[-1]))
                        value = states[s.value][s.part]
                    e.store(k, s, value, 1, base, None, self.once)
        b.ret_void()

    def masked(self, p: Pass) -> bool:
        return self.e.maskable(p.which, [self.e.kernel.stores[k] for k in p.stores])

    def body(self, p: Pass, stores: list[ir.Value], index: ir.Value, lanes: int) -> dict[int, Value]:
        """Evaluate a pass at an index; write its stores and the values kept for later passes."""
        e = self.e
        values = dict(self.once)
        spills = e.spills
        for i in p.which:
            if i in spills and i in self.computed:
                builder, place, dtype = Builder(self.b, lanes), self._kept(i, index), self._kept_dtype(i)
                values[i] = builder.load(place, dtype) if e.mask is None else builder.load_masked(place, dtype, e.mask)
        e.evaluate(self._still_needed(p, values, p.which), values, lanes, self.row, index)
        for i in p.which:
            if i in spills and i not in self.computed and i in values:
                builder, place, dtype = Builder(self.b, lanes), self._kept(i, index), self._kept_dtype(i)
                if e.mask is None:
                    builder.store(values[i], place, dtype)
                else:
                    builder.store_masked(values[i], place, e.mask, dtype)
        for k in p.stores:
            s = e.kernel.stores[k]
            e.store(k, s, values[s.value], lanes, stores[k], index, values)
        return values

    def _still_needed(self, p: Pass, values: dict[int, Value], which: list[int]) -> list[int]:
        """Values of the pass that are not only behind values read back from scratch."""
        from_scratch = [i for i in which if i in values]
        if not from_scratch:
            return which
        e = self.e
        targets = [x.arg for x in (e.kernel.body[i] for i in p.reduces) if isinstance(x, Reduce)]
        targets += [e.kernel.stores[k].value for k in p.stores]
        return [i for i in needed(e.kernel.body, targets, from_scratch) if e.analysis.varies[i]]

    def _kept_dtype(self, i: int) -> str:
        x = self.e.kernel.body[i]
        assert isinstance(x, Compute)
        return compute_dtype(x.dtype.name)

    def _kept(self, i: int, index: ir.Value) -> ir.Value:
        """Where a kept value of element ``index`` lies in scratch memory (8 bytes an element, one run a value)."""
        b, slot = self.b, self.e.spills.index(i)
        start = b.inttoptr(self.e.scratch, ir.PointerType())
        run = offset(b, start, b.mul(b.mul(self.length, I64(8)), I64(slot)))
        return offset(b, run, b.mul(index, I64(item_size(self._kept_dtype(i)))))

    def reduce(self, p: Pass, stores: list[ir.Value], block: ir.Value | None) -> dict[int, State]:
        b = self.b
        if block is not None:
            start = b.mul(block, I64(BLOCK))
            return self.block(p, stores, start, minimum(b, b.add(start, I64(BLOCK)), self.length))
        for i in p.reduces:
            self.trees[i].start()
        with for_range(b, 0, self.length, BLOCK) as start:
            found = self.block(p, stores, start, minimum(b, b.add(start, I64(BLOCK)), self.length))
            for i in p.reduces:
                self.trees[i].push(found[i], b.lshr(start, I64(BLOCK.bit_length() - 1)))
        self.computed.update(i for i in p.which if i in self.e.spills)
        return {i: self.trees[i].finish() for i in p.reduces}

    def position(self, index: ir.Value, lanes: int) -> Callable[[], Value]:
        builder, one = Builder(self.b, lanes), Builder(self.b, 1)
        return lambda: builder.splat(one.value(index, "int64")) + builder.iota("int64")

    def block(self, p: Pass, stores: list[ir.Value], start: ir.Value, stop: ir.Value) -> dict[int, State]:
        """The states of elements start..stop, which lie in one block."""
        e, b = self.e, self.b
        full = Builder(b, LANES)
        cost = sum(isinstance(e.kernel.body[i], Compute) for i in p.which)
        light = cost + len(p.reduces) <= LIGHT and not p.stores

        def absorb(i: int, values: dict[int, Value], state: State, index: ir.Value, lanes: int) -> State:
            x = e.kernel.body[i]
            assert isinstance(x, Reduce)
            builder, reducer = Builder(b, lanes), p.reducers[i]
            value = values[x.arg]
            value = value if value.builder.lanes == lanes else builder.splat(value)
            return reducer.combine(builder, state, reducer.element(builder, value, self.position(index, lanes)))

        def in_memory(index: ir.Value, lanes: int) -> None:
            values = self.body(p, stores, index, lanes)
            lane = b.and_(index, I64(LANES - 1))
            for i in p.reduces:
                old = self.lanes[i].load(lane, lanes)
                new = absorb(i, values, old, index, lanes)
                if e.mask is not None:  # lanes past the end keep their state
                    builder = Builder(b, lanes)
                    keep = builder.value(e.mask, "bool")
                    new = tuple(builder.select(keep, y, x) for x, y in zip(old, new, strict=True))
                self.lanes[i].store(lane, new)

        identities = {i: p.reducers[i].identity(full) for i in p.reduces}
        if light:
            whole = b.add(start, b.and_(b.sub(stop, start), I64(-LANES)))
            flat = [v.ir for i in p.reduces for v in identities[i]]
            with loop(b, start, whole, LANES, init=flat) as it:
                values = self.body(p, stores, it.index, LANES)
                carried, new = list(it.values), []
                for i in p.reduces:
                    kinds = p.reducers[i].state_dtypes
                    state = tuple(full.value(carried.pop(0), d) for d in kinds)
                    new += [v.ir for v in absorb(i, values, state, it.index, LANES)]
                it.advance(*new)
            results = list(it.results)
            for i in p.reduces:
                kinds = p.reducers[i].state_dtypes
                self.lanes[i].store(0, tuple(full.value(results.pop(0), d) for d in kinds))
            e.vector_loop(whole, stop, in_memory, self.masked(p))
        else:
            for i in p.reduces:
                self.lanes[i].store(0, identities[i])
            e.vector_loop(start, stop, in_memory, self.masked(p))
        return {i: across_lanes(b, p.reducers[i], self.lanes[i].load(0, LANES)) for i in p.reduces}


class ColNest:
    """A 'col' kernel: vectors run across kept elements, each lane reducing its own column."""

    def __init__(self, e: KernelEmitter) -> None:
        self.e, self.b = e, e.b
        self.passes = passes_of(e)
        self.columns, self.length = e.sizes[-2], e.sizes[-1]

    def emit(self) -> None:
        e, b = self.e, self.b
        columns = columns_of(e.kernel)
        chunks = b.sdiv(b.add(self.columns, I64(columns - 1)), I64(columns))
        blocks = b.sdiv(b.add(self.length, I64(BLOCK - 1)), I64(BLOCK)) if e.kernel.by_blocks else None
        with loop(b, e.begin, e.end) as it:
            task, block = it.index, None
            if blocks is not None:
                task, block = b.udiv(task, blocks), b.urem(task, blocks)
            chunk = b.urem(task, chunks)
            if blocks is None:  # neighbouring tasks are one range
                it.step = minimum(b, b.sub(chunks, chunk), b.sub(e.end, task))
            outer = e.unravel(b.udiv(task, chunks), e.sizes[:-2])
            start = b.mul(chunk, I64(columns))
            stop = minimum(b, b.add(start, b.mul(it.step, I64(columns))), self.columns)
            self.row, self.stores = e.row_bases(outer)
            which = [i for p in self.passes for i in p.which] + e.invariant()
            masked = e.maskable(which, e.kernel.stores)
            e.vector_loop(start, stop, lambda index, lanes: self.column(index, lanes, block), masked)
        b.ret_void()

    def column(self, index: ir.Value, lanes: int, block: ir.Value | None) -> None:
        e, b = self.e, self.b
        once: dict[int, Value] = {}
        states: dict[int, State] = {}
        e.evaluate(e.invariant(0), once, lanes, self.row, index)
        for phase, p in enumerate(self.passes):
            if p.reduces or p.stores:
                states.update(self.reduce(p, once, index, lanes, block))
                for i in p.reduces:
                    once[i] = result_of(e, p, i, states[i])
            e.evaluate(e.invariant(phase + 1), once, lanes, self.row, index)
        for k, s in enumerate(e.kernel.stores):
            if s.level == "row":
                base, value = self.stores[k], once[s.value]
                if block is not None:
                    base = offset(b, base, b.mul(block, e.places[len(e.memory) + k].strides[-1]))
                    value = states[s.value][s.part]
                e.store(k, s, value, lanes, base, index, once)

    def reduce(
        self, p: Pass, once: dict[int, Value], index: ir.Value, lanes: int, block: ir.Value | None
    ) -> dict[int, State]:
        b = self.b
        arrays = {i: StateArray(b, p.reducers[i], LANES, lanes) for i in p.reduces}
        if block is not None:
            start = b.mul(block, I64(BLOCK))
            stop = minimum(b, b.add(start, I64(BLOCK)), self.length)
            return self.block(p, once, arrays, index, lanes, start, stop)
        trees = {i: BlockTree(b, p.reducers[i], lanes) for i in p.reduces}
        for tree in trees.values():
            tree.start()
        with for_range(b, 0, self.length, BLOCK) as start:
            stop = minimum(b, b.add(start, I64(BLOCK)), self.length)
            found = self.block(p, once, arrays, index, lanes, start, stop)
            for i, tree in trees.items():
                tree.push(found[i], b.lshr(start, I64(BLOCK.bit_length() - 1)))
        return {i: tree.finish() for i, tree in trees.items()}

    def block(
        self, p: Pass, once: dict[int, Value], arrays: dict[int, StateArray], index: ir.Value, lanes: int,
        start: ir.Value, stop: ir.Value,
    ) -> dict[int, State]:  # fmt: skip
        e, b = self.e, self.b
        builder = Builder(b, lanes)

        def elements(reduced: ir.Value) -> list[State]:
            values = dict(once)
            e.evaluate(p.which, values, lanes, self.row, index, reduced)
            for k in p.stores:
                s = e.kernel.stores[k]
                e.store(k, s, values[s.value], lanes, self.stores[k], index, values, reduced)
            position = builder.splat(Builder(b, 1).value(reduced, "int64"))
            out = []
            for i in p.reduces:
                x = e.kernel.body[i]
                assert isinstance(x, Reduce)
                value = values[x.arg]
                value = value if value.builder.lanes == lanes else builder.splat(value)
                out.append(p.reducers[i].element(builder, value, lambda: position))
            return out

        reducers, states = [p.reducers[i] for i in p.reduces], [arrays[i] for i in p.reduces]
        found = columns_block(b, reducers, states, lanes, start, stop, elements, lane_by_lane=bool(e.wide))
        return dict(zip(p.reduces, found, strict=True))


def build_loop(module: ir.Module, name: str, kernel: VectorLoop) -> ir.Function:
    """Add the function of a loop kernel to a module."""
    e = KernelEmitter(module, name, kernel)
    if kernel.mode == "map":
        e.emit_map()
    elif kernel.mode == "row":
        RowNest(e).emit()
    else:
        ColNest(e).emit()
    return e.function
