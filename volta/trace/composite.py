"""Elementwise functions made of operations that have a derivative of their own.

A smooth function may be computed by operations that are not smooth where its pieces meet: by a distance, a maximum, a
choice between a series and a quotient. Its values are right there; what the chain rule makes of the pieces is not. So
it is a call with a derivative of its own (``volta.trace.custom``), whose rule is that of an elementwise primitive: one
partial an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.base import zero_like
from volta.ops.elementwise import Partial, aligned, tangent_by
from volta.trace import masks
from volta.trace.batch import BatchTrace
from volta.trace.custom import Derivative, Linearized, custom_p
from volta.trace.meaning import CACHED, meaning


@attrs.frozen(eq=False, repr=False)
class Composite(Derivative):
    """An elementwise function: ``value`` of the operands, and ``partials`` as in ``volta.ops.elementwise``.

    Operands are of one float dtype and one shape, or rank 0.
    """

    name: str
    value: Callable[..., Any]
    partials: tuple[Partial, ...]

    def __call__(self, *operands: Any) -> Any:
        program = _program(self, tuple([get_aval(x) for x in operands]))
        return custom_p.bind(*operands, jaxpr=program, num_consts=0, rule=self)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        ans = self(*primals)
        return [ans], [tangent_by(self.partials, tangents, ans, primals)]

    def linearize(self, nonzero: Sequence[bool], primals: Sequence[Any]) -> Linearized:
        ans = self(*primals)

        def linear(*live: Any) -> list[Any]:
            tangents = masks.spread(nonzero, live, lambda i: zero_like(primals[i]))
            return [tangent_by(self.partials, tangents, ans, primals)]

        return [ans], (True,), linear

    def batch(self, args: Sequence[Any], dims: Sequence[int | None], trace: BatchTrace, params: dict[str, Any]) -> Any:
        if all(d is None for d in dims):
            return [self(*args)], [None]
        operands, dim = aligned(args, dims, trace.axis.size)
        return [self(*operands)], [dim]


def with_partials(*partials: Partial) -> Callable[[Callable[..., Any]], Composite]:
    """Decorate a function of volta.lax operations with its partials: ``partial(tangent, answer, *operands)``."""
    return lambda value: Composite(value.__name__.strip("_"), value, partials)


@lru_cache(maxsize=CACHED)
def _program(function: Composite, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    return meaning(function.value, avals, function.name)
