"""Recomputation: ``checkpoint``, the policies that say what is kept, and names for values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, overload

import attrs

from volta.api.arguments import check_callable, name_of, operand_of, resolve_positions
from volta.api.programs import CallCache
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.boundary import boundary
from volta.core.errors import ArgumentError
from volta.core.source import at_user_line
from volta.ops.contraction import dot_general_p
from volta.trace.checkpoint import Policy, checkpoint_p, name_p, named

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpoint(
    fun: Callable[P, R],
    *,
    prevent_cse: bool | Sequence[bool] = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[P, R]: ...
@overload
def checkpoint(
    fun: None = None,
    *,
    prevent_cse: bool | Sequence[bool] = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@explains_keywords
def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool | Sequence[bool] = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """``fun``, whose inner values are not stored for the backward pass but computed again from its arguments.

    Gradients have the bits of the plain function's (derivatives of gradients are those of the recomputation: equal but
    for rounding). Saves memory at the price of a second forward computation; put it around the blocks of a deep model.

    Args:
        policy: which values are kept all the same; one of ``volta.checkpoint_policies``, or a function
            ``policy(primitive, *avals, **params) -> bool``. None keeps none. It changes no bit. A loop is one operation
            to it.
        static_argnums, static_argnames: arguments that are no data, as of :func:`volta.jit`; one that cannot be
            hashed has the function traced anew at each call.
        prevent_cse: accepted for programs written for JAX: what is computed again is always kept apart from the first
            time.

    >>> import volta
    >>> f = volta.checkpoint(lambda x: x * x * x)
    >>> float(volta.grad(f)(2.0))
    12.0
    """
    if fun is None:
        return functools.partial(
            checkpoint, policy=policy, static_argnums=static_argnums, static_argnames=static_argnames
        )
    check_callable(fun, "checkpoint")
    if policy is not None:
        check_callable(policy, "checkpoint's policy")
    static = resolve_positions(fun, static_argnums, static_argnames, "static_argnums")
    calls = CallCache(fun, name_of(fun), static, "checkpoint traces", comparable=False)

    @functools.wraps(fun, updated=())
    @boundary
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return calls.bind(checkpoint_p, args, kwargs, policy=policy)

    return recomputed


remat = checkpoint


def checkpoint_name(x: Any, name: str) -> Any:
    """``x``, a pytree of arrays, under a name by which policies of :func:`checkpoint` keep it.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> keep = volta.checkpoint_policies.save_only_these_names("hidden")
    >>> f = volta.checkpoint(lambda x: vnp.sin(volta.ad_checkpoint.checkpoint_name(vnp.cos(x), "hidden")), policy=keep)
    >>> float(volta.grad(f)(0.0))
    -0.0
    """
    return pytrees.map(lambda leaf: named(operand_of(leaf), name), x)


# -- policies ----------------------------------------------------------------------------------------------------------
# Records, so that equal policies are one and a program is traced once for them.


@attrs.frozen
class _Everything:
    keeps: bool

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        return self.keeps


@attrs.frozen
class _Dots:
    """Keeps products of matrices: those that are computed again at most cost."""

    only_without_batch: bool

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        if primitive is not dot_general_p:
            return primitive.name == "conv_general_dilated" and not self.only_without_batch
        return not self.only_without_batch or params["dimension_numbers"][1] == ((), ())


@attrs.frozen
class _Names:
    names: frozenset[str]
    these: bool

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        return primitive is name_p and (params["name"] in self.names) == self.these


@attrs.frozen
class _Either:
    first: Policy
    second: Policy

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        return bool(self.first(primitive, *avals, **params) or self.second(primitive, *avals, **params))


def _save_only_these_names(*names: str) -> Policy:
    return _Names(frozenset(names), True)


def _save_any_names_but_these(*names: str) -> Policy:
    return _Names(frozenset(names), False)


def _save_anything_except_these_names(*names: str) -> Policy:
    return _Everything(True)


def _save_and_offload_only_these_names(
    *, names_which_can_be_saved: Any, names_which_can_be_offloaded: Any, offload_src: str, offload_dst: str
) -> Policy:
    both = {*names_which_can_be_saved} & {*names_which_can_be_offloaded}
    if both:
        raise ArgumentError(at_user_line(f"save_and_offload_only_these_names: {sorted(both)} are named as both"))
    return _Names(frozenset(names_which_can_be_saved) | frozenset(names_which_can_be_offloaded), True)


checkpoint_policies = SimpleNamespace(
    everything_saveable=_Everything(True),
    nothing_saveable=_Everything(False),
    dots_saveable=_Dots(False),
    checkpoint_dots=_Dots(False),
    dots_with_no_batch_dims_saveable=_Dots(True),
    checkpoint_dots_with_no_batch_dims=_Dots(True),
    offload_dot_with_no_batch_dims=lambda offload_src, offload_dst: _Dots(True),
    save_anything_except_these_names=_save_anything_except_these_names,
    save_any_names_but_these=_save_any_names_but_these,
    save_only_these_names=_save_only_these_names,
    save_from_both_policies=_Either,
    save_and_offload_only_these_names=_save_and_offload_only_these_names,
)
"""Policies of :func:`checkpoint`, under JAX's names. What they offload in JAX stays where it is: it is kept."""
