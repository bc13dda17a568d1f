"""What every primitive means, in NumPy and SciPy: the oracle of the tests, and nothing that Volta itself uses.

``REFERENCE[name](*arrays, **params)`` gives an array (a list of them for several results). Floats are computed in
float64 where that is harmless and rounded once, so a reference is close to the exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from tests import attention_float64
from volta.core import contract, dtypes

HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
REFERENCE: dict[str, Callable[..., Any]] = {}


def is_float(dtype: Any) -> bool:
    return np.issubdtype(dtype, np.floating) or np.dtype(dtype) in HALF


def reference(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        REFERENCE[name] = f
        return f

    return enter


# -- elementwise -------------------------------------------------------------------------------------------------------


def wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` computed in float64 and rounded to the operands' dtype (integers and booleans as they are)."""

    def computed(*args: Any, **params: Any) -> Any:
        arrays = [np.asarray(a) for a in args]
        dtype = arrays[-1].dtype
        with np.errstate(all="ignore"):
            if np.issubdtype(dtype, np.complexfloating):
                out = np.asarray(f(*(a.astype(np.complex128) for a in arrays), **params))
                real = out.astype(dtypes.part_dtype(dtype)) if out.dtype == np.float64 else out
                return out.astype(dtype) if np.iscomplexobj(out) else real
            if is_float(dtype):
                arrays = [a.astype(np.float64) if is_float(a.dtype) else a for a in arrays]
                out = np.asarray(f(*arrays, **params))
                return out if out.dtype == np.bool_ else out.astype(dtype)
            out = np.asarray(f(*arrays, **params))
            return out if out.dtype == np.bool_ else out.astype(dtype)

    return computed


def _int_div(x: Any, y: Any) -> Any:
    """Towards zero; by zero: -1 (all bits one), as XLA has it."""
    safe = np.where(y == 0, np.ones_like(y), y)
    q = np.floor_divide(x, safe)
    q = q + ((q < 0) & (q * safe != x)).astype(q.dtype)
    return np.where(y == 0, np.full_like(x, -1) if np.issubdtype(x.dtype, np.signedinteger) else ~np.zeros_like(x), q)


def _div(x: Any, y: Any) -> Any:
    return _int_div(x, y) if np.issubdtype(x.dtype, np.integer) else np.divide(x, y)


def _rem(x: Any, y: Any) -> Any:
    if is_float(x.dtype):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, np.ones_like(y), y)))


def _unsigned(x: Any) -> Any:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _shift(op: str) -> Callable[..., Any]:
    def shift(x: Any, y: Any) -> Any:
        x, y = np.broadcast_arrays(x, y)
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        bits = 8 * x.dtype.itemsize
        amount = _unsigned(y)
        inside = amount < bits
        amount = np.where(inside, amount, 0).astype(amount.dtype)
        if op == "arithmetic":
            signed = x.view(np.dtype(f"i{x.dtype.itemsize}"))
            most = np.where(inside, amount, bits - 1).astype(signed.dtype)
            return np.right_shift(signed, most).view(x.dtype)
        shifted = np.left_shift(_unsigned(x), amount) if op == "left" else np.right_shift(_unsigned(x), amount)
        return np.where(inside, shifted, 0).astype(amount.dtype).view(x.dtype)

    return shift


def _population_count(x: Any) -> Any:
    return np.bitwise_count(_unsigned(np.ascontiguousarray(x))).astype(x.dtype)


def _clz(x: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    flat = [bits - int(v).bit_length() for v in _unsigned(np.ascontiguousarray(x)).ravel()]
    return np.array(flat, dtype=x.dtype).reshape(x.shape)


def _nextafter(x: Any, y: Any, *, dtype: Any) -> Any:
    return np.nextafter(x, y)


def _fma(x: Any, y: Any, z: Any) -> Any:
    """In long double, which holds float32's products exactly and float64's closely."""
    a, b, c = (np.asarray(v).astype(np.longdouble) for v in (x, y, z))
    return np.asarray(a * b + c).astype(np.float64).astype(np.asarray(x).dtype)


def _integer_pow(x: Any, *, y: int) -> Any:
    return np.power(x, y) if np.issubdtype(x.dtype, np.integer) else np.power(x, float(y))


_WIDE = {
    "neg": lambda x: ~x if x.dtype == np.bool_ else np.negative(x),
    "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": scipy.special.erf, "erfc": scipy.special.erfc,
    "lgamma": scipy.special.gammaln, "digamma": scipy.special.digamma, "erf_inv": scipy.special.erfinv,
    "logistic": scipy.special.expit, "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x), "cbrt": np.cbrt,
    "pow": np.power, "integer_pow": _integer_pow, "abs": np.abs, "add": np.add, "sub": np.subtract,
    "mul": np.multiply, "div": _div, "rem": _rem, "max": np.maximum, "min": np.minimum,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "is_finite": np.isfinite, "copy": np.copy, "stop_gradient": np.copy,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
}  # fmt: skip
REFERENCE.update({name: wide(f) for name, f in _WIDE.items()})
REFERENCE.update({"real": np.real, "imag": np.imag, "conj": np.conj})
_EXACT = {
    "fma": _fma, "nextafter": _nextafter, "population_count": _population_count, "clz": _clz,
    "shift_left": _shift("left"), "shift_right_logical": _shift("logical"),
    "shift_right_arithmetic": _shift("arithmetic"),
}  # fmt: skip
REFERENCE.update(_EXACT)


@reference("pow_int")
def _pow_int(x: Any, n: Any) -> Any:
    if is_float(x.dtype):
        return np.power(x.astype(np.float64), n).astype(x.dtype)
    wrapped = np.array([pow(int(a), max(int(k), 0)) % 2**64 for a, k in np.broadcast(x, n)], np.uint64).astype(x.dtype)
    inverse = np.where(np.abs(x) == 1, np.where(n % 2 == 0, x * x, x), 0)
    return np.where(n < 0, inverse, wrapped.reshape(np.broadcast_shapes(x.shape, n.shape)))


@reference("complex")
def _complex(x: Any, y: Any) -> Any:
    out = np.empty(np.broadcast_shapes(x.shape, y.shape), dtypes.complex_dtype(x.dtype))
    out.real, out.imag = x, y
    return out


@reference("select_n")
def _select_n(which: Any, case0: Any, case1: Any) -> Any:
    return np.where(which, case1, case0)


@reference("convert_element_type")
def _convert(x: Any, *, new_dtype: Any, weak_type: bool = False) -> Any:
    x = np.asarray(x)
    if np.iscomplexobj(x) and new_dtype not in (*dtypes.COMPLEX, np.bool_):
        x = x.real
    if is_float(x.dtype) and np.issubdtype(new_dtype, np.integer):
        limits = np.iinfo(new_dtype)
        whole = np.trunc(np.where(np.isnan(x), 0, x).astype(np.float64))
        inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)
        with np.errstate(all="ignore"):
            out = np.where(inside, whole, 0).astype(new_dtype)
        return np.where(inside, out, np.where(whole < 0, limits.min, limits.max).astype(new_dtype))
    if new_dtype == np.bool_:
        return x != 0
    with np.errstate(all="ignore"):
        return x.astype(new_dtype)


@reference("bitcast_convert_type")
def _bitcast(x: Any, *, new_dtype: Any, old_dtype: Any) -> Any:
    bits = np.array(x).view(f"u{x.dtype.itemsize}")
    if is_float(old_dtype) and new_dtype != old_dtype:
        bits = np.where(np.isnan(x), bits.dtype.type(contract.NAN_BITS[old_dtype.name]), bits)
    return bits.view(new_dtype)


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
    if mode == "fill" and is_float(operand.dtype):
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
