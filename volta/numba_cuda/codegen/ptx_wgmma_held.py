"""Hopper's products by four warps at once (``wgmma``) whose left operand is in registers, and several begun together.

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
    FIRST,
    GROUP_COLUMNS,
    GROUPS,
    MMA_TYPES,
    UPPER,
    descriptor,
    lower_word,
    pack,
    struct_of,
    tile_element,
    unpack,
    wait_op,
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
    return register(Op(f"multiply_group_held_{name}_{columns}_{steps}", struct_of(F32, count), arguments, ptx, host))


_HELD = {
    **{("bfloat16", columns, steps): _held_op(_BFLOAT16, columns, steps) for columns in (64, 128) for steps in (2, 4)},
    **{("tf32", columns, 4): _held_op(_TF32, columns, 4) for columns in GROUP_COLUMNS},
}


def multiply_group_held(
    b: ir.IRBuilder, dtype: str, left: Sequence[ir.Value], right: ir.Value, sums: Sequence[ir.Value]
) -> list[ir.Value]:
    """Four warps' ``wgmma`` of bfloat16 or tf32 whose left operand is in registers, and awaited: 64 rows by
    ``2 * len(sums)`` columns.

    Each warp has 16 of the rows: four registers of theirs for every 16 of k, of tf32 for every 8, as ``mma`` takes
    them. The right operand lies in shared memory as `multiply_group` takes one whose lines run along "mn", of tf32 "k".
    """
    return unpack(b, call(b, _HELD[dtype, 2 * len(sums), len(left) // 4], [*sums, *left, right]))


def _together_op(depths: tuple[int, ...], widths: tuple[int, ...]) -> Op:
    """Products of 64 columns with sums from 0, each over so many 128 bytes of k, and then some that go on with sums of
    so many columns, over 64 of k that are held in registers."""
    each, held = 32, 16
    before, count = each * len(depths), sum(widths) // 2
    words, places = before + 2 * count, before + 2 * count + held * len(widths)
    kind = struct_of(F32, before + count)

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        text, place = ["{ .reg .b64 a, b; .reg .b32 c; wgmma.fence.sync.aligned;"], places
        shape = "wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16"
        move = f"add.u32 c, ${{}}, {{}}; mov.b64 {{}}, {{{{c, {UPPER}}}}};"

        def names(start: int, count: int) -> str:
            return ",".join(f"${i}" for i in range(start, start + count))

        for number, depth in enumerate(depths):
            for step in range(4 * depth):
                text += [move.format(place + step // 4 * 2 + i, step % 4 * (32 >> 4), x) for i, x in enumerate("ab")]
                text.append(f"{shape.format(64)} {{{names(each * number, each)}}}, a, b, {int(step > 0)}, 1, 1, 0, 0;")
            place += 2 * depth
            text.append("wgmma.commit_group.sync.aligned;")
        start = before
        for number, width in enumerate(widths):
            for step in range(4):
                left = names(words + held * number + 4 * step, 4)
                text.append(move.format(place + number, step * (2048 >> 4), "b"))
                text.append(f"{shape.format(width)} {{{names(start, width // 2)}}}, {{{left}}}, b, 1, 1, 1, 1;")
            start += width // 2
        text.append("wgmma.commit_group.sync.aligned; }")
        pointers = args[count + held * len(widths) :]
        constraints = [*["=&f"] * before, *["=f"] * count, *(str(before + i) for i in range(count))]
        constraints += ["r"] * (held * len(widths) + len(pointers)) + ["~{memory}"]
        along = ["k"] * (len(pointers) - len(widths)) + ["mn"] * len(widths)
        given = [*args[: -len(pointers)], *(lower_word(b, x, y) for x, y in zip(pointers, along, strict=True))]
        return assembly(b, " ".join(text), ",".join(constraints), kind, given)

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        pointers, found, start = list(args[count + held * len(widths) :]), [], 0
        for depth in depths:
            sums: list[ir.Value] = []
            for op in [FIRST[64], *[GROUPS["bfloat16", 64, ("k", "k")]] * (depth - 1)]:
                sums = unpack(b, op.host(b, [*sums, pointers.pop(0), pointers.pop(0)]))
            found += sums
        for number, width in enumerate(widths):
            left = args[count + held * number : count + held * (number + 1)]
            sums = [*args[start : start + width // 2], *left, pointers.pop(0)]
            found += unpack(b, _HELD["bfloat16", width, 4].host(b, sums))
            start += width // 2
        return pack(b, found)

    arguments = (F32,) * count + (I32,) * (held * len(widths)) + (PTR,) * (2 * sum(depths) + len(widths))
    title = "_".join(str(x) for x in (*depths, "then", *widths))
    return register(Op(f"multiply_groups_{title}", kind, arguments, ptx, host))


_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((1, 1), (64, 64))]
for _x, _y in ((1, 1), (1, 2), (2, 1), (2, 2)):
    _SHAPES += [((_x,), (64 * _y,)), ((_x, _y), (64 * _x,)), ((_x,), (64 * _y, 64 * _x))]
_TOGETHER = {(depths, widths): _together_op(depths, widths) for depths, widths in _SHAPES}
"""For heads of either size: the result, the gradient of queries, and those of keys and values."""


def multiply_groups(
    b: ir.IRBuilder, sides: Sequence[Sequence[tuple[ir.Value, ir.Value]]],
    held: Sequence[tuple[Sequence[ir.Value], ir.Value, Sequence[ir.Value]]],
) -> tuple[list[list[ir.Value]], list[list[ir.Value]]]:  # fmt: skip
    """Begin several products: of `sides`, each 64 columns with sums from 0, as by `multiply_group` for each 128 bytes
    of k; then of what is `held`, each words, the right operand and sums that go on, as by `multiply_group_held`.

    One operation, since what is taken in registers cannot be put there while others are under way. Each of the first is
    a group to wait for, the others are one together.
    """
    key = tuple(len(x) for x in sides), tuple(2 * len(sums) for _, _, sums in held)
    pointers = [x for some in sides for side in some for x in side] + [right for _, right, _ in held]
    sums, words = [x for *_, some in held for x in some], [x for some, *_ in held for x in some]
    found = unpack(b, call(b, _TOGETHER[key], [*sums, *words, *pointers]))
    cuts = [32] * len(sides) + [len(some) for *_, some in held]
    parts = [found[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]
    return parts[: len(sides)], parts[len(sides) :]


_EARLIER = {later: wait_op(F32, "f", 32, later=later) for later in (1, 2)}
_HOLDING = {
    (count, words): wait_op(F32, "f", count, words)
    for count, words in ((64, 16), (96, 16), (96, 32), (128, 32), (160, 32))
}


def multiply_group_wait_earlier(b: ir.IRBuilder, sums: Sequence[ir.Value], later: int = 1) -> list[ir.Value]:
    """Wait for all products but so many that were begun last; gives the sums, of 64 columns, of one before."""
    return unpack(b, call(b, _EARLIER[later], list(sums)))


def multiply_group_wait_holding(
    b: ir.IRBuilder, sums: Sequence[ir.Value], words: Sequence[ir.Value], others: Sequence[ir.Value]
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Wait for all products; gives their sums. The left operands of those under way are `words`, which stay in
    registers until then; `others` are numbers that are computed before."""
    found = unpack(b, call(b, _HOLDING[len(sums) + len(others), len(words)], [*sums, *others, *words]))
    return found[: len(sums)], found[len(sums) :]
