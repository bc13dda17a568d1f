"""Convolutions with jax.lax's arguments."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import base, lax
from volta.ops.contraction import precision_for
from volta.ops.windows import Axis, dilated
from volta.trace.convolution import Convolution

__all__ = [
    "ConvDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_general_dilated_patches",
    "conv_transpose",
    "conv_with_general_padding",
    "padtype_to_pads",
]

Pads = Sequence[tuple[int, int]]


class ConvDimensionNumbers(NamedTuple):
    """Where a convolution's operands and result have their axes.

    ``lhs_spec`` gives the axes of batch, features and space; ``rhs_spec`` those of features out, features in and the
    window; ``out_spec`` those of batch, features and space.

    >>> lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


def _error(name: str, why: str) -> ShapeError:
    return ShapeError(at_user_line(f"{name}: {why}"))


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Axes of a convolution from three strings such as ``("NHWC", "HWIO", "NHWC")``; None means NCHW, OIHW, NCHW.

    Raises ShapeError for operands of different rank and for strings that do not name every axis once.

    >>> lax.conv_dimension_numbers((1, 3, 8), (4, 3, 3), None).out_spec
    (0, 1, 2)
    """
    rank, name = len(lhs_shape), "conv_dimension_numbers"
    if len(rhs_shape) != rank or rank < 2:
        raise _error(name, f"operands of shapes {tuple(lhs_shape)} and {tuple(rhs_shape)} have no common rank above 1")
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        order = tuple(range(rank))
        return ConvDimensionNumbers(order, order, order)
    specs = list(dimension_numbers)
    if len(specs) != 3 or not all(isinstance(s, str) and len(s) == rank == len({*s}) for s in specs):
        raise _error(name, f"{dimension_numbers!r} are not three strings that name each of {rank} axes once")
    lhs, rhs, out = specs
    space = [c for c in rhs if c not in "OI"]
    for spec, own in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        if not {*own} <= {*spec} or {*space} != {*spec} - {*own}:
            raise _error(name, f"{spec!r} of {dimension_numbers!r} has to name {own[0]}, {own[1]} and {space}")
    axes = [tuple(s.index(c) for c in (*own, *space)) for s, own in ((lhs, "NC"), (rhs, "OI"), (out, "NC"))]
    return ConvDimensionNumbers(*axes)


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """The padding ``(low, high)`` an axis that ``'SAME'``, ``'SAME_LOWER'`` or ``'VALID'`` stand for.

    'SAME' gives ceil(n / stride) windows; an odd element of padding comes last ('SAME_LOWER': first).

    >>> lax.padtype_to_pads((8, 8), (3, 2), (1, 1), "SAME")
    [(1, 1), (0, 1)]
    """
    kind = str(padding).upper()
    if kind == "VALID":
        return [(0, 0)] * len(in_shape)
    if kind not in ("SAME", "SAME_LOWER"):
        raise _error("padtype_to_pads", f"padding is 'SAME', 'SAME_LOWER', 'VALID' or pairs, not {padding!r}")
    pads = []
    for n, k, stride in zip(in_shape, window_shape, window_strides, strict=True):
        total = builtins.max((-(-n // stride) - 1) * stride + k - n, 0)
        few, many = total // 2, total - total // 2
        pads.append((few, many) if kind == "SAME" else (many, few))
    return pads


def integers(name: str, what: str, values: Any, count: int) -> tuple[int, ...]:
    if values is None:
        return (1,) * count
    found = base.canonical_ints(name, what, tuple(values))
    if len(found) != count or any(n < 1 for n in found):
        raise _error(name, f"{what} has to be {count} integers of at least 1, one an axis of space; got {values!r}")
    return found


def pairs(name: str, padding: Any, space: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> Pads:
    if isinstance(padding, str):
        return padtype_to_pads(space, reach, strides, padding)
    pads = [base.canonical_ints(name, "padding", tuple(p)) for p in padding]
    if len(pads) != len(space) or any(len(p) != 2 for p in pads):
        raise _error(name, f"padding has to be a pair (low, high) for each of {len(space)} axes, not {padding!r}")
    return [(p[0], p[1]) for p in pads]


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """The sum, over the places of a window and the features, of ``lhs`` in that window times ``rhs``.

    A result's terms are added as DOT of the bit contract: place by place, row by row, and at each place feature by
    feature. Padding counts as elements of 0. The window is not reversed.

    Args:
        lhs: rank n + 2: batch, features and n axes of space, in an order that ``dimension_numbers`` gives.
        rhs: rank n + 2, of ``lhs``'s dtype: features out, features in of one group, the window.
        window_strides: by how much the window moves, an axis of space each.
        padding: ``(low, high)`` an axis of space, which may be negative, or 'SAME', 'SAME_LOWER', 'VALID'.
        lhs_dilation: the distance of ``lhs``'s elements, with zeros between them (of a transposed convolution).
        rhs_dilation: the distance of the window's elements.
        dimension_numbers: see :func:`conv_dimension_numbers`; None means NCHW, OIHW, NCHW.
        feature_group_count: groups of features, each with features in and out of its own.
        batch_group_count: groups of the batch, each with features out of its own.
        precision, preferred_element_type: as for :func:`dot_general`.

    Returns:
        Rank n + 2: batch, features out and windows, in the order of ``dimension_numbers``.

    Raises:
        ShapeError: for shapes, strides, padding or groups that do not fit.
        DTypeError: where the dtypes differ.

    >>> x, w = np.ones((1, 8, 8, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    >>> lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 8, 8, 4)
    """
    name = "conv_general_dilated"
    left, right = get_aval(lhs), get_aval(rhs)
    numbers = conv_dimension_numbers(left.shape, right.shape, dimension_numbers)
    n = left.ndim - 2
    strides = integers(name, "window_strides", window_strides, n)
    apart = integers(name, "lhs_dilation", lhs_dilation, n)
    reach = integers(name, "rhs_dilation", rhs_dilation, n)
    groups, batch_groups = integers(name, "group counts", (feature_group_count, batch_group_count), 2)
    space = [left.shape[i] for i in numbers.lhs_spec[2:]]
    window = [right.shape[i] for i in numbers.rhs_spec[2:]]
    if isinstance(padding, str) and any(d > 1 for d in apart):
        raise _error(name, f"padding {padding!r} with lhs_dilation: give pairs (low, high), or use conv_transpose")
    pads = pairs(
        name,
        padding,
        space,
        [dilated(k, d) for k, d in zip(window, reach, strict=True)],
        strides,
    )
    axes = tuple(Axis(k, s, *p, b, r) for k, s, p, b, r in zip(window, strides, pads, apart, reach, strict=True))
    if any(a.length(s) < 0 for a, s in zip(axes, space, strict=True)):
        raise _error(name, f"padding {list(pads)} takes away more than there is of space {tuple(space)}")
    dtype = None if preferred_element_type is None else dtypes.canonicalize(preferred_element_type)
    kind = precision_for(name, precision, left.dtype, dtype)
    places = {"n": numbers.lhs_spec[0], "c": numbers.lhs_spec[1], "s": builtins.max(numbers.lhs_spec[2:], default=-1)}
    made = Convolution(
        axes,
        groups,
        batch_groups,
        layout="".join(sorted(places, key=places.__getitem__)),
        precision=kind,
        dtype=None if dtype == left.dtype else dtype,
    )
    out = made(base.permute(lhs, numbers.lhs_spec), base.permute(rhs, numbers.rhs_spec))
    return base.permute(out, np.argsort(numbers.out_spec).tolist())


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """:func:`conv_general_dilated` with operands NCHW and OIHW.

    >>> lax.conv(np.ones((1, 2, 5)), np.ones((4, 2, 3)), (1,), "VALID").shape
    (1, 4, 3)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """:func:`conv_general_dilated` with operands NCHW and OIHW, and dilations.

    >>> lax.conv_with_general_padding(np.ones((1, 2, 5)), np.ones((4, 2, 3)), (1,), [(1, 1)], None, (2,)).shape
    (1, 4, 3)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Convolution with fractional strides: ``strides`` - 1 zeros lie between the elements of ``lhs``.

    ``padding`` is that of the forward convolution where it is 'SAME' or 'VALID'. ``transpose_kernel`` reverses the
    window and exchanges its features, so that the result is the gradient of a convolution by its left operand.
    ``dimension_numbers`` None means NHWC, HWIO, NHWC.

    >>> lax.conv_transpose(np.ones((1, 4, 2)), np.ones((3, 2, 5)), (2,), "SAME").shape
    (1, 8, 5)
    """
    rank = get_aval(lhs).ndim
    if dimension_numbers is None:
        space = "HWD"[: rank - 2] if rank <= 5 else "".join(chr(ord("a") + i) for i in range(rank - 2))
        dimension_numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
    numbers = conv_dimension_numbers(get_aval(lhs).shape, get_aval(rhs).shape, dimension_numbers)
    by = integers("conv_transpose", "strides", strides, rank - 2)
    reach = integers("conv_transpose", "rhs_dilation", rhs_dilation, rank - 2)
    window = [dilated(get_aval(rhs).shape[i], d) for i, d in zip(numbers.rhs_spec[2:], reach, strict=True)]
    pads = padding
    if isinstance(padding, str):
        pads = [_transposed(k, s, padding) for k, s in zip(window, by, strict=True)]
    if transpose_kernel:
        rhs = lax.rev(rhs, numbers.rhs_spec[2:])
        order = list(range(rank))
        o, i = numbers.rhs_spec[:2]
        order[o], order[i] = i, o
        rhs = base.permute(rhs, order)
    return conv_general_dilated(
        lhs, rhs, (1,) * (rank - 2), pads, by, rhs_dilation, numbers,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def _transposed(window: int, stride: int, padding: str) -> tuple[int, int]:
    """The padding of one axis that gives a transposed convolution the length of the forward one's operand."""
    kind = padding.upper()
    if kind == "SAME":
        total = window + stride - 2
        low = window - 1 if stride > window - 1 else -(-total // 2)
    elif kind == "VALID":
        total, low = window + stride - 2 + builtins.max(window - stride, 0), window - 1
    else:
        raise _error("conv_transpose", f"padding is 'SAME', 'VALID' or pairs, not {padding!r}")
    return low, total - low


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """What :func:`conv_general_dilated` multiplies: each window's elements, as features (feature by feature).

    >>> lax.conv_general_dilated_patches(np.ones((1, 3, 8, 8), np.float32), (2, 2), (1, 1), "VALID").shape
    (1, 12, 7, 7)
    """
    aval = get_aval(lhs)
    shape = tuple(filter_shape)
    spec = conv_dimension_numbers(aval.shape, (1,) * aval.ndim, dimension_numbers)
    features, count = aval.shape[spec.lhs_spec[1]], int(np.prod(shape, dtype=np.int64))
    weights = np.eye(count, dtype=aval.dtype).reshape(count, 1, *shape)
    rhs = np.tile(weights, (features, *[1] * (aval.ndim - 1)))
    rhs = np.transpose(rhs, np.argsort(spec.rhs_spec))
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, spec, features,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip
