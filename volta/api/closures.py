"""Functions that bring values with them: a gradient as a closure, and closures as functions of what they close over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from volta.api.arguments import aval_of, check_callable, flat_outputs, name_of, value_of
from volta.api.custom_derivatives import custom_vjp
from volta.core import pytrees
from volta.core.boundary import boundary
from volta.core.errors import TreeError
from volta.core.interp import Tracer, get_aval
from volta.core.ir import ClosedJaxpr, Jaxpr
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr
from volta.trace.jvp import has_tangent


@attrs.frozen(eq=False)
class _Closed:
    """A function that was traced once: its program, and the values that it closes over."""

    program: Jaxpr
    in_tree: TreeSpec
    out_tree: TreeSpec
    consts: tuple[Any, ...]

    def __call__(self, *leaves: Any) -> Any:
        return pytrees.unflatten(self.out_tree, eval_closed(ClosedJaxpr(self.program, self.consts), *leaves))


pytrees.register_node(
    _Closed,
    lambda closed: (closed.consts, (closed.program, closed.in_tree, closed.out_tree)),
    lambda aux, consts: _Closed(aux[0], aux[1], aux[2], tuple(consts)),
)


def _close(fun: Callable[..., Any], args: tuple[Any, ...], doing: str) -> _Closed:
    leaves, tree = pytrees.flatten(args)

    def flat(*values: Any) -> Any:
        return flat_outputs(fun(*pytrees.unflatten(tree, values)), name_of(fun))

    closed, out_tree = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], name_of(fun), doing)
    return _Closed(closed.jaxpr, tree, out_tree, closed.consts)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a gradient of its own, from one that returns both: ``fun(*args) -> (output, vjp)``.

    ``vjp`` is a function from the output's cotangent to those of the arguments: a tuple of them, or the one of a single
    argument. It may close over what ``fun`` has computed. Forward derivatives there are none (see
    :class:`volta.custom_vjp`).

    >>> import volta
    >>> @volta.custom_gradient
    ... def f(x):
    ...     return x**2, lambda ct: ct * x  # half of what is right
    >>> float(volta.grad(f)(3.0))
    3.0
    """
    check_callable(fun, "custom_gradient")

    def parts(args: tuple[Any, ...]) -> tuple[Any, Any]:
        pair = fun(*args)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not callable(pair[1]):
            raise TreeError(
                at_user_line(
                    f"custom_gradient: `{name_of(fun)}` must return a pair, its output and a function from the "
                    f"output's cotangent to those of the arguments, but it returned {type(pair).__name__}"
                )
            )
        return pair[0], pair[1]

    @functools.wraps(fun, updated=())
    def value(*args: Any) -> Any:
        return parts(args)[0]

    def fwd(*args: Any) -> tuple[Any, _Closed]:
        out, rule = parts(args)
        likes = pytrees.map(lambda x: value_of(x) if has_tangent(value_of(x).aval.dtype) else None, out)
        return out, _close(rule, (likes,), "custom_gradient traces")

    def bwd(closed: _Closed, ct: Any) -> Any:
        floats = [x for x in pytrees.leaves(ct) if has_tangent(getattr(x, "dtype", None))]
        given = closed(*floats)
        return given if isinstance(given, (tuple, list)) else (given,)

    fwd.__name__ = bwd.__name__ = name_of(fun)
    wrapped = custom_vjp(value)
    wrapped.defvjp(fwd, bwd)
    return wrapped


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A function and the traced floats that it closes over: ``converted, consts = closure_convert(fun, x)``.

    ``converted(x, *consts)`` is ``fun(x)``. So a function with derivative rules of its own that takes functions can
    take what these close over as arguments, and say how it is differentiated by that.

    Args:
        fun: traced once, for arguments of the types of ``example_args``.

    Raises:
        TreeError: by ``converted``, for arguments of another structure.

    >>> import volta
    >>> def slope(w):
    ...     converted, consts = volta.closure_convert(lambda x: w * x, 2.0)
    ...     return converted(2.0, *consts) + len(consts)
    >>> float(volta.grad(slope)(3.0))
    2.0
    """
    check_callable(fun, "closure_convert")
    closed = _close(fun, example_args, "closure_convert traces")
    moved = [isinstance(c, Tracer) and has_tangent(get_aval(c).dtype) for c in closed.consts]
    hoisted = [c for c, m in zip(closed.consts, moved, strict=True) if m]

    @boundary
    def converted(*args: Any) -> Any:
        split = len(args) - len(hoisted)
        leaves, tree = pytrees.flatten(args[:split])
        if tree != closed.in_tree:
            raise TreeError(
                at_user_line(
                    f"closure_convert: `{name_of(fun)}` was converted for arguments of the structure "
                    f"{pytrees.text(closed.in_tree)} "
                    f"and {len(hoisted)} values behind them, but was called with {pytrees.text(tree)}"
                )
            )
        given = iter(args[split:])
        consts = tuple(value_of(next(given)) if m else c for c, m in zip(closed.consts, moved, strict=True))
        return attrs.evolve(closed, consts=consts)(*(value_of(x) for x in leaves))

    return converted, hoisted
