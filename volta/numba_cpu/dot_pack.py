"""Packing for DOT: a strip of `lanes` columns (or rows of the left operand), k-major, in the accumulator's dtype."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from llvmlite import ir

from volta.emit.builder import Builder, Value, item_size, scalar_type
from volta.emit.loops import I32, I64, PTR, VOID, for_range, if_else, loop, minimum, offset
from volta.numba_cpu.dot_bytes import flip
from volta.numba_cpu.dot_tile import lane_mask, masked_load

PACK_TYPE = ir.FunctionType(VOID, [PTR, I64, I64, PTR, I64, I64, I64, I64])
"""``pack(to, to_k, to_strip, source, source_k, source_lane, width, depth)``; strides in bytes."""

_ROWS = 4  # that are read side by side
_SQUARE = 4  # side of the squares that are transposed in registers


def pack(
    module: ir.Module, dtype: str, accumulator: str, lanes: int, flipped: bool = False, parts: bool = False
) -> ir.Function:
    """The function (internal to the module, added once) that packs `width` columns, strip by strip.

    It reads ``source[lane, k]`` for ``lane < width`` and ``k < depth`` and writes vectors of `lanes` elements, `to_k`
    apart, for each strip; strips lie `to_strip` apart. What lanes from `width` on hold is left open. ``flipped``: words
    of four bytes are written as `dot_bytes` has them. ``parts``: where every other element is read, it is by vectors.
    """
    name = f"volta_dot_pack_{dtype}_{accumulator}{'_flipped' * flipped}{'_parts' * parts}_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, PACK_TYPE, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    to, to_k, to_strip, source, source_k, source_lane, width, depth = function.args
    size = item_size(dtype)
    steps = (1, 2) if parts else (1,)
    emit = _Packer(b, dtype, accumulator, lanes, to_k, source_k, source_lane, flipped)

    def along(apart: int) -> None:
        """A few rows at a time, of all strips: rows are read along, which memory is ready for."""
        last = b.sub(depth, I64(1))  # beyond it: copied again, to its place
        with for_range(b, 0, depth, _ROWS) as k:
            rows = [minimum(b, b.add(k, I64(i)), last) for i in range(_ROWS)]
            sources, places = ([b.mul(row, step) for row in rows] for step in (source_k, to_k))
            with loop(b, 0, width, lanes, [to, source]) as strips:
                to_now, source_now = strips.values
                from_rows = [offset(b, source_now, step) for step in sources]
                emit.rows(from_rows, [offset(b, to_now, step) for step in places], b.sub(width, strips.index), apart)
                strips.advance(offset(b, to_now, to_strip), offset(b, source_now, lanes * size * apart))

    def strip_by_strip() -> None:
        with loop(b, 0, width, lanes, [to, source]) as strips:
            to_now, source_now = strips.values
            emit.strip(to_now, source_now, minimum(b, b.sub(width, strips.index), lanes), depth)
            ways = {step: partial(emit.transposed, step) for step in steps if lanes >= _SQUARE}
            _by_step(b, source_k, size, ways, lambda: emit.any(I64(0)))
            strips.advance(offset(b, to_now, to_strip), offset(b, source_now, b.mul(source_lane, I64(lanes))))

    _by_step(b, source_lane, size, {step: partial(along, step) for step in steps}, strip_by_strip)
    b.ret_void()
    return function


def _by_step(
    b: ir.IRBuilder, stride: ir.Value, size: int, ways: Mapping[int, Callable[[], None]], other: Callable[[], None]
) -> None:
    """The way for elements that lie so many apart, if there is one."""
    if not ways:
        other()
        return
    (step, way), *rest = ways.items()
    with if_else(b, b.icmp_signed("==", stride, I64(step * size))) as branch:
        with branch.then():
            way()
        with branch.otherwise():
            _by_step(b, stride, size, dict(rest), other)


class _Packer:
    """The ways to copy a strip, by the stride that is contiguous."""

    def __init__(
        self, b: ir.IRBuilder, dtype: str, accumulator: str, lanes: int, to_k: ir.Value, source_k: ir.Value,
        source_lane: ir.Value, flipped: bool,
    ) -> None:  # fmt: skip
        self.b, self.dtype, self.accumulator, self.lanes, self.flipped = b, dtype, accumulator, lanes, flipped
        self.to_k, self.source_k, self.source_lane = to_k, source_k, source_lane
        self.size, self.out_size = item_size(dtype), item_size(accumulator)

    def strip(self, to: ir.Value, source: ir.Value, width: ir.Value, depth: ir.Value) -> None:
        """The strip that is copied next, `width` lanes of it."""
        self.to, self.source, self.width, self.depth = to, source, width, depth

    def convert(self, raw: Value, builder: Builder) -> ir.Value:
        value = builder.cast(raw, self.accumulator).ir
        return flip(self.b, value) if self.flipped else value

    def rows(self, sources: list[ir.Value], places: list[ir.Value], rest: ir.Value, apart: int) -> None:
        """Some rows of a strip whose lanes are neighbours in the source, or every other element there is one (two
        ``apart``); `rest` lanes are left."""
        b = self.b
        there = [rest]  # elements up to the last lane, of each vector that is read
        if apart == 2:
            there = [b.sub(b.add(rest, rest), I64(1 + k * (self.lanes - 1))) for k in range(apart)]
        masks = [lane_mask(b, self.lanes, count) for count in there]
        if self.lanes * self.out_size == 64:  # masks cost nothing with AVX-512
            self._some_rows(sources, places, masks)
            return
        with if_else(b, b.icmp_signed(">=", rest, I64(self.lanes))) as whole:
            with whole.then():
                self._some_rows(sources, places, [None] * apart)
            with whole.otherwise():
                self._some_rows(sources, places, masks)

    def _some_rows(self, sources: list[ir.Value], places: list[ir.Value], masks: Sequence[ir.Value | None]) -> None:
        builder = Builder(self.b, self.lanes)
        read = [self._line(builder, source, masks) for source in sources]
        for value, to in zip(read, places, strict=True):
            self.b.store(self.convert(value, builder), to, align=self.out_size)

    def _line(self, builder: Builder, source: ir.Value, masks: Sequence[ir.Value | None]) -> Value:
        """Neighbours, one vector of them; or every other element of two vectors, which end with the last of these."""
        lanes = builder.lanes
        found = [
            builder.load(place, self.dtype) if mask is None else self._masked(builder, place, mask)
            for k, mask in enumerate(masks)
            for place in [offset(self.b, source, k * (lanes - 1) * self.size) if k else source]
        ]
        if len(found) == 1:
            return found[0]
        order = [2 * lane + (2 * lane >= lanes) for lane in range(lanes)]
        both = self.b.shuffle_vector(*(x.ir for x in found), ir.Constant(ir.VectorType(I32, lanes), order))
        return builder.value(both, found[0].dtype)

    def _masked(self, builder: Builder, pointer: ir.Value, mask: ir.Value) -> Value:
        """`lanes` elements of which only those in the mask are touched; the rest are zeros."""
        b = self.b
        half = self.dtype in ("float16", "bfloat16")
        stored = "uint16" if half else self.dtype
        raw = masked_load(b, ir.VectorType(scalar_type(stored), self.lanes), pointer, mask, self.size)
        if self.dtype == "float16":
            halves = b.bitcast(raw, ir.VectorType(ir.HalfType(), self.lanes))
            return builder.value(b.fpext(halves, ir.VectorType(ir.FloatType(), self.lanes)), "float32")
        value = builder.value(raw, stored)
        if self.dtype == "bfloat16":
            return builder.bitcast(builder.cast(value, "uint32") << 16, "float32")
        return value

    def transposed(self, apart: int) -> None:
        """The source is contiguous along k, or every other element there is: squares of four lanes times four k are
        transposed in registers."""
        b, builder = self.b, Builder(self.b, _SQUARE)
        last = b.sub(self.width, I64(1))
        whole = b.and_(self.depth, I64(-_SQUARE))
        with for_range(b, 0, self.width, _SQUARE) as lane:
            own = [minimum(b, b.add(lane, I64(i)), last) for i in range(_SQUARE)]  # beyond the last: repeat it
            starts = [offset(b, self.source, b.mul(line, self.source_lane)) for line in own]
            to_lane = offset(b, self.to, b.mul(lane, I64(self.out_size)))
            with for_range(b, 0, whole, _SQUARE) as k:
                at = b.mul(k, I64(self.size * apart))
                lines = [self._line(builder, offset(b, start, at), [None] * apart) for start in starts]
                square = [self.convert(line, builder) for line in lines]
                to = offset(b, to_lane, b.mul(k, self.to_k))
                for row in transpose(b, square):
                    b.store(row, to, align=self.out_size)
                    to = offset(b, to, self.to_k)
        self.any(whole)

    def any(self, first: ir.Value) -> None:
        """Any strides, one element at a time, from k = `first` on."""
        b, builder = self.b, Builder(self.b, 1)
        with for_range(b, 0, self.width) as lane:
            source = offset(b, self.source, b.mul(lane, self.source_lane))
            to = offset(b, self.to, b.mul(lane, I64(self.out_size)))
            with for_range(b, first, self.depth) as k:
                value = builder.load(offset(b, source, b.mul(k, self.source_k)), self.dtype)
                b.store(self.convert(value, builder), offset(b, to, b.mul(k, self.to_k)), align=self.out_size)


def transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square of vectors (as many as each has lanes, a power of two), by log2 rounds of shuffles."""
    lanes = len(rows)
    indices = ir.VectorType(I32, lanes)
    distance = 1
    while distance < lanes:
        low = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
        high = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
        swapped = list(rows)
        for i in range(lanes):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                swapped[i] = b.shuffle_vector(*pair, ir.Constant(indices, low))
                swapped[i + distance] = b.shuffle_vector(*pair, ir.Constant(indices, high))
        rows, distance = swapped, 2 * distance
    return rows
