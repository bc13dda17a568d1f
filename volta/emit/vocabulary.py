"""The operations on registers: exactly defined arithmetic, comparison, choice and bits, as LLVM instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from volta.emit.values import (
    HALF_DTYPES,
    Literal,
    Value,
    ValueLike,
    bit_width,
    float_text,
    is_float,
    is_signed,
    round_to_half,
    scalar_type,
    wrap_integer,
)


class Vocabulary:
    """Operations on values of `lanes` lanes, emitted at the position of `irbuilder`."""

    def __init__(self, irbuilder: ir.IRBuilder, lanes: int = 1) -> None:
        self.irbuilder = irbuilder
        self.lanes = lanes

    # Types and constants.

    def type_of(self, dtype: str) -> ir.Type:
        """The LLVM type of a value of kind `dtype`: a scalar, or a vector of `lanes`."""
        return self.widen(scalar_type(dtype))

    def widen(self, scalar: ir.Type) -> ir.Type:
        return scalar if self.lanes == 1 else ir.VectorType(scalar, self.lanes)

    def value(self, ir_value: ir.Value, dtype: str) -> Value:
        """Wrap an LLVM value that already has the type `type_of(dtype)`."""
        return Value(ir_value, dtype, self)

    def const(self, dtype: str, number: Any) -> Value:
        """The constant `number` in every lane: rounded to nearest even if a float, wrapped around if an integer."""
        if dtype in HALF_DTYPES:
            number, dtype = round_to_half(dtype, float(number)), "float32"
        if dtype == "bool":
            text = "true" if number else "false"
        elif is_float(dtype):
            text = float_text(dtype, float(number))
        else:
            text = str(wrap_integer(int(number), dtype))
        scalar = scalar_type(dtype)
        if self.lanes > 1:
            text = f"splat ({scalar} {text})"
        return Value(Literal(self.widen(scalar), text), dtype, self)

    def _pair(self, x: ValueLike, y: ValueLike) -> tuple[Value, Value]:
        if not isinstance(x, Value):
            x = self.const(y.dtype, x)
        if not isinstance(y, Value):
            y = self.const(x.dtype, y)
        if x.dtype != y.dtype:
            raise TypeError(f"operands of one operation differ in kind: {x.dtype} and {y.dtype}")
        return x, y

    # Arithmetic.

    def intrinsic(self, name: str, dtype: str, *arguments: ir.Value, result: ir.Type | None = None) -> ir.Value:
        """Call an LLVM intrinsic overloaded on the type of `dtype`; only ones that become instructions are used."""
        suffix = ("f" if is_float(dtype) else "i") + str(bit_width(dtype))
        if self.lanes > 1:
            suffix = f"v{self.lanes}{suffix}"
        full_name = f"llvm.{name}.{suffix}"
        function = self.irbuilder.module.globals.get(full_name)
        if function is None:
            signature = ir.FunctionType(result or self.type_of(dtype), [a.type for a in arguments])
            function = ir.Function(self.irbuilder.module, signature, full_name)
        return self.irbuilder.call(function, arguments)

    def add(self, x: ValueLike, y: ValueLike) -> Value:
        """Sum; integers wrap around, bools join (or)."""
        x, y = self._pair(x, y)
        if x.dtype == "bool":
            return self.or_(x, y)
        emit = self.irbuilder.fadd if is_float(x.dtype) else self.irbuilder.add
        return Value(emit(x.ir, y.ir), x.dtype, self)

    def sub(self, x: ValueLike, y: ValueLike) -> Value:
        """Difference; integers wrap around, bools differ (xor)."""
        x, y = self._pair(x, y)
        emit = self.irbuilder.fsub if is_float(x.dtype) else self.irbuilder.sub
        return Value(emit(x.ir, y.ir), x.dtype, self)

    def mul(self, x: ValueLike, y: ValueLike) -> Value:
        """Product; integers wrap around, bools meet (and)."""
        x, y = self._pair(x, y)
        emit = self.irbuilder.fmul if is_float(x.dtype) else self.irbuilder.mul
        return Value(emit(x.ir, y.ir), x.dtype, self)

    def fma(self, x: ValueLike, y: ValueLike, z: ValueLike) -> Value:
        """x * y + z with one rounding (floats)."""
        dtype = next(v.dtype for v in (x, y, z) if isinstance(v, Value))
        x, y, z = (v if isinstance(v, Value) else self.const(dtype, v) for v in (x, y, z))
        if not (x.dtype == y.dtype == z.dtype and is_float(dtype)):
            raise TypeError(f"fma of {x.dtype}, {y.dtype} and {z.dtype}")
        return Value(self.intrinsic("fma", dtype, x.ir, y.ir, z.ir), dtype, self)

    def div(self, x: ValueLike, y: ValueLike) -> Value:
        """Quotient; of integers truncated toward zero, with x / 0 = -1 (all bits) and minimum / -1 = minimum."""
        x, y = self._pair(x, y)
        if is_float(x.dtype):
            return Value(self.irbuilder.fdiv(x.ir, y.ir), x.dtype, self)
        return self.divide_integers(x, y)[0]

    def divide_integers(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Quotient and remainder, see `div` and `rem`."""
        zero = unsafe = y == 0
        if is_signed(x.dtype):
            unsafe = zero | ((x == -(1 << (bit_width(x.dtype) - 1))) & (y == -1))
        # By 1 instead, minimum / -1 is minimum and its remainder 0, as wanted.
        divisor = self.select(unsafe, 1, y)
        quotient = self.quotient_of_integers(x, divisor)
        return self.select(zero, -1, quotient), self.select(zero, x, x - quotient * divisor)

    def quotient_of_integers(self, x: Value, y: Value) -> Value:
        """x / y truncated, where that is an integer of this kind."""
        emit = self.irbuilder.sdiv if is_signed(x.dtype) else self.irbuilder.udiv
        return Value(emit(x.ir, y.ir), x.dtype, self)

    def neg(self, x: Value) -> Value:
        if is_float(x.dtype):
            # Not `fneg`, which the older dialect of LLVM that the CUDA compiler reads does not have.
            return self.sub(-0.0, x)
        return self.sub(0, x)

    def abs(self, x: Value) -> Value:
        """Magnitude; the lowest signed integer stays as it is."""
        if is_float(x.dtype):
            return Value(self.intrinsic("fabs", x.dtype, x.ir), x.dtype, self)
        return self.select(x < 0, -x, x) if is_signed(x.dtype) else x

    def sqrt(self, x: Value) -> Value:
        """Square root, correctly rounded."""
        return Value(self.intrinsic("sqrt", x.dtype, x.ir), x.dtype, self)

    def floor(self, x: Value) -> Value:
        return Value(self.intrinsic("floor", x.dtype, x.ir), x.dtype, self) if is_float(x.dtype) else x

    def ceil(self, x: Value) -> Value:
        return Value(self.intrinsic("ceil", x.dtype, x.ir), x.dtype, self) if is_float(x.dtype) else x

    def trunc(self, x: Value) -> Value:
        return Value(self.intrinsic("trunc", x.dtype, x.ir), x.dtype, self) if is_float(x.dtype) else x

    def round_even(self, x: Value) -> Value:
        """The nearest integer, ties to even (the rounding mode is never changed)."""
        return Value(self.intrinsic("rint", x.dtype, x.ir), x.dtype, self) if is_float(x.dtype) else x

    def copysign(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        return Value(self.intrinsic("copysign", x.dtype, x.ir, y.ir), x.dtype, self)

    def min(self, x: ValueLike, y: ValueLike) -> Value:
        """The smaller; a NaN wins (as the canonical NaN) and -0 < +0, whatever the order of the operands."""
        x, y = self._pair(x, y)
        if not is_float(x.dtype):
            return self.select(x < y, x, y)
        return self._extreme(self.select(x < y, x, y), self.select(y < x, y, x), x, y, self.or_)

    def max(self, x: ValueLike, y: ValueLike) -> Value:
        """The larger; a NaN wins (as the canonical NaN) and +0 > -0, whatever the order of the operands."""
        x, y = self._pair(x, y)
        if not is_float(x.dtype):
            return self.select(x > y, x, y)
        return self._extreme(self.select(x > y, x, y), self.select(y > x, y, x), x, y, self.and_)

    def _extreme(self, one: Value, other: Value, x: Value, y: Value, join: Callable[..., Value]) -> Value:
        # `one` and `other` differ only where x == y, that is for zeros of two signs: there their bits are joined.
        bits = "uint32" if x.dtype == "float32" else "uint64"
        joined = self.bitcast(join(self.bitcast(one, bits), self.bitcast(other, bits)), x.dtype)
        unordered = Value(self.irbuilder.fcmp_unordered("uno", x.ir, y.ir), "bool", self)
        return self.select(unordered, float("nan"), joined)

    # Comparison and choice.

    def _compare(self, operator: str, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        if is_float(x.dtype):
            emit = self.irbuilder.fcmp_unordered if operator == "!=" else self.irbuilder.fcmp_ordered
        else:
            emit = self.irbuilder.icmp_signed if is_signed(x.dtype) else self.irbuilder.icmp_unsigned
        return Value(emit(operator, x.ir, y.ir), "bool", self)

    def eq(self, x: ValueLike, y: ValueLike) -> Value:
        return self._compare("==", x, y)

    def ne(self, x: ValueLike, y: ValueLike) -> Value:
        """Unequal; true if either is NaN."""
        return self._compare("!=", x, y)

    def lt(self, x: ValueLike, y: ValueLike) -> Value:
        return self._compare("<", x, y)

    def le(self, x: ValueLike, y: ValueLike) -> Value:
        return self._compare("<=", x, y)

    def gt(self, x: ValueLike, y: ValueLike) -> Value:
        return self._compare(">", x, y)

    def ge(self, x: ValueLike, y: ValueLike) -> Value:
        return self._compare(">=", x, y)

    def isnan(self, x: Value) -> Value:
        return self.ne(x, x)

    def is_finite(self, x: Value) -> Value:
        return abs(x) < float("inf")

    def select(self, condition: Value, x: ValueLike, y: ValueLike) -> Value:
        """x where the condition holds, else y."""
        x, y = self._pair(x, y)
        return Value(self.irbuilder.select(condition.ir, x.ir, y.ir), x.dtype, self)

    # Bits.

    def and_(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        return Value(self.irbuilder.and_(x.ir, y.ir), x.dtype, self)

    def or_(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        return Value(self.irbuilder.or_(x.ir, y.ir), x.dtype, self)

    def xor(self, x: ValueLike, y: ValueLike) -> Value:
        x, y = self._pair(x, y)
        return Value(self.irbuilder.xor(x.ir, y.ir), x.dtype, self)

    def not_(self, x: Value) -> Value:
        return self.xor(x, True if x.dtype == "bool" else -1)

    def _shift(self, emit: Callable[..., ir.Value], x: Value, amount: ValueLike) -> tuple[Value, Value | None]:
        """The shift by an amount made legal, and for an amount that is not a constant whether it was legal."""
        bits = bit_width(x.dtype)
        if not isinstance(amount, Value):
            if not 0 <= amount < bits:
                raise ValueError(f"shift of {x.dtype} by the constant {amount}")
            return Value(emit(x.ir, self.const(x.dtype, amount).ir), x.dtype, self), None
        x, amount = self._pair(x, amount)
        limit = self.const(x.dtype, bits).ir
        legal = Value(self.irbuilder.icmp_unsigned("<", amount.ir, limit), "bool", self)
        safe = self.select(legal, amount, bits - 1)
        return Value(emit(x.ir, safe.ir), x.dtype, self), legal

    def shl(self, x: Value, amount: ValueLike) -> Value:
        """Left shift; by the width or more, or by a negative amount, it is 0."""
        shifted, legal = self._shift(self.irbuilder.shl, x, amount)
        return shifted if legal is None else self.select(legal, shifted, 0)

    def shr_logical(self, x: Value, amount: ValueLike) -> Value:
        """Right shift that fills with zeros; out of range it is 0."""
        shifted, legal = self._shift(self.irbuilder.lshr, x, amount)
        return shifted if legal is None else self.select(legal, shifted, 0)

    def shr_arithmetic(self, x: Value, amount: ValueLike) -> Value:
        """Right shift that fills with the sign; out of range it is the sign in every bit."""
        return self._shift(self.irbuilder.ashr, x, amount)[0]

    def popcount(self, x: Value) -> Value:
        """The number of one bits, in the kind of x."""
        return Value(self.intrinsic("ctpop", x.dtype, x.ir), x.dtype, self)

    def clz(self, x: Value) -> Value:
        """The number of leading zero bits, in the kind of x; its width for 0."""
        return Value(self.intrinsic("ctlz", x.dtype, x.ir, ir.IntType(1)(0)), x.dtype, self)

    def bitcast(self, x: Value, dtype: str) -> Value:
        """The same bits as another kind of the same width."""
        if bit_width(x.dtype) != bit_width(dtype):
            raise TypeError(f"bitcast of {x.dtype} to {dtype}")
        if x.ir.type == self.type_of(dtype):
            return Value(x.ir, dtype, self)
        return Value(self.irbuilder.bitcast(x.ir, self.type_of(dtype)), dtype, self)
