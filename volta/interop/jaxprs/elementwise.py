"""Operations on single elements, under JAX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta import lax
from volta.core import dtypes
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops.base import dtype_of, shape_of
from volta.scipy import special

_SAME_NAME = """
abs acos acosh add asin asinh atan atan2 atanh cbrt ceil clamp clz copy cos cosh digamma div eq erf erf_inv erfc exp
exp2 expm1 floor ge gt is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter population_count rem rsqrt
shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
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


RULES: dict[str, Rule] = {
    **{name: plain(getattr(lax, name)) for name in _SAME_NAME},
    **{name: plain(getattr(lax, own)) for name, own in _OTHER_NAME.items()},
    **{name: plain(getattr(special, own)) for name, own in _SPECIAL.items() if own in special.__all__},
    "bitcast_convert_type": lambda e, x: lax.bitcast_convert_type(x, e.outs[0].dtype),
    "convert_element_type": lambda e, x: lax.convert_element_type(x, e.outs[0].dtype),
    "integer_pow": lambda e, x: lax.integer_pow(x, e.params["y"]),
    "pow": _pow,
    "reduce_precision": _reduce_precision,
    "select_n": _select_n,
    "round": lambda e, x: lax.round(x, lax.RoundingMethod(int(e.params["rounding_method"]))),
}
