"""Complex arithmetic: parts, the four operations, sizes, comparisons, conversions."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.interp import get_aval
from volta.ops import base
from volta.ops.arithmetic import (
    abs,
    add,
    bitwise_and,
    bitwise_or,
    div,
    eq,
    fma,
    ge,
    is_finite,
    le,
    lt,
    max,
    mul,
    ne,
    neg,
    sub,
)
from volta.ops.complexes.pair import Pair, by_parts, means
from volta.ops.selection import convert_element_type, select
from volta.ops.transcendental import sqrt

by_parts("neg", "add", "sub", "copy", "stop_gradient")

# -- parts -------------------------------------------------------------------------------------------------------------


@means("complex")
def _complex(x: Any, y: Any) -> Pair:
    shape = base.shape_of(x) or base.shape_of(y)
    return Pair(base.spread(x, shape), base.spread(y, shape))


@means("real")
def _real(z: Pair) -> Any:
    return z.re


@means("imag")
def _imag(z: Pair) -> Any:
    return z.im


@means("conj")
def conjugate(z: Pair) -> Pair:
    return Pair(z.re, neg(z.im))


@means("select_n")
def chosen(which: Any, *cases: Pair) -> Pair:
    return Pair(*(base.bind_named("select_n", which, *(getattr(c, part) for c in cases)) for part in ("re", "im")))


@means("convert_element_type")
def _convert(z: Any, *, new_dtype: np.dtype, weak_type: bool) -> Any:
    part = dtypes.part_dtype(new_dtype)
    if not dtypes.is_complex(new_dtype):
        x = bitwise_or(ne(z.re, 0.0), ne(z.im, 0.0)) if new_dtype == dtypes.bool_ else z.re
        return convert_element_type(x, new_dtype, weak_type)
    if isinstance(z, Pair):
        return Pair(*(convert_element_type(x, part, weak_type) for x in (z.re, z.im)))
    re = convert_element_type(z, part, weak_type)
    return Pair(re, base.fill(base.shape_of(re), 0, part))


# -- products and quotients --------------------------------------------------------------------------------------------


@means("mul")
def product(x: Pair, y: Pair) -> Pair:
    """(a + bi)(c + di) = (a c - b d) + (a d + b c) i, each product and sum rounded: so z conj(z) is real."""
    re = sub(mul(x.re, y.re), mul(x.im, y.im))
    return Pair(re, add(mul(x.re, y.im), mul(x.im, y.re)))


@means("fma")
def _fused(x: Pair, y: Pair, z: Pair) -> Pair:
    """z + x y, each part by two fused products: first that with x's real part."""
    re = fma(neg(x.im), y.im, fma(x.re, y.re, z.re))
    return Pair(re, fma(x.im, y.re, fma(x.re, y.im, z.im)))


@means("div")
def quotient(x: Pair, y: Pair) -> Pair:
    """Smith's: the divisor's smaller part over its larger one is a factor of both sides. complex64 is computed in
    float64, where nothing overflows, and rounded once; complex128 is scaled by powers of two before (Baudin, Smith)."""
    dtype = base.dtype_of(x.re)
    x, y = in_float64(x, y)
    if dtype == dtypes.float32:
        return rounded(_smith(x, y), dtype)
    (x, up), (y, down) = moderate(x), moderate(y)
    z, undo = _smith(x, y), div(down, up)
    return Pair(mul(z.re, undo), mul(z.im, undo))


def _smith(x: Pair, y: Pair) -> Pair:
    flat = ge(abs(y.re), abs(y.im))
    large, small = select(flat, y.re, y.im), select(flat, y.im, y.re)
    ratio = div(small, large)
    below = add(large, mul(small, ratio))
    a, b = select(flat, x.re, x.im), select(flat, x.im, x.re)
    re = div(add(a, mul(b, ratio)), below)
    im = div(select(flat, sub(b, mul(a, ratio)), sub(mul(a, ratio), b)), below)
    zero = bitwise_and(eq(y.re, 0.0), eq(y.im, 0.0))  # what is divided by 0 is infinite, or NaN, part by part
    return Pair(select(zero, div(x.re, abs(y.re)), re), select(zero, div(x.im, abs(y.re)), im))


def moderate(z: Pair) -> tuple[Pair, Any]:
    """float64: z times a power of two, so that a few products of its parts neither overflow nor vanish; the power."""
    most = max(abs(z.re), abs(z.im))
    usual = base.scalar_like(1.0, get_aval(most))
    factor = select(ge(most, 2.0**1022), 0.25, select(le(most, 2.0**-968), 2.0**106, usual))
    return Pair(mul(z.re, factor), mul(z.im, factor)), factor


def in_float64(*zs: Pair) -> list[Pair]:
    """Operands with parts of float64, in which functions of complex64 are computed."""
    return [rounded(z, dtypes.float64) for z in zs]


def rounded(z: Pair, dtype: np.dtype) -> Pair:
    """With parts of another dtype."""
    return Pair(*(convert_element_type(x, dtype) for x in (z.re, z.im)))


@means("integer_pow")
def integer_power(z: Pair, *, y: int) -> Pair:
    """The products of ``integer_pow`` of floats."""
    total, square, left = None, z, builtins.abs(y)
    while left:
        if left & 1:
            total = square if total is None else product(total, square)
        left >>= 1
        square = product(square, square) if left else square
    one = constant_like(z, 1.0)
    total = one if total is None else total
    return quotient(one, total) if y < 0 else total


def constant_like(z: Pair, re: float, im: float = 0.0) -> Pair:
    """A number in the place of each of z's."""
    return Pair(*(base.fill(z.shape, x, base.dtype_of(z.re)) for x in (re, im)))


# -- sizes -------------------------------------------------------------------------------------------------------------


def length(x: Any, y: Any) -> Any:
    """float64: the root of x x + y y, scaled by powers of two against overflow; infinite where a part is."""
    x, y = abs(x), abs(y)
    most = max(x, y)
    usual = base.scalar_like(1.0, get_aval(most))
    up, down = ge(most, 2.0**510), lt(most, 2.0**-400)
    factor = select(up, 2.0**-600, select(down, 2.0**600, usual))
    undo = select(up, 2.0**600, select(down, 2.0**-600, usual))
    return select(_one_infinite(x, y), math.inf, mul(_root(mul(x, factor), mul(y, factor)), undo))


def _root(x: Any, y: Any) -> Any:
    return sqrt(add(mul(x, x), mul(y, y)))


def _one_infinite(x: Any, y: Any) -> Any:
    return bitwise_or(eq(x, math.inf), eq(y, math.inf))


@means("abs")
def size(z: Pair) -> Any:
    """Of complex64 the root in float64, rounded once."""
    if base.dtype_of(z.re) == dtypes.float64:
        return length(z.re, z.im)
    (wide,) = in_float64(z)
    x, y = abs(wide.re), abs(wide.im)
    return convert_element_type(select(_one_infinite(x, y), math.inf, _root(x, y)), base.dtype_of(z.re))


@means("sign")
def direction(z: Pair) -> Pair:
    """z / |z|, and 0 where z is 0."""
    dtype = base.dtype_of(z.re)
    (wide,) = in_float64(z)
    wide, _ = moderate(wide)
    n = length(wide.re, wide.im)
    zero = eq(n, 0.0)
    n = select(zero, 1.0, n)
    out = Pair(div(wide.re, n), div(wide.im, n))
    return rounded(Pair(select(zero, wide.re, out.re), select(zero, wide.im, out.im)), dtype)


# -- comparisons -------------------------------------------------------------------------------------------------------


@means("eq")
def _equal(x: Pair, y: Pair) -> Any:
    return bitwise_and(eq(x.re, y.re), eq(x.im, y.im))


@means("ne")
def _not_equal(x: Pair, y: Pair) -> Any:
    return bitwise_or(ne(x.re, y.re), ne(x.im, y.im))


@means("is_finite")
def _is_finite(z: Pair) -> Any:
    return bitwise_and(is_finite(z.re), is_finite(z.im))
