"""Derivative rules of one's own: ``custom_jvp`` and ``custom_vjp``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from volta.api import custom_rules
from volta.api.arguments import (
    as_tuple,
    call_paths,
    check_callable,
    flat_outputs,
    name_of,
    resolve_positions,
    values_of,
)
from volta.api.custom_rules import Call, add_tangents, zeros_like
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.boundary import boundary
from volta.core.errors import ArgumentError, UnexpectedTracerError
from volta.core.interp import Tracer, current_trace, get_aval
from volta.core.source import at_user_line
from volta.ops.base import bind_named
from volta.trace.custom import CustomCall, Derivative, ForwardRule, ReverseRule
from volta.trace.jvp import has_tangent

P = ParamSpec("P")
R = TypeVar("R")


class _Custom(Generic[P, R]):
    """A function with a rule: what ``custom_jvp`` and ``custom_vjp`` share."""

    fun: Callable[P, R]

    def __init__(self, fun: Callable[P, R], nondiff_argnums: Any = (), nondiff_argnames: Any = ()):
        check_callable(fun, type(self).__name__)
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        self._name = name_of(fun)
        numbers, names = as_tuple(nondiff_argnums), as_tuple(nondiff_argnames)
        what = "nondiff_argnames" if names else "nondiff_argnums"
        self.nondiff_argnums = resolve_positions(fun, numbers, names, what).nums

    def _rule(self, call: Call) -> Derivative:
        raise NotImplementedError

    def _fixed(self, x: Any) -> Any:
        """An argument that is not differentiated, as the function and the rule see it."""
        raise NotImplementedError

    @boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        given = list(positional(self.fun, self._name, type(self).__name__, args, kwargs))
        fixed = {i: self._fixed(given[i]) for i in self.nondiff_argnums if i < len(given)}
        numbers = [i for i in range(len(given)) if i not in fixed]
        leaves, tree = pytrees.flatten(tuple(given[i] for i in numbers))
        values = values_of(
            leaves, f"an argument of `{self._name}`:", lambda: call_paths([given[i] for i in numbers], {}, numbers)
        )
        call = Call(self._name, tree, leaves, values, fixed)

        of_leaves: Callable[..., Any] = self.fun

        def run(*flat: Any) -> list[Any]:
            outs, out_tree = flat_outputs(of_leaves(*call.whole(flat)), self._name)
            call.gave(out_tree, [get_aval(x) for x in outs])
            return outs

        outs = current_trace().process_custom(CustomCall(run, self._rule(call)), values)
        return pytrees.unflatten(call.out_tree, outs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Functions with rules may be wrapped again, and be given the inner ones by the outer name."""
            return inner_rule(self, name)

    def __repr__(self) -> str:
        return f"<volta.{type(self).__name__} of {self._name}>"


def inner_rule(wrapped: Any, name: str) -> Any:
    """The method by which the function that is wrapped is given a rule."""
    if name in ("defjvp", "defjvps", "defvjp", "def_vmap") and "fun" in vars(wrapped):
        return getattr(vars(wrapped)["fun"], name)
    raise AttributeError(f"{type(wrapped).__name__!r} object has no attribute {name!r}", name=name, obj=wrapped)


def positional(fun: Any, name: str, what: str, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The arguments of a call by position, with defaults: as the rules take them."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        if not kwargs:
            return args
        raise TypeError(
            at_user_line(f"{what}: the signature of `{name}` is not known, so pass its arguments by position")
        ) from None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as reason:
        raise TypeError(at_user_line(f"{what}: `{name}` cannot be called so: {reason}")) from None
    bound.apply_defaults()
    extra = [key for key in bound.kwargs if key in kwargs]
    if extra:
        raise TypeError(
            at_user_line(
                f"{what}: rules take arguments by position, and of `{name}` {', '.join(extra)} can only be passed by "
                "name. Let the function take it by position, or from around it (a closure)"
            )
        )
    return bound.args


class custom_jvp(_Custom[P, R]):  # noqa: N801 - JAX's name
    """A function whose forward derivative is a rule of one's own; reverse ones follow from it.

    The rule, given to :meth:`defjvp`, takes the arguments and their tangents as two tuples, and returns the function's
    output and its tangent, which must be linear in the tangents. Where nothing is differentiated the rule is not
    looked at. It may call the function itself, and is differentiated in its turn for higher derivatives.

    Args:
        nondiff_argnums, nondiff_argnames: arguments that are no data (functions, settings): the rule gets them first,
            as they are, and then the two tuples without them.

    Raises:
        AttributeError: the function is called before it has a rule.
        TreeError, ShapeError, DTypeError: the rule returns no pair, or what is not like the function's output.
        NotDifferentiableError: a differentiated value reaches the function from around it (a closure).

    >>> import volta
    >>> import volta.numpy as vnp
    >>> @volta.custom_jvp
    ... def log1pexp(x):
    ...     return vnp.log(1.0 + vnp.exp(x))
    >>> @log1pexp.defjvp
    ... def _(primals, tangents):
    ...     (x,), (x_dot,) = primals, tangents
    ...     return log1pexp(x), (1 - 1 / (1 + vnp.exp(x))) * x_dot
    >>> float(volta.grad(log1pexp)(100.0))
    1.0
    """

    jvp: Callable[..., Any] | None = None
    symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Give the function its rule, ``jvp(primals, tangents) -> (output, tangent)``; returns the rule (a decorator).

        With ``symbolic_zeros`` the tangents of arguments that are not differentiated are
        ``volta.custom_derivatives.SymbolicZero`` instead of zeros, and the rule may return such.
        """
        check_callable(jvp, "defjvp")
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Give a rule for each argument, ``jvp(tangent, output, *primals) -> tangent of the output``; None for 0.

        >>> import volta
        >>> import volta.numpy as vnp
        >>> f = volta.custom_jvp(lambda x, y: vnp.sin(x) * y)
        >>> f.defjvps(lambda t, out, x, y: vnp.cos(x) * t * y, lambda t, out, x, y: vnp.sin(x) * t)
        >>> float(volta.grad(f)(0.0, 3.0))
        3.0
        """
        if self.nondiff_argnums:
            raise TypeError(at_user_line(f"defjvps of `{self._name}`: with nondiff_argnums give one rule, by defjvp"))

        apply: Callable[..., Any] = self

        def jvp(primals: Any, tangents: Any) -> Any:
            out = apply(*primals)
            total = zeros_like(out)
            for rule, t in zip(jvps, tangents, strict=False):
                if rule is not None:
                    total = add_tangents(total, rule(t, out, *primals))
            return out, total

        if len(jvps) == 1 and callable(jvps[0]):
            jvp.__name__ = name_of(jvps[0])
        self.defjvp(jvp)

    def _fixed(self, x: Any) -> Any:
        def stopped(leaf: Any) -> Any:
            traced = isinstance(leaf, Tracer) and has_tangent(leaf.aval.dtype)
            return bind_named("stop_gradient", leaf) if traced else leaf

        return pytrees.map(stopped, x)

    def _rule(self, call: Call) -> Derivative:
        if self.jvp is None:
            raise AttributeError(at_user_line(f"custom_jvp: `{self._name}` has no rule yet: give it one by defjvp"))
        rule = functools.partial(custom_rules.forward, call, self.jvp, self.symbolic_zeros)
        return ForwardRule(self._name, rule, self.jvp)


class custom_vjp(_Custom[P, R]):  # noqa: N801 - JAX's name
    """A function whose reverse derivative is a pair of rules of one's own. It has no forward derivative then.

    ``fwd``, called as the function is, returns its output and residuals (a pytree of arrays) for ``bwd``, which takes
    these and the cotangent of the output, and returns a tuple with a cotangent an argument (None for 0).

    Args:
        nondiff_argnums, nondiff_argnames: arguments that are no data (functions, settings): ``bwd`` gets them first,
            and returns no cotangents for them.

    Raises:
        AttributeError: the function is called before it has rules.
        TreeError, ShapeError, DTypeError: a rule does not return what it should.
        NotDifferentiableError: forward derivatives are asked for; or a differentiated value reaches the function from
            around it (a closure).
        UnexpectedTracerError: an argument named by ``nondiff_argnums`` is traced.

    >>> import volta
    >>> import volta.numpy as vnp
    >>> @volta.custom_vjp
    ... def clipped(x, limit):
    ...     return x  # the gradient is clipped
    >>> clipped.defvjp(lambda x, limit: (x, limit), lambda limit, ct: (vnp.clip(ct, -limit, limit), None))
    >>> float(volta.grad(lambda x: 5.0 * clipped(x, 2.0))(3.0))
    2.0
    """

    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    symbolic_zeros = optimize_remat = False

    @explains_keywords
    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Give the function its rules, ``fwd(*args) -> (output, residuals)`` and ``bwd(residuals, cotangent) -> cts``.

        Args:
            symbolic_zeros: ``fwd`` gets ``volta.custom_derivatives.CustomVJPPrimal`` in place of each array, with
                ``value`` and whether it is differentiated (``perturbed``); cotangents that are zero are
                ``SymbolicZero``.
            optimize_remat: accepted for programs written for JAX. Under ``checkpoint`` what ``fwd`` computes again for
                residuals alone is always dropped from the first computation.
        """
        check_callable(fwd, "defvjp")
        check_callable(bwd, "defvjp")
        if symbolic_zeros and optimize_remat:
            raise ArgumentError(at_user_line("defvjp: optimize_remat does not go with symbolic_zeros"))
        self.fwd, self.bwd = fwd, bwd
        self.symbolic_zeros, self.optimize_remat = symbolic_zeros, optimize_remat

    def _fixed(self, x: Any) -> Any:
        for leaf in pytrees.leaves(x):
            if isinstance(leaf, Tracer):
                raise UnexpectedTracerError(
                    at_user_line(
                        f"custom_vjp: an argument of `{self._name}` that nondiff_argnums names is traced, "
                        f"{leaf.aval.short()}. They are for what is no data, such as functions: pass arrays as other "
                        "arguments, and let bwd return None for them"
                    )
                )
        return x

    def _rule(self, call: Call) -> Derivative:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(at_user_line(f"custom_vjp: `{self._name}` has no rules yet: give it some by defvjp"))
        rules = self.fwd, self.bwd, self.symbolic_zeros
        return ReverseRule(self._name, functools.partial(custom_rules.reverse, call, *rules))
