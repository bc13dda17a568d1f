"""The words of generated kernels as Numba functions: intrinsics that write what the LLVM kernels have for them.

Nothing here contracts or reorders anything: Numba compiles the functions around them without fast-math flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from volta.emit.builder import Builder
from volta.emit.loops import I8, I64, KERNEL_TYPE, PTR
from volta.numba_source.words import BITS, CASTS, INTEGERS, MATH, MEMORY, ROUNDED, WORDS

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": False, "boundscheck": False, "nogil": True}
"""How generated functions are compiled: no division raises, nothing is reassociated or contracted."""

ENTRY: dict[str, Any] = {"error_model": "numpy", "fastmath": False, "nopython": True}
"""The same for the C function that a launch table calls."""

KERNEL = types.void(types.CPointer(types.int64), types.int64, types.int64, types.int64)
"""The ABI of the launch table, as Numba types."""

njit = numba.njit(**OPTIONS)

_SIGNED = {kind: kind.replace("i", "int") for kind in INTEGERS}
_NUMBA = {"f32": types.float32, "f64": types.float64, **{k: getattr(types, name) for k, name in _SIGNED.items()}}
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", **_SIGNED}


def _pointer(b: ir.IRBuilder, address: ir.Value, distance: ir.Value) -> ir.Value:
    return b.gep(b.inttoptr(address, PTR), [distance], source_etype=I8)


def _load(kind: str) -> Any:
    result = _NUMBA.get(kind, types.float32)

    @intrinsic
    def load(typing: Any, address: Any, distance: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return Builder(b).load(_pointer(b, *args), _DTYPES[kind]).ir

        return result(types.int64, types.int64), generate

    return load


def _store(kind: str) -> Any:
    element = _NUMBA.get(kind, types.float32)

    @intrinsic
    def store(typing: Any, address: Any, distance: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            builder = Builder(b)
            held = "float32" if kind in ROUNDED else _DTYPES[kind]
            builder.store(builder.value(args[2], held), _pointer(b, *args[:2]), _DTYPES[kind])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, element), generate

    return store


def _one(result: Callable[[Any], Any], emit: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Any:
    """An intrinsic of one operand; ``result`` gives the type of its result for that of the operand."""

    @intrinsic
    def word(typing: Any, x: Any) -> Any:
        return result(x)(x), lambda context, b, signature, args: emit(b, args[0])

    return word


def _bits(kind: str) -> Any:
    to = Builder(ir.IRBuilder()).type_of(_DTYPES[kind])
    return _one(lambda x: _NUMBA[kind], lambda b, x: b.bitcast(x, to) if x.type != to else x)


def _round(kind: str) -> Any:
    return _one(lambda x: x, lambda b, x: Builder(b).round_to_half(Builder(b).value(x, "float32"), _DTYPES[kind]).ir)


def _math(name: str, count: int) -> Any:
    """LLVM's intrinsic of this name, for ``count`` operands of one type."""

    def call(b: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        more = [ir.IntType(1)(0)] if name in ("ctlz", "cttz") else []
        kind = args[0].type
        full = f"llvm.{name}.{getattr(kind, 'intrinsic_name', str(kind))}"
        function = b.module.globals.get(full)
        if function is None:
            function = ir.Function(b.module, ir.FunctionType(kind, [x.type for x in (*args, *more)]), full)
        return b.call(function, [*args, *more])

    if count == 1:
        return _one(lambda x: x, lambda b, x: call(b, [x]))
    if count == 2:

        @intrinsic
        def two(typing: Any, x: Any, y: Any) -> Any:
            return x(x, x), lambda context, b, signature, args: call(b, args)

        return two

    @intrinsic
    def three(typing: Any, x: Any, y: Any, z: Any) -> Any:
        return x(x, x, x), lambda context, b, signature, args: call(b, args)

    return three


@intrinsic
def _where(typing: Any, condition: Any, x: Any, y: Any) -> Any:
    return x(types.boolean, x, x), lambda context, b, signature, args: b.select(*args)


@intrinsic
def _quotient(typing: Any, x: Any, y: Any) -> Any:
    return x(x, x), lambda context, b, signature, args: b.sdiv(*args)


@intrinsic
def _run_kernel(typing: Any, address: Any, args: Any, first: Any, begin: Any, end: Any, scratch: Any) -> Any:
    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        address, args, first, *rest = given
        block = b.gep(b.bitcast(args, PTR), [first], source_etype=I64)
        b.call(b.inttoptr(address, KERNEL_TYPE.as_pointer()), [block, *rest])
        return context.get_dummy_value()

    word = types.int64
    return types.void(word, args, word, word, word, word), generate


NAMES: dict[str, Any] = {
    **{kind: getattr(np, {"f": "float", "i": "int", "u": "uint"}[kind[0]] + kind[1:]) for kind in CASTS},
    **{f"load_{kind}": _load(kind) for kind in MEMORY},
    **{f"store_{kind}": _store(kind) for kind in MEMORY},
    **{f"bits_{kind}": _bits(kind) for kind in BITS},
    **{f"round_{kind}": _round(kind) for kind in ROUNDED},
    **{name: _math(name, count) for name, count in MATH.items()},
    "bits_of_f16": _one(
        lambda x: types.int16, lambda b, x: Builder(b).to_memory(Builder(b).value(x, "float32"), "float16")
    ),
    "f16_of_bits": _one(lambda x: types.float32, lambda b, x: Builder(b).from_memory(x, "float16").ir),
    "fence": _math("arithmetic.fence", 1),
    "where": _where,
    "quotient": _quotient,
    "run_kernel": _run_kernel,
    "njit": njit,
    "np": np,
    "nan": np.nan,
    "inf": np.inf,
}  # fmt: skip
"""What generated text finds under the words."""

assert set(NAMES) == WORDS

__all__ = sorted(WORDS)  # noqa: PLE0605 - a text imports them all
globals().update(NAMES)
