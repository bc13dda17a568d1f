"""Loops and choices: a launch that decides whether others run, and whether again. The host takes no part in it.

A CUDA graph has nodes that run a graph of their own on a condition, once or as long as it holds. The condition is set
by a kernel of one thread, which compares a flag in device memory with a number. A choice is one such node for each
branch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
from llvmlite import ir

from volta.emit.loops import I32, I64, PTR, VOID, load_args, offset
from volta.numba_cuda.launches import Launch, Range, Regions
from volta.numba_cuda.target.ptx import KernelSource
from volta.numba_cuda.target.threads import HEADER
from volta.xla_like.control_calls import Around, bound
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import ExecutionPlan


def build_turn(module: ir.Module, name: str) -> None:
    """Args: the address of an int32, a number; and the handle of a condition, which is whether they are equal.

    What sets a condition is a function of the driver's.
    """
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64]), name)
    function.calling_convention = "ptx_kernel"
    args, handle = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    address, number = load_args(b, offset(b, args, HEADER * 8), 2)
    flag = b.load(b.inttoptr(address, PTR), typ=I32, align=4)
    holds = b.zext(b.icmp_signed("==", b.sext(flag, I64), number), I32)
    b.call(ir.Function(module, ir.FunctionType(VOID, [I64, I32]), "cudaGraphSetConditional"), [handle, holds])
    b.ret_void()


def holds(words: np.ndarray) -> bool:
    """What the kernel finds, on the host."""
    address, number = words[HEADER : HEADER + 2].tolist()
    return ctypes.c_int32.from_address(address).value == number


TURN = KernelSource("volta_turn", "turn: whether an int32 is a number", build_turn)


def launches(
    call: KernelCall, regions: Regions, nbytes: Callable[[int], int], nested: Callable[[ExecutionPlan], list[Launch]]
) -> Iterator[Launch]:
    """The launches of a call that runs plans; ``nested`` gives those of a plan."""
    flag = call.accesses[0]
    assert flag.buffer is not None
    repeats = call.kernel.name == "while"  # type: ignore[union-attr]
    for number, (plan, around) in enumerate(bound(call)):
        found = nested(plan)
        if not found:
            continue
        scratch = max(x.scratch for x in found)
        region = regions.new(scratch) if scratch else 0
        inside = tuple(_moved(x, around, region) for x in found)
        reads: list[Range] = [(b, 0, nbytes(b)) for b in call.reads]
        writes: list[Range] = [(b, 0, nbytes(b)) for b in (*call.writes, *([region] if region else []))]
        yield Launch(
            TURN, 1, 1, (1, 0, 0, 0, 0, 1 if repeats else number), ((HEADER, flag.buffer, flag.offset),), 0,
            call.kernel.name if repeats else f"{call.kernel.name} {number}",  # type: ignore[union-attr]
            0, tuple(reads), tuple(writes), alone=True, inside=inside, repeats=repeats,
        )  # fmt: skip


def _moved(launch: Launch, around: Around, region: int) -> Launch:
    """A launch of a nested plan in terms of the buffers around it."""

    def place(buffer: int) -> tuple[int, int]:
        return (region, 0) if buffer < 0 else around(buffer)

    def ranges(found: Sequence[Range]) -> tuple[Range, ...]:
        moved = [(*place(b), low, high) for b, low, high in found]
        return tuple((buffer, at + low, at + high) for buffer, at, low, high in moved)

    addresses = []
    for word, buffer, distance in launch.addresses:
        outer, at = place(buffer)
        addresses.append((word, outer, at + distance))
    inside = tuple(_moved(x, around, region) for x in launch.inside)
    return attrs.evolve(
        launch, addresses=tuple(addresses), reads=ranges(launch.reads), writes=ranges(launch.writes), inside=inside
    )
