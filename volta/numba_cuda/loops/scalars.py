"""The scalar emitter for threads of a GPU: neighbouring elements as one access, and cheaper ways to the same bits."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.builder import Builder, Value, is_signed, item_size
from volta.emit.values import Operand
from volta.numba_cuda.target.ptx_round import round_bfloat16

WIDEST = 16
"""Bytes of the widest access of a thread."""

_UP = 1.0 + 2.0**-51


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

    def max(self, x: Operand, y: Operand) -> Value:
        x, y = self._pair(x, y)
        if x.dtype != "float32":
            return super().max(x, y)
        return Value(self.intrinsic("maximum", x.dtype, x.ir, y.ir), x.dtype, self)

    def min(self, x: Operand, y: Operand) -> Value:
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

    def between(self, x: Value, low: float, high: float) -> Value:
        """As two instructions."""
        return self.max(self.min(x, high), low) if x.dtype == "float32" else super().between(x, low, high)

    def quotient(self, x: Operand, y: Value, far: bool = False) -> Value:
        """As a division, but without its branches: the quotient by a reciprocal within 2^-45, with what it leaves.

        Its error before it is rounded is below 2^-90. A quotient of numbers of at most 27 bits is 2^-82 or more away
        from halfway between two float64, so of these it is rounded.
        """
        r, one = self._near_inverse(y, far), self.const("float64", 1.0)
        r = self.fma(r, self.fma(-y, r, one), r)
        if not isinstance(x, Value):
            if x == 1.0:
                return self.fma(r, self.fma(-y, r, one), r)
            x = self.const("float64", x)
        q = x * r
        return self.fma(self.fma(-y, q, x), r, q)

    def inverse(self, x: Value) -> Value:
        """As a division, but without its branches: one step from `reciprocal`, whose mean error is made up for."""
        r = self._near_inverse(x, False)
        return self.fma(r, self.fma(-x, r, self.const("float64", 1.0 + 2.0**-50)), r)

    def _near_inverse(self, x: Value, far: bool) -> Value:
        """float64: 1 / x within 2^-23, by `reciprocal`; of a number `far` from 1 that of its significand."""
        if not far:
            return self.cast(self.reciprocal(self.cast(x, "float32")), "float64")
        bits, exponent = self.bitcast(x, "int64"), 0x7FF << 52
        significand = self.bitcast((bits & ~exponent) | (1023 << 52), "float64")
        r = self.bitcast(self._near_inverse(significand, False), "int64")
        return self.bitcast(r - (bits & exponent) + (1023 << 52), "float64")

    def root(self, x: Value) -> Value:
        """Without branches: from 1 / sqrt(x) in float32 the root, twice with what it leaves."""
        y = self.cast(self._near_inverse_root(self.cast(x, "float32")), "float64")
        root, half = x * y, y * 0.5
        root = self.fma(self.fma(-root, root, x), half, root)
        return self.fma(self.fma(-root, root, x), half, root)

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
