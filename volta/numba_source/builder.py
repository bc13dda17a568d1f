"""The vocabulary of kernels (`volta.emit.builder`), writing Python: what an operation means is said once for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from volta.emit.builder import HALF_DTYPES, Builder, Value, bit_width
from volta.emit.values import compute_dtype, is_float, scalar_type
from volta.numba_source.python_ir import PythonIR, Token, text_of
from volta.numba_source.text import Lines, Module

HALVES = {"float16": "f16", "bfloat16": "bf16"}


def memory_word(dtype: str) -> str:
    """How `words` names memory of a dtype: signs do not matter there."""
    if dtype in HALVES:
        return HALVES[dtype]
    return f"{'f' if is_float(dtype) else 'i'}{8 if dtype == 'bool' else bit_width(dtype)}"


def array_dtype(dtype: str) -> str:
    """The dtype of a NumPy array of values in registers: signs do not matter there."""
    return f"np.{'bool_' if dtype == 'bool' else compute_dtype(dtype).removeprefix('u')}"


class TextBuilder(Builder):
    """One lane of the vocabulary, as lines of Python."""

    def __init__(self, lines: Lines, module: Module) -> None:
        super().__init__(PythonIR(lines), 1)
        self.lines, self.module = lines, module

    def token(self, text: str, dtype: str) -> Value:
        """A value that is written ``text``."""
        return Value(Token(text, scalar_type(dtype)), dtype, self)

    def named(self, name: str, x: Value, comment: str = "") -> Value:
        """The value under a name of its own."""
        self.lines.line(f"{name} = {text_of(x.ir)}", comment)
        return self.token(name, x.dtype)

    def _one_lane(self) -> TextBuilder:
        return self

    def splat(self, scalar: Value) -> Value:
        return scalar

    def intrinsic(self, name: str, dtype: str, *arguments: Any, result: ir.Type | None = None) -> Any:
        operands = [a for a in arguments if name != "ctlz" or a is arguments[0]]  # LLVM's other one says: 0 is allowed
        return self.irbuilder.new(f"{name}({', '.join(map(text_of, operands))})", result or self.type_of(dtype))

    # Memory: addresses are texts.

    def read(self, base: str, distance: str, dtype: str) -> Value:
        """The element of memory of kind ``dtype`` so many bytes behind an address."""
        kind = compute_dtype(dtype)
        raw = ir.IntType(8) if dtype == "bool" else scalar_type(kind)
        found = self.irbuilder.new(f"load_{memory_word(dtype)}({base}, {distance})", raw)
        return self.ne(Value(found, "int8", self), 0) if dtype == "bool" else Value(found, kind, self)

    def write(self, x: Value, base: str, distance: str, dtype: str) -> None:
        """Write a value as an element of memory of kind ``dtype``."""
        if x.dtype != compute_dtype(dtype):
            raise TypeError(f"cannot store a {x.dtype} value as {dtype}")
        value = f"i8({text_of(x.ir)})" if dtype == "bool" else text_of(x.ir)
        self.lines.line(f"store_{memory_word(dtype)}({base}, {distance}, {value})")

    def fence(self, x: Value) -> Value:
        return self.value(self.irbuilder.new(f"fence({text_of(x.ir)})", x.ir.type), x.dtype)

    def round_to_half(self, x: Value, dtype: str) -> Value:
        x = self._to_float32_odd(x) if x.dtype == "float64" else self.cast(x, "float32")
        return self.value(self.irbuilder.new(f"round_{HALVES[dtype]}({text_of(x.ir)})", x.ir.type), "float32")

    def _float16_bits(self, x: Value) -> Any:
        return self.irbuilder.new(f"bits_of_f16({text_of(x.ir)})", ir.IntType(16))

    def from_memory(self, raw: Any, dtype: str) -> Value:
        if dtype == "float16":
            return Value(self.irbuilder.new(f"f16_of_bits({text_of(raw)})", ir.FloatType()), "float32", self)
        if dtype == "bool":
            return self.ne(Value(raw, "int8", self), 0)
        return super().from_memory(raw, dtype)

    # Choices.

    def where_any(
        self, condition: Value, compute: Callable[[], Sequence[Value]], usual: Sequence[Value]
    ) -> list[Value]:
        results = [self.named(self.lines.new_name(), x) for x in usual]
        with self.lines.block(f"if {text_of(condition.ir)}:"):
            for to, x in zip(results, compute(), strict=True):
                self.lines.line(f"{text_of(to.ir)} = {text_of(x.ir)}")
        return results

    def rarely(
        self, condition: Value, rare: Callable[..., Sequence[Value]], inputs: Sequence[Value], usual: Sequence[Value]
    ) -> list[Value]:
        return self.where_any(condition, lambda: rare(self, *inputs), usual)

    def while_any(self, condition: Callable[[Value], Value], body: Callable[[Value], Value], start: Value) -> Value:
        state = self.named(self.lines.new_name(), start)
        with self.lines.block("while True:"):
            with self.lines.block(f"if not {text_of(condition(state).ir)}:"):
                self.lines.line("break")
            self.lines.line(f"{text_of(state.ir)} = {text_of(body(state).ir)}")
        return state

    def lookup(self, table: Sequence[int | float], dtype: str, index: Value) -> Value:
        numbers = [text_of(self.const(dtype, number).ir) for number in table]
        name = self.module.table(array_dtype(dtype), numbers)
        return self.value(self.irbuilder.new(f"{name}[{text_of(index.ir)}]", scalar_type(dtype)), dtype)


assert set(HALVES) == set(HALF_DTYPES)
