"""Functions made of operations that have a derivative of their own.

A smooth function may be computed by operations that are not smooth where its pieces meet: by a distance, a maximum, a
choice between a series and a quotient. Its values are right there; what the chain rule makes of the pieces is not. So
it is one equation, which carries the program of its operations and means exactly that: lowering inlines it, and it has
their bits. It is differentiated as an elementwise primitive is, by one partial an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.elementwise import Partial, aligned, tangent_by
from volta.ops.primitive import Family, Primitive, Zero, register
from volta.trace.jaxpr_trace import trace_to_jaxpr

_CACHED = 1024  # programs kept


@attrs.frozen(eq=False, repr=False)
class Composite:
    """An elementwise function: ``value`` of the operands, and ``partials`` as in ``volta.ops.elementwise``.

    Operands are of one float dtype and one shape, or rank 0.
    """

    name: str
    value: Callable[..., Any]
    partials: tuple[Partial, ...]

    def __call__(self, *operands: Any) -> Any:
        program = _program(self, tuple([get_aval(x) for x in operands]))
        return composite_p.bind(*operands, jaxpr=program, name=self.name, function=self)[0]

    def __repr__(self) -> str:
        return self.name


def with_partials(*partials: Partial) -> Callable[[Callable[..., Any]], Composite]:
    """Decorate a function of volta.lax operations with its partials: ``partial(tangent, answer, *operands)``."""
    return lambda value: Composite(value.__name__.strip("_"), value, partials)


@lru_cache(maxsize=_CACHED)
def _program(function: Composite, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    """The function's operations. They belong to no line of their own: each call gives them its user's."""
    program, _ = trace_to_jaxpr(lambda *xs: ([function.value(*xs)], None), avals, function.name)
    eqns = tuple(e.replace(source=None) for e in program.eqns)
    return ClosedJaxpr(program.jaxpr.replace(eqns=eqns), program.consts)


def _abstract(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    return jaxpr.out_avals


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    (ans,) = composite_p.bind(*primals, **params)
    return [ans], [tangent_by(params["function"].partials, tangents, ans, primals)]


def _batch(args: Sequence[Any], dims: Sequence[int | None], size: int, *, function: Composite, **params: Any) -> Any:
    operands, dim = aligned(args, dims, size)
    return [function(*operands)], [dim]


def _linearize(nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
    (ans,) = composite_p.bind(*primals, **params)

    def linear(*live: Any) -> list[Any]:
        given = iter(live)
        tangents = [next(given) if m else Zero(get_aval(x)) for m, x in zip(nonzero, primals, strict=True)]
        return [tangent_by(params["function"].partials, tangents, ans, primals)]

    return [ans], (True,), linear


composite_p = register(
    Primitive(
        "composite",
        Family.CALL,
        _abstract,
        _jvp,
        _batch,
        linearize=_linearize,
        multiple_results=True,
        doc="Calls a function that has a derivative of its own: means exactly its program.",
    )
)
