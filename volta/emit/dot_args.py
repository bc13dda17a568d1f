"""What the dot kernels share: their args block, address arithmetic, and the last step from sums to output."""

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder
from volta.emit.loops import I64, for_range, load_arg, offset
from volta.xla_like.dot_schedule import CHUNKS, Arg, DotSpec, item_size


class Args:
    """The args block as loaded values: ``args.M`` is the int64 at ``Arg.M``."""

    def __init__(self, b: ir.IRBuilder, block: ir.Value):
        self.block = block
        self.values = {arg: load_arg(b, block, int(arg)) for arg in Arg}

    def __getattr__(self, name: str) -> ir.Value:
        return self.values[Arg[name]]


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


def store_sums(
    b: ir.IRBuilder,
    spec: DotSpec,
    sums: ir.Value,
    sums_row: ir.Value,
    out: ir.Value,
    out_row: ir.Value,
    rows: ir.Value,
    columns: ir.Value,
) -> None:
    """Round complete sums to the output's dtype (integers wrap around); strides of rows in bytes."""
    whole = b.and_(columns, I64(-spec.lanes))
    with for_range(b, 0, rows) as row:
        source, to = at(b, sums, (row, sums_row)), at(b, out, (row, out_row))
        for lanes, start, stop in ((spec.lanes, I64(0), whole), (1, whole, columns)):
            builder = Builder(b, lanes)
            with for_range(b, start, stop, lanes) as column:
                pointer = at(b, source, (column, I64(item_size(spec.accumulator))))
                value = builder.cast(builder.load(pointer, spec.accumulator), spec.out)
                to_column = at(b, to, (column, I64(item_size(spec.out))))
                builder.store(value, to_column, spec.out if spec.out in HALF_DTYPES else None)
