"""Partial evaluation, under the names of JAX's internals that flax asks it by: what depends on known values alone is
computed, what depends on others is recorded. Functions are wrapped for it, and take flat arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs

import volta
from volta.core.avals import ShapedArray
from volta.core.interp import current_trace, use_trace
from volta.core.ir import Jaxpr
from volta.interop.jax_names.internals import refuse
from volta.trace.jaxpr_trace import JaxprTracer
from volta.trace.linearize import LinearTrace


@attrs.frozen(eq=False)
class Wrapped:
    """A function on its way through transforms."""

    f: Callable[..., Any]

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)


def wrap_init(f: Callable[..., Any], params: Any = None, *, debug_info: Any = None) -> Wrapped:
    return Wrapped(functools.partial(f, **params) if params else f)


def transformation(step: Callable[..., Any]) -> Callable[..., Any]:
    """A transform that a library writes: that it does is accepted, and using it is refused."""

    @functools.wraps(step)
    def used(*args: Any, **kwargs: Any) -> Any:
        refuse(f"the transformation {step.__qualname__} of jax.extend.linear_util")

    return used


def _flat(fun: Wrapped, tree: Any, named: bool) -> tuple[Wrapped, Callable[[], Any]]:
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        given = volta.tree.unflatten(tree, leaves)
        args, kwargs = given if named else (given, {})
        outs, structure = volta.tree.flatten(fun.f(*args, **kwargs))
        found.append(structure)
        return outs

    return Wrapped(flat), lambda: found[-1]


def flatten_fun(fun: Wrapped, tree: Any) -> tuple[Wrapped, Callable[[], Any]]:
    """``fun`` of the leaves of ``(args, kwargs)``, giving leaves; and what gives the structure of its result."""
    return _flat(fun, tree, True)


def flatten_fun_nokwargs(fun: Wrapped, tree: Any) -> tuple[Wrapped, Callable[[], Any]]:
    """``fun`` of the leaves of ``args``, giving leaves; and what gives the structure of its result."""
    return _flat(fun, tree, False)


class PartialVal(NamedTuple):
    """A value that is known, or the type of one that is not."""

    pv: ShapedArray | None
    const: Any

    @staticmethod
    def known(x: Any) -> PartialVal:
        return PartialVal(None, x)

    @staticmethod
    def unknown(aval: ShapedArray) -> PartialVal:
        return PartialVal(aval, None)

    def is_known(self) -> bool:
        return self.pv is None


def trace_to_jaxpr_nounits(
    fun: Wrapped, pvals: Sequence[PartialVal], instantiate: bool = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """The program of what is not known, the results as far as they are known, and the program's constants.

    Programs that operations carry (of jitted functions, loops, branches) are known as a whole or not at all.
    """
    trace = LinearTrace(current_trace(), getattr(fun.f, "__name__", "function"))
    trace.doing = "partial evaluation runs"
    try:
        with use_trace(trace):
            outs = fun.f(*(p.const if p.pv is None else trace.new_arg(p.pv) for p in pvals))
        known = [not instantiate and not (isinstance(x, JaxprTracer) and x._trace is trace) for x in outs]
        program = trace.end([x for x, k in zip(outs, known, strict=True) if not k])
    finally:
        trace.ended = True
    found = [PartialVal.known(x) if k else PartialVal.unknown(x.aval) for x, k in zip(outs, known, strict=True)]
    return program.jaxpr, found, list(program.consts)


API_UTIL: dict[str, Any] = {
    "debug_info": lambda *args, **kwargs: None,
    "flatten_fun": flatten_fun,
    "flatten_fun_nokwargs": flatten_fun_nokwargs,
}
LINEAR_UTIL: dict[str, Any] = {
    **dict.fromkeys(
        ("transformation", "transformation2", "transformation_with_aux", "transformation_with_aux2"), transformation
    ),
    "WrappedFun": Wrapped,
    "wrap_init": wrap_init,
}
PARTIAL_EVAL: dict[str, Any] = {"PartialVal": PartialVal, "trace_to_jaxpr_nounits": trace_to_jaxpr_nounits}
