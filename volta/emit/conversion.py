"""Conversions between kinds: saturating, correctly rounded, and through the half kinds of memory."""

from __future__ import annotations

from llvmlite import ir

from volta.emit.values import HALF_DTYPES, Value, ValueLike, bit_width, compute_dtype, is_float, is_signed
from volta.emit.vocabulary import Vocabulary


class Conversion(Vocabulary):
    """The vocabulary with conversions."""

    def quotient_of_integers(self, x: Value, y: Value) -> Value:
        """x / y truncated, where that is an integer of this kind.

        No processor divides vectors of integers, so vectors divide as floats: a quotient that is no integer is at
        least 1/|x| of itself away from one, which 24 bits resolve for 16-bit integers and 53 bits for 32-bit ones.
        """
        bits = bit_width(x.dtype)
        if self.lanes == 1 or bits == 64:
            return super().quotient_of_integers(x, y)
        wide, integer = ("float64", "int64") if bits == 32 else ("float32", "int32")
        quotient = self.trunc(self.cast(x, wide) / self.cast(y, wide))
        if is_signed(x.dtype):
            integer = "int32"
        return self.cast(self.truncate_to_int(quotient, integer), x.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        """Convert: float to int saturates (NaN gives 0), other roundings go to nearest even, to bool is x != 0.

        To a half kind the result is the float32 value that the rounded number has.
        """
        if dtype == x.dtype:
            return x
        if dtype in HALF_DTYPES:
            return self.round_to_half(x, dtype)
        if dtype == "bool":
            return self.ne(x, 0)
        target = self.type_of(dtype)
        if is_float(dtype):
            if is_float(x.dtype):
                resize = self.irbuilder.fpext if dtype == "float64" else self.irbuilder.fptrunc
                return Value(resize(x.ir, target), dtype, self)
            emit = self.irbuilder.sitofp if is_signed(x.dtype) else self.irbuilder.uitofp
            return Value(emit(x.ir, target), dtype, self)
        if is_float(x.dtype):
            return self._float_to_int(x, dtype)
        if bit_width(dtype) == bit_width(x.dtype):
            return Value(x.ir, dtype, self)
        if bit_width(dtype) < bit_width(x.dtype):
            return Value(self.irbuilder.trunc(x.ir, target), dtype, self)
        extend = self.irbuilder.sext if is_signed(x.dtype) else self.irbuilder.zext
        return Value(extend(x.ir, target), dtype, self)

    def mulhi(self, x: ValueLike, y: ValueLike) -> Value:
        """The upper half of the product of two uint32 or uint64 values."""
        x, y = self._pair(x, y)
        if x.dtype == "uint32":
            product = self.cast(x, "uint64") * self.cast(y, "uint64")
            return self.cast(product >> 32, "uint32")
        if x.dtype != "uint64":
            raise TypeError(f"mulhi of {x.dtype}")
        low, high = (lambda v: v & 0xFFFFFFFF), (lambda v: v >> 32)
        cross = high(x) * low(y) + high(low(x) * low(y))
        other = low(x) * high(y) + low(cross)
        return high(x) * high(y) + high(cross) + high(other)

    def _float_to_int(self, x: Value, dtype: str) -> Value:
        bits = bit_width(dtype)
        signed = is_signed(dtype)
        lowest, highest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        whole = self.trunc(x)
        inside = (whole >= float(lowest)) & (whole < float(highest + 1))
        safe = self.select(inside, whole, 0.0)
        wide = dtype if bits >= 32 else "int32"
        emit = self.irbuilder.fptosi if is_signed(wide) else self.irbuilder.fptoui
        number = self.cast(Value(emit(safe.ir, self.type_of(wide)), wide, self), dtype)
        number = self.select(whole >= float(highest + 1), highest, number)
        return self.select(whole < float(lowest), lowest, number)

    def truncate_to_int(self, x: Value, dtype: str) -> Value:
        """Float to signed integer where the caller knows that the value is in range: a single instruction."""
        return Value(self.irbuilder.fptosi(x.ir, self.type_of(dtype)), dtype, self)

    def round_to_half(self, x: Value, dtype: str) -> Value:
        """Round to float16 or bfloat16 once, to nearest even; the result is held as float32."""
        if x.dtype == "float64":
            x = self._to_float32_odd(x)
        else:
            x = self.cast(x, "float32")
        raw = self.to_memory(x, dtype)
        return self.from_memory(raw, dtype)

    def _to_float32_odd(self, x: Value) -> Value:
        """float64 to float32, an inexact result made odd, so that a second rounding to fewer bits is as one."""
        near = self.cast(x, "float32")
        back = self.cast(near, "float64")
        bits = self.bitcast(near, "uint32")
        down = self.select(abs(back) > abs(x), bits - 1, bits)
        inexact = (back != x) & ~self.isnan(x)
        return self.bitcast(self.select(inexact, down | 1, bits), "float32")

    def _float16_bits(self, x: Value) -> ir.Value:
        half = self.irbuilder.fptrunc(x.ir, self.widen(ir.HalfType()))
        bits = Value(self.irbuilder.bitcast(half, self.type_of("uint16")), "uint16", self)
        return self.select(self.isnan(x), 0x7E00, bits).ir

    def _bfloat16_bits(self, x: Value) -> ir.Value:
        bits = self.bitcast(x, "uint32")
        rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
        return self.cast(self.select(self.isnan(x), 0x7FC0, rounded), "uint16").ir

    def fence(self, x: Value) -> Value:
        """``x``, and LLVM does not see what it was made of.

        It takes ``y > 0 ? 0 : y`` for a minimum also where the comparison and the choice are on two sides of a
        conversion of ``y``, and then gives +0 for -0. So what was converted between floats shows no conversion.
        """
        return Value(self.intrinsic("arithmetic.fence", x.dtype, x.ir), x.dtype, self)

    def from_memory(self, raw: ir.Value, dtype: str) -> Value:
        """The value that memory of kind `dtype` holds."""
        if dtype == "bool":
            return Value(self.irbuilder.icmp_unsigned("!=", raw, ir.Constant(raw.type, None)), dtype, self)
        if dtype == "float16":
            half = self.irbuilder.bitcast(raw, self.widen(ir.HalfType()))
            return self.fence(Value(self.irbuilder.fpext(half, self.type_of("float32")), "float32", self))
        if dtype == "bfloat16":
            wide = self.irbuilder.zext(raw, self.type_of("uint32"))
            return self.bitcast(Value(wide, "uint32", self) << 16, "float32")
        return Value(raw, dtype, self)

    def to_memory(self, x: Value, dtype: str) -> ir.Value:
        """The bits of `x` as memory of kind `dtype` holds them: rounded if a half kind."""
        if x.dtype != compute_dtype(dtype):
            raise TypeError(f"cannot store a {x.dtype} value as {dtype}")
        if dtype == "bool":
            return self.irbuilder.zext(x.ir, self.widen(ir.IntType(8)))
        if dtype == "float16":
            return self._float16_bits(x)
        if dtype == "bfloat16":
            return self._bfloat16_bits(x)
        return x.ir
