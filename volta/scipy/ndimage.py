"""Images in any number of dimensions, under the names of ``jax.scipy.ndimage``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import volta.numpy as vnp
from volta.core import dtypes
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax import composites
from volta.numpy.promotion import as_value

__all__ = ["map_coordinates"]


def _mirrored(index: Any, size: int) -> Any:
    last = size - 1
    return vnp.abs((index + last) % (2 * last) - last) if last else index * 0


def _reflected(index: Any, size: int) -> Any:
    return (_mirrored(2 * index + 1, 2 * size + 1) - 1) // 2


_BEYOND: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda index, size: index,
    "nearest": lambda index, size: vnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirrored,
    "reflect": _reflected,
}
"""Where an index beyond the edges is read."""


def _rounded(x: Any) -> Any:
    return x if dtypes.is_integer(x.dtype) else composites.round(x)


def map_coordinates(
    input: ArrayLike, coordinates: Sequence[ArrayLike], order: int, mode: str = "constant", cval: ArrayLike = 0.0
) -> Array:
    """``input`` at places between its elements.

    Args:
        input: an array of n dimensions.
        coordinates: n arrays of one shape: the places along each axis.
        order: 0 for the nearest element, 1 for linear interpolation.
        mode: what is beyond the edges: 'constant' (``cval``), 'nearest', 'wrap', 'mirror' or 'reflect'.

    Returns:
        An array of the coordinates' shape, of ``input``'s dtype.

    Raises:
        ShapeError: not as many coordinates as there are dimensions.
        NotImplementedError: for other orders and modes.

    >>> map_coordinates(vnp.asarray([1.0, 3.0]), [vnp.asarray([0.5])], order=1).tolist()
    [2.0]
    """
    x, places = as_value(input), [as_value(c) for c in coordinates]
    if len(places) != x.ndim:
        text = f"map_coordinates: {len(places)} coordinates for an array of shape {x.shape}; one an axis is needed"
        raise ShapeError(at_user_line(text))
    if mode not in _BEYOND:
        text = f"map_coordinates: there is no mode {mode!r}; there are {', '.join(_BEYOND)}"
        raise NotImplementedError(at_user_line(text))
    if order not in (0, 1):
        raise NotImplementedError(at_user_line(f"map_coordinates: order must be 0 or 1, not {order!r}"))
    axes: list[list[tuple[Any, Any, Any]]] = []
    for c, size in zip(places, x.shape, strict=True):
        if order == 0 or dtypes.is_integer(c.dtype):
            nodes: list[tuple[Any, Any]] = [(_rounded(c).astype("int32"), None)]
        else:
            low = vnp.floor(c)
            index = low.astype("int32")
            nodes = [(index, 1 - (c - low)), (index + 1, c - low)]
        axes.append([(_BEYOND[mode](i, size), vnp.logical_and(i >= 0, i < size), w) for i, w in nodes])
    total: Any = None
    for corner in itertools.product(*axes):
        value = x[tuple(i for i, _, _ in corner)] if corner else x
        if mode == "constant":
            inside: Any = True
            for _, there, _ in corner:
                inside = vnp.logical_and(inside, there)
            value = vnp.where(inside, value, vnp.asarray(cval, x.dtype))
        weights = [w for _, _, w in corner if w is not None]
        for w in weights:
            value = value * w
        total = value if total is None else total + value
    return (_rounded(total) if dtypes.is_integer(x.dtype) else total).astype(x.dtype)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
