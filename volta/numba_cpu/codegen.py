"""LLVM code for loop kernels on the CPU: vector loops around the bodies that `volta.emit.bodies` emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value, compute_dtype
from volta.emit.loops import I32, I64, for_range, load_arg, minimum, offset
from volta.numba_cpu import target, weaving
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.loop_schedule import BACKWARDS, VectorLoop
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
        found = b.load(offset(self.b, first, -(b.lanes - 1) * x.dtype.itemsize), x.dtype.name)
        turned = ir.Constant(ir.VectorType(I32, b.lanes), list(range(b.lanes))[::-1])
        return b.value(self.b.shuffle_vector(found.ir, found.ir, turned), found.dtype)


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
        spread = self.analysis.spread
        return not any(
            isinstance(x, Load)
            and (x.pattern[0] in ("?", BACKWARDS) and i not in self._woven or any(spread[t] for t in x.terms))
            for i, x in ((i, self.kernel.body[i]) for i in which)
        )

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
        """Call ``body(index, lanes)`` over start..stop: whole vectors, then the rest one by one or under a mask."""
        b, lanes = self.b, self.lanes
        if self.wide:
            whole = b.add(start, b.and_(b.sub(stop, start), I64(-lanes)))
            with for_range(b, start, whole, lanes) as i:
                body(i, lanes)
            start, lanes = whole, lanes // self.wide
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
