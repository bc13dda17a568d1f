"""Elementwise functions of one array, and casting."""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import ShapedArray
from volta.core.floats import standard
from volta.core.source import at_user_line
from volta.numpy.placing import lying
from volta.numpy.promotion import as_value, aval_of, convert, number_of, promote_floats, scalar_like, zero_like
from volta.ops import lax

F = TypeVar("F", bound=Callable[..., Any])
ComplexWarning = np.exceptions.ComplexWarning


def _document(name: str, f: F, doc: str) -> F:
    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    f.__module__ = __name__
    return f


def _float_unary(name: str, primitive: Callable[[Any], Array], what: str) -> Callable[[ArrayLike], Array]:
    """A function that computes in floats: integers and booleans become float32 first."""

    def f(x: ArrayLike) -> Array:
        return primitive(promote_floats(name, x)[0])

    return _document(name, f, f"{what}, element by element. Integers become float32; the shape stays.")


exp = _float_unary("exp", lax.exp, "e to the power ``x``")
exp2 = _float_unary("exp2", lax.exp2, "2 to the power ``x``")
expm1 = _float_unary("expm1", lax.expm1, "exp(x) - 1, exact near 0")
log = _float_unary("log", lax.log, "Natural logarithm")
log2 = _float_unary("log2", lax.log2, "Base-2 logarithm")
log10 = _float_unary("log10", lax.log10, "Base-10 logarithm")
log1p = _float_unary("log1p", lax.log1p, "log(1 + x), exact near 0")
sin = _float_unary("sin", lax.sin, "Sine")
cos = _float_unary("cos", lax.cos, "Cosine")
tan = _float_unary("tan", lax.tan, "Tangent")
arcsin = _float_unary("arcsin", lax.asin, "Inverse sine")
arccos = _float_unary("arccos", lax.acos, "Inverse cosine")
arctan = _float_unary("arctan", lax.atan, "Inverse tangent")
sinh = _float_unary("sinh", lax.sinh, "Hyperbolic sine")
cosh = _float_unary("cosh", lax.cosh, "Hyperbolic cosine")
tanh = _float_unary("tanh", lax.tanh, "Hyperbolic tangent")
arcsinh = _float_unary("arcsinh", lax.asinh, "Inverse hyperbolic sine")
arccosh = _float_unary("arccosh", lax.acosh, "Inverse hyperbolic cosine")
arctanh = _float_unary("arctanh", lax.atanh, "Inverse hyperbolic tangent")
sqrt = _float_unary("sqrt", lax.sqrt, "Square root")
cbrt = _float_unary("cbrt", lax.cbrt, "Cube root")
asin, acos, atan, asinh, acosh, atanh = arcsin, arccos, arctan, arcsinh, arccosh, arctanh


def _rounding(name: str, primitive: Callable[[Any], Array], what: str) -> Callable[[ArrayLike], Array]:
    def f(x: ArrayLike) -> Array:
        return primitive(as_value(x)) if dtypes.is_inexact(number_of(name, x).dtype) else as_value(x)

    return _document(name, f, f"{what}, element by element. Integers stay as they are; dtype and shape stay.")


floor = _rounding("floor", lax.floor, "The largest integer not above ``x``")
ceil = _rounding("ceil", lax.ceil, "The smallest integer not below ``x``")
trunc = _rounding("trunc", lax.trunc, "The integer part, towards 0")


def rint(x: ArrayLike) -> Array:
    """The nearest integer, halves to even, as a float; of complex numbers for each part."""
    return round(promote_floats("rint", x)[0])


fix = trunc


def of_parts(function: Callable[[Array], Array], x: ArrayLike) -> Array:
    """A function of the real and of the imaginary part."""
    x = as_value(x)
    return lax.complex(function(lax.real(x)), function(lax.imag(x)))


def round(a: ArrayLike, decimals: int = 0) -> Array:
    """Round to ``decimals`` decimal places, halves to even.

    >>> volta.numpy.round(volta.numpy.array([0.5, 1.5, 2.5]))
    Array([0., 2., 2.], dtype=float32)
    """
    dtype = number_of("round", a).dtype
    if dtypes.is_complex(dtype):
        return of_parts(lambda part: round(part, decimals), a)
    if not dtypes.is_float(dtype):
        if decimals >= 0:
            return as_value(a)
        unit = 10**-decimals
        return convert(lax.round(lax.div(convert(a, dtypes.float64), np.float64(unit))), dtype) * dtype.type(unit)
    a = as_value(a)
    if decimals == 0:
        return lax.round(a)
    scale = scalar_like(a, 10.0 ** builtins.abs(decimals))
    if decimals > 0:
        return lax.div(lax.round(lax.mul(a, scale)), scale)
    return lax.mul(lax.round(lax.div(a, scale)), scale)


around = round


def negative(x: ArrayLike) -> Array:
    """``-x``. Booleans are refused, as in NumPy."""
    aval_of("negative", x)
    return lax.neg(as_value(x))


def positive(x: ArrayLike) -> Array:
    """``+x``: the array itself."""
    aval_of("positive", x)
    return as_value(x)


def absolute(x: ArrayLike) -> Array:
    """Absolute value; unsigned integers and booleans stay as they are."""
    dtype = aval_of("absolute", x).dtype
    x = as_value(x)
    return x if dtypes.is_unsigned(dtype) or dtype == dtypes.bool_ else lax.abs(x)


abs = absolute


def fabs(x: ArrayLike) -> Array:
    """Absolute value as a float."""
    return lax.abs(promote_floats("fabs", x)[0])


def sign(x: ArrayLike) -> Array:
    """-1, 0 or 1; NaN stays NaN, and of -0 the sign is 0."""
    floats = dtypes.is_inexact(aval_of("sign", x).dtype)
    out = lax.sign(as_value(x))
    return lax.add(out, scalar_like(out, 0.0)) if floats else out  # -0 + 0 is +0


def square(x: ArrayLike) -> Array:
    """``x * x``."""
    aval_of("square", x)
    return lax.integer_pow(as_value(x), 2)


def reciprocal(x: ArrayLike) -> Array:
    """``1 / x`` in floats."""
    return lax.integer_pow(promote_floats("reciprocal", x)[0], -1)


@standard
def deg2rad(x: ArrayLike) -> Array:
    """Degrees to radians."""
    x = promote_floats("deg2rad", x)[0]
    return lax.mul(x, scalar_like(x, math.pi / 180))


@standard
def rad2deg(x: ArrayLike) -> Array:
    """Radians to degrees."""
    x = promote_floats("rad2deg", x)[0]
    return lax.mul(x, scalar_like(x, 180 / math.pi))


radians, degrees = deg2rad, rad2deg


def _constant(like: ShapedArray, value: bool) -> Array:
    """The same of each element, weak where ``like`` is, as a comparison would give it."""
    out = lax.full(like.shape, value, dtypes.bool_)
    return as_value(lax.convert_element_type(out, dtypes.bool_, weak_type=like.weak_type))


def isfinite(x: ArrayLike) -> Array:
    """True where ``x`` is neither infinite nor NaN; integers are always finite."""
    aval = aval_of("isfinite", x)
    return lax.is_finite(x) if dtypes.is_inexact(aval.dtype) else _constant(aval, True)


def isnan(x: ArrayLike) -> Array:
    """True where ``x`` is NaN."""
    aval = aval_of("isnan", x)
    return lax.ne(x, x) if dtypes.is_inexact(aval.dtype) else _constant(aval, False)


def isinf(x: ArrayLike) -> Array:
    """True where ``x`` is infinite."""
    aval = aval_of("isinf", x)
    if not dtypes.is_inexact(aval.dtype):
        return _constant(aval, False)
    return lax.eq(lax.abs(x), dtypes.part_dtype(aval.dtype).type(np.inf))


def isposinf(x: ArrayLike) -> Array:
    """True where ``x`` is +infinity."""
    x = promote_floats("isposinf", x)[0]
    return lax.eq(x, aval_of("isposinf", x).dtype.type(np.inf))


def isneginf(x: ArrayLike) -> Array:
    """True where ``x`` is -infinity."""
    x = promote_floats("isneginf", x)[0]
    return lax.eq(x, aval_of("isneginf", x).dtype.type(-np.inf))


_SAME_SIZE_INT = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


def signbit(x: ArrayLike) -> Array:
    """True where the sign bit is set: negative numbers and -0.0. A NaN counts as positive."""
    aval = number_of("signbit", x)
    if not (dtypes.is_float(aval.dtype) or dtypes.is_signed(aval.dtype)):
        return _constant(aval, False)
    if dtypes.is_float(aval.dtype):
        x = lax.bitcast_convert_type(x, _SAME_SIZE_INT[aval.dtype.itemsize])
    return lax.lt(x, zero_like(x))


def nan_to_num(x: ArrayLike, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Array:
    """Replace NaN by ``nan`` and infinities by ``posinf`` and ``neginf`` (the dtype's largest finite numbers).

    ``copy`` is accepted for NumPy's sake: arrays are immutable.
    """
    dtype = aval_of("nan_to_num", x).dtype
    if dtypes.is_complex(dtype):
        return of_parts(lambda part: nan_to_num(part, copy, nan, posinf, neginf), x)
    if not dtypes.is_float(dtype):
        return as_value(x)
    x, limits = as_value(x), dtypes.finfo(dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    x = lax.select_n(isnan(x), x, convert(nan, dtype))
    x = lax.select_n(lax.eq(x, dtype.type(np.inf)), x, convert(high, dtype))
    return lax.select_n(lax.eq(x, dtype.type(-np.inf)), x, convert(low, dtype))


def invert(x: ArrayLike) -> Array:
    """Bitwise not; logical not for booleans."""
    return lax.bitwise_not(as_value(x))


bitwise_not = bitwise_invert = invert


def bitwise_count(x: ArrayLike) -> Array:
    """The number of 1 bits of ``abs(x)``, as uint8."""
    return lax.convert_element_type(lax.population_count(absolute(x)), dtypes.uint8)


def to_bool(name: str, x: ArrayLike) -> Array:
    """``x != 0``, or ``x`` itself when it is boolean."""
    dtype = aval_of(name, x).dtype
    return x if dtype == dtypes.bool_ else lax.ne(x, zero_like(x))


def logical_not(x: ArrayLike) -> Array:
    """True where ``x`` is zero."""
    return lax.bitwise_not(to_bool("logical_not", x))


def modf(x: ArrayLike) -> tuple[Array, Array]:
    """The fractional and the integer part, both with the sign of ``x``."""
    x = promote_floats("modf", x)[0]
    whole = lax.trunc(x)
    infinite = isinf(x)
    return lax.select_n(infinite, lax.sub(x, whole), scalar_like(x, 0.0)), whole


def astype(x: ArrayLike, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    """``x`` cast to ``dtype``. Float to integer truncates and saturates (NaN becomes 0); to bool means ``x != 0``.

    ``copy`` is accepted for the array API's sake: arrays are immutable. ``device`` is where the result is to lie.

    >>> volta.numpy.astype(volta.numpy.array([1.5, -2.5]), 'int32')
    Array([ 1, -2], dtype=int32)
    """
    aval, dtype = aval_of("astype", x), dtypes.canonicalize(dtype)
    if aval.dtype == dtype and not aval.weak_type:
        return lying(as_value(x), device)
    if dtype == dtypes.bool_ and aval.dtype != dtype:
        return lying(lax.ne(x, zero_like(x)), device)
    if dtypes.is_complex(aval.dtype) and not dtypes.is_complex(dtype):
        text = at_user_line(f"astype: the imaginary part is dropped where {aval.dtype} becomes {dtype}: say x.real")
        warnings.warn(text, ComplexWarning, stacklevel=2)
    return lying(lax.convert_element_type(x, dtype, weak_type=False), device)
