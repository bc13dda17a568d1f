"""Code for the bodies of loop kernels, shared by the backends: values, accesses, stores.

A body is evaluated with a builder of some number of lanes at some index of the vector dimension. The bits of an element
do not depend on the lanes, so vectors and their scalar rest on the CPU, and a GPU's threads, agree by construction.
Loops, and who runs which element, are the backends' own.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loop_body import LoopBody, given, in_range
from volta.emit.loops import I64, PTR, load_arg, load_pointer, offset
from volta.xla_like.kernels import (
    Compute,
    ConstValue,
    GivenValue,
    IndexValue,
    Instr,
    Load,
    LoopKernel,
    Store,
    fill_value,
)


@attrs.define(eq=False)
class AccessArgs:
    """A load, index or store in a run of the kernel: its base (pointer, or number) and strides in bytes."""

    base: ir.Value
    strides: list[ir.Value]  # kept dims, then the reduced one
    terms: list[tuple[ir.Value, ir.Value]]  # (byte stride, largest index)


class BodyEmitter(LoopBody):
    """Emits the body of one loop kernel at the position of ``b``; ``args`` points to the args block of a call.

    ``constant_space`` is LLVM's address space for tables of constants.
    """

    def __init__(self, b: ir.IRBuilder, args: ir.Value, kernel: LoopKernel, constant_space: int = 0) -> None:
        super().__init__(kernel)
        self.b, self.args, self.constant_space = b, args, constant_space
        self.mask: ir.Value | None = None  # lanes in range, while the body of a masked loop is emitted
        self._read_args()

    # -- the args block ------------------------------------------------------------------------------------------------

    def _read_args(self) -> None:
        """Sizes, then for each access: base, strides, and (stride, largest index) per term. What a backend has besides
        stands behind: from ``words`` on."""
        k = self.kernel
        n_dims = k.rank + (k.mode != "map")
        self.sizes = [self.word(i) for i in range(n_dims)]
        at = n_dims
        self.places: list[AccessArgs] = []
        for x in [*(k.body[i] for i in self.memory), *k.stores]:
            assert isinstance(x, (Load, Store, IndexValue))
            is_index = isinstance(x, IndexValue)
            base = self.word(at) if is_index else self.pointer(at)
            strides = [self.word(at + 1 + d) for d in range(n_dims)]
            at += 1 + n_dims
            terms = []
            for _ in () if isinstance(x, IndexValue) else x.terms:
                terms.append((self.word(at), self.word(at + 1)))
                at += 2
            self.places.append(AccessArgs(base, strides, terms))
        self.words = at

    def word(self, at: int) -> ir.Value:
        """The integer at a position of the args block."""
        return load_arg(self.b, self.args, at)

    def pointer(self, at: int) -> ir.Value:
        """The address at a position of the args block."""
        return load_pointer(self.b, self.args, at)

    # -- values --------------------------------------------------------------------------------------------------------

    def builder(self, lanes: int) -> Builder:
        return Builder(self.b, lanes, self.constant_space)

    def at_row(self, place: AccessArgs, outer: Sequence[ir.Value]) -> ir.Value:
        """The base moved to an outer index (the kept dims that ``outer`` covers)."""
        b, total = self.b, None
        for index, stride in zip(outer, place.strides, strict=False):
            step = b.mul(index, stride)
            total = step if total is None else b.add(total, step)
        if total is None:
            return place.base
        return offset(b, place.base, total) if place.base.type == PTR else b.add(place.base, total)

    def evaluate(
        self, which: Sequence[int], values: dict[int, Value], lanes: int, row: dict[int, ir.Value],
        vector_index: ir.Value | None, reduced_index: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Compute values ``which`` (ascending) into ``values``, with ``lanes`` lanes.

        ``row`` holds bases at the current outer index. ``vector_index`` is the index of lane 0 in the vector dimension
        (None for once-a-row values), ``reduced_index`` that of the reduced dimension of a 'col' kernel.
        """
        for i in which:
            if i not in values:
                values[i] = self._value(i, values, lanes, row, vector_index, reduced_index)

    def _widened(self, x: Value, b: Builder) -> Value:
        return x if x.builder.lanes == b.lanes else b.splat(x)

    def _value(
        self, i: int, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        x: Instr = self.kernel.body[i]
        b = self.builder(lanes)
        if isinstance(x, ConstValue):
            return b.const(x.dtype.name, x.number)
        if isinstance(x, Compute):
            args = [self._widened(values[a], b) for a in x.args]
            return self.computed(x, b, args)
        if isinstance(x, GivenValue):
            return b.splat(given(x, Builder(self.b, 1), row[i]))
        if isinstance(x, IndexValue):
            return self._index(i, x, b, row, index, reduced)
        assert isinstance(x, Load)
        return self._load(i, x, values, b, row, index, reduced)

    def _index(
        self,
        i: int,
        x: IndexValue,
        b: Builder,
        row: dict[int, ir.Value],
        index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:
        place = self.places[self.memory.index(i)]
        start = row[i]
        if reduced is not None:
            start = self.b.add(start, self.b.mul(reduced, place.strides[-1]))
        value = b.splat(Builder(self.b, 1).value(start, "int64"))
        if index is not None and x.pattern[0] != "0":
            stride = place.strides[self.vector_axis]
            one = Builder(self.b, 1)
            first, step = (one.value(k, "int64") for k in (self.b.add(start, self.b.mul(index, stride)), stride))
            if b.lanes > 1 and x.dtype.name == "int32":  # sums wrap around alike, and vectors hold twice as many
                first, step = (one.cast(k, "int32") for k in (first, step))
            value = b.splat(first)
            if b.lanes > 1:
                value = value + b.iota(first.dtype) * b.splat(step)
        return b.cast(value, x.dtype.name)

    def _clamped(self, values: dict[int, Value], x: Load | Store, place: AccessArgs, b: Builder) -> tuple[Value, Value]:
        """The byte offset of the index terms, and whether every index is in range."""
        total, inside = None, b.const("bool", True)
        scalar = Builder(self.b, 1)
        for t, (stride, top) in zip(x.terms, place.terms, strict=True):
            term = self._widened(values[t], b)
            index, fits = in_range(b, term, b.splat(scalar.value(top, "int64")))
            inside = inside & fits
            step = index * b.splat(scalar.value(stride, "int64"))
            total = step if total is None else total + step
        assert total is not None
        return total, inside

    def _load(
        self, i: int, x: Load, values: dict[int, Value], b: Builder, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        place = self.places[self.memory.index(i)]
        pointer, inside = self._row(i, x, row, reduced), None
        dtype = x.dtype.name
        moves = index is not None and x.pattern[0] != "0"
        if x.terms:
            one = Builder(self.b, 1)
            if self._together(x, values):
                pointer, inside, x = self._chosen(i, x, values, row, reduced)
            else:
                total, inside = self._clamped(values, x, place, b)
                if moves:
                    stride = place.strides[self.vector_axis]
                    pointer = offset(self.b, pointer, self.b.mul(index, stride))
                    if b.lanes > 1:
                        total = total + b.iota("int64") * b.splat(one.value(stride, "int64"))
                self._whole(x)
                value = b.load_at(pointer, b.offsets(total), dtype)
                return self.filled(value, inside, x, b, values)
        if not moves:
            value = b.splat(Builder(self.b, 1).load(pointer, dtype)) if b.lanes > 1 else b.load(pointer, dtype)
        else:
            assert index is not None
            stride = place.strides[self.vector_axis]
            if x.pattern[0] == "1":
                here = offset(self.b, pointer, self.b.mul(index, I64(x.dtype.itemsize)))
                value = b.load(here, dtype) if self.mask is None else b.load_masked(here, dtype, self.mask)
            else:
                self._whole(x)
                here = offset(self.b, pointer, self.b.mul(index, stride))
                value = self.load_apart(x, here, stride, b)
        return self.filled(value, inside, x, b, values)

    def _row(self, i: int, x: Load, row: dict[int, ir.Value], reduced: ir.Value | None) -> ir.Value:
        """Where a load begins, but for its terms."""
        if reduced is None or x.pattern[-1] == "0":
            return row[i]
        return offset(self.b, row[i], self.b.mul(reduced, self.places[self.memory.index(i)].strides[-1]))

    def _together(self, x: Load, values: dict[int, Value]) -> bool:
        """Whether the terms are the same for all lanes."""
        return all(values[t].builder.lanes == 1 for t in x.terms)

    def _chosen(
        self, i: int, x: Load, values: dict[int, Value], row: dict[int, ir.Value], reduced: ir.Value | None
    ) -> tuple[ir.Value, Value, Load]:
        """Where a load reads whose terms are the same for all lanes, whether in range, and what it is otherwise.

        Where another load stands in for it there, its place is chosen: so one of the two reads memory.
        """
        one = Builder(self.b, 1)
        total, inside = self._clamped(values, x, self.places[self.memory.index(i)], one)
        pointer = offset(self.b, self._row(i, x, row, reduced), total.ir)
        y = None if x.other is None else self.kernel.body[x.other]
        if not isinstance(y, Load) or not y.terms or (y.pattern, y.dtype) != (x.pattern, x.dtype):
            return pointer, inside, x
        if x.pattern[0] not in "01" or not self._together(y, values):
            return pointer, inside, x
        assert x.other is not None
        place, there, y = self._chosen(x.other, y, values, row, reduced)
        return self.b.select(inside.ir, pointer, place), inside | there, y

    def load_apart(self, x: Load, first: ir.Value, stride: ir.Value, b: Builder) -> Value:
        """Lanes that are not neighbours, or in another order; ``first`` is the place of the first."""
        return b.load_strided(first, stride, x.dtype.name)

    def _whole(self, x: Load | Store) -> None:
        """Lanes that are not neighbours are read and written one by one, whatever the mask: there must be none."""
        if self.mask is not None:
            raise AssertionError(f"lanes past the end would touch memory: {x} under a mask, in\n{self.kernel.text()}")

    def filled(self, value: Value, inside: Value | None, x: Load, b: Builder, values: dict[int, Value]) -> Value:
        """What was read where it is ``inside``, and what stands there otherwise."""
        if inside is None or x.fill in ("", "any") and x.other is None:
            return value
        fill = b.const(value.dtype, fill_value(x.dtype, x.fill)) if x.other is None else values[x.other]
        return b.select(self._widened(inside, b), value, self._widened(fill, b))

    def store(
        self, number: int, s: Store, value: Value, lanes: int, base: ir.Value, index: ir.Value | None,
        values: dict[int, Value], reduced: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Write a value; ``base`` is the place at the current outer index."""
        b = self.builder(lanes)
        place = self.places[len(self.memory) + number]
        dtype = s.dtype.name
        value = self._widened(value, b)
        if value.dtype != compute_dtype(dtype):
            value = b.cast(value, dtype)
        if s.terms:
            total, _ = self._clamped(values, s, place, Builder(self.b, 1))
            base = offset(self.b, base, total.ir)
        if reduced is not None:
            base = offset(self.b, base, self.b.mul(reduced, place.strides[-1]))
        if index is None:
            b.store(value, base, dtype)
        elif s.pattern[0] == "1":
            here = offset(self.b, base, self.b.mul(index, I64(s.dtype.itemsize)))
            if self.mask is None:
                b.store(value, here, dtype)
            else:
                b.store_masked(value, here, self.mask, dtype)
        else:
            self._whole(s)
            stride = place.strides[self.vector_axis]
            b.store_strided(value, offset(self.b, base, self.b.mul(index, stride)), stride, dtype)

    # -- loop pieces ---------------------------------------------------------------------------------------------------

    def unravel(self, index: ir.Value, sizes: Sequence[ir.Value]) -> list[ir.Value]:
        """A linear index as one index a dimension."""
        out: list[ir.Value] = []
        for d in range(len(sizes) - 1, 0, -1):
            out.append(self.b.urem(index, sizes[d]))
            index = self.b.udiv(index, sizes[d])
        return [*([index] if sizes else []), *reversed(out)]

    def row_bases(self, outer: Sequence[ir.Value]) -> tuple[dict[int, ir.Value], list[ir.Value]]:
        """Bases of loads and indices (by value), and of stores, at an outer index."""
        bases = [self.at_row(p, outer) for p in self.places]
        n = len(self.memory)
        return dict(zip(self.memory, bases[:n], strict=True)), bases[n:]
