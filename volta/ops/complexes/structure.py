"""Complex values that are moved, summed, multiplied as matrices and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.ops import base
from volta.ops.arithmetic import add, ne, sub
from volta.ops.complexes.arithmetic import constant_like, product
from volta.ops.complexes.pair import Pair, by_parts, means
from volta.ops.movement import pad
from volta.ops.selection import convert_element_type
from volta.ops.shaping import slice_in_dim

by_parts(
    "reshape", "transpose", "broadcast_in_dim", "slice", "rev", "pad", "concatenate", "split",
    "dynamic_slice", "dynamic_update_slice", "scatter", "reduce_sum", "cumsum",
)  # fmt: skip


@means("gather")
def _gather(z: Pair, *indices: Any, mode: str, **params: Any) -> Pair:
    """What is out of range is NaN + 0i where it is filled."""
    re = base.bind_named("gather", z.re, *indices, mode=mode, **params)
    return Pair(re, base.bind_named("gather", z.im, *indices, mode="zero" if mode == "fill" else mode, **params))


@means("optimization_barrier")
def _barrier(*operands: Any) -> list[Any]:
    return _all_parts("optimization_barrier", operands)


def _all_parts(name: str, operands: Sequence[Any], **params: Any) -> list[Any]:
    """An operation with a result an operand, of all parts at once."""
    flat = [part for x in operands for part in ((x.re, x.im) if isinstance(x, Pair) else (x,))]
    outs = iter(base.bind_named(name, *flat, **params))
    return [Pair(next(outs), next(outs)) if isinstance(x, Pair) else next(outs) for x in operands]


@means("iota")
def _iota(*, dtype: np.dtype, **params: Any) -> Pair:
    re = base.bind_named("iota", dtype=dtypes.part_dtype(dtype), **params)
    return Pair(re, base.fill(base.shape_of(re), 0, base.dtype_of(re)))


@means("dot_general")
def _dot_general(x: Pair, y: Pair, *, preferred_element_type: Any, **params: Any) -> Pair:
    """Four products: re = re re - im im and im = re im + im re, of DOTs."""
    part = None if preferred_element_type is None else dtypes.part_dtype(preferred_element_type)

    def dot(a: Any, b: Any) -> Any:
        return base.bind_named("dot_general", a, b, preferred_element_type=part, **params)

    return Pair(sub(dot(x.re, y.re), dot(x.im, y.im)), add(dot(x.re, y.im), dot(x.im, y.re)))


# -- products of many --------------------------------------------------------------------------------------------------


@means("reduce_prod")
def _reduce_prod(z: Pair, *, axes: tuple[int, ...]) -> Pair:
    """By halves: element k times element k + n / 2, an odd number with a 1 at the end."""
    rest = [d for d in range(len(z.shape)) if d not in axes]
    sizes, at = tuple(z.shape[d] for d in rest), len(rest)
    n = 1
    for a in axes:
        n *= z.shape[a]
    z = Pair(*(base.reshape_to(base.permute(x, (*rest, *axes)), (*sizes, n)) for x in (z.re, z.im)))
    if n == 0:
        z, n = constant_like(Pair(*[base.fill((*sizes, 1), 0, base.dtype_of(z.re))] * 2), 1.0), 1
    while n > 1:
        if n % 2:
            z, n = _padded(z, at, 0, 1), n + 1
        low, high = (
            Pair(*(slice_in_dim(x, start, start + n // 2, 1, at) for x in (z.re, z.im))) for start in (0, n // 2)
        )
        z, n = product(low, high), n // 2
    return Pair(base.reshape_to(z.re, sizes), base.reshape_to(z.im, sizes))


@means("cumprod")
def _cumprod(z: Pair, *, axis: int, reverse: bool) -> Pair:
    """Each element times that at distance 1 before it, then 2, 4, …"""
    n, distance = z.shape[axis], 1
    while distance < n:
        before = _padded(z, axis, -distance, distance) if reverse else _padded(z, axis, distance, -distance)
        z, distance = product(before, z), 2 * distance
    return z


def _padded(z: Pair, axis: int, low: int, high: int) -> Pair:
    """With ones before and behind along an axis."""
    config = [(low, high, 0) if d == axis else (0, 0, 0) for d in range(len(z.shape))]
    dtype = base.dtype_of(z.re)
    return Pair(*(pad(x, base.fill((), one, dtype), config) for x, one in ((z.re, 1), (z.im, 0))))


# -- order -------------------------------------------------------------------------------------------------------------


@means("sort")
def _sort(*operands: Any, num_keys: int, **params: Any) -> list[Any]:
    """By the real part, then by the imaginary one; numbers with a NaN come last: those of which the imaginary part is
    one, then those of which the real part is, then those of which both are (NumPy's order)."""
    keys = [part for x in operands[:num_keys] for part in ((_rank(x), x) if isinstance(x, Pair) else (x,))]
    count = sum(1 + isinstance(x, Pair) for x in keys)
    outs = _all_parts("sort", (*keys, *operands[num_keys:]), num_keys=count, **params)
    ranks = [i + 1 < len(keys) and isinstance(keys[i + 1], Pair) for i in range(len(keys))]
    return [x for i, x in enumerate(outs) if not (i < len(keys) and ranks[i])]


def _rank(z: Pair) -> Any:
    re, im = (convert_element_type(ne(x, x), dtypes.int8) for x in (z.re, z.im))
    return add(add(re, re), im)
