"""Primitives of a library's own, as JAX has libraries make them: a name, and rules that are registered for it.

To Volta such a primitive is the function that computes it (``def_impl``), whose batches and forward derivatives are the
rules that the library gave; where it gave none they are the function's own. A reverse derivative is what becomes of the
forward rule, or of the function: rules of transposition are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import volta
import volta.numpy as vnp
from volta.api.arguments import float0
from volta.core import dtypes
from volta.custom_batching import custom_vmap
from volta.interop.jax_names.internals import accepted, refuse

JVPS: dict[Any, Callable[..., Any]] = {}
BATCHERS: dict[Any, Callable[..., Any]] = {}
NAMED_BATCHERS: dict[Any, Callable[..., Any]] = {}
"""Rules for batches that get the size and the name of the axis besides."""


class Primitive:
    """A primitive of a library's own."""

    multiple_results = False

    def __init__(self, name: str):
        self.name = name
        self.impl: Callable[..., Any] | None = None

    def def_impl(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.impl = function
        return function

    def def_abstract_eval(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        return rule  # shapes are those of what the function gives

    def_effectful_abstract_eval = def_custom_bind = def_bind_with_trace = def_abstract_eval

    def bind(self, *args: Any, **params: Any) -> Any:
        """Compute it, under whatever transforms are at work.

        Raises:
            UnsupportedOperationError: the library has not said by which function.
        """
        function = self.impl
        if function is None:
            refuse(f"the primitive {self.name!r}")
        call = self._mapped(lambda *xs: function(*xs, **params), params)
        return self._differentiated(call, params)(*args)

    def _mapped(self, function: Callable[..., Any], params: dict[str, Any]) -> Callable[..., Any]:
        rule, named = BATCHERS.get(self), NAMED_BATCHERS.get(self)
        if rule is None and named is None:
            return function

        def of_batch(size: int, batched: Sequence[bool], *args: Any) -> tuple[Any, Any]:
            dims = tuple(0 if b else None for b in batched)
            if named is not None:
                outs, places = named(size, None, None, args, dims, **params)
            else:
                assert rule is not None
                outs, places = rule(args, dims, **params)
            if not self.multiple_results:
                return _first(outs, places), places is not None
            pairs = zip(outs, places, strict=True)
            return [_first(x, place) for x, place in pairs], [place is not None for place in places]

        call = custom_vmap(function)
        call.def_vmap(of_batch)
        return call

    def _differentiated(self, function: Callable[..., Any], params: dict[str, Any]) -> Callable[..., Any]:
        rule = JVPS.get(self)
        if rule is None:
            return function
        call = volta.custom_jvp(function)
        call.defjvp(lambda primals, tangents: rule(primals, tangents, **params))
        return call

    def __repr__(self) -> str:
        return self.name


def _first(x: Any, place: int | None) -> Any:
    return x if place in (None, 0) else vnp.moveaxis(x, place, 0)


def standard_jvp(primitive: Primitive, *rules: Any) -> None:
    """``ad.defjvp``: by the tangent of each operand, ``rule(tangent, *primals)``; None has none."""

    def rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        live = [r(t, *primals, **params) for r, t in zip(rules, tangents, strict=True) if r and _has_tangent(t)]
        return out, sum(live[1:], live[0]) if live else vnp.zeros_like(out)

    JVPS[primitive] = rule


def _has_tangent(t: Any) -> bool:
    return t.dtype != float0 and dtypes.is_inexact(t.dtype)


def is_undefined_primal(x: Any) -> bool:
    return False  # rules of transposition are not asked


CORE: dict[str, Any] = {"Primitive": Primitive}
AD: dict[str, Any] = {
    **{name: {} for name in ("primitive_transposes", "reducing_transposes", "custom_jvp")},
    **dict.fromkeys(("deflinear", "deflinear2", "defbilinear"), accepted),
    "defjvp": standard_jvp,
    "instantiate_zeros": lambda x: x,
    "is_undefined_primal": is_undefined_primal,
    "primitive_jvps": JVPS,
}
BATCHING: dict[str, Any] = {
    "axis_primitive_batchers": NAMED_BATCHERS,
    "fancy_primitive_batchers": {},
    "not_mapped": None,
    "primitive_batchers": BATCHERS,
}
