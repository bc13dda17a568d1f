"""Cholesky's factors of small matrices on the CPU: a task is as many as a vector has lanes, a lane is a matrix.

What is neighbouring in memory are the elements of one matrix: squares of vectors are transposed in registers, so that
element k of all of a task's matrices becomes a vector. Tiles of L are then found column by column, each in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
from llvmlite import ir

from volta.emit.args import laid_out
from volta.emit.builder import Builder, Value
from volta.emit.loops import I64, PTR, for_range, if_then, load_args, loop, minimum, offset
from volta.numba_cpu import target
from volta.numba_cpu.dot_pack import transpose
from volta.numba_cpu.dot_tile import lane_mask
from volta.numba_cpu.kernel_abi import new_kernel
from volta.numba_cpu.launches import Launch
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import MEAN, Panel, PanelSpec

_SIDE = 4
"""Rows and columns of a tile: its elements are in registers while the products before it are taken from them."""

_LINE = 64  # bytes


def launches(call: KernelCall, vector_bits: int) -> list[Launch]:
    op = call.kernel
    assert isinstance(op, Panel)
    lanes = vector_bits // (8 * op.spec.dtype.itemsize)
    held = -(-op.width * op.width // lanes) * lanes
    words = laid_out((*call.accesses, op.batch, op.width))
    return [
        Launch(LibraryKernel("panel", op.spec), call, *words, -(-op.batch // lanes), held * vector_bits // 8 + _LINE)
    ]


def build(module: ir.Module, name: str, spec: PanelSpec) -> ir.Function:
    """Args: the matrices, the factors; then batch and rows of a matrix."""
    function, b = new_kernel(module, name)
    args, begin, end, scratch = function.args
    size, nbytes = spec.dtype.itemsize, target.vector_bits() // 8
    wide = Builder(b, nbytes // size)
    *addresses, batch, n = load_args(b, args, 4)
    start = b.inttoptr(b.and_(b.add(scratch, I64(_LINE - 1)), I64(-_LINE)), PTR)
    near = _Near(wide, spec.dtype.name, start, n)
    with for_range(b, begin, end) as task:
        first, last = b.mul(task, I64(wide.lanes)), b.sub(batch, I64(1))
        items = [minimum(b, b.add(first, I64(k)), last) for k in range(wide.lanes)]  # the last one again, at the end
        source, out = (
            [offset(b, b.inttoptr(x, PTR), b.mul(i, b.mul(b.mul(n, n), I64(size)))) for i in items] for x in addresses
        )
        near.read(source)
        near.factored(spec.kind == MEAN)
        near.checked()
        near.write(out)
    b.ret_void()
    return function


@attrs.frozen
class _Near:
    """The matrices of a task, in memory of the thread's own: a vector for each element."""

    wide: Builder
    dtype: str
    start: ir.Value
    n: ir.Value

    @property
    def b(self) -> ir.IRBuilder:
        return self.wide.irbuilder

    def _place(self, k: ir.Value) -> ir.Value:
        return offset(self.b, self.start, self.b.mul(k, I64(target.vector_bits() // 8)))

    def at(self, i: ir.Value, j: ir.Value) -> ir.Value:
        return self._place(self.b.add(self.b.mul(i, self.n), j))

    def load(self, i: ir.Value, j: ir.Value) -> Value:
        return self.wide.load(self.at(i, j), self.dtype)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _squares(self) -> Iterator[tuple[ir.Value, ir.Value | None]]:
        """Where squares begin among a matrix's elements, and which lanes of the last one there are."""
        b, lanes = self.b, self.wide.lanes
        count = b.mul(self.n, self.n)
        whole = b.and_(count, I64(-lanes))
        with for_range(b, 0, whole, lanes) as k:
            yield k, None
        with if_then(b, b.icmp_signed("<", whole, count)):
            yield whole, lane_mask(b, lanes, b.sub(count, whole))

    def _lines(self, matrices: Sequence[ir.Value], k: ir.Value) -> list[ir.Value]:
        return [offset(self.b, x, self.b.mul(k, I64(target.vector_bits() // 8 // self.wide.lanes))) for x in matrices]

    def read(self, matrices: Sequence[ir.Value]) -> None:
        b, wide = self.b, self.wide
        for k, mask in self._squares():
            lines = self._lines(matrices, k)
            square = [
                wide.load(x, self.dtype) if mask is None else wide.load_masked(x, self.dtype, mask) for x in lines
            ]
            for t, x in enumerate(transpose(b, [x.ir for x in square])):
                wide.store(wide.value(x, self.dtype), self._place(b.add(k, I64(t))))

    def write(self, matrices: Sequence[ir.Value]) -> None:
        b, wide = self.b, self.wide
        for k, mask in self._squares():
            square = [wide.load(self._place(b.add(k, I64(t))), self.dtype).ir for t in range(wide.lanes)]
            for x, place in zip(transpose(b, square), self._lines(matrices, k), strict=True):
                line = wide.value(x, self.dtype)
                if mask is None:
                    wide.store(line, place)
                else:
                    wide.store_masked(line, place, mask)

    # -- columns -------------------------------------------------------------------------------------------------------

    def factored(self, mean: bool) -> None:
        """L instead of the lower triangle: of the matrices, or of the ``mean`` of them and their transposes."""
        b = self.b
        whole = b.and_(self.n, I64(-_SIDE))
        for first, stop, side in ((I64(0), whole, _SIDE), (whole, self.n, 1)):
            with for_range(b, first, stop, side) as j:
                self._tile(mean, j, j, side, side)
                below = b.add(j, I64(side))
                middle = b.add(below, b.and_(b.sub(self.n, below), I64(-_SIDE)))
                with for_range(b, below, middle, _SIDE) as i:
                    self._tile(mean, i, j, _SIDE, side, False)
                with for_range(b, middle, self.n) as i:
                    self._tile(mean, i, j, 1, side, False)

    def _tile(
        self, mean: bool, first: ir.Value, column: ir.Value, height: int, width: int, diagonal: bool = True
    ) -> None:
        """The elements of L in some rows and columns, when those to the left of them are known."""
        b, wide = self.b, self.wide
        rows, columns = ([b.add(x, I64(k)) for k in range(count)] for x, count in ((first, height), (column, width)))
        places = [(r, c) for r in range(height) for c in range(width) if not diagonal or c <= r]

        def start(i: ir.Value, j: ir.Value) -> Value:
            return (self.load(i, j) + self.load(j, i)) * 0.5 if mean else self.load(i, j)

        begun = [start(rows[r], columns[c]).ir for r, c in places]
        with loop(b, 0, column, 1, begun) as it:
            left = [self.load(i, it.index) for i in rows]
            above = left if diagonal else [self.load(j, it.index) for j in columns]
            taken = [
                wide.fma(-above[c], left[r], wide.value(x, self.dtype))
                for (r, c), x in zip(places, it.values, strict=True)
            ]
            it.advance(*(x.ir for x in taken))
        found = {place: wide.value(x, self.dtype) for place, x in zip(places, it.results, strict=True)}
        for c in range(width):
            if diagonal:
                found[c, c] = wide.sqrt(found[c, c])
            top = found[c, c] if diagonal else self.load(columns[c], columns[c])
            below = [r for r in range(height) if not diagonal or r > c]
            for r in below:
                found[r, c] = found[r, c] / top
            for d in range(c + 1, width):
                factor = found[d, c] if diagonal else self.load(columns[d], columns[c])
                for r in below:
                    if (r, d) in found:
                        found[r, d] = wide.fma(-factor, found[r, c], found[r, d])
        for (r, c), x in found.items():
            wide.store(x, self.at(rows[r], columns[c]))

    def checked(self) -> None:
        """Zeros above the diagonal, and NaN elsewhere in matrices that have no factor."""
        b, wide = self.b, self.wide
        zero, nan = (wide.const(self.dtype, x) for x in (0, float("nan")))
        with loop(b, 0, self.n, 1, [wide.const("bool", True).ir]) as it:
            good = wide.value(it.values[0], "bool") & (self.load(it.index, it.index) > 0)
            with for_range(b, b.add(it.index, I64(1)), self.n) as j:
                wide.store(zero, self.at(it.index, j))
            it.advance(good.ir)
        good = wide.value(it.results[0], "bool")
        some = wide.intrinsic("vector.reduce.or", "bool", (~good).ir, result=ir.IntType(1))
        with if_then(b, some, likely=False), for_range(b, 0, self.n) as i, for_range(b, 0, b.add(i, I64(1))) as j:
            wide.store(wide.select(good, self.load(i, j), nan), self.at(i, j))
