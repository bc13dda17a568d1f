"""Kernels that begin while the one before still runs (``griddepcontrol``, 9.0 and up), in graphs whose edges say so.

As soon as the blocks of a kernel have begun, those of the next one come to multiprocessors that have room. They wait
until all that came before is done, and its memory is what they see; what no kernel before writes they may read earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import VOID
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register

OLDEST = (9, 0)


def _says(text: str) -> Op:
    def ptx(b: ir.IRBuilder, _: Sequence[ir.Value]) -> None:
        if b.module.name.endswith((" 9.0", " 9.0a")):
            assembly(b, f"griddepcontrol.{text};", "~{memory}", VOID, [])

    return register(Op(f"grid_{text}", VOID, (), ptx, lambda b, _: None))


_WAIT, _NEXT = _says("wait"), _says("launch_dependents")


def let_next_begin(b: ir.IRBuilder) -> None:
    """The next kernel's blocks may come, once all blocks of this one got here."""
    call(b, _NEXT)


def await_earlier(b: ir.IRBuilder) -> None:
    """Wait for all kernels before this one; each kernel does."""
    call(b, _WAIT)
