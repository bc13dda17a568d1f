"""Contraction: dot_general, the one product of matrices and tensors.

An element of the result is DOT of the bit contract over the contracted axes, whatever the other axes are. So its batch
rule, which only adds a batch axis or a free axis, never changes a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.contract import EXACT_TERMS
from volta.core.interp import bind, get_aval
from volta.core.policy import product_precision
from volta.ops import base
from volta.ops.arithmetic import add
from volta.ops.base import canonical_ints, dtype_error, shape_error, shape_of
from volta.ops.primitive import Family, Linear, Primitive, Zero, register
from volta.ops.selection import convert_element_type

__all__ = ["dot", "dot_general"]

Axes = tuple[int, ...]
DimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


def _free(ndim: int, contract: Axes, batch: Axes) -> list[int]:
    return [d for d in range(ndim) if d not in contract and d not in batch]


def _abstract(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: DimensionNumbers,
    precision: str | None,
    preferred_element_type: np.dtype | None,
) -> ShapedArray:
    (lc, rc), (lb, rb) = dimension_numbers
    avals = (lhs, rhs)
    if lhs.dtype != rhs.dtype:
        raise dtype_error(
            "dot_general", avals, "operands must have one dtype. volta.numpy promotes; volta.lax does not: "
            "use convert_element_type on one of them.",
        )  # fmt: skip
    if lhs.dtype == dtypes.bool_:
        raise dtype_error("dot_general", avals, "takes float or int operands; use convert_element_type first.")
    for aval, axes in ((lhs, lc + lb), (rhs, rc + rb)):
        if any(not 0 <= a < aval.ndim for a in axes) or len(set(axes)) != len(axes):
            raise shape_error("dot_general", avals, f"axes {axes} are not distinct axes of {aval.short()}")
    for what, left, right in (("contracted", lc, rc), ("batch", lb, rb)):
        sizes = [lhs.shape[d] for d in left], [rhs.shape[d] for d in right]
        if sizes[0] != sizes[1]:
            raise shape_error(
                "dot_general", avals, f"{what} axes {left} and {right} have sizes {sizes[0]} and {sizes[1]}"
            )
    if precision == "exact" and math.prod(lhs.shape[d] for d in lc) > EXACT_TERMS:
        raise shape_error(
            "dot_general", avals, f"products of precision 'exact' have at most {EXACT_TERMS} terms: add up products of "
            "parts, or leave the precision at None",
        )  # fmt: skip
    shape = tuple(
        [lhs.shape[d] for d in lb]
        + [lhs.shape[d] for d in _free(lhs.ndim, lc, lb)]
        + [rhs.shape[d] for d in _free(rhs.ndim, rc, rb)]
    )
    return ShapedArray(shape, preferred_element_type or lhs.dtype, lhs.weak_type and rhs.weak_type)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    (x, y), (dx, dy) = primals, tangents
    out = bind(dot_general_p, x, y, **params)
    if not dtypes.is_inexact(base.dtype_of(out)):
        return out, base.zero_like(out)
    shares = [] if isinstance(dx, Zero) else [bind(dot_general_p, dx, y, **params)]
    shares += [] if isinstance(dy, Zero) else [bind(dot_general_p, x, dy, **params)]
    if not shares:
        return out, base.zero_like(out)
    return out, shares[0] if len(shares) == 1 else add(*shares)


def _operand_ct(ct: Any, x: Linear, y: Any, numbers: DimensionNumbers, precision: Any, left: bool) -> Any:
    """The cotangent of one operand: the output's cotangent times the other operand ``y``."""
    (xc, yc), (xb, yb) = numbers
    y_ndim, dtype = len(shape_of(y)), base.dtype_of(ct)
    x_free, y_free = _free(x.aval.ndim, xc, xb), _free(y_ndim, yc, yb)
    n_batch, n_x, n_y = len(xb), len(x_free), len(y_free)
    batch = tuple(range(n_batch))
    # the output's axes are batch, left free, right free: contract the free axes of y
    first = n_batch + n_x if left else n_batch
    contracted = tuple(range(first, first + n_y))
    y = convert_element_type(y, dtype)
    product = bind(
        dot_general_p,
        ct,
        y,
        dimension_numbers=((contracted, tuple(y_free)), (batch, yb)),
        precision=precision,
        preferred_element_type=None,
    )
    # product axes: batch, free axes of x, contracted axes of y in ascending order
    order = sorted(range(len(yc)), key=lambda i: yc[i])
    places = [*xb, *x_free, *(xc[i] for i in order)]
    product = base.permute(product, [places.index(d) for d in range(x.aval.ndim)])
    return convert_element_type(product, x.aval.dtype)


def _transpose(
    ct: Any, x: Any, y: Any, *, dimension_numbers: DimensionNumbers, precision: Any, preferred_element_type: Any
) -> list[Any]:
    if isinstance(ct, Zero):
        return [None, None]
    if isinstance(x, Linear):
        return [_operand_ct(ct, x, y, dimension_numbers, precision, left=True), None]
    (xc, yc), (xb, yb) = dimension_numbers
    return [None, _operand_ct(ct, y, x, ((yc, xc), (yb, xb)), precision, left=False)]


def _bump(axes: Axes, at: int) -> Axes:
    return tuple(a + (a >= at) for a in axes)


def _batch(args: Any, dims: Any, size: int, *, dimension_numbers: DimensionNumbers, **params: Any) -> tuple[Any, int]:
    (lhs, rhs), (ld, rd) = args, dims
    (lc, rc), (lb, rb) = dimension_numbers
    if ld is not None:
        lc, lb = _bump(lc, ld), _bump(lb, ld)
    if rd is not None:
        rc, rb = _bump(rc, rd), _bump(rb, rd)
    if ld is not None and rd is not None:  # one more batch axis
        lb, rb, out_dim = (ld, *lb), (rd, *rb), 0
    elif ld is not None:  # one more free axis of the left operand
        out_dim = len(lb) + _free(len(shape_of(lhs)), lc, lb).index(ld)
    else:
        n_left = len(_free(len(shape_of(lhs)), lc, lb))
        out_dim = len(rb) + n_left + _free(len(shape_of(rhs)), rc, rb).index(rd)
    return bind(dot_general_p, lhs, rhs, dimension_numbers=((lc, rc), (lb, rb)), **params), out_dim


dot_general_p = register(
    Primitive(
        "dot_general",
        Family.CONTRACTION,
        _abstract,
        _jvp,
        _batch,
        _transpose,
        on_tensor_cores=("dot_tc", "precisions tf32 and bf16"),
        doc="Sum of products over contracted axes, for each batch position, as DOT of the bit contract.",
    )
)


def dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Sum of products over the contracted axes.

    Args:
        lhs, rhs: arrays of one dtype (float or int).
        dimension_numbers: ``((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))``, each a sequence of axes.
        precision: of products of floats; integers have one precision. ``'exact'``: operands as integers, whose products
            add up in any order, rounded once. Of products of float32 and narrower also None or ``'float32'``: chains
            of float32. ``'highest'``: summed in float64 and rounded once. Below determinism level strict also
            ``'tf32'`` and ``'bf16'``: float32 operands rounded to these, multiplied on tensor cores where there are
            any (chains of float32 elsewhere), summed in float32. None is :func:`volta.default_matmul_precision`'s.
        preferred_element_type: the result's dtype where it is not the operands'.

    Returns:
        An array with the batch axes, then the free axes of ``lhs``, then those of ``rhs``.

    Raises:
        ShapeError: where paired axes differ in size, and for more than 2^26 terms of an exact product.
        DTypeError: where the dtypes differ, and for what is no precision.
        UnsupportedOperationError: for a precision of tensor cores at determinism level strict.

    >>> lax.dot_general(np.ones((5, 2, 3)), np.ones((5, 3, 4)), (((2,), (1,)), ((0,), (0,)))).shape
    (5, 2, 4)
    """
    (lc, rc), (lb, rb) = dimension_numbers
    numbers = (
        (canonical_ints("dot_general", "axes", tuple(lc)), canonical_ints("dot_general", "axes", tuple(rc))),
        (canonical_ints("dot_general", "axes", tuple(lb)), canonical_ints("dot_general", "axes", tuple(rb))),
    )
    dtype = None if preferred_element_type is None else dtypes.canonicalize(preferred_element_type)
    own = get_aval(lhs).dtype
    precision = precision_for("dot_general", precision, own, dtype)
    if dtype is not None and dtype == own:
        dtype = None
    return bind(dot_general_p, lhs, rhs, dimension_numbers=numbers, precision=precision, preferred_element_type=dtype)


def precision_for(name: str, precision: Any, own: np.dtype, out: np.dtype | None) -> str | None:
    """A precision as users write it, as that of a product of operands of one dtype, with a result of another (None: of
    theirs): None where such products have one precision."""
    found = product_precision(name, precision, own)
    single = dtypes.float32 == dtypes.compute_dtype(own) and (out is None or out != dtypes.float64)
    return found if single or (found == "exact" and dtypes.is_float(own)) else None


def dot(lhs: Any, rhs: Any, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Product of vectors and matrices: the last axis of ``lhs`` with the first of ``rhs`` (rank 1 or 2 each).

    >>> lax.dot(np.eye(2), np.array([1.0, 2.0]))
    Array([1., 2.], dtype=float64)
    """
    left, right = get_aval(lhs), get_aval(rhs)
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2):
        raise shape_error("dot", (left, right), "takes vectors and matrices; use dot_general or volta.numpy.matmul")
    return dot_general(lhs, rhs, (((left.ndim - 1,), (0,)), ((), ())), precision, preferred_element_type)
