"""StableHLO's text: types, constants, and operations in MLIR's generic form, which every version reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import UnsupportedOperationError
from volta.core.source import at_user_line

ELEMENTS = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "ui8", "uint16": "ui16",
    "uint32": "ui32", "uint64": "ui64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex64": "complex<f32>", "complex128": "complex<f64>",
}  # fmt: skip

Body = Callable[..., Sequence["Value"]]
"""Gives what a region returns, of its arguments."""


class Value:
    """A value of the text: its name and its type."""

    __slots__ = ("aval", "name")

    def __init__(self, name: str, aval: ShapedArray):
        self.name, self.aval = name, aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype


def tensor(shape: Sequence[int], dtype: Any) -> ShapedArray:
    """The type of a tensor."""
    return ShapedArray(tuple(shape), np.dtype(dtype))


def type_text(aval: ShapedArray) -> str:
    """A type as in ``tensor<2x3xf32>``."""
    if aval.dtype.name not in ELEMENTS:
        raise UnsupportedOperationError(at_user_line(f"StableHLO has no text here for elements of {aval.dtype.name}"))
    return f"tensor<{''.join(f'{n}x' for n in aval.shape)}{ELEMENTS[aval.dtype.name]}>"


def ints(values: Sequence[int]) -> str:
    """An attribute of integers."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _bare(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def fields(kind: str, **values: Sequence[int] | int) -> str:
    """An attribute with named fields, ``#stablehlo.gather<offset_dims = [1], …>``; empty lists are left out."""
    found = [f"{k} = {v if isinstance(v, int) else _bare(v)}" for k, v in values.items() if isinstance(v, int) or v]
    return f"#stablehlo.{kind}<{', '.join(found)}>"


def _number(x: Any) -> str:
    if x.dtype == np.bool_:
        return "true" if x else "false"
    if x.dtype.kind == "c":
        return f"({_number(x.real)}, {_number(x.imag)})"
    if x.dtype.kind in "iu":
        return str(int(x))
    if not np.isfinite(x):  # infinities and NaN: their bits
        return f"0x{int(x.view(f'u{x.dtype.itemsize}')):0{2 * x.dtype.itemsize}X}"
    digits, e, exponent = repr(float(x)).partition("e")
    return f"{digits if '.' in digits else digits + '.0'}{e}{exponent}"


def _nested(x: np.ndarray) -> str:
    return _number(x[()]) if x.ndim == 0 else f"[{', '.join(map(_nested, x))}]"


def elements(x: Any) -> str:
    """The elements of an array as an attribute without its type."""
    x = np.asarray(x)
    if x.size and (x.ndim == 0 or (x.tobytes() == x.reshape(-1)[:1].tobytes() * x.size)):
        return f"dense<{_number(x.reshape(-1)[0])}>"
    if x.size < 17 or x.dtype == np.bool_:
        return f"dense<{_nested(x) if x.size else ''}>"
    return f'dense<"0x{np.ascontiguousarray(x).astype(x.dtype.newbyteorder("<")).tobytes().hex().upper()}">'


class Writer:
    """Lines of a function, operation by operation; `region` nests."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._margin = "    "

    def fresh(self, aval: ShapedArray) -> Value:
        self._count += 1
        return Value(f"%{self._count - 1}", aval)

    def operations(
        self, name: str, operands: Sequence[Value], avals: Sequence[ShapedArray], attributes: str = "",
        bodies: Sequence[tuple[Sequence[ShapedArray], Body]] = (),
    ) -> list[Value]:  # fmt: skip
        """An operation with any number of results; ``bodies``: its regions, as types of arguments and functions."""
        outs = [self.fresh(a) for a in avals]
        left = f"{', '.join(x.name for x in outs)} = " if outs else ""
        takes = ", ".join(type_text(x.aval) for x in operands)
        gives = ", ".join(map(type_text, avals))
        types = f"({takes}) -> {gives if len(avals) == 1 else f'({gives})'}"
        start = f'{self._margin}{left}"{name}"({", ".join(x.name for x in operands)})'
        tail = f" {{{attributes}}}" if attributes else ""
        if not bodies:
            self.lines.append(f"{start}{tail} : {types}")
            return outs
        self.lines.append(f"{start} ({{")
        for i, (arguments, body) in enumerate(bodies):
            with self._region(arguments) as found:
                results = body(*found)
                self.operations("stablehlo.return", results, [])
            self.lines.append(f"{self._margin}}}{', {' if i + 1 < len(bodies) else f'){tail} : {types}'}")
        return outs

    @contextmanager
    def _region(self, avals: Sequence[ShapedArray]) -> Iterator[list[Value]]:
        arguments = [self.fresh(a) for a in avals]
        if arguments:
            typed = ", ".join(f"{x.name}: {type_text(x.aval)}" for x in arguments)
            self.lines.append(f"{self._margin}^bb0({typed}):")
        self._margin += "  "
        yield arguments
        self._margin = self._margin[:-2]

    def operation(self, name: str, operands: Sequence[Value], aval: ShapedArray, attributes: str = "") -> Value:
        """An operation of one result."""
        return self.operations(name, operands, [aval], attributes)[0]

    def constant(self, x: Any, dtype: Any = None) -> Value:
        """An array, or a number of a dtype."""
        x = np.asarray(x, dtype)
        aval = tensor(x.shape, x.dtype)
        return self.operation("stablehlo.constant", [], aval, f"value = {elements(x)} : {type_text(aval)}")

    # -- small words ---------------------------------------------------------------------------------------------------

    def spread(self, x: Value, shape: Sequence[int], dims: Sequence[int] = ()) -> Value:
        """``x`` in a larger shape, its axes at ``dims``."""
        if x.shape == tuple(shape) and list(dims) == list(range(len(shape))):
            return x
        attributes = f"broadcast_dimensions = {ints(dims)}"
        return self.operation("stablehlo.broadcast_in_dim", [x], tensor(shape, x.dtype), attributes)

    def convert(self, x: Value, dtype: Any) -> Value:
        if x.dtype == dtype:
            return x
        return self.operation("stablehlo.convert", [x], tensor(x.shape, dtype))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if x.shape == tuple(shape):
            return x
        return self.operation("stablehlo.reshape", [x], tensor(shape, x.dtype))

    def places(self, shape: Sequence[int], axis: int) -> Value:
        """Of each element its place along an axis, int64."""
        return self.operation("stablehlo.iota", [], tensor(shape, np.int64), f"iota_dimension = {axis} : i64")

    def parts(self, x: Value) -> list[Value]:
        """A number, or the two parts of a complex one."""
        if not dtypes.is_complex(x.dtype):
            return [x]
        part = tensor(x.shape, dtypes.part_dtype(x.dtype))
        return [self.operation(f"stablehlo.{name}", [x], part) for name in ("real", "imag")]

    def compare(self, x: Value, y: Value, how: str) -> Value:
        """``how``: EQ, NE, LT, LE, GT or GE."""
        attributes = f"comparison_direction = #stablehlo<comparison_direction {how}>"
        return self.operation("stablehlo.compare", [x, y], tensor(x.shape, np.bool_), attributes)
