"""Movement: primitives that place elements without computing. All are linear."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import Shape, ShapedArray
from volta.core.interp import bind
from volta.ops import base
from volta.ops.arithmetic import select
from volta.ops.base import canonical_axes, canonical_ints, shape_error, shape_of
from volta.ops.primitive import Family, Linear, Primitive, Rule, Zero, register

__all__ = ["broadcast_in_dim", "pad", "reshape", "rev", "slice", "transpose"]

_range = builtins.range
_slice = builtins.slice


def movement(name: str, doc: str, abstract: Rule, transposed: Rule, batch: Rule) -> Primitive:
    """Define a movement primitive of one operand. ``transposed(ct, aval, **params)`` gives its cotangent."""

    def transpose(ct: Any, operand: Linear, **params: Any) -> list[Any]:
        return [None if isinstance(ct, Zero) else transposed(ct, operand.aval, **params)]

    def batch_rule(args: Sequence[Any], dims: Sequence[int | None], size: int, **params: Any) -> tuple[Any, int]:
        assert dims[0] is not None
        return batch(args[0], dims[0], size, **params)

    def shape_rule(x: ShapedArray, **params: Any) -> ShapedArray:
        return x.update(shape=abstract(x, **params))

    jvp = base.linear_jvp(name)
    return register(Primitive(name, Family.MOVEMENT, shape_rule, jvp, batch_rule, transpose, doc=doc))


def _bump(dims: Sequence[int], at: int) -> tuple[int, ...]:
    """Axis numbers after a new axis has come in at place ``at``."""
    return tuple(d + (d >= at) for d in dims)


def _insert(values: Sequence[Any], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at:])


# -- reshape -----------------------------------------------------------------------------------------------------------


def _reshape_shape(x: ShapedArray, *, new_sizes: Shape) -> Shape:
    size = 1
    for d in new_sizes:
        if d < 0:
            raise shape_error("reshape", (x,), f"sizes must not be negative, got {new_sizes}")
        size *= d
    if size != x.size:
        raise shape_error("reshape", (x,), f"{x.size} elements do not fit the shape {new_sizes}")
    return new_sizes


def _reshape_batch(x: Any, dim: int, size: int, *, new_sizes: Shape) -> tuple[Any, int]:
    return base.reshape_to(base.move_axis(x, dim, 0), (size, *new_sizes)), 0


reshape_p = movement(
    "reshape",
    "The same elements, in row-major order, in another shape.",
    _reshape_shape,
    lambda ct, aval, new_sizes: base.reshape_to(ct, aval.shape),
    _reshape_batch,
)


def reshape(operand: Any, new_sizes: Any, dimensions: Sequence[int] | None = None) -> Array:
    """``operand``'s elements, in row-major order, in the shape ``new_sizes`` (all sizes given).

    With ``dimensions`` the order is that of ``operand`` with its axes permuted so.

    Raises:
        ShapeError: where the number of elements differs.

    >>> lax.reshape(np.arange(4), (2, 2))
    Array([[0, 1],
           [2, 3]], dtype=int64)
    """
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    return base.reshape_to(operand, canonical_ints("reshape", "new_sizes", new_sizes))


# -- transpose ---------------------------------------------------------------------------------------------------------


def _transpose_shape(x: ShapedArray, *, permutation: tuple[int, ...]) -> Shape:
    if sorted(permutation) != list(_range(x.ndim)):
        raise shape_error("transpose", (x,), f"{permutation} is no permutation of the {x.ndim} axes")
    return tuple(x.shape[p] for p in permutation)


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(np.asarray(permutation, dtype=np.int64), kind="stable"))


def _transpose_batch(x: Any, dim: int, size: int, *, permutation: tuple[int, ...]) -> tuple[Any, int]:
    return base.permute(x, (dim, *_bump(permutation, dim))), 0


transpose_p = movement(
    "transpose",
    "The axes in another order.",
    _transpose_shape,
    lambda ct, aval, permutation: base.permute(ct, _inverse(permutation)),
    _transpose_batch,
)


def transpose(operand: Any, permutation: Any) -> Array:
    """``operand`` with its axes in the order ``permutation``.

    >>> lax.transpose(np.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
    order = canonical_ints("transpose", "permutation", permutation)
    return bind(transpose_p, operand, permutation=order) if order != tuple(_range(len(shape_of(operand)))) else operand


# -- broadcast ---------------------------------------------------------------------------------------------------------


def _broadcast_shape(x: ShapedArray, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> Shape:
    dims = broadcast_dimensions
    fits = (
        len(dims) == x.ndim
        and list(dims) == sorted(builtins.set(dims))
        and all(0 <= d < len(shape) and x.shape[i] in (1, shape[d]) for i, d in enumerate(dims))
    )
    if not fits:
        raise shape_error(
            "broadcast_in_dim", (x,), f"axes cannot become axes {dims} of the shape {shape}: each must match or be 1"
        )
    return shape


def _broadcast_transpose(ct: Any, aval: ShapedArray, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> Any:
    spread = [d for i, d in enumerate(broadcast_dimensions) if aval.shape[i] != shape[d]]
    summed = [d for d in _range(len(shape)) if d not in broadcast_dimensions or d in spread]
    return base.reshape_to(base.sum_axes(ct, summed), aval.shape)


def _broadcast_batch(
    x: Any, dim: int, size: int, *, shape: Shape, broadcast_dimensions: tuple[int, ...]
) -> tuple[Any, int]:
    x = base.move_axis(x, dim, 0)
    dims = (0, *(d + 1 for d in broadcast_dimensions))
    return base.broadcast_to(x, (size, *shape), dims), 0


broadcast_in_dim_p = movement(
    "broadcast_in_dim",
    "The operand's axes placed among those of a larger shape, repeated along the rest.",
    _broadcast_shape,
    _broadcast_transpose,
    _broadcast_batch,
)


def broadcast_in_dim(x: Any, shape: Any, broadcast_dimensions: Any) -> Any:
    """``x`` repeated to ``shape``: its axis i becomes axis ``broadcast_dimensions[i]`` (ascending) of the result.

    Raises:
        ShapeError: where an axis neither matches nor has size 1.

    >>> lax.broadcast_in_dim(np.arange(2), (2, 3), (0,))
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int64)
    """
    sizes = canonical_ints("broadcast_in_dim", "shape", shape)
    dims = canonical_ints("broadcast_in_dim", "broadcast_dimensions", broadcast_dimensions)
    return base.broadcast_to(x, sizes, dims)


# -- slice -------------------------------------------------------------------------------------------------------------


def _slice_shape(
    x: ShapedArray, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: tuple[int, ...] | None
) -> Shape:
    steps = strides or (1,) * x.ndim
    fits = len(start_indices) == len(limit_indices) == len(steps) == x.ndim and all(
        0 <= a <= b <= n and s > 0 for a, b, n, s in zip(start_indices, limit_indices, x.shape, steps, strict=True)
    )
    if not fits:
        raise shape_error(
            "slice",
            (x,),
            f"start {start_indices}, limit {limit_indices}, strides {strides} do not lie inside the shape",
        )
    return tuple(-(-(b - a) // s) for a, b, s in zip(start_indices, limit_indices, steps, strict=True))


def _slice_transpose(ct: Any, aval: ShapedArray, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    config = []
    for axis, (start, step) in enumerate(zip(start_indices, strides or (1,) * aval.ndim, strict=True)):
        n = shape_of(ct)[axis]
        end = start + (n - 1) * step + 1 if n else start
        config.append((start, aval.shape[axis] - end, step - 1))
    return pad(ct, base.fill((), 0, base.dtype_of(ct)), config)


def _slice_batch(x: Any, dim: int, size: int, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    strides = strides and _insert(strides, dim, 1)
    return bind(
        slice_p,
        x,
        start_indices=_insert(start_indices, dim, 0),
        limit_indices=_insert(limit_indices, dim, size),
        strides=strides,
    ), dim


slice_p = movement("slice", "A strided box of the operand.", _slice_shape, _slice_transpose, _slice_batch)


def slice(operand: Any, start_indices: Any, limit_indices: Any, strides: Any = None) -> Array:
    """The box of ``operand`` from ``start_indices`` to ``limit_indices`` (not included), every ``strides``-th element.

    Raises:
        ShapeError: where the box leaves the array.

    >>> lax.slice(np.arange(10), (1,), (8,), (3,))
    Array([1, 4, 7], dtype=int64)
    """
    start = canonical_ints("slice", "start_indices", start_indices)
    limit = canonical_ints("slice", "limit_indices", limit_indices)
    steps = None if strides is None else canonical_ints("slice", "strides", strides)
    if steps is not None and all(s == 1 for s in steps):
        steps = None
    if steps is None and not any(start) and limit == shape_of(operand):
        return operand
    return bind(slice_p, operand, start_indices=start, limit_indices=limit, strides=steps)


# -- reverse -----------------------------------------------------------------------------------------------------------


def _rev_shape(x: ShapedArray, *, dimensions: tuple[int, ...]) -> Shape:
    canonical_axes("rev", dimensions, x.ndim)
    return x.shape


rev_p: Primitive = movement(
    "rev",
    "Some axes in reverse.",
    _rev_shape,
    lambda ct, aval, dimensions: bind(rev_p, ct, dimensions=dimensions),
    lambda x, dim, size, dimensions: (bind(rev_p, x, dimensions=_bump(dimensions, dim)), dim),
)


def rev(operand: Any, dimensions: Any) -> Array:
    """``operand`` reversed along the axes ``dimensions``.

    >>> lax.rev(np.arange(3), (0,))
    Array([2, 1, 0], dtype=int64)
    """
    axes = canonical_axes("rev", dimensions, len(shape_of(operand)))
    return bind(rev_p, operand, dimensions=axes) if axes else operand


# -- pad ---------------------------------------------------------------------------------------------------------------

Padding = tuple[tuple[int, int, int], ...]


def _pad_abstract(x: ShapedArray, value: ShapedArray, *, padding_config: Padding) -> ShapedArray:
    if value.shape != () or value.dtype != x.dtype:
        raise shape_error("pad", (x, value), "the padding value must be rank 0 and of the operand's dtype")
    if len(padding_config) != x.ndim or any(inner < 0 for _, _, inner in padding_config):
        raise shape_error("pad", (x, value), f"{padding_config} is not one (low, high, interior >= 0) an axis")
    shape = tuple(
        lo + hi + n + builtins.max(n - 1, 0) * inner for n, (lo, hi, inner) in zip(x.shape, padding_config, strict=True)
    )
    if any(n < 0 for n in shape):
        raise shape_error("pad", (x, value), f"{padding_config} takes away more than there is")
    return x.update(shape=shape)


def _pad_transpose(ct: Any, x: Any, value: Any, *, padding_config: Padding) -> list[Any]:
    if isinstance(ct, Zero):
        return [None, None]
    zero = base.fill((), 0, base.dtype_of(ct))
    x_ct = value_ct = None
    if isinstance(x, Linear):
        dilated = pad(ct, zero, [(-lo, -hi, 0) for lo, hi, _ in padding_config])
        x_ct = slice(dilated, (0,) * x.aval.ndim, shape_of(dilated), [inner + 1 for _, _, inner in padding_config])
    if isinstance(value, Linear):
        inside = pad(
            base.fill(shape_of(x) if not isinstance(x, Linear) else x.aval.shape, True, dtypes.bool_),
            False,
            padding_config,
        )
        value_ct = base.sum_axes(select(inside, zero, ct), _range(len(shape_of(ct))))
    return [x_ct, value_ct]


def _pad_batch(args: Any, dims: Any, size: int, *, padding_config: Padding) -> tuple[Any, int]:
    x, value = args
    dim, value_dim = dims
    if value_dim is None:
        return bind(pad_p, x, value, padding_config=_insert(padding_config, dim, (0, 0, 0))), dim
    # one padding value an element: place the elements, then choose
    x = base.to_front(x, dim, size)
    config = ((0, 0, 0), *padding_config)
    inside = pad(base.fill(shape_of(x), True, dtypes.bool_), False, config)
    placed = pad(x, base.fill((), 0, base.dtype_of(x)), config)
    return select(inside, placed, base.broadcast_to(value, shape_of(placed), (0,))), 0


pad_p = register(
    Primitive(
        "pad",
        Family.MOVEMENT,
        _pad_abstract,
        base.linear_jvp("pad", linear_args=2),
        _pad_batch,
        _pad_transpose,
        doc="The operand with a value put around and between its elements; negative widths take elements away.",
    )
)


def pad(operand: Any, padding_value: Any, padding_config: Any) -> Array:
    """``operand`` with ``padding_value`` around and between its elements.

    Args:
        operand: any array.
        padding_value: rank 0, of ``operand``'s dtype.
        padding_config: ``(low, high, interior)`` an axis; ``low`` and ``high`` may be negative.

    >>> lax.pad(np.arange(1, 4), 0, [(1, -1, 1)])
    Array([0, 1, 0, 2, 0], dtype=int64)
    """
    config = tuple(canonical_ints("pad", "padding_config", tuple(c)) for c in padding_config)
    if not any(any(c) for c in config) and len(config) == len(shape_of(operand)):
        return operand
    return bind(pad_p, *base.operands("pad", operand, padding_value), padding_config=config)
