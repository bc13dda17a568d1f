"""Taylor series of functions, under the names of ``jax.experimental.jet``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from volta.api.arguments import check_callable
from volta.api.forward import jvp
from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import ArgumentError
from volta.core.source import at_user_line

__all__ = ["jet"]


def jet(fun: Callable[..., Any], primals: Sequence[Any], series: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    """The Taylor coefficients of ``fun`` along a curve, from those of the curve.

    They are derivatives, not divided by factorials: the curve of an argument x with the series (x1, x2, …) is
    x + t x1 + t² x2 / 2 + …, and what is returned are ``fun``'s value and its first, second, … derivative by t at 0.
    Each is a forward derivative of the one before, so all derivative rules hold, and a series of K terms takes the
    work of some 2^K evaluations.

    Args:
        fun: from arrays, or pytrees of them, to a pytree of arrays.
        primals: its arguments.
        series: for each argument its terms, all of one number; each of the argument's structure.

    Returns:
        ``(value, terms)``, where each leaf of ``terms`` is a list of the value's derivatives.

    Raises:
        ArgumentError: there is not one series for each argument, or they have different numbers of terms.
        TreeError: a term has another structure than its argument.

    >>> import volta.numpy as vnp
    >>> from volta.experimental.jet import jet
    >>> jet(vnp.exp, (vnp.float64(0.0),), ([1.0, 0.0, 0.0],))[1]
    [Array(1., dtype=float64), Array(1., dtype=float64), Array(1., dtype=float64)]
    """
    check_callable(fun, "jet")
    terms = [tuple(own) for own in series]
    counts = sorted({len(own) for own in terms})
    if len(terms) != len(primals) or len(counts) > 1:
        text = f"{len(primals)} arguments need as many series of one length, got {len(terms)} of lengths {counts}"
        raise ArgumentError(at_user_line(f"jet: {text}"))

    def at(t: Any) -> tuple[Any, ...]:
        return (fun(*(_curve(x, own, t) for x, own in zip(primals, terms, strict=True))),)

    derivatives: Callable[[Any], tuple[Any, ...]] = at
    for _ in range(counts[0] if counts else 0):
        derivatives = _one_more(derivatives)
    value, *found = derivatives(0.0)
    return value, pytrees.map(lambda _, *orders: list(orders), value, *found)


def _curve(x: Any, terms: Sequence[Any], t: Any) -> Any:
    """x + t (x1 + t / 2 (x2 + t / 3 (x3 + …)))."""
    if not terms:
        return x
    total = terms[-1]
    for k in range(len(terms) - 1, 0, -1):
        total = pytrees.map(lambda own, rest, k=k: own + t / (k + 1) * rest, terms[k - 1], total)
    return pytrees.map(lambda own, rest: own + t * rest, x, total)


def _one_more(derivatives: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    """From what gives a value and its first derivatives, what gives one derivative more."""

    def more(t: Any) -> tuple[Any, ...]:
        known, slopes = jvp(derivatives, (t,), (1.0,))
        return known[0], *slopes

    return more


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
