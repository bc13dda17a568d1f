"""What every primitive means, in NumPy and SciPy: the oracle of the tests, and nothing that Volta itself uses.

``REFERENCE[name](*arrays, **params)`` gives an array (a list of them for several results). Floats are computed in
float64 where that is harmless and rounded once, so a reference is close to the exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests import attention_float64
from tests.reference_elementwise import REFERENCE, is_float, reference

# -- reductions --------------------------------------------------------------------------------------------------------


def _reduction(ufunc: Any) -> Callable[..., Any]:
    def reduce(x: Any, *, axes: tuple[int, ...]) -> Any:
        computed = x.astype(np.float64) if is_float(x.dtype) else x
        with np.errstate(all="ignore"):
            return np.asarray(ufunc.reduce(computed, axis=axes)).astype(x.dtype)

    return reduce


for _name, _ufunc in {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}.items():  # fmt: skip
    REFERENCE["reduce_" + _name] = _reduction(_ufunc)


@reference("argmax")
def _argmax(x: Any, *, axis: int, index_dtype: Any) -> Any:
    return np.asarray(np.argmax(x.astype(np.float64) if is_float(x.dtype) else x, axis=axis)).astype(index_dtype)


@reference("argmin")
def _argmin(x: Any, *, axis: int, index_dtype: Any) -> Any:
    return np.asarray(np.argmin(x.astype(np.float64) if is_float(x.dtype) else x, axis=axis)).astype(index_dtype)


# -- movement ----------------------------------------------------------------------------------------------------------


@reference("reshape")
def _reshape(x: Any, *, new_sizes: Any) -> Any:
    return np.reshape(x, new_sizes)


@reference("transpose")
def _transpose(x: Any, *, permutation: Any) -> Any:
    return np.transpose(x, permutation)


@reference("broadcast_in_dim")
def _broadcast_in_dim(x: Any, *, shape: Any, broadcast_dimensions: Any) -> Any:
    sizes = [1] * len(shape)
    for i, d in enumerate(broadcast_dimensions):
        sizes[d] = x.shape[i]
    return np.broadcast_to(np.reshape(x, sizes), shape).copy()


@reference("slice")
def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    steps = strides or (1,) * x.ndim
    return x[tuple(slice(a, b, s) for a, b, s in zip(start_indices, limit_indices, steps, strict=True))].copy()


@reference("rev")
def _rev(x: Any, *, dimensions: Any) -> Any:
    return np.flip(x, dimensions).copy()


@reference("pad")
def _pad(x: Any, value: Any, *, padding_config: Any) -> Any:
    for axis, (low, high, interior) in enumerate(padding_config):
        n = x.shape[axis]
        inner = n + max(n - 1, 0) * interior
        total = inner + max(low, 0) + max(high, 0)
        out = np.full((*x.shape[:axis], total, *x.shape[axis + 1 :]), value, dtype=x.dtype)
        place: list[Any] = [slice(None)] * x.ndim
        place[axis] = slice(max(low, 0), max(low, 0) + inner, interior + 1)
        out[tuple(place)] = x
        place[axis] = slice(max(-low, 0), total - max(-high, 0))
        x = out[tuple(place)]
    return x.copy()


@reference("split")
def _split(x: Any, *, sizes: Any, axis: int) -> Any:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@reference("concatenate")
def _concatenate(*xs: Any, dimension: int) -> Any:
    return np.concatenate(xs, dimension)


def _starts(shape: Any, sizes: Any, starts: Any) -> list[int]:
    return [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]


@reference("dynamic_slice")
def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Any) -> Any:
    first = _starts(x.shape, slice_sizes, starts)
    return x[tuple(slice(a, a + k) for a, k in zip(first, slice_sizes, strict=True))].copy()


@reference("dynamic_update_slice")
def _dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    first = _starts(x.shape, update.shape, starts)
    out = x.copy()
    out[tuple(slice(a, a + k) for a, k in zip(first, update.shape, strict=True))] = update
    return out


@reference("iota")
def _iota(*, dtype: Any, shape: Any, dimension: int) -> Any:
    sizes = [1] * len(shape)
    sizes[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(sizes), shape).copy()


@reference("optimization_barrier")
def _optimization_barrier(*xs: Any) -> Any:
    return [np.copy(x) for x in xs]


# -- contraction -------------------------------------------------------------------------------------------------------


@reference("dot_general")
def _dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    (lc, rc), (lb, rb) = dimension_numbers
    out_dtype = preferred_element_type or lhs.dtype
    if is_float(lhs.dtype):
        lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    else:
        lhs, rhs = lhs.astype(out_dtype), rhs.astype(out_dtype)
    left, right = list(range(lhs.ndim)), [lhs.ndim + d for d in range(rhs.ndim)]
    for a, b in zip(lc + lb, rc + rb, strict=True):
        right[b] = left[a]
    free_left = [left[d] for d in range(lhs.ndim) if d not in lc + lb]
    free_right = [right[d] for d in range(rhs.ndim) if d not in rc + rb]
    out = np.einsum(lhs, left, rhs, right, [left[d] for d in lb] + free_left + free_right)
    return np.asarray(out).astype(out_dtype)


# -- indexing ----------------------------------------------------------------------------------------------------------


def _positions(shape: Any, indices: Sequence[Any], axes: Any, batch_dims: int) -> Any:
    """For each position of batch + I: the (clipped) index into the operand, and whether it was inside."""
    index_shape = indices[0].shape
    for at in np.ndindex(*index_shape):
        picked = [int(i[at]) for i in indices]
        inside = all(0 <= p < shape[a] for p, a in zip(picked, axes, strict=True))
        place: list[Any] = [slice(None)] * len(shape)
        place[:batch_dims] = at[:batch_dims]
        for p, a in zip(picked, axes, strict=True):
            place[a] = min(max(p, 0), shape[a] - 1)
        yield at, tuple(place), inside


@reference("gather")
def _gather(operand: Any, *indices: Any, axes: Any, batch_dims: int, mode: str) -> Any:
    rest = tuple(operand.shape[d] for d in range(batch_dims, operand.ndim) if d not in axes)
    if mode == "fill" and (is_float(operand.dtype) or np.iscomplexobj(operand)):
        filler: Any = np.nan
    elif mode == "fill" and np.issubdtype(operand.dtype, np.signedinteger):
        filler = np.iinfo(operand.dtype).min
    elif mode == "fill":  # unsigned: the largest value; booleans: True (as in JAX)
        filler = True if operand.dtype == np.bool_ else np.iinfo(operand.dtype).max
    else:
        filler = 0
    out = np.full(indices[0].shape + rest, filler, dtype=operand.dtype)
    for at, place, inside in _positions(operand.shape, indices, axes, batch_dims):
        if inside or mode == "clip":
            out[at] = operand[place]
    return out


@reference("scatter")
def _scatter(operand: Any, updates: Any, *indices: Any, axes: Any, batch_dims: int, mode: str, op: str) -> Any:
    out = operand.astype(np.float64) if is_float(operand.dtype) and op == "add" else operand.copy()
    combine = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(op)
    for at, place, inside in _positions(operand.shape, indices, axes, batch_dims):
        if inside or mode == "clip":
            out[place] = updates[at] if combine is None else combine(out[place], updates[at].astype(out.dtype))
    return out.astype(operand.dtype)


# -- sorting and scans -------------------------------------------------------------------------------------------------


@reference("sort")
def _sort(*xs: Any, dimension: int, is_stable: bool = True, num_keys: int = 1) -> Any:
    def key(x: Any) -> Any:
        x = np.moveaxis(x, dimension, -1)
        return x.astype(np.float64) if is_float(x.dtype) else x

    if num_keys == 1:
        order = np.argsort(key(xs[0]), axis=-1, kind="stable")
    else:
        order = np.lexsort([key(x) for x in xs[:num_keys]][::-1], axis=-1)
    order = np.moveaxis(order, -1, dimension)
    return [np.take_along_axis(x, order, dimension) for x in xs]


def _scan(ufunc: Any) -> Callable[..., Any]:
    def scan(x: Any, *, axis: int, reverse: bool = False) -> Any:
        computed = x.astype(np.float64) if is_float(x.dtype) else x
        computed = np.flip(computed, axis) if reverse else computed
        with np.errstate(all="ignore"):
            out = ufunc.accumulate(computed, axis=axis).astype(x.dtype)
        return np.flip(out, axis).copy() if reverse else out

    return scan


REFERENCE["cumsum"] = _scan(np.add)
REFERENCE["cumprod"] = _scan(np.multiply)
REFERENCE["cummax"] = _scan(np.maximum)
REFERENCE["cummin"] = _scan(np.minimum)

REFERENCE["attention"] = attention_float64.attention
REFERENCE["attention_dq"] = attention_float64.attention_dq
REFERENCE["attention_dkv"] = attention_float64.attention_dkv
