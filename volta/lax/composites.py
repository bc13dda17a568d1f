"""Functions of jax.lax that are made of others, or that take arguments in jax.lax's way."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from volta.core import dtypes, pytrees
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import base, lax

T = TypeVar("T")

__all__ = [
    "RoundingMethod",
    "approx_max_k",
    "approx_min_k",
    "associative_scan",
    "batch_matmul",
    "bitcast_convert_type",
    "broadcast_in_dim",
    "broadcast_like",
    "broadcast_shapes",
    "composite",
    "optimization_barrier",
    "round",
    "stack",
    "tile",
    "unstack",
]


class RoundingMethod(enum.IntEnum):
    """Where :func:`round` takes halves.

    >>> lax.RoundingMethod.TO_NEAREST_EVEN.value
    1
    """

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """The nearest integer as a float; halves away from 0, or to the even one of both.

    >>> lax.round(np.float32([-0.5, 0.5, 2.5]))
    Array([-1.,  1.,  3.], dtype=float32)
    """
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return lax.round(x)
    whole = lax.trunc(x)
    up = lax.ge(lax.abs(lax.sub(x, whole)), 0.5)
    return lax.select_n(up, whole, lax.add(whole, lax.sign(x)))


def broadcast_in_dim(operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Array:
    """``operand`` in ``shape``, its axis i becoming axis ``broadcast_dimensions[i]``; sizes of 1 are repeated.

    >>> lax.broadcast_in_dim(np.float32([1, 2]), (2, 3), (0,)).shape
    (2, 3)
    """
    places = tuple(broadcast_dimensions)
    order = tuple(sorted(range(len(places)), key=places.__getitem__))
    if order != tuple(range(len(places))) and len(order) == get_aval(operand).ndim:
        operand, places = lax.transpose(operand, order), tuple(sorted(places))
    return lax.broadcast_in_dim(operand, tuple(shape), places)


def composite(decomposition: Callable[..., T], name: str, version: int = 0) -> Callable[..., T]:
    """``decomposition`` with a name for readers: every backend runs what it is made of.

    ``name`` and ``version`` are there for JAX's sake, where a backend may have an implementation of its own.

    >>> tangent = lax.composite(lambda x: lax.div(lax.sin(x), lax.cos(x)), name="my.tangent")
    >>> tangent(np.float32(0))
    Array(0., dtype=float32)
    """

    @functools.wraps(decomposition)
    def named(*args: Any, **attributes: Any) -> T:
        return decomposition(*args, **attributes)

    return named


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape under NumPy's rules.

    >>> lax.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    try:
        return np.broadcast_shapes(*(tuple(s) for s in shapes))
    except ValueError:
        raise ShapeError(at_user_line(f"broadcast_shapes: {', '.join(map(str, shapes))} do not broadcast")) from None


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """``arr`` broadcast to the shape of ``like_arr``.

    >>> lax.broadcast_like(np.float32([1, 2]), np.zeros((3, 2))).shape
    (3, 2)
    """
    shape, own = get_aval(like_arr).shape, get_aval(arr).shape
    if len(own) > len(shape) or broadcast_shapes(own, shape) != shape:
        raise ShapeError(at_user_line(f"broadcast_like: shape {own} does not broadcast to {shape}"))
    return lax.broadcast_in_dim(arr, shape, tuple(range(len(shape) - len(own), len(shape))))


def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

    >>> lax.stack([np.float32([1, 2]), np.float32([3, 4])]).shape
    (2, 2)
    """
    ndim = get_aval(operands[0]).ndim + 1
    return lax.concatenate([lax.expand_dims(x, (axis % ndim,)) for x in operands], axis % ndim)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices along ``axis``, without it.

    >>> [v.tolist() for v in lax.unstack(np.float32([[1, 2], [3, 4]]))]
    [[1.0, 2.0], [3.0, 4.0]]
    """
    shape = get_aval(x).shape
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(at_user_line(f"unstack: axis {axis} does not exist in shape {shape}"))
    return tuple(lax.index_in_dim(x, i, axis % len(shape), False) for i in range(shape[axis]))


def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """``operand`` repeated ``reps[i]`` times along each axis i; ``reps`` may name more axes in front.

    >>> lax.tile(np.int32([1, 2]), (2,))
    Array([1, 2, 1, 2], dtype=int32)
    """
    reps = tuple(reps)
    shape = (1,) * (len(reps) - get_aval(operand).ndim) + get_aval(operand).shape
    if len(shape) != len(reps):
        raise ShapeError(at_user_line(f"tile: {len(reps)} repetitions for the axes of shape {shape}"))
    wide = tuple(n for r, m in zip(reps, shape, strict=True) for n in (r, m))
    x = lax.broadcast_in_dim(lax.reshape(operand, shape), wide, tuple(range(1, 2 * len(shape), 2)))
    return lax.reshape(x, tuple(r * m for r, m in zip(reps, shape, strict=True)))


def optimization_barrier(*operands: Any) -> Any:
    """The operand itself, an array or a pytree, computed as a whole before anything that uses it; of several a list.

    >>> lax.optimization_barrier({"a": np.float32([1, 2])})
    {'a': Array([1., 2.], dtype=float32)}
    """
    leaves, tree = pytrees.flatten(list(operands))
    out = pytrees.unflatten(tree, lax.optimization_barrier(*leaves))
    return out[0] if len(operands) == 1 else out


def bitcast_convert_type(operand: ArrayLike, new_dtype: Any) -> Array:
    """The bits of ``operand`` read as another dtype. The parts of a wider item are along a new last axis, the lowest
    first; parts along the last axis are joined to a wider item, and that axis goes.

    Every NaN is read as the one NaN: positive, quiet, without payload (0x7fc00000 for float32).

    Raises:
        DTypeError: for complex numbers, which have two parts, and bool.
        ShapeError: where there are not as many parts as make an item.

    >>> lax.bitcast_convert_type(np.float32(1), np.int32), lax.bitcast_convert_type(np.uint32(258), np.uint8).tolist()
    (Array(1065353216, dtype=int32), [2, 1, 0, 0])
    """
    own, new = get_aval(operand).dtype, dtypes.canonicalize(new_dtype)
    plain = all(dtypes.is_float(d) or dtypes.is_integer(d) for d in (own, new))
    if not plain or own.itemsize == new.itemsize:
        return lax.bitcast_convert_type(operand, new)
    bits = lax.bitcast_convert_type(operand, _unsigned(own))
    if own.itemsize > new.itemsize:
        shifts = range(0, 8 * own.itemsize, 8 * new.itemsize)
        parts = [lax.shift_right_logical(bits, np.asarray(n, bits.dtype)) for n in shifts]
        return lax.bitcast_convert_type(stack([lax.convert_element_type(p, _unsigned(new)) for p in parts], -1), new)
    count = new.itemsize // own.itemsize
    if bits.shape[-1:] != (count,):
        raise ShapeError(
            at_user_line(
                f"bitcast_convert_type: {count} parts of {own} along the last axis make a {new}, got {bits.shape}"
            )
        )
    whole = lax.full(bits.shape[:-1], 0, _unsigned(new))
    for i in range(count):
        part = lax.convert_element_type(lax.index_in_dim(bits, i, -1, keepdims=False), whole.dtype)
        whole = lax.bitwise_or(whole, lax.shift_left(part, np.asarray(8 * own.itemsize * i, whole.dtype)))
    return lax.bitcast_convert_type(whole, new)


def _unsigned(dtype: np.dtype) -> np.dtype:
    return next(d for d in dtypes.UNSIGNED if d.itemsize == dtype.itemsize)


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: Any = None) -> Array:
    """Matrix products over equal leading axes.

    >>> lax.batch_matmul(np.ones((2, 3, 4), np.float32), np.ones((2, 4, 5), np.float32)).shape
    (2, 3, 5)
    """
    n = get_aval(lhs).ndim
    batch = tuple(range(n - 2))
    return lax.dot_general(lhs, rhs, (((n - 1,), (n - 2,)), (batch, batch)), precision=precision)


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """The running combination of elements along ``axis`` by an associative ``fn`` of two pytrees of arrays.

    ``fn`` sees many pairs at once. The pairs are combined as in a balanced tree, the same one for the same length.

    >>> lax.associative_scan(lax.add, np.int32([1, 2, 3, 4]))
    Array([ 1,  3,  6, 10], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(at_user_line(f"associative_scan takes a function, got {type(fn).__name__}"))
    leaves, tree = pytrees.flatten(elems)
    axis = base.canonical_axis("associative_scan", axis, get_aval(leaves[0]).ndim)
    sizes = {get_aval(x).shape[axis] for x in leaves}
    if len(sizes) != 1:
        raise ShapeError(
            at_user_line(f"associative_scan: the arrays have the lengths {sorted(sizes)} along axis {axis}")
        )
    if reverse:
        leaves = [lax.rev(x, (axis,)) for x in leaves]

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        return pytrees.leaves(fn(pytrees.unflatten(tree, a), pytrees.unflatten(tree, b)))

    def cut(x: Any, start: int, stop: int | None, stride: int = 1) -> Any:
        return lax.slice_in_dim(x, start, stop, stride, axis)

    def scan(items: list[Any]) -> list[Any]:
        n = get_aval(items[0]).shape[axis]
        if n < 2:
            return items
        last = n - n % 2
        pairs = combine([cut(x, 0, last, 2) for x in items], [cut(x, 1, last, 2) for x in items])
        odd = scan(pairs)  # the results at 1, 3, 5, …
        first = [cut(x, 0, 1) for x in items]
        later = [cut(x, 2, n, 2) for x in items]
        m = get_aval(later[0]).shape[axis]
        even = combine([cut(x, 0, m) for x in odd], later) if m else later
        even = [lax.concatenate([f, e], axis) for f, e in zip(first, even, strict=True)]
        return [_interleave(e, o, axis) for e, o in zip(even, odd, strict=True)]

    out = scan(list(leaves))
    if reverse:
        out = [lax.rev(x, (axis,)) for x in out]
    return pytrees.unflatten(tree, [x if isinstance(x, Array) else lax.copy(x) for x in out])


def _interleave(a: Array, b: Array, axis: int) -> Array:
    """a0, b0, a1, b1, …; ``a`` may be one longer."""
    A, B = get_aval(a), get_aval(b)
    extra = A.shape[axis] - B.shape[axis]
    if extra:
        end = lax.slice_in_dim(a, A.shape[axis] - 1, None, axis=axis)
        a = lax.slice_in_dim(a, 0, B.shape[axis], axis=axis)
    pair = stack([a, b], axis + 1)
    shape = tuple(2 * n if i == axis else n for i, n in enumerate(B.shape))
    out = lax.reshape(pair, shape)
    return lax.concatenate([out, end], axis) if extra else out


def approx_max_k(operand: ArrayLike, k: int, reduction_dimension: int = -1, **settings: Any) -> tuple[Array, Array]:
    """The ``k`` largest elements and their positions: all of them, whatever recall the settings ask for.

    >>> lax.approx_max_k(np.float32([3, 1, 2]), 2)
    (Array([3., 2.], dtype=float32), Array([0, 2], dtype=int32))
    """
    moved, axis = _last(operand, reduction_dimension)
    values, places = lax.top_k(moved, k)
    return _back(values, axis), _back(places, axis)


def approx_min_k(operand: ArrayLike, k: int, reduction_dimension: int = -1, **settings: Any) -> tuple[Array, Array]:
    """The ``k`` smallest elements and their positions: all of them, whatever recall the settings ask for.

    >>> lax.approx_min_k(np.float32([3, 1, 2]), 2)
    (Array([1., 2.], dtype=float32), Array([1, 2], dtype=int32))
    """
    values, places = approx_max_k(lax.neg(operand), k, reduction_dimension)
    return lax.neg(values), places


def _last(x: Array, axis: int) -> tuple[Array, int]:
    n = get_aval(x).ndim
    axis = base.canonical_axis("top_k", axis, n)
    order = (*(i for i in range(n) if i != axis), axis)
    return (x if axis == n - 1 else lax.transpose(x, order)), axis


def _back(x: Array, axis: int) -> Array:
    n = get_aval(x).ndim
    order = list(range(n - 1))
    order.insert(axis, n - 1)
    return x if axis == n - 1 else lax.transpose(x, tuple(order))
