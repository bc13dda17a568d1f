"""Gather and scatter, in a form that is closed under batching.

``gather[axes, batch_dims, mode](operand, *indices)``: the first ``batch_dims`` axes are shared by the operand and every
index array; all index arrays have one shape, batch + I; index k picks positions of the operand's axis ``axes[k]``. The
result has shape batch + I + (the operand's remaining axes in order). ``scatter`` puts updates of that shape back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import Shape, ShapedArray
from volta.core.errors import NotDifferentiableError
from volta.core.extended import is_key, refusal
from volta.core.interp import bind
from volta.core.source import at_user_line
from volta.ops import base
from volta.ops.arithmetic import add, div, eq, mul
from volta.ops.assembly import iota, zeros_like
from volta.ops.base import canonical_ints, dtype_error, shape_error, shape_of
from volta.ops.primitive import Family, Linear, Primitive, Zero, register
from volta.ops.selection import convert_element_type, select

__all__ = ["gather", "scatter"]

Axes = tuple[int, ...]

GATHER_MODES = ("fill", "clip", "zero")
SCATTER_MODES = ("drop", "clip")
SCATTER_OPS = ("set", "add", "mul", "min", "max")


def _index_shape(
    name: str, avals: Sequence[ShapedArray], operand: ShapedArray, indices: Any, axes: Axes, nb: int
) -> Shape:
    if len(indices) != len(axes) or not indices:
        raise shape_error(name, avals, f"{len(axes)} axes {axes} need as many index arrays, got {len(indices)}")
    if not all(nb <= a < operand.ndim for a in axes) or list(axes) != sorted(set(axes)):
        raise shape_error(name, avals, f"axes {axes} must be ascending axes after the {nb} batch axes")
    shape: Shape = indices[0].shape
    if any(i.shape != shape for i in indices):
        raise shape_error(name, avals, "index arrays must have one shape")
    if shape[:nb] != operand.shape[:nb]:
        raise shape_error(name, avals, f"the first {nb} axes of the operand and of the indices must agree")
    if not all(dtypes.is_integer(i.dtype) for i in indices):
        raise dtype_error(name, avals, "indices must be integers")
    return shape


def _remaining(ndim: int, axes: Axes, batch_dims: int) -> list[int]:
    return [d for d in range(batch_dims, ndim) if d not in axes]


def _gathered_shape(operand: Shape, index_shape: Shape, axes: Axes, batch_dims: int) -> Shape:
    return index_shape + tuple(operand[d] for d in _remaining(len(operand), axes, batch_dims))


def _linear_mode(mode: str) -> str:
    """The gather that tangents take: out of range they are zero, not NaN."""
    return "clip" if mode == "clip" else "zero"


# -- gather ------------------------------------------------------------------------------------------------------------


def _gather_abstract(
    operand: ShapedArray, *indices: ShapedArray, axes: Axes, batch_dims: int, mode: str
) -> ShapedArray:
    shape = _index_shape("gather", (operand, *indices), operand, indices, axes, batch_dims)
    if mode not in GATHER_MODES:
        raise shape_error("gather", (operand, *indices), f"mode must be one of {GATHER_MODES}, got {mode!r}")
    if mode == "clip" and any(operand.shape[a] == 0 for a in axes) and 0 not in shape:
        raise shape_error("gather", (operand, *indices), "cannot clip into an axis of no elements")
    return operand.update(shape=_gathered_shape(operand.shape, shape, axes, batch_dims))


def _gather_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axes: Axes, batch_dims: int, mode: str
) -> tuple[Any, Any]:
    operand, *indices = primals
    out = gather(operand, indices, axes, batch_dims, mode)
    if isinstance(tangents[0], Zero):
        return out, base.zero_like(out)
    return out, gather(tangents[0], indices, axes, batch_dims, _linear_mode(mode))


def _gather_transpose(ct: Any, operand: Any, *indices: Any, axes: Axes, batch_dims: int, mode: str) -> list[Any]:
    none = [None] * len(indices)
    if isinstance(ct, Zero):
        return [None, *none]
    zeros = base.zeros_of(operand.aval)
    return [scatter(zeros, ct, indices, axes, batch_dims, "clip" if mode == "clip" else "drop", "add"), *none]


def _bump(axes: Axes, at: int) -> Axes:
    return tuple(a + (a >= at) for a in axes)


def _gather_batch(args: Any, dims: Any, size: int, *, axes: Axes, batch_dims: int, mode: str) -> tuple[Any, int]:
    operand, *indices = args
    dim, *index_dims = dims
    if all(d is None for d in index_dims):  # the mapped axis is one more remaining axis
        if dim < batch_dims:
            operand, dim = base.move_axis(operand, dim, batch_dims), batch_dims
        axes = _bump(axes, dim)
        out = gather(operand, indices, axes, batch_dims, mode)
        place = _remaining(len(shape_of(operand)), axes, batch_dims).index(dim)
        return out, len(shape_of(indices[0])) + place
    if dim is None:  # one more axis of I
        moved = [_to(i, d, size, batch_dims) for i, d in zip(indices, index_dims, strict=True)]
        return gather(operand, moved, axes, batch_dims, mode), batch_dims
    moved = [base.to_front(i, d, size) for i, d in zip(indices, index_dims, strict=True)]
    operand = base.to_front(operand, dim, size)
    return gather(operand, moved, tuple(a + 1 for a in axes), batch_dims + 1, mode), 0


def _to(x: Any, dim: int | None, size: int, target: int) -> Any:
    """``x`` with the mapped axis (broadcast where there is none) at place ``target``."""
    if dim is not None:
        return base.move_axis(x, dim, target)
    shape = shape_of(x)
    new = (*shape[:target], size, *shape[target:])
    return base.broadcast_to(x, new, [d for d in range(len(new)) if d != target])


gather_p = register(
    Primitive(
        "gather",
        Family.INDEXING,
        _gather_abstract,
        _gather_jvp,
        _gather_batch,
        _gather_transpose,
        doc="Elements, or boxes of elements, picked by index arrays.",
    )
)


def gather(operand: Any, indices: Sequence[Any], axes: Any, batch_dims: int = 0, mode: str = "fill") -> Array:
    """Elements of ``operand`` picked by ``indices``.

    Args:
        operand: any array.
        indices: integer arrays of one shape, batch + I, one for each of ``axes``; counted from 0, never from the end.
        axes: the operand's axes that are indexed, ascending, all after the batch axes.
        batch_dims: how many leading axes the operand and the indices share.
        mode: for indices out of range: ``'fill'`` gives NaN (signed integers: the smallest value; unsigned ones: the
            largest; booleans: True), ``'zero'`` gives 0, ``'clip'`` takes the nearest position.

    Returns:
        An array of shape batch + I + (the operand's remaining axes).

    >>> lax.gather(np.float32([10, 20, 30]), [np.int32([2, 0, 9])], (0,))
    Array([30., 10., nan], dtype=float32)
    """
    axes = canonical_ints("gather", "axes", tuple(axes))
    return bind(gather_p, operand, *indices, axes=axes, batch_dims=batch_dims, mode=mode)


# -- scatter -----------------------------------------------------------------------------------------------------------


def _scatter_abstract(
    operand: ShapedArray, updates: ShapedArray, *indices: ShapedArray, axes: Axes, batch_dims: int, mode: str, op: str
) -> ShapedArray:
    avals = (operand, updates, *indices)
    shape = _index_shape("scatter", avals, operand, indices, axes, batch_dims)
    expected = _gathered_shape(operand.shape, shape, axes, batch_dims)
    if updates.shape != expected:
        raise shape_error("scatter", avals, f"updates must have shape {expected}, got {updates.shape}")
    if updates.dtype != operand.dtype:
        raise dtype_error("scatter", avals, "updates must have the operand's dtype; use convert_element_type.")
    if mode not in SCATTER_MODES or op not in SCATTER_OPS:
        raise shape_error("scatter", avals, f"mode in {SCATTER_MODES}, op in {SCATTER_OPS}; got {mode!r} and {op!r}")
    if dtypes.is_complex(operand.dtype) and op in ("mul", "min", "max"):
        raise dtype_error("scatter", avals, f"complex numbers are set or added, there is no {op} of them")
    if is_key(operand.dtype) and op != "set":
        raise dtype_error("scatter", avals, f"there is no {op} of them: {refusal(operand.dtype)}")
    if operand.dtype == dtypes.bool_ and op in ("add", "mul"):
        raise dtype_error("scatter", avals, f"booleans have no {op}; use 'max' or 'min'")
    return ShapedArray(operand.shape, operand.dtype, operand.weak_type and updates.weak_type)


def _scatter_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    operand, updates, *indices = primals
    dx, du = tangents[:2]
    out = bind(scatter_p, *primals, **params)
    if base.all_zero((dx, du)):
        return out, base.zero_like(out)
    op = params["op"]
    if op in ("set", "add"):
        return out, bind(scatter_p, base.instantiate(dx), base.instantiate(du), *indices, **params)
    if op == "mul":
        return out, _scatter_mul_tangent(operand, updates, indices, dx, du, params)
    return out, _scatter_extreme_tangent(out, operand, updates, indices, dx, du, params)


def _like_gather(params: dict[str, Any]) -> dict[str, Any]:
    mode = "clip" if params["mode"] == "clip" else "zero"
    return {"axes": params["axes"], "batch_dims": params["batch_dims"], "mode": mode}


def _number_of_indices(indices: Sequence[Any], batch_dims: int) -> int:
    return int(np.prod(shape_of(indices[0])[batch_dims:], dtype=np.int64))


def _scatter_mul_tangent(operand: Any, updates: Any, indices: Any, dx: Any, du: Any, params: dict[str, Any]) -> Any:
    shares = [] if isinstance(dx, Zero) else [bind(scatter_p, dx, updates, *indices, **params)]
    if not isinstance(du, Zero):
        if _number_of_indices(indices, params["batch_dims"]) > 1:
            raise NotDifferentiableError(
                at_user_line(
                    "scatter: 'mul' has no derivative by its updates where indices may repeat. "
                    "Multiply by scattered ones, or use a single index."
                )
            )
        old = bind(gather_p, operand, *indices, **_like_gather(params))
        shares.append(bind(scatter_p, zeros_like(operand), mul(du, old), *indices, **{**params, "op": "add"}))
    return shares[0] if len(shares) == 1 else add(*shares)


def _scatter_extreme_tangent(
    out: Any, operand: Any, updates: Any, indices: Any, dx: Any, du: Any, params: dict[str, Any]
) -> Any:
    """Shared equally among the operand and the updates that attain the extreme."""
    dtype = base.dtype_of(operand)
    won = bind(gather_p, out, *indices, **_like_gather(params))
    old_share = convert_element_type(eq(operand, out), dtype)
    new_share = convert_element_type(eq(updates, won), dtype)
    add_params = {**params, "op": "add"}
    count = bind(scatter_p, old_share, new_share, *indices, **add_params)
    total = bind(
        scatter_p,
        mul(base.instantiate(dx), old_share),
        mul(base.instantiate(du), new_share),
        *indices,
        **add_params,
    )
    return div(total, count)


def _last_writer(operand: Any, updates: Shape, indices: Any, params: dict[str, Any]) -> Any:
    """Where an update is the one that stays: the last of those with its target."""
    size = int(np.prod(updates, dtype=np.int64))
    numbers = base.reshape_to(iota(dtypes.int32 if size < 2**31 else dtypes.int64, size), updates)
    board = base.fill(operand, -1, base.dtype_of(numbers))
    board = bind(scatter_p, board, numbers, *indices, **params)
    return eq(numbers, bind(gather_p, board, *indices, **_like_gather(params)))


def _scatter_transpose(ct: Any, operand: Any, updates: Any, *indices: Any, **params: Any) -> list[Any]:
    none = [None] * len(indices)
    if isinstance(ct, Zero):
        return [None, None, *none]
    op = params["op"]
    operand_ct = updates_ct = None
    shape = updates.aval.shape if isinstance(updates, Linear) else shape_of(updates)
    zero = base.fill((), 0, base.dtype_of(ct))
    if isinstance(operand, Linear):
        if op == "add":
            operand_ct = ct
        elif op == "set":
            operand_ct = bind(scatter_p, ct, base.fill(shape, 0, base.dtype_of(ct)), *indices, **params)
        else:  # 'mul', linear in the operand for fixed updates
            operand_ct = bind(scatter_p, ct, updates, *indices, **params)
    if isinstance(updates, Linear):
        updates_ct = bind(gather_p, ct, *indices, **_like_gather(params))
        if op == "set" and _number_of_indices(indices, params["batch_dims"]) > 1:
            updates_ct = select(_last_writer(shape_of(ct), shape, indices, params), updates_ct, zero)
    return [operand_ct, updates_ct, *none]


def _scatter_batch(args: Any, dims: Any, size: int, *, axes: Axes, batch_dims: int, **params: Any) -> tuple[Any, int]:
    operand, updates, *indices = args
    dim, update_dim, *index_dims = dims
    if all(d is None for d in index_dims):  # the mapped axis is one more remaining axis
        place = batch_dims if dim is None or dim < batch_dims else dim
        operand = _to(operand, dim, size, place)
        axes = _bump(axes, place)
        rest = _remaining(len(shape_of(operand)), axes, batch_dims).index(place)
        updates = _to(updates, update_dim, size, len(shape_of(indices[0])) + rest)
        return bind(scatter_p, operand, updates, *indices, axes=axes, batch_dims=batch_dims, **params), place
    moved = [base.to_front(x, d, size) for x, d in zip(args, dims, strict=True)]
    return bind(scatter_p, *moved, axes=tuple(a + 1 for a in axes), batch_dims=batch_dims + 1, **params), 0


scatter_p = register(
    Primitive(
        "scatter",
        Family.INDEXING,
        _scatter_abstract,
        _scatter_jvp,
        _scatter_batch,
        _scatter_transpose,
        doc="Updates put at, added to or compared with the positions that index arrays pick.",
    )
)


def scatter(
    operand: Any,
    updates: Any,
    indices: Sequence[Any],
    axes: Any,
    batch_dims: int = 0,
    mode: str = "drop",
    op: str = "set",
) -> Array:
    """``operand`` with ``updates`` at the positions that ``indices`` pick (as in :func:`gather`).

    Args:
        operand: any array.
        updates: of the operand's dtype and of the shape that gather gives for these indices.
        indices, axes, batch_dims: as in :func:`gather`.
        mode: for indices out of range: ``'drop'`` leaves them out, ``'clip'`` takes the nearest position.
        op: ``'set'``, ``'add'``, ``'mul'``, ``'min'`` or ``'max'``.

    Where indices repeat: of ``'set'`` the last update in row-major order of I stays (and it alone has a derivative);
    of ``'add'`` the updates of one position are summed as SUM in that order, then added to the operand.

    >>> lax.scatter(np.zeros(3, np.float32), np.float32([1, 2, 4]), [np.int32([0, 2, 0])], (0,), op="add")
    Array([5., 0., 2.], dtype=float32)
    """
    axes = canonical_ints("scatter", "axes", tuple(axes))
    return bind(scatter_p, operand, updates, *indices, axes=axes, batch_dims=batch_dims, mode=mode, op=op)
