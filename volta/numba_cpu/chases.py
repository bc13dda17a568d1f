"""A QR step of Hessenberg's form on the CPU: reflections of three rows and columns chase a bulge down the diagonal.

One kernel turns what the reflections to come depend on: of each three rows what is from the diagonal on, and of three
columns the three rows that are turned next. It notes the reflections. Another one turns by them what is above, and Zᵀ:
a task is some rows of H, whose columns become vectors, or some columns of Zᵀ. So an element is turned in the same order
as in the program; zeros below the bulge stay zeros, and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value, item_size
from volta.emit.loops import I8, I32, I64, PTR, for_range, if_else, if_then, load_args, loop, minimum, offset
from volta.emit.panels import TOGETHER, Lanes, at, copied
from volta.emit.reflections import Crew
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.panels import Panel, PanelSpec

REST = "panel_rest"

_GROUPS = 2
"""Vectors of rows in a task: each waits for its last sum, and meanwhile another one is added up."""

_NOTES = 3
"""Numbers that are noted of a reflection."""

_LINE = 64  # bytes


def workspace(call: KernelCall) -> int:
    """Bytes for the notes."""
    op = call.kernel
    assert isinstance(op, Panel)
    return op.batch * op.length * _NOTES * op.spec.dtype.itemsize


def launches(call: KernelCall, vector_bits: int) -> list[Launch]:
    op, notes = call.kernel, call.workspace
    assert isinstance(op, Panel) and notes is not None
    words = laid_out((*call.accesses, Access(notes, 0, ()), op.length))
    rows, columns = _cut(vector_bits, op.spec)
    tasks = op.batch * (-(-(op.length - 1) // rows) - (-(op.length - 1) // columns))
    scratch = rows * (op.length + 1) * op.spec.dtype.itemsize + _LINE
    first = Launch(LibraryKernel("panel", op.spec), call, *words, op.batch)
    return [first, Launch(LibraryKernel(REST, op.spec), call, *words, tasks, scratch)]


def _cut(vector_bits: int, spec: PanelSpec) -> tuple[int, int]:
    """Rows of H in a task, and columns of Zᵀ."""
    lanes = vector_bits // (8 * spec.dtype.itemsize)
    return _GROUPS * lanes, TOGETHER * lanes


@attrs.frozen
class _Matrix:
    """One matrix of a call: H, of which row and column ``n`` are zeros, and Zᵀ. The block from ``low`` to ``high`` is
    to be turned, if any is ``left``."""

    b: ir.IRBuilder
    dtype: str
    n: ir.Value
    length: ir.Value
    h: tuple[ir.Value, ir.Value]
    z: tuple[ir.Value, ir.Value]
    linked: ir.Value
    first: tuple[Value, ...]
    low: ir.Value
    high: ir.Value
    left: ir.Value
    notes: ir.Value

    @classmethod
    def of(cls, b: ir.IRBuilder, args: ir.Value, dtype: str, item: ir.Value) -> _Matrix:
        *addresses, length = load_args(b, args, 13)
        h, z, linked, x, y, end, low, high, left, h_out, z_out, notes = (b.inttoptr(a, PTR) for a in addresses)
        n, one = b.sub(length, I64(1)), Builder(b, 1)

        def place(array: ir.Value, *sizes: ir.Value, kind: str = dtype) -> ir.Value:
            index = item
            for size in sizes:
                index = b.mul(index, size)
            return at(b, array, index, kind)

        ends = [b.sext(b.load(place(a, kind="int32"), align=4, typ=I32), I64) for a in (low, high)]
        return cls(
            b, dtype, n, length,
            (place(h, length, length), place(h_out, length, length)), (place(z, length, n), place(z_out, length, n)),
            place(linked, b.sub(n, I64(1)), kind="bool"), tuple(one.load(place(a), dtype) for a in (x, y, end)),
            ends[0], ends[1],
            b.icmp_unsigned("!=", b.load(place(left, kind="bool"), align=1, typ=I8), I8(0)),
            place(notes, length, I64(_NOTES)),
        )  # fmt: skip

    def row(self, k: ir.Value) -> ir.Value:
        return at(self.b, self.h[1], self.b.mul(k, self.length), self.dtype)

    def note(self, k: ir.Value) -> list[ir.Value]:
        """Where v, w and t of a reflection are noted."""
        return [at(self.b, self.notes, self.b.add(self.b.mul(k, I64(_NOTES)), I64(i)), self.dtype) for i in range(3)]

    def noted(self, k: ir.Value) -> list[Value]:
        return [Builder(self.b, 1).load(place, self.dtype) for place in self.note(k)]


def _reflection(one: Builder, x: Value, y: Value, z: Value) -> tuple[Value, Value, Value]:
    """v, w and t of 1 − t (1, v, w)ᵀ(1, v, w), which takes (x, y, z) to its length times (1, 0, 0)."""
    size = one.max(one.max(abs(x), abs(y)), abs(z))
    some = one.max(abs(y), abs(z)) > 0
    size = one.select(some, size, 1)
    x, y, z = x / size, y / size, z / size
    root = one.sqrt(x * x + y * y + z * z)
    length = one.select(x < 0, -root, root)
    first = one.select(some, x + length, 1)
    factor = one.select(some, first / one.select(some, length, 1), 0)
    return y / first, z / first, factor


def _reflected(wide: Builder, noted: Sequence[Value], x: Value, y: Value, z: Value) -> tuple[Value, Value, Value]:
    v, w, t = (wide.splat(a) for a in noted)
    share = (x + v * y + w * z) * t
    return x - share, y - v * share, z - w * share


# -- the reflections ---------------------------------------------------------------------------------------------------


def build(module: ir.Module, name: str, spec: PanelSpec, crew_of: Callable[[ir.IRBuilder, str], Crew]) -> ir.Function:
    """Args: H, Zᵀ, what is linked, the first column's three elements, low, high, left; H and Zᵀ; notes; H's length."""
    function, b = new_kernel(module, name)
    args, begin, end, _ = function.args
    crew = crew_of(b, spec.dtype.name)
    with for_range(b, begin, end) as item:
        matrix = _Matrix.of(b, args, spec.dtype.name, item)
        copied(crew, matrix.dtype, *matrix.h, b.mul(matrix.length, matrix.length))
        with for_range(b, 0, b.sub(matrix.n, I64(1))) as k:
            link = b.load(at(b, matrix.linked, k, "bool"), align=1, typ=I8)
            with if_then(b, b.icmp_unsigned("==", link, I8(0))):
                one = Builder(b, 1)
                one.store(one.const(spec.dtype.name, 0), at(b, matrix.row(b.add(k, I64(1))), k, spec.dtype.name))
        with if_then(b, matrix.left), for_range(b, matrix.low, matrix.high) as k:
            _turn(crew, matrix, k)
    b.ret_void()
    return function


def _turn(crew: Crew, matrix: _Matrix, k: ir.Value) -> None:
    """Reflection k: its rows from the diagonal on, and of its columns the rows below it."""
    b, dtype, one = crew.b, matrix.dtype, Builder(crew.b, 1)
    rows = [matrix.row(b.add(k, I64(i))) for i in range(3)]
    begins = one.value(b.icmp_signed("==", k, matrix.low), "bool")
    column = b.select(begins.ir, k, b.sub(k, I64(1)))
    before = [at(b, row, column, dtype) for row in rows]
    held = [one.load(place, dtype) for place in before]
    x, y, z = (one.select(begins, f, a) for f, a in zip(matrix.first, held, strict=True))
    last = one.value(b.icmp_signed(">=", b.add(k, I64(1)), matrix.high), "bool")
    found = _reflection(one, x, y, one.select(last, 0, z))
    for number, place in zip(found, matrix.note(k), strict=True):
        one.store(number, place)
    with if_then(b, b.not_(begins.ir)):
        turned, *_ = _reflected(one, found, *held)
        for number, place in zip((turned, one.const(dtype, 0), one.const(dtype, 0)), before, strict=True):
            one.store(number, place)

    def along(group: Sequence[Lanes]) -> None:
        for lanes in group:
            for number, row in zip(
                _reflected(lanes.builder, found, *(lanes.load(row, dtype) for row in rows)), rows, strict=True
            ):
                lanes.store(number, row)

    crew.each(k, matrix.length, along, _GROUPS)
    with for_range(b, b.add(k, I64(1)), minimum(b, b.add(k, I64(4)), matrix.n)) as r:
        places = [at(b, matrix.row(r), b.add(k, I64(i)), dtype) for i in range(3)]
        for number, place in zip(_reflected(one, found, *(one.load(p, dtype) for p in places)), places, strict=True):
            one.store(number, place)


# -- the rest ----------------------------------------------------------------------------------------------------------


def build_rest(
    module: ir.Module, name: str, spec: PanelSpec, vector_bits: int, crew_of: Callable[[ir.IRBuilder, str], Crew]
) -> ir.Function:
    """Args: as `build`'s."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    rows, columns = _cut(vector_bits, spec)
    lanes, dtype, crew = rows // _GROUPS, spec.dtype.name, crew_of(b, spec.dtype.name)
    near = b.inttoptr(b.and_(b.add(scratch, I64(_LINE - 1)), I64(-_LINE)), PTR)
    with for_range(b, begin, end) as task:
        (length,) = load_args(b, args, 1, 12)
        groups, strips = (b.sdiv(b.add(b.sub(length, I64(1)), I64(size - 1)), I64(size)) for size in (rows, columns))
        each = b.add(groups, strips)
        item = b.sdiv(task, each)
        number = b.sub(task, b.mul(item, each))
        matrix = _Matrix.of(b, args, dtype, item)
        with if_else(b, b.icmp_signed("<", number, groups)) as branch:
            with branch.then():
                first = b.mul(number, I64(rows))
                with if_then(b, b.and_(matrix.left, b.icmp_signed("<", first, matrix.high))):
                    _above(matrix, lanes, first, near)
            with branch.otherwise():
                first = b.mul(b.sub(number, groups), I64(columns))
                _beside(crew, matrix, lanes, first, minimum(b, b.add(first, I64(columns)), matrix.n))
    b.ret_void()
    return function


def _turned(
    matrix: _Matrix, wide: Builder, count: int, place: Callable[[ir.Value, int], ir.Value],
    numbers: Sequence[Value], start: ir.Value, middle: ir.Value,
) -> None:  # fmt: skip
    """Vectors by all reflections from ``start`` on; up to ``middle`` those lanes whose ``numbers`` these have reached.

    ``place``: of element k of vector number i.
    """
    b, dtype = matrix.b, matrix.dtype

    def load(k: ir.Value) -> list[Value]:
        return [wide.load(place(k, i), dtype) for i in range(count)]

    values = [x.ir for k in (start, b.add(start, I64(1))) for x in load(k)]
    for low, high in ((start, middle), (middle, matrix.high)):
        with loop(b, low, high, 1, values) as it:
            k, given = it.index, [wide.value(x, dtype) for x in it.values]
            following, noted = load(b.add(k, I64(2))), matrix.noted(it.index)
            after = []
            for i, old in enumerate(zip(given[:count], given[count:], following, strict=True)):
                new = _reflected(wide, noted, *old)
                if numbers and high is middle:
                    on = numbers[i] <= wide.splat(Builder(b, 1).value(k, "int64"))
                    new = tuple(wide.select(on, y, x) for x, y in zip(old, new, strict=True))  # type: ignore[assignment]
                wide.store(new[0], place(k, i))
                after.append(new[1:])
            it.advance(*(x.ir for x, _ in after), *(x.ir for _, x in after))
        values = it.results
    for at_end, value in enumerate(values):
        k = b.add(matrix.high, I64(at_end // count))
        wide.store(wide.value(value, dtype), place(k, at_end % count))


def _above(matrix: _Matrix, lanes: int, first: ir.Value, near: ir.Value) -> None:
    """Rows of H from ``first`` on, each by the reflections from its own number on: as columns in memory near by."""
    b, dtype, size = matrix.b, matrix.dtype, item_size(matrix.dtype)
    rows = _GROUPS * lanes
    beyond = b.icmp_signed(">", b.add(first, I64(rows)), matrix.length)

    def begin(row: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed(">", matrix.low, row), matrix.low, row)

    with if_else(b, beyond) as branch:
        with branch.then(), for_range(b, first, minimum(b, matrix.n, matrix.high)) as r:
            row = matrix.row(r)
            _turned(matrix, Builder(b, 1), 1, lambda k, i: at(b, row, k, dtype), (), begin(r), begin(r))
        with branch.otherwise():
            start, wide = begin(first), Builder(b, lanes)

            def place(k: ir.Value, i: int) -> ir.Value:
                return offset(b, near, b.add(b.mul(b.sub(k, start), I64(rows * size)), I64(i * lanes * size)))

            numbers = []
            for i in range(_GROUPS):
                own = Builder(b, 1).value(b.add(first, I64(i * lanes)), "int64")
                numbers.append(wide.splat(own) + wide.iota("int64"))
            _moved(matrix, lanes, first, start, place, True)
            last = minimum(b, b.add(first, I64(rows - 1)), matrix.high)
            middle = b.select(b.icmp_signed(">", last, start), last, start)
            _turned(matrix, wide, _GROUPS, place, numbers, start, middle)
            _moved(matrix, lanes, first, start, place, False)


def _moved(
    matrix: _Matrix, lanes: int, first: ir.Value, start: ir.Value, place: Callable[[ir.Value, int], ir.Value],
    near: bool,
) -> None:  # fmt: skip
    """Rows of H become columns ``near`` by, or the other way: squares of vectors, then what is left one by one."""
    b, dtype, wide, one = matrix.b, matrix.dtype, Builder(matrix.b, lanes), Builder(matrix.b, 1)
    stop = b.add(matrix.high, I64(2))
    whole = b.add(start, b.and_(b.sub(stop, start), I64(-lanes)))
    for i in range(_GROUPS):
        group = b.add(first, I64(i * lanes))
        with for_range(b, start, whole, lanes) as k:
            rows = [at(b, matrix.row(b.add(group, I64(j))), k, dtype) for j in range(lanes)]
            columns = [place(b.add(k, I64(j)), i) for j in range(lanes)]
            sources, targets = (rows, columns) if near else (columns, rows)
            square = transpose(b, [wide.load(x, dtype).ir for x in sources])
            for x, target in zip(square, targets, strict=True):
                wide.store(wide.value(x, dtype), target)
        with for_range(b, whole, stop) as k, for_range(b, 0, lanes) as j:
            pair = (
                at(b, matrix.row(b.add(group, j)), k, dtype), at(b, place(k, i), j, dtype),
            )  # fmt: skip
            source, target = pair if near else pair[::-1]
            one.store(one.load(source, dtype), target)


def _beside(crew: Crew, matrix: _Matrix, lanes: int, first: ir.Value, stop: ir.Value) -> None:
    """Columns ``first`` to ``stop`` of Zᵀ, by all reflections."""
    b, dtype, (source, out) = crew.b, matrix.dtype, matrix.z
    with for_range(b, 0, matrix.length) as k:
        row = b.add(b.mul(k, matrix.n), first)
        copied(crew, matrix.dtype, at(b, source, row, dtype), at(b, out, row, dtype), b.sub(stop, first))

    def turned(wide: int, count: int, column: ir.Value) -> None:
        def place(k: ir.Value, i: int) -> ir.Value:
            return at(b, out, b.add(b.add(b.mul(k, matrix.n), column), I64(i * wide)), dtype)

        _turned(matrix, Builder(b, wide), count, place, (), matrix.low, matrix.low)

    with if_then(b, b.and_(matrix.left, b.icmp_signed("<", matrix.low, matrix.high))):
        with if_else(b, b.icmp_signed("==", b.sub(stop, first), I64(TOGETHER * lanes))) as branch:
            with branch.then():
                turned(lanes, TOGETHER, first)
            with branch.otherwise():
                whole = b.add(first, b.and_(b.sub(stop, first), I64(-lanes)))
                with for_range(b, first, whole, lanes) as column:
                    turned(lanes, 1, column)
                with for_range(b, whole, stop) as column:
                    turned(1, 1, column)
