"""LLVM code for loop kernels on the CPU: vector loops around the bodies that `volta.emit.bodies` emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.bodies import BodyEmitter
from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, for_range, load_arg, minimum, new_kernel
from volta.numba_cpu import target
from volta.numba_cpu.loop_schedule import VectorLoop
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


class KernelEmitter(HostBody):
    """Emits one loop kernel into a module."""

    def __init__(self, module: ir.Module, name: str, kernel: VectorLoop) -> None:
        self.function, b = new_kernel(module, name)
        args, self.begin, self.end, self.scratch = self.function.args
        self.lanes, self.wide, self.spills = lanes_for(kernel), kernel.wide, kernel.spills
        super().__init__(b, args, kernel)

    def maskable(self, which: Sequence[int], stores: Sequence[Store]) -> bool:
        """Whether a body can run on whole vectors with the lanes past the end masked off.

        Then there is no scalar copy of it for the rest, which halves the code. Needs cheap masks (AVX-512), and that
        the lanes of every access are neighbours, or share one address.
        """
        if target.vector_bits() != 512 or any(s.pattern[0] != "1" for s in stores):
            return False
        spread = self.analysis.spread
        return not any(
            isinstance(x, Load) and (x.pattern[0] == "?" or any(spread[t] for t in x.terms))
            for x in (self.kernel.body[i] for i in which)
        )

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
                self.mask = wide.lt(wide.iota("int32"), limit).ir
                body(i, lanes)
                self.mask = None
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
        which = self.pass_values(0, targets)
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
                for k, s in enumerate(self.kernel.stores):
                    self.store(k, s, values[s.value], lanes, stores[k], index, values)

            self.vector_loop(start, stop, body, self.maskable(which, self.kernel.stores))
        b.ret_void()
