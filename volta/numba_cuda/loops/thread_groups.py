"""Threads that reduce one row together: who owns which lanes of a sum, and how states are exchanged and combined.

The 64 lanes of a block of 4096 belong to `threads` threads; each owns `share` groups of `lanes` neighbouring lanes.
Lanes combine by halving, so by exchange with the thread half as far away. The blocks of a row, each summed by threads
of its own, combine as a tree of adjacent pairs: the order of SUM, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Value, item_size
from volta.emit.loops import I64, if_then, offset
from volta.emit.reducers import LANES, Reducer, State, halve
from volta.numba_cuda.codegen.threads import WARP, barrier, shared_memory, shuffle_xor
from volta.numba_cuda.loops.scalars import ThreadBuilder, builder_of


@attrs.frozen
class ThreadGroupShape:
    """Neighbours in a group, threads that own a block's 64 lanes, and blocks that are summed side by side."""

    lanes: int
    threads: int
    blocks: int

    @property
    def share(self) -> int:
        """Groups of lanes that a thread owns."""
        return LANES // (self.lanes * self.threads)

    @property
    def size(self) -> int:
        return self.threads * self.blocks

    def suffix(self) -> str:
        return f"{self.lanes}x{self.threads}x{self.blocks}"


class ThreadGroup:
    """A thread's place in its group. ``count`` threads are in a block; `slot` is the group's number there."""

    def __init__(self, b: ir.IRBuilder, shape: ThreadGroupShape, thread: ir.Value, count: int) -> None:
        self.b, self.shape, self.thread, self.count = b, shape, thread, count
        self.member = b.and_(thread, I64(shape.threads - 1))
        self.group = b.lshr(thread, I64(shape.threads.bit_length() - 1))  # of the threads that share a block's lanes
        self.slot = self.group if shape.blocks == 1 else I64(0)
        self.block = self.group if shape.blocks > 1 else I64(0)
        self.first = b.icmp_signed("==", self.member if shape.blocks == 1 else thread, I64(0))
        self._exchanges = 0

    def place(self, group: int) -> ir.Value:
        """The first of the lanes of a thread's group number `group`."""
        b, s = self.b, self.shape
        start = b.shl(self.member, I64(s.lanes.bit_length() - 1))
        return b.add(start, I64(group * s.lanes * s.threads)) if group else start

    # -- lanes of a block ----------------------------------------------------------------------------------------------

    def across(self, reducers: Sequence[Reducer], groups: Sequence[Sequence[State]]) -> list[State]:
        """The states of a block, which every thread of it gets; ``groups[group][n]`` are a thread's own.

        Groups that got no element are left out: they would be the last.
        """
        groups, half = [list(g) for g in groups], self.shape.share // 2
        while half:
            for i in range(len(groups) - half):
                groups[i] = self._joined(reducers, groups[i], groups[i + half])
            groups, half = groups[:half], half // 2
        states, split = list(groups[0]), []
        distance = self.shape.threads // 2
        while distance:
            lanes = states[0][0].builder.lanes
            if distance >= WARP:
                states = self._joined(reducers, states, self._through_memory(states, distance))
            elif lanes > 1:  # keep one half of the lanes and give the other away
                upper = self.b.icmp_unsigned("!=", self.b.and_(self.member, I64(distance)), I64(0))
                kept, given = self._halves(states, upper)
                states = self._joined(reducers, kept, self._shuffled(given, distance))
                split.append(distance)
            else:
                states = self._joined(reducers, states, self._shuffled(states, distance))
            distance //= 2
        for distance in split:  # the given-away lanes were the farther half, so these come before what is left
            states = self._joined(reducers, states, self._shuffled(states, distance))
        while states[0][0].builder.lanes > 1:
            states = [halve(self.b, r, s) for r, s in zip(reducers, states, strict=True)]
        return states

    def _joined(self, reducers: Sequence[Reducer], x: Sequence[State], y: Sequence[State]) -> list[State]:
        return [r.combine(builder_of(s[0]), s, t) for r, s, t in zip(reducers, x, y, strict=True)]

    def _shuffled(self, states: Sequence[State], distance: int) -> list[State]:
        return [tuple(self._shuffle(x, distance) for x in state) for state in states]

    def _shuffle(self, x: Value, distance: int) -> Value:
        many = builder_of(x)
        if many.lanes == 1:
            return many.value(shuffle_xor(self.b, x, distance).ir, x.dtype)
        raw: ir.Value = ir.Constant(x.ir.type, ir.Undefined)
        for lane in range(many.lanes):
            one = shuffle_xor(self.b, ThreadBuilder(self.b, 1).value(many._extract(x.ir, lane), x.dtype), distance)
            raw = many._insert(raw, one.ir, lane)
        return many.value(raw, x.dtype)

    def _halves(self, states: Sequence[State], upper: ir.Value) -> tuple[list[State], list[State]]:
        """Each state's lower and upper lanes; exchanged where ``upper``."""
        b, kept, given = self.b, [], []
        for state in states:
            pairs = [_split(b, x) for x in state]
            kept.append(tuple(low.builder.value(b.select(upper, high.ir, low.ir), low.dtype) for low, high in pairs))
            given.append(tuple(low.builder.value(b.select(upper, low.ir, high.ir), low.dtype) for low, high in pairs))
        return kept, given

    def _area(self, number: int, count: int, dtype: str) -> ir.Value:
        """Shared memory for a state of each thread or block; its name holds its size, so that equal ones share it."""
        nbytes = count * item_size(dtype)
        return shared_memory(self.b.module, self.b, f"{self.b.function.name}_exchange{number}_{nbytes}", nbytes)

    def _through_memory(self, states: Sequence[State], distance: int) -> list[State]:
        """Like a shuffle, between warps: two sets of areas (double buffering), so that one barrier is enough."""
        b = self.b
        group, self._exchanges = self._exchanges % 2, self._exchanges + 1
        areas = iter(range(group * 100, group * 100 + 100))
        places = [[self._area(next(areas), self.count, x.dtype) for x in state] for state in states]
        other = b.xor(self.thread, I64(distance))
        for state, areas_of in zip(states, places, strict=True):
            for x, area in zip(state, areas_of, strict=True):
                builder_of(x).store(x, self._at(area, self.thread, x.dtype))
        barrier(b)
        return [
            tuple(
                builder_of(x).load(self._at(area, other, x.dtype), x.dtype)
                for x, area in zip(state, found, strict=True)
            )
            for state, found in zip(states, places, strict=True)
        ]

    def _load(self, area: ir.Value, index: ir.Value, like: Value) -> Value:
        return builder_of(like).load(self._at(area, index, like.dtype), like.dtype)

    def _at(self, area: ir.Value, index: ir.Value, dtype: str) -> ir.Value:
        return offset(self.b, area, self.b.mul(index, I64(item_size(dtype))))

    # -- blocks of a row -----------------------------------------------------------------------------------------------

    def tree(self, reducers: Sequence[Reducer], states: Sequence[State], count: ir.Value | None) -> list[State]:
        """The blocks side by side combined in pairs; ``count`` of them are there (None: all)."""
        b, s = self.b, self.shape
        if s.blocks == 1:
            return list(states)
        group, self._exchanges = self._exchanges % 2, self._exchanges + 1
        areas = iter(range(group * 100 + 200, group * 100 + 300))
        places = [[self._area(next(areas), s.blocks, x.dtype) for x in state] for state in states]
        with if_then(b, b.icmp_signed("==", self.member, I64(0))):
            for state, areas_of in zip(states, places, strict=True):
                for x, area in zip(state, areas_of, strict=True):
                    builder_of(x).store(x, self._at(area, self.block, x.dtype))
        barrier(b)
        found = []
        for r, state, areas_of in zip(reducers, states, places, strict=True):
            parts = [
                tuple(
                    builder_of(x).load(self._at(a, I64(i), x.dtype), x.dtype)
                    for x, a in zip(state, areas_of, strict=True)
                )
                for i in range(s.blocks)
            ]
            found.append(pairs_tree(b, r, parts, count))
        return found


def pairs_tree(b: ir.IRBuilder, reducer: Reducer, states: Sequence[State], count: ir.Value | None) -> State:
    """The first ``count`` states (None: all) combined as a binary tree of adjacent pairs."""
    many, one = builder_of(states[0][0]), ThreadBuilder(b, 1)
    level, span = list(states), 1
    while len(level) > 1:
        following = []
        for i in range(0, len(level), 2):
            if i + 1 == len(level):
                following.append(level[i])
                continue
            joined = reducer.combine(many, level[i], level[i + 1])
            if count is not None:
                there = many.splat(one.value(b.icmp_signed("<", I64((i + 1) * span), count), "bool"))
                joined = tuple(many.select(there, x, y) for x, y in zip(joined, level[i], strict=True))
            following.append(joined)
        level, span = following, 2 * span
    return level[0]


def _split(b: ir.IRBuilder, x: Value) -> tuple[Value, Value]:
    """The lower and the upper half of a value's lanes."""
    half = x.builder.lanes // 2
    many = ThreadBuilder(b, half)
    out = []
    for first in (0, half):
        raw: ir.Value = ir.Constant(many.type_of(x.dtype), ir.Undefined)
        for lane in range(half):
            raw = many._insert(raw, builder_of(x)._extract(x.ir, first + lane), lane)
        out.append(many.value(raw, x.dtype))
    return out[0], out[1]
