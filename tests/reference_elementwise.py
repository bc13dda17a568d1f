"""What every elementwise primitive means, in NumPy and SciPy; see ``tests/reference.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

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
    long, double = (np.clongdouble, np.complex128) if np.iscomplexobj(x) else (np.longdouble, np.float64)
    a, b, c = (np.asarray(v).astype(long) for v in (x, y, z))
    return np.asarray(a * b + c).astype(double).astype(np.asarray(x).dtype)


def _integer_pow(x: Any, *, y: int) -> Any:
    return np.power(x, y) if np.issubdtype(x.dtype, np.integer) else np.power(x, float(y))


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x)) if np.iscomplexobj(x) else scipy.special.expit(x)


_WIDE = {
    "neg": lambda x: ~x if x.dtype == np.bool_ else np.negative(x),
    "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": scipy.special.erf, "erfc": scipy.special.erfc,
    "lgamma": scipy.special.gammaln, "digamma": scipy.special.digamma, "erf_inv": scipy.special.erfinv,
    "logistic": _logistic, "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x), "cbrt": np.cbrt,
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
