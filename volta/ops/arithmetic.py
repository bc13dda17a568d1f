"""Arithmetic, comparison, logic and rounding: elementwise primitives that are exact or correctly rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError
from volta.core.interp import bind, get_aval
from volta.core.source import at_user_line
from volta.ops import base, scalar
from volta.ops.elementwise import ANY, BITS, COMPLEX, NUMBER, Function, elementwise
from volta.ops.primitive import FUNCTION, REGISTRY
from volta.ops.selection import convert_element_type, select

__all__ = [
    "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clz", "complex",
    "conj", "copy", "div", "eq", "floor", "fma", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lt", "max",
    "min", "mul", "ne", "neg", "nextafter", "population_count", "real", "reciprocal", "rem", "round", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "square", "stop_gradient", "sub", "trunc",
]  # fmt: skip

_STEPS = "piecewise constant"
_DISCRETE = "integers and booleans have no derivative"

# -- rounding and signs ------------------------------------------------------------------------------------------------

neg: Function = elementwise(
    "neg", "Elementwise negation.", lambda t, ans, x: neg(t), kinds=NUMBER, transposed=(lambda ct, x: neg(ct),)
)


def _sign_partial(t: Any, ans: Any, x: Any) -> Any:
    """0; of a complex number z / |z| turns with it: the part of the tangent across z, over |z|."""
    if not dtypes.is_complex(base.dtype_of(x)):
        return base.zero_like(ans)
    size = abs(x)
    across = imag(mul(t, conj(ans)))
    return mul(mul(ans, 1j), convert_element_type(div(across, _no_zero(size)), base.dtype_of(ans)))


def _no_zero(x: Any) -> Any:
    return select(eq(x, 0.0), base.scalar_like(1.0, get_aval(x)), x)


sign: Function = elementwise(
    "sign", "Elementwise sign: -1, 0 or 1 (NaN for NaN); of complex numbers x / abs(x).", _sign_partial, kinds=NUMBER
)
floor = elementwise("floor", "Elementwise largest integer not above.", zero=_STEPS)
ceil = elementwise("ceil", "Elementwise smallest integer not below.", zero=_STEPS)
round = elementwise("round", "Elementwise nearest integer, halves to even.", zero=_STEPS)
trunc = elementwise("trunc", "Elementwise integer part.", zero=_STEPS)
is_finite = elementwise("is_finite", "Elementwise: neither infinite nor NaN.", zero=_STEPS, out_dtype=dtypes.bool_)


def _abs_partial(t: Any, ans: Any, x: Any) -> Any:
    if dtypes.is_complex(base.dtype_of(x)):
        return real(mul(t, conj(sign(x))))
    return mul(t, sign(x))


abs = elementwise(
    "abs", "Elementwise absolute value, that of complex numbers real.", _abs_partial, kinds=NUMBER,
    out_dtype=dtypes.part_dtype,
)  # fmt: skip
copy = elementwise(
    "copy",
    "Elementwise identity.",
    lambda t, ans, x: t,
    kinds=ANY,
    of_keys=True,
    transposed=(lambda ct, x: ct,),
    emit=lambda b, x: x,
)
stop_gradient = elementwise(
    "stop_gradient",
    "Elementwise identity whose derivative is taken as zero.",
    kinds=ANY,
    of_keys=True,
    zero="asked for",
    emit=lambda b, x: x,
)

# -- complex numbers and their parts -----------------------------------------------------------------------------------


def _of_a_pair(b: Any, *values: Any) -> Any:
    raise NotImplementedError("complex values are pairs of real ones before kernels are written")


def _complex_of_parts(dtype: np.dtype) -> np.dtype:
    if dtypes.part_dtype(dtypes.complex_dtype(dtype)) != dtype:
        raise DTypeError(
            at_user_line(f"complex: parts are float32 or float64, not {dtype}: use convert_element_type first.")
        )
    return dtypes.complex_dtype(dtype)


complex: Function = elementwise(
    "complex", "Elementwise complex number of a real and an imaginary part.",
    lambda t, ans, x, y: _complex_of(t, None), lambda t, ans, x, y: _complex_of(None, t),
    arity=2, out_dtype=_complex_of_parts, emit=_of_a_pair,
    transposed=(lambda ct, x, y: real(ct), lambda ct, x, y: neg(imag(ct))),
)  # fmt: skip


def _complex_of(x: Any, y: Any) -> Any:
    """A complex number of which one part is 0."""
    zero = base.fill((), 0, base.dtype_of(y if x is None else x))
    return complex(zero if x is None else x, zero if y is None else y)


real: Function = elementwise(
    "real", "Elementwise real part.", lambda t, ans, x: real(t), kinds=COMPLEX, out_dtype=dtypes.part_dtype,
    emit=_of_a_pair, transposed=(lambda ct, x: _complex_of(ct, None),),
)  # fmt: skip
imag: Function = elementwise(
    "imag", "Elementwise imaginary part.", lambda t, ans, x: imag(t), kinds=COMPLEX, out_dtype=dtypes.part_dtype,
    emit=_of_a_pair, transposed=(lambda ct, x: _complex_of(None, neg(ct)),),
)  # fmt: skip
conj: Function = elementwise(
    "conj", "Elementwise complex conjugate.", lambda t, ans, x: conj(t), kinds=COMPLEX, emit=_of_a_pair,
    transposed=(lambda ct, x: conj(ct),),
)  # fmt: skip

# -- the four operations and their fused form --------------------------------------------------------------------------

add = elementwise(
    "add", "Elementwise sum.", lambda t, ans, x, y: t, lambda t, ans, x, y: t,
    arity=2, kinds=NUMBER, transposed=(lambda ct, x, y: ct, lambda ct, x, y: ct),
)  # fmt: skip
sub = elementwise(
    "sub", "Elementwise difference.", lambda t, ans, x, y: t, lambda t, ans, x, y: neg(t),
    arity=2, kinds=NUMBER, transposed=(lambda ct, x, y: ct, lambda ct, x, y: neg(ct)),
)  # fmt: skip
mul: Function = elementwise(
    "mul", "Elementwise product.", lambda t, ans, x, y: mul(t, y), lambda t, ans, x, y: mul(x, t),
    arity=2, kinds=NUMBER, transposed=(lambda ct, x, y: mul(ct, y), lambda ct, x, y: mul(x, ct)),
)  # fmt: skip
div: Function = elementwise(
    "div", "Elementwise quotient; of integers, rounded towards zero.",
    lambda t, ans, x, y: div(t, y), lambda t, ans, x, y: mul(neg(t), div(ans, y)),
    arity=2, kinds=NUMBER, low=0.5, cost=3, transposed=(lambda ct, x, y: div(ct, y), None),
)  # fmt: skip
rem = elementwise(
    "rem", "Elementwise remainder with the sign of the dividend.",
    lambda t, ans, x, y: t, lambda t, ans, x, y: mul(neg(t), trunc(div(x, y))),
    arity=2, kinds=NUMBER, low=0.5, cost=FUNCTION,
)  # fmt: skip
fma = elementwise(
    "fma", "Elementwise x * y + z, rounded once.",
    lambda t, ans, x, y, z: mul(t, y), lambda t, ans, x, y, z: mul(x, t), lambda t, ans, x, y, z: t,
    arity=3,
    transposed=(lambda ct, x, y, z: mul(ct, y), lambda ct, x, y, z: mul(x, ct), lambda ct, x, y, z: ct),
)  # fmt: skip


def _winner(t: Any, ans: Any, winner: Any, other: Any) -> Any:
    """The share of an operand of max or min: all of it where it wins, half where both are equal."""
    half = select(eq(winner, other), base.scalar_like(0.5, get_aval(t)), base.scalar_like(1.0, get_aval(t)))
    return mul(t, select(eq(winner, ans), half, base.scalar_like(0.0, get_aval(t))))


max = elementwise(
    "max", "Elementwise larger value; NaN wins, and +0 is above -0.",
    lambda t, ans, x, y: _winner(t, ans, x, y), lambda t, ans, x, y: _winner(t, ans, y, x), arity=2, kinds=ANY,
)  # fmt: skip
min = elementwise(
    "min", "Elementwise smaller value; NaN wins, and -0 is below +0.",
    lambda t, ans, x, y: _winner(t, ans, x, y), lambda t, ans, x, y: _winner(t, ans, y, x), arity=2, kinds=ANY,
)  # fmt: skip
elementwise(
    "nextafter",
    "Elementwise next representable value after x in the direction of y: x and a step that is piecewise constant.",
    lambda t, ans, x, y, **params: t,
    None,
    arity=2,
    emit=lambda b, x, y, *, dtype: scalar.nextafter(b, x, y, dtype),
)


def nextafter(x1: Any, x2: Any) -> Any:
    """Elementwise next float of the operands' dtype after ``x1`` towards ``x2``; ``x2`` where they are equal.

    Operands have one shape, or rank 0, and one float dtype.

    Raises:
        ShapeError, DTypeError: for others.

    >>> lax.nextafter(np.float16(1), np.float16(2))
    Array(1.001, dtype=float16)
    """
    x1, x2 = base.aligned(base.operands("nextafter", x1, x2))
    return bind(
        REGISTRY["nextafter"], x1, x2, dtype=base.dtype_of(x1)
    )  # an element does not show that it is a half float


# -- comparisons -------------------------------------------------------------------------------------------------------


def _comparison(name: str, doc: str, of_keys: bool = False) -> Function:
    return elementwise(name, doc, arity=2, kinds=ANY, zero=_STEPS, out_dtype=dtypes.bool_, of_keys=of_keys)


eq = _comparison("eq", "Elementwise x == y.", of_keys=True)
ne = _comparison("ne", "Elementwise x != y.", of_keys=True)
lt = _comparison("lt", "Elementwise x < y.")
le = _comparison("le", "Elementwise x <= y.")
gt = _comparison("gt", "Elementwise x > y.")
ge = _comparison("ge", "Elementwise x >= y.")

# -- bits --------------------------------------------------------------------------------------------------------------

bitwise_and = elementwise(
    "and", "Elementwise and, of bits or booleans.", arity=2, kinds=BITS, zero=_DISCRETE, emit=scalar.bitwise_and
)
bitwise_or = elementwise(
    "or", "Elementwise or, of bits or booleans.", arity=2, kinds=BITS, zero=_DISCRETE, emit=scalar.bitwise_or
)
bitwise_xor = elementwise(
    "xor",
    "Elementwise exclusive or, of bits or booleans.",
    arity=2,
    kinds=BITS,
    zero=_DISCRETE,
    emit=scalar.bitwise_xor,
)
bitwise_not = elementwise(
    "not", "Elementwise not, of bits or booleans.", kinds=BITS, zero=_DISCRETE, emit=scalar.bitwise_not
)
population_count = elementwise("population_count", "Elementwise number of one bits.", kinds=("int",), zero=_DISCRETE)
clz = elementwise("clz", "Elementwise number of leading zero bits.", kinds=("int",), zero=_DISCRETE)


def _shift(name: str, doc: str) -> Function:
    return elementwise(name, doc, arity=2, kinds=("int",), low=0.0, high=7.0, zero=_DISCRETE)


shift_left = _shift("shift_left", "Elementwise x << y; 0 where y is not in [0, bits).")
shift_right_logical = _shift(
    "shift_right_logical", "Elementwise x >> y, filling with zeros; 0 where y is out of range."
)
shift_right_arithmetic = _shift("shift_right_arithmetic", "Elementwise x >> y, filling with the sign bit.")


# -- clamp and integer powers ------------------------------------------------------------------------------------------


def _zero_unless(condition: Any, t: Any) -> Any:
    return select(condition, t, base.scalar_like(0, get_aval(t)))


_clamp3 = elementwise(
    "clamp",
    "Elementwise min(max(x, low), high).",
    lambda t, ans, low, x, high: _zero_unless(bitwise_and(gt(low, x), lt(low, high)), t),
    lambda t, ans, low, x, high: _zero_unless(bitwise_and(gt(x, low), lt(x, high)), t),
    lambda t, ans, low, x, high: _zero_unless(lt(high, max(x, low)), t),
    arity=3,
    kinds=NUMBER,
)


def clamp(min: Any, x: Any, max: Any) -> Array:
    """``x`` limited to the interval from ``min`` to ``max`` (operands of one dtype; each of one shape, or rank 0).

    >>> lax.clamp(0.0, np.array([-1.0, 0.5, 3.0]), 1.0)
    Array([0. , 0.5, 1. ], dtype=float64)
    """
    return _clamp3(min, x, max)


def _integer_pow_partial(t: Any, ans: Any, x: Any, *, y: int) -> Any:
    if y == 0:
        return base.zero_like(ans)
    return mul(t, mul(base.scalar_like(y, get_aval(x)), integer_pow(x, y - 1)))


elementwise(
    "integer_pow", "Elementwise x to a static integer power.", _integer_pow_partial, kinds=NUMBER, low=0.3, high=2.0,
    emit=lambda b, x, *, y: scalar.integer_pow(b, x, y),
)  # fmt: skip


def integer_pow(x: Any, y: int) -> Array:
    """``x`` to the power of a static integer, by repeated multiplication; a negative ``y`` takes floats only.

    >>> lax.integer_pow(np.int32(3), 4)
    Array(81, dtype=int32)
    """
    if y == 1:
        return x
    return bind(REGISTRY["integer_pow"], x, y=int(y))


def square(x: Any) -> Array:
    """``x * x``.

    >>> lax.square(np.float32(3))
    Array(9., dtype=float32)
    """
    return integer_pow(x, 2)


def reciprocal(x: Any) -> Array:
    """``1 / x``.

    >>> lax.reciprocal(np.float32(4))
    Array(0.25, dtype=float32)
    """
    return div(1.0, x)
