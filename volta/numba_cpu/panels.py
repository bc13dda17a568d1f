"""Panels on the CPU: a task is a matrix, or some columns of right sides, and a thread works on vectors of a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
from llvmlite import ir

from volta.core.ir import Eqn
from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, PTR, for_range, if_then, load_args, loop, offset
from volta.emit.panel_tasks import ARRAYS, run_task
from volta.emit.panels import TOGETHER, Lanes, at
from volta.emit.reducers import LANES, Reducer, StateArray, across_lanes
from volta.numba_cpu import chases, rotations, squares, sweeps, target, turns
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import CHASE, QR_STEP, ROTATIONS, SWEEP, WHOLE, WIDTH, Panel, PanelSpec
from volta.xla_like.plan import Buffer

COLUMNS = 256
"""Right sides in a task."""


def keeps_composed(eqn: Eqn) -> bool:
    """Whether there is a kernel for an equation that means panels, products or loops."""
    kind = eqn.params["kind"]
    return kind in (CHASE, *WHOLE, *QR_STEP) or (kind == SWEEP and sweeps.keeps(eqn))


def launches(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Panel)
    if op.spec.kind in ROTATIONS:
        return rotations.launches(call, vector_bits)
    if op.spec.kind in WHOLE:
        return squares.launches(call, vector_bits)
    if op.spec.kind == SWEEP:
        return sweeps.launches(call)
    if op.spec.kind in QR_STEP:
        return turns.launches(call, vector_bits)
    if op.spec.kind == CHASE:
        return chases.launches(call, vector_bits)
    words = laid_out((*call.accesses, op.batch, op.width, op.length))
    each = -(-op.length // COLUMNS) if op.spec.kind == "substitute" else 1
    return [Launch(LibraryKernel("panel", op.spec), call, *words, op.batch * each)]


def workspace(call: KernelCall, vector_bits: int) -> int:
    op = call.kernel
    assert isinstance(op, Panel)
    return chases.workspace(call) if op.spec.kind == CHASE else 0


@attrs.frozen
class _Vector:
    """A vector of a column's elements, of which a mask may leave out the last."""

    builder: Builder
    index: ir.Value
    mask: ir.Value | None
    space: ir.Value | None

    @property
    def number(self) -> Value:
        scalar = self.builder.splat(Builder(self.builder.irbuilder, 1).value(self.index, "int64"))
        return scalar + self.builder.iota("int64") if self.builder.lanes > 1 else scalar

    def _place(self, column: ir.Value, dtype: str) -> ir.Value:
        return at(self.builder.irbuilder, column, self.index, dtype)

    def load(self, column: ir.Value, dtype: str) -> Value:
        if self.mask is None:
            return self.builder.load(self._place(column, dtype), dtype)
        return self.builder.load_masked(self._place(column, dtype), dtype, self.mask)

    def store(self, x: Value, column: ir.Value) -> None:
        if self.mask is None:
            self.builder.store(x, self._place(column, x.dtype))
        else:
            self.builder.store_masked(x, self._place(column, x.dtype), self.mask)

    def kept(self, k: ir.Value) -> ir.Value:
        assert self.space is not None
        return offset(self.builder.irbuilder, self.space, self.builder.irbuilder.mul(k, I64(_ROW)))


_ROW = TOGETHER * 64
"""Bytes that a thread keeps of a column."""


class _Thread:
    """A thread of the CPU as a crew of one."""

    def __init__(self, b: ir.IRBuilder, dtype: str) -> None:
        self.b, self.lanes = b, target.vector_bits() // (8 * item_size(dtype))
        with b.goto_entry_block():
            self.space = b.alloca(ir.ArrayType(ir.IntType(8), WIDTH * _ROW))
            self.space.align = 64

    def each(
        self, start: ir.Value | int, stop: ir.Value, body: Callable[[Sequence[Lanes]], None], together: int = 1
    ) -> None:
        b, lanes = self.b, self.lanes
        begin: ir.Value = I64(start) if isinstance(start, int) else start
        wide, nbytes = Builder(b, lanes), target.vector_bits() // 8
        for count in (together, 1) if together > 1 else (1,):
            step = count * lanes
            end = b.add(begin, b.and_(b.sub(stop, begin), I64(-step)))
            with for_range(b, begin, end, step) as i:
                body([
                    _Vector(wide, b.add(i, I64(k * lanes)), None, offset(b, self.space, k * nbytes))
                    for k in range(count)
                ])  # fmt: skip
            begin = end
        if target.vector_bits() == 512:
            with if_then(b, b.icmp_signed("<", begin, stop)):
                rest = wide.splat(Builder(b, 1).value(b.sub(stop, begin), "int64"))
                body([_Vector(wide, begin, (wide.iota("int64") < rest).ir, self.space)])
        else:
            with for_range(b, begin, stop) as i:
                body([_Vector(Builder(b, 1), i, None, self.space)])

    def some(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        with for_range(self.b, 0, count) as i:
            body(i)

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def meet(self) -> None:
        pass

    def columns(self, start: ir.Value | int, stop: ir.Value, body: Callable[[ir.Value], None]) -> None:
        with for_range(self.b, start, stop) as c:
            body(c)

    def along(self, length: ir.Value, body: Callable[[Sequence[Lanes]], None]) -> None:
        self.each(0, length, body)

    def sum(self, length: ir.Value, term: Callable[[Lanes], Value], dtype: str) -> Value:
        """The 64 lanes of a SUM are some vectors, in memory of this thread's own."""
        b, wide = self.b, Builder(self.b, self.lanes)
        reducer, count = Reducer("sum", dtype), LANES // self.lanes
        lanes = StateArray(b, reducer, count, self.lanes)
        identity, whole = reducer.identity(wide), b.and_(length, I64(-LANES))
        with loop(b, 0, whole, LANES, [identity[0].ir] * count) as it:
            terms = [term(_Vector(wide, b.add(it.index, I64(k * self.lanes)), None, None)) for k in range(count)]
            it.advance(*((wide.value(x, dtype) + y).ir for x, y in zip(it.values, terms, strict=True)))
        for k, x in enumerate(it.results):
            lanes.store(k * self.lanes, (wide.value(x, dtype),))

        def joined(group: Sequence[Lanes]) -> None:
            (x,) = group
            assert isinstance(x, _Vector)
            slot, few = b.sub(x.index, whole), x.builder.lanes
            (before,) = lanes.load(slot, few)
            after = before + term(x)
            if x.mask is not None:
                after = wide.select(wide.value(x.mask, "bool"), after, before)
            lanes.store(slot, (after,))

        self.each(whole, length, joined)
        states = [lanes.load(k * self.lanes, self.lanes)[0] for k in range(count)]
        while len(states) > 1:
            half = len(states) // 2
            states = [x + y for x, y in zip(states[:half], states[half:], strict=True)]
        return across_lanes(b, reducer, (states[0],))[0]

    def largest(self, length: ir.Value, values: Callable[[Lanes], Sequence[Value]], dtype: str) -> list[Value]:
        b, reducer, wide = self.b, Reducer("max", dtype), Builder(self.b, self.lanes)
        arrays = [StateArray(b, reducer, 1, self.lanes) for _ in range(2)]
        for array in arrays:
            array.store(0, reducer.identity(wide))

        def joined(group: Sequence[Lanes]) -> None:
            (x,) = group
            assert isinstance(x, _Vector)
            for y, array in zip(values(x), arrays, strict=True):
                if x.mask is not None:
                    y = wide.select(wide.value(x.mask, "bool"), y, wide.const(dtype, 0))
                array.store(0, reducer.combine(x.builder, array.load(0, x.builder.lanes), (y,)))

        self.each(0, length, joined)
        return [across_lanes(b, reducer, array.load(0, self.lanes))[0] for array in arrays]

    def first_largest(self, start: ir.Value, stop: ir.Value, column: ir.Value, dtype: str) -> ir.Value:
        b, reducer = self.b, Reducer("argmax", dtype)
        kinds = [Builder(b, self.lanes), Builder(b, 1)]
        with b.goto_entry_block():
            slots = [[b.alloca(kind.type_of(d)) for d in reducer.state_dtypes] for kind in kinds]
        for kind, places in zip(kinds, slots, strict=True):
            for x, place in zip(reducer.identity(kind), places, strict=True):
                b.store(x.ir, place)

        def state(k: int) -> tuple[Value, ...]:
            pairs = zip(slots[k], reducer.state_dtypes, strict=True)
            return tuple(kinds[k].value(b.load(p, typ=kinds[k].type_of(d)), d) for p, d in pairs)

        def joined(group: Sequence[Lanes]) -> None:
            (lanes,) = group
            assert isinstance(lanes, _Vector)
            k, x = int(lanes.builder.lanes == 1), abs(lanes.load(column, dtype))
            if lanes.mask is not None:
                x = lanes.builder.select(lanes.builder.value(lanes.mask, "bool"), x, lanes.builder.const(dtype, -1))
            found = reducer.combine(kinds[k], state(k), (x, lanes.number))
            for y, place in zip(found, slots[k], strict=True):
                b.store(y.ir, place)

        self.each(start, stop, joined)
        whole = reducer.combine(kinds[1], across_lanes(b, reducer, state(0)), state(1))
        return reducer.result(whole).ir


def build_panel(module: ir.Module, name: str, spec: PanelSpec) -> ir.Function:
    """Args: the arrays, then batch, width and length."""
    if spec.kind in ROTATIONS:
        return rotations.build(module, name, spec)
    if spec.kind in WHOLE:
        return squares.build(module, name, spec)
    if spec.kind == SWEEP:
        return sweeps.build(module, name, spec, _Thread)
    if spec.kind in QR_STEP:
        return turns.build(module, name, spec, _Thread)
    if spec.kind == CHASE:
        return chases.build(module, name, spec, _Thread)
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    crew = _Thread(b, spec.dtype.name)
    *addresses, _, width, length = load_args(b, args, ARRAYS[spec.kind] + 3)
    arrays = [b.inttoptr(x, PTR) for x in addresses]
    with for_range(b, begin, end) as task:
        run_task(crew, spec, arrays, task, width, length, COLUMNS)
    b.ret_void()
    return function


def build_rest(module: ir.Module, name: str, spec: PanelSpec) -> ir.Function:
    """What is left of a panel for threads to share."""
    return chases.build_rest(module, name, spec, target.vector_bits(), _Thread)
