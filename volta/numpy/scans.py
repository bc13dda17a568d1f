"""Scans: running sums and products along an axis."""

from __future__ import annotations

from typing import Any

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.numpy.promotion import aval_of, canonical_axis, convert
from volta.numpy.reductions import sum_dtype
from volta.ops import lax


def _scan(name: str, primitive: Any, x: Array, axis: int | None, dtype: Any) -> Array:
    own = aval_of(name, x)
    kept = dtypes.DEFAULT_INT if own.dtype == dtypes.bool_ else own.dtype
    wanted = kept if dtype is None else dtypes.canonicalize(dtype)
    if wanted == dtypes.bool_:  # counted, and asked at each place whether there is anything
        return convert(_scan(name, primitive, convert(x, wanted), axis, dtypes.DEFAULT_INT), wanted)
    x = convert(x, wanted)
    if axis is None:
        return primitive(x if own.ndim == 1 else lax.reshape(x, (own.size,)), 0)
    return primitive(x, canonical_axis(name, axis, own.ndim))


def cumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """Running sums along ``axis`` (None: of the flat array), in the dtype of ``a`` (int32 for booleans)."""
    return _scan("cumsum", lax.cumsum, a, axis, dtype)


def cumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """Running products along ``axis`` (None: of the flat array), in the dtype of ``a`` (int32 for booleans)."""
    return _scan("cumprod", lax.cumprod, a, axis, dtype)


def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """:func:`cumsum` of the array API standard: ``axis`` may be left out for vectors only.

    Small integers are added as 32-bit integers.

    >>> cumulative_sum(np.int32([1, 2, 3]), include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    return _cumulative("cumulative_sum", cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """:func:`cumprod` of the array API standard: ``axis`` may be left out for vectors only.

    >>> cumulative_prod(np.int32([1, 2, 3]), include_initial=True)
    Array([1, 1, 2, 6], dtype=int32)
    """
    return _cumulative("cumulative_prod", cumprod, 1, x, axis, dtype, include_initial)


def _cumulative(name: str, scan: Any, first: int, x: Array, axis: int | None, dtype: Any, initial: bool) -> Array:
    shape = aval_of(name, x).shape
    if axis is None and len(shape) != 1:
        raise ShapeError(at_user_line(f"{name}: an array of shape {shape} needs an axis"))
    axis = canonical_axis(name, 0 if axis is None else axis, len(shape))
    out = scan(x, axis, sum_dtype(aval_of(name, x).dtype) if dtype is None else dtype)
    if not initial:
        return out
    ends = tuple((1, 0, 0) if i == axis else (0, 0, 0) for i in range(len(shape)))
    return lax.pad(out, get_aval(out).dtype.type(first), ends)
