"""Python functions called from inside of programs: ``pure_callback``, ``io_callback``, and those for debugging."""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.arguments import aval_of, check_callable, name_of, operand_of, value_of
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.errors import ArgumentError, DTypeError, ShapeError, TreeError
from volta.core.extended import is_key, refusal
from volta.core.interp import get_aval
from volta.core.pytrees import TreeSpec
from volta.core.source import at_user_line, is_own
from volta.ops.callbacks import VMAP_METHODS, HostCall, callback_p
from volta.ops.keys import unwrap
from volta.runtime.array import as_array


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call a Python function on arrays, also inside of ``jit``, loops, ``vmap`` and derivatives (by a rule of its own).

    The function must be pure: it may be called again, or not at all where nobody reads its results. What it computes is
    outside of the bit contract. A program that calls Python is compiled in parts, between the calls; so are the bodies
    of its loops, which are then run iteration by iteration.

    Args:
        callback: from arrays on the host, in the pytrees that are passed, to arrays or NumPy values like
            ``result_shape_dtypes``.
        result_shape_dtypes: a pytree of what has a shape and a dtype (``volta.ShapeDtypeStruct``).
        vmap_method: how it takes a batch: ``'sequential'`` (a call for each example), ``'expand_dims'`` (one call;
            axis 0 is the batch, of size 1 where an argument is not mapped), ``'broadcast_all'`` (one call, all
            arguments with the whole batch).
        sharding: accepted for programs written for JAX.

    Raises:
        ShapeError, DTypeError, TreeError: the function returns something else than it should.
        UnsupportedOperationError: under ``vmap`` without a ``vmap_method``.
        NotDifferentiableError: it is differentiated, without a rule.

    >>> import volta
    >>> like = volta.ShapeDtypeStruct((2,), "float32")
    >>> f = volta.jit(lambda x: volta.pure_callback(lambda x: np.asarray(x)[::-1], like, x) * 2)
    >>> f(np.float32([1, 2])).tolist()
    [4.0, 2.0]
    """
    check_callable(callback, "pure_callback")
    if vmap_method is not None and vmap_method not in VMAP_METHODS:
        raise ArgumentError(
            at_user_line(f"pure_callback: vmap_method is one of {', '.join(VMAP_METHODS)}, not {vmap_method!r}")
        )
    return _called("pure_callback", callback, result_shape_dtypes, args, kwargs, vmap_method=vmap_method)


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: Any = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function that does something (reads a file, keeps a record), also inside of programs.

    It is called once for each time that the program comes to it, in the program's order, though nobody reads its
    results; under ``vmap`` once for each example, in their order.

    Args:
        result_shape_dtypes: as of :func:`volta.pure_callback`; None for no result.
        ordered: calls keep their order, as they do anyway; refused under ``vmap``.

    Raises:
        UnsupportedOperationError: it would be called where the program does not come: in a ``cond`` or ``while_loop``
            whose examples differ, under ``vmap``; in a ``checkpoint`` that is differentiated.

    >>> import volta
    >>> seen = []
    >>> f = volta.jit(lambda x: volta.experimental.io_callback(lambda x: seen.append(float(x)), None, x))
    >>> f(3.0), seen
    (None, [3.0])
    """
    check_callable(callback, "io_callback")
    method = None if ordered else "sequential"
    likes = result_shape_dtypes
    return _called("io_callback", callback, likes, args, kwargs, effect=True, ordered=ordered, vmap_method=method)


def debug_callback(
    callback: Callable[..., None] | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function that returns nothing: to look at values inside of programs.

    It takes part in every transformation: under derivatives it gets values, under ``vmap`` it is called for each
    example, in their order. Calls keep the program's order, ``ordered`` or not. Where examples end a ``while_loop`` at
    different iterations, the condition runs twice in each, as in JAX: to see whether any goes on, and which.
    Arguments that are no arrays are handed on as they are. Without ``callback`` it gives a function that takes one,
    with these settings.

    >>> import volta
    >>> seen = []
    >>> def f(x):
    ...     volta.debug.callback(lambda x: seen.append(float(x)), x)
    ...     return x * x
    >>> float(volta.jit(volta.grad(f))(3.0)), seen
    (6.0, [3.0])
    """
    if callback is None:
        return functools.partial(debug_callback, ordered=ordered)
    check_callable(callback, "debug.callback")
    leaves, tree = pytrees.flatten((args, kwargs))
    arrays = {i: value for i, value in ((i, _operand(x)) for i, x in enumerate(leaves)) if value is not None}
    types = {i: get_aval(x).dtype for i, x in arrays.items()}

    def run(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        known = {i: _handed(x, types[i]) for i, x in zip(arrays, given, strict=True)}
        some, named = pytrees.unflatten(tree, [known.get(i, x) for i, x in enumerate(leaves)])
        callback(*some, **named)
        return []

    call = HostCall("debug.callback", name_of(callback), run, (), True, vmap_method="sequential")
    callback_p.bind(*map(_sent, arrays.values()), call=call)
    return None


def _operand(x: Any) -> Any:
    try:
        return value_of(x)
    except DTypeError:
        return None


def _sent(x: Any) -> Any:
    """An operand as it travels to the host: random keys as their words."""
    return unwrap(x) if is_key(get_aval(x).dtype) else x


def _handed(x: np.ndarray, dtype: np.dtype) -> Any:
    """What has travelled as the array that the function gets."""
    array = as_array(x)
    return array.keyed(dtype) if is_key(dtype) else array


class _Formatter(string.Formatter):
    """Notes which arguments a text does not show."""

    def __init__(self) -> None:
        self.unused: list[str] = []

    def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
        names = (*range(len(args)), *kwargs)
        self.unused = [str(name) for name in names if name not in used_args]


def debug_print(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Any:
    """Print values inside of programs: ``volta.debug.print("x = {x}", x=x)``, formatted as by ``str.format``.

    Raises:
        ArgumentError: the text does not show an argument, or names one that is not there (an f-string, say).

    >>> import volta
    >>> def f(x):
    ...     volta.debug.print("x = {} and {y}", x, y=x + 1)
    ...     return x
    >>> _ = volta.jit(f)(1.0)
    x = 1.0 and 2.0
    """
    if fmt is None:
        return functools.partial(debug_print, ordered=ordered, skip_format_check=skip_format_check)
    if not skip_format_check:
        checked = _Formatter()
        try:
            checked.format(fmt, *map(_Placeholder, args), **{k: _Placeholder(v) for k, v in kwargs.items()})
        except (IndexError, KeyError) as missing:
            raise ArgumentError(
                at_user_line(f"debug.print: the text {fmt!r} shows {missing}, which is no argument (no f-strings here)")
            ) from None
        if checked.unused:
            unused = ", ".join(checked.unused)
            raise ArgumentError(at_user_line(f"debug.print: the text {fmt!r} does not show the arguments {unused}"))

    def show(*args: Any, **kwargs: Any) -> None:
        print(fmt.format(*map(_shown, args), **{k: _shown(x) for k, x in kwargs.items()}))

    return debug_callback(show, *args, ordered=ordered, **kwargs)


def _shown(x: Any) -> Any:
    return np.asarray(x) if hasattr(x, "aval") and not is_key(x.dtype) else x


class _Placeholder:
    """Stands for a value while a text is checked: anything may be asked of it."""

    def __init__(self, value: Any):
        self.value = value

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Placeholder:
        return self

    def __getitem__(self, key: Any) -> _Placeholder:
        return self


def debug_breakpoint(
    *,
    backend: Any = None,
    filter_frames: bool = True,
    num_frames: int | None = None,
    ordered: bool = False,
    token: Any = None,
) -> None:
    """Stop in Python's debugger when a program comes here, with the arrays of the calling function under their names.

    It calls ``sys.breakpointhook``, pdb's unless that is set otherwise.
    """
    frame = sys._getframe(1)
    while is_own(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    place = f"<volta.debug.breakpoint of {frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}>"
    around = {**frame.f_globals, **{k: v for k, v in frame.f_locals.items() if not _arrays(v)}}
    names = {k: v for k, v in frame.f_locals.items() if _arrays(v)}

    def stop(values: dict[str, Any]) -> None:
        exec(compile("breakpoint()", place, "exec"), {**around, **values})

    debug_callback(stop, names, ordered=ordered)


def _arrays(x: Any) -> bool:
    """Whether a variable is an array or a pytree of arrays."""
    try:
        leaves = pytrees.leaves(x)
    except Exception:  # a container that cannot be flattened is shown as it is
        return False
    return bool(leaves) and all(hasattr(leaf, "aval") for leaf in leaves)


def effects_barrier() -> None:
    """Wait until what programs do beside computing is done: nothing is left to do, since calls return after it.

    >>> import volta
    >>> volta.effects_barrier()
    """


# -- the call ----------------------------------------------------------------------------------------------------------


def _called(
    kind: str,
    callback: Callable[..., Any],
    likes: Any,
    args: Any,
    kwargs: dict[str, Any],
    *,
    effect: bool = False,
    **settings: Any,
) -> Any:
    leaves, tree = pytrees.flatten((args, kwargs))
    operands = [operand_of(x) for x in leaves]
    types = [get_aval(x).dtype for x in operands]
    operands = [_sent(x) for x in operands]
    wanted, out_tree = pytrees.flatten(likes)
    avals = tuple(aval_of(x).strip_weak() for x in wanted)
    for aval in avals:
        if is_key(aval.dtype):
            raise DTypeError(at_user_line(f"{kind}: a function on the host gives no {aval}: {refusal(aval.dtype)}"))
    methods = settings.get("vmap_method")

    def run(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        some, named = pytrees.unflatten(tree, [_handed(x, d) for x, d in zip(given, types, strict=True)])
        batch = _batch_of(given, ranks) if methods in ("expand_dims", "broadcast_all") else ()
        return _results(f"{kind} of `{name_of(callback)}`", callback(*some, **named), out_tree, avals, batch)

    ranks = [get_aval(x).ndim for x in operands]
    call = HostCall(kind, name_of(callback), run, avals, effect, **settings)
    return pytrees.unflatten(out_tree, callback_p.bind(*operands, call=call))


def _batch_of(given: Sequence[np.ndarray], ranks: Sequence[int]) -> tuple[int, ...]:
    """The mapped axes that arguments have beside their own: all have as many, of size 1 where they are not mapped."""
    shapes = [x.shape[: x.ndim - rank] for x, rank in zip(given, ranks, strict=True)]
    return np.broadcast_shapes(*shapes) if shapes else ()


def _results(
    what: str, out: Any, tree: TreeSpec, avals: Sequence[ShapedArray], batch: tuple[int, ...]
) -> list[np.ndarray]:
    leaves, found = pytrees.flatten(out)
    if found != tree:
        raise TreeError(
            f"{what} must return {pytrees.text(tree)}, as result_shape_dtypes says, but it returned "
            f"{pytrees.text(found)}"
        )
    return [_result(what, x, aval.update(shape=(*batch, *aval.shape))) for x, aval in zip(leaves, avals, strict=True)]


def _result(what: str, x: Any, aval: ShapedArray) -> np.ndarray:
    """A result as an array of the dtype that was said; one of its kind is converted, as NumPy computes in 64 bits."""
    array = np.asarray(x)
    said = f"{what} must return {aval.short()}, as result_shape_dtypes says"
    if array.shape != aval.shape:
        raise ShapeError(f"{said}, but its shape is {array.shape}")
    own = dtypes.canonicalize(array.dtype)
    if own != aval.dtype and not any(of_kind(own) and of_kind(aval.dtype) for of_kind in _KINDS):
        raise DTypeError(f"{said}, but its dtype is {own}")
    return array.astype(aval.dtype, copy=False)


_KINDS = dtypes.is_float, dtypes.is_integer, dtypes.is_complex
