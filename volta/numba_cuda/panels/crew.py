"""Panels of LU and QR that no block of threads can hold: they stay in memory, and a thread works on every so many-th
element of a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, if_then, load_args, loop, minimum
from volta.emit.panel_tasks import ARRAYS, run_task
from volta.emit.panels import Lanes, at
from volta.emit.reducers import LANES, Reducer, State
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    new_entry,
    shared_memory,
    shuffle_xor,
    thread_index,
)
from volta.xla_like.panels import Panel, PanelSpec

_MOST = 1024
"""Threads of a block at most."""

AT_ONCE = 4
"""Elements that a thread asks memory for before it works on the first."""


@attrs.frozen
class _Element:
    """A thread's element of a column."""

    builder: Builder
    index: ir.Value

    @property
    def number(self) -> Value:
        return self.builder.value(self.index, "int64")

    def load(self, column: ir.Value, dtype: str) -> Value:
        return self.builder.load(at(self.builder.irbuilder, column, self.index, dtype), dtype)

    def store(self, x: Value, column: ir.Value) -> None:
        self.builder.store(x, at(self.builder.irbuilder, column, self.index, x.dtype))


class _Block:
    """A block of threads as a crew."""

    def __init__(self, b: ir.IRBuilder, name: str, threads: int, dtype: str) -> None:
        self.b, self.name, self.threads, self.dtype = b, name, threads, dtype
        self.one, self.thread = Builder(b, 1), thread_index(b)
        self.lane, self.warp = b.and_(self.thread, I64(WARP - 1)), b.lshr(self.thread, I64(WARP.bit_length() - 1))

    def _strided(
        self, start: ir.Value, stop: ir.Value, step: int, body: Callable[..., Sequence[ir.Value]],
        init: Sequence[ir.Value] = (),
    ) -> list[ir.Value]:  # fmt: skip
        """``body(indices, *values)`` for some indices at once, then for those that are left one by one; gives the next
        values."""
        b, wide = self.b, AT_ONCE * step
        with loop(b, start, b.sub(stop, I64(wide - step)), wide, [start, *init]) as it:
            found = body([b.add(it.index, I64(k * step)) for k in range(AT_ONCE)], *it.values[1:])
            it.advance(b.add(it.index, I64(wide)), *found)
        begin, *values = it.results
        with loop(b, begin, stop, step, values) as it:
            it.advance(*body([it.index], *it.values))
        return it.results

    def _elements(self, indices: Sequence[ir.Value]) -> list[_Element]:
        return [_Element(self.one, i) for i in indices]

    def each(
        self, start: ir.Value | int, stop: ir.Value, body: Callable[[Sequence[Lanes]], None], together: int = 1
    ) -> None:
        first = self.b.add(self.thread, I64(start) if isinstance(start, int) else start)
        with loop(self.b, first, stop, self.threads) as it:
            body([_Element(self.one, it.index)])

    def some(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        with loop(self.b, self.thread, count, self.threads) as it:
            body(it.index)

    @contextmanager
    def alone(self) -> Iterator[None]:
        with if_then(self.b, self.b.icmp_signed("==", self.thread, I64(0))):
            yield

    def meet(self) -> None:
        barrier(self.b)

    def columns(self, start: ir.Value | int, stop: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """A warp has a column."""
        first = self.b.add(self.warp, I64(start) if isinstance(start, int) else start)
        with loop(self.b, first, stop, self.threads // WARP) as it:
            body(it.index)

    def along(self, length: ir.Value, body: Callable[[Sequence[Lanes]], None]) -> None:
        def some(indices: Sequence[ir.Value]) -> list[ir.Value]:
            body(self._elements(indices))
            return []

        self._strided(self.lane, length, WARP, some)

    def sum(self, length: ir.Value, term: Callable[[Lanes], Value], dtype: str) -> Value:
        """A thread has two of the 64 lanes of a SUM; those that got no element hold what changes nothing."""
        one, reducer = self.one, Reducer("sum", dtype)
        nothing = reducer.identity(one)[0]

        def added(indices: Sequence[ir.Value], total: ir.Value) -> list[ir.Value]:
            value = one.value(total, dtype)
            for x in [term(lanes) for lanes in self._elements(indices)]:
                value = value + x
            return [value.ir]

        starts = [self.b.add(self.lane, I64(k * WARP)) for k in range(LANES // WARP)]
        found = [one.value(self._strided(start, length, LANES, added, [nothing.ir])[0], dtype) for start in starts]
        return self._best_of_warp(reducer, (found[0] + found[1],))[0]

    def largest(self, length: ir.Value, values: Callable[[Lanes], Sequence[Value]], dtype: str) -> list[Value]:
        one, reducer = self.one, Reducer("max", dtype)
        nothing = reducer.identity(one)

        def joined(indices: Sequence[ir.Value], *totals: ir.Value) -> list[ir.Value]:
            states: list[State] = [(one.value(x, dtype),) for x in totals]
            for found in [values(lanes) for lanes in self._elements(indices)]:
                states = [reducer.combine(one, state, (y,)) for state, y in zip(states, found, strict=True)]
            return [x[0].ir for x in states]

        found = self._strided(self.lane, length, WARP, joined, [nothing[0].ir] * 2)
        return [self._best_of_warp(reducer, (one.value(x, dtype),))[0] for x in found]

    def _best_of_warp(self, reducer: Reducer, state: State) -> State:
        distance = WARP // 2
        while distance:
            other = tuple(shuffle_xor(self.b, x, distance) for x in state)
            state, distance = reducer.combine(self.one, state, other), distance // 2
        return state

    def first_largest(self, start: ir.Value, stop: ir.Value, column: ir.Value, dtype: str) -> ir.Value:
        b, one, reducer = self.b, self.one, Reducer("argmax", dtype)
        nothing = reducer.identity(one)
        with loop(b, b.add(start, self.thread), stop, self.threads, [x.ir for x in nothing]) as it:
            lanes = _Element(one, it.index)
            before = tuple(one.value(x, d) for x, d in zip(it.values, reducer.state_dtypes, strict=True))
            it.advance(*(x.ir for x in reducer.combine(one, before, (abs(lanes.load(column, dtype)), lanes.number))))
        own = tuple(one.value(x, d) for x, d in zip(it.results, reducer.state_dtypes, strict=True))
        found = self._best_of_warp(reducer, own)
        if self.threads > WARP:
            found = self._best_of_block(reducer, found)
        return reducer.result(found).ir

    def _best_of_block(self, reducer: Reducer, found: State) -> State:
        """Each warp leaves what it has found; each looks at all."""
        b, one, warps = self.b, self.one, self.threads // WARP
        lane, warp = self.lane, self.warp
        spaces = [
            shared_memory(b.module, b, f"{self.name}_best_{d}", warps * item_size(d)) for d in reducer.state_dtypes
        ]
        with if_then(b, b.icmp_signed("==", lane, I64(0))):
            for x, space in zip(found, spaces, strict=True):
                one.store(x, at(b, space, warp, x.dtype))
        barrier(b)
        there = minimum(b, lane, warps - 1)  # those beyond are the last once more, which changes nothing
        pairs = zip(spaces, reducer.state_dtypes, strict=True)
        return self._best_of_warp(reducer, tuple(one.load(at(b, space, there, d), d) for space, d in pairs))


def threads_for(op: Panel) -> int:
    threads, wanted = WARP, op.length if op.spec.kind != "qr" else max(op.length, WARP * op.width // 4)
    while threads < min(wanted, _MOST):
        threads *= 2
    return threads


def build_panel(module: ir.Module, name: str, spec: PanelSpec, threads: int) -> ir.Function:
    """Args: the arrays, then width and length."""
    function, b = new_entry(module, name, threads)
    crew = _Block(b, name, threads, spec.dtype.name)
    *addresses, width, length = load_args(b, function.args[0], ARRAYS[spec.kind] + 2)
    arrays = [device_pointer(b, x) for x in addresses]
    run_task(crew, spec, arrays, block_index(b), width, length, threads)
    b.ret_void()
    return function
