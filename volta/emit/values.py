"""Kinds of elements and the SSA values that a Builder works with."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from llvmlite import ir

if TYPE_CHECKING:
    from volta.emit.vocabulary import Vocabulary

_FLOAT_TYPES = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_BITS = {
    "bool": 1, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
}  # fmt: skip
HALF_DTYPES = ("float16", "bfloat16")


def is_float(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16", "float32", "float64")


def is_signed(dtype: str) -> bool:
    return dtype.startswith("int")


def is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def bit_width(dtype: str) -> int:
    """Bits of one element in a register (a bool is one bit there, though a byte in memory)."""
    return _BITS[dtype]


def item_size(dtype: str) -> int:
    """Bytes of one element in memory."""
    return max(1, _BITS[dtype] // 8)


def compute_dtype(dtype: str) -> str:
    """The kind in which values of `dtype` are computed: float32 for the two half kinds, otherwise itself."""
    return "float32" if dtype in HALF_DTYPES else dtype


def scalar_type(dtype: str) -> ir.Type:
    """The LLVM type of one lane of a value of kind `dtype`."""
    return _FLOAT_TYPES[dtype] if dtype in _FLOAT_TYPES else ir.IntType(_BITS[dtype])


class Literal(ir.Constant):
    """A constant given by its text, which lets a vector be written as one `splat` and a float as its exact bits."""

    def __init__(self, type_: ir.Type, text: str) -> None:
        self.type = type_
        self.constant = text

    def _get_reference(self) -> str:
        return str(self.constant)


ValueLike = Any  # a Value, or a Python number that becomes a constant of the other operand's kind


class Value:
    """One SSA value of a Builder: its LLVM value, its kind, and operators that go through the builder."""

    __slots__ = ("builder", "dtype", "ir")

    def __init__(self, ir_value: ir.Value, dtype: str, builder: Vocabulary) -> None:
        self.ir = ir_value
        self.dtype = dtype
        self.builder = builder

    def __repr__(self) -> str:
        return f"Value({self.dtype}, {self.ir.get_reference()})"

    def __add__(self, other: ValueLike) -> Value:
        return self.builder.add(self, other)

    def __radd__(self, other: ValueLike) -> Value:
        return self.builder.add(other, self)

    def __sub__(self, other: ValueLike) -> Value:
        return self.builder.sub(self, other)

    def __rsub__(self, other: ValueLike) -> Value:
        return self.builder.sub(other, self)

    def __mul__(self, other: ValueLike) -> Value:
        return self.builder.mul(self, other)

    def __rmul__(self, other: ValueLike) -> Value:
        return self.builder.mul(other, self)

    def __truediv__(self, other: ValueLike) -> Value:
        return self.builder.div(self, other)

    def __rtruediv__(self, other: ValueLike) -> Value:
        return self.builder.div(other, self)

    def __neg__(self) -> Value:
        return self.builder.neg(self)

    def __abs__(self) -> Value:
        return self.builder.abs(self)

    def __invert__(self) -> Value:
        return self.builder.not_(self)

    def __and__(self, other: ValueLike) -> Value:
        return self.builder.and_(self, other)

    def __or__(self, other: ValueLike) -> Value:
        return self.builder.or_(self, other)

    def __xor__(self, other: ValueLike) -> Value:
        return self.builder.xor(self, other)

    def __lshift__(self, other: ValueLike) -> Value:
        return self.builder.shl(self, other)

    def __rshift__(self, other: ValueLike) -> Value:
        """Arithmetic for signed integers, logical for unsigned ones, as in C and NumPy."""
        shift = self.builder.shr_arithmetic if is_signed(self.dtype) else self.builder.shr_logical
        return shift(self, other)

    def __lt__(self, other: ValueLike) -> Value:
        return self.builder.lt(self, other)

    def __le__(self, other: ValueLike) -> Value:
        return self.builder.le(self, other)

    def __gt__(self, other: ValueLike) -> Value:
        return self.builder.gt(self, other)

    def __ge__(self, other: ValueLike) -> Value:
        return self.builder.ge(self, other)

    def __eq__(self, other: ValueLike) -> Value:  # type: ignore[override]
        return self.builder.eq(self, other)

    def __ne__(self, other: ValueLike) -> Value:  # type: ignore[override]
        return self.builder.ne(self, other)

    __hash__ = object.__hash__


def float_text(dtype: str, number: float) -> str:
    """LLVM's exact spelling of a float: the hexadecimal bits of the double that equals it."""
    if dtype == "float32" and number == number and abs(number) != float("inf"):
        number = _round_to_float32(number)
    if number != number:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def round_to_half(dtype: str, number: float) -> float:
    """The number rounded to a half kind, to nearest even."""
    if number != number or abs(number) == math.inf:
        return number
    digits, lowest, highest = (11, -13, 65504.0) if dtype == "float16" else (8, -125, float.fromhex("0x1.fep127"))
    quantum = math.ldexp(1.0, max(math.frexp(number)[1], lowest) - digits)
    rounded = math.copysign(round(number / quantum) * quantum, number)
    return rounded if abs(rounded) <= highest else math.copysign(math.inf, number)


def _round_to_float32(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def wrap_integer(number: int, dtype: str) -> int:
    bits = _BITS[dtype]
    number &= (1 << bits) - 1
    return number - (1 << bits) if is_signed(dtype) and number >> (bits - 1) else number
