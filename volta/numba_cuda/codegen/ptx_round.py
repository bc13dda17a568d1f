"""Rounding of float32 to narrower formats, by the instructions of compute capability 8.0 and up."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I16, I32
from volta.numba_cuda.codegen.ptx_ops import Op, assembly, call, register

F32 = ir.FloatType()
_NAMES = {"bfloat16": "bf16", "float16": "f16"}


def _round_pair_op(dtype: str) -> Op:
    name = f"{_NAMES[dtype]}x2"

    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return assembly(b, f"cvt.rn.{name}.f32 $0, $2, $1;", "=r,f,f", I32, list(args), effect=False)

    def half(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        if dtype == "float16":
            return b.zext(b.bitcast(b.fptrunc(x, ir.HalfType()), I16), I32)
        bits = b.bitcast(x, I32)
        odd = b.and_(b.lshr(bits, I32(16)), I32(1))
        rounded = b.lshr(b.add(bits, b.add(I32(0x7FFF), odd)), I32(16))
        return b.select(b.fcmp_unordered("uno", x, x), I32(0x7FFF), rounded)

    def host(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.or_(half(b, args[0]), b.shl(half(b, args[1]), I32(16)))

    return register(Op(f"round_{name}", I32, (F32, F32), ptx, host))


_ROUND_PAIRS = {dtype: _round_pair_op(dtype) for dtype in ("bfloat16", "float16")}


def round_pair(b: ir.IRBuilder, low: ir.Value, high: ir.Value, dtype: str) -> ir.Value:
    """Two float32 rounded to nearest even as neighbouring float16 or bfloat16: one i32, `low` in its low half (8.0)."""
    return call(b, _ROUND_PAIRS[dtype], [low, high])


_LARGER, _NEGATIVE_ZEROS = 48, 0x80008000
_LARGER_PAIR = (127 + _LARGER << 7) * 0x00010001


def _host_larger(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    halves = []
    for bits in (b.shl(args[0], I32(16)), b.and_(args[0], I32(-0x10000))):
        x = b.fmul(b.bitcast(bits, F32), ir.Constant(F32, 2.0**_LARGER))
        nan = b.fcmp_unordered("uno", x, x)
        halves.append(b.select(nan, I32(0x7FFF), b.lshr(b.bitcast(x, I32), I32(16))))
    return b.or_(halves[0], b.shl(halves[1], I32(16)))


_LARGER_BFLOAT16 = register(
    Op(
        "larger_bf16x2", I32, (I32,),
        lambda b, args: assembly(
            b, "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", I32,
            [args[0], I32(_LARGER_PAIR), I32(_NEGATIVE_ZEROS)], effect=False,
        ),
        _host_larger,
    )
)  # fmt: skip


def larger_pair(b: ir.IRBuilder, pair: ir.Value) -> ir.Value:
    """Two bfloat16 times 2^48, where that is exact (8.0)."""
    return call(b, _LARGER_BFLOAT16, [pair])


def _round_tf32(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    bits = b.bitcast(args[0], I32)
    rounded = b.and_(b.add(bits, I32(0x1000)), I32(-0x2000))
    return b.select(b.fcmp_unordered("uno", args[0], args[0]), I32(0x7FFFFFFF), rounded)


# by its bits: what the assembler makes of ``cvt.rna.tf32`` turns NaNs whose payload is in the lowest bits to infinities
_ROUND_TF32 = register(Op("round_tf32", I32, (F32,), _round_tf32, _round_tf32))


def round_tf32(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A float32 with its mantissa rounded to 10 bits, ties away from zero, as an i32; a NaN stays one."""
    return call(b, _ROUND_TF32, [value])


def _plain_round_bfloat16(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    bits = b.bitcast(args[0], I32)
    odd = b.and_(b.lshr(bits, I32(16)), I32(1))
    rounded = b.and_(b.add(bits, b.add(I32(0x7FFF), odd)), I32(-0x10000))
    nan = b.fcmp_unordered("uno", args[0], args[0])
    return b.bitcast(b.select(nan, I32(0x7FFF0000), rounded), F32)


def _round_bfloat16_ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    if b.module.name.endswith((" 7.0", " 7.5")):
        return _plain_round_bfloat16(b, args)
    # the upper half is the float32 of the same value, and packing two is the faster instruction
    text = "cvt.rn.bf16x2.f32 $0, $1, 0f00000000;"
    return b.bitcast(assembly(b, text, "=r,f", I32, list(args), effect=False), F32)


_ROUND_BFLOAT16 = register(Op("round_bfloat16", F32, (F32,), _round_bfloat16_ptx, _plain_round_bfloat16))


def round_bfloat16(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A float32 rounded to the nearest bfloat16, ties to even, as a float32. (Without 8.0 by its bits.)"""
    return call(b, _ROUND_BFLOAT16, [value])
