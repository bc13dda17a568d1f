"""Arithmetic, comparison, logic and rounding: elementwise primitives that are exact or correctly rounded."""

from __future__ import annotations

from typing import Any

from volta.core import dtypes
from volta.core.array import Array
from volta.core.interp import bind, get_aval
from volta.ops import base, scalar
from volta.ops.elementwise import ANY, BITS, NUMBER, Function, elementwise
from volta.ops.primitive import FUNCTION, REGISTRY
from volta.ops.selection import select

__all__ = [
    "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clz", "copy", "div",
    "eq", "floor", "fma", "ge", "gt", "integer_pow", "is_finite", "le", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "population_count", "reciprocal", "rem", "round", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "square", "stop_gradient", "sub", "trunc",
]  # fmt: skip

_STEPS = "piecewise constant"
_DISCRETE = "integers and booleans have no derivative"

# -- rounding and signs ------------------------------------------------------------------------------------------------

neg: Function = elementwise(
    "neg", "Elementwise negation.", lambda t, ans, x: neg(t), kinds=NUMBER, transposed=(lambda ct, x: neg(ct),)
)
sign = elementwise("sign", "Elementwise sign: -1, 0 or 1 (NaN for NaN).", kinds=NUMBER, zero=_STEPS)
floor = elementwise("floor", "Elementwise largest integer not above.", zero=_STEPS)
ceil = elementwise("ceil", "Elementwise smallest integer not below.", zero=_STEPS)
round = elementwise("round", "Elementwise nearest integer, halves to even.", zero=_STEPS)
trunc = elementwise("trunc", "Elementwise integer part.", zero=_STEPS)
is_finite = elementwise("is_finite", "Elementwise: neither infinite nor NaN.", zero=_STEPS, out_dtype=dtypes.bool_)
abs = elementwise("abs", "Elementwise absolute value.", lambda t, ans, x: mul(t, sign(x)), kinds=NUMBER)
copy = elementwise(
    "copy",
    "Elementwise identity.",
    lambda t, ans, x: t,
    kinds=ANY,
    transposed=(lambda ct, x: ct,),
    emit=lambda b, x: x,
)
stop_gradient = elementwise(
    "stop_gradient",
    "Elementwise identity whose derivative is taken as zero.",
    kinds=ANY,
    zero="asked for",
    emit=lambda b, x: x,
)

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


def nextafter(x: Any, y: Any) -> Any:
    """Elementwise next float of the operands' dtype after ``x`` in the direction of ``y``; ``y`` where they are equal.

    Operands have one shape, or rank 0, and one float dtype.

    Raises:
        ShapeError, DTypeError: for others.

    >>> lax.nextafter(np.float16(1), np.float16(2))
    Array(1.001, dtype=float16)
    """
    x, y = base.operands("nextafter", x, y)
    return bind(REGISTRY["nextafter"], x, y, dtype=base.dtype_of(x))  # an element does not show that it is a half float


# -- comparisons -------------------------------------------------------------------------------------------------------


def _comparison(name: str, doc: str) -> Function:
    return elementwise(name, doc, arity=2, kinds=ANY, zero=_STEPS, out_dtype=dtypes.bool_)


eq = _comparison("eq", "Elementwise x == y.")
ne = _comparison("ne", "Elementwise x != y.")
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
