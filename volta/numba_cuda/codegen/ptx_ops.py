"""What PTX can do and no ordinary LLVM instruction says: copies that run on, exchanges between a warp's lanes, votes.

Each operation is an `Op`: a named function of the module (``@volta.ptx.NAME``, always inlined) with two bodies. `ptx`
is what the GPU runs; `host` says the same in plain LLVM, and is what `volta.numba_cuda.host.host` puts in its place
when it runs a kernel without a GPU. Kernels only ever call operations through `call`, or through the small functions
below.

To add one: make an `Op`, `register` it, and give it a function here (or in a file like `ptx_mma`). A ``host`` body gets
the thread's own arguments. To see those of other lanes it calls `exchange`, which leaves its own for all lanes of the
warp to read, and reads them with what that returns; every lane of the warp has to get there, as on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from llvmlite import ir

from volta.emit.loops import I1, I32, I64, PTR, VOID, if_else, intrinsic, offset

FULL = 0xFFFFFFFF
PREFIX = "volta.ptx."
LANE_BYTES = 256
"""Bytes that a lane can leave for the others of its warp, when a kernel runs on the host."""

Body = Callable[[ir.IRBuilder, Sequence[ir.Value]], "ir.Value | None"]


@attrs.frozen
class Op:
    """An operation: its name, type, and what it is in PTX and on the host."""

    name: str
    result: ir.Type
    args: tuple[ir.Type, ...]
    ptx: Body
    host: Body


OPS: dict[str, Op] = {}
"""All operations, by the name of their function."""


def register(op: Op) -> Op:
    if PREFIX + op.name in OPS:
        raise ValueError(f"two operations are named {op.name}")
    OPS[PREFIX + op.name] = op
    return op


def write_body(function: ir.Function, body: Body) -> None:
    """Give a function its body: what `body` returns is its result."""
    b = ir.IRBuilder(function.append_basic_block("entry"))
    result = body(b, function.args)
    if result is None:
        b.ret_void()
    else:
        b.ret(result)


def call(b: ir.IRBuilder, op: Op, args: Sequence[ir.Value] = ()) -> ir.Value:
    """Call an operation; its function is added to the module on first use."""
    found = b.module.globals.get(PREFIX + op.name)
    if found is None:
        found = ir.Function(b.module, ir.FunctionType(op.result, op.args), PREFIX + op.name)
        found.linkage = "internal"
        found.attributes.add("alwaysinline")
        found.attributes.add("convergent")
        write_body(found, op.ptx)
    return b.call(found, args)


def assembly(
    b: ir.IRBuilder, text: str, constraints: str, result: ir.Type, args: Sequence[ir.Value], effect: bool = True
) -> ir.Value:
    """Inline PTX, for the body of an `Op` that LLVM has no intrinsic for."""
    kind = ir.FunctionType(result, [x.type for x in args])
    return b.call(ir.InlineAsm(kind, text, constraints, side_effect=effect), args, attrs=("convergent",))


def shared_address(b: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The 32-bit address of a pointer into shared memory."""
    return b.ptrtoint(b.addrspacecast(pointer, ir.PointerType(addrspace=3)), I32)


# -- on the host: the warp's lanes meet and read what the others left ------------------------------------------------


def host_thread(b: ir.IRBuilder) -> ir.Value:
    """The number of the running thread in its block, as an i32 (host bodies only)."""
    return b.call(intrinsic(b.module, "volta.host.thread", I32, []), [])


def host_lane(b: ir.IRBuilder) -> ir.Value:
    """The number of the running thread in its warp, as an i32 (host bodies only)."""
    return b.and_(host_thread(b), I32(31))


def meet_warp(b: ir.IRBuilder) -> None:
    """All lanes of the warp meet (host bodies only)."""
    b.call(intrinsic(b.module, "volta.host.meet_warp", VOID, []), [])


def meet_block(b: ir.IRBuilder) -> None:
    """All threads of the block meet (host bodies only)."""
    b.call(intrinsic(b.module, "volta.host.meet_block", VOID, []), [])


def exchange(
    b: ir.IRBuilder, mine: Sequence[ir.Value], use: Callable[[Callable[[ir.Value, int], ir.Value]], ir.Value]
) -> ir.Value:
    """Leave values for the other lanes, and compute ``use(read)``; ``read(lane, i)`` is what a lane left as its i-th.

    Host bodies only. Values take 8 bytes each; the number of the lane is an i32.
    """
    area = intrinsic(b.module, "volta.host.lane_area", PTR, [I32])

    def place(lane: ir.Value, i: int) -> ir.Value:
        return offset(b, b.call(area, [lane]), 8 * i)

    if 8 * len(mine) > LANE_BYTES:
        raise ValueError(f"a lane can leave {LANE_BYTES} bytes for the others, not {8 * len(mine)}")
    own = host_lane(b)
    for i, value in enumerate(mine):
        b.store(value, place(own, i))
    meet_warp(b)
    result = use(lambda lane, i: b.load(place(lane, i), typ=mine[i].type))
    meet_warp(b)
    return result


# -- copies from device to shared memory that run on while the thread computes ---------------------------------------

_SHARED, _GLOBAL = ir.PointerType(addrspace=3), ir.PointerType(addrspace=1)


def _copy_op(nbytes: int) -> Op:
    kind = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
        to, source, valid = args
        if _copies_wait(b):
            for k in range(0, nbytes, 4):
                with if_else(b, b.icmp_signed("<", I32(k), valid)) as branch:
                    with branch.then():
                        branch.give(b.load(offset(b, source, k), align=4, typ=I32))
                    with branch.otherwise():
                        branch.give(I32(0))
                b.store(branch.results[0], offset(b, to, k), align=4)
            return
        places = [b.addrspacecast(to, _SHARED), b.addrspacecast(source, _GLOBAL), valid]
        b.call(intrinsic(b.module, kind, VOID, [_SHARED, _GLOBAL, I32]), places)

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
        copy = intrinsic(b.module, "volta.host.copy_async", VOID, [PTR, PTR, I32, I32])
        b.call(copy, [args[0], args[1], I32(nbytes), args[2]])

    return register(Op(f"cp_async_{nbytes}", VOID, (PTR, PTR, I32), ptx, host))


_COPIES = {nbytes: _copy_op(nbytes) for nbytes in (4, 8, 16)}


def _copies_wait(b: ir.IRBuilder) -> bool:
    """Whether the GPU has no copies that run on: before 8.0 they are there when the next instruction is."""
    return bool(b.module.name.endswith((" 7.0", " 7.5")))


def _commit(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
    if _copies_wait(b):
        return
    b.call(intrinsic(b.module, "llvm.nvvm.cp.async.commit.group", VOID, []), [])


_COMMIT = register(
    Op(
        "cp_async_commit", VOID, (), _commit,
        lambda b, _: b.call(intrinsic(b.module, "volta.host.commit_copies", VOID, []), []) and None,
    )
)  # fmt: skip


def _wait_op(pending: int) -> Op:
    def ptx(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
        if _copies_wait(b):
            return
        b.call(intrinsic(b.module, "llvm.nvvm.cp.async.wait.group", VOID, [I32]), [I32(pending)])

    def host(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
        b.call(intrinsic(b.module, "volta.host.wait_copies", VOID, [I32]), [I32(pending)])

    return register(Op(f"cp_async_wait_{pending}", VOID, (), ptx, host))


_WAITS = [_wait_op(pending) for pending in range(8)]


def copy_async(b: ir.IRBuilder, to: ir.Value, source: ir.Value, nbytes: int, valid: ir.Value | None = None) -> None:
    """Start a copy of 4, 8 or 16 bytes from device to shared memory; both addresses in steps of `nbytes`. It takes
    8.0 to run on while the thread does.

    ``valid`` (i32) of them are read, the rest are zeros: 0 for places beyond an edge.
    """
    call(b, _COPIES[nbytes], [to, source, I32(nbytes) if valid is None else valid])


def commit_copies(b: ir.IRBuilder) -> None:
    """The copies that this thread started since the last call are one group."""
    call(b, _COMMIT)


def wait_copies(b: ir.IRBuilder, pending: int) -> None:
    """Wait until at most `pending` of this thread's groups are under way; others see the copies after a barrier."""
    call(b, _WAITS[pending])


def _pin(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
    assembly(b, "", "~{memory}", VOID, [])


_NEAR = register(
    Op(
        "prefetch", VOID, (PTR,),
        lambda b, args: assembly(b, "prefetch.global.L2 [$0];", "l", VOID, [b.ptrtoint(args[0], I64)]) and None,
        lambda b, args: None,
    )
)  # fmt: skip
_PIN = register(Op("pin_reads", VOID, (), _pin, lambda b, _: None))
_SETTLE = register(
    Op(
        "settle", ir.FloatType(), (ir.FloatType(),),
        lambda b, args: assembly(b, "", "=f,0", ir.FloatType(), args), lambda b, args: args[0],
    )
)  # fmt: skip


_BITS_OVER = register(
    Op(
        "bits_over", I32, (I32, I32, I32),
        lambda b, args: assembly(b, "lop3.b32 $0, $1, $2, $3, 0x6a;", "=r,r,r,r", I32, args, effect=False),
        lambda b, args: b.xor(b.and_(args[0], args[1]), args[2]),
    )
)  # fmt: skip


def bits_over(b: ir.IRBuilder, word: ir.Value, mask: int, other: int) -> ir.Value:
    """``word & mask ^ other`` of an i32, in one instruction: the assembler makes two of it where both are constants."""
    return call(b, _BITS_OVER, [word, I32(mask), I32(other)])


def _host_permuted(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    low, high, which = (b.zext(x, I64) for x in args)
    every, found = b.or_(low, b.shl(high, I64(32))), I64(0)
    for i in range(4):
        digit = b.lshr(which, I64(4 * i))
        byte = b.and_(b.lshr(every, b.shl(b.and_(digit, I64(7)), I64(3))), I64(0xFF))
        signs = b.select(b.icmp_unsigned("<", byte, I64(0x80)), I64(0), I64(0xFF))
        byte = b.select(b.icmp_unsigned("==", b.and_(digit, I64(8)), I64(0)), byte, signs)
        found = b.or_(found, b.shl(byte, I64(8 * i)))
    return b.trunc(found, I32)


_PERMUTED = register(
    Op(
        "permuted", I32, (I32, I32, I32),
        lambda b, args: assembly(b, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", I32, args, effect=False), _host_permuted,
    )
)  # fmt: skip


def permuted(b: ir.IRBuilder, low: ir.Value, high: ir.Value, which: ir.Value) -> ir.Value:
    """Four of the eight bytes of two i32: those that the lowest hexadecimal digits of `which` number, from 0 to 7; 8
    more is a byte of its sign."""
    return call(b, _PERMUTED, [low, high, which])


def prefetch(b: ir.IRBuilder, pointer: ir.Value) -> None:
    """Ask for 128 bytes of device memory to be loaded into the second-level cache."""
    call(b, _NEAR, [pointer])


_ONCE = register(
    Op(
        "once",
        VOID,
        (),
        lambda b, _: assembly(b, ".pragma \\22nounroll\\22;", "", VOID, []) and None,
        lambda b, _: None,
    )
)


def once(b: ir.IRBuilder) -> None:
    """At the start of a loop's body: the assembler is not to write it out several times, as it is long."""
    call(b, _ONCE)


def settle(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """A float32, computed before what follows: not later, with all that it is computed from in registers until then."""
    return call(b, _SETTLE, [x])


def pin_reads(b: ir.IRBuilder) -> None:
    """What was read before is not read later instead: so a loop can read ahead for its next iteration."""
    call(b, _PIN)


# -- values of other lanes -------------------------------------------------------------------------------------------


def _source_lane(b: ir.IRBuilder, mode: str, lane: ir.Value, by: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lane that a shuffle reads, and whether it is one."""
    if mode == "bfly":
        return b.and_(b.xor(lane, by), I32(31)), I1(1)
    if mode == "idx":
        return b.and_(by, I32(31)), I1(1)
    found = b.add(lane, by) if mode == "down" else b.sub(lane, by)
    inside = b.icmp_signed("<=", found, I32(31)) if mode == "down" else b.icmp_signed(">=", found, I32(0))
    return b.and_(found, I32(31)), inside


def host_shuffle(b: ir.IRBuilder, mode: str, value: ir.Value, by: ir.Value) -> ir.Value:
    """What a shuffle over a whole warp gives, on the host."""

    def use(read: Callable[[ir.Value, int], ir.Value]) -> ir.Value:
        found, inside = _source_lane(b, mode, host_lane(b), by)
        return b.select(inside, read(found, 0), value)

    return exchange(b, [value], use)


def _shuffle_op(mode: str) -> Op:
    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        shuffle = intrinsic(b.module, f"llvm.nvvm.shfl.sync.{mode}.i32", I32, [I32] * 4)
        return b.call(shuffle, [I32(-1), args[0], args[1], I32(0 if mode == "up" else 31)])

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return host_shuffle(b, mode, args[0], args[1])

    return register(Op(f"shuffle_{mode}", I32, (I32, I32), ptx, host))


_SHUFFLES = {mode: _shuffle_op(mode) for mode in ("idx", "up", "down", "bfly")}


def shuffle(b: ir.IRBuilder, mode: str, word: ir.Value, by: ir.Value) -> ir.Value:
    """An i32 of another lane: lane ``by`` ('idx'), the own one less or plus ``by`` ('up', 'down'; beyond the end one's
    own), or the own one ``xor by`` ('bfly'). All 32 lanes take part."""
    return call(b, _SHUFFLES[mode], [word, by])


def host_ballot(b: ir.IRBuilder, holds: ir.Value) -> ir.Value:
    """The lanes of the warp where an i1 holds, on the host."""

    def use(read: Callable[[ir.Value, int], ir.Value]) -> ir.Value:
        mask: ir.Value = I32(0)
        for lane in range(32):
            mask = b.or_(mask, b.shl(b.and_(read(I32(lane), 0), I32(1)), I32(lane)))
        return mask

    return exchange(b, [b.zext(holds, I32)], use)


def _ballot(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return b.call(intrinsic(b.module, "llvm.nvvm.vote.ballot.sync", I32, [I32, I1]), [I32(-1), args[0]])


_BALLOT = register(Op("ballot", I32, (I1,), _ballot, lambda b, args: host_ballot(b, args[0])))


def ballot(b: ir.IRBuilder, holds: ir.Value) -> ir.Value:
    """A bit for each lane of the warp: whether an i1 holds there. All 32 lanes take part."""
    return call(b, _BALLOT, [holds])


def _match(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return b.call(intrinsic(b.module, "llvm.nvvm.match.any.sync.i64", I32, [I32, I64]), [I32(-1), args[0]])


def _host_match(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    def use(read: Callable[[ir.Value, int], ir.Value]) -> ir.Value:
        mask: ir.Value = I32(0)
        for lane in range(32):
            same = b.icmp_signed("==", read(I32(lane), 0), args[0])
            mask = b.or_(mask, b.shl(b.zext(same, I32), I32(lane)))
        return mask

    return exchange(b, [args[0]], use)


_MATCH = register(Op("match", I32, (I64,), _match, _host_match))


def match(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A bit for each lane of the warp: whether it has this lane's i64. All 32 lanes take part."""
    return call(b, _MATCH, [value])
