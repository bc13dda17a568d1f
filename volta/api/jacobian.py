"""Jacobians and Hessians: a vmapped pushforward or pullback over the standard basis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np

from volta.api.arguments import bind_arguments, check_callable, name_of, select_argnums, value_of
from volta.api.autodiff import check_complex, check_inexact, check_output, vjp
from volta.api.forward import linearize
from volta.api.vmap import vmap
from volta.core import dtypes, pytrees
from volta.core.absent import explains_keywords
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import DTypeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops.base import reshape_to
from volta.ops.lax import slice_in_dim

P = ParamSpec("P")


def _basis(tree: Any) -> Any:
    """The standard basis of a pytree of arrays: each leaf gains a leading axis over all elements of the tree."""
    leaves, treedef = pytrees.flatten(tree)
    avals = [get_aval(x) for x in leaves]
    total = sum(a.size for a in avals)
    rows, start = [], 0
    for aval in avals:
        part = np.zeros((total, aval.size), aval.dtype)
        part[np.arange(start, start + aval.size), np.arange(aval.size)] = 1
        rows.append(value_of(part.reshape((total, *aval.shape))))
        start += aval.size
    return pytrees.unflatten(treedef, rows)


def _split_axis(x: Any, axis: int, like: Any) -> Any:
    """Axis ``axis`` of ``x`` runs over all elements of the pytree ``like``: one part a leaf, with the leaf's shape."""
    leaves, treedef = pytrees.flatten(like)
    parts, start = [], 0
    shape = x.shape
    for leaf in leaves:
        aval: ShapedArray = get_aval(leaf)
        part = slice_in_dim(x, start, start + aval.size, axis=axis)
        parts.append(reshape_to(part, shape[:axis] + aval.shape + shape[axis + 1 :]))
        start += aval.size
    return pytrees.unflatten(treedef, parts)


def _select(
    fun: Any, argnums: Any, args: tuple[Any, ...], kwargs: dict[str, Any], transform: str, holomorphic: bool
) -> tuple[Any, Any]:
    """``fun`` of the chosen argument (a tuple of them when ``argnums`` is one), and its value in this call."""
    chosen = select_argnums(argnums, len(args), transform, fun)
    check_inexact(fun, chosen, [args[i] for i in chosen], transform)
    if holomorphic:
        check_complex(fun, [args[i] for i in chosen], transform, "inputs")
    many = isinstance(argnums, (tuple, list))

    @functools.wraps(fun, updated=())
    def of_chosen(some: Any) -> Any:
        full = list(args)
        for i, x in zip(chosen, some if many else (some,), strict=True):
            full[i] = x
        return bind_arguments(fun, kwargs)(*full)

    return of_chosen, tuple(args[i] for i in chosen) if many else args[chosen[0]]


def _check_real(fun: Any, x: Any) -> None:
    for leaf in pytrees.leaves(x):
        aval = value_of(leaf).aval
        if dtypes.is_complex(aval.dtype):
            raise DTypeError(
                at_user_line(
                    f"jacfwd of `{name_of(fun)}` needs real inputs, not {aval.short()}. If the function is "
                    "holomorphic, pass holomorphic=True; else use volta.jvp, whose tangents have directions."
                )
            )


@explains_keywords
def jacfwd(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """The Jacobian by forward differentiation (one pushforward an input element, batched): best for few inputs.

    The answer has the output's structure; in place of each output leaf stands the argument's structure, with leaves of
    shape ``output.shape + input.shape``. With ``has_aux`` the answer is ``(jacobian, aux)``. With ``holomorphic``
    arguments and outputs are complex, and so are the derivatives.

    Raises:
        IntegerGradError, DTypeError: for an argument that is an integer, or complex without ``holomorphic``.

    >>> import volta
    >>> float(volta.jacfwd(lambda x: x * x)(3.0))
    6.0
    """
    check_callable(fun, "jacfwd")

    @functools.wraps(fun, updated=())
    @boundary
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of_chosen, x = _select(fun, argnums, args, kwargs, "jacfwd", holomorphic)
        if not holomorphic:
            _check_real(fun, x)
        out, pushforward, *aux = linearize(of_chosen, x, has_aux=has_aux)
        if holomorphic:
            check_complex(fun, [out], "jacfwd", "outputs")
        columns = vmap(pushforward, out_axes=-1)(_basis(x))
        result = pytrees.map(lambda y: _split_axis(y, y.ndim - 1, x), columns)
        return (result, aux[0]) if has_aux else result

    return jacobian


@explains_keywords
def jacrev(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """The Jacobian by reverse differentiation (one pullback an output element, batched): best for few outputs.

    The answer is laid out as by :func:`jacfwd`. With ``holomorphic`` arguments and outputs are complex; without it the
    derivatives by a complex argument are those of :func:`grad`.

    Raises:
        IntegerGradError, DTypeError: for an argument or output that is an integer, or an output that is complex without
            ``holomorphic``.

    >>> import volta
    >>> float(volta.jacrev(lambda x: x * x)(3.0))
    6.0
    """
    check_callable(fun, "jacrev")

    @functools.wraps(fun, updated=())
    @boundary
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        of_chosen, x = _select(fun, argnums, args, kwargs, "jacrev", holomorphic)
        out, pullback, *aux = vjp(of_chosen, x, has_aux=has_aux)
        for leaf in pytrees.leaves(out):
            if get_aval(leaf).dtype.kind in "biu":
                raise DTypeError(
                    at_user_line(f"jacrev of `{name_of(fun)}`: an output is {get_aval(leaf).short()}, not a float")
                )
            check_output(fun, get_aval(leaf), "jacrev", holomorphic)
        (rows,) = vmap(pullback)(_basis(out))
        leaves, treedef = pytrees.flatten(rows)
        out_leaves, out_tree = pytrees.flatten(out)
        # An input leaf holds the rows of all output leaves: split it, then regroup output first.
        split = [pytrees.leaves(_split_axis(leaf, 0, out)) for leaf in leaves]
        grouped = [pytrees.unflatten(treedef, [part[k] for part in split]) for k in range(len(out_leaves))]
        result = pytrees.unflatten(out_tree, grouped)
        return (result, aux[0]) if has_aux else result

    return jacobian


@explains_keywords
def hessian(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]:
    """The Hessian: forward differentiation of the reverse Jacobian; ``holomorphic`` as in :func:`jacfwd`.

    >>> import volta
    >>> float(volta.hessian(lambda x: x * x * x)(2.0))
    12.0
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
