"""Loops and choices: a launch that decides whether others run, and whether again. The host takes no part in it.

A CUDA graph has nodes that run a graph of their own on a condition, once or as long as it holds. The condition is set
by a kernel of one thread, which compares a flag in device memory with a number. A choice is one such node for each
branch.

A loop also ends where the host says so, by a stop word (`device.flights`). That lies in the host's memory, which the
device takes a microsecond to read; so it has a copy in its own, and now and then the thread updates that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
from llvmlite import ir

from volta.emit.loops import I1, I32, I64, PTR, VOID, load_args, offset
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call
from volta.numba_cuda.iterations import between_tests
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch, Range
from volta.xla_like.control_calls import bound
from volta.xla_like.kernels import KernelCall

_OFTEN = 1 << 21
"""Cycles of a multiprocessor after which a copy of a stop word is updated: about a millisecond. Counts of
two multiprocessors differ, but none stands still: however the kernel moves between them, it is not much longer."""


def _clock(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return assembly(b, "mov.u64 $0, %clock64;", "=l", I64, [])


CLOCK = Op("cycles", I64, (), _clock, lambda b, args: I64(0))
"""The device's clock. It is not registered, as this kernel alone asks for it, which no host runs."""


def build_condition(module: ir.Module, name: str) -> None:
    """Args: the address of an int32, a number; the handle of a condition, which is whether they are equal; and where
    the copy of a stop word is (`flights.WORDS`), or 0: unless the word is 0, the condition is false.

    What sets a condition is a function of the driver's.
    """
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64]), name)
    function.calling_convention = "ptx_kernel"
    args, handle, stop = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    address, number = load_args(b, args, 2)
    flag = b.load(b.inttoptr(address, PTR), typ=I32, align=4)
    holds = b.icmp_signed("==", b.sext(flag, I64), number)
    entered, ask, decide = b.block, b.append_basic_block("ask"), b.append_basic_block("decide")
    b.cbranch(b.icmp_unsigned("==", stop, I64(0)), decide, ask)
    b.position_at_end(ask)
    goes_on = _goes_on(b, b.inttoptr(stop, PTR))
    asked = b.block
    b.branch(decide)
    b.position_at_end(decide)
    again = b.phi(I1)
    again.add_incoming(I1(1), entered)
    again.add_incoming(goes_on, asked)
    condition = b.zext(b.and_(holds, again), I32)
    b.call(ir.Function(module, ir.FunctionType(VOID, [I64, I32]), "cudaGraphSetConditional"), [handle, condition])
    b.ret_void()


def _goes_on(b: ir.IRBuilder, stop: ir.Value) -> ir.Value:
    """Whether a stop word is 0, by the device's copy of it if that is not old."""
    when, known, own = (offset(b, stop, 8 * i) for i in range(3))
    before, last, address = (b.load(x, typ=I64, align=8) for x in (when, known, own))
    now = call(b, CLOCK)
    asked, look, out = b.block, b.append_basic_block("look"), b.append_basic_block("looked")
    b.cbranch(b.icmp_unsigned(">", b.sub(now, before), I64(_OFTEN)), look, out)
    b.position_at_end(look)
    found = b.load_atomic(b.inttoptr(address, PTR), "monotonic", 8, typ=I64)  # the host may be writing it
    for value, place in ((found, known), (now, when)):
        b.store(value, place, align=8)
    b.branch(out)
    b.position_at_end(out)
    latest = b.phi(I64)
    latest.add_incoming(last, asked)
    latest.add_incoming(found, look)
    return b.icmp_unsigned("==", latest, I64(0))


def holds(words: np.ndarray) -> bool:
    """What the kernel finds, on the host."""
    address, number = words[:2].tolist()
    return ctypes.c_int32.from_address(address).value == number


CONDITION = KernelSource(
    "volta_condition", "condition: whether an int32 is a number, and nobody says stop", build_condition
)


def launches(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """The launches of a call that runs plans."""
    flag = call.accesses[0]
    assert flag.buffer is not None
    repeats = call.kernel.name == "while"  # type: ignore[union-attr]
    for number, (plan, around) in enumerate(bound(call)):
        found, everything = between_tests(call, plan, around, ctx)
        if everything or not found:
            yield from found
            continue
        inside = tuple(found)
        scratch = dict.fromkeys(r.buffer for x in inside for r in x.writes if r.buffer < 0)
        reads = [Range(b, 0, ctx.nbytes(b)) for b in call.reads]
        writes = [Range(b, 0, ctx.nbytes(b)) for b in (*call.writes, *scratch)]
        yield Launch(
            CONDITION, 1, 1, (0, 1 if repeats else number), ((0, flag.buffer, flag.offset),), 0,
            call.kernel.name if repeats else f"{call.kernel.name} {number}",  # type: ignore[union-attr]
            0, tuple(reads), tuple(writes), alone=True, inside=inside, repeats=repeats,
        )  # fmt: skip
