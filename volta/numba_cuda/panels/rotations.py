"""Jacobi's rotations on a GPU: of more rows than a warp has lanes a block of threads has a matrix in shared memory, and
a warp sums what a pair shares. Smaller ones are in a warp's lanes (warp_rotations.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I64, if_then, load_args, loop, minimum, offset
from volta.emit.reducers import LANES
from volta.emit.rotations import NOTES, Rotations
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.threads import (
    WARP,
    barrier,
    block_index,
    device_pointer,
    dynamic_shared,
    new_entry,
    shuffle_xor,
    thread_index,
)
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.ordering.indexing import divide
from volta.numba_cuda.panels import warp_rotations
from volta.numba_cuda.panels.registers import lanes_for
from volta.xla_like.kernels import KernelCall
from volta.xla_like.panels import Panel, PanelSpec

_THREADS = 256


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """A warp has as many matrices as it has lanes for; of more rows than lanes a block of threads has one."""
    op = call.kernel
    assert isinstance(op, Panel)
    spec, rows, columns = op.spec, op.width, op.length
    name = f"volta_rotations_{spec.kind}_{spec.dtype.name}"
    if rows <= WARP:
        pieces = (16, spec.dtype.itemsize)
        sizes = [n * spec.dtype.itemsize for n in (rows, columns)] + [x.offset for x in call.accesses]
        piece = next(n for n in pieces if not any(size % n for size in sizes))
        make = partial(warp_rotations.build, spec=spec, rows=rows, columns=columns, piece=piece)
        source = KernelSource(f"{name}_{rows}x{columns}_{piece}", f"rotations {spec} {rows} {columns} {piece}", make)
        yield ctx.launch(source, -(-op.batch * lanes_for(rows) // WARP), WARP, (*call.accesses, op.batch))
    else:
        shared = 8 * rows + spec.dtype.itemsize * (rows * (columns + rows) + NOTES * rows // 2)
        source = KernelSource(name, f"rotations {spec}", partial(build, spec=spec))
        yield ctx.launch(source, op.batch, _THREADS, (*call.accesses, rows, columns), shared)


class _Block:
    """A block of threads."""

    def __init__(self, b: ir.IRBuilder, dtype: str) -> None:
        self.b, self.dtype, self.lanes = b, dtype, Builder(b, 1)
        self.thread = thread_index(b)
        self.lane, self.warp = b.and_(self.thread, I64(WARP - 1)), b.lshr(self.thread, I64(WARP.bit_length() - 1))

    def grid(self, rows: ir.Value, columns: ir.Value, body: Callable[[ir.Value, ir.Value], None]) -> None:
        with loop(self.b, self.thread, self.b.mul(rows, columns), _THREADS) as it:
            body(*divide(self.b, it.index, columns))

    def pairs(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        with loop(self.b, self.warp, count, _THREADS // WARP) as it:
            body(it.index)

    def sum(self, count: ir.Value, term: Callable[[ir.Value], Value]) -> Value:
        """A lane of the warp has a term, or two; lanes without one are passed over."""
        b, w, last = self.b, self.lanes, self.b.sub(count, I64(1))

        def either(test: ir.Value, x: Value, y: Value) -> Value:
            return w.select(w.value(test, "bool"), x, y)

        own, further = term(minimum(b, self.lane, last)), b.add(self.lane, I64(WARP))
        value = either(b.icmp_signed("<", further, count), own + term(minimum(b, further, last)), own)
        half = LANES // 4
        while half:
            other = shuffle_xor(b, value, half)
            low = b.and_(self.lane, I64(half - 1))
            both = b.icmp_signed("<", b.add(low, I64(half)), count)
            lower = b.icmp_signed("==", b.and_(self.lane, I64(half)), I64(0))
            value, half = either(both, value + other, either(lower, value, other)), half // 2
        return value

    @contextmanager
    def once(self) -> Iterator[None]:
        with if_then(self.b, self.b.icmp_signed("==", self.lane, I64(0))):
            yield

    def meet(self) -> None:
        barrier(self.b)

    def any(self, x: Value) -> ir.Value:
        return x.ir

    def at(self, array: ir.Value, index: ir.Value) -> ir.Value:
        return offset(self.b, array, self.b.mul(index, I64(item_size(self.dtype))))


def build(module: ir.Module, name: str, spec: PanelSpec) -> ir.Function:
    """Args: matrices, bounds, rotated matrices, rotations; then rows and columns of a matrix."""
    function, b = new_entry(module, name, _THREADS)
    dtype, size = spec.dtype.name, spec.dtype.itemsize
    *addresses, count, columns = load_args(b, function.args[0], 6)
    source, bounds, out, vectors = (device_pointer(b, x) for x in addresses)
    own, square, item, crew = b.mul(count, columns), b.mul(count, count), block_index(b), _Block(b, dtype)
    seats = dynamic_shared(module, b)
    x = offset(b, seats, b.shl(b.lshr(count, I64(1)), I64(4)))
    v, notes = crew.at(x, own), crew.at(x, b.add(own, square))
    one = crew.lanes

    def of(array: ir.Value, each: ir.Value, k: ir.Value) -> ir.Value:
        return crew.at(array, b.add(b.mul(item, each), k))

    def copied(from_: Callable[[ir.Value], ir.Value], to: Callable[[ir.Value], ir.Value], count: ir.Value) -> None:
        crew.grid(count, I64(1), lambda k, _: one.store(one.load(from_(k), dtype, size), to(k)))

    copied(lambda k: of(source, own, k), lambda k: crew.at(x, k), own)
    least = one.load(of(bounds, I64(1), I64(0)), dtype)
    Rotations(crew, dtype, x, v, notes, seats, count, columns).sweeps(spec.kind == "symmetric", least)
    copied(lambda k: crew.at(x, k), lambda k: of(out, own, k), own)
    copied(lambda k: crew.at(v, k), lambda k: of(vectors, square, k), square)
    b.ret_void()
    return function
