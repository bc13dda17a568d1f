"""dtypes and constants under NumPy's names."""

from __future__ import annotations

import builtins
import math
from typing import Any

import ml_dtypes
import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError
from volta.core.extended import extended, is_key
from volta.core.source import at_user_line
from volta.numpy.promotion import aval_of, joined

pi = math.pi
e = math.e
euler_gamma = 0.57721566490153286060
inf = math.inf
nan = math.nan
newaxis = None

dtype = np.dtype

# NumPy's scalar types: each names a dtype, and called it makes a strongly typed scalar, ``float64(0.1)``.
bool = bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
bfloat16 = ml_dtypes.bfloat16
int_, uint, float_, single, double = np.int32, np.uint32, np.float32, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
complex_, csingle, cdouble = np.complex64, np.complex64, np.complex128

integer, signedinteger, unsignedinteger = np.integer, np.signedinteger, np.unsignedinteger
floating, inexact, number, generic = np.floating, np.inexact, np.number, np.generic
complexfloating, flexible, character, object_ = np.complexfloating, np.flexible, np.character, np.object_

KINDS = {
    "bool": (dtypes.bool_,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": dtypes.INTEGERS,
    "real floating": dtypes.FLOATS,
    "complex floating": dtypes.COMPLEX,
    "numeric": dtypes.INTEGERS + dtypes.INEXACT,
}


_WEAK = (int, float, complex)


def result_type(*args: Any) -> np.dtype:
    """The dtype that arrays, Python numbers and dtypes promote to; Python numbers are weak.

    >>> result_type(np.float16(1), 2.0)
    dtype('float16')
    """
    if not args:
        raise ValueError(at_user_line("result_type: needs at least one argument"))
    pairs = []
    for x in args:
        if isinstance(x, (Array, np.ndarray, np.generic)) or type(x) in (builtins.bool, int, float, complex):
            aval = aval_of("result_type", x)
            pairs.append((aval.dtype, aval.weak_type))
        else:
            pairs.append((dtypes.canonicalize(x), x in _WEAK))
    return joined("result_type", pairs)[0]


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype that two dtypes promote to."""
    return joined("promote_types", [(dtypes.canonicalize(x), x in _WEAK) for x in (a, b)])[0]


def issubdtype(arg1: Any, arg2: Any) -> builtins.bool:
    """Whether a dtype is of a kind, such as ``issubdtype(x.dtype, np.floating)``; bfloat16 counts as floating."""
    if is_key(arg1) or (isinstance(arg2, type) and issubclass(arg2, extended)):
        kind = arg1.type if is_key(arg1) else arg1
        return arg1 is arg2 or (isinstance(kind, type) and isinstance(arg2, type) and issubclass(kind, arg2))
    kind = np.dtype(arg1)
    if kind == dtypes.bfloat16:
        return arg2 in (np.floating, np.inexact, np.number, np.generic) or (
            not (isinstance(arg2, type) and issubclass(arg2, np.generic) and arg2.__module__ == "numpy")
            and np.dtype(arg2) == kind
        )
    return builtins.bool(np.issubdtype(kind, arg2))


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether ``dtype`` is of a kind of the array API standard ('real floating', 'integral', …), or equals a dtype."""
    own = dtypes.canonicalize(dtype)
    for k in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(k, str) and k in KINDS:
            if own in KINDS[k]:
                return True
        elif isinstance(k, str):
            raise DTypeError(at_user_line(f"isdtype: unknown kind {k!r}; known are {', '.join(KINDS)}"))
        elif own == dtypes.canonicalize(k):
            return True
    return False


def isscalar(element: Any) -> builtins.bool:
    """Whether ``element`` is a number or an array of rank 0."""
    if isinstance(element, (Array, np.ndarray)):
        return element.ndim == 0
    return isinstance(element, (builtins.bool, int, float, complex, np.generic))
