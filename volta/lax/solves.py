"""Roots and solutions of linear equations, as in ``jax.lax``: differentiated as such, however they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.api.arguments import check_callable, flat_outputs, name_of, operand_of, value_of
from volta.api.custom_derivatives import custom_jvp
from volta.api.custom_rules import zeros_like
from volta.api.forward import linearize
from volta.api.linear import linear_transpose
from volta.core import pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, ShapeError, TreeError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.ops.base import bind_named, instantiate, zeros_of
from volta.trace import linear_solve, masks
from volta.trace.calls import jvp_program, opened
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr
from volta.trace.jvp import has_tangent

__all__ = ["custom_linear_solve", "custom_root"]


@attrs.frozen(eq=False)
class _Traced:
    """A function as a program that takes what it closes over first, and these values."""

    program: ClosedJaxpr
    consts: tuple[Any, ...]
    tree: TreeSpec


def _trace(what: str, fun: Callable[..., Any], tree: TreeSpec, avals: Sequence[ShapedArray], count: int = 1) -> _Traced:
    """``fun`` of ``count`` trees."""

    def flat(*leaves: Any) -> Any:
        n = len(leaves) // count
        return flat_outputs(fun(*(pytrees.unflatten(tree, leaves[i * n : (i + 1) * n]) for i in range(count))), what)

    program, out_tree = trace_to_jaxpr(flat, list(avals) * count, what, "solving traces")
    return _Traced(opened(program), program.consts, out_tree)


def _like(what: str, traced: _Traced, tree: TreeSpec, avals: Sequence[ShapedArray], other: str, has_aux: bool) -> None:
    """Refuse results that are not like the right side or the guess; behind them others may stand."""
    wanted = f"({pytrees.text(tree)}, others)" if has_aux else pytrees.text(tree)
    parts = traced.tree.children() if has_aux else [traced.tree]
    if has_aux and (traced.tree.type is not tuple or len(parts) != 2) or parts[0] != tree:
        raise TreeError(
            at_user_line(f"{what} must return {wanted}, like {other}, but it returned {pytrees.text(traced.tree)}")
        )
    found = traced.program.out_avals[: len(avals)]
    for got, aval in zip(found, avals, strict=True):
        if got.shape != aval.shape or got.dtype != aval.dtype:
            error = ShapeError if got.shape != aval.shape else DTypeError
            raise error(at_user_line(f"{what} must return {aval.short()}, like {other}, but it returned {got.short()}"))


def _values(tree: Any) -> tuple[list[Any], TreeSpec, list[ShapedArray]]:
    leaves, structure = pytrees.flatten(tree)
    values = [value_of(operand_of(x)) for x in leaves]
    return values, structure, [get_aval(x).strip_weak() for x in values]


def _strong(values: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
    return [
        x if get_aval(x) == a else bind_named("convert_element_type", x, new_dtype=a.dtype, weak_type=False)
        for x, a in zip(values, avals, strict=True)
    ]


def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    tangent_solve: Callable[[Callable[[Any], Any], Any], Any],
    has_aux: bool = False,
) -> Any:
    """A root of ``f``, found by ``solve(f, initial_guess)`` and differentiated by what ``f`` closes over.

    Its derivative is that of the implicit function, whatever ``solve`` does: it may be a ``while_loop``.

    Args:
        f: from a pytree of arrays to one of the same structure, shapes and dtypes.
        solve: gives a root, where ``f`` is 0 (that is not checked). With ``has_aux`` it returns ``(root, others)``.
        tangent_solve: from a linear function ``g`` and ``y`` to the ``x`` for which ``g(x)`` is ``y``; for scalars
            ``lambda g, y: y / g(1.0)``.

    Raises:
        TreeError, ShapeError, DTypeError: ``f``, ``solve`` or ``tangent_solve`` returns something unlike the guess.

    >>> import volta
    >>> def root(a):
    ...     newton = lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / volta.grad(f)(x), x)
    ...     return lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> float(root(4.0)), float(volta.grad(root)(4.0))
    (2.0, 0.25)
    """
    for fun in (f, solve, tangent_solve):
        check_callable(fun, "custom_root")
    guess, tree, avals = _values(initial_guess)
    guess = _strong(guess, avals)

    def linearize_and_solve(x: Any, b: Any) -> Any:
        return tangent_solve(linearize(f, x)[1], b)

    of_f = _trace(name_of(f), f, tree, avals)
    _like(f"custom_root: f `{name_of(f)}`", of_f, tree, avals, "initial_guess", False)
    of_solve = _trace(name_of(solve), lambda x: solve(f, x), tree, avals)
    _like(f"custom_root: solve `{name_of(solve)}`", of_solve, tree, avals, "initial_guess", has_aux)
    of_tangent = _trace(name_of(tangent_solve), linearize_and_solve, tree, avals, 2)
    _like(f"custom_root: tangent_solve `{name_of(tangent_solve)}`", of_tangent, tree, avals, "initial_guess", False)

    def root(f_consts: Any, solve_consts: Any, tangent_consts: Any, guess: Any) -> list[Any]:
        return eval_closed(of_solve.program, *solve_consts, *guess)

    implicit = custom_jvp(root)

    @implicit.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        outs: list[Any] = implicit(*primals)
        at, others = masks.parts(outs, len(avals))
        floats = tuple(has_tangent(get_aval(x).dtype) for x in of_f.consts)
        program, have = jvp_program(of_f.program, (*floats, *[False] * len(at)), name_of(f))
        live = [t for t, m in zip(tangents[0], floats, strict=True) if m]
        moved = eval_closed(program, *primals[0], *at, *live)[len(at) :]
        rhs = map(instantiate, masks.spread(have, moved, masks.zeros(avals)))
        slope = eval_closed(of_tangent.program, *primals[2], *at, *rhs)
        return outs, [*(bind_named("neg", t) for t in slope), *zeros_like(others)]

    outs = implicit(list(of_f.consts), list(of_solve.consts), list(of_tangent.consts), guess)
    return pytrees.unflatten(of_solve.tree, outs)


def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The solution of ``matvec(x) = b``, found by ``solve(matvec, b)`` and differentiated as a solution.

    Derivatives by ``b`` and by what ``matvec`` closes over solve again, forwards with ``solve``, backwards with
    ``transpose_solve``. What they do inside is not differentiated, so it may be a ``while_loop``.

    Args:
        matvec: a linear function between pytrees of arrays like ``b``.
        b: the right side.
        solve, transpose_solve: from a linear function and a right side to the solution; ``transpose_solve`` is given
            the transpose of ``matvec``. With ``has_aux`` both return ``(solution, others)``.
        symmetric: ``matvec`` is its own transpose, so ``solve`` serves for both.

    Raises:
        TreeError, ShapeError, DTypeError: a function returns something unlike ``b``.
        NotDifferentiableError: a reverse derivative, where there is no ``transpose_solve``.

    >>> import volta
    >>> def halves(a, b):
    ...     return lax.custom_linear_solve(lambda x: a * x, b, lambda matvec, y: y / matvec(1.0), symmetric=True)
    >>> float(halves(2.0, 6.0)), [float(g) for g in volta.grad(halves, (0, 1))(2.0, 6.0)]
    (3.0, [-1.5, 0.5])
    """
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    for fun in (matvec, solve, *([] if transpose_solve is None else [transpose_solve])):
        check_callable(fun, "custom_linear_solve")
    values, tree, avals = _values(b)
    values = _strong(values, avals)

    def traced(what: str, fun: Callable[[Any], Any], named: Any, aux: bool) -> _Traced:
        found = _trace(name_of(named), fun, tree, avals)
        _like(f"custom_linear_solve: {what} `{name_of(named)}`", found, tree, avals, "b", aux)
        return found

    product = traced("matvec", matvec, matvec, False)
    solving = traced("solve", lambda y: solve(matvec, y), solve, has_aux)
    turned = back = None
    if transpose_solve is not None:
        transpose = transpose_solve
        vecmat = matvec if symmetric else _transposed(matvec, pytrees.unflatten(tree, [zeros_of(a) for a in avals]))
        turned = product if symmetric else traced("the transpose of matvec", vecmat, matvec, False)
        back = traced("transpose_solve", lambda y: transpose(vecmat, y), transpose, has_aux)
    each = [product, turned, solving, back]
    programs = linear_solve.Programs(*(None if t is None else t.program for t in each))  # type: ignore[arg-type]
    outs = linear_solve.solve(programs, [() if t is None else t.consts for t in each], values)
    return pytrees.unflatten(solving.tree, outs)


def _transposed(matvec: Callable[[Any], Any], like: Any) -> Callable[[Any], Any]:
    return lambda y: linear_transpose(matvec, like)(y)[0]
