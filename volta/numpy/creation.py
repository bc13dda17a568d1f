"""Making arrays: from data, filled, ranges, and the matrices with a name."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import as_shape
from volta.core.constants import cast, check_held
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError
from volta.core.extended import is_key
from volta.core.floats import standard
from volta.core.interp import Tracer
from volta.core.source import at_user_line
from volta.numpy import binary, powers, shaping
from volta.numpy.placing import lying
from volta.numpy.promotion import (
    as_value,
    aval_of,
    broadcast,
    canonical_axis,
    common_dtype,
    convert,
    promote_floats,
    type_of,
)
from volta.numpy.ufuncs import astype
from volta.ops import lax
from volta.runtime.array import ConcreteArray, plain
from volta.trace.tracer import setting_of

Shape = int | Sequence[int]


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: Any = None, ndmin: int = 0, *, device: Any = None
) -> Array:
    """An array of a number, a NumPy array, or nested lists of them and of arrays.

    Python floats become float32 and ints int32 (a number by itself stays weakly typed); NumPy arrays keep their dtype,
    float64 included. An array of Volta's comes out as another, so that donating either leaves the other there, unless
    ``copy`` is False. ``order`` is accepted for NumPy's sake: arrays have one layout.
    ``device``, here and in its like, is a device's name or a sharding: where the result lies.

    >>> volta.numpy.array([1, 2.5])
    Array([1. , 2.5], dtype=float32)
    """
    out = _array(object, None if dtype is None else dtypes.canonicalize(dtype))
    out = _another(out) if copy and out is object else out
    return lying(out if out.ndim >= ndmin else lax.reshape(out, (1,) * (ndmin - out.ndim) + out.shape), device)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, device: Any = None) -> Array:
    """``a`` as an array; arrays pass through, and a Python number stays weakly typed.

    Raises:
        ValueError: ``copy`` is False where the elements must be copied: those of anything but an array of Volta's.
    """
    if copy is False and not (isinstance(a, Array) and dtype in (None, a.dtype)):
        raise ValueError(at_user_line("asarray: the elements of anything but an array of its own dtype are copied"))
    return lying(_array(a, None if dtype is None else dtypes.canonicalize(dtype)), device)


def copy(a: Any, order: Any = None) -> Array:
    """The same values as ``a``, in an array of their own: who donates one still has the other.

    ``order`` is accepted for NumPy's sake.
    """
    out = asarray(a)
    return _another(out) if out is a else out


def _another(x: Array) -> Array:
    return x.another() if isinstance(x, ConcreteArray) else x


@standard
def _array(x: Any, dtype: np.dtype | None) -> Array:
    if isinstance(x, Array):
        return as_value(x) if dtype is None else astype(x, dtype)
    if isinstance(x, (list, tuple, range)):
        return _from_nested(list(x), dtype)
    if not isinstance(x, (np.ndarray, np.generic)) and dtypes.of_python_scalar(x) is None:
        x = np.asarray(x if hasattr(x, "__array__") or hasattr(x, "__array_interface__") else _bytes_of(x))
    if dtype is None:
        return as_value(x)
    check_held(x, dtype)
    return ConcreteArray.from_numpy(cast(plain(x), dtype))


def _bytes_of(x: Any) -> memoryview:
    """The memory of an object that shows it, as ``array.array`` does."""
    try:
        return memoryview(x)
    except TypeError:
        raise DTypeError(at_user_line(f"array: cannot make an array of {type(x).__name__}: {x!r:.80}")) from None


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple, range)):
        return [leaf for item in x for leaf in _leaves(item)]
    return [x]


def _common(leaves: list[Any]) -> np.dtype:
    if not leaves:
        return dtypes.DEFAULT_FLOAT
    return common_dtype("array", *leaves)[0]


def _from_nested(x: Any, dtype: np.dtype | None) -> Array:
    leaves = _leaves(x)
    if not builtins.any(isinstance(leaf, Array) for leaf in leaves):
        if dtype is None:
            dtype = _common(leaves)
        for leaf in leaves:
            check_held(leaf, dtype)
        try:
            return ConcreteArray.from_numpy(cast(np.array(x), dtype))
        except ValueError as e:
            raise ShapeError(at_user_line(f"array: the nested lists have no common shape ({e})")) from None
    if dtype is None:
        dtype = _common(leaves)
    return shaping.stack([_array(item, dtype) for item in x])


# -- filled ------------------------------------------------------------------------------------------------------------


def full(shape: Shape, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of ``shape`` filled with ``fill_value`` (which may be an array that broadcasts).

    >>> volta.numpy.full((2,), 7)
    Array([7, 7], dtype=int32, weak_type=True)
    """
    shape = as_shape("full", shape)
    aval = aval_of("full", fill_value)
    if dtype is None:
        return lying(shaping.broadcast_to(fill_value, shape), device)
    dtype = dtypes.canonicalize(dtype)
    if aval.shape:
        return lying(shaping.broadcast_to(astype(fill_value, dtype), shape), device)
    value = fill_value if is_key(dtype) else convert(fill_value, dtype)
    return lying(as_value(lax.full(shape, value, dtype)), device)


def zeros(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of zeros, float32 unless ``dtype`` says otherwise."""
    return full(as_shape("zeros", shape), 0, dtypes.DEFAULT_FLOAT if dtype is None else dtype, device=device)


def ones(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """An array of ones, float32 unless ``dtype`` says otherwise."""
    return full(as_shape("ones", shape), 1, dtypes.DEFAULT_FLOAT if dtype is None else dtype, device=device)


def empty(shape: Shape, dtype: Any = None, *, device: Any = None) -> Array:
    """The same as :func:`zeros`: no memory is ever left undefined."""
    return zeros(shape, dtype, device=device)


def full_like(a: ArrayLike, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """:func:`full` with the shape and dtype of ``a``, weak where ``a`` is weak; a ``ShapeDtypeStruct`` will do."""
    aval = type_of("full_like", a)
    out = full(aval.shape if shape is None else shape, fill_value, aval.dtype if dtype is None else dtype)
    weak = dtype is None and aval.weak_type
    return lying(lax.convert_element_type(out, aval.dtype, weak_type=True) if weak else out, device)


def zeros_like(a: ArrayLike, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Zeros with the shape and dtype of ``a``."""
    return full_like(a, 0, dtype, shape, device=device)


def ones_like(a: ArrayLike, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Ones with the shape and dtype of ``a``."""
    return full_like(a, 1, dtype, shape, device=device)


empty_like = zeros_like


# -- ranges ------------------------------------------------------------------------------------------------------------


def _concrete_number(name: str, x: Any) -> Any:
    if isinstance(x, Tracer):
        raise ConcretizationTypeError(
            at_user_line(
                f"{name}: its arguments decide the shape, so they must be known while tracing, but got a traced value "
                f"({x.aval.short()}). Take it from a shape"
            )
            + setting_of(x)
        )
    return np.asarray(x)[()] if isinstance(x, (Array, np.ndarray)) else x


@standard
def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Array:
    """Evenly spaced values in ``[start, stop)``; one argument counts from 0.

    Element i is ``start + i * step`` computed in the result's dtype.

    >>> volta.numpy.arange(2, 8, 3)
    Array([2, 5], dtype=int32)
    """
    start, stop, step = (None if v is None else _concrete_number("arange", v) for v in (start, stop, step))
    if stop is None:
        start, stop = start * 0, start
    given = [v for v in (start, stop, step) if v is not None]
    step = 1 if step is None else step
    if dtype is None:
        dtype = _common(given)
    dtype = dtypes.canonicalize(dtype)
    if step == 0:
        raise ValueError(at_user_line("arange: step must not be 0"))
    size = builtins.max(0, math.ceil((stop - start) / step))
    if dtype == dtypes.bool_:
        return lying(astype(arange(start, stop, step, dtypes.int32), dtype), device)
    out = lax.iota(dtype, size)
    if step != 1:
        out = lax.mul(out, convert(step, dtype))
    return lying(out if start == 0 else lax.add(out, convert(start, dtype)), device)


def _computed_in(dtype: Any) -> np.dtype:
    """What a range of ``dtype`` is computed in, before it is rounded once."""
    dtype = dtypes.canonicalize(dtype)
    return dtypes.compute_dtype(dtype) if dtypes.is_inexact(dtype) else dtypes.float64


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Array: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: Any = None,
    axis: int = 0,
    device: Any = None,
) -> tuple[Array, Array]: ...


@standard
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """``num`` evenly spaced values from ``start`` to ``stop`` (included when ``endpoint``), along a new ``axis``.

    >>> volta.numpy.linspace(0, 1, 3)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    num = int(_concrete_number("linspace", num))
    if num < 0:
        raise ValueError(at_user_line(f"linspace: num must not be negative, got {num}"))
    own, _ = common_dtype("linspace", start, stop)
    out_dtype = dtypes.to_float(own) if dtype is None else dtypes.canonicalize(dtype)
    work = _computed_in(out_dtype)
    start, stop = broadcast("linspace", convert(start, work), convert(stop, work))
    shape = np.broadcast_shapes(aval_of("", start).shape, aval_of("", stop).shape)
    axis = canonical_axis("linspace", axis, len(shape) + 1)
    intervals = num - 1 if endpoint else num
    full_shape = shape[:axis] + (num,) + shape[axis:]

    def spread(x: Any) -> Any:
        if not aval_of("", x).shape:
            return x
        return lax.broadcast_in_dim(x, full_shape, tuple(i for i in range(len(full_shape)) if i != axis))

    index = lax.broadcasted_iota(work, full_shape, axis)
    whole = work.type(builtins.max(intervals, 1))
    # a blend instead of start + i * step: it does not overshoot; divided at last, whole numbers come out exact
    blend = lax.add(lax.mul(spread(start), lax.sub(whole, index)), lax.mul(spread(stop), index))
    out = lax.select_n(lax.eq(index, work.type(0)), lax.div(blend, whole), spread(start))
    if endpoint and num > 1:
        out = lax.select_n(lax.eq(index, work.type(num - 1)), out, spread(stop))
    if dtypes.is_integer(out_dtype):
        out = lax.floor(out)
    out = lying(convert(out, out_dtype), device)
    if not retstep:
        return out
    if intervals <= 0:
        return out, as_value(work.type(math.nan))
    return out, lax.div(lax.sub(stop, start), work.type(intervals))


@standard
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Array:
    """``base`` to the powers :func:`linspace` gives."""
    exponents = linspace(start, stop, num, endpoint, dtype=None if dtype is None else _computed_in(dtype), axis=axis)
    base = convert(base, exponents.dtype)
    if shaping.ndim(base):
        base = shaping.expand_dims(base, axis)
    out = powers.power(base, exponents)
    return out if dtype is None else astype(out, dtype)


@standard
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Array:
    """``num`` values from ``start`` to ``stop``, each the same multiple of the one before; both have one sign.

    >>> volta.numpy.round(volta.numpy.geomspace(1, 8, 4))
    Array([1., 2., 4., 8.], dtype=float32)
    """
    ends = promote_floats("geomspace", start, stop)
    if dtype is not None:
        ends = [convert(x, _computed_in(dtype)) for x in (start, stop)]
    start, stop = shaping.broadcast_arrays(*ends)
    sign = lax.sign(start)
    out = lax.exp(linspace(lax.log(lax.div(start, sign)), lax.log(lax.div(stop, sign)), num, endpoint, axis=-1))
    out = binary.multiply(shaping.expand_dims(sign, -1), out)
    places = lax.broadcasted_iota(dtypes.int32, out.shape, out.ndim - 1)
    for place, end in ((0, start), (num - 1, stop))[: 2 if endpoint and num > 1 else 1]:  # both ends are exact
        out = binary.where_three(lax.eq(places, np.int32(place)), shaping.expand_dims(end, -1), out)
    out = shaping.moveaxis(out, -1, axis)
    return out if dtype is None else astype(out, dtype)
