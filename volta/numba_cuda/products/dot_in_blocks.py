"""What the kernels of few rows times weights in blocks of few bits share: their beginning, and the chains' links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from llvmlite import ir

from volta.emit.dot_args import Args
from volta.emit.loops import I1, I32, I64, fma, offset
from volta.numba_cuda.codegen.threads import WARP, device_pointer, dynamic_shared, thread_index
from volta.numba_cuda.products.beside import Ahead
from volta.numba_cuda.products.dot_epilogue import Epilogue, Writer
from volta.numba_cuda.products.dot_numbers import SMALLER, ThreadNumbers
from volta.xla_like.dot import DotSpec

VALUES = 4  # of a row, read at once
QUAD = 16  # bytes of these
AT_ONCE = 16  # loads of a thread that are under way before the first is stored
KIND = ir.VectorType(ir.FloatType(), VALUES)


class Variant(Protocol):
    """What `InBlocks` asks of a kernel's variant."""

    @property
    def rows(self) -> int: ...

    @property
    def epilogue(self) -> Epilogue | None: ...


V = TypeVar("V", bound=Variant)


class InBlocks(Generic[V]):
    """A kernel being emitted at `b`; its args are those of `Arg` and `Ahead`."""

    def __init__(self, b: ir.IRBuilder, spec: DotSpec, variant: V, function: ir.Function) -> None:
        assert spec.blocks is not None
        self.b, self.spec, self.fmt, self.v = b, spec, spec.blocks, variant
        self.args = Args(b, function.args[0], Ahead)
        self.zero = ir.Constant(ir.FloatType(), 0.0)
        self.shared = dynamic_shared(b.module, b)
        self.thread = thread_index(b)
        self.lane, self.warp = b.and_(self.thread, I64(WARP - 1)), b.lshr(self.thread, I64(5))

    def enlarged(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Values of a row times 2^`SMALLER`, and whether any is infinite then."""
        b, overflows = self.b, I1(0)
        value = b.fmul(value, ir.Constant(KIND, [2.0**SMALLER] * VALUES))
        bits = b.bitcast(value, ir.VectorType(I32, VALUES))
        for i in range(VALUES):
            size = b.and_(b.extract_element(bits, I32(i)), I32(0x7FFFFFFF))
            overflows = b.or_(overflows, b.icmp_unsigned(">=", size, I32(0x7F800000)))
        return value, overflows

    def links(
        self, numbers: Sequence[ThreadNumbers], rows: Sequence[ir.Value], elements: range, sums: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The chains of each row, column by column, with the links of some elements of a block, where the rows' values
        of these begin at `rows`."""
        b, now = self.b, list(sums)
        for start in range(0, len(elements), VALUES):
            values = [b.load(offset(b, row, 4 * start), typ=KIND, align=QUAD) for row in rows]
            for i in range(VALUES):
                ys = [x.element(elements[start + i]) for x in numbers]
                xs = [b.extract_element(x, I32(i)) for x in values]
                now = [fma(b, x, y, now[r * len(ys) + c]) for r, x in enumerate(xs) for c, y in enumerate(ys)]
        return now

    def write(self, column: ir.Value, totals: Sequence[ir.Value]) -> None:
        """Write a column's totals, one of each row."""
        b = self.b
        writer = Writer(b, self.spec, self.args, self.v.epilogue, device_pointer(b, self.args.OUT), I64(0))
        for r in range(self.v.rows):
            writer.write(I64(r), column, [totals[r]], False)
