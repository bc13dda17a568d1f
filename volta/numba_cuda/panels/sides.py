"""Triangular equations with few right sides: a warp has 32 rows of one, and waits for those above them.

What is known of a right side is taken from the rows below in ascending order, as DOT has it: a chain of fused
multiply-adds for each chunk, and the chunks one after the other.
"""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value
from volta.emit.loops import I32, I64, for_range, if_then, load_args, minimum, offset
from volta.emit.panels import at
from volta.numba_cuda.codegen.ptx_semaphore import read_element, write_element
from volta.numba_cuda.codegen.threads import WARP, device_pointer, dynamic_shared, new_entry, shuffle, thread_index
from volta.numba_cuda.panels.handed_on import Flags
from volta.numba_cuda.panels.registers import Elements, meet, number
from volta.xla_like.dot import BLOCK, CHUNK
from volta.xla_like.panels import PanelSpec

SIDES = 32
"""More right sides are solved for by products of blocks."""

LONGEST = BLOCK
"""Rows at most: what is taken from them is one block of DOT."""

_PITCH = WARP + 1


def warps_for(sides: int) -> int:
    """Right sides of a block of threads."""
    return next(warps for warps in (1, 2, 4, 8) if sides <= warps or warps == 8)


def blocks_for(rows: int, sides: int) -> int:
    """Blocks of threads of a matrix, each with a flag."""
    return -(-rows // WARP) * -(-sides // warps_for(sides))


def shared_for(itemsize: int) -> int:
    return 16 + 2 * WARP * _PITCH * itemsize


def build(module: ir.Module, name: str, spec: PanelSpec, warps: int) -> ir.Function:
    """Args: lower triangles, right sides, their solutions, words for tickets and flags, nothing; then rows and right
    sides."""
    function, b = new_entry(module, name, WARP * warps)
    triangle, source, out, words, _, rows, sides = load_args(b, function.args[0], 7)
    arrays = [device_pointer(b, x) for x in (triangle, source, out)]
    _Rows(b, spec, warps, words, rows, sides).run(*arrays)
    b.ret_void()
    return function


class _Rows:
    """A block's 32 rows, of which each lane of a warp has one."""

    def __init__(
        self, b: ir.IRBuilder, spec: PanelSpec, warps: int, words: ir.Value, rows: ir.Value, sides: ir.Value
    ) -> None:
        self.b, self.one, self.spec, self.dtype, self.warps = b, Builder(b, 1), spec, spec.dtype.name, warps
        self.rows, self.sides, thread = rows, sides, thread_index(b)
        self.lane, self.warp = b.and_(thread, I64(WARP - 1)), b.lshr(thread, I64(WARP.bit_length() - 1))
        space = dynamic_shared(b.module, b)
        self.tiles = [at(b, offset(b, space, 16), I64(k * WARP * _PITCH), self.dtype) for k in range(2)]
        self.flags = Flags(b, words, space)
        groups = b.sdiv(b.add(sides, I64(warps - 1)), I64(warps))
        each = b.mul(b.sdiv(b.add(rows, I64(WARP - 1)), I64(WARP)), groups)
        self.matrix, own = b.sdiv(self.flags.ticket, each), b.srem(self.flags.ticket, each)
        self.block, group = b.sdiv(own, groups), b.srem(own, groups)
        self.first_flag, self.flags_between = b.add(b.mul(self.matrix, each), group), groups
        self.side = b.add(b.mul(group, I64(warps)), self.warp)

    def run(self, triangle: ir.Value, source: ir.Value, out: ir.Value) -> None:
        b, one, bits = self.b, self.one, 8 * self.spec.dtype.itemsize
        kind = one.type_of(self.dtype)
        last = b.sub(self.rows, I64(1))
        square = at(b, triangle, b.mul(self.matrix, b.mul(self.rows, self.rows)), self.dtype)
        begin = b.mul(self.matrix, b.mul(self.rows, self.sides))
        row = b.add(b.mul(self.block, I64(WARP)), self.lane)
        side = minimum(b, self.side, b.sub(self.sides, I64(1)))

        def place(array: ir.Value, row: ir.Value) -> ir.Value:
            return at(b, array, b.add(begin, b.add(b.mul(row, self.sides), side)), self.dtype)

        def tile(column: ir.Value) -> list[Value]:
            """Elements of the block's rows, whose columns the lanes have."""
            column, found = minimum(b, b.add(b.mul(column, I64(WARP)), self.lane), last), []
            for k in range(0, WARP, self.warps):
                r = minimum(b, b.add(b.mul(self.block, I64(WARP)), b.add(self.warp, I64(k))), last)
                found.append(one.load(at(b, square, b.add(b.mul(r, self.rows), column), self.dtype), self.dtype))
            return found

        start = one.load(place(source, minimum(b, row, last)), self.dtype)
        self._leave(1, tile(self.block))
        zero = one.const(self.dtype, 0)
        total, chain = (Elements(b, self.dtype, 1) for _ in range(2))
        total[0] = chain[0] = zero
        with for_range(b, 0, self.block) as j:
            elements = tile(j)
            self.flags.wait(self._flag(j))
            self._leave(0, elements)
            known = read_element(b, place(out, b.add(b.mul(j, I64(WARP)), self.lane)), kind, bits)
            x, sum_ = one.value(known, self.dtype), chain[0]
            meet(b, WARP * self.warps)
            for k in range(WARP):
                sum_ = one.fma(self._element(0, k), shuffle(b, "idx", x, I32(k)), sum_)
            chain[0] = sum_
            ends = b.icmp_signed("==", b.and_(j, I64(CHUNK // WARP - 1)), I64(CHUNK // WARP - 1))
            with if_then(b, ends):
                total[0], chain[0] = total[0] + chain[0], zero
        whole = b.icmp_signed("==", b.and_(self.block, I64(CHUNK // WARP - 1)), I64(0))
        taken = one.select(one.value(whole, "bool"), total[0], total[0] + chain[0])
        meet(b, WARP * self.warps)
        x = self._solved(start - taken)
        there = b.and_(b.icmp_signed("<", row, self.rows), b.icmp_signed("<", self.side, self.sides))
        with if_then(b, there):
            write_element(b, place(out, row), x.ir, bits)
        self.flags.raised(self._flag(self.block))

    def _solved(self, x: Value) -> Value:
        """Row by row: one that is known is taken from those below it."""
        b, one, here = self.b, self.one, number(self.one, self.lane)
        factors = [self._element(1, k) for k in range(WARP)]
        divisor = one.load(at(b, self.tiles[1], b.mul(self.lane, I64(_PITCH + 1)), self.dtype), self.dtype)
        for j in range(WARP):
            found = shuffle(b, "idx", x if self.spec.unit else x / divisor, I32(j))
            x = one.select(here > j, one.fma(-factors[j], found, x), x)
        return x if self.spec.unit else x / divisor

    def _flag(self, block: ir.Value) -> ir.Value:
        return self.b.add(self.first_flag, self.b.mul(block, self.flags_between))

    def _leave(self, which: int, elements: list[Value]) -> None:
        b = self.b
        for k, x in enumerate(elements):
            r = b.add(self.warp, I64(k * self.warps))
            self.one.store(x, at(b, self.tiles[which], b.add(b.mul(r, I64(_PITCH)), self.lane), self.dtype))

    def _element(self, which: int, column: int) -> Value:
        b = self.b
        place = b.add(b.mul(self.lane, I64(_PITCH)), I64(column))
        return self.one.load(at(b, self.tiles[which], place, self.dtype), self.dtype)
