"""Code for loops of small bodies on a GPU: see `volta.numba_cuda.loops.small_loops`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import gcd
from typing import TYPE_CHECKING

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Value, is_float
from volta.emit.loops import I1, I32, I64, fma, for_range, if_then, load_arg, loop, minimum, offset
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    thread_index,
)
from volta.numba_cuda.loops.nests_body import ThreadEmitter
from volta.numba_cuda.loops.nests_row import RegisterRow
from volta.numba_cuda.loops.row_variants import RowVariant
from volta.numba_cuda.loops.scalars import WIDEST, ThreadBuilder
from volta.numba_cuda.loops.thread_groups import ThreadGroup, ThreadGroupShape
from volta.xla_like.dot import CHUNK, Dot
from volta.xla_like.kernels import LoopKernel

if TYPE_CHECKING:
    from volta.numba_cuda.loops.small_loops import Slot, SmallLoop, Step

LINKS = 128
"""Multiply-adds of a chain whose operands are asked for together."""


def build_small_loop(module: ir.Module, name: str, loop: SmallLoop) -> ir.Function:
    """Args: how many iterations at most, then the words of slots and of steps."""
    function, b = new_entry(module, name, loop.threads)
    block = _Block(b, function.args[0], loop, dynamic_shared(module, b))
    bodies = [block.words(step) for step in loop.steps]
    block.copy_in()
    barrier(b)
    most, entry = load_arg(b, function.args[0], 0), b.block
    iteration, end = b.append_basic_block("iteration"), b.append_basic_block("end")
    b.branch(iteration)
    b.position_at_end(iteration)
    left = b.phi(I64)
    left.add_incoming(most, entry)
    for step, words in zip(loop.steps, bodies, strict=True):
        if step.meets:
            barrier(b)
        block.emit(step, words)
    barrier(b)
    fewer = b.sub(left, I64(1))
    left.add_incoming(fewer, b.block)
    goes_on = b.icmp_signed("!=", b.load(block.places[loop.flag], typ=I32, align=4), I32(0))
    b.cbranch(b.and_(goes_on, b.icmp_signed("!=", fewer, I64(0))), iteration, end)
    b.position_at_end(end)
    block.copy_out()
    b.ret_void()
    return function


def build_settling(module: ir.Module, name: str, sizes: Sequence[int]) -> ir.Function:
    """Copies arrays of so many bytes. Args: of each, where it is and where it is to be."""
    function, b = new_entry(module, name, WARP)
    for i, nbytes in enumerate(sizes):
        source, to = (device_pointer(b, load_arg(b, function.args[0], 2 * i + k)) for k in (0, 1))
        _copy(b, source, to, I64(nbytes), WARP)
    b.ret_void()
    return function


def _copy(b: ir.IRBuilder, source: ir.Value, to: ir.Value, nbytes: ir.Value, threads: int) -> None:
    """A block's threads copy words of 32 bits."""
    with for_range(b, b.shl(thread_index(b), I64(2)), nbytes, 4 * threads) as at:
        b.store(b.load(offset(b, source, at), typ=I32, align=4), offset(b, to, at), align=4)


class _Block:
    """A block of threads: its rows, and where slots lie for them."""

    def __init__(self, b: ir.IRBuilder, args: ir.Value, spec: SmallLoop, shared: ir.Value) -> None:
        self._b, self._args, self._spec = b, args, spec
        self._thread = b.trunc(thread_index(b), I32)
        first = b.mul(b.trunc(block_index(b), I32), I32(spec.each))
        self._first = b.zext(first, I64)
        self._rows = minimum(b, b.sub(I64(spec.rows), self._first), spec.each)
        self._device = [None if s.word is None else device_pointer(b, load_arg(b, args, s.word)) for s in spec.slots]
        self._shared = shared
        self.places = [self._place(s, at) for s, at in zip(spec.slots, self._device, strict=True)]

    def _place(self, s: Slot, device: ir.Value | None) -> ir.Value:
        """Where the first row of a slot lies, or would lie if the block had it."""
        if s.shared is None:
            assert device is not None
            return device
        return offset(self._b, offset(self._b, self._shared, s.shared), self._b.neg(self._start(s)))

    def _start(self, s: Slot) -> ir.Value:
        """How far into a slot the block's rows begin."""
        return self._b.mul(self._first, I64(s.row))

    def _kept(self) -> Iterator[tuple[Slot, ir.Value, ir.Value, ir.Value]]:
        """What the block keeps a copy of: where that begins, where it is in device memory, and the bytes."""
        b = self._b
        for s, device in zip(self._spec.slots, self._device, strict=True):
            if s.shared is not None and device is not None:
                nbytes = b.mul(self._rows, I64(s.row)) if s.row else I64(s.nbytes)
                yield s, offset(b, self._shared, s.shared), offset(b, device, self._start(s)), nbytes

    def copy_in(self) -> None:
        for _, own, device, nbytes in self._kept():
            _copy(self._b, device, own, nbytes, self._spec.threads)

    def copy_out(self) -> None:
        """What every block has computed, the first one gives back."""
        b = self._b
        for s, own, device, nbytes in self._kept():
            if s.written and s.settled is None:
                _copy(b, own, device, nbytes, self._spec.threads)
            elif s.written:
                with if_then(b, b.icmp_signed("==", self._first, I64(0))):
                    to = device_pointer(b, load_arg(b, self._args, s.settled))
                    _copy(b, own, to, nbytes, self._spec.threads)

    def words(self, step: Step) -> list[ir.Value]:
        """The args of a step: numbers as they are known, addresses as pointers."""
        words: list[ir.Value] = [I64(w) for w in step.words]
        for word, slot, distance in step.addresses:
            words[word] = offset(self._b, self.places[slot], distance)
        for word, at in step.passed:
            words[word] = load_arg(self._b, self._args, at)
        return words

    def _range(self, step: Step) -> tuple[ir.Value, ir.Value, int]:
        """Of a step's elements the first one that the block computes, how many there are, and how many at most."""
        if not step.rows:
            return I64(0), I64(step.elements), step.elements
        row = step.elements // self._spec.rows
        return self._b.mul(self._first, I64(row)), self._b.mul(self._rows, I64(row)), row * self._spec.each

    @contextmanager
    def _elements(self, step: Step) -> Iterator[ir.Value]:
        """For each of the step's elements that the thread computes, its number."""
        b, threads = self._b, self._spec.threads
        start, count, most = self._range(step)
        thread = b.zext(self._thread, I64)
        if most <= threads:
            with if_then(b, b.icmp_signed("<", thread, count)):
                yield b.add(start, thread)
        else:
            with for_range(b, thread, count, threads) as at:
                yield b.add(start, at)

    def emit(self, step: Step, words: Sequence[ir.Value]) -> None:
        """One step; all threads of a block find the same in flags."""
        b, holds = self._b, ir.Constant(I1, 1)
        for slot, number in step.only:
            flag = b.load(self.places[slot], typ=I32, align=4)
            holds = b.and_(holds, b.icmp_signed("==", flag, I32(number)))
        with if_then(b, holds) if step.only else nullcontext():
            self._run(step, words)

    def _run(self, step: Step, words: Sequence[ir.Value]) -> None:
        kernel = step.kernel
        if isinstance(kernel, LoopKernel) and kernel.mode == "row":
            self._reduced(step, kernel, words)
            return
        with self._elements(step) as element:
            element = self._b.zext(self._b.trunc(element, I32), I64)  # so that LLVM divides in 32 bits
            if isinstance(kernel, Dot):
                _product(self._b, step, kernel, words, element)
            else:
                _Element(self._b, kernel, words).emit(element)

    def _reduced(self, step: Step, kernel: LoopKernel, words: Sequence[ir.Value]) -> None:
        """Rows that are reduced: a warp takes one, and all its threads stay together."""
        b = self._b
        start, count, _ = self._range(step)
        body = _Element(b, kernel, words)
        length = body.sizes[-1].constant
        v = RowVariant(ThreadGroupShape(1, WARP, 1), self._spec.threads // WARP, length, False, careful=True)
        threads = ThreadGroup(b, v.shape, b.zext(self._thread, I64), v.threads)
        with for_range(b, I64(0), count, v.groups) as first:
            row = b.add(first, threads.slot)
            active = b.icmp_signed("<", row, count)
            row = b.zext(b.trunc(b.add(start, b.select(active, row, I64(0))), I32), I64)
            RegisterRow(body, threads, body.unravel(row, body.sizes[:-1]), active, v, None).emit()


class _Element(ThreadEmitter):
    """An element of a loop: sizes and strides are numbers, addresses those of slots."""

    def __init__(self, b: ir.IRBuilder, kernel: LoopKernel, words: Sequence[ir.Value]) -> None:
        self._given = words
        super().__init__(b, None, kernel)

    def word(self, at: int) -> ir.Value:
        return self._given[at]

    def pointer(self, at: int) -> ir.Value:
        return self._given[at]

    def emit(self, element: ir.Value) -> None:
        *outer, index = self.unravel(element, self.sizes)
        row, stores = self.row_bases(outer)
        values: dict[int, Value] = {}
        self.evaluate(self.invariant(), values, 1, row, None)
        self.evaluate(self.pass_values([s.value for s in self.kernel.stores]), values, 1, row, index)
        for k, s in enumerate(self.kernel.stores):
            self.store(k, s, values[s.value], 1, stores[k], index, values)


def _product(b: ir.IRBuilder, step: Step, dot: Dot, words: Sequence[ir.Value], element: ir.Value) -> None:
    """An element of a product: chains of multiply-adds, added one after the other, as DOT has it."""
    one, spec, dtype = ThreadBuilder(b, 1), dot.spec, dot.spec.accumulator
    index: list[ir.Value] = []
    for n in (dot.n, dot.m, dot.batch[1]):
        index.insert(0, b.urem(element, I64(n)))
        element = b.udiv(element, I64(n))
    outer, inner, row, column = element, *index
    lhs = _Operand(b, step, words, 0, (outer, inner, row, None))
    rhs = _Operand(b, step, words, 1, (outer, inner, None, column))
    out = _Operand(b, step, words, 2, (outer, inner, row, column))

    def links(start: ir.Value, total: ir.Value, count: int) -> ir.Value:
        numbers = (side.read(one, kind, dtype, start, count) for side, kind in ((lhs, spec.lhs), (rhs, spec.rhs)))
        for x, y in zip(*numbers, strict=True):
            total = fma(b, x, y, total) if is_float(dtype) else b.add(total, b.mul(x, y))
        return total

    def chain(first: int, stop: int) -> ir.Value:
        total, whole = one.const(dtype, 0).ir, (stop - first) // LINKS * LINKS
        if whole:
            with loop(b, first, first + whole, LINKS, init=[total], some=True) as it:
                it.advance(links(it.index, it.values[0], LINKS))
            total = it.results[0]
        return links(I64(first + whole), total, stop - first - whole) if stop - first > whole else total

    total = None
    for first in range(0, dot.k, CHUNK):
        found = one.value(chain(first, min(first + CHUNK, dot.k)), dtype)
        total = found if total is None else total + found
    assert total is not None
    half = spec.out in HALF_DTYPES
    total = one.round_to_half(total, spec.out) if half else total if spec.out == dtype else one.cast(total, spec.out)
    one.store(total, out.place, spec.out)


class _Operand:
    """Where a product's operand, or its result, lies for an element: ``index`` has None for k."""

    def __init__(
        self, b: ir.IRBuilder, step: Step, words: Sequence[ir.Value], number: int, index: Sequence[ir.Value | None]
    ) -> None:
        self._b, first = b, 5 * number
        strides = step.words[first + 1 : first + 5]
        self.place, self._along = words[first], 0
        for at, stride in zip(index, strides, strict=True):
            if at is None:
                self._along = stride
            else:
                self.place = offset(b, self.place, b.mul(at, I64(stride)))
        distances = [distance for at, _, distance in step.addresses if at == first]
        self._aligned = gcd(WIDEST, *distances, *(n for n, at in zip(strides, index, strict=True) if at is not None))

    def read(self, one: ThreadBuilder, dtype: str, wide: str, start: ir.Value, count: int) -> list[ir.Value]:
        """The numbers from one on along k, widened: neighbours are read together, as LLVM knows what addresses are
        multiples of."""
        first, step = offset(self._b, self.place, self._b.mul(start, I64(self._along))), self._along
        aligned = gcd(self._aligned, step * LINKS)
        found = [one.load(offset(self._b, first, i * step), dtype, gcd(aligned, i * step)) for i in range(count)]
        return [(x if x.dtype == wide else one.cast(x, wide)).ir for x in found]
