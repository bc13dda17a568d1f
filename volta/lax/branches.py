"""Branches inside of programs, as in ``jax.lax``: every function is traced, one of them runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.arguments import check_callable, name_of
from volta.api.jit import jit_is_disabled
from volta.api.limits import check as check_limits
from volta.api.limits import limits_of
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.constants import limit_of_conversion
from volta.core.errors import DTypeError, ShapeError, TreeError
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr, Literal
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.lax import bodies
from volta.ops import lax
from volta.ops.base import bind_named
from volta.trace.cond import choose
from volta.trace.jaxpr_trace import eval_closed, trace_to_jaxpr

__all__ = ["cond", "switch"]


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """``branches[index](*operands)``; an index out of range is moved inside.

    One branch runs, inside of ``vmap`` with an index for each example all of them.

    Raises:
        TreeError, ShapeError, DTypeError: branches that differ in the structure, shapes or dtypes of what they return.

    >>> lax.switch(1, [lambda x: x, lambda x: -x], np.float32(2))
    Array(-2., dtype=float32)
    """
    if not branches:
        raise ShapeError(at_user_line("switch: there are no branches"))
    for branch in branches:
        check_callable(branch, "switch")
    aval = get_aval(index)
    if aval.shape:
        raise ShapeError(at_user_line(f"switch: the index must be of rank 0, got {aval.short()}"))
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(at_user_line(f"switch: the index must be an integer, got {aval.short()}"))
    last = min(len(branches) - 1, int(np.iinfo(aval.dtype).max))
    number = lax.convert_element_type(lax.clamp(0, index, last), np.int32)
    return _choice("switch", number, branches, operands)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, **more: Any) -> Any:
    """``true_fun(*operands)`` where ``pred`` holds, else ``false_fun(*operands)``; only that one runs.

    Inside of ``vmap`` with a ``pred`` for each example both run, and results are picked.

    Args:
        pred: a bool or a number of rank 0.
        operands: pytrees of arrays for both functions (or one, as ``operand=``).

    Raises:
        TreeError, ShapeError, DTypeError: functions that differ in the structure, shapes or dtypes of what they return.

    >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, np.float32(2))
    Array(3., dtype=float32)
    """
    if "operand" in more and not operands:
        operands = (more.pop("operand"),)
    if more:
        raise TypeError(at_user_line(f"cond: there is no argument {', '.join(more)}"))
    check_callable(true_fun, "cond")
    check_callable(false_fun, "cond")
    aval = get_aval(pred)
    if aval.shape:
        raise ShapeError(
            at_user_line(f"cond: pred must be of rank 0, got {aval.short()}; volta.numpy.where chooses by element")
        )
    test = pred if aval.dtype == dtypes.bool_ else lax.ne(pred, 0)
    return _choice("cond", lax.convert_element_type(test, np.int32), (false_fun, true_fun), operands)


def _choice(what: str, number: Any, branches: Sequence[Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    if jit_is_disabled() and bodies.known(number):
        return branches[int(number)](*operands)
    values, tree = bodies.values(operands, f"{what}: the operands")
    avals = [x.aval for x in values]
    traced = [bodies.trace(branch, tree, avals, f"{what} traces") for branch in branches]
    first = traced[0]
    for branch, other in zip(branches[1:], traced[1:], strict=True):
        if other.tree != first.tree:
            raise TreeError(
                at_user_line(
                    f"{what}: the branches must return one structure, but `{name_of(branches[0])}` returned "
                    f"{pytrees.text(first.tree)} and `{name_of(branch)}` {pytrees.text(other.tree)}"
                )
            )
    names = [name_of(branch) for branch in branches]
    programs = _agreed(what, names, [t.program for t in traced], first.tree)
    for name, program in zip(names, programs, strict=True):
        check_limits(pytrees.leaves(operands), limits_of(program), name, lambda: bodies.paths(tree))
    return pytrees.unflatten(first.tree, choose(number, programs, values))


def _agreed(what: str, names: list[str], programs: list[ClosedJaxpr], tree: TreeSpec) -> tuple[ClosedJaxpr, ...]:
    """The programs with results of one type each: Python numbers take the type that other branches give."""
    columns = list(zip(*(p.out_avals for p in programs), strict=True))
    wanted = [next((a for a in column if not a.weak_type), None) or _joined(column) for column in columns]
    for path, column, want in zip(bodies.paths(tree), columns, wanted, strict=True):
        for aval in column:
            if aval.shape != want.shape or (aval.dtype != want.dtype and not aval.weak_type):
                shown = ", ".join(f"`{n}` {a.short()}" for n, a in zip(names, column, strict=True))
                error = ShapeError if aval.shape != want.shape else DTypeError
                raise error(
                    at_user_line(f"{what}: the branches must agree in their output{path}, but they gave {shown}")
                )
    for name, program in zip(names, programs, strict=True):
        known = [int(v.value) if isinstance(v, Literal) and v.aval.weak_type else None for v in program.jaxpr.outvars]
        limits = tuple(limit_of_conversion(a, w.dtype) for a, w in zip(program.out_avals, wanted, strict=True))
        check_limits(known, limits, name, lambda: [f"output{path}" for path in bodies.paths(tree)])
    return tuple(_converted(p, tuple(wanted)) for p in programs)


def _joined(column: Sequence[ShapedArray]) -> ShapedArray:
    """The type in which Python numbers and what was made of them alone meet."""
    dtype, weak = dtypes.promote(*((a.dtype, a.weak_type) for a in column))
    return column[0].update(dtype=dtype, weak_type=weak)


def _converted(program: ClosedJaxpr, wanted: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    if tuple(program.out_avals) == wanted:
        return program

    def run(*args: Any) -> tuple[list[Any], None]:
        outs = eval_closed(program, *args)
        return [
            x if get_aval(x) == a else bind_named("convert_element_type", x, new_dtype=a.dtype, weak_type=a.weak_type)
            for x, a in zip(outs, wanted, strict=True)
        ], None

    return trace_to_jaxpr(run, program.in_avals, "cond")[0]
