"""Reverse derivatives: ``grad``, ``value_and_grad`` and ``vjp``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, overload

import attrs
import numpy as np

from volta.api.arguments import (
    call_paths,
    check_callable,
    flat_outputs,
    float0,
    name_of,
    numbers_among,
    place_of,
    select_argnums,
    value_of,
    values_of,
    with_numbers,
)
from volta.core import dtypes, pytrees
from volta.core.absent import explains_keywords
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import DTypeError, IntegerGradError, NonScalarGradError, ShapeError, TreeError
from volta.core.interp import get_aval
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.ops.base import instantiate
from volta.ops.lax import convert_element_type
from volta.ops.primitive import Zero
from volta.trace import attention as _attention  # noqa: F401 (enters its rules)
from volta.trace.jvp import has_tangent
from volta.trace.linearize import Linear, linearize_flat
from volta.trace.transpose import backward_pass

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


def flat_fun(
    fun: Callable[..., Any], given: Sequence[Any], values: Sequence[Any], trees: Sequence[TreeSpec], has_aux: bool,
    transform: str,
) -> Callable[..., tuple[list[Any], tuple[TreeSpec, Any]]]:  # fmt: skip
    """``fun`` over flat leaves: ``(output leaves, (output tree, aux))``. ``values`` are the leaves of the arguments
    ``given``; ``trees`` has one tree an argument."""
    name = name_of(fun)
    numbers = numbers_among([x for arg in given for x in pytrees.leaves(arg)], values)

    def flat(*own: Any) -> tuple[list[Any], tuple[TreeSpec, Any]]:
        out, aux = fun(*_unflatten_args(trees, with_numbers(own, numbers))), None
        if has_aux:
            if not isinstance(out, tuple) or len(out) != 2:
                raise TreeError(
                    at_user_line(
                        f"{transform} with has_aux=True: `{name}` must return a pair (output, aux), "
                        f"got {type(out).__name__}"
                    )
                )
            out, aux = out
        values, out_tree = flat_outputs(out, name)
        return values, (out_tree, aux)

    return flat


def _paths_of(number: int, arg: Any) -> list[str]:
    return call_paths([arg], {}, [number])


def flatten_args(fun: Any, args: Sequence[Any]) -> tuple[list[Any], list[TreeSpec]]:
    values, trees = [], []
    for i, arg in enumerate(args):
        leaves, tree = pytrees.flatten(arg)
        values += values_of(leaves, f"an argument of `{name_of(fun)}`:", partial(_paths_of, i, arg))
        trees.append(tree)
    return values, trees


def _unflatten_args(trees: Sequence[TreeSpec], leaves: Sequence[Any]) -> tuple[Any, ...]:
    it = iter(leaves)
    return tuple(pytrees.unflatten(tree, [next(it) for _ in range(tree.num_leaves)]) for tree in trees)


def cotangent_value(ct: Any) -> Any:
    """A cotangent as users see it: zeros where it is zero, float0 for integers."""
    if isinstance(ct, Zero) and not has_tangent(ct.aval.dtype):
        return np.zeros(ct.aval.shape, float0)
    return value_of(instantiate(ct))


def weak_like(ct: Any, aval: ShapedArray) -> Any:
    """A derivative of what counts as a Python number, or at one, is weakly typed too: an update with it does not change
    the number's type."""
    if aval.weak_type and has_tangent(aval.dtype) and not get_aval(ct).weak_type:
        return convert_element_type(ct, aval.dtype, weak_type=True)
    return ct


def check_like(x: Any, aval: ShapedArray, what: str) -> Any:
    """A tangent or cotangent given by the user, or Zero for float0; refused unless shape and dtype agree."""
    if getattr(x, "dtype", None) == float0:
        if has_tangent(aval.dtype) or x.shape != aval.shape:
            raise DTypeError(at_user_line(f"{what} is float0, but the value is {aval.short()}"))
        return Zero(aval.strip_weak())
    value = value_of(x)
    if not has_tangent(aval.dtype):
        raise DTypeError(
            at_user_line(
                f"{what} is {value.aval.short()}, but the value is {aval.short()}, which has no tangents but float0: "
                "pass numpy.zeros(shape, volta.float0)"
            )
        )
    if value.aval.shape != aval.shape:
        raise ShapeError(at_user_line(f"{what} is {value.aval.short()}, but the value is {aval.short()}"))
    if value.aval.dtype != aval.dtype:
        if value.aval.weak_type and value.aval.shape == () and not isinstance(x, np.ndarray):
            number = type(x) in (int, float, complex)
            return value_of(np.asarray(x, dtype=aval.dtype)) if number else value.astype(aval.dtype)
        raise DTypeError(
            at_user_line(f"{what} is {value.aval.short()}, but the value is {aval.short()}; convert it first")
        )
    return value


@attrs.frozen(eq=False)
class Pullback:
    """What ``vjp`` gives back: from a cotangent of the output to a tuple with a cotangent an argument."""

    linear: Linear
    in_trees: tuple[TreeSpec, ...]
    in_avals: tuple[ShapedArray, ...]
    out_tree: TreeSpec
    name: str

    @boundary
    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        leaves, tree = pytrees.flatten(cotangent)
        if tree != self.out_tree:
            raise TreeError(
                at_user_line(
                    f"the cotangent given to the vjp of `{self.name}` has the structure {pytrees.text(tree)}, "
                    f"but its output has {pytrees.text(self.out_tree)}"
                )
            )
        what = f"a cotangent given to the vjp of `{self.name}`"
        cts = [check_like(x, aval, what) for x, aval in zip(leaves, self.linear.out_avals, strict=True)]
        return _unflatten_args(self.in_trees, [cotangent_value(ct) for ct in self.pull(cts)])

    def pull(self, cts: Sequence[Any]) -> list[Any]:
        """Flat cotangents of outputs to flat cotangents of inputs; both may be Zero."""
        linear = self.linear
        live = [ct for ct, nonzero in zip(cts, linear.nonzero_out, strict=True) if nonzero]
        n = len(linear.program.jaxpr.invars)
        given = iter(backward_pass(linear.program, [True] * n, [None] * n, live))
        pairs = zip(linear.nonzero_in, self.in_avals, strict=True)
        return [next(given) if nonzero else Zero(aval.strip_weak()) for nonzero, aval in pairs]


def vjp_of(fun: Callable[..., Any], args: Sequence[Any], has_aux: bool, transform: str) -> tuple[Any, Pullback, Any]:
    values, trees = flatten_args(fun, args)
    nonzero = [has_tangent(x.aval.dtype) for x in values]
    flat = flat_fun(fun, args, values, trees, has_aux, transform)
    outs, linear, (out_tree, aux) = linearize_flat(flat, values, nonzero, name_of(fun))
    pullback = Pullback(linear, tuple(trees), tuple(x.aval for x in values), out_tree, name_of(fun))
    return outs, pullback, aux


@overload
def vjp(fun: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Pullback]: ...
@overload
def vjp(fun: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]) -> tuple[R, Pullback, A]: ...
@overload
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool) -> Any: ...
@explains_keywords
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Reverse derivative: ``out, pullback = vjp(f, x)``, then ``(x_bar,) = pullback(out_bar)``.

    The pullback may be called again and again. With ``has_aux`` the function returns ``(out, aux)`` and the answer is
    ``(out, pullback, aux)``. Integer primals get cotangents of dtype ``volta.float0``.

    Raises:
        TreeError, ShapeError, DTypeError: by the pullback, for a cotangent that is not like the output.

    >>> import volta
    >>> out, pullback = volta.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> [float(ct) for ct in pullback(1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "vjp")
    outs, pullback, aux = vjp_of(fun, primals, has_aux, "vjp")
    out = pytrees.unflatten(pullback.out_tree, [value_of(x) for x in outs])
    return (out, pullback, aux) if has_aux else (out, pullback)


@explains_keywords
def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[R, Any]]:
    """A function that returns ``(fun(*args), gradient)``; see :func:`grad` for the arguments and errors.

    With ``has_aux`` it returns ``((value, aux), gradient)``.

    >>> import volta
    >>> value, gradient = volta.value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    return _value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, "value_and_grad")


def _value_and_grad(
    fun: Callable[..., Any], argnums: Any, has_aux: bool, holomorphic: bool, allow_int: bool, transform: str
) -> Callable[..., Any]:
    check_callable(fun, transform)

    @functools.wraps(fun, updated=())
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen = select_argnums(argnums, len(args), transform, fun)

        @functools.wraps(fun, updated=())
        def of_chosen(*some: Any) -> Any:
            full = list(args)
            for i, x in zip(chosen, some, strict=True):
                full[i] = x
            return fun(*full, **kwargs)

        selected = [args[i] for i in chosen]
        if not allow_int:
            check_inexact(fun, chosen, selected, transform)
        if holomorphic:
            check_complex(fun, selected, transform, "inputs")
        outs, pullback, aux = vjp_of(of_chosen, selected, has_aux, transform)
        _check_scalar(fun, outs, pullback.out_tree, transform)
        check_output(fun, get_aval(outs[0]), transform, holomorphic)
        one = np.ones((), outs[0].aval.dtype)[()]
        cts = [cotangent_value(ct) for ct in pullback.pull([one])]
        cts = [weak_like(ct, aval) for ct, aval in zip(cts, pullback.in_avals, strict=True)]
        grads = _unflatten_args(pullback.in_trees, cts)
        value = value_of(outs[0])
        gradient = grads if isinstance(argnums, (tuple, list)) else grads[0]
        return ((value, aux) if has_aux else value), gradient

    return wrapped


@overload
def grad(
    fun: Callable[P, tuple[Any, A]],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: Literal[True],
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[Any, A]]: ...
@overload
def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]: ...
@explains_keywords
def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """The gradient of a function that returns a float scalar.

    The answer has the structure, shapes and dtypes of argument ``argnums`` (a tuple of them when ``argnums`` is one).

    Args:
        has_aux: ``fun`` returns ``(scalar, aux)``; the answer is ``(gradient, aux)``.
        holomorphic: arguments and output are complex and the function is complex differentiable: the answer is its
            complex derivative. Without it the output must be real; the gradient of a complex argument x + iy is
            df/dx - i df/dy then (JAX's convention; a step down is along its conjugate).
        allow_int: integer arguments get a gradient of dtype ``volta.float0`` instead of an error.

    Raises:
        NonScalarGradError: the output is no float scalar.
        IntegerGradError: an argument to differentiate is not of a float or complex dtype.
        DTypeError: the output is complex, or with ``holomorphic`` an argument or the output is not.
        NotDifferentiableError: an operation on the way has no derivative.

    >>> import volta
    >>> float(volta.grad(lambda x: x * x)(3.0))
    6.0
    """
    value_and_gradient = _value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, "grad")

    @functools.wraps(fun, updated=())
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = value_and_gradient(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def check_inexact(fun: Any, chosen: Sequence[int], selected: Sequence[Any], transform: str) -> None:
    for i, arg in zip(chosen, selected, strict=True):
        leaves = pytrees.leaves(arg)
        for k, x in enumerate(values_of(leaves, f"an argument of `{name_of(fun)}`:", partial(_paths_of, i, arg))):
            if not has_tangent(x.aval.dtype):
                path = pytrees.leaf_paths(arg)[k]
                raise IntegerGradError(
                    at_user_line(
                        f"{transform} of `{name_of(fun)}` with respect to argument {i}{path}, which is "
                        f"{x.aval.short()}: only floats have gradients. Pass a float (3.0, x.astype('float32')), "
                        "choose other arguments with argnums, or pass allow_int=True for a gradient of dtype float0."
                    )
                    + place_of(fun)
                )


def _check_scalar(fun: Any, outs: Sequence[Any], tree: TreeSpec, transform: str) -> None:
    advice = (
        "Reduce it first (return y.sum() or y.mean()); for several outputs use volta.jacrev or volta.vjp; for extra "
        "outputs return (loss, extra) with has_aux=True."
    )
    if tree != pytrees.structure(0):
        raise NonScalarGradError(
            at_user_line(
                f"{transform} needs a function with one scalar output, but `{name_of(fun)}` returned "
                f"{pytrees.text(tree)}"
            )
            + f"{place_of(fun)}\n{advice}"
        )
    aval = get_aval(outs[0])
    if aval.shape != ():
        raise NonScalarGradError(
            at_user_line(f"{transform} needs a scalar output, but `{name_of(fun)}` returned {aval.short()}")
            + f"{place_of(fun)}\n{advice}"
        )
    if not dtypes.is_inexact(aval.dtype):
        raise NonScalarGradError(
            at_user_line(
                f"{transform} needs a float output, but `{name_of(fun)}` returned {aval.short()}: "
                "integers and booleans have no gradient. Compute the loss in a float dtype."
            )
            + place_of(fun)
        )


def check_output(fun: Any, aval: ShapedArray, transform: str, holomorphic: bool) -> None:
    """Refuse an output that is complex where the function is not said to be holomorphic, and the other way round."""
    if holomorphic:
        check_complex(fun, [aval], transform, "outputs")
    elif dtypes.is_complex(aval.dtype):
        raise DTypeError(
            at_user_line(
                f"{transform} needs real outputs, but `{name_of(fun)}` returned {aval.short()}. If the function is "
                "holomorphic, pass holomorphic=True; else differentiate its real and imaginary part, or use volta.vjp."
            )
            + place_of(fun)
        )


def check_complex(fun: Any, values: Sequence[Any], transform: str, what: str) -> None:
    """Refuse arguments or results of a holomorphic function that are not complex."""
    for x in pytrees.leaves(list(values)):
        aval = x if isinstance(x, ShapedArray) else value_of(x).aval
        if not dtypes.is_complex(aval.dtype):
            raise DTypeError(
                at_user_line(
                    f"{transform} of `{name_of(fun)}` with holomorphic=True needs complex {what}, not {aval.short()}"
                )
                + place_of(fun)
            )
