"""The logarithm of the gamma function of complex numbers.

Where it is large, Stirling's series; near its zeros 1 and 2 the series about them; left of the imaginary axis by
reflection; and between, by steps to the right. Places that a formula is not for are replaced by ones it is for, so that
derivatives are right too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.interp import get_aval
from volta.ops import lax
from volta.scipy.series import polynomial

_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_STEPS = 7
_ZETAS = (
    1.6449340668482264, 1.2020569031595943, 1.0823232337111382, 1.0369277551433699, 1.0173430619844491,
    1.0083492773819228, 1.0040773561979443, 1.0020083928260822, 1.0009945751278181, 1.0004941886041195,
    1.000246086553308, 1.0001227133475785, 1.0000612481350587, 1.0000305882363070, 1.0000152822594086,
    1.0000076371976379, 1.0000038172932649, 1.0000019082127166, 1.0000009539620338, 1.0000004769329867,
    1.0000002384505027, 1.0000001192199259, 1.0000000596081891,
)  # fmt: skip
"""The zeta function of 2, 3, …, 24."""
_ABOUT_ONE = (*((-1) ** k * z / k for k, z in reversed([*enumerate(_ZETAS, 2)])), -0.5772156649015329, 0.0)


def is_complex(x: Any) -> bool:
    return dtypes.is_complex(get_aval(x).dtype)


def _where(on: Any, z: Any, other: complex) -> Any:
    return lax.select(on, z, lax.full_like(z, other))


def _stirling(z: Array) -> Any:
    inverse = lax.div(np.complex128(1), z)
    series = lax.mul(polynomial(lax.mul(inverse, inverse), _STIRLING), inverse)
    main = lax.mul(lax.sub(z, np.complex128(0.5)), lax.log(z))
    return lax.add(lax.add(lax.sub(main, z), np.complex128(0.5 * math.log(2 * math.pi))), series)


def _stepped(z: Array) -> Any:
    """From the right: each step of the recurrence takes a logarithm away."""
    out = _stirling(lax.add(z, np.complex128(_STEPS)))
    for k in range(_STEPS):
        out = lax.sub(out, lax.log(lax.add(z, np.complex128(k))))
    return out


def _log_of_sine(z: Array) -> Any:
    """The logarithm of sin(pi z) on the branch that reflection needs, of small imaginary parts."""
    x, y = lax.real(z), lax.imag(z)
    rest = lax.mul(lax.sub(x, lax.mul(lax.round(lax.mul(x, 0.5)), 2.0)), math.pi)
    high = lax.mul(y, math.pi)
    sine = lax.complex(lax.mul(lax.sin(rest), lax.cosh(high)), lax.mul(lax.cos(rest), lax.sinh(high)))
    below = lax.lt(lax.bitcast_convert_type(y, "int64"), np.int64(0))  # -0.0 is below the axis
    turns = lax.mul(lax.floor(lax.add(lax.mul(x, 0.5), 0.25)), 2 * math.pi)
    turns = lax.stop_gradient(lax.select(below, lax.neg(turns), turns))
    return lax.sub(lax.log(sine), lax.complex(lax.zeros_like(turns), turns))


def loggamma_of_complex(z: Array) -> Any:
    """The logarithm of gamma, of complex128; NaN at the poles 0, -1, -2, …"""
    x, y = lax.real(z), lax.imag(z)
    large = lax.bitwise_or(lax.gt(x, float(_STEPS)), lax.gt(lax.abs(y), float(_STEPS)))
    one, two = lax.sub(z, np.complex128(1)), lax.sub(z, np.complex128(2))
    about_one, about_two = lax.le(lax.abs(one), 0.2), lax.le(lax.abs(two), 0.2)
    left = lax.bitwise_and(lax.lt(x, 0.1), lax.bitwise_not(large))
    middle = lax.bitwise_not(lax.bitwise_or(lax.bitwise_or(large, left), lax.bitwise_or(about_one, about_two)))
    pole = lax.bitwise_and(lax.eq(y, 0.0), lax.bitwise_and(lax.le(x, 0.0), lax.eq(x, lax.floor(x))))
    reflected = lax.bitwise_and(left, lax.bitwise_not(pole))
    mirror = _where(reflected, z, 0.05)
    of_left = lax.sub(
        lax.sub(np.complex128(math.log(math.pi)), _log_of_sine(mirror)), _right(lax.sub(np.complex128(1), mirror))
    )
    out = lax.select(large, _stirling(_where(large, z, 10.0)), _stepped(_where(middle, z, 3.0)))
    out = lax.select(about_one, polynomial(_where(about_one, one, 0.1), _ABOUT_ONE), out)
    near_two = _where(about_two, two, 0.1)
    of_two = lax.add(lax.log(lax.add(near_two, np.complex128(1))), polynomial(near_two, _ABOUT_ONE))
    out = lax.select(left, of_left, lax.select(about_two, of_two, out))
    return lax.select(pole, lax.full_like(z, complex(math.nan, math.nan)), out)


def _right(z: Array) -> Any:
    """The same right of the imaginary axis, where reflection leads."""
    large = lax.gt(lax.real(z), float(_STEPS))
    return lax.select(large, _stirling(_where(large, z, 10.0)), _stepped(_where(lax.bitwise_not(large), z, 3.0)))
