"""``vmap``: a function of one example as a function of a batch. Batching never changes a number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

import optree

from volta.api.arguments import (
    call_paths,
    check_callable,
    flat_outputs,
    name_of,
    numbers_among,
    operand_of,
    value_of,
    values_of,
    with_numbers,
)
from volta.core import pytrees
from volta.core.absent import explains_keywords
from volta.core.axes import Axis
from volta.core.boundary import boundary
from volta.core.errors import VmapAxesError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops.base import broadcast_to, move_axis
from volta.trace.batch import batch_flat

P = ParamSpec("P")
R = TypeVar("R")


@explains_keywords
def vmap(
    fun: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | None = None,
) -> Callable[P, R]:
    """Map ``fun`` over an axis of its arguments, all at once.

    Args:
        in_axes: which axis of each argument is mapped: an int (negative from the end), None for an argument that every
            call sees whole, or a tuple with one of these (or a pytree prefix of them) an argument. Keyword arguments
            are mapped over axis 0.
        out_axes: where the mapped axis goes in the output; a pytree prefix of the output. None for an output that does
            not depend on the mapped arguments.
        axis_name: a name for the mapped axis, by which collectives in ``fun`` reach the other examples
            (``volta.lax.psum(x, "i")``).
        axis_size: the size of the mapped axis; only needed where no argument is mapped.
        spmd_axis_name: accepted for programs written for JAX: it says how a batch is cut over devices, and no number.

    Raises:
        VmapAxesError: axes that do not fit the arguments or the output, or sizes that differ.

    >>> import numpy as np
    >>> import volta
    >>> volta.vmap(lambda x, y: x * y, in_axes=(0, None))(np.arange(3, dtype="float32"), 2.0).tolist()
    [0.0, 2.0, 4.0]
    """
    check_callable(fun, "vmap")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if not (in_axes is None or isinstance(in_axes, (int, tuple))):
        raise VmapAxesError(
            at_user_line(f"vmap: in_axes must be an int, None or a tuple with one entry an argument, got {in_axes!r}")
        )
    name = name_of(fun)

    @functools.wraps(fun, updated=())
    @boundary
    def mapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            raise VmapAxesError(
                at_user_line(
                    f"vmap of `{name}`: in_axes={in_axes!r} has {len(in_axes)} entries, but the call has {len(args)} "
                    "positional arguments. Keyword arguments are always mapped over axis 0."
                )
            )
        leaves, tree = pytrees.flatten((args, kwargs))
        values = values_of(leaves, f"an argument of `{name}`:", lambda: call_paths(args, kwargs))
        axes = _prefix_axes(in_axes, args, "in_axes", name) + _prefix_axes(0, kwargs, "in_axes", name)
        dims = [_normalize(a, x.aval.ndim, x.aval.short(), "in_axes", name) for a, x in zip(axes, values, strict=True)]
        size = _mapped_size(values, dims, axis_size, lambda: call_paths(args, kwargs), name)

        numbers = numbers_among(leaves, values)

        def flat_fun(*flat: Any) -> Any:
            inner_args, inner_kwargs = pytrees.unflatten(tree, with_numbers(flat, numbers))
            return flat_outputs(fun(*inner_args, **inner_kwargs), name)

        outs, out_dims, out_tree = batch_flat(flat_fun, Axis(size, axis_name), values, dims, name)
        dummy = pytrees.unflatten(out_tree, list(range(len(outs))))
        wanted = _prefix_axes(out_axes, dummy, "out_axes", name)
        paths = _Paths(dummy)
        placed = [
            _place(x, d, w, size, name, paths, i)
            for i, (x, d, w) in enumerate(zip(outs, out_dims, wanted, strict=True))
        ]
        return pytrees.unflatten(out_tree, placed)

    return mapped


class _Paths:
    """Paths of leaves, worked out only for an error message."""

    def __init__(self, tree: Any):
        self._tree = tree

    def __getitem__(self, i: int) -> str:
        return pytrees.leaf_paths(self._tree)[i]


def _prefix_axes(axes: Any, tree: Any, what: str, name: str) -> list[int | None]:
    """One axis a leaf of ``tree``, from a pytree prefix of axes."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes] * len(pytrees.leaves(tree))
    try:
        parts = optree.tree_flatten_one_level(axes, namespace=pytrees.NAMESPACE)
    except ValueError:
        raise VmapAxesError(
            at_user_line(f"vmap of `{name}`: an entry of {what} must be an int or None, got {axes!r}")
        ) from None
    try:
        whole = optree.tree_flatten_one_level(tree, namespace=pytrees.NAMESPACE)
    except ValueError:
        whole = None
    same_kind = isinstance(axes, (list, tuple)) and isinstance(tree, (list, tuple)) or type(axes) is type(tree)
    if whole is None or not same_kind or list(whole.entries) != list(parts.entries):
        seen = "one array" if whole is None else f"{type(tree).__name__} with entries {list(whole.entries)}"
        raise VmapAxesError(
            at_user_line(
                f"vmap of `{name}`: {what} has {axes!r} where the value is {seen}. {what} must be a prefix of the "
                "structure: an int or None stands for everything below it."
            )
        )
    return [
        a for part, sub in zip(parts.children, whole.children, strict=True) for a in _prefix_axes(part, sub, what, name)
    ]


def _normalize(axis: int | None, ndim: int, shown: str, what: str, name: str) -> int | None:
    if axis is None:
        return None
    if not -ndim <= axis < ndim:
        raise VmapAxesError(
            at_user_line(
                f"vmap of `{name}`: axis {axis} of {what} is out of range for {shown}, which has {ndim} dimensions"
                + ("; use None for a value that is not mapped" if what == "in_axes" else "")
            )
        )
    return axis % ndim


def _mapped_size(
    values: Sequence[Any],
    dims: Sequence[int | None],
    axis_size: int | None,
    paths: Callable[[], list[str]],
    name: str,
) -> int:
    sizes = [None if d is None else x.aval.shape[d] for x, d in zip(values, dims, strict=True)]
    known = list(dict.fromkeys(s for s in sizes if s is not None))
    if axis_size is not None:
        known = list(dict.fromkeys([axis_size, *known]))
    if not known:
        raise VmapAxesError(
            at_user_line(
                f"vmap of `{name}`: no argument is mapped (all in_axes are None, or there are no arrays), so the size "
                "of the mapped axis is unknown. Map an argument, or pass axis_size."
            )
        )
    if len(known) > 1:
        rows = [
            f"  {path}: axis {d} of {x.aval.short()} has size {s}"
            for path, x, d, s in zip(paths(), values, dims, sizes, strict=True)
            if s is not None
        ]
        if axis_size is not None:
            rows.append(f"  axis_size: {axis_size}")
        raise VmapAxesError(
            at_user_line(f"vmap of `{name}`: the sizes of the mapped axes differ: {', '.join(map(str, known))}")
            + "\n"
            + "\n".join(rows)
            + "\nUse in_axes=None for an argument that is not mapped."
        )
    return known[0]


def _place(x: Any, dim: int | None, wanted: int | None, size: int, name: str, paths: _Paths, i: int) -> Any:
    """An output with its mapped axis where ``out_axes`` wants it."""
    aval = get_aval(x)
    if wanted is None:
        if dim is not None:
            raise VmapAxesError(
                at_user_line(
                    f"vmap of `{name}`: out_axes is None for output{paths[i]}, but it depends on a mapped argument. "
                    "Give the place of the mapped axis (0, say), or reduce over the batch outside of vmap."
                )
            )
        return value_of(x)
    ndim = aval.ndim + (dim is None)
    target = _normalize(wanted, ndim, f"output{paths[i]} of {ndim} dimensions", "out_axes", name)
    assert target is not None
    if dim is None:
        x = operand_of(x)
        shape = aval.shape[:target] + (size,) + aval.shape[target:]
        kept = [d for d in range(len(shape)) if d != target]
        return value_of(broadcast_to(x, shape, kept))
    return value_of(move_axis(x, dim, target))
