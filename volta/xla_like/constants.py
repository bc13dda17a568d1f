"""Which constants are part of a kernel's code, and which are given to it when it is called."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.constants import constant
from volta.xla_like.kernels import ConstValue, GivenValue, bits_of

PLAIN = frozenset("add sub mul div fma max min clamp select_n eq ne lt le gt ge copy convert_element_type".split())
"""Operations whose code is the same for nearly every constant. Of others, such as powers, divisions of integers and
shifts, LLVM makes faster code where it knows the constant."""


def constant_of(value: Any, dtype: np.dtype, reader: str) -> tuple[ConstValue | GivenValue, int | None]:
    """A constant that the operation ``reader`` reads, as part of a kernel's body; with its bits, if a call gives them.

    A program with other constants then needs no other machine code. Zeros, powers of two, infinities, NaNs and booleans
    stay in the code: they are few, and products and quotients by them are cheaper.
    """
    scalar = constant(value, dtype)
    data = scalar.tobytes()
    return (GivenValue(dtype), bits_of(data)) if _is_given(scalar, reader) else (ConstValue(dtype, data), None)


def _is_given(scalar: Any, reader: str) -> bool:
    if reader not in PLAIN or scalar.dtype.kind == "b":
        return False
    if not dtypes.is_float(scalar.dtype):
        number = abs(int(scalar))
        return reader != "div" and number & (number - 1) != 0
    return math.isfinite(scalar) and abs(math.frexp(float(scalar))[0]) not in (0.0, 0.5)
