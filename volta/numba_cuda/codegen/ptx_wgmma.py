"""Hopper's products by four warps at once (``wgmma``).

As those of `ptx_mma`, products in bfloat16, float16 and tf32 are below strict: on the host they are added by FMAs in
ascending k, which says where every element goes, not its last bits. Where all sums are exact the two agree. Sums of
products of int8 are integers of 32 bits: strict.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I8, I16, I32, I64, PTR, VOID, fma, for_range, offset
from volta.numba_cuda.codegen.ptx_ops import (
    Op,
    assembly,
    call,
    host_thread,
    meet_warp,
    register,
    shared_address,
)

F32 = ir.FloatType()

MMA_TYPES = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32", "int8": "s8"}
"""What the tensor cores multiply, by Volta's names; sums are float32, of int8 int32."""

_ITEMS = {"bfloat16": 2, "float16": 2, "tf32": 4, "int8": 1}

GROUP_COLUMNS = (32, 64, 128, 192, 256)
"""Columns of the tiles that `multiply_group` is there for."""

LINE_BYTES = 128
"""Bytes of a line of a tile in shared memory, and of k that `multiply_group` goes through."""


def struct_of(kind: ir.Type, count: int) -> ir.Type:
    """So many values of one type."""
    return ir.LiteralStructType([kind] * count)


def pack(b: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Values of one type as one."""
    found = ir.Constant(struct_of(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        found = b.insert_value(found, value, i)
    return found


def unpack(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    """What was packed."""
    return [b.extract_value(value, i) for i in range(len(value.type.elements))]


def widened(b: ir.IRBuilder, bits: ir.Value, dtype: str) -> ir.Value:
    """A 16-bit element as a float32."""
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(bits, I32), I32(16)), F32)
    return b.fpext(b.bitcast(bits, ir.HalfType()), F32)


# -- products of four warps, Hopper's ----------------------------------------------------------------------------------


UPPER = 1 << 30 | 1024 >> 4
"""A descriptor's upper word: 128-byte swizzle; groups of eight lines are 1024 bytes apart."""


def lower_word(b: ir.IRBuilder, pointer: ir.Value, along: str) -> ir.Value:
    """Its lower word: where the tile begins; blocks of 64 lines are 8192 bytes apart."""
    place = b.and_(b.lshr(shared_address(b, pointer), I32(4)), I32(0x3FFF))
    return b.or_(place, I32(((8192 if along == "mn" else 16) >> 4) << 16))


def descriptor(b: ir.IRBuilder, pointer: ir.Value, along: str) -> ir.Value:
    """What an instruction is told of a tile in shared memory."""
    return b.or_(b.zext(lower_word(b, pointer, along), I64), I64(UPPER << 32))


def tile_element(
    b: ir.IRBuilder, tile: ir.Value, along: str, dtype: str, own: ir.Value, k: ir.Value
) -> ir.Value:  # fmt: skip
    """Element k of row (or column) `own` of a tile in shared memory, in the dtype of sums; i64 indices (host bodies
    only)."""
    item = _ITEMS[dtype]
    line, inner = (own, k)
    if along == "mn":
        line, inner = b.add(b.and_(own, I64(-64)), k), b.and_(own, I64(63))
    piece, within = b.udiv(inner, I64(16 // item)), b.urem(inner, I64(16 // item))
    exchanged = b.xor(piece, b.and_(line, I64(7)))
    here = b.add(b.add(b.mul(line, I64(LINE_BYTES)), b.mul(exchanged, I64(16))), b.mul(within, I64(item)))
    pointer = offset(b, tile, here)
    if dtype == "tf32":
        return b.load(pointer, typ=F32, align=4)
    if dtype == "int8":
        return b.sext(b.load(pointer, typ=I8, align=1), I32)
    return widened(b, b.load(pointer, typ=I16, align=2), dtype)


def _group_op(dtype: str, columns: int, along: tuple[str, str], first: bool = False) -> Op:
    """With ``first`` the sums begin at 0, and are not among the arguments."""
    name, depth, count = MMA_TYPES[dtype], LINE_BYTES // 4 // _ITEMS[dtype], columns // 2
    given = 0 if first else count
    total, letter, result = (I32, "r", "s32") if dtype == "int8" else (F32, "f", "f32")

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        d = ",".join(f"${i}" for i in range(count))
        # what sides are multiplied by, and for elements of two bytes what lines run along
        signs = "" if dtype == "int8" else ", 1, 1"
        signs += f", {int(along[0] == 'mn')}, {int(along[1] == 'mn')}" if _ITEMS[dtype] == 2 else ""
        steps = [2048 >> 4 if x == "mn" else 32 >> 4 for x in along]
        # in one block, or the assembler puts a wait behind each instruction
        text = ["{ .reg .b64 a, b; wgmma.fence.sync.aligned;"]
        for step in range(4):
            at = count + given
            text.append(f"add.u64 a, ${at}, {step * steps[0]}; add.u64 b, ${at + 1}, {step * steps[1]};")
            text.append(
                f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{result}.{name}.{name} "
                f"{{{d}}}, a, b, {int(step > 0 or not first)}{signs};"
            )
        text.append("wgmma.commit_group.sync.aligned; }")
        constraints = ",".join([f"={letter}"] * count + [str(i) for i in range(given)] + ["l", "l", "~{memory}"])
        places = [descriptor(b, args[given + i], along[i]) for i in range(2)]
        return assembly(b, " ".join(text), constraints, struct_of(total, count), [*args[:given], *places])

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        kind = ir.ArrayType(total, count)
        space = b.inttoptr(b.ptrtoint(b.alloca(kind), I64), PTR)
        for i in range(count):
            b.store(ir.Constant(total, None) if first else args[i], offset(b, space, 4 * i))
        thread = b.zext(b.urem(host_thread(b), I32(128)), I64)
        warp, lane = b.udiv(thread, I64(32)), b.urem(thread, I64(32))
        with for_range(b, 0, count) as i:
            low = b.mul(b.and_(b.lshr(i, I64(1)), I64(1)), I64(8))
            row = b.add(b.add(b.mul(warp, I64(16)), b.udiv(lane, I64(4))), low)
            column = b.add(b.mul(b.urem(lane, I64(4)), I64(2)), b.and_(i, I64(1)))
            column = b.add(column, b.mul(b.lshr(i, I64(2)), I64(8)))
            here = offset(b, space, b.mul(i, I64(4)))
            with for_range(b, 0, 4 * depth) as k:
                x = tile_element(b, args[given], along[0], dtype, row, k)
                y = tile_element(b, args[given + 1], along[1], dtype, column, k)
                before = b.load(here, typ=total)
                b.store(b.add(before, b.mul(x, y)) if total is I32 else fma(b, x, y, before), here)
        meet_warp(b)  # no lane says that the operands may be overwritten before all have read them
        return pack(b, [b.load(offset(b, space, 4 * i), typ=total) for i in range(count)])

    title = f"multiply_group_{name}_{columns}_{along[0]}_{along[1]}{'_first' * first}"
    return register(Op(title, struct_of(total, count), (total,) * given + (PTR, PTR), ptx, host))


GROUPS = {
    (dtype, columns, along): _group_op(dtype, columns, along)
    for dtype in MMA_TYPES
    for columns in GROUP_COLUMNS
    for along in ([(x, y) for x in ("k", "mn") for y in ("k", "mn")] if _ITEMS[dtype] == 2 else [("k", "k")])
}


def multiply_group(
    b: ir.IRBuilder, dtype: str, left: ir.Value, right: ir.Value, along: tuple[str, str], sums: Sequence[ir.Value]
) -> list[ir.Value]:
    """Four warps' ``wgmma`` over 128 bytes of k (9.0a): 64 rows by ``2 * len(sums)`` columns; begun, not awaited.

    Operands lie in shared memory, in lines of 128 bytes whose 16-byte pieces are exchanged by the line's number modulo
    8 (the 128-byte swizzle; both begin at multiples of 1024 bytes). `along` says of each what a line runs along: "k" (a
    line for each row or column), or "mn" (a line for each k, blocks of 64 rows or columns one after the other).
    """
    return unpack(b, call(b, GROUPS[dtype, 2 * len(sums), along], [*sums, left, right]))


FIRST = {columns: _group_op("bfloat16", columns, ("k", "k"), first=True) for columns in (32, 64)}


def multiply_group_first(b: ir.IRBuilder, left: ir.Value, right: ir.Value, columns: int) -> list[ir.Value]:
    """`multiply_group` of bfloat16, both along "k", whose sums begin at 0."""
    return unpack(b, call(b, FIRST[columns], [left, right]))


def wait_op(total: ir.Type, letter: str, count: int, held: int = 0, later: int = 0) -> Op:
    """Waits for all groups but so many ``later`` ones; gives sums, and keeps words that are held until then."""
    kind = struct_of(total, count)

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        letters = [f"={letter}"] * count + [str(i) for i in range(count)] + ["r"] * held + ["~{memory}"]
        return assembly(b, f"wgmma.wait_group.sync.aligned {later};", ",".join(letters), kind, list(args))

    title = f"multiply_group_wait_{letter}_{count}" + (f"_{held}" if held else "") + (f"_but_{later}" if later else "")
    arguments = (total,) * count + (I32,) * held
    return register(Op(title, kind, arguments, ptx, lambda b, args: pack(b, args[:count])))


_GROUP_WAITS = {
    (total, columns // 2): wait_op(total, letter, columns // 2)
    for total, letter in ((F32, "f"), (I32, "r"))
    for columns in GROUP_COLUMNS
}


def multiply_group_wait(b: ir.IRBuilder, sums: Sequence[ir.Value]) -> list[ir.Value]:
    """Wait for the products that `multiply_group` began; gives their sums."""
    return unpack(b, call(b, _GROUP_WAITS[sums[0].type, len(sums)], list(sums)))


def _others(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
    assembly(b, "wgmma.wait_group.sync.aligned 1;", "~{memory}", VOID, [])


_WAIT_OTHERS = register(Op("multiply_group_wait_others", VOID, (), _others, lambda b, args: None))


def multiply_group_wait_others(b: ir.IRBuilder) -> None:
    """Wait for all products that `multiply_group` began but the last: what they read may be written again."""
    call(b, _WAIT_OTHERS)


def _fence(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
    assembly(b, "fence.proxy.async.shared::cta;", "~{memory}", VOID, [])


_FENCE = register(Op("fence_tensor", VOID, (), _fence, lambda b, args: None))


def fence_tensor(b: ir.IRBuilder) -> None:
    """What this thread wrote to shared memory is there for `multiply_group`, after a barrier (9.0 and up)."""
    call(b, _FENCE)


def _registers(way: str, count: int) -> Op:
    def ptx(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
        assembly(b, f"setmaxnreg.{way}.sync.aligned.u32 {count};", "~{memory}", VOID, [])

    return register(Op(f"registers_{way}_{count}", VOID, (), ptx, lambda b, args: None))


_REGISTERS = {(way, count): _registers(way, count) for way in ("inc", "dec") for count in range(24, 248, 8)}


_OF_A_MULTIPROCESSOR, _MOST = 65536, 240


def registers_left(resident: int, threads: int, taking: int, left: int) -> int:
    """How many registers each of `taking` threads can have, where the other ones of a block keep `left`.

    A block has what it begins with, each thread with as many, so that a multiprocessor holds `resident` of them.
    """
    begun = (_OF_A_MULTIPROCESSOR // (resident * threads) & -8) * threads
    return min(_MOST, (begun - (threads - taking) * left) // taking & -8)


def have_registers(b: ir.IRBuilder, count: int, more: bool) -> None:
    """Four warps go on with so many registers a thread (a multiple of 8, at most 240), more or fewer than they had."""
    call(b, _REGISTERS["inc" if more else "dec", count])
