"""Batch rules of one's own: ``volta.custom_batching``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from volta.api.arguments import call_paths, check_callable, flat_outputs, name_of, value_of, values_of
from volta.api.custom_derivatives import inner_rule, positional
from volta.api.limits import check as check_limits
from volta.api.limits import limits_of
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.errors import ShapeError, TreeError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.lax.loops import map as lax_map
from volta.trace.custom_batch import BatchRule, call
from volta.trace.jaxpr_trace import trace_to_jaxpr

P = ParamSpec("P")
R = TypeVar("R")


class custom_vmap(Generic[P, R]):  # noqa: N801 - JAX's name
    """A function with a rule of one's own for ``vmap``: a library call that takes batches, say.

    The rule, given to :meth:`def_vmap`, takes the size of the batch, which arguments are mapped (a list with a pytree
    of bools an argument) and the arguments, mapped ones along axis 0. It returns the function's output and, in a pytree
    of the same structure, which parts of it are mapped, also along axis 0. That vmap never changes a number is the
    rule's to keep. The function itself is traced, as by ``jit``.

    Raises:
        AttributeError: the function is called before it has a rule.
        TreeError, ShapeError: the rule returns something else than it should.

    >>> import volta
    >>> @volta.custom_batching.custom_vmap
    ... def f(x, y):
    ...     return x + y
    >>> @f.def_vmap
    ... def _(axis_size, in_batched, xs, ys):
    ...     return xs + ys, True
    >>> volta.vmap(f, (0, None))(np.int32([1, 2]), np.int32(10))
    Array([11, 12], dtype=int32)
    """

    fun: Callable[P, R]
    vmap_rule: Callable[..., tuple[Any, Any]] | None = None

    def __init__(self, fun: Callable[P, R]):
        check_callable(fun, "custom_vmap")
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun

    def def_vmap(self, vmap_rule: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        """Give the function its rule, ``rule(axis_size, in_batched, *args)``; returns the rule (a decorator)."""
        check_callable(vmap_rule, "def_vmap")
        self.vmap_rule = vmap_rule
        return vmap_rule

    @boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = name_of(self.fun)
        if self.vmap_rule is None:
            raise AttributeError(at_user_line(f"custom_vmap: `{name}` has no rule yet: give it one by def_vmap"))
        given = positional(self.fun, name, "custom_vmap", args, kwargs)
        leaves, tree = pytrees.flatten(given)
        values = values_of(leaves, f"an argument of `{name}`:", lambda: call_paths(given, {}))
        function: Callable[..., Any] = self.fun

        def flat(*xs: Any) -> Any:
            return flat_outputs(function(*pytrees.unflatten(tree, xs)), name)

        program, out_tree = trace_to_jaxpr(flat, [get_aval(x) for x in values], name, "custom_vmap traces")
        limits = limits_of(program)[len(program.consts) :]
        check_limits(leaves, limits, name, lambda: call_paths(given, {}))
        rule = functools.partial(_apply, self.vmap_rule, name, program, tree, out_tree)
        return pytrees.unflatten(out_tree, call(program, values, BatchRule(name, rule)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A function with derivative rules may be wrapped, and be given these by the outer name."""
            return inner_rule(self, name)

    def __repr__(self) -> str:
        return f"<volta.custom_vmap of {name_of(self.fun)}>"


def _apply(
    vmap_rule: Callable[..., Any], name: str, program: ClosedJaxpr, tree: TreeSpec, out_tree: TreeSpec, size: int,
    mapped: Sequence[bool], args: Sequence[Any],
) -> tuple[list[Any], list[bool]]:  # fmt: skip
    """A user's rule over flat values. What the function closes over is no argument, so it must not be mapped."""
    what, count = f"the vmap rule `{name_of(vmap_rule)}` of `{name}`", len(program.consts)
    if any(mapped[:count]):
        raise ShapeError(
            at_user_line(
                f"custom_vmap: `{name}` reads a mapped value from around it (a closure), of which its rule is not "
                "told: pass it as an argument"
            )
        )
    given = pytrees.unflatten(tree, args[count:])
    pair = vmap_rule(size, list(pytrees.unflatten(tree, mapped[count:])), *given)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TreeError(
            at_user_line(f"{what} must return a pair, the output and which of it is mapped, not {type(pair).__name__}")
        )
    outs, found = flat_outputs(pair[0], name_of(vmap_rule))
    batched, batched_tree = pytrees.flatten(pair[1])
    for part, structure in (("its output", found), ("what it says is mapped", batched_tree)):
        if structure != out_tree:
            raise TreeError(
                at_user_line(
                    f"{what}: {part} has the structure "
                    f"{pytrees.text(structure)}, but the output of `{name}` has {pytrees.text(out_tree)}"
                )
            )
    for x, is_mapped, aval in zip(outs, batched, program.out_avals, strict=True):
        expected = aval.update(shape=(size, *aval.shape) if is_mapped else aval.shape)
        got = value_of(x).aval
        if (got.shape, got.dtype) != (expected.shape, expected.dtype):
            raise ShapeError(at_user_line(f"{what} must return {expected.short()}, but it returned {got.short()}"))
    return outs, [bool(b) for b in batched]


def sequential_vmap(f: Callable[P, R]) -> custom_vmap[P, R]:
    """A function that ``vmap`` runs for one example after the other, as ``volta.lax.map`` does.

    >>> import volta
    >>> volta.vmap(volta.custom_batching.sequential_vmap(lambda x: x * 2))(np.int32([1, 2]))
    Array([2, 4], dtype=int32)
    """
    wrapped = custom_vmap(f)
    once: Callable[..., Any] = wrapped

    @wrapped.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, tree = pytrees.flatten(args)
        mapped = pytrees.leaves(in_batched)

        def one(moving: list[Any]) -> Any:
            it = iter(moving)
            return once(*pytrees.unflatten(tree, [next(it) if m else x for x, m in zip(leaves, mapped, strict=True)]))

        out = lax_map(one, [x for x, m in zip(leaves, mapped, strict=True) if m])
        return out, pytrees.map(lambda _: True, out)

    return wrapped
