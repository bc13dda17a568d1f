"""Jacobi's rotations on the CPU: a task is as many matrices as a vector has lanes, a lane is a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, PTR, for_range, load_args, minimum, offset
from volta.emit.reducers import LANES
from volta.emit.rotations import NOTES, Rotations
from volta.numba_cpu import target
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import Panel, PanelSpec

_LINE = 64  # bytes


def launches(call: KernelCall, vector_bits: int) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Panel)
    lanes, half = vector_bits // (8 * op.spec.dtype.itemsize), op.width // 2
    numbers = op.width * (op.length + op.width) + NOTES * half + LANES
    scratch = numbers * vector_bits // 8 + 16 * half + _LINE
    words = laid_out((*call.accesses, op.batch, op.width, op.length))
    return [Launch(LibraryKernel("panel", op.spec), call, *words, -(-op.batch // lanes), scratch)]


class _Thread:
    """A thread of the CPU. ``terms`` is memory for what it sums."""

    def __init__(self, b: ir.IRBuilder, dtype: str, lanes: Builder, terms: ir.Value) -> None:
        self.b, self.dtype, self.lanes, self.terms = b, dtype, lanes, terms

    def grid(self, rows: ir.Value, columns: ir.Value, body: Callable[[ir.Value, ir.Value], None]) -> None:
        with for_range(self.b, 0, rows) as i, for_range(self.b, 0, columns) as j:
            body(i, j)

    def pairs(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        with for_range(self.b, 0, count) as i:
            body(i)

    def sum(self, count: ir.Value, term: Callable[[ir.Value], Value]) -> Value:
        b = self.b
        with for_range(b, 0, count) as k:
            self.lanes.store(term(k), self.at(self.terms, k))
        half = LANES // 2
        while half:
            with for_range(b, 0, minimum(b, b.sub(count, I64(half)), half)) as k:
                low, high = self.at(self.terms, k), self.at(self.terms, b.add(k, I64(half)))
                self.lanes.store(self.lanes.load(low, self.dtype) + self.lanes.load(high, self.dtype), low)
            half //= 2
        return self.lanes.load(self.terms, self.dtype)

    @contextmanager
    def once(self) -> Iterator[None]:
        yield

    def meet(self) -> None:
        pass

    def any(self, x: Value) -> ir.Value:
        return self.lanes.intrinsic("vector.reduce.or", "bool", x.ir, result=ir.IntType(1))

    def at(self, array: ir.Value, index: ir.Value) -> ir.Value:
        return offset(self.b, array, self.b.mul(index, I64(self.lanes.lanes * item_size(self.dtype))))


def build(module: ir.Module, name: str, spec: PanelSpec) -> ir.Function:
    """Args: matrices, bounds, rotated matrices, rotations; then batch, rows and columns of a matrix."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    dtype, size = spec.dtype.name, spec.dtype.itemsize
    wide, width = Builder(b, target.vector_bits() // (8 * size)), I64(target.vector_bits() // 8)
    *addresses, batch, count, columns = load_args(b, args, 7)
    source, bounds, out, vectors = (b.inttoptr(x, PTR) for x in addresses)
    own, square = b.mul(count, columns), b.mul(count, count)
    start = b.inttoptr(b.and_(b.add(scratch, I64(_LINE - 1)), I64(-_LINE)), PTR)
    terms = start
    x = offset(b, terms, b.mul(I64(LANES), width))
    v = offset(b, x, b.mul(own, width))
    notes = offset(b, v, b.mul(square, width))
    seats = offset(b, notes, b.mul(b.mul(b.lshr(count, I64(1)), I64(NOTES)), width))
    crew = _Thread(b, dtype, wide, terms)
    rotations = Rotations(crew, dtype, x, v, notes, seats, count, columns)
    with for_range(b, begin, end) as task:
        first, last = b.mul(task, I64(wide.lanes)), b.sub(batch, I64(1))
        items = [minimum(b, b.add(first, I64(k)), last) for k in range(wide.lanes)]  # the last one again, at the end

        def places(each: ir.Value, k: ir.Value, items: list[ir.Value] = items) -> list[ir.Value]:
            return [b.mul(b.add(b.mul(i, each), k), I64(size)) for i in items]

        with for_range(b, 0, own) as k:
            wide.store(wide.load_at(source, places(own, k), dtype), crew.at(x, k))
        least = wide.load_at(bounds, places(I64(1), I64(0)), dtype)
        rotations.sweeps(spec.kind == "symmetric", least)
        for array, near, each in ((out, x, own), (vectors, v, square)):
            with for_range(b, 0, each) as k:
                wide.store_at(wide.load(crew.at(near, k), dtype), array, places(each, k))
    b.ret_void()
    return function
