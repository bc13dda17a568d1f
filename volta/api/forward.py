"""Forward derivatives: ``jvp`` and ``linearize``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import attrs

from volta.api.arguments import check_callable, name_of, value_of
from volta.api.autodiff import check_like, cotangent_value, flat_fun, flatten_args, vjp_of, weak_like
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import TreeError
from volta.core.interp import get_aval
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.ops.base import instantiate
from volta.ops.primitive import Zero
from volta.trace.jvp import has_tangent, jvp_flat
from volta.trace.linearize import Linear

R = TypeVar("R")
A = TypeVar("A")


@overload
def jvp(
    fun: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[R, R]: ...
@overload
def jvp(
    fun: Callable[..., tuple[R, A]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, R, A]: ...
@overload
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> Any: ...
@explains_keywords
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Forward derivative: ``out, out_dot = jvp(f, (x,), (x_dot,))``.

    With ``has_aux`` the function returns ``(out, aux)`` and the answer is ``(out, out_dot, aux)``.

    Raises:
        TreeError, ShapeError, DTypeError: for tangents that are not like the primals.

    >>> import volta
    >>> out, out_dot = volta.jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> float(out), float(out_dot)
    (9.0, 6.0)
    """
    check_callable(fun, "jvp")
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TreeError(at_user_line("jvp takes primals and tangents as tuples with one entry an argument"))
    values, trees = flatten_args(fun, primals)
    flat_tangents = _like_primals(name_of(fun), "jvp", tuple(tangents), trees, values)
    flat = flat_fun(fun, primals, values, trees, has_aux, "jvp")
    outs, tangents_out, (tree, aux) = jvp_flat(flat, values, flat_tangents, name_of(fun))
    out = pytrees.unflatten(tree, [value_of(x) for x in outs])
    moved = [weak_like(cotangent_value(t), get_aval(x)) for t, x in zip(tangents_out, outs, strict=True)]
    out_dot = pytrees.unflatten(tree, moved)
    return (out, out_dot, aux) if has_aux else (out, out_dot)


def _like_primals(
    name: str, transform: str, tangents: tuple[Any, ...], trees: Sequence[TreeSpec], primals: Sequence[Any]
) -> list[Any]:
    flat = [pytrees.flatten(t) for t in tangents]
    if [tree for _, tree in flat] != list(trees):
        raise TreeError(
            at_user_line(
                f"the tangents given to the {transform} of `{name}` have the structure "
                f"{', '.join(pytrees.text(tree) for _, tree in flat)}, but the primals have "
                f"{', '.join(map(pytrees.text, trees))}"
                f""
            )
        )
    leaves = [x for part, _ in flat for x in part]
    what = f"a tangent given to the {transform} of `{name}`"
    return [check_like(t, p.aval, what) for t, p in zip(leaves, primals, strict=True)]


@attrs.frozen(eq=False)
class Pushforward:
    """What ``linearize`` gives back: from a tangent an argument to the tangent of the output."""

    linear: Linear
    in_trees: tuple[TreeSpec, ...]
    primals: tuple[Any, ...]
    out_tree: TreeSpec
    out_avals: tuple[ShapedArray, ...]
    name: str

    @boundary
    def __call__(self, *tangents: Any) -> Any:
        flat = _like_primals(self.name, "linearize", tangents, self.in_trees, self.primals)
        outs = self.linear([instantiate(t) for t in flat])
        pairs = zip(outs, self.out_avals, strict=True)
        return pytrees.unflatten(
            self.out_tree,
            [
                weak_like(value_of(x), aval) if has_tangent(aval.dtype) else cotangent_value(Zero(aval))
                for x, aval in pairs
            ],
        )


@overload
def linearize(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Pushforward]: ...
@overload
def linearize(fun: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Pushforward, A]: ...
@overload
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool) -> Any: ...
@explains_keywords
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """``out, pushforward = linearize(f, x)``: computes ``f`` once; ``pushforward(x_dot)`` gives ``out_dot``, again and
    again, without computing ``f`` anew.

    >>> import volta
    >>> out, pushforward = volta.linearize(lambda x: x * x, 3.0)
    >>> float(pushforward(1.0)), float(pushforward(2.0))
    (6.0, 12.0)
    """
    check_callable(fun, "linearize")
    outs, pullback, aux = vjp_of(fun, primals, has_aux, "linearize")
    values, trees = flatten_args(fun, primals)
    pushforward = Pushforward(
        pullback.linear, tuple(trees), tuple(values), pullback.out_tree, tuple(map(get_aval, outs)), name_of(fun)
    )
    out = pytrees.unflatten(pullback.out_tree, [value_of(x) for x in outs])
    return (out, pushforward, aux) if has_aux else (out, pushforward)
