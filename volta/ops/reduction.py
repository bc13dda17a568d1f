"""Reductions: axes combined into one value, in the order of the bit contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.interp import bind
from volta.ops import base
from volta.ops.arithmetic import add, div, eq, mul
from volta.ops.base import canonical_axes, canonical_axis, dtype_error, shape_error, shape_of
from volta.ops.elementwise import ANY, BITS, NUMBER, refusal, takes
from volta.ops.movement import pad
from volta.ops.primitive import REGISTRY, Family, Linear, NoDerivative, Primitive, Reduction, Rule, Zero, register
from volta.ops.selection import convert_element_type
from volta.ops.shaping import slice_in_dim

__all__ = ["argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"]

Axes = tuple[int, ...]


def reduction(
    name: str,
    doc: str,
    jvp: Rule | NoDerivative,
    kinds: Sequence[str],
    meaning: Reduction,
    transpose: Rule | None = None,
    empty: bool = True,
) -> Callable[..., Array]:
    """Define a reduction over ``axes`` and give its function. ``empty`` says whether it has an identity."""

    def abstract(x: ShapedArray, *, axes: Axes) -> ShapedArray:
        if not takes(name, x.dtype, kinds):
            raise dtype_error(name, (x,), refusal(x.dtype, kinds))
        canonical_axes(name, axes, x.ndim)
        if not empty and any(x.shape[a] == 0 for a in axes):
            raise shape_error(name, (x,), f"there is no such value of no elements (axes {axes})")
        return ShapedArray(tuple(d for i, d in enumerate(x.shape) if i not in axes), x.dtype, x.weak_type)

    def batch(args: Any, dims: Any, size: int, *, axes: Axes) -> tuple[Any, int]:
        dim = dims[0]
        moved = tuple(a + (a >= dim) for a in axes)
        return base.bind_named(name, args[0], axes=moved), dim - sum(a < dim for a in moved)

    primitive = register(Primitive(name, Family.REDUCTION, abstract, jvp, batch, transpose, reduction=meaning, doc=doc))

    def function(operand: Any, axes: Any) -> Any:
        return bind(primitive, operand, axes=canonical_axes(name, axes, len(shape_of(operand))))

    function.__name__ = function.__qualname__ = name
    example = f">>> lax.{name}(np.ones((2, 3), np.int32), (1,)).shape\n(2,)"
    function.__doc__ = f"{doc}\n\nThe axes leave the shape; the dtype stays ({', '.join(kinds)}).\n\n{example}"
    return function


def _spread(value: Any, shape: tuple[int, ...], axes: Axes) -> Any:
    """A reduction's result, repeated along the axes it was taken over."""
    return base.broadcast_to(value, shape, [d for d in range(len(shape)) if d not in axes])


# -- sum and product ---------------------------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: Linear, *, axes: Axes) -> list[Any]:
    return [None if isinstance(ct, Zero) else _spread(ct, x.aval.shape, axes)]


reduce_sum = reduction(
    "reduce_sum",
    "Sum over axes, as SUM of the bit contract.",
    base.linear_jvp("reduce_sum"),
    NUMBER,
    Reduction("sum", lambda dtype: 0),
    transpose=_sum_transpose,
)


def _prod_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, axes: Axes) -> tuple[Any, Any]:
    """Pairs (product, its tangent), combined by halves: right where elements are zero, to any order."""
    (x,), (t,) = primals, tangents
    out = base.bind_named("reduce_prod", x, axes=axes)
    if isinstance(t, Zero):
        return out, base.zero_like(out)
    shape = shape_of(x)
    rest = [d for d in range(len(shape)) if d not in axes]
    sizes = tuple(shape[d] for d in rest)
    n = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    if n == 0:
        return out, base.zero_like(out)
    p, t = (base.reshape_to(base.permute(v, (*rest, *axes)), (*sizes, n)) for v in (x, t))
    axis = len(sizes)
    while n > 1:
        if n % 2:
            config = [(0, 0, 0)] * axis + [(0, 1, 0)]
            p = pad(p, base.fill((), 1, base.dtype_of(p)), config)
            t = pad(t, base.fill((), 0, base.dtype_of(t)), config)
            n += 1
        p0, p1 = slice_in_dim(p, 0, n // 2, 1, axis), slice_in_dim(p, n // 2, n, 1, axis)
        t0, t1 = slice_in_dim(t, 0, n // 2, 1, axis), slice_in_dim(t, n // 2, n, 1, axis)
        t = add(mul(t0, p1), mul(p0, t1))
        p = mul(p0, p1)
        n //= 2
    return out, base.reshape_to(t, sizes)


reduce_prod = reduction("reduce_prod", "Product over axes.", _prod_jvp, NUMBER, Reduction("prod", lambda dtype: 1))

# -- extremes ----------------------------------------------------------------------------------------------------------


def _extreme_jvp(name: str) -> Rule:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, axes: Axes) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = base.bind_named(name, x, axes=axes)
        if isinstance(t, Zero):
            return out, base.zero_like(out)
        share = convert_element_type(eq(x, _spread(out, shape_of(x), axes)), base.dtype_of(x))
        return out, div(reduce_sum(mul(t, share), axes), reduce_sum(share, axes))

    return jvp


reduce_max = reduction(
    "reduce_max",
    "Largest value over axes; NaN wins. The derivative is shared equally among ties.",
    _extreme_jvp("reduce_max"),
    ANY,
    Reduction("max", dtypes.lowest),
    empty=False,
)
reduce_min = reduction(
    "reduce_min",
    "Smallest value over axes; NaN wins. The derivative is shared equally among ties.",
    _extreme_jvp("reduce_min"),
    ANY,
    Reduction("min", dtypes.highest),
    empty=False,
)

_DISCRETE = NoDerivative("integers and booleans have no derivative", zero=True)
reduce_and = reduction(
    "reduce_and",
    "And over axes, of bits or booleans.",
    _DISCRETE,
    BITS,
    Reduction("and", lambda dtype: True if dtype == dtypes.bool_ else -1),
)
reduce_or = reduction(
    "reduce_or",
    "Or over axes, of bits or booleans.",
    _DISCRETE,
    BITS,
    Reduction("or", lambda dtype: False if dtype == dtypes.bool_ else 0),
)

# -- positions ---------------------------------------------------------------------------------------------------------


def _arg_reduction(name: str, doc: str) -> Callable[..., Array]:
    def abstract(x: ShapedArray, *, axis: int, index_dtype: np.dtype) -> ShapedArray:
        axis = canonical_axis(name, axis, x.ndim)
        if not takes(name, x.dtype, ANY):
            raise dtype_error(name, (x,), refusal(x.dtype, ANY))
        if not dtypes.is_integer(index_dtype):
            raise dtype_error(name, (x,), f"index_dtype must be an integer dtype, got {index_dtype.name}")
        if x.shape[axis] == 0:
            raise shape_error(name, (x,), f"there is no position in no elements (axis {axis})")
        return ShapedArray(x.shape[:axis] + x.shape[axis + 1 :], index_dtype)

    def batch(args: Any, dims: Any, size: int, *, axis: int, index_dtype: np.dtype) -> tuple[Any, int]:
        dim = dims[0]
        moved = axis + (axis >= dim)
        return base.bind_named(name, args[0], axis=moved, index_dtype=index_dtype), dim - (moved < dim)

    register(
        Primitive(
            name,
            Family.REDUCTION,
            abstract,
            NoDerivative("it is a position", zero=True),
            batch,
            reduction=Reduction(name, lambda dtype: 0),
            doc=doc,
        )
    )

    def function(operand: Any, axis: int, index_dtype: Any = np.int32) -> Any:
        axis = canonical_axis(name, axis, len(shape_of(operand)))
        return bind(REGISTRY[name], operand, axis=axis, index_dtype=dtypes.canonicalize(index_dtype))

    function.__name__ = function.__qualname__ = name
    example = f">>> lax.{name}(np.zeros((2, 3)), 1)\nArray([0, 0], dtype=int32)"
    function.__doc__ = f"{doc}\n\nThe axis leaves the shape; the result has dtype ``index_dtype``.\n\n{example}"
    return function


argmax = _arg_reduction("argmax", "Position of the first largest value along an axis; NaN wins.")
argmin = _arg_reduction("argmin", "Position of the first smallest value along an axis; NaN wins.")
