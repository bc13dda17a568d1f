"""The scalar emitter for threads of a GPU: neighbouring elements as one access, and cheaper ways to the same bits."""

from __future__ import annotations

import struct

from llvmlite import ir

from volta.emit.builder import Builder, Value, is_signed, item_size
from volta.emit.values import ValueLike
from volta.numba_cuda.codegen.ptx_round import round_bfloat16
from volta.ops.scalar.parts import horner

WIDEST = 16
"""Bytes of the widest access of a thread."""

_UP = 1.0 + 2.0**-51

# The 32 bits of a float64 from its 29th on are, this added, those of the float32 next to it (modulo 2^32).
_FLOAT32_FROM_29 = 0x40000000
# Of two steps to 1 / x, the first from an estimate within 0.0506; a little more than 2 gives errors of both signs.
_FIRST_STEP, _SECOND_STEP = 2.0013, 2.0000007152557373
# 1 / sqrt(x) from the bits of x, within 0.035; the rest of a step by what x times its square lacks of 1.
_INVERSE_ROOT = 0x5F376908
_INVERSE_ROOT_STEP = (0.31226105, 0.37606143, 0.50000191)


class ThreadBuilder(Builder):
    """A builder whose lanes are neighbouring elements of one thread; their accesses are aligned to their width."""

    def _one_lane(self) -> ThreadBuilder:
        return ThreadBuilder(self.irbuilder, 1, self.constant_space)

    def load(self, pointer: ir.Value, dtype: str, align: int = 0) -> Value:
        return super().load(pointer, dtype, align or self._alignment(dtype))

    def store(self, x: Value, pointer: ir.Value, dtype: str | None = None, align: int = 0) -> None:
        super().store(x, pointer, dtype, align or self._alignment(dtype or x.dtype))

    def _any(self, x: Value) -> ir.Value:
        """Lane by lane: a GPU's lanes are registers of their own."""
        found = self._extract(x.ir, 0)
        for i in range(1, self.lanes):
            found = self.irbuilder.or_(found, self._extract(x.ir, i))
        return found

    def _alignment(self, dtype: str) -> int:
        return min(WIDEST, self.lanes * item_size(dtype))

    def quotient_of_integers(self, x: Value, y: Value) -> Value:
        """Lane by lane: a GPU's lanes are registers of their own."""
        emit = self.irbuilder.sdiv if is_signed(x.dtype) else self.irbuilder.udiv
        return Value(emit(x.ir, y.ir), x.dtype, self)

    def max(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        if x.dtype != "float32":
            return super().max(x, y)
        return Value(self.intrinsic("maximum", x.dtype, x.ir, y.ir), x.dtype, self)

    def min(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        if x.dtype != "float32":
            return super().min(x, y)
        return Value(self.intrinsic("minimum", x.dtype, x.ir, y.ir), x.dtype, self)

    def round_to_half(self, x: Value, dtype: str) -> Value:
        if dtype != "bfloat16" or x.dtype == "float64":
            return super().round_to_half(x, dtype)
        wide = self.cast(x, "float32").ir
        rounded = ir.Constant(wide.type, ir.Undefined)
        for i in range(self.lanes):
            rounded = self._insert(rounded, round_bfloat16(self.irbuilder, self._extract(wide, i)), i)
        return Value(rounded, "float32", self)

    def at_most(self, x: Value, limit: float) -> Value:
        """As one instruction."""
        return Value(self.intrinsic("minnum", x.dtype, x.ir, self.const(x.dtype, limit).ir), x.dtype, self)

    def reciprocal(self, x: Value) -> Value:
        """As a division, but without its branches: of all divisors but one a binade this is the rounded reciprocal.

        From an estimate within 0.051 the errors are 2.6e-3, 1.7e-8 and, at the last step, that of its rounding. Where
        all bits of the significand are ones the reciprocal lies above a power of two by a little more than half a
        unit, which the last step does not see. (All significands were tried.)
        """
        one = self.const("float32", 1.0)
        r = self.bitcast(0x7EF31000 - self.bitcast(x, "int32"), "float32")
        r = self.fma(r, self.fma(-x, r, one), r)
        error = self.fma(-x, r, one)
        r = self.fma(r, self.fma(error, error, error), r)
        return self.fma(r, self.fma(-x, r, one), r)

    def near_reciprocal(self, x: Value) -> Value:
        """From the bits of x (within 0.0506) by two steps whose errors have both signs."""
        r = self.bitcast(0x7EF31000 - self.bitcast(x, "int32"), "float32")
        r = r * self.fma(-x, r, _FIRST_STEP)
        return r * self.fma(-x, r, _SECOND_STEP)

    def between(self, x: Value, low: float | None, high: float | None) -> Value:
        """As two instructions, or one."""
        if x.dtype != "float32":
            return super().between(x, low, high)
        x = x if high is None else self.min(x, high)
        return x if low is None else self.max(x, low)

    def quotient(self, x: ValueLike, y: Value, far: bool = False) -> Value:
        """As a division, but without its branches: by one step of the third order from an estimate of the reciprocal.

        The estimate is within 2^-19, so what the step leaves is below 2^-57, and the error that of two roundings.
        """
        r, error = self._near_inverse(y, far)
        r = self.fma(r, error, r)
        return r if not isinstance(x, Value) and x == 1.0 else x * r

    def within(self, x: Value, limit: float) -> Value:
        """By the high half alone."""
        high, most = self._high(x), struct.unpack("<q", struct.pack("<d", limit))[0] >> 32
        limited = self.select((high & 0x7FFFFFFF) > most, (high & -0x80000000) | most, high)
        return self._from_halves(limited, self._low(x))

    def short_quotient(self, x: Value, y: Value, far: bool = False) -> Value:
        """The quotient by a reciprocal within 2^-52, with what it leaves.

        Its error before it is rounded is below 2^-100. A quotient of numbers of at most 27 bits is 2^-82 or more away
        from halfway between two float64, so of these it is rounded.
        """
        r, error = self._near_inverse(y, far)
        r = self.fma(r, error, r)
        q = x * r
        return self.fma(self.fma(-y, q, x), r, q)

    def split(self, x: Value, lowest: int) -> tuple[Value, Value]:
        """By the high half alone, where that tells."""
        high = self._high(x)
        if lowest & 0xFFFFFFFF:
            power = self._high(self.bitcast(self.bitcast(x, "int64") - lowest, "float64")) & -0x100000
        else:
            power = (high - (lowest >> 32)) & -0x100000
        return self._from_halves(high - power, self._low(x)), power

    def times_power(self, x: Value, power: Value) -> Value:
        """By the high half alone."""
        if power.dtype == "int64":
            power = self._low(power)
        return self._from_halves(self._high(x) + (power << 20), self._low(x))

    def _near_inverse(self, x: Value, far: bool) -> tuple[Value, Value]:
        """float64: 1 / x (x > 0) within 2^-19, and what to add of it for 2^-57; if `far` from 1 by x's significand."""
        bits, step = self._high(x, 29), None
        if far:
            bits, step = bits | 0xFF800000, 0x3FF00000 - (self._high(x) & 0x7FF00000)
        r = self._widened(self.near_reciprocal(self.bitcast(bits + _FLOAT32_FROM_29, "float32")), step)
        error = self.fma(-x, r, self.const("float64", 1.0))
        return r, self.fma(error, error, error)

    def root(self, x: Value, near: Value) -> Value:
        """Without branches: by one step of the third order from an estimate within 2^-19."""
        y = self.bitcast(_INVERSE_ROOT - (self.bitcast(near, "int32") >> 1), "float32")
        e = self.fma(-(near * y), y, self.const("float32", 1.0))
        y = self._widened(self.fma(y * e, horner(self, e, _INVERSE_ROOT_STEP), y))
        root = x * y
        e = self.fma(-root, y, self.const("float64", 1.0))
        return self.fma(root, e * self.fma(e, 0.375, 0.5), root)

    def _high(self, x: Value, begin: int = 32) -> Value:
        """The high 32 bits of a float64, or those that begin at another bit, as an int32."""
        bits = self.irbuilder.lshr(self.bitcast(x, "int64").ir, self.const("int64", begin).ir)
        return Value(self.irbuilder.trunc(bits, self.type_of("int32")), "int32", self)

    def _low(self, x: Value) -> Value:
        """The low 32 bits of a float64 or an int64, as an int32."""
        return Value(self.irbuilder.trunc(self.bitcast(x, "int64").ir, self.type_of("int32")), "int32", self)

    def _from_halves(self, high: Value, low: Value) -> Value:
        """A float64 of its high and low 32 bits."""
        word = self.type_of("int64")
        high, low = self.irbuilder.zext(high.ir, word), self.irbuilder.zext(low.ir, word)
        bits = self.irbuilder.or_(self.irbuilder.shl(high, self.const("int64", 32).ir), low)
        return self.bitcast(Value(bits, "int64", self), "float64")

    def _widened(self, x: Value, step: Value | None = None) -> Value:
        """A float32 above 0 as float64 within 2^-20, perhaps its exponent moved: its own bits are the low half."""
        bits = self.bitcast(x, "int32")
        high = self.shr_logical(bits, 3) + (896 << 20)
        return self._from_halves(high if step is None else high + step, bits)

    def _near_inverse_root(self, x: Value) -> Value:
        """float32: 1 / sqrt(x) within 2^-23, from an estimate by the bits of x (within 0.035) in two steps."""
        one = self.const("float32", 1.0)
        y = self.bitcast(0x5F37642F - (self.bitcast(x, "int32") >> 1), "float32")
        e = self.fma(-(x * y), y, one)
        y = self.fma(y * e, self.fma(e, 0.375, 0.5), y)
        return self.fma(y * self.fma(-(x * y), y, one), 0.5, y)

    def inverse_root(self, x: Value) -> Value:
        """Without a branch: one more step, with an exact residual."""
        if x.dtype != "float32":
            return super().inverse_root(x)
        y = self._near_inverse_root(x)
        near = x * y
        e = self.fma(-self.fma(x, y, -near), y, self.fma(-near, y, self.const("float32", 1.0)))
        y = self.fma(y * e, 0.5 + 2.0**-24, y)  # a trifle more than a half, for the two significands next to halfway
        swapped = self.bitcast(self.bitcast(x, "int32") ^ 0x7F800000, "float32")  # 0 and infinity
        y = self.select(x < 0.0, float("nan"), y)
        return self.select((x == 0.0) | (x == float("inf")), swapped, y)

    def reciprocal_above(self, x: Value) -> Value:
        """For `divide_by`: the float64 reciprocal of a float32, larger in magnitude by 1 to 3.5 units of 2^-52."""
        return (1.0 / self.cast(x, "float64")) * _UP

    def divide_by(self, x: Value, reciprocal: Value) -> Value:
        """x / y rounded once, in float32, given `reciprocal_above` of y: no branch, as a division has.

        The product is the quotient q times 1 + d with 2^-53 <= d <= 3.5 * 2^-52, so less than 7 units in the last of
        its 53 bits above q. A float32 quotient that is not halfway between two float32 values is at least 8 such units
        away from every halfway point (their numerators differ by at least 1 over 49 bits). So with the three lowest
        bits cleared the product lies on the same side of every halfway point as q, and exactly on one if q does, which
        happens only where the result is subnormal. Zeros, infinities and NaN go through as in a division.
        """
        product = self.cast(x, "float64") * reciprocal
        kept = self.bitcast(product, "int64") & ~7
        return self.cast(self.bitcast(kept, "float64"), "float32")


def builder_of(x: Value) -> ThreadBuilder:
    """A thread's builder of as many lanes as a value has."""
    return ThreadBuilder(x.builder.irbuilder, x.builder.lanes)
