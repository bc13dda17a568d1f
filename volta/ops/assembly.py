"""Making arrays of several or none: concatenate, iota, full, and the barrier that keeps optimisations apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import Shape, ShapedArray
from volta.core.constants import check_held, constant
from volta.core.extended import is_key, refusal
from volta.core.interp import bind, get_aval
from volta.ops import base
from volta.ops.base import canonical_axis, canonical_ints, dtype_error, shape_error, shape_of
from volta.ops.primitive import Family, Linear, NoDerivative, Primitive, Zero, register
from volta.ops.shaping import slice_in_dim

__all__ = [
    "broadcasted_iota", "concatenate", "full", "full_like", "iota", "ones_like", "optimization_barrier", "split",
    "zeros_like",
]  # fmt: skip

# -- concatenate -------------------------------------------------------------------------------------------------------


def _concatenate_abstract(*avals: ShapedArray, dimension: int) -> ShapedArray:
    first = avals[0]
    if any(a.dtype != first.dtype for a in avals):
        raise dtype_error("concatenate", avals, "operands must have one dtype; use convert_element_type.")
    if not 0 <= dimension < first.ndim:
        raise shape_error("concatenate", avals, f"there is no axis {dimension}")
    rest = {a.shape[:dimension] + a.shape[dimension + 1 :] for a in avals if a.ndim == first.ndim}
    if len(rest) != 1 or any(a.ndim != first.ndim for a in avals):
        raise shape_error("concatenate", avals, f"shapes must agree in all axes but axis {dimension}")
    total = sum(a.shape[dimension] for a in avals)
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return ShapedArray(shape, first.dtype, all(a.weak_type for a in avals))


def _concatenate_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int) -> tuple[Any, Any]:
    out = bind(concatenate_p, *primals, dimension=dimension)
    if base.all_zero(tangents):
        return out, base.zero_like(out)
    return out, bind(concatenate_p, *map(base.instantiate, tangents), dimension=dimension)


def _concatenate_transpose(ct: Any, *operands: Any, dimension: int) -> list[Any]:
    if isinstance(ct, Zero):
        return [None] * len(operands)
    result: list[Any] = []
    start = 0
    for x in operands:
        size = (x.aval if isinstance(x, Linear) else get_aval(x)).shape[dimension]
        result.append(slice_in_dim(ct, start, start + size, 1, dimension) if isinstance(x, Linear) else None)
        start += size
    return result


def _concatenate_batch(args: Any, dims: Any, size: int, *, dimension: int) -> tuple[Any, int]:
    aligned = [base.to_front(x, d, size) for x, d in zip(args, dims, strict=True)]
    return bind(concatenate_p, *aligned, dimension=dimension + 1), 0


concatenate_p = register(
    Primitive(
        "concatenate",
        Family.MOVEMENT,
        _concatenate_abstract,
        _concatenate_jvp,
        _concatenate_batch,
        _concatenate_transpose,
        doc="Operands one after another along an axis.",
    )
)


def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """The operands one after another along axis ``dimension``; other axes and dtypes must agree.

    >>> lax.concatenate([np.arange(2), np.arange(3)], 0)
    Array([0, 1, 0, 1, 2], dtype=int64)
    """
    items = list(operands)
    if not items:
        raise shape_error("concatenate", (), "needs at least one operand")
    axis = canonical_axis("concatenate", dimension, len(shape_of(items[0])))
    return items[0] if len(items) == 1 else bind(concatenate_p, *items, dimension=axis)


# -- split -------------------------------------------------------------------------------------------------------------


def _split_abstract(x: ShapedArray, *, sizes: tuple[int, ...], axis: int) -> list[ShapedArray]:
    if not 0 <= axis < x.ndim:
        raise shape_error("split", (x,), f"there is no axis {axis}")
    if any(n < 0 for n in sizes) or sum(sizes) != x.shape[axis]:
        raise shape_error("split", (x,), f"sizes {sizes} do not add up to the {x.shape[axis]} of axis {axis}")
    return [x.update(shape=(*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes]


def _split_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    outs = list(bind(split_p, *primals, **params))
    if base.all_zero(tangents):
        return outs, [base.zero_like(o) for o in outs]
    return outs, list(bind(split_p, *tangents, **params))


def _split_transpose(cts: Sequence[Any], x: Linear, *, sizes: tuple[int, ...], axis: int) -> list[Any]:
    if base.all_zero(cts):
        return [None]
    return [bind(concatenate_p, *map(base.instantiate, cts), dimension=axis)]


def _split_batch(args: Any, dims: Any, size: int, *, sizes: tuple[int, ...], axis: int) -> tuple[list[Any], list[int]]:
    moved = base.move_axis(args[0], dims[0], 0)
    return list(bind(split_p, moved, sizes=sizes, axis=axis + 1)), [0] * len(sizes)


split_p = register(
    Primitive(
        "split",
        Family.MOVEMENT,
        _split_abstract,
        _split_jvp,
        _split_batch,
        _split_transpose,
        multiple_results=True,
        doc="Neighbouring parts along an axis; the inverse of concatenate.",
    )
)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Parts of the given ``sizes`` along ``axis``, in order; the sizes must add up to the axis.

    Raises:
        ShapeError: where they do not.

    >>> lax.split(np.arange(3), (1, 2))
    [Array([0], dtype=int64), Array([1, 2], dtype=int64)]
    """
    place = canonical_axis("split", axis, len(shape_of(operand)))
    return list(bind(split_p, operand, sizes=canonical_ints("split", "sizes", sizes), axis=place))


# -- constants ---------------------------------------------------------------------------------------------------------


def _iota_abstract(*, dtype: np.dtype, shape: Shape, dimension: int) -> ShapedArray:
    if not 0 <= dimension < len(shape):
        raise shape_error("iota", (), f"axis {dimension} is not among the axes of {shape}")
    if dtype == dtypes.bool_:
        raise dtype_error("iota", (), "bool cannot count")
    if is_key(dtype):
        raise dtype_error("iota", (), refusal(dtype))
    return ShapedArray(shape, dtype)


def _no_operands(*args: Any, **params: Any) -> Any:
    raise AssertionError("iota has no operands, so no transform ever reaches it")


iota_p = register(
    Primitive(
        "iota",
        Family.MOVEMENT,
        _iota_abstract,
        NoDerivative("it has no operands", zero=True),
        _no_operands,
        doc="The numbers 0, 1, 2, ... along one axis, repeated along the others.",
    )
)


def iota(dtype: Any, size: int) -> Array:
    """The numbers 0 to ``size - 1``.

    >>> lax.iota(np.float32, 3)
    Array([0., 1., 2.], dtype=float32)
    """
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(dtype: Any, shape: Any, dimension: int) -> Array:
    """The numbers 0, 1, 2, ... along axis ``dimension`` of an array of the given shape.

    >>> lax.broadcasted_iota(np.int32, (2, 3), 0)
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int32)
    """
    sizes = canonical_ints("iota", "shape", shape)
    axis = canonical_axis("iota", dimension, len(sizes))
    return bind(iota_p, dtype=dtypes.canonicalize(dtype), shape=sizes, dimension=axis)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Array:
    """An array of one value; ``dtype`` is the value's own where not given, a Python number's the default of its kind.

    >>> lax.full((2,), 7, np.int8)
    Array([7, 7], dtype=int8)
    """
    sizes = canonical_ints("full", "shape", shape)
    aval = get_aval(fill_value)
    if aval.shape != ():
        raise shape_error("full", (aval,), "the value must be rank 0; use broadcast_in_dim for an array")
    if dtype is None:
        return base.broadcast_to(base.settled(fill_value), sizes)
    kind = dtypes.canonicalize(dtype)
    if is_key(kind) and not is_key(aval.dtype):  # JAX's way: it is that of each word
        return base.fill(sizes, fill_value, kind)
    if isinstance(fill_value, (bool, int, float, np.generic)):
        check_held(fill_value, kind)
        fill_value = constant(fill_value, kind)
    elif aval.dtype != kind or aval.weak_type:
        fill_value = base.bind_named("convert_element_type", fill_value, new_dtype=kind, weak_type=False)
    return base.broadcast_to(fill_value, sizes)


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Array:
    """An array of one value with ``x``'s shape and dtype, unless others are given.

    >>> lax.full_like(np.ones(2, np.float32), 3)
    Array([3., 3.], dtype=float32)
    """
    aval = get_aval(x)
    own = dtypes.settled(aval.dtype, aval.weak_type)
    return full(aval.shape if shape is None else shape, fill_value, own if dtype is None else dtype)


def zeros_like(x: Any, dtype: Any = None) -> Array:
    """Zeros of ``x``'s shape and dtype.

    >>> lax.zeros_like(np.ones(2))
    Array([0., 0.], dtype=float64)
    """
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Array:
    """Ones of ``x``'s shape and dtype.

    >>> lax.ones_like(np.zeros(2))
    Array([1., 1.], dtype=float64)
    """
    return full_like(x, 1, dtype)


# -- barrier -----------------------------------------------------------------------------------------------------------


def _barrier_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    outs = list(bind(optimization_barrier_p, *primals))
    live = [t for t in tangents if not isinstance(t, Zero)]
    moved = iter(bind(optimization_barrier_p, *live) if live else ())
    return outs, [t if isinstance(t, Zero) else next(moved) for t in tangents]


def _barrier_transpose(cts: Sequence[Any], *operands: Any) -> list[Any]:
    wanted = [isinstance(x, Linear) and not isinstance(c, Zero) for c, x in zip(cts, operands, strict=True)]
    live = [c for c, w in zip(cts, wanted, strict=True) if w]
    moved = iter(bind(optimization_barrier_p, *live) if live else ())
    return [next(moved) if w else None for w in wanted]


def _barrier_batch(args: Any, dims: Any, size: int) -> tuple[list[Any], list[int]]:
    aligned = [base.to_front(x, d, size) if d is None else x for x, d in zip(args, dims, strict=True)]
    return list(bind(optimization_barrier_p, *aligned)), [0 if d is None else d for d in dims]


optimization_barrier_p = register(
    Primitive(
        "optimization_barrier",
        Family.MOVEMENT,
        lambda *avals, memory="": list(avals),
        _barrier_jvp,
        _barrier_batch,
        _barrier_transpose,
        multiple_results=True,
        doc="Identity on several operands that no compiler pass moves work across.",
    )
)


def optimization_barrier(*operands: Any) -> list[Any]:
    """The operands themselves; no pass moves a computation across this point (all are ready before any is used).

    >>> lax.optimization_barrier(np.int32(1), np.int32(2))
    [Array(1, dtype=int32), Array(2, dtype=int32)]
    """
    return list(bind(optimization_barrier_p, *operands))
