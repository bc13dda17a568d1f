"""How operands of a NumPy-style function meet: one dtype by promotion, one shape by broadcasting.

Python numbers stay weak and stay rank 0, so that ``x * 2.0`` is one equation with a literal. Arrays of different
non-scalar shapes are broadcast; a rank-0 operand never is, because elementwise primitives take it as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.constants import cast, check_held
from volta.core.errors import AxisError, DTypeError, ShapeError, VoltaError
from volta.core.extended import is_key, refusal
from volta.core.interp import get_aval
from volta.core.source import at_user_line
from volta.ops import lax
from volta.runtime.array import ConcreteArray, as_array

Shape = tuple[int, ...]
NUMBERS = (bool, int, float, complex)


def type_of(name: str, x: Any) -> ShapedArray:
    """As :func:`aval_of`, where the type alone is asked for: what has one and no elements will do
    (``volta.ShapeDtypeStruct``)."""
    aval = getattr(x, "aval", None)
    return aval if isinstance(aval, ShapedArray) and not isinstance(x, Array) else aval_of(name, x)


def aval_of(name: str, x: Any) -> ShapedArray:
    """The type that an operand of ``name`` has as an array; says how to mend what is no operand. A Python number,
    known or traced, counts as a weak array of its kind's default dtype."""
    if isinstance(x, Array) and not x.aval.weak_type:
        return x.aval
    if isinstance(x, (list, tuple)):
        raise DTypeError(
            at_user_line(
                f"{name}: operands must be arrays or numbers, not {type(x).__name__}. Convert it first: "
                "volta.numpy.array(...), so that a long list is never copied element by element unseen."
            )
        )
    try:
        aval = get_aval(x)
    except DTypeError:
        kind = x.dtype if isinstance(x, (np.ndarray, np.generic)) else type(x).__name__
        raise DTypeError(at_user_line(f"{name}: operands must be arrays or numbers, not {kind}: {x!r:.80}")) from None
    if not dtypes.is_number(aval.dtype, aval.weak_type):
        return aval
    return ShapedArray(aval.shape, dtypes.settled(aval.dtype, True), True)


def number_of(name: str, x: Any) -> ShapedArray:
    """As :func:`aval_of`; refuses random keys, for what leaves integers as they are."""
    aval = aval_of(name, x)
    if is_key(aval.dtype):
        raise DTypeError(at_user_line(f"{name}: {refusal(aval.dtype)}"))
    return aval


def is_number(x: Any) -> bool:
    """Whether ``x`` is a Python number that has met no array: known, or traced as one."""
    if isinstance(x, Array):
        return dtypes.is_number(x.aval.dtype, x.aval.weak_type)
    return type(x) in (int, float, complex)


def convert(x: Any, dtype: np.dtype, weak: bool = False) -> Any:
    """``x`` in ``dtype``. Constants are cast here and now; only an Array of another dtype costs an equation.

    Raises:
        OverflowError: for a Python integer that ``dtype`` cannot hold.
    """
    if isinstance(x, Array):
        aval = x.aval
        stays = aval.dtype == dtype and (weak or not aval.weak_type or not dtypes.is_number(dtype, True))
        return x if stays else lax.convert_element_type(x, dtype, weak_type=weak)
    if isinstance(x, (np.ndarray, np.generic)):
        known = x if x.dtype == dtype else cast(x, dtype)[()]
        return ConcreteArray.from_numpy(known, weak_type=True) if weak else known
    check_held(x, dtype)
    if weak and dtypes.is_number(dtype, True):
        return cast(x, dtype).item() if dtypes.is_inexact(dtype) else x
    number = cast(x, dtype)[()]
    return ConcreteArray.from_numpy(number, weak_type=True) if weak else number


def as_value(x: Any) -> Any:
    """``x`` itself when it is an array or a tracer, else an array of it. A Python number, known or traced, takes the
    default dtype of its kind and stays weak."""
    if isinstance(x, Array) and not x.aval.weak_type:
        return x
    aval = get_aval(x)
    if dtypes.is_number(aval.dtype, aval.weak_type):
        return convert(x, dtypes.settled(aval.dtype, True), weak=True)
    return x if isinstance(x, Array) else as_array(x)


def common_dtype(name: str, *xs: Any) -> tuple[np.dtype, bool]:
    """The dtype in which the operands of ``name`` meet, and whether it is weak."""
    return joined(name, [(a.dtype, a.weak_type) for a in (aval_of(name, x) for x in xs)])


def joined(name: str, types: Sequence[tuple[np.dtype, bool]]) -> tuple[np.dtype, bool]:
    """What these dtypes, weak or not, promote to.

    Raises:
        DTypeError: for random keys among others, which have no dtype in common.
    """
    try:
        return dtypes.promote(*types)
    except DTypeError as error:
        raise DTypeError(f"{name}: {error}") from None


def _meet(xs: Sequence[Any]) -> bool:
    """Whether operands are arrays of one dtype, as they mostly are: an eager operation asks each time."""
    if not xs or not isinstance(xs[0], Array):
        return False
    dtype = xs[0].aval.dtype
    for x in xs:
        if not isinstance(x, Array) or x.aval.weak_type or x.aval.dtype != dtype:
            return False
    return True


def promote_dtypes(name: str, *xs: Any) -> list[Any]:
    """The operands in their common dtype; shapes are untouched."""
    if _meet(xs):
        return list(xs)
    dtype, weak = common_dtype(name, *xs)
    return [convert(x, dtype, weak) for x in xs]


def promote_floats(name: str, *xs: Any) -> list[Any]:
    """The operands in their common float or complex dtype: integers and booleans count as the default float."""
    if _meet(xs) and dtypes.is_float(xs[0].aval.dtype):
        return list(xs)
    dtype, weak = common_dtype(name, *xs)
    if is_key(dtype):
        raise DTypeError(at_user_line(f"{name}: {refusal(dtype)}"))
    dtype = dtypes.to_float(dtype)
    return [convert(x, dtype, weak) for x in xs]


def broadcast_shapes_of(name: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape under NumPy's rules.

    Raises:
        ShapeError: naming the two shapes and the axis that do not agree.
    """
    ndim = max((len(s) for s in shapes), default=0)
    out = [1] * ndim
    owner: list[Shape] = [()] * ndim
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            size = shape[-i]
            if size == 1:
                continue
            if out[-i] == 1:
                out[-i], owner[-i] = size, shape
            elif out[-i] != size:
                raise ShapeError(
                    at_user_line(
                        f"{name}: shapes {owner[-i]} and {shape} do not broadcast: counted from the right, axis -{i} "
                        f"has {out[-i]} and {size}. Sizes must be equal, or one of them 1; insert an axis with "
                        "x[:, None] or reshape one operand."
                    )
                )
    return tuple(out)


def broadcast(name: str, *xs: Any) -> list[Any]:
    """Operands of equal shape, but rank-0 ones, which stay as they are."""
    shapes = [np.shape(x) if not isinstance(x, Array) else x.aval.shape for x in xs]
    ranked = [s for s in shapes if s]
    if all(s == ranked[0] for s in ranked):
        return list(xs)
    shape = broadcast_shapes_of(name, ranked)
    return [x if not s or s == shape else broadcast_array(x, shape) for x, s in zip(xs, shapes, strict=True)]


def broadcast_array(x: Any, shape: Shape) -> Any:
    """``x`` expanded to ``shape`` (which it is known to broadcast to)."""
    own = np.shape(x) if not isinstance(x, Array) else x.aval.shape
    if own == shape:
        return x
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - len(own), len(shape))))


def operands(name: str, *xs: Any) -> list[Any]:
    """Operands of one dtype and of one shape (or rank 0): what an elementwise primitive takes."""
    x0 = xs[0]
    if isinstance(x0, Array) and len(xs) == 2:  # the common case, quickly
        x1, a0 = xs[1], x0.aval
        if isinstance(x1, Array) and not a0.weak_type and x1.aval == a0:
            return [x0, x1]
    return broadcast(name, *promote_dtypes(name, *xs))


def float_operands(name: str, *xs: Any) -> list[Any]:
    return broadcast(name, *promote_floats(name, *xs))


def number_operands(name: str, *xs: Any) -> list[Any]:
    """Like :func:`operands`; refuses booleans, for which the arithmetic has no meaning."""
    out = operands(name, *xs)
    if aval_of(name, out[0]).dtype == dtypes.bool_:
        raise DTypeError(
            at_user_line(
                f"{name}: not defined for bool; use logical_xor, logical_or or astype('int32') to say what is meant."
            )
        )
    return out


def zero_like(x: Any) -> Any:
    """A rank-0 zero of ``x``'s dtype: a literal in the IR; weak where ``x`` is weak."""
    return scalar_like(x, 0)


def scalar_like(x: Any, value: float) -> Any:
    """A number in ``x``'s dtype; weak where both are weak, so that a weak type survives."""
    aval = get_aval(x)
    return convert(value, aval.dtype, aval.weak_type and get_aval(value).weak_type)


def canonical_axis(name: str, axis: Any, ndim: int) -> int:
    """``axis`` counted from the front.

    Raises:
        ShapeError: when the array has no such axis.
    """
    try:
        index = operator.index(axis)
    except TypeError as error:
        if isinstance(error, VoltaError):  # a traced axis
            raise
        raise ShapeError(at_user_line(f"{name}: axis must be an int, not {axis!r:.80}")) from None
    if not -ndim <= index < ndim:
        raise AxisError(
            at_user_line(
                f"{name}: axis {index} does not exist in an array of {ndim} dimensions (-{ndim} to {ndim - 1})"
            )
            if ndim
            else at_user_line(f"{name}: axis {index} does not exist: the operand is a scalar (shape ())")
        )
    return index + ndim if index < 0 else index


def canonical_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """``axis`` (None for all, an int, or a sequence) as ascending axes counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(canonical_axis(name, a, ndim) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ShapeError(at_user_line(f"{name}: axis {axis} names one axis twice"))
    return tuple(sorted(axes))
