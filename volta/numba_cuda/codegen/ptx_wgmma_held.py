"""Hopper's products by four warps at once (``wgmma``) whose left operand is in registers.

What `ptx_wgmma` says of products holds for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen
from llvmlite import ir

from volta.emit.loops import I16, I32, I64, PTR, fma, for_range, offset
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, exchange, host_lane, register
from volta.numba_cuda.codegen.ptx_wgmma import (
    F32,
    GROUP_COLUMNS,
    MMA_TYPES,
    descriptor,
    pack,
    struct_of,
    tile_element,
    unpack,
    widened,
)


@frozen
class _Held:
    """A kind of product whose left operand is in registers: so many numbers of k ``deep``, and so many in a ``word``.

    The right operand's lines run ``along`` k or columns, which 16-bit numbers say in the ``flags`` of an instruction;
    from product to product it goes on by ``stride`` bytes.
    """

    dtype: str
    deep: int
    word: int
    along: str
    stride: int
    flags: str

    def place(self, k: int) -> tuple[int, int]:
        """Which lane of four has a row's number of k, and in which of its words; eight rows on it is the next word."""
        return k % (4 * self.word) // self.word, 4 * (k // self.deep) + 2 * (k % self.deep // (4 * self.word))

    def number(self, b: ir.IRBuilder, words: Sequence[ir.Value], k: int, second: ir.Value) -> ir.Value:
        """A number of k, as float32: of the second word or the first."""
        if self.word == 1:
            return b.bitcast(b.select(second, words[1], words[0]), F32)
        halves = [b.trunc(b.lshr(x, I32(16 * (k % 2))), I16) for x in words]
        return widened(b, b.select(second, halves[1], halves[0]), self.dtype)


_BFLOAT16 = _Held("bfloat16", 16, 2, "mn", 2048, "1, 1, 1, 1")
_KEYS = _Held("bfloat16", 16, 2, "k", 32, "1, 1, 1, 0")
_TF32 = _Held("tf32", 8, 1, "k", 32, "1, 1, 1")


def _held_op(kind: _Held, columns: int, steps: int) -> Op:
    """Sums of so many columns go on over so many products, the left operand of each in four registers."""
    name, count, held = MMA_TYPES[kind.dtype], columns // 2, 4 * steps
    shape = f"m64n{columns}k{kind.deep}.f32.{name}.{name}"

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        d, text = ",".join(f"${i}" for i in range(count)), ["{ .reg .b64 b; wgmma.fence.sync.aligned;"]
        for step in range(steps):
            a = ",".join(f"${2 * count + 4 * step + i}" for i in range(4))
            text.append(f"add.u64 b, ${2 * count + held}, {step * (kind.stride >> 4)};")
            text.append(f"wgmma.mma_async.sync.aligned.{shape} {{{d}}}, {{{a}}}, b, {kind.flags};")
        # awaited here, since the registers of the left operand must stay as they are until then
        text.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
        constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r"] * held + ["l", "~{memory}"])
        place = descriptor(b, args[count + held], kind.along)
        return assembly(b, " ".join(text), constraints, struct_of(F32, count), [*args[: count + held], place])

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        space = b.inttoptr(b.ptrtoint(b.alloca(ir.ArrayType(F32, count)), I64), PTR)
        for i in range(count):
            b.store(args[i], offset(b, space, 4 * i))

        def use(read: Callable[[ir.Value, int], ir.Value]) -> ir.Value:
            lane = host_lane(b)
            for k in range(kind.deep * steps):
                of_four, word = kind.place(k)
                owner = b.or_(b.and_(lane, I32(28)), I32(of_four))
                words = [read(owner, word), read(owner, word + 1)]
                with for_range(b, 0, count) as i:
                    x = kind.number(b, words, k, b.icmp_signed("!=", b.and_(i, I64(2)), I64(0)))
                    column = b.add(b.mul(b.lshr(i, I64(2)), I64(8)), b.and_(i, I64(1)))
                    column = b.add(column, b.zext(b.shl(b.and_(lane, I32(3)), I32(1)), I64))
                    y = tile_element(b, args[count + held], kind.along, kind.dtype, column, I64(k))
                    here = offset(b, space, b.mul(i, I64(4)))
                    b.store(fma(b, x, y, b.load(here, typ=F32)), here)
            return pack(b, [b.load(offset(b, space, 4 * i), typ=F32) for i in range(count)])

        return exchange(b, args[count : count + held], use)

    arguments = (F32,) * count + (I32,) * held + (PTR,)
    title = f"multiply_group_held_{name}_{columns}_{steps}{'_along_k' * (kind is _KEYS)}"
    return register(Op(title, struct_of(F32, count), arguments, ptx, host))


HELD = {
    **{("bfloat16", columns, steps): _held_op(_BFLOAT16, columns, steps) for columns in (64, 128) for steps in (2, 4)},
    **{("tf32", columns, 4): _held_op(_TF32, columns, 4) for columns in GROUP_COLUMNS},
}

HELD_SCORES = _held_op(_KEYS, 64, 4)
"""Sums of 64 columns go on over 64 of k, whose lines in shared memory run along k."""


def multiply_group_held(
    b: ir.IRBuilder, dtype: str, left: Sequence[ir.Value], right: ir.Value, sums: Sequence[ir.Value]
) -> list[ir.Value]:
    """Four warps' ``wgmma`` of bfloat16 or tf32 whose left operand is in registers, and awaited: 64 rows by
    ``2 * len(sums)`` columns.

    Each warp has 16 of the rows: four registers of theirs for every 16 of k, of tf32 for every 8, as ``mma`` takes
    them. The right operand lies in shared memory as `multiply_group` takes one whose lines run along "mn", of tf32 "k".
    """
    return unpack(b, call(b, HELD[dtype, 2 * len(sums), len(left) // 4], [*sums, *left, right]))
