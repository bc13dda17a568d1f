"""llvmlite's ``IRBuilder``, as far as the vocabulary of `volta.emit` uses it, writing Python instead of LLVM.

So one vocabulary gives both: each instruction becomes a line, ``t3 = t1 * t2``.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from llvmlite import ir

from volta.core.floats import standard
from volta.numba_source.text import Lines

BOOL = ir.IntType(1)


class Token:
    """A Python expression (a name, or what is written like one) of an LLVM type: what a text builder's values hold."""

    def __init__(self, text: str, type_: ir.Type) -> None:
        self.text = text
        self.type = type_

    def get_reference(self) -> str:
        return self.text


def kind_of(type_: ir.Type) -> str:
    """The word for an LLVM type: f32, i64, bool, …"""
    if isinstance(type_, ir.FloatType):
        return "f32"
    if isinstance(type_, ir.DoubleType):
        return "f64"
    return "bool" if type_.width == 1 else f"i{type_.width}"


@standard
def text_of(x: Any) -> str:
    """A value as Python text: a token's own, or a constant as the call that makes it."""
    if isinstance(x, Token):
        return x.text
    kind, text = kind_of(x.type), str(x.constant)
    if kind == "bool":
        return str(text in ("true", "1", "True"))
    if kind in ("f32", "f64"):
        return f"{kind}({_float_text(struct.unpack('<d', struct.pack('<Q', int(text, 16)))[0], kind)})"
    number = int(text)
    if number >> (x.type.width - 1) == 1:
        number -= 1 << x.type.width
    return f"{kind}({number})"


def _float_text(number: float, kind: str) -> str:
    if number != number:
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return str(np.float32(number)) if kind == "f32" else repr(number)


class PythonIR:
    """Writes each instruction as a line that gives its result a name."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def new(self, expression: str, type_: ir.Type) -> Token:
        name = self.lines.new_name()
        self.lines.line(f"{name} = {expression}")
        return Token(name, type_)

    def _both(self, operator: str, x: Any, y: Any) -> Token:
        expression = f"{text_of(x)} {operator} {text_of(y)}"
        kind = kind_of(x.type)  # Python's integers are wider than these: what is too long for them wraps around
        return self.new(expression if kind in ("f32", "f64", "bool") else f"{kind}({expression})", x.type)

    def fadd(self, x: Any, y: Any) -> Token:
        return self._both("+", x, y)

    def fsub(self, x: Any, y: Any) -> Token:
        return self._both("-", x, y)

    def fmul(self, x: Any, y: Any) -> Token:
        return self._both("*", x, y)

    def fdiv(self, x: Any, y: Any) -> Token:
        return self._both("/", x, y)

    add, sub, mul = fadd, fsub, fmul

    def and_(self, x: Any, y: Any) -> Token:
        return self._both("&", x, y)

    def or_(self, x: Any, y: Any) -> Token:
        return self._both("|", x, y)

    def xor(self, x: Any, y: Any) -> Token:
        return self._both("^", x, y)

    def shl(self, x: Any, y: Any) -> Token:
        return self._both("<<", x, y)

    def ashr(self, x: Any, y: Any) -> Token:
        return self._both(">>", x, y)

    @staticmethod
    def _unsigned(x: Any) -> str:
        kind = kind_of(x.type)
        return text_of(x) if kind == "bool" else f"u{kind[1:]}({text_of(x)})"

    def lshr(self, x: Any, y: Any) -> Token:
        return self.new(f"{kind_of(x.type)}({self._unsigned(x)} >> {self._unsigned(y)})", x.type)

    def sdiv(self, x: Any, y: Any) -> Token:
        return self.new(f"quotient({text_of(x)}, {text_of(y)})", x.type)

    def udiv(self, x: Any, y: Any) -> Token:
        return self.new(f"{kind_of(x.type)}({self._unsigned(x)} // {self._unsigned(y)})", x.type)

    def select(self, condition: Any, x: Any, y: Any) -> Token:
        return self.new(f"where({text_of(condition)}, {text_of(x)}, {text_of(y)})", x.type)

    def bitcast(self, x: Any, type_: ir.Type) -> Token:
        return self.new(f"bits_{kind_of(type_)}({text_of(x)})", type_)

    def fpext(self, x: Any, type_: ir.Type) -> Token:
        return self.new(f"{kind_of(type_)}({text_of(x)})", type_)

    fptrunc = sitofp = fptosi = trunc = sext = fpext

    def fptoui(self, x: Any, type_: ir.Type) -> Token:
        kind = kind_of(type_)
        return self.new(f"{kind}(u{kind[1:]}({text_of(x)}))", type_)

    def uitofp(self, x: Any, type_: ir.Type) -> Token:
        return self.new(f"{kind_of(type_)}({self._unsigned(x)})", type_)

    zext = uitofp

    def icmp_signed(self, operator: str, x: Any, y: Any) -> Token:
        return self.new(f"{text_of(x)} {operator} {text_of(y)}", BOOL)

    def icmp_unsigned(self, operator: str, x: Any, y: Any) -> Token:
        return self.new(f"{self._unsigned(x)} {operator} {self._unsigned(y)}", BOOL)

    def fcmp_ordered(self, operator: str, x: Any, y: Any) -> Token:
        return self.new(f"{text_of(x)} {operator} {text_of(y)}", BOOL)

    def fcmp_unordered(self, operator: str, x: Any, y: Any) -> Token:
        if operator == "!=":
            return self.fcmp_ordered(operator, x, y)
        if operator != "uno":
            raise AssertionError(f"no Python for an unordered {operator}")
        return self.new(f"({text_of(x)} != {text_of(x)}) | ({text_of(y)} != {text_of(y)})", BOOL)
