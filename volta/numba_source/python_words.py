"""The words of generated kernels as Python functions of NumPy scalars: the same text runs without a compiler.

Slow (a microsecond and more a word), and meant for stepping: memory is read and written where it lies, a scalar at a
time, with the bits that the compiled words give. Indices of loops are Python's integers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.numba_source.words import BITS, CASTS, MATH, MEMORY, ROUNDED, WORDS

TYPES: dict[str, Any] = {
    **{f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}").type for sign in "iu" for bits in (8, 16, 32, 64)},
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": dtypes.bfloat16.type,
}  # fmt: skip


def _cast(kind: str) -> Callable[[Any], Any]:
    type_ = TYPES[kind]
    if kind[0] == "f":  # a loop's index is an int64: a Python integer would be rounded to float64 on its way
        return lambda x: type_(np.int64(x) if type(x) is int else x)
    bits = int(kind[1:])
    half = 1 << (bits - 1) if kind[0] == "i" else 0
    return lambda x: type_(((int(x) + half) & ((1 << bits) - 1)) - half)


def _element(kind: str, address: int) -> np.ndarray:
    """The array of one element over the memory at an address."""
    memory = (ctypes.c_char * np.dtype(TYPES[kind]).itemsize).from_address(int(address))
    return np.frombuffer(memory, TYPES[kind])


def _load(kind: str) -> Callable[[int, int], Any]:
    if kind in ROUNDED:
        return lambda address, distance: np.float32(_element(kind, address + distance)[0])
    return lambda address, distance: _element(kind, address + distance)[0]


def _store(kind: str) -> Callable[[int, int, Any], None]:
    def store(address: int, distance: int, x: Any) -> None:
        _element(kind, address + distance)[0] = x

    return store


def _bits(kind: str) -> Callable[[Any], Any]:
    return lambda x: (np.int64(x) if type(x) is int else x).view(TYPES[kind])


def _round(kind: str) -> Callable[[Any], Any]:
    return lambda x: np.float32(TYPES[kind](x))


_libm = ctypes.CDLL(None)
"""The process: Python itself is linked with the C library's mathematics."""

_FMA: dict[Any, Any] = {}
for _type, _name, _c in ((np.float32, "fmaf", ctypes.c_float), (np.float64, "fma", ctypes.c_double)):
    _FMA[_type] = getattr(_libm, _name)
    _FMA[_type].argtypes, _FMA[_type].restype = [_c] * 3, _c


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z with one rounding: C's, which is exact on every machine."""
    return type(x)(_FMA[type(x)](x, y, z))


def _unsigned(x: Any) -> tuple[int, int]:
    """An integer's bits, and how many they are."""
    bits = 8 * x.dtype.itemsize
    return int(x) & ((1 << bits) - 1), bits


def _ctpop(x: Any) -> Any:
    return type(x)(_unsigned(x)[0].bit_count())


def _ctlz(x: Any) -> Any:
    number, bits = _unsigned(x)
    return type(x)(bits - number.bit_length())


def _cttz(x: Any) -> Any:
    number, bits = _unsigned(x)
    return type(x)((number & -number).bit_length() - 1 if number else bits)


def _quotient(x: Any, y: Any) -> Any:
    whole = abs(int(x)) // abs(int(y))
    return type(x)(whole if (x < 0) == (y < 0) else -whole)


_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def run_kernel(address: int, args: Any, first: int, begin: int, end: int, scratch: int) -> None:
    """Run another kernel on the args from word ``first`` on."""
    _KERNEL(address)(ctypes.addressof(args.contents) + 8 * first, begin, end, scratch)


NAMES: dict[str, Any] = {
    **{kind: _cast(kind) for kind in CASTS},
    **{f"load_{kind}": _load(kind) for kind in MEMORY},
    **{f"store_{kind}": _store(kind) for kind in MEMORY},
    **{f"bits_{kind}": _bits(kind) for kind in BITS},
    **{f"round_{kind}": _round(kind) for kind in ROUNDED},
    "fma": fma,
    **{name: getattr(np, name) for name in MATH if hasattr(np, name)},
    "ctpop": _ctpop,
    "ctlz": _ctlz,
    "cttz": _cttz,
    "bits_of_f16": lambda x: np.int16(0x7E00) if np.isnan(x) else np.float16(x).view(np.int16),
    "f16_of_bits": lambda x: np.float32(x.view(np.float16)),
    "fence": lambda x: x,
    "where": lambda condition, x, y: x if condition else y,
    "quotient": _quotient,
    "run_kernel": run_kernel,
    "njit": lambda function: function,
    "np": np,
    "nan": np.nan,
    "inf": np.inf,
}
"""What generated text finds under the words."""

assert set(NAMES) == WORDS

__all__ = sorted(WORDS)  # noqa: PLE0605 - a text imports them all
globals().update(NAMES)
