"""Groups of four warps that take turns, by barriers of the block that have numbers: who issues products, and who then
does what ordinary units do meanwhile.

Turns change when something is computed and not what; so the host, which runs a thread after the other, has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I32, VOID
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register

_FIRST = 1  # barrier 0 is that of all threads
_THREADS = 256  # of who waits, and of who says that it may go on


def _turn_op(name: str, instruction: str) -> Op:
    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
        assembly(b, f"{instruction} $0, {_THREADS};", "r,~{memory}", VOID, [b.add(args[0], I32(_FIRST))])

    return register(Op(name, VOID, (I32,), ptx, lambda b, args: None))


_TAKE, _PASS = _turn_op("turn_take", "bar.sync"), _turn_op("turn_pass", "bar.arrive")


def take_turn(b: ir.IRBuilder, group: ir.Value) -> None:
    """Wait until the turn is this group's (an i32): another one has passed it on."""
    call(b, _TAKE, [group])


def pass_turn(b: ir.IRBuilder, group: ir.Value) -> None:
    """Give the turn to another group."""
    call(b, _PASS, [group])
