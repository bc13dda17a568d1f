"""Loops and choices inside of programs, as in ``jax.lax``: the function is traced once, however often it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from volta.api.arguments import check_callable, flat_outputs, name_of, values_of
from volta.api.vmap import vmap
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, ShapeError, TreeError
from volta.core.interp import Value, get_aval
from volta.core.ir import ClosedJaxpr
from volta.core.pytrees import PyTreeDef
from volta.core.source import at_user_line
from volta.ops import lax
from volta.ops.base import bind_named
from volta.trace.cond import choose
from volta.trace.jaxpr_trace import eval_closed, is_concrete, trace_to_jaxpr
from volta.trace.scan import run_scan
from volta.trace.while_loop import run_while

__all__ = ["cond", "fori_loop", "map", "scan", "switch", "while_loop"]


@attrs.frozen(eq=False)
class _Traced:
    program: ClosedJaxpr
    tree: PyTreeDef


def _trace(fun: Callable[..., Any], tree: PyTreeDef, avals: Sequence[ShapedArray], doing: str) -> _Traced:
    """The program of ``fun``, which takes the arguments of a call as a pytree."""
    name = name_of(fun)

    def flat(*leaves: Any) -> tuple[list[Any], PyTreeDef]:
        return flat_outputs(fun(*pytrees.unflatten(tree, leaves)), name)

    return _Traced(*trace_to_jaxpr(flat, avals, name, doing))


def _values(tree: Any, what: str) -> tuple[list[Any], PyTreeDef]:
    leaves, structure = pytrees.flatten(tree)
    return values_of(leaves, what, lambda: pytrees.leaf_paths(tree)), structure


def _paths(tree: PyTreeDef) -> list[str]:
    return pytrees.leaf_paths(pytrees.unflatten(tree, list(range(tree.num_leaves))))


Tracing = Callable[[Sequence[ShapedArray]], tuple[_Traced, list[ShapedArray], PyTreeDef]]
"""Traces a loop's body for carried values of these types: the program, the types that come out, their structure."""


def _settled(what: str, init: list[Any], tree: PyTreeDef, trace: Tracing) -> tuple[_Traced, list[Any]]:
    """The traced body of a loop, and the first values in the types that it carries.

    A Python number among the first values takes the type that the body gives it. Anything else must come out as it went
    in.
    """
    traced, outs, out_tree = trace([x.aval for x in init])
    if out_tree != tree:
        raise TreeError(
            at_user_line(
                f"{what}: the function must return what it carries in the structure that it was given, {tree}, but it "
                f"returned {out_tree}"
            )
        )
    if any(x.aval.weak_type and x.aval != a for x, a in zip(init, outs, strict=True)):
        init = [
            bind_named("convert_element_type", x, new_dtype=a.dtype, weak_type=a.weak_type)
            if x.aval.weak_type and x.aval.shape == a.shape and x.aval != a
            else x
            for x, a in zip(init, outs, strict=True)
        ]
        traced, outs, _ = trace([x.aval for x in init])
    wrong = [
        (path or " itself", x.aval.short(), a.short())
        for path, x, a in zip(_paths(tree), init, outs, strict=True)
        if (x.aval.shape, x.aval.dtype) != (a.shape, a.dtype)
    ]
    if wrong:
        rows = "\n".join(f"  carry{path}: goes in as {before}, comes out as {after}" for path, before, after in wrong)
        error = ShapeError if any(x.aval.shape != a.shape for x, a in zip(init, outs, strict=True)) else DTypeError
        raise error(
            at_user_line(f"{what}: what is carried must keep its shape and dtype from turn to turn, but")
            + f"\n{rows}\nGive the first value the type that the function returns, or convert the result (x.astype)."
        )
    return traced, init


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Run ``f`` for each element of ``xs`` along axis 0, handing a carried value on; results are stacked.

    ``carry, y = f(carry, x)``: the same values as a Python loop that calls ``f``, and the same bits.

    Args:
        f: from what is carried and one element (pytrees of arrays) to what is carried next, of the same shapes and
            dtypes, and a result.
        init: what is carried into the first turn.
        xs: arrays with one length along axis 0, or None.
        length: how many turns; needed only where ``xs`` has no arrays.
        reverse: from the last element to the first; each result has the place of its element.
        unroll: how many turns may run between two looks at how far the scan is (True: all); where turns are short,
            more of them are faster. It changes no bit.

    Returns:
        What is carried after the last turn, and the results stacked along a new axis 0.

    Raises:
        ShapeError: lengths that differ, or a carried value that changes its shape.
        DTypeError: a carried value that changes its dtype.
        TreeError: ``f`` returns no pair, or what it carries in another structure.

    >>> lax.scan(lambda total, x: (total + x, total), 0, np.int32([1, 2, 3]))
    (Array(6, dtype=int32), Array([0, 1, 3], dtype=int32))
    """
    check_callable(f, "scan")
    name = f"scan of `{name_of(f)}`"
    start, carry_tree = _values(init, f"{name}: the first value")
    read, xs_tree = _values(xs, f"{name}: xs")
    n = _length(name, read, xs_tree, length)
    _, tree = pytrees.flatten((init, xs))
    slices = [x.aval.update(shape=x.aval.shape[1:]) for x in read]
    ys_tree: list[PyTreeDef] = []

    def trace(avals: Sequence[ShapedArray]) -> tuple[_Traced, list[ShapedArray], PyTreeDef]:
        def pair(carry: Any, x: Any) -> Any:
            out = f(carry, x)
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise TreeError(
                    at_user_line(f"{name}: the function must return a pair (carry, y), got {type(out).__name__}")
                )
            ys_tree[:] = [pytrees.structure(out[1])]
            carried[:] = [pytrees.structure(out[0])]
            return tuple(out)

        carried: list[PyTreeDef] = []
        traced = _trace(pair, tree, [*avals, *slices], "scan traces")
        return traced, traced.program.out_avals[: carried[0].num_leaves], carried[0]

    traced, start = _settled(name, start, carry_tree, trace)
    together = n if unroll is True else 1 if unroll is False else operator.index(unroll)
    if together < 1:
        raise ShapeError(at_user_line(f"{name}: unroll must be at least 1, got {unroll}"))
    outs = run_scan(traced.program, [], start, read, length=n, reverse=bool(reverse), unroll=together)
    k = len(start)
    return pytrees.unflatten(carry_tree, outs[:k]), pytrees.unflatten(ys_tree[0], outs[k:])


def _length(name: str, xs: Sequence[Any], tree: PyTreeDef, length: int | None) -> int:
    scalars = [path for path, x in zip(_paths(tree), xs, strict=True) if not x.aval.shape]
    if scalars:
        raise ShapeError(at_user_line(f"{name}: xs{scalars[0]} has no axis to run along (its rank is 0)"))
    sizes = [x.aval.shape[0] for x in xs]
    if length is not None:
        sizes.append(operator.index(length))
    if not sizes:
        raise ShapeError(
            at_user_line(f"{name}: xs has no arrays, so it does not say how many turns to run; pass length")
        )
    if len(set(sizes)) > 1:
        rows = [f"xs{path} has {x.aval.shape[0]}" for path, x in zip(_paths(tree), xs, strict=True)]
        given = [] if length is None else [f"length is {length}"]
        raise ShapeError(at_user_line(f"{name}: the lengths along axis 0 differ: {', '.join([*rows, *given])}"))
    if sizes[0] < 0:
        raise ShapeError(at_user_line(f"{name}: length must not be negative, got {length}"))
    return sizes[0]


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:  # noqa: A001 - jax.lax's name
    """``f`` of each element of ``xs`` along axis 0, one after the other, stacked.

    ``volta.vmap`` gives the same bits at once; this needs the memory of one element. With ``batch_size`` so many
    elements are computed at once.

    >>> lax.map(lambda x: x * x, np.float32([1, 2, 3]))
    Array([1., 4., 9.], dtype=float32)
    """
    if batch_size is not None:
        return _map_batches(f, xs, operator.index(batch_size))
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def _map_batches(f: Callable[[Any], Any], xs: Any, size: int) -> Any:
    from_batch = vmap(f)
    leaves, tree = _values(xs, "map: xs")
    n = _length("map", leaves, tree, None)
    whole = n // size * size
    parts = []
    if whole:
        cut = [lax.reshape(lax.slice_in_dim(x, 0, whole), (n // size, size, *x.aval.shape[1:])) for x in leaves]
        out = map(from_batch, pytrees.unflatten(tree, cut))
        parts.append(pytrees.map(lambda y: lax.reshape(y, (whole, *y.shape[2:])), out))
    if whole < n or not n:
        parts.append(from_batch(pytrees.unflatten(tree, [lax.slice_in_dim(x, whole, n) for x in leaves])))
    return parts[0] if len(parts) == 1 else pytrees.map(lambda *ys: lax.concatenate(ys, 0), *parts)


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """``body_fun`` again and again, from a value to the next, as long as ``cond_fun`` of it is true.

    Its derivatives are forward ones (``volta.jvp``): for ``volta.grad`` use :func:`scan`, or :func:`fori_loop` with
    bounds that are known when it is traced.

    Args:
        cond_fun: from the value (a pytree of arrays) to a bool of rank 0.
        body_fun: from the value to the next, of the same structure, shapes and dtypes.
        init_val: the first value.

    Raises:
        TreeError, ShapeError, DTypeError: the value changes its structure, shape or dtype; or the condition is no bool.

    >>> lax.while_loop(lambda x: x < 100, lambda x: 2 * x, np.int32(3))
    Array(192, dtype=int32)
    """
    check_callable(cond_fun, "while_loop")
    check_callable(body_fun, "while_loop")
    name = f"while_loop of `{name_of(body_fun)}`"
    start, carry_tree = _values(init_val, f"{name}: the first value")
    _, tree = pytrees.flatten((init_val,))

    def trace(avals: Sequence[ShapedArray]) -> tuple[_Traced, list[ShapedArray], PyTreeDef]:
        traced = _trace(body_fun, tree, avals, "while_loop traces")
        return traced, traced.program.out_avals, traced.tree

    body, start = _settled(name, start, carry_tree, trace)
    condition = _trace(cond_fun, tree, [x.aval for x in start], "while_loop traces")
    found = condition.program.out_avals
    if len(found) != 1 or condition.tree != pytrees.structure(0):
        raise TreeError(at_user_line(f"{name}: the condition must return one value, got {condition.tree}"))
    _check_test(f"{name}: the condition", found[0])
    return pytrees.unflatten(carry_tree, run_while(condition.program, [], body.program, [], start))


def _check_test(what: str, aval: ShapedArray) -> None:
    if aval.shape:
        raise ShapeError(at_user_line(f"{what} must be of rank 0, got {aval.short()}"))
    if aval.dtype != dtypes.bool_:
        raise DTypeError(at_user_line(f"{what} must be a bool, got {aval.short()}"))


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """``for i in range(lower, upper): value = body_fun(i, value)``.

    With bounds that are known when it is traced it is a :func:`scan`, which ``volta.grad`` differentiates; otherwise a
    :func:`while_loop`. ``unroll`` is that of a scan.

    >>> lax.fori_loop(0, 5, lambda i, x: x + i, np.int32(0))
    Array(10, dtype=int32)
    """
    check_callable(body_fun, "fori_loop")
    bounds = [get_aval(x) for x in (lower, upper)]
    for what, aval in zip(("lower", "upper"), bounds, strict=True):
        if aval.shape or not dtypes.is_integer(aval.dtype):
            raise DTypeError(at_user_line(f"fori_loop: {what} must be an integer of rank 0, got {aval.short()}"))
    strong = [a.dtype for a in bounds if not a.weak_type] or [bounds[0].dtype]
    if len(set(strong)) > 1:
        names = " and ".join(d.name for d in strong)
        raise DTypeError(at_user_line(f"fori_loop: lower and upper must have one dtype, got {names}"))
    known = [not isinstance(x, Value) or is_concrete(x) for x in (lower, upper)]
    first = lax.convert_element_type(lower, strong[0])
    if all(known):
        count = max(0, int(upper) - int(lower))

        def turn(carry: Any, _: Any) -> Any:
            i, value = carry
            return (lax.add(i, 1), body_fun(i, value)), None

        turn.__name__ = name_of(body_fun)
        return scan(turn, (first, init_val), None, count, unroll=unroll or 1)[0][1]
    end = lax.convert_element_type(upper, strong[0])

    def step(carry: Any) -> Any:
        i, end, value = carry
        return lax.add(i, 1), end, body_fun(i, value)

    step.__name__ = name_of(body_fun)
    return while_loop(lambda carry: lax.lt(carry[0], carry[1]), step, (first, end, init_val))[2]


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
    values, tree = _values(operands, f"{what}: the operands")
    avals = [x.aval for x in values]
    traced = [_trace(branch, tree, avals, f"{what} traces") for branch in branches]
    first = traced[0]
    for branch, other in zip(branches[1:], traced[1:], strict=True):
        if other.tree != first.tree:
            raise TreeError(
                at_user_line(
                    f"{what}: the branches must return one structure, but `{name_of(branches[0])}` returned "
                    f"{first.tree} and `{name_of(branch)}` {other.tree}"
                )
            )
    programs = _agreed(what, [name_of(b) for b in branches], [t.program for t in traced], first.tree)
    return pytrees.unflatten(first.tree, choose(number, programs, values))


def _agreed(what: str, names: list[str], programs: list[ClosedJaxpr], tree: PyTreeDef) -> tuple[ClosedJaxpr, ...]:
    """The programs with results of one type each: Python numbers take the type that other branches give."""
    columns = list(zip(*(p.out_avals for p in programs), strict=True))
    wanted = [next((a for a in column if not a.weak_type), column[0]) for column in columns]
    for path, column, want in zip(_paths(tree), columns, wanted, strict=True):
        for aval in column:
            if aval.shape != want.shape or (aval.dtype != want.dtype and not aval.weak_type):
                shown = ", ".join(f"`{n}` {a.short()}" for n, a in zip(names, column, strict=True))
                error = ShapeError if aval.shape != want.shape else DTypeError
                raise error(
                    at_user_line(f"{what}: the branches must agree in their output{path}, but they gave {shown}")
                )
    return tuple(_converted(p, tuple(wanted)) for p in programs)


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
