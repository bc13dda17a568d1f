"""Elementwise functions of two arrays and more: arithmetic, comparison, logic, bits, choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError
from volta.core.source import at_user_line
from volta.numpy import reductions
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast,
    convert,
    float_operands,
    number_operands,
    operands,
    promote_dtypes,
    scalar_like,
    zero_like,
)
from volta.numpy.ufuncs import _document, isnan, signbit, to_bool
from volta.ops import lax

Rule = Callable[[str, Any, Any], list[Any]]
Binary = Callable[[ArrayLike, ArrayLike], Array]


def _is_bool(x: Any) -> bool:
    return aval_of("", x).dtype == dtypes.bool_


def _binary(name: str, primitive: Callable[..., Array], what: str, rule: Rule = operands) -> Binary:
    def f(x: ArrayLike, y: ArrayLike) -> Array:
        return primitive(*rule(name, x, y))

    text = f"{what}. Operands broadcast and are promoted to one dtype; Python numbers take the array's."
    return _document(name, f, text)


def add(x: ArrayLike, y: ArrayLike) -> Array:
    """``x + y``. Operands broadcast and are promoted to one dtype; for booleans it means ``or``.

    >>> volta.numpy.add(volta.numpy.array([1.0, 2.0]), 1)
    Array([2., 3.], dtype=float32)
    """
    x, y = operands("add", x, y)
    return lax.bitwise_or(x, y) if _is_bool(x) else lax.add(x, y)


def multiply(x: ArrayLike, y: ArrayLike) -> Array:
    """``x * y``. Operands broadcast and are promoted to one dtype; for booleans it means ``and``."""
    x, y = operands("multiply", x, y)
    return lax.bitwise_and(x, y) if _is_bool(x) else lax.mul(x, y)


subtract = _binary("subtract", lax.sub, "``x - y``", number_operands)
true_divide = _binary("divide", lax.div, "``x / y`` in floats", float_operands)
divide = true_divide
arctan2 = _binary("arctan2", lax.atan2, "The angle of the point (y, x)", float_operands)
atan2 = arctan2
maximum = _binary("maximum", lax.max, "The larger of two elements; NaN wins")
minimum = _binary("minimum", lax.min, "The smaller of two elements; NaN wins")
nextafter = _binary("nextafter", lax.nextafter, "The next float after ``x`` in the direction of ``y``", float_operands)
equal = _binary("equal", lax.eq, "``x == y``")
not_equal = _binary("not_equal", lax.ne, "``x != y``")
less = _binary("less", lax.lt, "``x < y``")
less_equal = _binary("less_equal", lax.le, "``x <= y``")
greater = _binary("greater", lax.gt, "``x > y``")
greater_equal = _binary("greater_equal", lax.ge, "``x >= y``")


def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The larger of two elements; a NaN loses to a number."""
    x1, x2 = operands("fmax", x1, x2)
    return lax.select_n(lax.bitwise_or(lax.gt(x1, x2), lax.ne(x2, x2)), x2, x1)


def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The smaller of two elements; a NaN loses to a number."""
    x1, x2 = operands("fmin", x1, x2)
    return lax.select_n(lax.bitwise_or(lax.lt(x1, x2), lax.ne(x2, x2)), x2, x1)


# -- parts of numbers --------------------------------------------------------------------------------------------------


def heaviside(x: ArrayLike, y: ArrayLike) -> Array:
    """0 where x < 0, ``y`` where x == 0, 1 where x > 0."""
    weak = all(aval_of("heaviside", v).weak_type for v in (x, y))
    x, y = float_operands("heaviside", x, y)
    zero = zero_like(x)
    step = lax.select_n(lax.lt(x, zero), lax.select_n(lax.gt(x, zero), x, scalar_like(x, 1.0)), zero)
    out = lax.select_n(lax.eq(x, zero), step, y)
    return lax.convert_element_type(out, dtypes.settled(out.dtype, out.weak_type), weak_type=weak)


def copysign(x: ArrayLike, y: ArrayLike) -> Array:
    """``abs(x)`` with the sign of ``y``; a NaN counts as positive."""
    x, y = float_operands("copysign", x, y)
    size = lax.abs(x)
    return lax.select_n(signbit(y), size, lax.neg(size))


def ldexp(x: ArrayLike, exponent: ArrayLike) -> Array:
    """``x * 2**exponent``, for an integer exponent."""
    x = float_operands("ldexp", x)[0]
    dtype = aval_of("ldexp", x).dtype
    if not dtypes.is_integer(aval_of("ldexp", exponent).dtype):
        raise DTypeError(at_user_line("ldexp: the exponent must be an integer"))
    # three factors, each a normal number, so that every result that exists is reached
    limit = {2: 14, 4: 126, 8: 1022}[dtype.itemsize] if dtype != dtypes.bfloat16 else 126
    left = convert(exponent, dtypes.int32)
    for _ in range(3):
        part = lax.clamp(np.int32(-limit), left, np.int32(limit))
        x = multiply(x, lax.exp2(lax.convert_element_type(part, dtype)))
        left = lax.sub(left, part)
    return x


# -- bits and logic ----------------------------------------------------------------------------------------------------


def _whole_operands(name: str, x: Any, y: Any) -> list[Any]:
    x, y = operands(name, x, y)
    if dtypes.is_inexact(dtype := aval_of(name, x).dtype):
        raise DTypeError(at_user_line(f"{name}: operands must be integers or booleans, not {dtype}"))
    return [x, y]


bitwise_and = _binary("bitwise_and", lax.bitwise_and, "``x & y``", _whole_operands)
bitwise_or = _binary("bitwise_or", lax.bitwise_or, "``x | y``", _whole_operands)
bitwise_xor = _binary("bitwise_xor", lax.bitwise_xor, "``x ^ y``", _whole_operands)
left_shift = _binary("left_shift", lax.shift_left, "``x << y``; shifting by the width or more gives 0", _whole_operands)
bitwise_left_shift = left_shift


def right_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """``x >> y``: arithmetic for signed integers, logical for unsigned ones."""
    x, y = _whole_operands("right_shift", x, y)
    signed = dtypes.is_signed(aval_of("right_shift", x).dtype)
    return lax.shift_right_arithmetic(x, y) if signed else lax.shift_right_logical(x, y)


bitwise_right_shift = right_shift


def _logical_operands(name: str, x: Any, y: Any) -> list[Any]:
    return broadcast(name, to_bool(name, x), to_bool(name, y))


logical_and = _binary("logical_and", lax.bitwise_and, "True where both are nonzero", _logical_operands)
logical_or = _binary("logical_or", lax.bitwise_or, "True where one is nonzero", _logical_operands)
logical_xor = _binary("logical_xor", lax.bitwise_xor, "True where exactly one is nonzero", _logical_operands)


# -- closeness ---------------------------------------------------------------------------------------------------------


def _every(x: Any) -> Array:
    """Whether all are true, as an answer about arrays: never weak."""
    return lax.convert_element_type(reductions.all(x), dtypes.bool_)


def isclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """True where ``abs(a - b) <= atol + rtol * abs(b)``, or where both are the same infinity."""
    a, b = operands("isclose", a, b)
    if _is_bool(a):
        return lax.eq(a, b)
    a, b = float_operands("isclose", a, b)
    size = lax.abs(b)
    bound = lax.add(lax.mul(size, scalar_like(size, rtol)), scalar_like(size, atol))
    near = lax.bitwise_and(lax.le(lax.abs(lax.sub(a, b)), bound), lax.is_finite(b))
    near = lax.bitwise_or(lax.eq(a, b), near)
    return lax.bitwise_or(near, lax.bitwise_and(isnan(a), isnan(b))) if equal_nan else near


def allclose(a: ArrayLike, b: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """Whether :func:`isclose` holds everywhere: a boolean scalar."""
    return _every(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Whether shapes and all elements are equal."""
    if aval_of("array_equal", a1).shape != aval_of("array_equal", a2).shape:
        return as_value(np.bool_(False))
    a1, a2 = operands("array_equal", a1, a2)
    same = lax.eq(a1, a2)
    if equal_nan and dtypes.is_inexact(aval_of("array_equal", a1).dtype):
        same = lax.bitwise_or(same, lax.bitwise_and(isnan(a1), isnan(a2)))
    return _every(same)


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Whether the arrays are equal after broadcasting; False where they do not broadcast."""
    try:
        np.broadcast_shapes(aval_of("array_equiv", a1).shape, aval_of("array_equiv", a2).shape)
    except ValueError:
        return as_value(np.bool_(False))
    return _every(equal(a1, a2))


# -- choice ------------------------------------------------------------------------------------------------------------


def where_three(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """``x`` where ``condition``, else ``y``; see :func:`volta.numpy.where`."""
    x, y = promote_dtypes("where", x, y)
    condition, x, y = broadcast("where", to_bool("where", condition), x, y)
    return lax.select_n(condition, y, x)


def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> Array:
    """The element of the first choice whose condition holds, else ``default``."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"select: {len(condlist)} conditions and {len(choicelist)} choices; give as many, at least one"
        )
    *choices, out = promote_dtypes("select", *choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        out = where_three(condition, choice, out)
    return out


def piecewise(x: ArrayLike, condlist: Sequence[ArrayLike], funclist: Sequence[Any], *args: Any, **kw: Any) -> Array:
    """Evaluate each function (or constant) of ``funclist`` on ``x`` where its condition holds; one more is the default.

    Where several conditions hold, the last one counts. Every function is evaluated everywhere and the result is
    selected, as tracing needs.
    """
    if not isinstance(condlist, (list, tuple)):
        own = aval_of("piecewise", condlist)
        rows = (
            own.shape[0] if own.ndim > aval_of("piecewise", x).ndim or own.shape != aval_of("piecewise", x).shape else 0
        )
        condlist = [lax.index_in_dim(condlist, i, 0, False) for i in range(rows)] if rows else [condlist]
    if len(funclist) not in (len(condlist), len(condlist) + 1):
        raise ValueError(
            f"piecewise: {len(condlist)} conditions need as many functions, or one more, not {len(funclist)}"
        )
    dtype = aval_of("piecewise", x).dtype
    values = [convert(f(x, *args, **kw) if callable(f) else f, dtype) for f in funclist]
    default = values.pop() if len(values) > len(condlist) else dtype.type(0)
    return select(condlist[::-1], values[::-1], default)


def clip(x: ArrayLike, min: Any = None, max: Any = None) -> Array:
    """``x`` limited to the interval from ``min`` to ``max``; None leaves a side open.

    >>> volta.numpy.clip(volta.numpy.array([-1.0, 0.5, 9.0]), 0, 1)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    if min is None and max is None:
        return as_value(x)
    if min is None or max is None:
        return minimum(x, max) if min is None else maximum(x, min)
    x, min, max = promote_dtypes("clip", x, min, max)
    return minimum(maximum(x, min), max)
