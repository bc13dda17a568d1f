"""Semaphores between blocks of threads: each adds its part to memory that another wrote before, in a fixed order.

A block takes a ticket when it begins, so that whoever waits does so for blocks that are running already. On the host,
where blocks run one after the other, nobody has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I1, I32, I64, PTR, VOID, if_then, load_args, offset
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register
from volta.numba_cuda.codegen.threads import block_index, device_pointer, new_entry, thread_index

CLEAR_THREADS = 256
"""Threads of a block that clears semaphores."""

_F32 = ir.FloatType()
QUAD = ir.VectorType(_F32, 4)
"""What is read and written at once: 16 bytes."""


def _await(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    place, count = args
    again, done = b.append_basic_block("again"), b.append_basic_block("done")
    b.branch(again)
    b.position_at_end(again)
    found = assembly(b, "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}", I32, [place])
    b.cbranch(b.icmp_unsigned("==", found, count), done, again)
    b.position_at_end(done)


def _is(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    found = assembly(b, "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}", I32, args[:1])
    return b.icmp_unsigned("==", found, args[1])


def _release(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    assembly(b, "st.release.gpu.global.u32 [$0], $1;", "l,r,~{memory}", VOID, args)


_AWAIT = register(Op("await_semaphore", VOID, (PTR, I32), _await, lambda b, args: None))
_IS = register(Op("semaphore_is", I1, (PTR, I32), _is, lambda b, args: I1(1)))
_RELEASE = register(Op("release_semaphore", VOID, (PTR, I32), _release, lambda b, args: None))


def _host_read(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    """By atomic operations, since blocks in series do not race."""
    found: ir.Value = ir.Constant(QUAD, ir.Undefined)
    for i in range(4):
        word = b.atomic_rmw("add", offset(b, args[0], 4 * i), I32(0), "monotonic")
        found = b.insert_element(found, b.bitcast(word, _F32), I32(i))
    return found


def _host_write(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    for i in range(4):
        word = b.bitcast(b.extract_element(args[1], I32(i)), I32)
        b.atomic_rmw("xchg", offset(b, args[0], 4 * i), word, "monotonic")


_READ = register(Op("read_serial", QUAD, (PTR,), lambda b, args: b.load(args[0], align=16, typ=QUAD), _host_read))
_WRITE = register(
    Op("write_serial", VOID, (PTR, QUAD), lambda b, args: b.store(args[1], args[0], align=16) and None, _host_write)
)


def _element_ops(bits: int) -> tuple[Op, Op]:
    kind = ir.IntType(bits)
    read = Op(
        f"read_serial_{bits}", kind, (PTR,), lambda b, args: b.load(args[0], align=bits // 8, typ=kind),
        lambda b, args: b.atomic_rmw("add", args[0], kind(0), "monotonic"),
    )  # fmt: skip
    write = Op(
        f"write_serial_{bits}", VOID, (PTR, kind), lambda b, args: b.store(args[1], args[0], align=bits // 8) and None,
        lambda b, args: b.atomic_rmw("xchg", args[0], args[1], "monotonic") and None,
    )  # fmt: skip
    return register(read), register(write)


_ELEMENTS = {bits: _element_ops(bits) for bits in (32, 64)}


def read_element(b: ir.IRBuilder, place: ir.Value, kind: ir.Type, bits: int) -> ir.Value:
    """One element, of 32 or 64 bits, that a block before this one may have written."""
    return b.bitcast(call(b, _ELEMENTS[bits][0], [place]), kind)


def write_element(b: ir.IRBuilder, place: ir.Value, value: ir.Value, bits: int) -> None:
    """One element for the blocks behind this one."""
    call(b, _ELEMENTS[bits][1], [place, b.bitcast(value, ir.IntType(bits))])


def take_ticket(b: ir.IRBuilder, place: ir.Value) -> ir.Value:
    """The number (i32) of how many blocks came here before; one thread of a block asks."""
    return b.atomic_rmw("add", place, I32(1), "monotonic")


def await_semaphore(b: ir.IRBuilder, place: ir.Value, count: ir.Value) -> None:
    """Wait until the i32 at a place is ``count``. What was written before `release_semaphore` is seen after a
    barrier."""
    call(b, _AWAIT, [place, count])


def semaphore_is(b: ir.IRBuilder, place: ir.Value, count: ir.Value) -> ir.Value:
    """Whether the i32 at a place is ``count``: if so, there is nothing to wait for. Reading takes long, so ask
    early."""
    return call(b, _IS, [place, count])


def release_semaphore(b: ir.IRBuilder, place: ir.Value, count: ir.Value) -> None:
    """Let the block with ticket ``count`` begin, after a barrier behind what the block wrote."""
    call(b, _RELEASE, [place, count])


def read_serial(b: ir.IRBuilder, place: ir.Value) -> ir.Value:
    """A `QUAD` that a block before this one may have written."""
    return call(b, _READ, [place])


def write_serial(b: ir.IRBuilder, place: ir.Value, value: ir.Value) -> None:
    """A `QUAD` for the blocks behind this one."""
    call(b, _WRITE, [place, value])


def build_clear(module: ir.Module, name: str) -> ir.Function:
    """Add the kernel that makes semaphores 0; its args: where they are, and how many."""
    function, b = new_entry(module, name, CLEAR_THREADS)
    address, count = load_args(b, function.args[0], 2)
    place = b.add(b.mul(block_index(b), I64(CLEAR_THREADS)), thread_index(b))
    with if_then(b, b.icmp_signed("<", place, count)):
        b.store(I32(0), offset(b, device_pointer(b, address), b.mul(place, I64(4))), align=4)
    b.ret_void()
    return function
