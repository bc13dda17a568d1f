"""LLVM code for loop kernels on the CPU: vector loops around the bodies that `volta.emit.bodies` emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loop_body import in_range
from volta.emit.loops import I32, I64, for_range, if_else, load_arg, minimum, offset
from volta.numba_cpu import target, weaving
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.loop_schedule import BACKWARDS, SHIFTED, SHIFTED_BACKWARDS, SHORTEST, VectorLoop
from volta.xla_like.kernels import Compute, IndexValue, Load, Store


def lanes_for(kernel: VectorLoop) -> int:
    """Lanes of the vector loop: registers of the widest element, more of them where that hides latencies."""
    sizes = [x.dtype.itemsize for x in kernel.body if type(x) is not IndexValue]
    register = target.vector_bits() // (8 * max([4, *sizes]))
    if kernel.wide:
        return register * kernel.wide
    heavy = sum(isinstance(x, Compute) for x in kernel.body)
    return register * 2 if kernel.mode == "map" and heavy <= 24 else target.vector_bits() // 32


class HostBody(BodyEmitter):
    """Emits bodies for vectors of some lanes."""

    def _value(
        self, i: int, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        """What is the same in all lanes is computed in one: an index then moves whole vectors, not each lane."""
        return super()._value(i, values, lanes if self.analysis.spread[i] else 1, row, index, reduced)

    def load_apart(self, x: Load, first: ir.Value, stride: ir.Value, b: Builder) -> Value:
        """Neighbours from the last to the first are one vector, turned round."""
        if x.pattern[0] != BACKWARDS or b.lanes == 1:
            return super().load_apart(x, first, stride, b)
        return self._turned(b.load(offset(self.b, first, -(b.lanes - 1) * x.dtype.itemsize), x.dtype.name))

    def _load(
        self, i: int, x: Load, values: dict[int, Value], b: Builder, row: dict[int, ir.Value], index: ir.Value | None,
        reduced: ir.Value | None,
    ) -> Value:  # fmt: skip
        """Lanes that are neighbours by an index are one vector, of which lanes out of range touch no memory."""
        if x.pattern[0] not in (SHIFTED, SHIFTED_BACKWARDS) or b.lanes == 1:
            return super()._load(i, x, values, b, row, index, reduced)
        place, one = self.places[self.memory.index(i)], Builder(self.b, 1)
        pointer, fits = self._row(i, x, row, reduced), one.const("bool", True)
        shift, count = one.const("int64", 0), one.const("int64", 0)
        for t, (stride, top) in zip(x.terms, place.terms, strict=True):
            largest = one.value(top, "int64")
            if self.analysis.spread[t]:
                term = self.kernel.body[t]
                assert isinstance(term, IndexValue)
                shift, count = self._index(t, term, one, row, index, reduced), largest + 1
            else:
                at, there = in_range(one, values[t], largest)
                pointer, fits = offset(self.b, pointer, (at * one.value(stride, "int64")).ir), fits & there
        # Beyond the last lane that could be in range nothing changes: so the address stays near the array.
        shift = one.max(one.min(shift, count), -b.lanes)
        first, end = one.max(-shift, 0), one.min(count - shift, b.lanes)
        lane = b.iota("int32")
        inside = b.splat(fits) & (lane >= b.splat(one.cast(first, "int32"))) & (lane < b.splat(one.cast(end, "int32")))
        back = x.pattern[0] == SHIFTED_BACKWARDS
        start = -(shift + (b.lanes - 1)) if back else shift
        here = offset(self.b, pointer, (start * x.dtype.itemsize).ir)
        if self.mask is not None:
            return self._some(x, values, b, here, inside & b.value(self.mask, "bool"), inside, back)
        # Most vectors are read as a whole. (Seen: of masked loads alone memory is prefetched late, at twice the time.)
        every = (first == 0) & (end == b.lanes) & fits
        with if_else(self.b, every.ir) as branch:
            with branch.then():
                found = b.load(here, x.dtype.name)
                branch.give((self._turned(found) if back else found).ir)
            with branch.otherwise():
                branch.give(self._some(x, values, b, here, inside, inside, back).ir)
        return b.value(branch.results[0], found.dtype)

    def _some(
        self, x: Load, values: dict[int, Value], b: Builder, here: ir.Value, reads: Value, inside: Value, back: bool
    ) -> Value:
        """A vector of which ``reads`` are read, and those that are not ``inside`` have another value."""
        value = b.load_masked(here, x.dtype.name, (self._turned(reads) if back else reads).ir)
        value = self._turned(value) if back else value
        return value if x.fill in ("zero", "any") else self.filled(value, inside, x, b, values)

    def _turned(self, x: Value) -> Value:
        """The lanes from the last to the first."""
        lanes = x.builder.lanes
        order = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes))[::-1])
        return x.builder.value(self.b.shuffle_vector(x.ir, x.ir, order), x.dtype)


class KernelEmitter(HostBody):
    """Emits one loop kernel into a module."""

    def __init__(self, module: ir.Module, name: str, kernel: VectorLoop) -> None:
        self.function, b = new_kernel(module, name)
        args, self.begin, self.end, self.scratch = self.function.args
        self.lanes, self.wide, self.spills, self.weave = lanes_for(kernel), kernel.wide, kernel.spills, kernel.weave
        self._woven = {i: group for group in self.weave.loads for i in group}
        self.few: ir.Value | None = None  # how many lanes are in range, where there is a mask
        super().__init__(b, args, kernel)

    def maskable(self, which: Sequence[int], stores: Sequence[Store]) -> bool:
        """Whether a body can run on whole vectors with the lanes past the end masked off.

        Then there is no scalar copy of it for the rest, which halves the code. Needs cheap masks (AVX-512), and that
        the lanes of every access are neighbours, or share one address.
        """
        together = {k for group in self.weave.stores for k in group}
        apart = [s for k, s in enumerate(self.kernel.stores) if s.pattern[0] != "1" and k not in together]
        if target.vector_bits() != 512 or any(s in apart for s in stores):
            return False
        return not any(
            isinstance(x, Load) and (x.pattern[0] in ("?", BACKWARDS) and i not in self._woven or self._apart(x))
            for i, x in ((i, self.kernel.body[i]) for i in which)
        )

    def _apart(self, x: Load) -> bool:
        """Whether lanes are loaded by indices of their own."""
        return x.pattern[0] not in (SHIFTED, SHIFTED_BACKWARDS) and any(self.analysis.spread[t] for t in x.terms)

    def _value(
        self, i: int, values: dict[int, Value], lanes: int, row: dict[int, ir.Value], index: ir.Value | None,
        walk: ir.Value | None,
    ) -> Value:  # fmt: skip
        """What is the same in all lanes is computed in one: an index then moves whole vectors, not each lane.

        Interleaved loads are done together, with the first one.
        """
        group = self._woven.get(i) if lanes > 1 else None
        if group is not None and index is not None:
            x = self.kernel.body[group[0]]
            assert isinstance(x, Load)
            found = weaving.load(
                self.builder(lanes), self._at(group[0], row[group[0]], index), x.dtype.name, len(group), self.few
            )
            values.update(zip(group, found, strict=True))
            return values[i]
        return super()._value(i, values, lanes if self.analysis.spread[i] else 1, row, index, walk)

    def _at(self, access: int, base: ir.Value, index: ir.Value) -> ir.Value:
        """Where a load (by its place in the body) reads the element at an index of the vector dimension."""
        stride = self.places[self.memory.index(access)].strides[self.vector_axis]
        return offset(self.b, base, self.b.mul(index, stride))

    def write(self, values: dict[int, Value], lanes: int, stores: Sequence[ir.Value], index: ir.Value) -> None:
        """All stores of a 'map' kernel: interleaved ones together."""
        done: set[int] = set()
        for group in self.weave.stores if lanes > 1 else ():
            first, b = self.kernel.stores[group[0]], self.builder(lanes)
            stride = self.places[len(self.memory) + group[0]].strides[self.vector_axis]
            given = [self._widened(values[self.kernel.stores[k].value], b) for k in group]
            if given[0].dtype != compute_dtype(first.dtype.name):
                given = [b.cast(x, first.dtype.name) for x in given]
            weaving.store(
                b, given, offset(self.b, stores[group[0]], self.b.mul(index, stride)), first.dtype.name, self.few
            )
            done.update(group)
        for k, s in enumerate(self.kernel.stores):
            if k not in done:
                self.store(k, s, values[s.value], lanes, stores[k], index, values)

    def vector_loop(
        self, start: ir.Value, stop: ir.Value, body: Callable[[ir.Value, int], object], masked: bool = False
    ) -> None:
        """Call ``body(index, lanes)`` over start..stop: whole vectors, then the rest one by one or under a mask.

        Of a wide kernel the longest vectors first, then those of half as many registers, down to four."""
        b, lanes = self.b, self.lanes
        registers = self.wide
        while registers >= SHORTEST:
            whole = b.add(start, b.and_(b.sub(stop, start), I64(-lanes)))
            with for_range(b, start, whole, lanes) as i:
                body(i, lanes)
            start, lanes, registers = whole, lanes // 2, registers // 2
        if self.wide:
            lanes = self.lanes // self.wide
        if masked:
            with for_range(b, start, stop, lanes) as i:
                wide = self.builder(lanes)
                left = b.sub(stop, i)
                few = b.trunc(b.select(b.icmp_signed("<", left, I64(lanes)), left, I64(lanes)), I32)
                limit = wide.splat(Builder(b, 1).value(few, "int32"))
                self.mask, self.few = wide.lt(wide.iota("int32"), limit).ir, few
                body(i, lanes)
                self.mask = self.few = None
            return
        whole = start
        if lanes > 1 and not self.wide:
            whole = b.add(start, b.and_(b.sub(stop, start), I64(-lanes)))
            with for_range(b, start, whole, lanes) as i:
                body(i, lanes)
        with for_range(b, whole, stop) as i:
            body(i, 1)

    # -- map kernels ---------------------------------------------------------------------------------------------------

    def emit_map(self) -> None:
        b = self.b
        n, chunk = self.sizes[-1], load_arg(b, self.args, self.words)
        chunks = b.sdiv(b.sub(b.add(n, chunk), I64(1)), chunk)
        targets = [s.value for s in self.kernel.stores]
        which = self.pass_values(targets)
        with for_range(b, self.begin, self.end) as task:
            row_number = b.udiv(task, chunks)
            start = b.mul(b.urem(task, chunks), chunk)
            stop = minimum(b, b.add(start, chunk), n)
            row, stores = self.row_bases(self.unravel(row_number, self.sizes[:-1]))
            once: dict[int, Value] = {}
            self.evaluate(self.invariant(), once, 1, row, None)

            def body(index: ir.Value, lanes: int) -> None:
                values = dict(once)
                self.evaluate(which, values, lanes, row, index)
                self.write(values, lanes, stores, index)

            self.vector_loop(start, stop, body, self.maskable(which, self.kernel.stores))
        b.ret_void()
