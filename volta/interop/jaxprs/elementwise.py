"""Operations on single elements, under JAX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta import lax
from volta.core import dtypes
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops.base import dtype_of, shape_of
from volta.scipy import special
from volta.trace.composite import with_partials

_SAME_NAME = """
abs acos acosh add asin asinh atan atan2 atanh cbrt ceil clamp clz complex conj copy cos cosh digamma div eq erf
erf_inv erfc exp exp2 expm1 floor ge gt imag is_finite le lgamma log log1p log2 logistic lt max min mul ne neg nextafter
population_count real rem rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square
stop_gradient sub tan tanh
""".split()

_OTHER_NAME = {
    "add_any": "add", "add_jaxvals": "add", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "not": "bitwise_not", "copy_p": "copy",
}  # fmt: skip

_SPECIAL = {
    "bessel_i0e": "i0e", "bessel_i1e": "i1e", "igamma": "gammainc", "igammac": "gammaincc", "polygamma": "polygamma",
    "regularized_incomplete_beta": "betainc", "zeta": "zeta",
}  # fmt: skip
"""Functions that JAX has as primitives and Volta in ``scipy.special``, where it has them."""


def plain(function: Callable[..., Any]) -> Rule:
    """The rule of an operation without params. To JAX an axis of size 1 is as good as one of its partners' size."""

    def rule(equation: Equation, *values: Any) -> Any:
        shape = equation.outs[0].shape
        return function(*(x if shape_of(x) in (shape, ()) else _spread(x, shape) for x in values))

    return rule


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(x, shape, range(len(shape)))


def _pow(equation: Equation, x: Any, y: Any) -> Any:
    whole = dtypes.is_integer(dtype_of(y)) and not dtypes.is_integer(dtype_of(x))
    if whole:
        return plain(lax.pow_int)(equation, x, lax.convert_element_type(y, dtypes.int64))
    return plain(lax.pow)(equation, x, y)


def _select_n(equation: Equation, which: Any, *cases: Any) -> Any:
    """``cases[which]``, element by element; of more than two cases ``which`` is a number."""
    select = plain(lambda test, yes, no: lax.select_n(test, no, yes))
    if dtype_of(which) == dtypes.bool_:
        return plain(lax.select_n)(equation, which, *cases)
    out = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        out = select(equation, lax.le(which, i), cases[i], out)
    return out


_HALVES = {(8, 7): dtypes.bfloat16, (5, 10): dtypes.float16, (8, 23): dtypes.float32, (11, 52): dtypes.float64}
"""The dtypes of so many bits of exponent and mantissa."""


def _reduce_precision(equation: Equation, x: Any) -> Any:
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    if bits not in _HALVES:
        raise NotImplementedError(f"to {bits} bits of exponent and mantissa; dtypes have {list(_HALVES)}")
    return lax.convert_element_type(lax.convert_element_type(x, _HALVES[bits]), dtype_of(x))


def _conj(equation: Equation, x: Any) -> Any:
    """Of a real number it is the number as a complex one."""
    return lax.conj(x) if dtypes.is_complex(dtype_of(x)) else lax.convert_element_type(x, equation.outs[0].dtype)


@with_partials(lambda t, ans, x: lax.mul(lax.mul(t, -2), x))
def _one_minus_square(x: Any) -> Any:
    """1 - x², which keeps its digits near 1, and whose derivative keeps its own near 0."""
    return lax.mul(lax.add(1, x), lax.sub(1, x))


def _total(compare: Callable[..., Any]) -> Rule:
    """A comparison of floats by the order of their bits, from -NaN over -0 and 0 to NaN."""

    def place(x: Any) -> Any:
        if not dtypes.is_float(dtype_of(x)):
            return x
        bits = 8 * dtype_of(x).itemsize
        whole = lax.bitcast_convert_type(x, np.dtype(f"int{bits}"))
        signs = lax.shift_right_arithmetic(whole, np.asarray(bits - 1, whole.dtype))
        return lax.bitwise_xor(whole, lax.shift_right_logical(signs, np.asarray(1, whole.dtype)))

    return plain(lambda x, y: compare(place(x), place(y)))


def _mulhi(x: Any, y: Any) -> Any:
    """The upper half of the bits of a product of integers."""
    dtype, bits = dtype_of(x), 8 * dtype_of(x).itemsize
    if bits == 64:
        return _mulhi64(x, y)
    wide = np.dtype(f"{'u' if dtypes.is_unsigned(dtype) else ''}int{2 * bits}")
    product = lax.mul(lax.convert_element_type(x, wide), lax.convert_element_type(y, wide))
    return lax.convert_element_type(lax.shift_right_logical(product, np.asarray(bits, wide)), dtype)


def _mulhi64(x: Any, y: Any) -> Any:
    """By halves; the upper half of a signed product is the unsigned one's, less what a sign bit counts for."""
    dtype, unsigned = dtype_of(x), np.dtype("uint64")
    a, b = (lax.convert_element_type(v, unsigned) for v in (x, y))
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    (a0, b0), (a1, b1) = [lax.bitwise_and(v, low) for v in (a, b)], [lax.shift_right_logical(v, half) for v in (a, b)]
    one = lax.add(lax.mul(a1, b0), lax.shift_right_logical(lax.mul(a0, b0), half))
    two = lax.add(lax.mul(a0, b1), lax.bitwise_and(one, low))
    high = lax.add(lax.mul(a1, b1), lax.add(*(lax.shift_right_logical(v, half) for v in (one, two))))
    if dtype == unsigned:
        return high
    zero = np.uint64(0)
    for sign, other in ((x, b), (y, a)):
        high = lax.sub(high, lax.select_n(lax.lt(sign, np.int64(0)), lax.full_like(other, zero), other))
    return lax.convert_element_type(high, dtype)


RULES: dict[str, Rule] = {
    **{name: plain(getattr(lax, name)) for name in _SAME_NAME},
    **{name: plain(getattr(lax, own)) for name, own in _OTHER_NAME.items()},
    **{name: plain(getattr(special, own)) for name, own in _SPECIAL.items() if own in special.__all__},
    "bitcast_convert_type": lambda e, x: lax.bitcast_convert_type(x, e.outs[0].dtype),
    "conj": _conj,
    "convert_element_type": lambda e, x: lax.convert_element_type(x, e.outs[0].dtype),
    "eq_to": _total(lax.eq),
    "integer_pow": lambda e, x: lax.integer_pow(x, e.params["y"]),
    "le_to": _total(lax.le),
    "lt_to": _total(lax.lt),
    "mulhi": plain(_mulhi),
    "one_minus_square": lambda e, x: _one_minus_square(x),
    "pow": _pow,
    "reduce_precision": _reduce_precision,
    "select_n": _select_n,
    "round": lambda e, x: lax.round(x, lax.RoundingMethod(int(e.params["rounding_method"]))),
}
