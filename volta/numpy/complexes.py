"""Complex numbers: their parts, conjugates and angles, and what asks whether values are complex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.source import at_user_line
from volta.numpy import shaping, sorting, ufuncs
from volta.numpy.promotion import as_value, aval_of, convert, number_of, promote_floats, scalar_like
from volta.ops import lax


def _is_complex(name: str, x: ArrayLike) -> bool:
    return dtypes.is_complex(number_of(name, x).dtype)


def real(val: ArrayLike) -> Array:
    """The real part, of complex64 in float32 and of complex128 in float64; what is real is its own.

    >>> real(np.complex64(1 + 2j))
    Array(1., dtype=float32)
    """
    return lax.real(as_value(val)) if _is_complex("real", val) else ufuncs.positive(val)


def imag(val: ArrayLike) -> Array:
    """The imaginary part: zeros where ``val`` is real.

    >>> imag(np.complex64(1 + 2j))
    Array(2., dtype=float32)
    """
    return (
        lax.imag(as_value(val))
        if _is_complex("imag", val)
        else shaping.broadcast_to(scalar_like(val, 0), aval_of("imag", val).shape)
    )


def conjugate(x: ArrayLike) -> Array:
    """The complex conjugate; what is real is its own.

    >>> conjugate(np.complex64(1 + 2j))
    Array(1.-2.j, dtype=complex64)
    """
    return lax.conj(as_value(x)) if _is_complex("conjugate", x) else ufuncs.positive(x)


conj = conjugate


def angle(z: ArrayLike, deg: bool = False) -> Array:
    """The angle in the complex plane, in (-pi, pi], or in degrees: atan2 of the imaginary and the real part.

    >>> angle(np.complex64(2j), deg=True)
    Array(90., dtype=float32)
    """
    z = promote_floats("angle", z)[0]
    out = lax.atan2(imag(z), real(z))
    return lax.mul(out, scalar_like(out, 180 / math.pi)) if deg else out


def iscomplex(x: ArrayLike) -> Array:
    """Which elements have an imaginary part that is not 0.

    >>> iscomplex(np.complex64([1, 2j]))
    Array([False,  True], dtype=bool)
    """
    return lax.bitwise_not(isreal(x))


def isreal(x: ArrayLike) -> Array:
    """Which elements have an imaginary part of 0.

    >>> isreal(np.complex64([1, 2j]))
    Array([ True, False], dtype=bool)
    """
    part = imag(x)
    return lax.eq(part, scalar_like(part, 0))


def iscomplexobj(x: Any) -> bool:
    """Whether ``x`` is a complex number, or an array of a complex dtype whatever its elements are.

    >>> iscomplexobj(np.complex64(1))
    True
    """
    if isinstance(x, Array):
        return dtypes.is_complex(x.aval.dtype)
    return bool(np.iscomplexobj(x)) if isinstance(x, (complex, np.ndarray, np.generic, list, tuple)) else False


def isrealobj(x: Any) -> bool:
    """Whether ``x`` is no complex number or array.

    >>> isrealobj(np.float32(1))
    True
    """
    return not iscomplexobj(x)


def sort_complex(a: ArrayLike) -> Array:
    """``a`` along its last axis in complex numbers, ordered by the real part, then by the imaginary one.

    >>> sort_complex(np.float32([2, 1]))
    Array([1.+0.j, 2.+0.j], dtype=complex64)
    """
    dtype = dtypes.complex_dtype(dtypes.to_float(aval_of("sort_complex", a).dtype))
    return sorting.sort(convert(as_value(a), dtype))


def viewed(x: Array, dtype: np.dtype) -> Array:
    """Complex numbers as their parts, one after the other along the last axis; or such parts as complex numbers."""
    shape = x.aval.shape
    apart = dtypes.is_complex(x.aval.dtype)
    fits = dtypes.part_dtype(x.aval.dtype if apart else dtype) == (dtype if apart else x.aval.dtype)
    if not fits or not shape or (not apart and shape[-1] % 2):
        text = (
            f"view: {x.aval.short()} is not viewed as {dtype}: a complex dtype's parts, two a number, are of one axis"
        )
        raise DTypeError(at_user_line(text))
    if apart:
        parts = [lax.expand_dims(part, (len(shape),)) for part in (lax.real(x), lax.imag(x))]
        return lax.reshape(lax.concatenate(parts, len(shape)), (*shape[:-1], 2 * shape[-1]))
    pairs = lax.reshape(x, (*shape[:-1], shape[-1] // 2, 2))
    return lax.complex(*(lax.index_in_dim(pairs, k, len(shape), False) for k in (0, 1)))
