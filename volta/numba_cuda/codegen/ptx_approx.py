"""Powers and logarithms of two by the GPU's own unit, for kernels below strict: nearly right, in bits of its own.

The host computes them by polynomials, about as exactly; so what it gives has the right value but not the right bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from volta.emit.loops import I32, fma
from volta.numba_cuda.codegen.ptx_ops import Body, Op, assembly, call, register

F32 = ir.FloatType()

_MAGIC = 12582912.0  # a number to which an integer is added exactly, in its lowest bits
_POWER = (9.582852944731712e-3, 5.5906426161527634e-2, 2.4024099111557007e-1, 6.931241750717163e-1, 1.0)
"""2 ** r for r within half of 0, with a relative error of 2.8e-6."""


def _host_power(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    (given,) = args
    x = given
    for operator, most in (("<", -127.0), (">", 128.0)):
        x = b.select(b.fcmp_ordered(operator, x, F32(most)), F32(most), x)
    t = b.fadd(x, F32(_MAGIC))
    r = b.fsub(x, b.fsub(t, F32(_MAGIC)))
    found: ir.Value = F32(_POWER[0])
    for coefficient in _POWER[1:]:
        found = fma(b, found, r, F32(coefficient))
    shifted = b.add(b.bitcast(found, I32), b.shl(b.bitcast(t, I32), I32(23)))
    return b.select(b.fcmp_unordered("uno", given, given), given, b.bitcast(shifted, F32))


def _host_logarithm(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    """Of 1 to 2 ** 24: Newton's steps from the exponent."""
    (x,) = args
    exponent = b.sub(b.lshr(b.bitcast(x, I32), I32(23)), I32(127))
    found = b.sitofp(exponent, F32)
    for _ in range(5):
        ratio = b.fmul(x, _host_power(b, [b.fsub(F32(-0.0), found)]))
        found = fma(b, b.fsub(ratio, F32(1.0)), b.fdiv(F32(2.8853900817779268), b.fadd(ratio, F32(1.0))), found)
    return b.select(b.fcmp_ordered("==", x, F32(0.0)), F32(float("-inf")), found)


def _op(name: str, instruction: str, host: Body) -> Op:
    def ptx(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return assembly(b, f"{instruction}.approx.ftz.f32 $0, $1;", "=f,f", F32, list(args), effect=False)

    return register(Op(name, F32, (F32,), ptx, host))


_POWER_OP = _op("near_power", "ex2", _host_power)
_LOGARITHM_OP = _op("near_logarithm", "lg2", _host_logarithm)


def near_power(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x of a float32, within 2 units in the last place; 1 for 0, 0 where that is subnormal."""
    return call(b, _POWER_OP, [x])


def near_logarithm(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The logarithm to base 2 of a float32 of at least 1, within 2 ** -22; -inf of 0."""
    return call(b, _LOGARITHM_OP, [x])
