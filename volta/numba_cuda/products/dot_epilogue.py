"""Epilogues: loops over a product's elements, computed where a thread writes these."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Value
from volta.emit.dot_args import Args, at
from volta.emit.loops import I32, I64, if_then, offset
from volta.numba_cuda.codegen.ptx_ops import prefetch
from volta.numba_cuda.codegen.threads import CONSTANT_SPACE
from volta.numba_cuda.loops.nests_body import ThreadEmitter, is_narrow, widest, words_of
from volta.numba_cuda.loops.nests_map import is_costly
from volta.numba_cuda.loops.scalars import ThreadBuilder
from volta.xla_like.dot import DotSpec, item_size
from volta.xla_like.kernels import Access, IndexValue, KernelCall, Load, LoopKernel
from volta.xla_like.views import Ints


@attrs.frozen
class Epilogue:
    """What a kernel does with the elements of its product: the loops, of each the loads that an element takes the place
    of, whether their strides fit 32 bits, and whether the product is stored as well."""

    loops: tuple[LoopKernel, ...]
    given: tuple[Ints, ...]
    narrow: bool
    stored: bool

    @property
    def together(self) -> int:
        """Elements that a thread has under way at once: their reads, unless it is their computing that takes long."""
        return 8 if any(is_costly(kernel) for kernel in self.loops) else 16

    def __repr__(self) -> str:
        """The canonical text: it is a part of the kernel's identity."""
        return f"epilogue(narrow={self.narrow}, stored={self.stored}, given={self.given})\n" + "\n".join(
            kernel.text() for kernel in self.loops
        )


def epilogue_of(call: KernelCall) -> tuple[Epilogue, tuple[KernelCall, ...]]:
    """The epilogue of a call (epilogues.py), and its loops' calls without accesses to the product."""
    head, *loops = call.parts
    (product,) = head.writes
    kernels, given, calls = [], [], []
    for loop in loops:
        kernel = loop.kernel
        assert isinstance(kernel, LoopKernel)
        kernels.append(kernel)
        memory = [i for i, x in enumerate(kernel.body) if isinstance(x, (Load, IndexValue))]
        reads = [i for i, a in zip(memory, loop.accesses, strict=False) if a.buffer == product]
        given.append(tuple(reads))
        accesses = (Access(None, 0, a.strides) if a.buffer == product else a for a in loop.accesses)
        calls.append(attrs.evolve(loop, kernel=kernels[-1], accesses=tuple(accesses)))
    narrow = all(is_narrow(x) for x in calls)
    return Epilogue(tuple(kernels), tuple(given), narrow, product in call.writes), tuple(calls)


def fits(calls: Sequence[KernelCall], neighbours: int) -> bool:
    """Whether every access of these loops reads or writes so many neighbours of a row as one."""
    return all(widest(x, x.sizes[-1], len(x.sizes) - 1, neighbours) == neighbours for x in calls)


@attrs.define
class _Cell:
    """Neighbours in a row: where they are, the product's, and of each loop the values, bases of loads and stores."""

    row: ir.Value
    col: ir.Value
    result: Value
    loops: list[tuple[dict[int, Value], dict[int, ir.Value], list[ir.Value]]]


class Writer:
    """Rounds totals to the output's dtype and stores them, after the epilogue, if there is one, or instead of it.

    To be made where the product is complete: until then its args take no registers. ``out`` is where the output of the
    batch item begins, ``above`` the rows of the items before it.
    """

    def __init__(
        self, b: ir.IRBuilder, spec: DotSpec, args: Args, epilogue: Epilogue | None, out: ir.Value, above: ir.Value
    ) -> None:
        self.b, self.spec, self.args, self.out, self.above = b, spec, args, out, above
        self.stored = epilogue is None or epilogue.stored
        self.loops: list[tuple[ThreadEmitter, Ints]] = []
        own = offset(b, args.block, 8 * args.words)
        if epilogue is None:
            return
        for kernel, given in zip(epilogue.loops, epilogue.given, strict=True):
            self.loops.append((ThreadEmitter(b, own, kernel, epilogue.narrow), given))
            own = offset(b, own, 8 * words_of(kernel))

    def write(self, row: ir.Value, col: ir.Value, totals: Sequence[ir.Value], together: bool) -> None:
        """Write neighbours in a row, those of them that exist; ``together``: all do, or none."""
        b, lanes = self.b, len(totals) if together else 1
        inside = b.icmp_signed("<", row, self.args.M)
        for i in range(0, len(totals), lanes):
            here = b.add(col, I64(i)) if i else col
            with if_then(b, b.and_(inside, b.icmp_signed("<", here, self.args.N))):
                self.write_all([(row, here, self.rounded(totals[i : i + lanes]))])

    def rounded(self, totals: Sequence[ir.Value]) -> Value:
        """Totals as neighbours of the output's dtype."""
        b, spec, lanes = self.b, self.spec, ThreadBuilder(self.b, len(totals), CONSTANT_SPACE)
        sums = totals[0]
        if len(totals) > 1:
            sums = ir.Constant(lanes.type_of(spec.accumulator), ir.Undefined)
            for i, x in enumerate(totals):
                sums = b.insert_element(sums, x, I32(i))
        return lanes.cast(lanes.value(sums, spec.accumulator), spec.out)

    def write_all(self, cells: Sequence[tuple[ir.Value, ir.Value, Value]]) -> None:
        """Write neighbours in a row from (row, col) on that all exist: first everything is read."""
        begun = [self._read(*cell) for cell in cells]
        for cell in begun:
            self._compute(cell)
        for cell in begun:
            self._store(cell)

    def prefetch(self, row: ir.Value, col: ir.Value) -> None:
        """Ask for what the loops read beside these elements, of what lies along rows."""
        for e, given in self.loops:
            bases, _ = e.row_bases(e.unravel(self.b.add(self.above, row), e.sizes[: e.kernel.rank - 1]))
            for i in self._needed(e):
                x = e.kernel.body[i]
                if isinstance(x, Load) and i not in given and not x.terms and x.pattern[0] == "1":
                    prefetch(self.b, offset(self.b, bases[i], self.b.mul(col, I64(x.dtype.itemsize))))

    def _read(self, row: ir.Value, col: ir.Value, result: Value) -> _Cell:
        cell = _Cell(row, col, result, [])
        for e, given in self.loops:
            outer = e.unravel(self.b.add(self.above, row), e.sizes[: e.kernel.rank - 1])
            bases, stores = e.row_bases(outer)
            values: dict[int, Value] = {}
            e.evaluate(e.invariant(), values, 1, bases, None)
            values |= dict.fromkeys(given, result)
            reads = [i for i in self._needed(e) if isinstance(x := e.kernel.body[i], Load) and not x.terms]
            e.evaluate(reads, values, result.builder.lanes, bases, col)
            cell.loops.append((values, bases, stores))
        return cell

    @staticmethod
    def _needed(e: ThreadEmitter) -> list[int]:
        return e.pass_values([s.value for s in e.kernel.stores])

    def _compute(self, cell: _Cell) -> None:
        for (e, _), (values, bases, _) in zip(self.loops, cell.loops, strict=True):
            e.evaluate(self._needed(e), values, cell.result.builder.lanes, bases, cell.col)

    def _store(self, cell: _Cell) -> None:
        b, dtype, lanes = self.b, self.spec.out, cell.result.builder.lanes
        if self.stored:
            to = at(b, self.out, (cell.row, self.args.OUT_M), (cell.col, I64(item_size(dtype))))
            ThreadBuilder(b, lanes).store(cell.result, to, dtype if dtype in HALF_DTYPES else None)
        for (e, _), (values, _, stores) in zip(self.loops, cell.loops, strict=True):
            for i, s in enumerate(e.kernel.stores):
                e.store(i, s, values[s.value], lanes, stores[i], cell.col, values)
