"""Loops inside of programs, as in ``jax.lax``: a function is traced once, however often it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from volta.api.arguments import check_callable, name_of
from volta.api.jit import jit_is_disabled
from volta.api.limits import Limits, limit_of_conversion, limits_of, together
from volta.api.limits import check as check_limits
from volta.api.vmap import vmap
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.constants import check_held
from volta.core.errors import DTypeError, ShapeError, TreeError
from volta.core.interp import get_aval
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line
from volta.lax import bodies, composites
from volta.ops import lax
from volta.ops.base import bind_named, settled
from volta.trace.scan import run_scan
from volta.trace.while_loop import run_while

__all__ = ["fori_loop", "map", "scan", "while_loop"]


Tracing = Callable[[Sequence[ShapedArray]], tuple[bodies.Traced, list[ShapedArray], TreeSpec]]
"""Traces a loop's body for carried values of these types: the program, the types that come out, their structure."""


def _settled(what: str, init: list[Any], tree: TreeSpec, trace: Tracing) -> tuple[bodies.Traced, list[Any]]:
    """The traced body of a loop, and the first values in the types that it carries.

    A Python number among the first values takes the type that the body gives it. Anything else must come out as it went
    in.
    """
    traced, outs, out_tree = trace([x.aval for x in init])
    if out_tree != tree:
        raise TreeError(
            at_user_line(
                f"{what}: the function must return what it carries in the structure that it was given, "
                f"{pytrees.text(tree)}, but it returned {pytrees.text(out_tree)}"
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
        for path, x, a in zip(bodies.paths(tree), init, outs, strict=True)
        if (x.aval.shape, x.aval.dtype) != (a.shape, a.dtype)
    ]
    if wrong:
        rows = "\n".join(f"  carry{path}: goes in as {before}, comes out as {after}" for path, before, after in wrong)
        error = ShapeError if any(x.aval.shape != a.shape for x, a in zip(init, outs, strict=True)) else DTypeError
        raise error(
            at_user_line(f"{what}: what is carried must keep its shape and dtype from iteration to iteration, but")
            + f"\n{rows}\nGive the first value the type that the function returns, or convert the result (x.astype)."
        )
    return traced, init


def _check_numbers(name: str, given: Any, start: Sequence[Any], *limits: Limits) -> None:
    """Python integers among the first values fit the types in which they are carried, and what they meet."""
    leaves, tree = pytrees.flatten(given)
    carried = tuple(limit_of_conversion(get_aval(x), y.aval.dtype) for x, y in zip(leaves, start, strict=True))
    check_limits(leaves, together(carried, *limits), name, lambda: [f"carry{path}" for path in bodies.paths(tree)])


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

        Args: f: from what is carried and one element (pytrees of arrays) to what is carried next, of the same shapes
        and dtypes, and a result. init: what is carried into the first iteration. xs: arrays with one length along axis
        0, or None. length: how many iterations; needed only where ``xs`` has no arrays. reverse: from the last element
        to the first; each result has the place of its element. unroll: how many iterations may run between two looks at
        how far the scan is (True or 0: all); where iterations are short, more of them are faster. It changes no bit.

    Returns:
        What is carried after the last iteration, and the results stacked along a new axis 0.

    Raises:
        ShapeError: lengths that differ, or a carried value that changes its shape.
        DTypeError: a carried value that changes its dtype.
        TreeError: ``f`` returns no pair, or what it carries in another structure.

    >>> lax.scan(lambda total, x: (total + x, total), 0, np.int32([1, 2, 3]))
    (Array(6, dtype=int32), Array([0, 1, 3], dtype=int32))
    """
    check_callable(f, "scan")
    name = f"scan of `{name_of(f)}`"
    start, carry_tree = bodies.values(init, f"{name}: the first value")
    read, xs_tree = bodies.values(xs, f"{name}: xs")
    n = _length(name, read, xs_tree, length)
    if jit_is_disabled() and n:
        return _scan_apart(f, init, [pytrees.map(lambda x, i=i: x[i], xs) for i in range(n)], reverse)
    _, tree = pytrees.flatten((init, xs))
    slices = [x.aval.update(shape=x.aval.shape[1:]) for x in read]
    ys_tree: list[TreeSpec] = []

    def trace(avals: Sequence[ShapedArray]) -> tuple[bodies.Traced, list[ShapedArray], TreeSpec]:
        def pair(carry: Any, x: Any) -> Any:
            out = f(carry, x)
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise TreeError(
                    at_user_line(f"{name}: the function must return a pair (carry, y), got {type(out).__name__}")
                )
            ys_tree[:] = [pytrees.structure(out[1])]
            carried[:] = [pytrees.structure(out[0])]
            return tuple(out)

        pair.__name__ = name_of(f)
        carried: list[TreeSpec] = []
        traced = bodies.trace(pair, tree, [*avals, *slices], "scan traces", carried=avals)
        return traced, traced.program.out_avals[: carried[0].num_leaves], carried[0]

    traced, start = _settled(name, start, carry_tree, trace)
    k = len(start)
    _check_numbers(name_of(f), init, start, limits_of(traced.program)[:k])
    at_once = 1 if unroll is False else max(n, 1) if unroll is True else operator.index(unroll) or max(n, 1)
    if at_once < 1:
        raise ShapeError(at_user_line(f"{name}: unroll must not be negative, got {unroll}"))
    outs = run_scan(traced.program, [], start, read, length=n, reverse=bool(reverse), unroll=at_once)
    return pytrees.unflatten(carry_tree, outs[:k]), pytrees.unflatten(ys_tree[0], outs[k:])


def _scan_apart(f: Callable[..., Any], carry: Any, xs: list[Any], reverse: bool) -> tuple[Any, Any]:
    """A scan iteration by iteration, where programs are looked at."""
    ys: dict[int, Any] = {}
    for i in reversed(range(len(xs))) if reverse else range(len(xs)):
        carry, ys[i] = f(carry, xs[i])
    return carry, pytrees.map(
        lambda *rows: composites.stack([settled(row) for row in rows]), *(ys[i] for i in range(len(xs)))
    )


def _length(name: str, xs: Sequence[Any], tree: TreeSpec, length: int | None) -> int:
    scalars = [path for path, x in zip(bodies.paths(tree), xs, strict=True) if not x.aval.shape]
    if scalars:
        raise ShapeError(at_user_line(f"{name}: xs{scalars[0]} has no axis to run along (its rank is 0)"))
    sizes = [x.aval.shape[0] for x in xs]
    if length is not None:
        sizes.append(operator.index(length))
    if not sizes:
        raise ShapeError(
            at_user_line(f"{name}: xs has no arrays, so it does not say how many iterations to run; pass length")
        )
    if len(set(sizes)) > 1:
        rows = [f"xs{path} has {x.aval.shape[0]}" for path, x in zip(bodies.paths(tree), xs, strict=True)]
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
    leaves, tree = bodies.values(xs, "map: xs")
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
    if jit_is_disabled() and bodies.known(test := cond_fun(init_val)):
        while test:
            init_val = body_fun(init_val)
            test = cond_fun(init_val)
        return init_val
    start, carry_tree = bodies.values(init_val, f"{name}: the first value")
    _, tree = pytrees.flatten((init_val,))

    def trace(avals: Sequence[ShapedArray]) -> tuple[bodies.Traced, list[ShapedArray], TreeSpec]:
        traced = bodies.trace(body_fun, tree, avals, "while_loop traces", carried=avals)
        return traced, traced.program.out_avals, traced.tree

    body, start = _settled(name, start, carry_tree, trace)
    condition = bodies.trace(cond_fun, tree, [x.aval for x in start], "while_loop traces")
    found = condition.program.out_avals
    if len(found) != 1 or condition.tree != pytrees.structure(0):
        raise TreeError(
            at_user_line(f"{name}: the condition must return one value, got {pytrees.text(condition.tree)}")
        )
    _check_test(f"{name}: the condition", found[0])
    _check_numbers(name_of(body_fun), init_val, start, limits_of(body.program), limits_of(condition.program))
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
    strong = [a.dtype for a in bounds if not a.weak_type] or [dtypes.DEFAULT_INT]
    if len(set(strong)) > 1:
        names = " and ".join(d.name for d in strong)
        raise DTypeError(at_user_line(f"fori_loop: lower and upper must have one dtype, got {names}"))
    for x in (lower, upper):
        check_held(x, strong[0])
    known = [bodies.known(x) for x in (lower, upper)]
    first = lax.convert_element_type(lower, strong[0])
    if all(known):
        count = max(0, int(upper) - int(lower))

        def iteration(carry: Any, _: Any) -> Any:
            i, value = carry
            return (lax.add(i, 1), body_fun(i, value)), None

        iteration.__name__ = name_of(body_fun)
        return scan(iteration, (first, init_val), None, count, unroll=unroll or 1)[0][1]
    end = lax.convert_element_type(upper, strong[0])

    def step(carry: Any) -> Any:
        i, end, value = carry
        return lax.add(i, 1), end, body_fun(i, value)

    step.__name__ = name_of(body_fun)
    return while_loop(lambda carry: lax.lt(carry[0], carry[1]), step, (first, end, init_val))[2]
