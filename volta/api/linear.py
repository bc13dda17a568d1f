"""Transposes of linear functions, and the two halves of reverse mode apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.arguments import ShapeDtypeStruct, aval_of, check_callable, select_argnums
from volta.api.autodiff import Pullback, vjp
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.ir import ClosedJaxpr
from volta.trace.linearize import Linear


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from a cotangent of its output to those of its arguments.

    Of ``primals`` only shapes and dtypes count (they may be ShapeDtypeStruct). That ``fun`` is linear is taken on
    trust: of any other function this is the transpose of its derivative at 0.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> [float(v) for v in volta.linear_transpose(lambda x, y: 2 * x - y, 1.0, 1.0)(1.0)]
    [2.0, -1.0]
    """
    check_callable(fun, "linear_transpose")
    zeros = pytrees.map(_zero, primals)

    @boundary
    def transposed(cotangent: Any) -> tuple[Any, ...]:
        return vjp(fun, *zeros)[1](cotangent)

    return transposed


def _zero(x: Any) -> Any:
    aval = x if isinstance(x, ShapeDtypeStruct) else aval_of(x)
    if not isinstance(x, ShapeDtypeStruct) and aval.weak_type and not aval.shape:
        return type(x)(0) if type(x) in (int, float, complex) else 0.0
    return np.zeros(aval.shape, aval.dtype)


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int]
) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
    """``fun`` as two functions: ``fwd(*args) -> (output, residuals)`` and ``bwd(residuals, cotangent) -> cotangents``.

    The residuals are a pytree, so that both halves can be jitted each.

    >>> import volta
    >>> fwd, bwd = volta.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> out, residuals = fwd(2.0, 3.0)
    >>> [float(g) for g in bwd(residuals, 1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "fwd_and_bwd")

    @boundary
    def fwd(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        chosen = select_argnums(argnums, len(args), "fwd_and_bwd", fun)

        @functools.wraps(fun, updated=())
        def of_chosen(*values: Any) -> Any:
            full = list(args)
            for i, value in zip(chosen, values, strict=True):
                full[i] = value
            return fun(*full, **kwargs)

        return vjp(of_chosen, *(args[i] for i in chosen))

    @boundary
    def bwd(residuals: Any, cotangent: Any) -> Any:
        cotangents = residuals(cotangent)
        return cotangents[0] if isinstance(argnums, int) else cotangents

    return fwd, bwd


# A pullback is a pytree of its residuals: it can be an output of one jitted function and an argument of another.


def _flatten_pullback(pullback: Pullback) -> tuple[Any, Any]:
    linear = pullback.linear
    rest = (linear.program.jaxpr, linear.nonzero_in, linear.nonzero_out, linear.out_avals)
    return linear.program.consts, (*rest, pullback.in_trees, pullback.in_avals, pullback.out_tree, pullback.name)


def _unflatten_pullback(aux: Any, residuals: Any) -> Pullback:
    jaxpr, nonzero_in, nonzero_out, out_avals, *rest = aux
    return Pullback(Linear(ClosedJaxpr(jaxpr, tuple(residuals)), nonzero_in, nonzero_out, out_avals), *rest)


pytrees.register_node(Pullback, _flatten_pullback, _unflatten_pullback)
