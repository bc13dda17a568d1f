"""The words of generated kernels as intrinsics: what each is in LLVM, for Numba on a CPU and on a GPU.

Nothing here contracts or reorders anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from llvmlite import ir
from numba import types

from volta.emit.builder import Builder, Value
from volta.numba_source.words import BITS, CASTS, INTEGERS, MATH, MEMORY, ROUNDED

_SIGNED = {kind: kind.replace("i", "int") for kind in INTEGERS}
_NUMBA = {"f32": types.float32, "f64": types.float64, **{k: getattr(types, name) for k, name in _SIGNED.items()}}
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", **_SIGNED}


@attrs.frozen
class Intrinsics:
    """Makes words for one of Numba's targets: ``intrinsic`` is that target's decorator, ``pointer`` gives the pointer
    so many bytes behind an address, ``builder`` is how the vocabulary is written there, ``own`` are words of `MATH`
    that are written otherwise than by LLVM's intrinsics of their names."""

    intrinsic: Callable[..., Any]
    pointer: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]
    builder: type[Builder] = Builder
    own: Mapping[str, Callable[..., ir.Value]] = attrs.field(factory=dict)

    def names(self) -> dict[str, Any]:
        """The words that are operations on numbers and memory."""
        return {
            **{kind: getattr(np, {"f": "float", "i": "int", "u": "uint"}[kind[0]] + kind[1:]) for kind in CASTS},
            **{f"load_{kind}": self._load(kind) for kind in MEMORY},
            **{f"store_{kind}": self._store(kind) for kind in MEMORY},
            **{f"bits_{kind}": self._bits(kind) for kind in BITS},
            **{f"round_{kind}": self._round(kind) for kind in ROUNDED},
            **{name: self._math(name, count) for name, count in MATH.items()},
            "bits_of_f16": self._word(
                1, lambda x: types.int16(x), lambda b, x: self.builder(b).to_memory(self._float32(b, x), "float16")
            ),
            "f16_of_bits": self._word(
                1, lambda x: types.float32(x), lambda b, x: self.builder(b).from_memory(x, "float16").ir
            ),
            "fence": self._word(1, lambda x: x(x), self._fence),
            "where": self._word(3, lambda c, x, y: x(types.boolean, x, x), lambda b, *args: b.select(*args)),
            "quotient": self._word(2, lambda x, y: x(x, x), lambda b, *args: b.sdiv(*args)),
        }

    def _word(self, count: int, signature: Callable[..., Any], emit: Callable[..., ir.Value | None]) -> Any:
        """A word of so many operands: ``signature`` says its types for theirs, ``emit`` writes it."""

        def typed(*given: Any) -> Any:
            def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
                found = emit(b, *args)
                return context.get_dummy_value() if found is None else found

            return signature(*given), generate

        return self.intrinsic(_taking(count, typed))

    def _float32(self, b: ir.IRBuilder, x: ir.Value) -> Value:
        return self.builder(b).value(x, "float32")

    def _load(self, kind: str) -> Any:
        def emit(b: ir.IRBuilder, address: ir.Value, distance: ir.Value) -> ir.Value:
            return self.builder(b).load(self.pointer(b, address, distance), _DTYPES[kind]).ir

        result = _NUMBA.get(kind, types.float32)
        return self._word(2, lambda address, distance: result(types.int64, types.int64), emit)

    def _store(self, kind: str) -> Any:
        def emit(b: ir.IRBuilder, address: ir.Value, distance: ir.Value, x: ir.Value) -> None:
            builder, held = self.builder(b), "float32" if kind in ROUNDED else _DTYPES[kind]
            builder.store(builder.value(x, held), self.pointer(b, address, distance), _DTYPES[kind])

        element = _NUMBA.get(kind, types.float32)
        return self._word(3, lambda address, distance, x: types.void(types.int64, types.int64, element), emit)

    def _bits(self, kind: str) -> Any:
        to = Builder(ir.IRBuilder()).type_of(_DTYPES[kind])
        return self._word(1, lambda x: _NUMBA[kind](x), lambda b, x: b.bitcast(x, to) if x.type != to else x)

    def _round(self, kind: str) -> Any:
        def emit(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
            return self.builder(b).round_to_half(self._float32(b, x), _DTYPES[kind]).ir

        return self._word(1, lambda x: x(x), emit)

    def _fence(self, b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        return self.builder(b).fence(self.builder(b).value(x, "float64" if x.type == ir.DoubleType() else "float32")).ir

    def _math(self, name: str, count: int) -> Any:
        """LLVM's intrinsic of this name, for operands of one type."""

        def emit(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
            more = [ir.IntType(1)(0)] if name in ("ctlz", "cttz") else []
            kind = args[0].type
            full = f"llvm.{name}.{getattr(kind, 'intrinsic_name', str(kind))}"
            function = b.module.globals.get(full)
            if function is None:
                function = ir.Function(b.module, ir.FunctionType(kind, [x.type for x in (*args, *more)]), full)
            return b.call(function, [*args, *more])

        return self._word(count, lambda x, *rest: x(*[x] * count), self.own.get(name, emit))


def _taking(count: int, typed: Callable[..., Any]) -> Callable[..., Any]:
    """A function of so many operands by name, as Numba wants it."""
    if count == 1:

        def one(typing: Any, x: Any) -> Any:
            return typed(x)

        return one
    if count == 2:

        def two(typing: Any, x: Any, y: Any) -> Any:
            return typed(x, y)

        return two

    def three(typing: Any, x: Any, y: Any, z: Any) -> Any:
        return typed(x, y, z)

    return three
