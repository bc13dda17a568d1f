"""Reductions: their states, and how states combine. The orders they are used in are the bit contract's.

SUM (and PROD) of n elements: blocks of 4096 = 64 lanes x 64 rows. Lane l of a block adds its elements l, l + 64, … in
ascending order, starting from the true identity (-0.0; 1 for products); lanes combine by halving, 32, 16, 8, 4, 2, 1;
blocks combine as an adjacent-pair binary tree. The other reductions have the same result in any order and use the same
code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.core.contract import DEFINITIONS
from volta.emit.builder import Builder, Value, is_float, is_signed, item_size
from volta.emit.loops import I32, I64, for_range, loop, minimum, offset, while_loop

LANES = DEFINITIONS.sum_lanes
BLOCK = DEFINITIONS.sum_block

State = tuple[Value, ...]

_LAST = (1 << 63) - 1


class Reducer:
    """One kind of reduction of elements of ``dtype`` (a register kind)."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.kind = kind
        self.dtype = dtype
        self.is_arg = kind.startswith("arg")
        self.state_dtypes = (dtype, "int64") if self.is_arg else (dtype,)

    def identity(self, b: Builder) -> State:
        d = self.dtype
        bits = 8 * item_size(d)
        if self.kind == "sum":
            number: float = -0.0 if is_float(d) else 0
        elif self.kind == "prod":
            number = 1
        elif self.kind in ("and", "or"):
            number = 0 if self.kind == "or" else 1 if d == "bool" else -1
        elif self.kind in ("max", "argmax"):
            number = float("-inf") if is_float(d) else -(1 << (bits - 1)) if is_signed(d) else 0
        elif d == "bool":
            number = 1
        else:
            number = float("inf") if is_float(d) else (1 << (bits - 1)) - 1 if is_signed(d) else (1 << bits) - 1
        first = b.const(d, number)
        return (first, b.const("int64", _LAST)) if self.is_arg else (first,)

    def element(self, b: Builder, value: Value, position: Callable[[], Value]) -> State:
        """The state of one element; ``position`` gives its int64 index in the reduced sequence."""
        return (value, position()) if self.is_arg else (value,)

    def combine(self, b: Builder, x: State, y: State) -> State:
        """The state of two runs of elements, ``x`` the earlier."""
        if self.is_arg:
            return self._combine_arg(b, x, y)
        operation = {"sum": b.add, "prod": b.mul, "max": b.max, "min": b.min, "and": b.and_, "or": b.or_}[self.kind]
        return (operation(x[0], y[0]),)

    def _combine_arg(self, b: Builder, x: State, y: State) -> State:
        """The better value; among equals (and among NaNs, which win) the one with the smaller index."""
        (v, i), (w, j) = x, y
        better = w > v if self.kind == "argmax" else w < v
        tie = w == v
        if is_float(self.dtype):
            nan_v, nan_w = b.isnan(v), b.isnan(w)
            better = (better & ~nan_v) | (nan_w & ~nan_v)
            tie = tie | (nan_v & nan_w)
        take = better | (tie & (j < i))
        return b.select(take, w, v), b.select(take, j, i)

    def result(self, state: State) -> Value:
        return state[1] if self.is_arg else state[0]


class StateArray:
    """``count`` states of some lanes each, in a function's stack frame."""

    def __init__(self, b: ir.IRBuilder, reducer: Reducer, count: int, lanes: int) -> None:
        self.b, self.reducer, self.lanes = b, reducer, lanes
        self.parts = []
        for dtype in reducer.state_dtypes:
            with b.goto_entry_block():
                slot = b.alloca(ir.ArrayType(ir.IntType(8), count * lanes * item_size(dtype)))
                slot.align = 64
            self.parts.append(slot)

    def _pointer(self, part: int, index: ir.Value | int) -> ir.Value:
        size = item_size(self.reducer.state_dtypes[part])
        index = I64(index) if isinstance(index, int) else index
        return offset(self.b, self.parts[part], self.b.mul(index, I64(size)))

    def load(self, index: ir.Value | int, lanes: int) -> State:
        """``lanes`` neighbouring elements from element ``index``."""
        builder = Builder(self.b, lanes)
        return tuple(builder.load(self._pointer(p, index), d) for p, d in enumerate(self.reducer.state_dtypes))

    def store(self, index: ir.Value | int, state: State) -> None:
        for p, value in enumerate(state):
            Builder(self.b, value.builder.lanes).store(value, self._pointer(p, index))


def halve(b: ir.IRBuilder, reducer: Reducer, state: State) -> State:
    """Combine lane l with lane l + lanes/2."""
    lanes = state[0].builder.lanes
    half = lanes // 2
    builder = Builder(b, half)
    low: list[Value] = []
    high: list[Value] = []
    for value in state:
        undefined = ir.Constant(value.ir.type, ir.Undefined)
        for out, first in ((low, 0), (high, half)):
            if half == 1:
                part = b.extract_element(value.ir, I32(first))
            else:
                mask = ir.Constant(ir.VectorType(I32, half), list(range(first, first + half)))
                part = b.shuffle_vector(value.ir, undefined, mask)
            out.append(builder.value(part, value.dtype))
    return reducer.combine(builder, tuple(low), tuple(high))


def across_lanes(b: ir.IRBuilder, reducer: Reducer, state: State) -> State:
    """The lanes of a state combined by halving, to one."""
    while state[0].builder.lanes > 1:
        state = halve(b, reducer, state)
    return state


def columns_block(
    b: ir.IRBuilder, reducers: Sequence[Reducer], arrays: Sequence[StateArray], lanes: int, start: ir.Value,
    stop: ir.Value, elements: Callable[[ir.Value], Sequence[State]], lane_by_lane: bool = False,
) -> list[State]:  # fmt: skip
    """Reduce elements start..stop of one block, in each of ``lanes`` columns by itself.

    ``elements(index)`` gives one element's state for each reducer; ``arrays`` hold 64 states of ``lanes`` columns. With
    ``lane_by_lane`` one of the 64 is finished after the other, in registers, and elements are visited in steps of 64.
    """
    builder = Builder(b, lanes)
    width = I64(lanes)
    count = minimum(b, b.sub(stop, start), I64(LANES))
    if lane_by_lane:
        _lane_by_lane(b, reducers, arrays, lanes, start, stop, elements, count)
    else:
        with for_range(b, 0, count) as lane:
            for reducer, array in zip(reducers, arrays, strict=True):
                array.store(b.mul(lane, width), reducer.identity(builder))
        with for_range(b, start, stop) as index:
            slot = b.mul(b.and_(index, I64(LANES - 1)), width)
            for reducer, array, state in zip(reducers, arrays, elements(index), strict=True):
                array.store(slot, reducer.combine(builder, array.load(slot, lanes), state))
    # Lanes that got no element hold the identity, and combining with it changes nothing: they are skipped.
    with loop(b, 0, LANES.bit_length() - 1) as it:
        half = b.lshr(I64(LANES // 2), it.index)
        with for_range(b, 0, minimum(b, half, b.sub(count, half))) as lane:
            low, high = b.mul(lane, width), b.mul(b.add(lane, half), width)
            for reducer, array in zip(reducers, arrays, strict=True):
                array.store(low, reducer.combine(builder, array.load(low, lanes), array.load(high, lanes)))
    return [array.load(0, lanes) for array in arrays]


def _lane_by_lane(
    b: ir.IRBuilder, reducers: Sequence[Reducer], arrays: Sequence[StateArray], lanes: int, start: ir.Value,
    stop: ir.Value, elements: Callable[[ir.Value], Sequence[State]], count: ir.Value,
) -> None:  # fmt: skip
    """Fill the first ``count`` states of a block's 64; blocks begin at multiples of 64."""
    builder = Builder(b, lanes)
    identities = [v.ir for reducer in reducers for v in reducer.identity(builder)]
    with for_range(b, 0, count) as lane:
        with loop(b, b.add(start, lane), stop, LANES, identities) as it:
            carried, following = list(it.values), []
            for reducer, state in zip(reducers, elements(it.index), strict=True):
                before = tuple(builder.value(carried.pop(0), d) for d in reducer.state_dtypes)
                following += [v.ir for v in reducer.combine(builder, before, state)]
            it.advance(*following)
        results = list(it.results)
        for reducer, array in zip(reducers, arrays, strict=True):
            array.store(b.mul(lane, I64(lanes)), tuple(builder.value(results.pop(0), d) for d in reducer.state_dtypes))


class BlockTree:
    """Combines block results that arrive in order into the adjacent-pair binary tree, with a stack as deep as it."""

    DEPTH = 48

    def __init__(self, b: ir.IRBuilder, reducer: Reducer, lanes: int) -> None:
        self.b, self.reducer, self.lanes = b, reducer, lanes
        self.stack = StateArray(b, reducer, self.DEPTH, lanes)
        with b.goto_entry_block():
            self.top = b.alloca(I64)
            self.bits = b.alloca(I64)

    def start(self) -> None:
        self.b.store(I64(0), self.top)

    def _at(self, index: ir.Value) -> ir.Value:
        return self.b.mul(index, I64(self.lanes))

    def _join_below(self) -> None:
        """Replace the two topmost states by their combination."""
        b = self.b
        top = b.load(self.top, typ=I64)
        low, high = self._at(b.sub(top, I64(2))), self._at(b.sub(top, I64(1)))
        x, y = self.stack.load(low, self.lanes), self.stack.load(high, self.lanes)
        self.stack.store(low, self.reducer.combine(Builder(b, self.lanes), x, y))
        b.store(b.sub(top, I64(1)), self.top)

    def push(self, state: State, number: ir.Value) -> None:
        """Add the result of block ``number`` (0, 1, 2, …)."""
        b = self.b
        top = b.load(self.top, typ=I64)
        self.stack.store(self._at(top), state)
        b.store(b.add(top, I64(1)), self.top)
        b.store(number, self.bits)

        def carries() -> ir.Value:
            return b.icmp_unsigned("!=", b.and_(b.load(self.bits, typ=I64), I64(1)), I64(0))

        def join() -> None:
            self._join_below()
            b.store(b.lshr(b.load(self.bits, typ=I64), I64(1)), self.bits)

        while_loop(b, carries, join)

    def finish(self) -> State:
        """What is left on the stack, combined from its top; at least one block must have been pushed."""
        b = self.b
        while_loop(b, lambda: b.icmp_unsigned(">", b.load(self.top, typ=I64), I64(1)), self._join_below)
        return self.stack.load(0, self.lanes)
