"""sin, cos and tan over the whole range of their kinds.

The argument is reduced to r in [-pi/4, pi/4] (float32 sin and cos: [-pi/2, pi/2]) in float64 arithmetic; a large one
by multiplying with the bits of 2/pi that matter (Payne and Hanek), code that runs only if some lane needs it.
"""

from __future__ import annotations

from volta.ops.scalar import coefficients as table
from volta.ops.scalar.parts import (
    MAGIC64,
    NAN,
    Builder,
    Value,
    horner,
    magic_integer,
    narrow,
    quick_two_sum,
    small_integer_to_float64,
    two_product,
    two_sum,
    widen,
)

_PI_2, _PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17
# pi/2 in three parts of 33 bits, whose products with integers up to 2^20 are exact, and the rest.
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
_TWO_OVER_PI = 0.6366197723675814
# The bits of 2/pi after the binary point, preceded by a word of zeros.
_WORDS = (
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)  # fmt: skip
_LARGE32, _LARGE64 = 2.0**28, 2.0**20


def _reduce_large(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """float64, |x| >= 1: r, its rest, and q (int64, modulo 4) with x = (4k + q) pi/2 + r.

    x = m 2^E with a 53-bit integer m. A window of 192 bits of 2/pi from the bit worth 2^(1 - E) on, times m, modulo
    2^192, is 2^190 (x 2/pi modulo 4): what stands before the window adds multiples of 4, what follows it 2^-137.
    """
    bits = b.bitcast(abs(x), "uint64")
    m = (bits & 0x000FFFFFFFFFFFFF) | 0x0010000000000000
    start = b.max(b.bitcast(bits >> 52, "int64") - (1075 - 62), 0)
    index, shift = start >> 6, b.bitcast(start & 63, "uint64")
    words = [b.lookup(_WORDS, "uint64", index + k) for k in range(4)]
    w0, w1, w2 = (b.shl(words[k], shift) | b.shr_logical(words[k + 1], 64 - shift) for k in range(3))
    low = m * w2
    carried = b.mulhi(m, w2)
    middle = m * w1 + carried
    carry = b.cast(middle < carried, "uint64")
    high = m * w0 + b.mulhi(m, w1) + carry
    q = b.bitcast((high + (1 << 61)) >> 62, "int64")
    signed = b.bitcast(high, "int64") - (q << 62)

    def piece(word: Value, weight: int) -> Value:
        return small_integer_to_float64(b, b.bitcast(word, "int64")) * 2.0**weight

    total, rest = two_sum(b, piece(signed >> 32, 32 - 62), piece(signed & 0xFFFFFFFF, -62))
    for word, weight in ((middle >> 32, 32 - 126), (middle & 0xFFFFFFFF, -126), (low >> 32, 32 - 190)):
        total, error = two_sum(b, total, piece(word, weight))
        rest = rest + error
    total, rest = quick_two_sum(b, total, rest)
    r, error = two_product(b, total, b.const("float64", _PI_2))
    r_low = error + b.fma(total, _PI_2_LOW, rest * _PI_2)
    negative = x < 0.0
    return b.select(negative, -r, r), b.select(negative, -r_low, r_low), b.select(negative, -q, q)


def _reduce(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """float64: r, its rest, and q (int64, modulo 4) with x = (4k + q) pi/2 + r; of an infinite x r is NaN."""
    x = b.select(b.is_finite(x), x, NAN)
    large = abs(x) >= _LARGE64
    t = b.fma(x, _TWO_OVER_PI, MAGIC64)
    n = t - MAGIC64
    r, error = two_sum(b, b.fma(n, -_PARTS[0], x), n * -_PARTS[1])
    r, error2 = two_sum(b, r, n * -_PARTS[2])
    rest = b.fma(n, -_PARTS[3], error + error2)
    r, rest = quick_two_sum(b, r, rest)
    r, rest, q = b.rarely(large, _reduce_large, [x], [r, rest, magic_integer(b, t)])
    return r, rest, q


def _kernels(b: Builder, r: Value, rest: Value) -> tuple[Value, Value, Value, Value]:
    """float64, |r| <= pi/4: sin and cos of r + rest, each as a sum of two."""
    s = r * r
    half = s * 0.5
    sin_tail = b.fma(r * s, horner(b, s, table.SIN), rest * (1.0 - half))
    cos_head = 1.0 - half
    cos_tail = ((1.0 - cos_head) - half) + b.fma(s * s, horner(b, s, table.COS), -(r * rest))
    return r, sin_tail, cos_head, cos_tail


def _sin_wide(b: Builder, x: Value, quarters: int) -> Value:
    """float64: sin(x + quarters pi/2)."""
    r, rest, q = _reduce(b, x)
    sin_head, sin_tail, cos_head, cos_tail = _kernels(b, r, rest)
    q = q + quarters
    odd = (q & 1) != 0
    y = b.select(odd, cos_head, sin_head) + b.select(odd, cos_tail, sin_tail)
    return b.bitcast(b.bitcast(y, "int64") ^ ((q & 2) << 62), "float64")


def _sin_short(b: Builder, x: Value, quarters: int) -> Value:
    """float64 from float32: sin(x + quarters pi/2) with an error far below a float32 ULP, quarters 0 or 1."""
    wide = widen(b, x)
    # x + quarters pi/2 less the nearest multiple n of pi.
    if quarters:
        t = b.fma(wide, _TWO_OVER_PI * 0.5, 0.5) + MAGIC64
        k, step, step_low = b.fma(t - MAGIC64, 2.0, -1.0), _PI_2, _PI_2_LOW
    else:
        t = b.fma(wide, _TWO_OVER_PI * 0.5, MAGIC64)
        k, step, step_low = t - MAGIC64, 2.0 * _PI_2, 2.0 * _PI_2_LOW
    r = b.fma(k, -step_low, b.fma(k, -step, wide))
    sign = b.bitcast(t, "int64") << 63

    def reduce_large(b: Builder, x: Value) -> list[Value]:
        r, _, q = _reduce_large(b, x)
        q = q + quarters
        r = b.select((q & 1) != 0, _PI_2 - abs(r), r)
        return [b.select(b.is_finite(x), r, NAN), q << 62]

    r, sign = b.rarely(abs(x) >= _LARGE32, reduce_large, [wide], [r, sign])
    s = r * r
    y = b.fma(r * s, horner(b, s, table.SIN_SHORT), r)
    return b.bitcast(b.bitcast(y, "int64") ^ (sign & (-1 << 63)), "float64")


def sin(b: Builder, x: Value) -> Value:
    """Sine. float32: 0.51 ULP; float64: 1 ULP; over the whole range."""
    if x.dtype == "float32":
        return b.select(x == 0.0, x, narrow(b, _sin_short(b, x, 0)))
    return b.select(x == 0.0, x, _sin_wide(b, x, 0))


def cos(b: Builder, x: Value) -> Value:
    """Cosine. float32: 0.51 ULP; float64: 1 ULP; over the whole range."""
    if x.dtype == "float32":
        return narrow(b, _sin_short(b, x, 1))
    return _sin_wide(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    """Tangent. float32: 0.51 ULP; float64: 1 ULP; over the whole range."""
    if x.dtype == "float32":
        return narrow(b, _tan_short(b, x))
    r, rest, q = _reduce(b, x)
    sin_head, sin_tail, cos_head, cos_tail = _kernels(b, r, rest)
    odd = (q & 1) != 0
    top, top_low = quick_two_sum(b, b.select(odd, cos_head, sin_head), b.select(odd, cos_tail, sin_tail))
    bottom, bottom_low = quick_two_sum(b, b.select(odd, sin_head, cos_head), b.select(odd, sin_tail, cos_tail))
    y = top / bottom
    left = (b.fma(-y, bottom, top) + top_low) - y * bottom_low
    y = y + left / bottom
    return b.select(x == 0.0, x, b.select(odd, -y, y))


def _tan_short(b: Builder, x: Value) -> Value:
    """float64 from float32: tan(x) with an error far below a float32 ULP."""
    wide = widen(b, x)
    t = b.fma(wide, _TWO_OVER_PI, MAGIC64)
    n = t - MAGIC64
    r = b.fma(n, -_PI_2_LOW, b.fma(n, -_PI_2, wide))

    def reduce_large(b: Builder, x: Value) -> list[Value]:
        r, _, q = _reduce_large(b, x)
        return [b.select(b.is_finite(x), r, NAN), q]

    r, q = b.rarely(abs(x) >= _LARGE32, reduce_large, [wide], [r, b.bitcast(t, "int64")])
    s, a = r * r, abs(r)
    sine = b.fma(a * s, horner(b, s, table.SIN_SHORT), a)
    cosine = b.fma(s * s, horner(b, s, table.COS_SHORT), b.fma(s, -0.5, 1.0))
    odd = (q & 1) != 0
    y = b.quotient(b.select(odd, cosine, sine), b.select(odd, sine, cosine))
    sign = (b.bitcast(r, "int64") ^ (q << 63)) & (-1 << 63)
    return b.bitcast(b.bitcast(y, "int64") ^ sign, "float64")
