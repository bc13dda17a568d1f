"""Hopper's copies of neighbouring bytes (``cp.async.bulk``): a thread asks for thousands, the copy engine does it."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I32, I64, PTR, VOID, for_range, intrinsic, offset
from volta.numba_cuda.codegen.ptx_mbarrier import host_complete
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register, shared_address

UNIT = 16
"""Addresses and numbers of bytes are multiples of this."""


def _copy(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    to, source, nbytes, barrier = args
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    places = [shared_address(b, to), b.ptrtoint(source, I64), nbytes, shared_address(b, barrier)]
    assembly(b, copy, "r,l,r,r,~{memory}", VOID, places)


def _host_copy(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    to, source, nbytes, barrier = args
    size = b.zext(nbytes, I64)
    padded = intrinsic(b.module, "volta.host.copy_padded", VOID, [PTR, PTR, I64, I64])
    with for_range(b, 0, size, UNIT) as at:
        b.call(padded, [offset(b, to, at), offset(b, source, at), I64(UNIT), I64(UNIT)])
    host_complete(b, barrier, size)


def _near(b: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    text = "cp.async.bulk.prefetch.L2.global [$0], $1;"
    assembly(b, text, "l,r,~{memory}", VOID, [b.ptrtoint(args[0], I64), args[1]])


_COPY = register(Op("copy_bulk", VOID, (PTR, PTR, I32, PTR), _copy, _host_copy))
_NEAR = register(Op("prefetch_bulk", VOID, (PTR, I32), _near, lambda b, args: None))


def copy_bulk(b: ir.IRBuilder, to: ir.Value, source: ir.Value, nbytes: ir.Value, barrier: ir.Value) -> None:
    """Begin to copy so many bytes (an i32, at least 16) to shared memory; `barrier` counts them as they come."""
    call(b, _COPY, [to, source, nbytes, barrier])


def prefetch_bulk(b: ir.IRBuilder, source: ir.Value, nbytes: ir.Value) -> None:
    """Ask for so many bytes (an i32) of device memory to be loaded into the second-level cache."""
    call(b, _NEAR, [source, nbytes])
