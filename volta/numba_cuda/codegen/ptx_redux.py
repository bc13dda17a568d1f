"""The largest or smallest of a warp's integers in one instruction (``redux``, 8.0 and up), elsewhere by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from volta.emit.loops import I32, intrinsic
from volta.numba_cuda.codegen.ptx_ops import Op, call, exchange, register, shuffle

_ORDERS = {"max": ">", "min": "<"}


def _redux_op(kind: str) -> Op:
    def better(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed(_ORDERS[kind], x, y), x, y)

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        found = args[0]
        if not b.module.name.endswith((" 7.0", " 7.5")):
            return b.call(intrinsic(b.module, f"llvm.nvvm.redux.sync.{kind}", I32, [I32, I32]), [found, I32(-1)])
        for distance in (16, 8, 4, 2, 1):
            found = better(b, found, shuffle(b, "bfly", found, I32(distance)))
        return found

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        def use(read: Callable[[ir.Value, int], ir.Value]) -> ir.Value:
            found = read(I32(0), 0)
            for lane in range(1, 32):
                found = better(b, found, read(I32(lane), 0))
            return found

        return exchange(b, args, use)

    return register(Op(f"redux_{kind}", I32, (I32,), ptx, host))


_REDUX = {kind: _redux_op(kind) for kind in _ORDERS}


def redux(b: ir.IRBuilder, kind: str, word: ir.Value) -> ir.Value:
    """The largest ('max') or smallest ('min') i32, as signed numbers, of a warp's lanes, for all of them. All 32 take
    part."""
    return call(b, _REDUX[kind], [word])
