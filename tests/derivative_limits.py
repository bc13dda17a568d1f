"""What the derivatives of a function are at a point: their limits from all sides, computed with many digits.

At a point where a function is smooth all limits agree. At the end of its domain there is one. At a kink, a jump or a
pole they differ, and there is no derivative but by convention.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath

DIGITS = 45
# How far beside the point: two distances, so that what grows without bound shows. No ratio of two is simple.
STEPS = (mpmath.mpf("1e-25"), mpmath.mpf("1e-35"))
WIDE, STEEP = (mpmath.mpf(1), mpmath.mpf("0.73")), (mpmath.mpf("0.31"), mpmath.mpf(1))
WAYS = {
    1: [(WIDE, (1,)), (WIDE, (-1,))],
    2: [*((WIDE, signs) for signs in itertools.product((1, -1), repeat=2)), (STEEP, (1, 1)), (STEEP, (-1, 1))],
}


def _beside(f: Callable[..., Any], x: Sequence[Any], orders: Sequence[int]) -> Any:
    """A derivative at a point where the function is smooth, or None outside of its domain."""
    try:
        y = mpmath.diff(f, tuple(x) if len(x) > 1 else x[0], tuple(orders) if len(x) > 1 else orders[0])
    except (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.NoConvergence):
        return None
    return None if isinstance(y, mpmath.mpc) or mpmath.isnan(y) else y


@functools.cache
def limits(f: Callable[..., Any], point: tuple[float, ...], orders: tuple[int, ...]) -> list[float]:
    """The limits of a partial derivative at ``point``, one a side on which the function is defined, without repeats.

    ``orders`` says how often to differentiate by each operand.
    """
    found: list[float] = []
    with mpmath.workdps(DIGITS):
        for skew, signs in WAYS[len(point)]:
            values = []
            for step in STEPS:
                x = [mpmath.mpf(p) + s * step * k for p, s, k in zip(point, signs, skew, strict=False)]
                values.append(_beside(f, x, orders))
            near, nearer = values
            if near is None or nearer is None:
                continue
            if abs(nearer - near) > 1e-6 * (1 + abs(nearer)):
                limit = math.copysign(math.inf, nearer - near if abs(nearer) < 1e6 else nearer)
            else:
                limit = float(nearer)
            if not any(_same(limit, other) for other in found):
                found.append(limit)
    return found


def _same(x: float, y: float) -> bool:
    return x == y or (math.isfinite(x) and math.isfinite(y) and abs(x - y) <= 1e-9 * (1 + abs(x)))
