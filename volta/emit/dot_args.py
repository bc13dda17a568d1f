"""What the dot kernels of the backends share: their args block and address arithmetic."""

from __future__ import annotations

import enum

from llvmlite import ir

from volta.emit.loops import I64, load_arg, offset
from volta.xla_like.dot import CHUNKS, Dot, DotStrides


class Arg(enum.IntEnum):
    """Positions in the args block of the kernels of products; behind them come those of a backend's own. Strides are in
    bytes."""

    LHS = 0  # addresses
    RHS = 1
    OUT = 2
    WORKSPACE = 3  # memory of the backend's own; 0 if there is none
    BATCH1 = 4  # sizes; the size of batch dimension 0 follows from the number of tasks
    M = 5
    N = 6
    K = 7
    LHS_BATCH0 = 8
    LHS_BATCH1 = 9
    LHS_M = 10
    LHS_K = 11
    RHS_BATCH0 = 12
    RHS_BATCH1 = 13
    RHS_K = 14
    RHS_N = 15
    OUT_BATCH0 = 16
    OUT_BATCH1 = 17
    OUT_M = 18  # the output's columns are contiguous


def dot_words(dot: Dot, strides: DotStrides) -> tuple[int, ...]:
    """The words of a product from `Arg.BATCH1` to the last of `Arg`."""
    return (dot.batch[1], dot.m, dot.n, dot.k, *strides.lhs, *strides.rhs, *strides.out[:3])


class Args:
    """The args block as loaded values: ``args.M`` is the int64 at ``Arg.M``, and so with the names of ``own``."""

    def __init__(self, b: ir.IRBuilder, block: ir.Value, own: type[enum.IntEnum]):
        self.block, self.words = block, len(Arg) + len(own)
        self.values = {arg.name: load_arg(b, block, int(arg)) for kind in (Arg, own) for arg in kind}

    def __getattr__(self, name: str) -> ir.Value:
        return self.values[name]


class ChunkAt:
    """Where a chunk stands among so many: the `block` of k that it is in, whether it `begins` or `ends` that block, is
    the `last` of all, and whether behind it a block is joined with others: in a long sum, where it ends one."""

    def __init__(self, b: ir.IRBuilder, chunk: ir.Value, chunks: ir.Value) -> None:
        kind = chunk.type
        inside = b.and_(chunk, kind(CHUNKS - 1))
        self.block = b.lshr(chunk, kind(CHUNKS.bit_length() - 1))
        self.begins = b.icmp_signed("==", inside, kind(0))
        self.last = b.icmp_signed("==", chunk, b.sub(chunks, kind(1)))
        self.ends = b.or_(self.last, b.icmp_signed("==", inside, kind(CHUNKS - 1)))
        self.joins = b.and_(self.ends, b.icmp_signed(">", chunks, kind(CHUNKS)))


def ceil_div(b: ir.IRBuilder, x: ir.Value, y: ir.Value | int) -> ir.Value:
    """x / y rounded up, for positive integers."""
    y = I64(y) if isinstance(y, int) else y
    return b.sdiv(b.add(x, b.sub(y, I64(1))), y)


def round_up(b: ir.IRBuilder, x: ir.Value, power_of_two: int) -> ir.Value:
    """The next multiple of a power of two."""
    return b.and_(b.add(x, I64(power_of_two - 1)), I64(-power_of_two))


def at(b: ir.IRBuilder, pointer: ir.Value, *steps: tuple[ir.Value, ir.Value]) -> ir.Value:
    """`pointer` moved by the sum of ``index * stride`` over `steps`."""
    for index, stride in steps:
        pointer = offset(b, pointer, b.mul(index, stride))
    return pointer
