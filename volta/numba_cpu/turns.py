"""Neighbouring rows of complex matrices, turned one pair after the other, on the CPU: a QR step of one shift.

Real and imaginary parts are arrays of their own, in lists of all matrices' rows. Rows that find their own rotations are
a task a matrix. Where rotations are known, tasks are some rows of H, which become columns on the way, and strips of Z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value
from volta.emit.loops import I8, I64, PTR, for_range, if_else, if_then, load_args, minimum, offset
from volta.emit.panels import Crew, Lanes, at, copied
from volta.numba_cpu import target
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.dot_tile import lane_mask
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import TURN, Panel, PanelSpec

_STRIP = 128
"""Elements of each row in a task, where rotations are known."""

_LINE = 64  # bytes

_GROUPS = 2
"""Vectors of two rows that are turned at once."""

Pair = tuple[Value, Value]
"""Real and imaginary part."""


def launches(call: KernelCall, vector_bits: int) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Panel)  # its batch are rows, its width matrices
    words, kernel = laid_out((*call.accesses, op.batch, op.width, op.length)), LibraryKernel("panel", op.spec)
    if op.spec.kind == TURN:
        return [Launch(kernel, call, *words, op.width)]
    lanes, held = _held(vector_bits, op.spec, op.length)
    tasks = -(-op.batch // lanes) - (-op.length // _STRIP)
    return [Launch(kernel, call, *words, op.width * tasks, 2 * held + _LINE)]


def _held(vector_bits: int, spec: PanelSpec, length: int) -> tuple[int, int]:
    """Rows that a task turns as columns, and the bytes of a part of them."""
    lanes = vector_bits // (8 * spec.dtype.itemsize)
    return lanes, -(-length // lanes) * lanes * vector_bits // 8


def _product(x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _conjugate(x: Pair) -> Pair:
    return x[0], -x[1]


def _turned(p: Pair, q: Pair, x: Pair, y: Pair) -> tuple[Pair, Pair]:
    """p x + q y, and conj(p) y − conj(q) x."""
    first = [a + b for a, b in zip(_product(p, x), _product(q, y), strict=True)]
    second = [a - b for a, b in zip(_product(_conjugate(p), y), _product(_conjugate(q), x), strict=True)]
    return (first[0], first[1]), (second[0], second[1])


@attrs.frozen
class _Matrix:
    """One matrix of a list: both parts of its rows, and what is known of its rotations."""

    crew: Crew
    dtype: str
    item: ir.Value
    items: ir.Value
    length: ir.Value
    parts: Sequence[ir.Value]
    numbers: Sequence[ir.Value]
    """Where p and q are, both parts of each."""

    @property
    def b(self) -> ir.IRBuilder:
        return self.crew.b

    def index(self, k: ir.Value) -> ir.Value:
        """Of pair k among all rotations."""
        return self.b.add(self.b.mul(k, self.items), self.item)

    def row(self, array: ir.Value, k: ir.Value) -> ir.Value:
        return at(self.b, array, self.b.mul(self.index(k), self.length), self.dtype)

    def rows(self, k: ir.Value) -> list[list[ir.Value]]:
        """Both parts of row k, and of the one behind it."""
        return [[self.row(part, i) for part in self.parts] for i in (k, self.b.add(k, I64(1)))]

    def copy(self, sources: Sequence[ir.Value], count: ir.Value, first: ir.Value, stop: ir.Value) -> None:
        for source, part in zip(sources, self.parts, strict=True):
            with for_range(self.b, 0, count) as k:
                line, out = (at(self.b, self.row(array, k), first, self.dtype) for array in (source, part))
                copied(self.crew, self.dtype, line, out, self.b.sub(stop, first))

    def places(self, k: ir.Value) -> list[ir.Value]:
        return [at(self.b, array, self.index(k), self.dtype) for array in self.numbers]

    def turn(self, k: ir.Value, numbers: Sequence[Value], first: ir.Value, stop: ir.Value) -> None:
        x, y = self.rows(k)

        def some(group: Sequence[Lanes]) -> None:
            for lanes in group:
                pr, pi, qr, qi = (lanes.builder.splat(number) for number in numbers)
                old = [(lanes.load(re, self.dtype), lanes.load(im, self.dtype)) for re, im in (x, y)]
                for new, row in zip(_turned((pr, pi), (qr, qi), *old), (x, y), strict=True):
                    for part, place in zip(new, row, strict=True):
                        lanes.store(part, place)

        self.crew.each(first, stop, some, _GROUPS)


def _is_on(b: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    return b.icmp_unsigned("!=", b.load(offset(b, array, index), align=1, typ=I8), I8(0))


def build(module: ir.Module, name: str, spec: PanelSpec, crew_of: Callable[[ir.IRBuilder, str], Crew]) -> ir.Function:
    return (_build_rows if spec.kind == TURN else _build_columns)(module, name, spec, crew_of)


def _build_rows(
    module: ir.Module, name: str, spec: PanelSpec, crew_of: Callable[[ir.IRBuilder, str], Crew]
) -> ir.Function:
    """Args: both parts of rows, which pairs are turned; both parts of rows, of p and of q, which were turned; then
    rows, matrices and the length of a row."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    dtype, one, crew = spec.dtype.name, Builder(b, 1), crew_of(b, spec.dtype.name)
    *addresses, count, items, length = load_args(b, args, 13)
    re, im, on, re_out, im_out, *numbers, on_out = (b.inttoptr(a, PTR) for a in addresses)
    with for_range(b, begin, end) as item:
        matrix = _Matrix(crew, dtype, item, items, length, (re_out, im_out), numbers)
        matrix.copy((re, im), count, I64(0), length)
        with for_range(b, 0, b.sub(count, I64(1))) as k:
            x, y = ([one.load(at(b, part, k, dtype), dtype) for part in row] for row in matrix.rows(k))
            size = one.sqrt((x[0] * x[0] + x[1] * x[1]) + (y[0] * y[0] + y[1] * y[1]))
            turns = b.and_(_is_on(b, on, matrix.index(k)), (size > 0).ir)
            b.store(b.zext(turns, ir.IntType(8)), offset(b, on_out, matrix.index(k)), align=1)
            with if_else(b, turns) as branch:
                with branch.then():
                    found = [x[0] / size, -x[1] / size, y[0] / size, -y[1] / size]
                    matrix.turn(k, found, I64(0), length)
                    for part in matrix.rows(k)[1]:
                        one.store(one.const(dtype, 0), at(b, part, k, dtype))
                    branch.give(*(number.ir for number in found))
                with branch.otherwise():
                    branch.give(*(one.const(dtype, number).ir for number in (1, 0, 0, 0)))
            for number, place in zip(branch.results, matrix.places(k), strict=True):
                one.store(one.value(number, dtype), place)
    b.ret_void()
    return function


def _build_columns(
    module: ir.Module, name: str, spec: PanelSpec, crew_of: Callable[[ir.IRBuilder, str], Crew]
) -> ir.Function:
    """Args: both parts of H's rows, of Z's columns, of p and of q, which pairs are turned; both parts of H's rows, of
    Z's columns; then rows, matrices and the length of a row."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    dtype, one, crew = spec.dtype.name, Builder(b, 1), crew_of(b, spec.dtype.name)
    *addresses, count, items, length = load_args(b, args, 16)
    h, z, rotations, results = (addresses[i:j] for i, j in ((0, 2), (2, 4), (4, 9), (9, 13)))
    *numbers, on = (b.inttoptr(a, PTR) for a in rotations)
    sources, outs = ([b.inttoptr(a, PTR) for a in some] for some in ((*h, *z), results))
    wide = Builder(b, target.vector_bits() // (8 * spec.dtype.itemsize))
    groups, strips = (
        b.sdiv(b.add(size, I64(each - 1)), I64(each)) for size, each in ((count, wide.lanes), (length, _STRIP))
    )
    near = b.inttoptr(b.and_(b.add(scratch, I64(_LINE - 1)), I64(-_LINE)), PTR)
    with for_range(b, begin, end) as task:
        item = b.sdiv(task, b.add(groups, strips))
        number = b.sub(task, b.mul(item, b.add(groups, strips)))

        def each_turn(turn: Callable[[ir.Value, Sequence[Value]], None], item: ir.Value = item) -> None:
            known = _Matrix(crew, dtype, item, items, length, (), numbers)
            with for_range(b, 0, b.sub(count, I64(1))) as k, if_then(b, _is_on(b, on, known.index(k))):
                pr, pi, qr, qi = (one.load(place, dtype) for place in known.places(k))
                turn(k, (pr, -pi, qr, -qi))

        with if_else(b, b.icmp_signed("<", number, groups)) as branch:
            with branch.then():
                read, write = (_Matrix(crew, dtype, item, items, length, x[:2], ()) for x in (sources, outs))
                strip = _Columns(wide, near, read, b.mul(number, I64(wide.lanes)), b.sub(count, I64(1)))
                strip.move(read, True)
                each_turn(strip.turn)
                strip.move(write, False)
            with branch.otherwise():
                first = b.mul(b.sub(number, groups), I64(_STRIP))
                stop = minimum(b, b.add(first, I64(_STRIP)), length)
                matrix = _Matrix(crew, dtype, item, items, length, outs[2:], ())
                matrix.copy(sources[2:], count, first, stop)
                each_turn(lambda k, found: matrix.turn(k, found, first, stop))  # noqa: B023
    b.ret_void()
    return function


@attrs.frozen
class _Columns:
    """Some rows from ``first`` on, a lane each, in memory of the thread's own: a vector for each column's part."""

    wide: Builder
    near: ir.Value
    matrix: _Matrix
    first: ir.Value
    last: ir.Value

    def _places(self, k: ir.Value) -> list[ir.Value]:
        """Of both parts of column k."""
        b, nbytes = self.wide.irbuilder, target.vector_bits() // 8
        return [offset(b, self.near, b.mul(b.add(b.mul(k, I64(2)), I64(part)), I64(nbytes))) for part in range(2)]

    def move(self, matrix: _Matrix, to_near: bool) -> None:
        """Squares of vectors are transposed; of the last ones some columns are not there."""
        b, wide, dtype = self.wide.irbuilder, self.wide, matrix.dtype
        rows = [minimum(b, b.add(self.first, I64(j)), self.last) for j in range(wide.lanes)]  # the last one again
        with for_range(b, 0, matrix.length, wide.lanes) as k:
            mask = lane_mask(b, wide.lanes, b.sub(matrix.length, k))
            for part, array in enumerate(matrix.parts):
                lines = [at(b, matrix.row(array, row), k, dtype) for row in rows]
                columns = [self._places(b.add(k, I64(j)))[part] for j in range(wide.lanes)]
                if to_near:
                    square = transpose(b, [wide.load_masked(x, dtype, mask).ir for x in lines])
                    for x, place in zip(square, columns, strict=True):
                        wide.store(wide.value(x, dtype), place)
                else:
                    square = transpose(b, [wide.load(x, dtype).ir for x in columns])
                    for x, place in zip(square, lines, strict=True):
                        wide.store_masked(wide.value(x, dtype), place, mask)

    def turn(self, k: ir.Value, numbers: Sequence[Value]) -> None:
        b, wide = self.wide.irbuilder, self.wide
        rows = [self._places(i) for i in (k, b.add(k, I64(1)))]
        x, y = ((wide.load(re, self.matrix.dtype), wide.load(im, self.matrix.dtype)) for re, im in rows)
        pr, pi, qr, qi = (wide.splat(number) for number in numbers)
        for new, places in zip(_turned((pr, pi), (qr, qi), x, y), rows, strict=True):
            for part, place in zip(new, places, strict=True):
                wide.store(part, place)
