"""Calls as programs: flatten the arguments, trace once for each kind of arguments, remember the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from volta.api.arguments import Positions, call_paths, check_static, flat_outputs, hashable, values_of
from volta.api.limits import Limits, limits_of
from volta.api.limits import check as check_limits
from volta.core import pytrees
from volta.core.avals import ShapedArray
from volta.core.axes import in_scope
from volta.core.interp import Tracer
from volta.core.ir import ClosedJaxpr, Jaxpr
from volta.core.policy import default_precision
from volta.core.pytrees import TreeSpec
from volta.core.recent import Recent
from volta.trace.calls import call as call_program
from volta.trace.jaxpr_trace import trace_to_jaxpr

# What the caller fixed besides arrays: (whether there are keyword arguments, the static values as exact keys).
Extra = tuple[bool, tuple[Any, ...]] | None

KINDS = 512
"""A function's programs for at least so many kinds of arguments are kept, and for at most twice as many."""


@attrs.frozen(eq=False)
class FlatCall:
    """One call's arguments: the array leaves, their tree, and what is static."""

    leaves: list[Any]
    tree: TreeSpec
    extra: Extra
    args: tuple[Any, ...]  # without the static ones
    kwargs: dict[str, Any]
    static_args: tuple[tuple[int, Any], ...]
    static_kwargs: dict[str, Any]

    def values(self, name: str) -> list[Any]:
        return values_of(self.leaves, f"an argument of `{name}`:", self.paths)

    def paths(self) -> list[str]:
        """How each leaf is written: ``args[0]['w']``."""
        static = {i for i, _ in self.static_args}
        numbers = [i for i in range(len(self.args) + len(static)) if i not in static]
        return call_paths(self.args, self.kwargs, numbers)

    def key(self, avals: list[ShapedArray]) -> tuple[Any, ...]:
        return (self.tree, self.extra, default_precision(), in_scope(), *avals)

    def apply(self, fun: Callable[..., Any], leaves: Any) -> Any:
        """Call ``fun`` with ``leaves`` in place of the array arguments."""
        tree = pytrees.unflatten(self.tree, leaves)
        args, kwargs = tree if self.kwargs else (tree, {})
        if self.static_args:
            args = list(args)
            for i, value in self.static_args:
                args.insert(i, value)
        return fun(*args, **kwargs, **self.static_kwargs)


def flatten_call(
    name: str, static: Positions, args: tuple[Any, ...], kwargs: dict[str, Any], comparable: bool = True
) -> FlatCall:
    """A call's arguments; where static ones need not be ``comparable``, one that is not is like no other."""
    static_args: tuple[tuple[int, Any], ...] = ()
    static_kwargs: dict[str, Any] = {}
    statics: list[Any] = []
    if static.any:
        nums = sorted({i if i >= 0 else i + len(args) for i in static.nums if -len(args) <= i < len(args)})
        static_args = tuple((i, args[i]) for i in nums)
        static_kwargs = {k: v for k, v in kwargs.items() if k in static.names}
        for label, value in (*static_args, *sorted(static_kwargs.items())):
            if comparable:
                check_static(name, f"{label!r}" if isinstance(label, str) else f"number {label}", value)
            statics += [label, pytrees.exact(value) if comparable or hashable(value) else object()]
        args = tuple(x for i, x in enumerate(args) if i not in nums)
        kwargs = {k: v for k, v in kwargs.items() if k not in static_kwargs}
    leaves, tree = pytrees.flatten((args, kwargs) if kwargs else args)
    extra = (bool(kwargs), tuple(statics)) if kwargs or static.any else None
    return FlatCall(leaves, tree, extra, args, kwargs, static_args, static_kwargs)


@attrs.frozen(eq=False)
class TracedCall:
    """A function traced for one kind of arguments. ``hoisted`` are constants that belong to an enclosing trace: they
    are handed to ``program`` as its first arguments."""

    program: ClosedJaxpr
    hoisted: tuple[Any, ...]
    out_tree: TreeSpec
    limits: Limits = attrs.field(init=False)

    @limits.default
    def _limits(self) -> Limits:
        """What the call's own arguments must fit, as Python integers."""
        return limits_of(self.program)[len(self.hoisted) :]


def trace_call(
    fun: Callable[..., Any], name: str, call: FlatCall, avals: list[ShapedArray], doing: str = "jit traces"
) -> TracedCall:
    def flat_fun(*leaves: Any) -> Any:
        return flat_outputs(call.apply(fun, leaves), name)

    closed, out_tree = trace_to_jaxpr(flat_fun, avals, name, doing, call.paths)
    if not any(isinstance(c, Tracer) for c in closed.consts):
        return TracedCall(closed, (), out_tree)
    jaxpr = closed.jaxpr
    pairs = list(zip(jaxpr.constvars, closed.consts, strict=True))
    outer = [(v, c) for v, c in pairs if isinstance(c, Tracer)]
    own = [(v, c) for v, c in pairs if not isinstance(c, Tracer)]
    opened = Jaxpr(tuple(v for v, _ in own), (*(v for v, _ in outer), *jaxpr.invars), jaxpr.eqns, jaxpr.outvars)
    program = ClosedJaxpr(opened, tuple(c for _, c in own))
    return TracedCall(program, tuple(c for _, c in outer), out_tree)


class CallCache:
    """The programs of one function, by tree, avals and static values (compared whole)."""

    def __init__(self, fun: Callable[..., Any], name: str, static: Positions, doing: str, comparable: bool = True):
        self.fun, self.name, self.static, self.doing, self.comparable = fun, name, static, doing, comparable
        self._traced: Recent[tuple[Any, ...], TracedCall] = Recent(KINDS)

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatCall:
        return flatten_call(self.name, self.static, args, kwargs, self.comparable)

    def trace(self, call: FlatCall, avals: list[ShapedArray]) -> TracedCall:
        key = call.key(avals)
        traced = self._traced.find(key)
        if traced is None:
            traced = trace_call(self.fun, self.name, call, avals, self.doing)
            if not traced.hoisted:  # a closure over an enclosing trace's values is only good inside of it
                self._traced.keep(key, traced)
        return traced

    def bind(self, primitive: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **settings: Any) -> Any:
        """The call as one operation under the current trace."""
        call = self.flatten(args, kwargs)
        values = call.values(self.name)
        traced = self.trace(call, [x.aval for x in values])
        check_limits(call.leaves, traced.limits, self.name, call.paths)
        outs = call_program(primitive, traced.program, [*traced.hoisted, *values], self.name, **settings)
        return pytrees.unflatten(traced.out_tree, outs)

    def clear(self) -> None:
        self._traced.clear()

    def __len__(self) -> int:
        return len(self._traced)
