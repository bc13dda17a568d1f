"""Reductions by functions, products of groups of rows, and arithmetic on bits, of ``jax.lax``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.api.custom_derivatives import custom_jvp
from volta.api.vmap import vmap
from volta.core import dtypes, pytrees
from volta.core.array import Array, ArrayLike
from volta.core.errors import DTypeError, ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import base, lax

__all__ = ["mulhi", "ragged_dot", "reduce", "reduce_precision", "reduce_xor"]


def reduce(operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int]) -> Any:
    """Arrays reduced by a function of two elements, which must be associative.

    Neighbours are combined in a binary tree (dimensions in ascending order, the last the fastest), and at last the
    initial value with what they give.

    Args:
        operands: a pytree of arrays of one shape.
        init_values: likewise of scalars: what no elements give.
        computation: of two such pytrees of elements, one.
        dimensions: which are reduced.

    Raises:
        ShapeError: the arrays have different shapes.
        TreeError: the initial values, or what ``computation`` returns, have another structure.

    >>> lax.reduce(np.float32([[1, 2], [3, 4]]), np.float32(0), lambda x, y: x + y, (0,))
    Array([4., 6.], dtype=float32)
    """
    leaves, tree = pytrees.flatten(operands)
    inits = pytrees.flatten_up_to(tree, init_values, "reduce: the initial value")
    shapes = {get_aval(x).shape for x in leaves}
    if len(shapes) != 1:
        raise ShapeError(at_user_line(f"reduce: operands must have one shape, got {sorted(shapes)}"))
    (shape,) = shapes
    axes = sorted({base.canonical_axis("reduce", d, len(shape)) for d in dimensions})
    kept = [d for d in range(len(shape)) if d not in axes]
    rest = tuple(shape[d] for d in kept)

    def combined(xs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        flat = [[lax.reshape(x, (get_aval(x).size,)) for x in side] for side in (xs, ys)]
        out = vmap(computation)(*(pytrees.unflatten(tree, side) for side in flat))
        found = pytrees.flatten_up_to(tree, out, "reduce: what the function returns")
        return [lax.reshape(v, get_aval(x).shape) for v, x in zip(found, xs, strict=True)]

    count = math.prod(shape[d] for d in axes)
    parts = [lax.reshape(lax.transpose(x, (*axes, *kept)), (count, *rest)) for x in leaves]
    starts = [lax.full(rest, 0, get_aval(x).dtype) + lax.convert_element_type(i, get_aval(x).dtype)
              for x, i in zip(leaves, inits, strict=True)]  # fmt: skip
    if not count or 0 in rest:
        return pytrees.unflatten(tree, starts)
    while count > 1:
        even = count // 2 * 2
        pairs = combined(*([lax.slice_in_dim(x, k, even, 2) for x in parts] for k in (0, 1)))
        parts = [lax.concatenate([p, lax.slice_in_dim(x, even, count)], 0) for p, x in zip(pairs, parts, strict=True)]
        count -= even // 2
    return pytrees.unflatten(tree, combined(starts, [lax.reshape(x, rest) for x in parts]))


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Elements combined by exclusive or along axes.

    >>> lax.reduce_xor(np.int32([1, 3, 4]), (0,))
    Array(6, dtype=int32)
    """
    dtype = get_aval(operand).dtype
    out: Array = reduce(operand, np.zeros((), dtype), lax.bitwise_xor, axes)
    return out


def mulhi(x: ArrayLike, y: ArrayLike) -> Array:
    """The upper half of the product of integers, whose lower half ``x * y`` is.

    >>> lax.mulhi(np.int32(2**30), np.int32(8))
    Array(2, dtype=int32)
    """
    dtype = get_aval(x).dtype
    if not dtypes.is_integer(dtype) or get_aval(y).dtype != dtype:
        text = f"takes integers of one dtype, got {get_aval(x).short()} and {get_aval(y).short()}"
        raise DTypeError(at_user_line(f"mulhi: {text}"))
    bits = dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(np.int64 if dtypes.is_signed(dtype) else np.uint64)
        product = lax.mul(lax.convert_element_type(x, wide), lax.convert_element_type(y, wide))
        shift = lax.shift_right_arithmetic if dtypes.is_signed(dtype) else lax.shift_right_logical
        return lax.convert_element_type(shift(product, wide.type(bits)), dtype)
    a, b = (lax.convert_element_type(v, np.uint64) for v in (x, y))
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    (a1, a0), (b1, b0) = ((lax.shift_right_logical(v, half), lax.bitwise_and(v, low)) for v in (a, b))
    middle = lax.add(lax.mul(a1, b0), lax.shift_right_logical(lax.mul(a0, b0), half))
    cross = lax.add(lax.mul(a0, b1), lax.bitwise_and(middle, low))
    carried = lax.add(lax.shift_right_logical(middle, half), lax.shift_right_logical(cross, half))
    upper = lax.add(lax.mul(a1, b1), carried)
    if not dtypes.is_signed(dtype):
        return upper
    high = lax.convert_element_type(upper, dtype)
    zero = np.zeros((), dtype)
    for one, other in ((x, y), (y, x)):  # an unsigned operand is 2^64 more where the signed one is negative
        high = lax.sub(high, lax.select_n(lax.lt(one, zero), zero, other))
    return high


def ragged_dot(
    lhs: ArrayLike, rhs: ArrayLike, group_sizes: ArrayLike, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Rows times the matrix of their group: the first ``group_sizes[0]`` rows times ``rhs[0]``, and so on.

    Each row is multiplied by every group's matrix, and its own product is taken. Rows behind all groups give zeros.

    Args:
        lhs: (m, k).
        rhs: (g, k, n).
        group_sizes: integers of shape (g,), which may be traced.
        precision, preferred_element_type: as for :func:`dot_general`.

    Returns:
        (m, n), each element with the bits of the product of its row.

    Raises:
        ShapeError: the shapes do not fit.

    >>> rows, weights = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[[1], [0]], [[0], [1]]])
    >>> lax.ragged_dot(rows, weights, np.int32([1, 2])).tolist()
    [[1.0], [4.0], [6.0]]
    """
    a, b, sizes = get_aval(lhs), get_aval(rhs), get_aval(group_sizes)
    if (a.ndim, b.ndim, sizes.ndim) != (2, 3, 1) or a.shape[1] != b.shape[1] or sizes.shape[0] != b.shape[0]:
        text = f"takes (m, k), (g, k, n) and (g,), got {a.short()}, {b.short()} and {sizes.short()}"
        raise ShapeError(at_user_line(f"ragged_dot: {text}"))
    if not dtypes.is_integer(sizes.dtype):
        raise DTypeError(at_user_line(f"ragged_dot: group sizes are integers, not {sizes.short()}"))
    each = lax.dot_general(lhs, rhs, (((1,), (1,)), ((), ())), precision, preferred_element_type)
    ends = lax.convert_element_type(lax.cumsum(group_sizes), np.int64)
    table = (a.shape[0], b.shape[0])
    behind = lax.le(lax.broadcast_in_dim(ends, table, (1,)), lax.broadcasted_iota(np.int64, table, 0))
    group = lax.reduce_sum(lax.convert_element_type(behind, np.int64), (1,))
    row = lax.iota(np.int64, a.shape[0])
    out = lax.gather(each, [row, group], axes=(0, 1), mode="clip")
    inside = lax.broadcast_in_dim(lax.lt(group, np.int64(b.shape[0])), get_aval(out).shape, (0,))
    return lax.select_n(inside, lax.full(get_aval(out).shape, 0, get_aval(out).dtype), out)


_FORMS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
"""Bits of the exponent and of the significand."""


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Floats rounded (to nearest, ties to even) to what fits fewer bits, in their own dtype.

    What is too large is infinite, what is too small a zero. Derivatives pass as they are.

    Raises:
        DTypeError: the operand is no float.
        ValueError: there is to be no bit of the exponent, or a negative number of the significand.

    >>> lax.reduce_precision(np.float32([1 / 3, 1e30, 1e-30]), 5, 10)
    Array([0.33325195,        inf, 0.        ], dtype=float32)
    """
    aval = get_aval(operand)
    if aval.dtype.name not in _FORMS:
        raise DTypeError(at_user_line(f"reduce_precision: takes floats, got {aval.short()}"))
    if exponent_bits < 1 or mantissa_bits < 0:
        text = f"needs 1 bit or more of exponent and 0 or more of significand, got {exponent_bits} and {mantissa_bits}"
        raise ValueError(at_user_line(f"reduce_precision: {text}"))

    @custom_jvp
    def rounded(x: Any) -> Any:
        return _rounded(x, exponent_bits, mantissa_bits)

    rounded.defjvp(lambda primals, tangents: (rounded(*primals), *tangents))
    out: Array = rounded(operand)
    return out


def _rounded(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    dtype = get_aval(x).dtype
    exponent, mantissa = _FORMS[dtype.name]
    word = np.dtype(f"uint{dtype.itemsize * 8}")
    sign = word.type(1 << (exponent + mantissa))
    bits = lax.bitcast_convert_type(x, word)
    size = lax.bitwise_and(bits, word.type(sign - 1))
    drop = mantissa - mantissa_bits
    if drop > 0:
        last = lax.bitwise_and(lax.shift_right_logical(size, word.type(drop)), word.type(1))
        size = lax.add(size, lax.add(last, word.type((1 << (drop - 1)) - 1)))
        size = lax.bitwise_and(size, word.type((1 << (exponent + mantissa)) - (1 << drop)))
    infinite = word.type(((1 << exponent) - 1) << mantissa)
    if exponent_bits < exponent:
        bias, own = (1 << (exponent_bits - 1)) - 1, (1 << (exponent - 1)) - 1
        largest = ((own + bias) << mantissa) | ((1 << mantissa) - (1 << max(drop, 0)))
        least = (own - bias + 1) << mantissa
        size = lax.select_n(lax.gt(size, word.type(largest)), size, infinite)
        size = lax.select_n(lax.lt(size, word.type(least)), size, word.type(0))
    found = lax.bitcast_convert_type(lax.bitwise_or(size, lax.bitwise_and(bits, sign)), dtype)
    return lax.select_n(lax.ne(x, x), found, x)
