"""What special functions are computed with: Chebyshev series, and sums that end when each element's has settled.

They are computed in float64 and rounded once, whatever the operands' dtype. A loop leaves an element alone as soon as
its own sum has settled, so its value depends on no other element, and is the same batched or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta.core import dtypes
from volta.core.array import Array
from volta.core.errors import DTypeError, NotDifferentiableError
from volta.core.source import at_user_line
from volta.lax.loops import while_loop
from volta.numpy.promotion import aval_of, convert, float_operands
from volta.ops import lax

EPS = 2.0**-53


def in_float64(name: str, function: Callable[..., Any], *operands: Any) -> Any:
    """``function`` of the operands in float64, its results rounded once to their common float dtype."""
    own = float_operands(name, *operands)
    aval = aval_of(name, own[0])
    if dtypes.is_complex(aval.dtype):
        raise DTypeError(
            at_user_line(f"{name}: takes real numbers, not {aval.dtype}; take their real part where that is meant")
        )
    out = function(*(convert(x, dtypes.float64) for x in own))
    if isinstance(out, tuple):
        return tuple(convert(y, aval.dtype, aval.weak_type) for y in out)
    return convert(out, aval.dtype, aval.weak_type)


def in_complex128(name: str, function: Callable[..., Any], x: Any) -> Any:
    """``function`` of a complex operand in complex128, rounded once to its dtype."""
    aval = aval_of(name, x)
    return convert(function(convert(x, dtypes.complex128)), aval.dtype, aval.weak_type)


def chebyshev(x: Any, low: float, high: float, series: tuple[float, ...]) -> Any:
    """The sum of a Chebyshev series on [low, high], by Clenshaw's recurrence."""
    t = lax.div(lax.sub(lax.mul(x, 2.0), low + high), high - low)
    twice = lax.mul(t, 2.0)
    after, last = lax.zeros_like(x), lax.zeros_like(x)
    for c in reversed(series[1:]):
        after, last = lax.add(lax.sub(lax.mul(twice, after), last), c), after
    return lax.add(lax.sub(lax.mul(t, after), last), series[0])


def polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """A polynomial from its highest power on."""
    total: Any = lax.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = lax.add(lax.mul(total, x), c)
    return total


def settled(
    step: Callable[..., tuple[tuple[Any, ...], Any]], state: tuple[Any, ...], active: Any, most: int = 100_000
) -> tuple[Any, ...]:
    """``step(i, *state) -> (state, active)`` for i = 1, 2, … until no element is active, or ``most`` times.

    An element that is not active any more keeps what it has.
    """

    def body(carry: Any) -> Any:
        i, active, state = carry
        new, goes_on = step(lax.convert_element_type(i, dtypes.float64), *state)
        kept = tuple(lax.select(active, n, s) for n, s in zip(new, state, strict=True))
        return lax.add(i, 1), lax.bitwise_and(active, goes_on), kept

    def goes_on(carry: Any) -> Any:
        i, active, _ = carry
        some: Any = lax.reduce_or(active, tuple(range(active.ndim))) if active.ndim else active
        return lax.bitwise_and(some, lax.lt(i, most))

    out: tuple[Any, ...] = while_loop(goes_on, body, (1, active, state))[2]
    return out


def refuse_slope(name: str, operand: str) -> Callable[..., Any]:
    """The partial of an operand of which there is none."""

    def partial(t: Array, ans: Array, *operands: Array) -> Any:
        raise NotDifferentiableError(at_user_line(f"{name}: there is no derivative with respect to {operand}"))

    return partial
