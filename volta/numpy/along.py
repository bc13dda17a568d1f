"""Choosing and replacing elements along an axis, at positions that have the shape of the result."""

from __future__ import annotations

from typing import Any

from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import binary, shaping
from volta.numpy.indexing import as_positions
from volta.numpy.promotion import as_value, aval_of, broadcast_array, broadcast_shapes_of, canonical_axis, convert
from volta.numpy.taking import filled, normal_indices, take_mode
from volta.ops import lax


def _along(
    name: str, a: Array, indices: Array, axis: int | None, mode: str | None, from_end: bool = True
) -> tuple[Array, Array, int]:
    """``a`` and ``indices`` with ``axis`` last and the other axes equal, as one batch; and the axis.

    Negative indices count from the end, in every mode, unless ``from_end`` is False: then they are out of bounds.
    """
    a = as_value(a)
    if axis is None:
        a, axis = shaping.ravel(a), 0
        indices = shaping.ravel(indices)
    ia = aval_of(name, indices)
    if ia.ndim != a.ndim:
        raise ShapeError(
            at_user_line(f"{name}: indices of shape {ia.shape} need as many dimensions as the array, {a.shape}")
        )
    axis = canonical_axis(name, axis, a.ndim)
    if from_end or mode == "wrap":
        index = normal_indices(name, indices, a.shape[axis], mode if mode == "wrap" else None)
    else:
        index = as_positions(as_value(indices), a.shape[axis])
    a, index = shaping.moveaxis(a, axis, -1), shaping.moveaxis(index, axis, -1)
    batch = broadcast_shapes_of(name, [a.shape[:-1], index.shape[:-1]])
    return (
        broadcast_array(a, (*batch, a.shape[-1])),
        broadcast_array(index, (*batch, index.shape[-1])),
        axis,
    )


def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: str | None = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool = True,
) -> Array:
    """For each place of ``indices`` the element of ``arr`` at that index along ``axis``, other coordinates equal.

    Other axes broadcast. Negative indices count from the end, in mode 'clip' too, unless ``wrap_negative_indices`` is
    False: then they are out of bounds. Out of bounds: NaN (integers: the smallest value), or by ``mode`` as in
    :func:`take`.

    Raises:
        DTypeError: the indices are no integers.
        ShapeError: they have another number of dimensions than the array.
    """
    arr, index, axis = _along("take_along_axis", arr, indices, axis, mode, wrap_negative_indices)
    nb = arr.ndim - 1
    taken = lax.gather(arr, [index], axes=(nb,), batch_dims=nb, mode=take_mode("take_along_axis", mode))
    if fill_value is not None and mode not in ("clip", "wrap"):
        inside = binary.logical_and(binary.greater_equal(index, 0), binary.less(index, arr.shape[-1]))
        taken = filled("take_along_axis", taken, inside, fill_value)
    return shaping.moveaxis(taken, -1, axis)


def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """A copy of ``arr`` with ``values`` at ``indices`` along ``axis``. Arrays are immutable: pass ``inplace=False``."""
    if inplace:
        raise ValueError(
            at_user_line("put_along_axis: arrays are immutable; pass inplace=False and use the returned array")
        )
    original = aval_of("put_along_axis", arr).shape
    moved, index, place = _along("put_along_axis", arr, indices, axis, mode)
    values = convert(values, moved.dtype)
    if aval_of("put_along_axis", values).ndim == moved.ndim:
        values = shaping.moveaxis(values, place, -1)
    nb = moved.ndim - 1
    values = shaping.broadcast_to(values, index.shape)
    out = lax.scatter(
        moved, values, [index], axes=(nb,), batch_dims=nb, mode="clip" if mode == "clip" else "drop", op="set"
    )
    return shaping.reshape(shaping.moveaxis(out, -1, place), original)
