"""Elementwise primitives in StableHLO's words; what StableHLO lacks, in those of its library CHLO."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from volta.core import dtypes
from volta.core.ir import Eqn
from volta.programs.stablehlo.text import Value, Writer, tensor

OPERATIONS = {
    "abs": "abs", "add": "add", "and": "and", "atan2": "atan2", "bitcast_convert_type": "bitcast_convert",
    "cbrt": "cbrt", "ceil": "ceil", "clz": "count_leading_zeros", "complex": "complex",
    "convert_element_type": "convert", "cos": "cosine", "div": "divide", "exp": "exponential",
    "expm1": "exponential_minus_one", "floor": "floor", "imag": "imag", "log": "log",
    "log1p": "log_plus_one", "logistic": "logistic", "max": "maximum", "min": "minimum", "mul": "multiply",
    "neg": "negate", "not": "not", "or": "or", "population_count": "popcnt", "pow": "power", "real": "real",
    "rem": "remainder", "round": "round_nearest_even", "rsqrt": "rsqrt", "shift_left": "shift_left",
    "shift_right_arithmetic": "shift_right_arithmetic", "shift_right_logical": "shift_right_logical", "sign": "sign",
    "sin": "sine", "sqrt": "sqrt", "sub": "subtract", "tan": "tan", "tanh": "tanh", "xor": "xor",
}  # fmt: skip
"""Primitives that are one operation of StableHLO's."""

LIBRARY = {
    "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan", "atanh": "atanh",
    "cosh": "cosh", "digamma": "digamma", "erf": "erf", "erf_inv": "erf_inv", "erfc": "erfc", "lgamma": "lgamma",
    "nextafter": "next_after", "sinh": "sinh",
}  # fmt: skip
"""Primitives that are one operation of CHLO's."""

SAME = ("copy", "stop_gradient")
"""Primitives whose result is their operand."""

COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


def write(w: Writer, eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
    """An equation of the elementwise family."""
    name, out = eqn.primitive.name, eqn.outputs[0].aval
    if name in SAME:
        return list(operands)
    operands = [x if x.shape == out.shape else w.spread(x, out.shape) for x in operands]
    if name in COMPARISONS:
        return [w.compare(operands[0], operands[1], COMPARISONS[name])]
    if name in OPERATIONS:
        return [w.operation(f"stablehlo.{OPERATIONS[name]}", operands, out)]
    if name in LIBRARY:
        return [w.operation(f"chlo.{LIBRARY[name]}", operands, out)]
    return [_COMPOSED[name](w, *operands, **eqn.params)]


def applied(w: Writer, name: str, *operands: Value) -> Value:
    """An operation whose result has the type of its first operand."""
    return w.operation(f"stablehlo.{name}", operands, operands[0].aval)


def like(w: Writer, x: Value, number: Any) -> Value:
    """A number in the shape and dtype of a value."""
    return w.spread(w.constant(number, x.dtype), x.shape)


def choose(w: Writer, which: Value, yes: Value, no: Value) -> Value:
    """Elements of one or of the other."""
    return w.operation("stablehlo.select", [which, yes, no], yes.aval)


def _conj(w: Writer, x: Value) -> Value:
    real, imag = w.parts(x)
    return w.operation("stablehlo.complex", [real, applied(w, "negate", imag)], x.aval)


def _is_finite(w: Writer, x: Value) -> Value:
    found = [w.operation("stablehlo.is_finite", [part], tensor(x.shape, dtypes.bool_)) for part in w.parts(x)]
    return functools.reduce(lambda a, b: applied(w, "and", a, b), found)


def _select_n(w: Writer, which: Value, *cases: Value) -> Value:
    if len(cases) == 1:
        return cases[0]
    return choose(w, which, cases[1], cases[0])


def _times_constant(number: float) -> Callable[[Writer, Value], Value]:
    return lambda w, x: applied(w, "multiply", applied(w, "log", x), like(w, x, number))


def _integer_pow(w: Writer, x: Value, *, y: int) -> Value:
    if y == 0:
        return like(w, x, 1)
    square, factors, bits = x, [], bin(abs(y))[:1:-1]
    for i, bit in enumerate(bits):
        if bit == "1":
            factors.append(square)
        if i + 1 < len(bits):
            square = applied(w, "multiply", square, square)
    product = functools.reduce(lambda a, b: applied(w, "multiply", a, b), factors)
    return applied(w, "divide", like(w, x, 1), product) if y < 0 else product


def _trunc(w: Writer, x: Value) -> Value:
    down, up = applied(w, "floor", x), applied(w, "ceil", x)
    return choose(w, w.compare(x, like(w, x, 0), "LT"), up, down)


_COMPOSED: dict[str, Callable[..., Value]] = {
    "clamp": lambda w, low, x, high: w.operation("stablehlo.clamp", [low, x, high], x.aval),
    "conj": _conj,
    "exp2": lambda w, x: applied(w, "power", like(w, x, 2), x),
    "fma": lambda w, x, y, z: applied(w, "add", applied(w, "multiply", x, y), z),
    "integer_pow": _integer_pow,
    "is_finite": _is_finite,
    "log10": _times_constant(1 / math.log(10)),
    "log2": _times_constant(1 / math.log(2)),
    "pow_int": lambda w, x, n: applied(w, "power", x, w.convert(n, x.dtype)),
    "select_n": _select_n,
    "trunc": _trunc,
}

COVERED = frozenset({*OPERATIONS, *LIBRARY, *SAME, *COMPARISONS, *_COMPOSED})
"""Every elementwise primitive that has text."""
