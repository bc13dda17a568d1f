"""A sweep of Jacobi's rotations of the rows of a larger matrix, on the CPU: a task is a matrix.

Rows stay where they lie, and it is computed who meets whom. A row's length is known until it is rotated: so of a pair
that is orthogonal already the product is summed and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.core.ir import Eqn
from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value
from volta.emit.loops import I8, I64, PTR, for_range, if_then, load_args, offset
from volta.emit.panels import Lanes, at, copied
from volta.emit.reflections import Crew
from volta.emit.rotations import angle_of, row_in_seat
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import Panel, PanelSpec

LONGEST = 1024
"""Rows of a matrix that one thread sweeps: larger ones are far from its cache, and loops over them are shared out."""

_GROUPS = 4
"""Vectors of two rows that are rotated at once."""

_KNOWN = 2
"""Numbers that are known of a row: the sum of its squares, and the root of that."""


def keeps(eqn: Eqn) -> bool:
    return max(eqn.inputs[0].aval.shape[1:]) <= LONGEST


def launches(call: KernelCall) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Panel)
    words = laid_out((*call.accesses, op.width, op.length))
    return [Launch(LibraryKernel("panel", op.spec), call, *words, op.batch, _KNOWN * op.width * op.spec.dtype.itemsize)]


@attrs.frozen
class _Sweep:
    """Of one matrix: its rows, and those that are rotated with them."""

    crew: Crew
    dtype: str
    x: ir.Value
    v: ir.Value
    known: ir.Value
    count: ir.Value
    length: ir.Value

    @property
    def b(self) -> ir.IRBuilder:
        return self.crew.b

    def _row(self, array: ir.Value, row: ir.Value, length: ir.Value) -> ir.Value:
        return at(self.b, array, self.b.mul(row, length), self.dtype)

    def _product(self, p: ir.Value, q: ir.Value) -> Value:
        rows = [self._row(self.x, row, self.length) for row in (p, q)]

        def term(lanes: Lanes) -> Value:
            first, second = (lanes.load(row, self.dtype) for row in rows)
            return first * second

        return self.crew.sum(self.length, term, self.dtype)

    def _places(self, row: ir.Value) -> list[ir.Value]:
        start = self.b.mul(row, I64(_KNOWN))
        return [at(self.b, self.known, self.b.add(start, I64(k)), self.dtype) for k in range(_KNOWN)]

    def measure(self, row: ir.Value) -> None:
        one, total = Builder(self.b, 1), self._product(row, row)
        for x, place in zip((total, one.sqrt(total)), self._places(row), strict=True):
            one.store(x, place)

    def pair(self, p: ir.Value, q: ir.Value, least: Value) -> None:
        """Two rows, which are rotated if their product is above ``least`` of their lengths."""
        b, one = self.b, Builder(self.b, 1)
        xy = self._product(p, q)
        (xx, long), (yy, other) = ([one.load(x, self.dtype) for x in self._places(row)] for row in (p, q))
        rotated = abs(xy) > long * other * least
        with if_then(b, rotated.ir, likely=False):
            _, c, s = angle_of(one, xx, yy, xy, rotated)
            for array, length in ((self.x, self.length), (self.v, self.count)):
                self._rotate([self._row(array, row, length) for row in (p, q)], length, c, s)
            for row in (p, q):
                self.measure(row)

    def _rotate(self, rows: Sequence[ir.Value], length: ir.Value, c: Value, s: Value) -> None:
        def some(group: Sequence[Lanes]) -> None:
            for lanes in group:
                wide = lanes.builder
                x, y = (lanes.load(row, self.dtype) for row in rows)
                cosine, sine = wide.splat(c), wide.splat(s)
                lanes.store(wide.fma(cosine, x, -(sine * y)), rows[0])
                lanes.store(wide.fma(cosine, y, sine * x), rows[1])

        self.crew.each(0, length, some, _GROUPS)


def build(module: ir.Module, name: str, spec: PanelSpec, crew_of: Callable[[ir.IRBuilder, str], Crew]) -> ir.Function:
    """Args: the rows, what is rotated with them, bounds, which matrices; both results; then rows and their length."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    dtype, one, crew = spec.dtype.name, Builder(b, 1), crew_of(b, spec.dtype.name)
    *addresses, count, length = load_args(b, args, 8)
    x, v, bounds, only, x_out, v_out = (b.inttoptr(a, PTR) for a in addresses)
    half, own, square = b.lshr(count, I64(1)), b.mul(count, length), b.mul(count, count)
    with for_range(b, begin, end) as item:

        def of(array: ir.Value, size: ir.Value, item: ir.Value = item) -> ir.Value:
            return at(b, array, b.mul(item, size), dtype)

        sweep = _Sweep(crew, dtype, of(x_out, own), of(v_out, square), b.inttoptr(scratch, PTR), count, length)
        copied(crew, dtype, of(x, own), sweep.x, own)
        copied(crew, dtype, of(v, square), sweep.v, square)
        least = one.load(of(bounds, I64(1)), dtype)
        some = b.icmp_unsigned("!=", b.load(offset(b, only, item), align=1, typ=I8), I8(0))
        with if_then(b, some):
            with for_range(b, 0, count) as row:
                sweep.measure(row)
            with for_range(b, 0, b.sub(count, I64(1))) as number, for_range(b, 0, half) as seat:
                p, q = (row_in_seat(b, count, number, k) for k in (seat, b.add(seat, half)))
                sweep.pair(p, q, least)
    b.ret_void()
    return function
