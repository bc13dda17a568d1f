"""Primitives that mean a program: one equation, which lowering inlines, with rules of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr
from volta.ops.primitive import Family, Primitive, Rule, register
from volta.trace.jaxpr_trace import trace_to_jaxpr

CACHED = 1024
"""How many programs a primitive's operands and params are remembered to mean."""


def meaning(fun: Callable[..., Any], avals: Sequence[ShapedArray], name: str) -> ClosedJaxpr:
    """The operations of a function of one result. They belong to no line of their own: each call gives its user's."""
    program, _ = trace_to_jaxpr(lambda *xs: ([fun(*xs)], None), tuple(avals), name)
    eqns = tuple(e.replace(source=None) for e in program.eqns)
    return ClosedJaxpr(program.jaxpr.replace(eqns=eqns), program.consts)


def means_its_program(
    name: str, *, jvp: Rule, batch: Rule, linearize: Rule, doc: str, transpose: Rule | None = None
) -> Primitive:
    """The record, registered, of a primitive whose param ``jaxpr`` is what it computes."""
    return register(
        Primitive(
            name, Family.CALL, _abstract, jvp, batch, transpose, linearize=linearize, multiple_results=True, doc=doc
        )
    )


def _abstract(*avals: ShapedArray, jaxpr: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    return jaxpr.out_avals
