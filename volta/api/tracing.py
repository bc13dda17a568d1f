"""Looking at programs without running them: ``make_jaxpr`` and ``eval_shape``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from volta.api.arguments import ShapeDtypeStruct, aval_of, check_callable, name_of, resolve_positions
from volta.api.programs import flatten_call, trace_call
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.axes import Axis, named
from volta.core.boundary import boundary
from volta.core.ir import ClosedJaxpr

P = ParamSpec("P")
R = TypeVar("R")


@overload
def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    return_shape: Literal[False] = False,
    *,
    axis_env: Any = None,
) -> Callable[..., ClosedJaxpr]: ...
@overload
def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    *,
    return_shape: Literal[True],
    axis_env: Any = None,
) -> Callable[..., tuple[ClosedJaxpr, Any]]: ...
@explains_keywords
def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    return_shape: bool = False,
    *,
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
) -> Callable[..., Any]:
    """A function that returns the program of ``fun`` for its arguments (arrays or ShapeDtypeStruct).

    With ``return_shape`` it returns ``(program, output)``, the output as a pytree of ShapeDtypeStruct. ``axis_env`` has
    names of axes, with their sizes, that ``fun`` may use in collectives.

    >>> import volta
    >>> print(volta.make_jaxpr(lambda x: x * 2)(volta.ShapeDtypeStruct((3,), "float32")))
    { lambda ; a:f32[3] . let
        b:f32[3] = mul a 2.0:f32[]
      in (b,) }
    """
    check_callable(fun, "make_jaxpr")
    static = resolve_positions(fun, static_argnums, None, "static_argnums")

    @functools.wraps(fun, updated=())
    @boundary
    def made(*args: Any, **kwargs: Any) -> Any:
        call = flatten_call(name_of(fun), static, args, kwargs)
        with named(*(Axis(size, name) for name, size in axis_env or ())):
            traced = trace_call(fun, name_of(fun), call, [aval_of(x) for x in call.leaves], "make_jaxpr traces")
        if not return_shape:
            return traced.program
        return traced.program, _structs(traced)

    return made


def _structs(traced: Any) -> Any:
    avals = traced.program.out_avals
    return pytrees.unflatten(traced.out_tree, [ShapeDtypeStruct(a.shape, a.dtype, a.weak_type) for a in avals])


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of ``fun(*args, **kwargs)`` as a pytree of ShapeDtypeStruct; nothing is computed.

    >>> import volta
    >>> volta.eval_shape(lambda x: x * 2, volta.ShapeDtypeStruct((3,), "float32"))
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    check_callable(fun, "eval_shape")
    call = flatten_call(name_of(fun), resolve_positions(fun, None, None, ""), args, kwargs)
    avals = [aval_of(x) for x in call.leaves]
    return _structs(trace_call(fun, name_of(fun), call, avals, "eval_shape traces"))
