"""Barriers in shared memory (``mbarrier``) that count threads and bytes: how copies and products wait for each other.

A barrier is 8 bytes. Its phase ends when as many threads have arrived as it was begun for, and all bytes that were
announced are there; the next one begins at once. Who waits names the parity of the phase whose end it waits for: 0 is
the first, and the end of one before the first, of parity 1, is always past.

On the host a barrier is a word: from bit 0 on bytes to come, from 32 on threads to come, from 40 on the threads of each
phase, from 48 on the phase.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I32, I64, PTR, VOID, if_then, intrinsic, while_loop
from volta.numba_cuda.codegen.ptx_ops import Body, Op, assembly, call, register, shared_address

BARRIER_BYTES = 8
_THREADS, _EACH, _PHASE = 32, 40, 48


def _text(text: str, count: int) -> Body:
    """The PTX body of an operation on a barrier, ``$0``, and ``count`` i32 values."""

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
        places = [shared_address(b, args[0]), *args[1:]]
        assembly(b, text, ",".join(["r"] * (1 + count) + ["~{memory}"]), VOID, places)

    return ptx


def _state(b: ir.IRBuilder, barrier: ir.Value) -> ir.Value:
    return b.atomic_rmw("add", barrier, I64(0), "monotonic")


def _move(b: ir.IRBuilder, barrier: ir.Value, threads: int, nbytes: ir.Value) -> None:
    """On the host: fewer threads and more bytes to come; where none are, the next phase begins."""
    now = b.add(b.sub(_state(b, barrier), I64(threads << _THREADS)), nbytes)
    done = b.icmp_signed("==", b.and_(now, I64((1 << _EACH) - 1)), I64(0))
    each = b.and_(b.lshr(now, I64(_EACH)), I64(0xFF))
    following = b.add(b.add(now, I64(1 << _PHASE)), b.shl(each, I64(_THREADS)))
    b.atomic_rmw("xchg", barrier, b.select(done, following, now), "monotonic")


def _host_begin(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    count = b.zext(args[1], I64)
    state = b.or_(b.shl(count, I64(_THREADS)), b.shl(count, I64(_EACH)))
    b.atomic_rmw("xchg", args[0], state, "monotonic")


def _host_wait(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    barrier, parity = args
    changed = intrinsic(b.module, "volta.host.wait_for_change", VOID, [PTR])

    def before() -> ir.Value:
        phase = b.and_(b.lshr(_state(b, barrier), I64(_PHASE)), I64(1))
        return b.icmp_signed("==", phase, b.zext(parity, I64))

    while_loop(b, before, lambda: b.call(changed, [barrier]) and None)


def _host_arrive(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    with if_then(b, b.icmp_signed("!=", args[1], I32(0))):
        _move(b, args[0], 1, I64(0))


# no branch: between products that are under way, one would make the assembler wait for them
_ARRIVE_IF = "{ .reg .pred it; setp.ne.b32 it, $1, 0; @it mbarrier.arrive.shared::cta.b64 _, [$0]; }"
_WAIT = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @!done bra again; }"

_BEGIN = register(
    Op("mbarrier_begin", VOID, (PTR, I32), _text("mbarrier.init.shared::cta.b64 [$0], $1;", 1), _host_begin)
)
_ARRIVE = register(
    Op(
        "mbarrier_arrive", VOID, (PTR, I32), _text(_ARRIVE_IF, 1), _host_arrive,
    )
)  # fmt: skip
_EXPECT = register(
    Op(
        "mbarrier_expect", VOID, (PTR, I32), _text("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", 1),
        lambda b, args: _move(b, args[0], 1, b.zext(args[1], I64)),
    )
)  # fmt: skip
_AWAIT = register(Op("mbarrier_wait", VOID, (PTR, I32), _text(_WAIT, 1), _host_wait))


def _open(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
    assembly(b, "fence.mbarrier_init.release.cluster;", "~{memory}", VOID, [])


_OPEN = register(Op("mbarrier_open", VOID, (), _open, lambda b, args: None))


def begin(b: ir.IRBuilder, barrier: ir.Value, threads: int) -> None:
    """Begin a barrier whose phases so many threads end (9.0 and up)."""
    call(b, _BEGIN, [barrier, I32(threads)])


def opened(b: ir.IRBuilder) -> None:
    """Barriers that this thread began are there for all threads, and for copies, after a barrier of the block."""
    call(b, _OPEN)


def arrive(b: ir.IRBuilder, barrier: ir.Value, which: ir.Value) -> None:
    """Threads for which an i1 holds arrive."""
    call(b, _ARRIVE, [barrier, b.zext(which, I32)])


def expect(b: ir.IRBuilder, barrier: ir.Value, nbytes: ir.Value | int) -> None:
    """Arrive, and announce bytes that copies will write: the phase ends when they are there."""
    call(b, _EXPECT, [barrier, I32(nbytes) if isinstance(nbytes, int) else nbytes])


def wait(b: ir.IRBuilder, barrier: ir.Value, parity: ir.Value) -> None:
    """Wait for the end of the phase with this parity (an i32)."""
    call(b, _AWAIT, [barrier, parity])


def host_complete(b: ir.IRBuilder, barrier: ir.Value, nbytes: ir.Value) -> None:
    """So many bytes that were announced are there (host bodies only)."""
    _move(b, barrier, 0, b.neg(nbytes))
