"""Element types, their promotion lattice and Python scalars' weak types.

Volta keeps float32 and float64 side by side with no global switch: a NumPy float64 array stays float64, while Python
numbers are *weak* and take the dtype of what they meet
(JAX's lattice, https://docs.jax.dev/en/latest/type_promotion.html).
Until then they are *numbers*: held in 64 bits, as Python holds them, whether their value is known or traced. The
default float, which a number becomes where it meets nothing but other numbers in a function of arrays, is float32; the
default int is int32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from volta.core.errors import DTypeError
from volta.core.extended import KEY_TYPES, is_key, refusal
from volta.core.source import at_user_line

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
float16, float32, float64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
complex64, complex128 = (np.dtype(t) for t in (np.complex64, np.complex128))
bfloat16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (float16, bfloat16, float32, float64)
COMPLEX = (complex64, complex128)
INEXACT = FLOATS + COMPLEX
ALL = (bool_, *INTEGERS, *INEXACT)
BY_NAME = {d.name: d for d in (*ALL, *KEY_TYPES)}

DEFAULT_FLOAT = float32
DEFAULT_INT = int32
DEFAULT_COMPLEX = complex64

_SHORT = {
    bool_: "bool",
    float16: "f16",
    bfloat16: "bf16",
    float32: "f32",
    float64: "f64",
    complex64: "c64",
    complex128: "c128",
}
_SHORT.update({d: f"i{8 * d.itemsize}" for d in SIGNED})
_SHORT.update({d: f"u{8 * d.itemsize}" for d in UNSIGNED})
_SHORT.update({d: d.name for d in KEY_TYPES})


def short_name(dtype: np.dtype) -> str:
    """The name used in printed IR: ``f32``, ``i64``, ``bool``, ``bf16``."""
    return _SHORT[dtype]


def is_float(dtype: np.dtype) -> bool:
    return dtype in FLOATS


def is_complex(dtype: np.dtype) -> bool:
    return dtype in COMPLEX


def is_inexact(dtype: np.dtype) -> bool:
    """Whether values of a dtype have tangents: floats and complex numbers do."""
    return dtype in INEXACT


def part_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the real and the imaginary part of a complex dtype; any other is its own."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts hold values of a dtype: complex128 for float64, complex64 for the other floats."""
    return dtype if dtype in COMPLEX else complex128 if dtype == float64 else complex64


def is_integer(dtype: np.dtype) -> bool:
    return dtype in INTEGERS


def is_signed(dtype: np.dtype) -> bool:
    return dtype in SIGNED


def is_unsigned(dtype: np.dtype) -> bool:
    return dtype in UNSIGNED


def lowest(dtype: np.dtype) -> Any:
    """The least value of a dtype."""
    if dtype.kind == "b":
        return False
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -np.inf


def highest(dtype: np.dtype) -> Any:
    """The greatest value of a dtype."""
    if dtype.kind == "b":
        return True
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else np.inf


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype arithmetic happens in: float16 and bfloat16 are storage formats, computed in float32."""
    return float32 if dtype in (float16, bfloat16) else dtype


_PYTHON = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT, complex: DEFAULT_COMPLEX}


@lru_cache(maxsize=512)
def _canonical(dtype: Any) -> np.dtype:
    if dtype is None:  # float64 to NumPy, the default of an operation to who passes it on
        raise DTypeError(at_user_line("None is not a dtype: leave it out, or say which"))
    if dtype in _PYTHON:
        return _PYTHON[dtype]
    if dtype in KEY_TYPES:
        return dtype
    try:
        result = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        raise DTypeError(
            at_user_line(f"{dtype!r} is not a dtype. Volta knows {', '.join(d.name for d in ALL)}.")
        ) from None
    if result not in _SHORT:
        known = ", ".join(d.name for d in ALL)
        raise DTypeError(
            at_user_line(f"dtype {result.name} is not supported. Volta knows {known}; convert the data first.")
        )
    return result


def canonicalize(dtype: Any) -> np.dtype:
    """Any spelling of a dtype (``'float32'``, ``np.int8``, ``float``, ``vnp.bfloat16``) as Volta's own.

    Raises:
        DTypeError: for object, string, datetime and other dtypes that Volta does not compute with.
    """
    try:
        return _canonical(dtype)
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        raise DTypeError(at_user_line(f"{dtype!r:.80} is not a dtype.")) from None  # it cannot be hashed


def of_python_scalar(value: Any) -> np.dtype | None:
    """The dtype that holds a Python number, or None when ``value`` is not exactly one, or more than 64 bits hold."""
    kind = type(value)
    if kind is float:
        return float64
    if kind is complex:
        return complex128
    if kind is int and -(2**63) <= value < 2**64:
        return int64 if value < 2**63 else uint64
    return bool_ if kind is bool else None


_NUMBERS = (complex128, float64, uint64, int64)


def is_number(dtype: np.dtype, weak: bool) -> bool:
    """Whether a type is that of a Python number which has met no array: weak, and of 64 bits (each part of them)."""
    return weak and dtype in _NUMBERS


def settled(dtype: np.dtype, weak: bool) -> np.dtype:
    """The dtype that a value has as an array: a Python number's is the default of its kind."""
    if not is_number(dtype, weak):
        return dtype
    return DEFAULT_COMPLEX if dtype == complex128 else DEFAULT_FLOAT if dtype == float64 else DEFAULT_INT


# The lattice: an edge leads to a type that both ends promote to. 'i*', 'f*' and 'c*' are the weak numbers.
_LATTICE: dict[Any, tuple[Any, ...]] = {
    bool_: ("i*",),
    "i*": (uint8, int8),
    uint8: (int16, uint16),
    uint16: (int32, uint32),
    uint32: (int64, uint64),
    uint64: ("f*",),
    int8: (int16,),
    int16: (int32,),
    int32: (int64,),
    int64: ("f*",),
    "f*": (bfloat16, float16, "c*"),
    bfloat16: (float32,),
    float16: (float32,),
    float32: (float64, complex64),
    float64: (complex128,),
    "c*": (complex64,),
    complex64: (complex128,),
    complex128: (),
}


@lru_cache(maxsize=64)
def _above(node: Any) -> frozenset[Any]:
    return frozenset({node}).union(*(_above(n) for n in _LATTICE[node]))


def _node(dtype: np.dtype, weak: bool) -> Any:
    if weak and dtype in INEXACT:
        return "f*" if dtype in FLOATS else "c*"
    return "i*" if weak and dtype in INTEGERS else dtype


@lru_cache(maxsize=4096)
def promote(*types: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """Join ``(dtype, weak)`` pairs in the lattice. The result is weak when every input is, or when the join is no
    array's dtype: integers that meet a Python float become the weak float32. Numbers among themselves stay numbers;
    booleans count as strong.

    >>> promote((float32, False), (float64, True))      # an array times a Python float
    (dtype('float32'), False)
    >>> promote((int32, False), (float64, True))
    (dtype('float32'), True)
    >>> promote((int64, True), (float64, True))         # two Python numbers
    (dtype('float64'), True)
    """
    if all(is_number(*t) for t in types):
        widest = next(d for d in _NUMBERS if (d, True) in types)
        return int64 if widest == uint64 else widest, True  # operators between numbers are of signed integers
    types = tuple((settled(*t), t[1] and t[0] != bool_) for t in types)
    all_weak = all(w for _, w in types)
    if len({d for d, _ in types}) == 1:
        return types[0][0], all_weak
    if key := next((d for d, _ in types if is_key(d)), None):
        met = ", ".join(sorted({d.name for d, _ in types} - {key.name}))
        raise DTypeError(at_user_line(f"{key} and {met} have no dtype in common: {refusal(key)}"))
    nodes = {d if all_weak else _node(d, w) for d, w in types}
    common = frozenset.intersection(*(_above(n) for n in nodes))
    (join,) = (n for n in common if common <= _above(n))  # the least common upper bound is the one below all others
    default = _DEFAULT.get(join)
    return (join, all_weak) if default is None else (default, True)


_DEFAULT = {"i*": DEFAULT_INT, "f*": DEFAULT_FLOAT, "c*": DEFAULT_COMPLEX}


def to_float(dtype: np.dtype) -> np.dtype:
    """What NumPy's ``sin`` or ``mean`` would compute an argument of ``dtype`` in: floats and complex dtypes stay, the
    rest is float32."""
    return dtype if dtype in INEXACT else DEFAULT_FLOAT


def finfo(dtype: Any) -> Any:
    """Machine limits of a float dtype, or of a complex one's parts, as :func:`numpy.finfo` gives them
    (``ml_dtypes.finfo`` for bfloat16)."""
    return ml_dtypes.finfo(canonicalize(dtype))


def iinfo(dtype: Any) -> Any:
    """Machine limits of an integer dtype, as :func:`numpy.iinfo` gives them."""
    return np.iinfo(canonicalize(dtype))
