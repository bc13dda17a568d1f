"""Code for loops of small bodies: see `volta.numba_cpu.small_loops`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import product

from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.dot_args import Arg
from volta.emit.loops import I8, I32, I64, PTR, VOID, intrinsic, load_arg, load_pointer, offset
from volta.numba_cpu.codegen import HostBody
from volta.numba_cpu.dot_schedule import TileSpec
from volta.numba_cpu.dot_tile import multiply_add
from volta.numba_cpu.kernel_abi import KERNEL_TYPE, new_kernel
from volta.numba_cpu.loop_schedule import VectorLoop
from volta.numba_cpu.small_loops import (
    Choice,
    Inner,
    SmallLoop,
    Step,
    Steps,
    flat,
    pieces,
    product_of,
    register_lanes,
    runs,
)
from volta.xla_like.dot import item_size

_ALIGNED = 64


class _Folding(ir.IRBuilder):
    """Computes with constant integers itself: an access at a known place becomes one without instructions."""

    def add(self, lhs: ir.Value, rhs: ir.Value, name: str = "", flags: Sequence[str] = ()) -> ir.Value:
        return _folded(operator.add, lhs, rhs) or super().add(lhs, rhs, name, flags)

    def mul(self, lhs: ir.Value, rhs: ir.Value, name: str = "", flags: Sequence[str] = ()) -> ir.Value:
        return _folded(operator.mul, lhs, rhs) or super().mul(lhs, rhs, name, flags)


def _folded(function: Callable[[int, int], int], lhs: ir.Value, rhs: ir.Value) -> ir.Value | None:
    x, y = _number(lhs), _number(rhs)
    return None if x is None or y is None else I64(function(x, y))


def _number(value: ir.Value) -> int | None:
    """What a constant integer is; a literal of `volta.emit` is its text."""
    if value.type != I64 or not isinstance(value, ir.Constant):
        return None
    return int(value.constant) if isinstance(value.constant, (int, str)) else None


class _WrittenOut(HostBody):
    """A map element by element: its sizes, strides and constants are numbers, its addresses those of slots."""

    def __init__(self, b: ir.IRBuilder, step: Step, kernel: VectorLoop, words: Sequence[ir.Value]) -> None:
        self._step, self._words = step, words
        super().__init__(b, None, kernel)

    def word(self, at: int) -> ir.Value:
        return self._words[at]

    def pointer(self, at: int) -> ir.Value:
        return self._words[at]

    def emit(self, vector_bits: int) -> None:
        kernel = self.kernel
        *outer, n = self._step.words[: kernel.rank]
        which = self.pass_values([s.value for s in kernel.stores])
        for index in product(*map(range, outer)):
            row, stores = self.row_bases([I64(i) for i in index])
            once: dict[int, Value] = {}
            self.evaluate(self.invariant(), once, 1, row, None)
            for first, lanes in pieces(n, register_lanes(kernel, vector_bits)):
                values = dict(once)
                self.evaluate(which, values, lanes, row, I64(first))
                for k, s in enumerate(kernel.stores):
                    self.store(k, s, values[s.value], lanes, stores[k], I64(first), values)


def _multiply(b: ir.IRBuilder, spec: TileSpec, words: Sequence[ir.Value]) -> None:
    """A product element by element: each is one chain of fused multiply-adds, as DOT has it."""
    number = {arg: words[arg].constant for arg in Arg if arg > Arg.WORKSPACE}
    dtype, size, one = spec.accumulator, item_size(spec.accumulator), Builder(b, 1)
    lhs, rhs, out = words[Arg.LHS], words[Arg.RHS], words[Arg.OUT]

    def columns(distance: int, many: Builder) -> ir.Value:
        """Neighbouring columns of the right operand."""
        stride = number[Arg.RHS_N]
        if many.lanes == 1 or stride == size:
            return many.load(offset(b, rhs, distance), dtype).ir
        return many.load_at(rhs, [I64(distance + lane * stride) for lane in range(many.lanes)], dtype).ir

    for item, row in product(range(number[Arg.BATCH1]), range(number[Arg.M])):
        left = item * number[Arg.LHS_BATCH1] + row * number[Arg.LHS_M]
        to = item * number[Arg.OUT_BATCH1] + row * number[Arg.OUT_M]
        for column, lanes in runs(number[Arg.N], spec.lanes):
            many = Builder(b, lanes)
            total = many.const(dtype, 0).ir
            for k in range(number[Arg.K]):
                x = many.splat(one.load(offset(b, lhs, left + k * number[Arg.LHS_K]), dtype)).ir
                right = item * number[Arg.RHS_BATCH1] + k * number[Arg.RHS_K] + column * number[Arg.RHS_N]
                total = multiply_add(b, x, columns(right, many), total)
            many.store(many.value(total, dtype), offset(b, out, to + column * size))


def build_small_loop(module: ir.Module, name: str, spec: SmallLoop) -> ir.Function:
    """Add the function to a module."""
    function, start = new_kernel(module, name)
    b = _Folding(start.block)
    args = function.args[0]
    given = [None if s.word is None else load_pointer(b, args, s.word) for s in spec.slots]
    slots = [_own(b, s.nbytes) if s.own else at for s, at in zip(spec.slots, given, strict=True)]
    body = _Body(b, function, spec, slots)
    copy = intrinsic(module, "llvm.memcpy.p0.p0.i64", VOID, [PTR, PTR, I64, ir.IntType(1)])
    kept = [(own, at, s) for own, at, s in zip(slots, given, spec.slots, strict=True) if s.own and at is not None]
    for own, at, s in kept:
        b.call(copy, [own, at, I64(s.nbytes), ir.IntType(1)(0)])

    entry, iteration, end = b.block, b.append_basic_block("iteration"), b.append_basic_block("end")
    b.branch(iteration)
    b.position_at_end(iteration)
    left = b.phi(I64)
    left.add_incoming(I64(spec.most), entry)
    body.emit(spec.steps)
    fewer = b.sub(left, I64(1))
    left.add_incoming(fewer, b.block)
    goes_on = b.icmp_signed("!=", body.flag(spec.flag), I32(0))
    b.cbranch(b.and_(goes_on, b.icmp_signed("!=", fewer, I64(0))), iteration, end)

    b.position_at_end(end)
    for own, at, s in kept:
        if s.written:
            b.call(copy, [at, own, I64(s.nbytes), ir.IntType(1)(0)])
    b.ret_void()
    return function


class _Body:
    """Writes the steps of an iteration. The args of kernels, which stay the same, are laid out at once."""

    def __init__(self, b: ir.IRBuilder, function: ir.Function, spec: SmallLoop, slots: Sequence[ir.Value]) -> None:
        self._b, self._spec, self._slots = b, spec, slots
        self._args, _, _, self._scratch = function.args
        steps = list(flat(spec.steps))
        self._words = {id(s): _words(b, self._args, s, slots) for s in steps}
        self._blocks = {id(s): _args_block(b, self._words[id(s)]) for s in steps if s.callee is not None}

    def flag(self, slot: int) -> ir.Value:
        """The int32 of a slot."""
        return self._b.load(self._slots[slot], align=4, typ=I32)

    def emit(self, steps: Steps) -> None:
        for step in steps:
            if isinstance(step, Inner):
                self._inner(step)
            elif isinstance(step, Choice):
                self._choice(step)
            else:
                self._step(step)

    def _step(self, step: Step) -> None:
        b = self._b
        spec = product_of(step.kernel)
        if step.callee is None and spec is not None:
            _multiply(b, spec, self._words[id(step)])
        elif step.callee is None:
            assert isinstance(step.kernel, VectorLoop)
            _WrittenOut(b, step, step.kernel, self._words[id(step)]).emit(self._spec.vector_bits)
        else:
            kernel = b.inttoptr(load_arg(b, self._args, step.callee), KERNEL_TYPE.as_pointer())
            b.call(kernel, [self._blocks[id(step)], I64(0), I64(step.tasks), self._scratch])

    def _inner(self, step: Inner) -> None:
        b = self._b
        test, body, after = (b.append_basic_block(name) for name in ("test", "inner", "after"))
        b.branch(test)
        b.position_at_end(test)
        b.cbranch(b.icmp_signed("!=", self.flag(step.flag), I32(0)), body, after)
        b.position_at_end(body)
        self.emit(step.steps)
        b.branch(test)
        b.position_at_end(after)

    def _choice(self, step: Choice) -> None:
        b = self._b
        after = b.append_basic_block("chosen")
        switch = b.switch(self.flag(step.flag), after)
        for number, branch in enumerate(step.branches):
            block = b.append_basic_block("branch")
            switch.add_case(I32(number), block)
            b.position_at_end(block)
            self.emit(branch)
            b.branch(after)
        b.position_at_end(after)


def _own(b: ir.IRBuilder, nbytes: int) -> ir.Value:
    """Memory of the function's own.

    That its lifetime starts says nothing new, but keeps LLVM 22 from a fault: where vectors are stored to parts of such
    memory in one block, and one load reads it all, SROA joins them before the store that is last by address, be it the
    first in time. Values are then used before they are computed, and the code generator ends the process. LLVM 23 has
    that mended; memory with any other use is left to SROA's usual way, which comes to the same machine code.
    """
    slot = b.alloca(ir.ArrayType(I8, max(nbytes, 1)))
    slot.align = _ALIGNED
    b.call(intrinsic(b.module, "llvm.lifetime.start.p0", VOID, [PTR]), [slot])
    return slot


def _words(b: ir.IRBuilder, args: ir.Value, step: Step, slots: Sequence[ir.Value]) -> list[ir.Value]:
    """The words of a kernel's args: addresses as pointers."""
    words: list[ir.Value] = [I64(w) for w in step.words]
    for word, slot, distance in step.addresses:
        words[word] = offset(b, slots[slot], distance)
    for word, at in step.passed:
        words[word] = load_arg(b, args, at)
    return words


def _args_block(b: ir.IRBuilder, words: Sequence[ir.Value]) -> ir.Value:
    """The args block of a kernel that is called: it stays the same from iteration to iteration."""
    block = b.alloca(I64, len(words))
    block.align = _ALIGNED
    for i, word in enumerate(words):
        number = word if word.type == I64 else b.ptrtoint(word, I64)
        b.store(number, b.gep(block, [I64(i)], inbounds=True, source_etype=I64), align=8)
    return block
