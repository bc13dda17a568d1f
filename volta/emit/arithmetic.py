"""Arithmetic of functions that a backend may have a cheaper way for; here the plain one."""

from __future__ import annotations

from volta.emit.conversion import Conversion
from volta.emit.values import Value, ValueLike


class Arithmetic(Conversion):
    """Operations of the scalar functions, made of others. What one leaves open no result of a function shows."""

    def reciprocal(self, x: Value) -> Value:
        """1 / x in float32 for 2^-100 < x < 2^100 (of other numbers, NaN too, anything).

        Rounded, except where all bits of the significand are ones: there it is that or the float before.
        """
        return self.div(1.0, x)

    def near_reciprocal(self, x: Value) -> Value:
        """`reciprocal` within 2^-19."""
        return self.div(1.0, x)

    def at_most(self, x: Value, limit: float) -> Value:
        """x where x < limit, otherwise (for NaN too) the limit, which is not 0."""
        return self.select(x < limit, x, limit)

    def between(self, x: Value, low: float | None, high: float | None) -> Value:
        """x limited to [low, high], neither of which is 0, or on one side only; a NaN stays one."""
        x = x if high is None else self.select(x > high, high, x)
        return x if low is None else self.select(x < low, low, x)

    def within(self, x: Value, limit: float) -> Value:
        """float64 x where it is in [-limit, limit], otherwise (for NaN too) a number with its sign and about that."""
        limited = self.const("float64", limit)
        return self.select(abs(x) <= limit, x, self.copysign(limited, x))

    def quotient(self, x: ValueLike, y: Value, far: bool = False) -> Value:
        """x / y (or 1 / y) in float64, for functions of one float32: their results are compared for all of its values.

        Nearly rounded; for 2^-90 < y < 2^90, or `far` for any y above 0 as long as reciprocal and quotient are normal
        (of other numbers, NaN too, anything).
        """
        return self.div(x, y)

    def short_quotient(self, x: Value, y: Value, far: bool = False) -> Value:
        """As `quotient`, but rounded if both have at most 27 bits: for functions of two float32."""
        return self.div(x, y)

    def root(self, x: Value, near: Value) -> Value:
        """The square root as `quotient`, of 0 or 2^-90 < x < 2^90, given the float32 next to x."""
        return self.sqrt(x)

    def split(self, x: Value, lowest: int) -> tuple[Value, Value]:
        """x = 2^e m in float64, normal and above 0: m from the number on whose bits are `lowest`, e 2^20 as int32."""
        bits = self.bitcast(x, "int64")
        power = (bits - lowest) & (-1 << 52)
        return self.bitcast(bits - power, "float64"), self.cast(power >> 32, "int32")

    def times_power(self, x: Value, power: Value) -> Value:
        """x * 2 ** power in float64, of the `power` (int64 or int32) only the lowest bits, where all is normal."""
        power = power if power.dtype == "int64" else self.cast(power, "int64")
        return self.bitcast(self.bitcast(x, "int64") + (power << 52), "float64")

    def inverse_root(self, x: Value) -> Value:
        """1 / sqrt(x), in float32 correctly rounded, in float64 0.51 ULP; of numbers above 0 only for normal ones."""
        # The residuals of the root and of the quotient are exact, since a tiny x does not occur.
        root = self.sqrt(x)
        inverse = 1.0 / root
        root_error = self.fma(-root, root, x) * (0.5 * inverse) * inverse
        better = self.fma(inverse, self.fma(-inverse, root, 1.0) - root_error, inverse)
        return self.select(better == better, better, inverse)  # of 0, infinity and less than 0 the quotient is right
